"""Prices and work for tests of what contractions cost."""

from pitc.ir.tile_work import Work
from pitc.ir.tiles import TileTable, VariantCost
from pitc.ir.variants import FEATURES, VARIANTS

EQUAL = VariantCost((1,) * len(FEATURES))
PRICES = TileTable({level: dict.fromkeys(VARIANTS, EQUAL) for level in ("v3", "v4")})


def work(rows: int = 100, k: int = 300, panels: int = 5, **counts: int) -> Work:
    """What a contraction has to do, with other counts."""
    found = {"elements": 9000, "columns": 280, "tile8": 2500}
    found |= {"block16": 1500, "block32": 900, "block64": 480, "columns16": 19, "columns32": 10}
    found |= {"columns64": 5, "runs": 15, "runs16": 1, "runs32": 1, "runs64": 1}
    return Work(rows, k, panels, max(rows, 1), 1, True, found | counts)
