"""How pitc is released: `make wheel`. Nothing here is installed."""
