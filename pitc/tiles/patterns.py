"""Operands whose live elements lie in micro-tiles of one shape."""

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

#: Name -> rows and columns of the micro-tile; 0 is the whole operand.
BLOCKS = {
    "1x1": (1, 1),
    "8x1": (8, 1),
    "32x1": (32, 1),
    "1x16": (1, 16),
    "1x32": (1, 32),
    "1x64": (1, 64),
    "16x16": (16, 16),
    "32x32": (32, 32),
    "rows": (1, 0),
    "columns": (0, 1),
}
#: Live elements behind a ReLU: columns are hot or cold.
SKEWED = "relu"
PATTERNS = (*BLOCKS, SKEWED)
SPREAD = 0.85
"""Standard deviation of the columns' thresholds: the hottest quarter has most of what is live."""


def live_mask(
    rng: np.random.Generator, shape: tuple[int, int], pattern: str, density: float
) -> Mask:
    """Which elements of an operand are live.

    Args:
        rng: Source of the pattern.
        shape: Rows and columns.
        pattern: One of `PATTERNS`.
        density: Share of micro-tiles that are live, 0..1, rounded to whole ones.

    Returns:
        bool, of that shape.
    """
    if pattern == SKEWED:
        return _skewed(rng, shape, density)
    block = [b or n for b, n in zip(BLOCKS[pattern], shape, strict=True)]
    grid = [-(-n // b) for n, b in zip(shape, block, strict=True)]
    tiles = math.prod(grid)
    live = rng.permutation(tiles) < round(density * tiles)
    whole = live.reshape(grid).repeat(block[0], axis=0).repeat(block[1], axis=1)
    return whole[: shape[0], : shape[1]]


def _skewed(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Mask:
    rows, columns = shape
    if not 0 < density < 1:
        return np.full(shape, density >= 1)
    normal = NormalDist()
    level = math.sqrt(1 + SPREAD**2) * normal.inv_cdf(1 - density)
    quantiles = [normal.inv_cdf((i + 0.5) / columns) for i in range(columns)]
    thresholds = rng.permutation(level + SPREAD * np.array(quantiles, np.float32))
    return rng.standard_normal((rows, columns), np.float32) > thresholds


def operand(
    rng: np.random.Generator, shape: tuple[int, int], pattern: str, density: float
) -> Array:
    """A sparse operand: 1..2 where it is live, else 0."""
    values = rng.random(shape, np.float32)
    values += 1
    values *= live_mask(rng, shape, pattern, density)
    return values
