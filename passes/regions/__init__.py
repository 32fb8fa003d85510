"""What runs packed: domains, layouts, packed forms, and the choice among them."""
