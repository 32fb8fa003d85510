"""Prices from measured points: least squares on the logarithms of times, no price below 0.

What the prices leave is made smaller by factors (`pitc/tiles/factors.py`).

What decides is how the times of variants compare at one point. What all of them share there, slow
memory at that minute or the noise of a neighbour, decides nothing. So errors are taken relative to
the mean error of their point, which itself counts little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pitc.ir.tiles import COMPUTED, FEMTOSECONDS, HIGHEST_PRICE, STREAMED, VariantCost
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.measure.timing import spread
from pitc.tiles.factors import factors_at, fit_factors
from pitc.tiles.file import Point
from pitc.tiles.selector import features_of

Array = npt.NDArray[np.float64]

ROUNDS = 10
TOLERATED = 0.15
"""A time that is further off counts less: it may have been disturbed."""
FAR = 1.1
"""Where a variant takes more times what the best one takes, its prediction matters less."""
FAR_POWER = 4
WRONG = 1.05
"""Where the choice takes so many times what the best one takes, both count twice."""
SHARED = 0.05
"""Weight of an error that all variants share at a point."""
RIDGE = 1e-9


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


def fit_costs(points: Sequence[Point]) -> dict[str, Fit]:
    """Fit the prices of every variant that was measured.

    Args:
        points: What was measured.
    """
    measured = [v for v in VARIANTS if any(v in p.us for p in points)]
    found: dict[str, Fit] = {}
    for variant, (cost, errors) in (_fit(points, measured) if measured else {}).items():
        told = spread(errors)
        found[variant] = Fit(cost, told.median, told.p95, len(errors))
    return found


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of some variants, microseconds [points, variants], where `there`; 1 where not."""

    us: Array
    there: npt.NDArray[np.bool_]

    def importance(self) -> Array:
        """How much each time matters, 0..1."""
        best = np.where(self.there, self.us, np.inf).min(axis=1)
        near = np.minimum(1.0, FAR * best[:, None] / self.us)
        return np.where(self.there, near**FAR_POWER, 0.0)

    def wrong(self, predicted: Array) -> Array:
        """1, but up to 3 for the choice and for the best variant where that is another one."""
        rows = np.arange(len(self.us))
        us = np.where(self.there, self.us, np.inf)
        chosen = np.where(self.there, predicted, np.inf).argmin(axis=1)
        best = us.argmin(axis=1)
        lost = np.log(us[rows, chosen] / us[rows, best]) / np.log(WRONG)
        found = np.ones_like(us)
        for variant in (chosen, best):
            found[rows, variant] += np.clip(lost, 0.0, 2.0)
        return found


def _fit(
    points: Sequence[Point], variants: Sequence[str]
) -> dict[str, tuple[VariantCost, list[float]]]:
    """Prices of variants, and the relative errors of what they predict."""
    features, shapes = features_of([p.counted() for p in points])
    us = np.array([[p.us.get(v, np.nan) for v in variants] for p in points])
    there = ~np.isnan(us)
    times = _Times(np.where(there, us, 1.0), there)
    amounts = [features[v] / FEMTOSECONDS for v in variants]
    importance = times.importance()
    prices = [
        _alone(_slopes(v, a, None) / times.us[:, [j]], importance[:, j])
        for j, (v, a) in enumerate(zip(variants, amounts, strict=True))
    ]
    for _ in range(ROUNDS):
        slopes = [_slopes(v, a, p) for v, a, p in zip(variants, amounts, prices, strict=True)]
        predicted = _predicted(slopes, prices)
        error = np.log(predicted / times.us)
        shared = (importance * error).sum(axis=1) / importance.sum(axis=1)
        weights = importance * times.wrong(predicted) * _trust(error - shared[:, None])
        relative = [s / predicted[:, [j]] for j, s in enumerate(slopes)]
        both = _together(relative, weights, 1 - error, SHARED * _trust(shared))
        step = np.split(both, len(variants))
        prices = [(p + q) / 2 for p, q in zip(prices, step, strict=True)]
    whole = [np.minimum(np.round(p), HIGHEST_PRICE) for p in prices]
    slopes = [_slopes(v, a, p) for v, a, p in zip(variants, amounts, whole, strict=True)]
    priced = _predicted(slopes, whole)
    left = np.log(times.us / priced)
    factors = fit_factors(shapes, left, importance * times.wrong(priced) * _trust(left))
    predicted = priced * np.stack([factors_at(shapes, f) for f in factors], axis=1)
    errors = np.abs(predicted / times.us - 1)
    return {
        v: (
            VariantCost(tuple(int(p) for p in whole[j]), factors[j]),
            errors[there[:, j], j].tolist(),
        )
        for j, v in enumerate(variants)
    }


def _trust(error: Array) -> Array:
    return np.minimum(1.0, TOLERATED / np.maximum(np.abs(error), 1e-9))


def _predicted(slopes: Sequence[Array], prices: Sequence[Array]) -> Array:
    each = [s @ p for s, p in zip(slopes, prices, strict=True)]
    return np.maximum(np.stack(each, axis=1), 1e-6)


def _slopes(variant: str, amounts: Array, prices: Array | None) -> Array:
    """What the time grows by per femtosecond of each price [points, features].

    Their sum, times the prices, is the time itself, which is homogeneous in the prices. Without
    prices half of each square is taken for what is streamed, half for what is computed.
    """
    if VARIANTS[variant].waits:
        return amounts
    slopes = amounts.copy()
    if prices is None:
        slopes[:, STREAMED : COMPUTED.stop] *= np.sqrt(0.5)
        return slopes
    streamed = amounts[:, STREAMED] * prices[STREAMED]
    computed = amounts[:, COMPUTED] @ prices[COMPUTED]
    both = np.maximum(np.hypot(streamed, computed), 1e-30)
    slopes[:, STREAMED] *= streamed / both
    slopes[:, COMPUTED] *= (computed / both)[:, None]
    return slopes


def _alone(relative: Array, importance: Array) -> Array:
    """Prices that make the relative errors of one variant small."""
    weighted = relative * importance[:, None] ** 2
    return non_negative(weighted.T @ relative, weighted.sum(axis=0))


def _together(relative: Sequence[Array], weights: Array, target: Array, shared: Array) -> Array:
    """Prices of all variants, one behind the other, with small errors within each point.

    Args:
        relative: By variant, slopes over predictions [points, features].
        weights: [points, variants].
        target: What slopes times prices are to be [points, variants].
        shared: Weight of the mean error of each point, 0..1 [points].
    """
    width = len(FEATURES)
    size = width * len(relative)
    square, side = np.zeros((size, size)), np.zeros(size)
    for j, rows in enumerate(relative):
        at = slice(j * width, (j + 1) * width)
        weighted = rows * weights[:, [j]]
        square[at, at] = weighted.T @ rows
        side[at] = weighted.T @ target[:, j]
    total = weights.sum(axis=1)
    share = weights / total[:, None]
    mean = np.concatenate([rows * share[:, [j]] for j, rows in enumerate(relative)], axis=1)
    weighted = mean * (total * (1 - shared))[:, None]
    square -= weighted.T @ mean
    side -= weighted.T @ (share * target).sum(axis=1)
    return non_negative(square, side)


def non_negative(square: Array, side: Array) -> Array:
    """The x >= 0 with the smallest x @ square @ x / 2 - side @ x, by active sets.

    Args:
        square: Symmetric, no eigenvalue below 0.
        side: As many numbers as it has rows.
    """
    size = np.sqrt(np.diag(square))
    size[size == 0] = 1.0
    scaled = square / np.outer(size, size) + RIDGE * np.eye(len(side))
    wanted = side / size
    x = np.zeros(len(side))
    free = np.zeros(len(side), bool)
    for _ in range(10 * len(side)):
        gradient = np.where(free, 0.0, wanted - scaled @ x)
        if gradient.max() <= 1e-10 * np.abs(wanted).max():
            break
        free[gradient.argmax()] = True
        while True:
            step = np.zeros(len(side))
            step[free] = np.linalg.solve(scaled[np.ix_(free, free)], wanted[free])
            low = free & (step <= 0)
            if not low.any():
                break
            x += (x[low] / (x[low] - step[low])).min() * (step - x)
            free &= x > 1e-15
            x[~free] = 0.0
        x = step
    found: Array = x / size
    return found
