"""What is proven of every value: shapes and symbols, constants forward, deadness backward."""
