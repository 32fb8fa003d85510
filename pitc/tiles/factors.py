"""Factors by the shape of what lives, from what fitted prices leave of measured times.

Ridge regression on the logarithms of times, each variant for itself. What all variants of a point
share is taken out before, as it decides nothing.
"""

import numpy as np
import numpy.typing as npt

from pitc.ir.tiles import FACTOR_UNIT, FACTORS, GRID_ENDS, HIGHEST_FACTOR

Array = npt.NDArray[np.float64]

RIDGE = 10.0
"""So many points at a knot, and half of what they tell is believed."""


def fit_factors(shapes: Array, left: Array, weights: Array) -> list[tuple[int, ...]]:
    """Factors of every variant, thousandths.

    Args:
        shapes: Shares of factors (`pitc/tiles/selector.py`).
        left: Logarithms of measured over predicted times [points, variants].
        weights: How much each time counts [points, variants].
    """
    shared = (weights * left).sum(axis=1) / weights.sum(axis=1)
    own = left - shared[:, None]
    found: list[tuple[int, ...]] = []
    for weight, error in zip(weights.T, own.T, strict=True):
        weighted = shapes * weight[:, None]
        square = weighted.T @ shapes + RIDGE * np.eye(FACTORS)
        factors = FACTOR_UNIT * np.exp(np.linalg.solve(square, weighted.T @ error))
        found.append(tuple(int(f) for f in np.clip(np.round(factors), 1, HIGHEST_FACTOR)))
    return found


def factors_at(shapes: Array, factors: tuple[int, ...]) -> Array:
    """The product of a variant's factors at each point [points].

    Args:
        shapes: Shares of factors (`pitc/tiles/selector.py`).
        factors: Of the variant.
    """
    each = shapes * (np.array(factors) / FACTOR_UNIT)
    starts = (0, *GRID_ENDS[:-1])
    product: Array = np.add.reduceat(each, starts, axis=1).prod(axis=1)
    return product
