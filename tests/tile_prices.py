"""Prices for tests in which it does not matter what a sparse contraction costs."""

from pitc.ir.tiles import FEATURES, VARIANTS, TileTable, VariantCost

EQUAL = VariantCost((1,) * len(FEATURES))
PRICES = TileTable({level: dict.fromkeys(VARIANTS, EQUAL) for level in ("v3", "v4")})
