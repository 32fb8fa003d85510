"""Zeros in the amount that is asked for: thresholds of ReLU neurons, and patterns of blocks.

A pre-activation of a random layer behind a norm is normally distributed. Neuron j is live where it
is above t[j] standard deviations, t[j] = level + spread * z[j] with normal quantiles z: hot neurons
have a low threshold, cold ones a high threshold. The share of zeros over all neurons is then
Phi(level / sqrt(1 + spread^2)), which gives the level for every share.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from models.graph import Array

NORMAL = NormalDist()
FARTHEST = 7.0  # in standard deviations; no float32 sample is so far out


@dataclass(frozen=True, slots=True)
class Sparsity:
    """How many neurons are zero, and how unequal they are.

    Args:
        zeros: Share of neurons that ReLU makes zero, for every token, 0..1.
        spread: Standard deviation of the thresholds. 0: all neurons are live equally often. 0.85:
            at 0.95 zeros the hottest 26 % of the neurons are 81 % of the live ones.
    """

    zeros: float
    spread: float = 0.85

    def __post_init__(self) -> None:
        if not 0.0 <= self.zeros <= 1.0 or self.spread < 0.0:
            raise ValueError(f"{self} is not a share of zeros and a spread")

    def thresholds(self, neurons: int, rng: np.random.Generator) -> Array:
        """Thresholds in standard deviations of the pre-activation, f32 [neurons], in any order."""
        share = min(max(self.zeros, NORMAL.cdf(-FARTHEST)), NORMAL.cdf(FARTHEST))
        level = math.sqrt(1.0 + self.spread**2) * NORMAL.inv_cdf(share)
        z = np.array([NORMAL.inv_cdf((i + 0.5) / neurons) for i in range(neurons)])
        return rng.permutation((level + self.spread * z).astype(np.float32))


def live_energy(thresholds: Array) -> float:
    """Expected sum over neurons of max(x - t, 0)^2 for standard normal x."""
    return sum((1 + t * t) * NORMAL.cdf(-t) - t * NORMAL.pdf(t) for t in map(float, thresholds))


def block_mask(
    rng: np.random.Generator, shape: tuple[int, int], block: tuple[int, int], zeros: float
) -> Array:
    """A random pattern of live blocks.

    Args:
        rng: Source of the pattern.
        shape: Rows and columns; blocks at the edges may be cut off.
        block: Rows and columns of a block.
        zeros: Share of blocks that are zero, rounded to whole blocks.

    Returns:
        bool, of that shape.
    """
    rows, columns = (-(-n // b) for n, b in zip(shape, block, strict=True))
    live = np.arange(rows * columns) >= round(zeros * rows * columns)
    pattern = rng.permutation(live).reshape(rows, columns)
    whole = pattern.repeat(block[0], axis=0).repeat(block[1], axis=1)
    return whole[: shape[0], : shape[1]]
