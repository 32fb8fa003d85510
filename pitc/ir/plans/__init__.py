"""What PIT nodes do: one typed plan for each operation."""
