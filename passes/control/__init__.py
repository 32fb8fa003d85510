"""Bodies of control flow: opened, unrolled, lowered and closed again."""
