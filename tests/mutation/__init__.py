"""Wrong twins of everything that pitc's answers rest on, and the tests that must notice them."""
