"""Prices and work for tests of what contractions cost."""

import math
from collections.abc import Sequence

from pitc.ir.tiles import (
    COMPUTED,
    FACTOR_UNIT,
    FACTORS,
    FEMTOSECONDS,
    STREAMED,
    TileTable,
    VariantCost,
    Work,
)
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.tiles.factors import factors_at
from pitc.tiles.selector import features_of

EQUAL = VariantCost((1,) * len(FEATURES))
PRICES = TileTable({level: dict.fromkeys(VARIANTS, EQUAL) for level in ("v3", "v4")})


def work(rows: int = 100, k: int = 300, panels: int = 5, **counts: int) -> Work:
    """What a contraction has to do, with other counts."""
    found = {"elements": 9000, "columns": 280, "tile8": 2500}
    found |= {"block16": 1500, "block32": 900, "block64": 480, "columns16": 19, "columns32": 10}
    found |= {"columns64": 5, "runs": 15, "runs16": 1, "runs32": 1, "runs64": 1}
    return Work(rows, k, panels, max(rows, 1), 1, True, found | counts)


def amounts(variant: str, w: Work) -> tuple[float, ...]:
    """The features of a variant, by the plug-in."""
    return tuple(map(float, features_of([w])[0][variant][0]))


def time_of(prices: Sequence[int], variant: str, features: Sequence[float]) -> float:
    """What they take but for factors, femtoseconds: what is streamed and computed may overlap."""
    each = [amount * price for amount, price in zip(features, prices, strict=True)]
    streamed, computed = each[STREAMED], sum(each[COMPUTED])
    if VARIANTS[variant].waits:
        return sum(each)
    return sum(each[:STREAMED]) + math.hypot(streamed, computed)


def predicted_us(cost: VariantCost, variant: str, w: Work) -> float:
    """What a variant is predicted to take, microseconds."""
    features, shapes = features_of([w])
    factor = factors_at(shapes, cost.factors or (FACTOR_UNIT,) * FACTORS)[0]
    return float(factor * time_of(cost.prices, variant, features[variant][0]) / FEMTOSECONDS)
