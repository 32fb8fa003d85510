"""Prices from measured points: non-negative least squares on relative errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product

import numpy as np
import numpy.typing as npt

from pitc.ir.tiles import (
    FEATURES,
    FEMTOSECONDS,
    HIGHEST_PRICE,
    VARIANTS,
    Prices,
    VariantCost,
    features_of,
    predicted_us,
    reuse_class,
)
from pitc.tiles.file import CLASSES, Point
from pitc.timing import spread

Array = npt.NDArray[np.float64]

ROUNDS = 8
TOLERATED = 0.3
"""A point that is further off counts less: it may have been disturbed."""
FAR = 1.5
"""Where a variant takes more times what the best one takes, its prediction matters less."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Prices of one variant, and how well they predict.

    Args:
        cost: The prices.
        median: Of the relative error over all points.
        p95: Its 95th percentile.
        points: How many there were.
    """

    cost: VariantCost
    median: float
    p95: float
    points: int


def fit_costs(
    points: Sequence[Point], otherwise: Mapping[str, VariantCost] | None = None
) -> dict[str, Fit]:
    """Fit the prices of every variant.

    Args:
        points: What was measured.
        otherwise: Prices of variants and classes of reuse without points.
    """
    found: dict[str, Fit] = {}
    for variant in VARIANTS:
        mine = [p for p in points if variant in p.us]
        known = (otherwise or {}).get(variant)
        if not mine and known is None:
            continue
        classes = [[p for p in mine if _class(variant, p) == c] for c in range(CLASSES)]
        cost = VariantCost(
            tuple(
                _fit_one(variant, here or mine) if here or not known else known.prices[c]
                for c, here in enumerate(classes)
            )
        )
        errors = [abs(predicted_us(cost, variant, p.counted()) / p.us[variant] - 1) for p in mine]
        told = spread(errors or [0.0])
        found[variant] = Fit(cost, told.median, told.p95, len(mine))
    return found


def _class(variant: str, point: Point) -> int:
    return reuse_class(features_of(variant, point.counted()))


def _fit_one(variant: str, points: Sequence[Point]) -> Prices:
    times = np.array([p.us[variant] for p in points]) * FEMTOSECONDS
    amounts = np.array([features_of(variant, p.counted()) for p in points]) / times[:, None]
    best = np.array([min(p.us.values()) for p in points]) * FEMTOSECONDS
    importance = np.minimum(1.0, FAR * best / times)
    weights = importance
    prices = np.zeros(len(FEATURES))
    for _ in range(ROUNDS):
        prices = non_negative(amounts * weights[:, None], weights)
        off = np.abs(amounts @ prices - 1)
        weights = importance * np.sqrt(np.minimum(1.0, TOLERATED / np.maximum(off, 1e-12)))
    return tuple(min(round(float(p)), HIGHEST_PRICE) for p in prices)


def non_negative(a: Array, b: Array) -> Array:
    """The x >= 0 with the smallest |a x - b|: the best of all choices of columns.

    Args:
        a: Matrix with at most about ten columns.
        b: As many numbers as it has rows.
    """
    size = np.sqrt((a * a).sum(axis=0))
    size[size == 0] = 1.0
    scaled = a / size
    square, side = scaled.T @ scaled, scaled.T @ b
    best: Array = np.zeros(a.shape[1])
    least = 0.0
    for chosen in product((False, True), repeat=a.shape[1]):
        columns = list(compress(range(a.shape[1]), chosen))
        if not columns:
            continue
        x = np.linalg.lstsq(square[np.ix_(columns, columns)], side[columns], rcond=1e-12)[0]
        gained = float(-(side[columns] @ x))
        if x.min() >= 0 and gained < least:
            least, best = gained, np.zeros(a.shape[1])
            best[columns] = x
    found: Array = best / size
    return found
