"""Factors on predicted times, by the shape of what lives: what a sum of prices leaves.

The last register tile of a list is rarely full, the next micro-tile is in a cache or is not:
kernels take some per cent more or less than their features tell. That follows from four ratios:

| ratio | of | from |
|---|---|---|
| width | twice the 1x64 micro-tiles to those of 1x32 | 1, pairs of them, to 2, single ones |
| block list | 1x32 micro-tiles to lists of them | 1 |
| height | eight times the 8x1 micro-tiles to elements | 1, columns of them, to 8, single ones |
| group list | 8x1 micro-tiles to lists of them | 1 |

`GRIDS` are pairs of ratios. A variant has a factor at every knot of every grid, in thousandths;
between knots factors are interpolated, beyond the last knot they stay. Its time is multiplied by
one factor of each grid. The run-time selector computes the same (`runtime/ep/select/selector.cc`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pitc.ir.tile_work import Work

UNIT = 1000
HIGHEST_FACTOR = 10 * UNIT


@dataclass(frozen=True, slots=True)
class Axis:
    """Knots of a ratio: 1, 2^doublings, 4^doublings, ...

    Args:
        doublings: From one knot to the next.
        knots: How many there are.
    """

    doublings: int
    knots: int

    def place(self, ratio: float) -> float:
        """Where a ratio lies, in knots; between powers of two it grows evenly."""
        fraction, exponent = math.frexp(ratio)
        place = (exponent - 1 + (2 * fraction - 1)) / self.doublings
        return min(max(place, 0.0), float(self.knots - 1))


WIDTH, HEIGHT, LIST = Axis(1, 2), Axis(2, 3), Axis(2, 7)
GRIDS = ((WIDTH, LIST), (HEIGHT, LIST))
"""Of (width, block list), (height, group list)."""
GRID_ENDS = tuple(accumulate(a.knots * b.knots for a, b in GRIDS))
FACTORS = GRID_ENDS[-1]
"""How many a variant has: those of a grid are together, the second ratio's next to each other."""

Corner = tuple[int, float]


def _ratios(work: Work) -> tuple[tuple[float, float], ...]:
    """Of each of `GRIDS`; never 0, whatever lives."""
    counts = work.counts
    elements, tile8, block32 = (counts[name] + 1 for name in ("elements", "tile8", "block32"))
    return (
        (2 * (counts["block64"] + 1) / block32, block32 / (work.block_lists(32) + 1)),
        (8 * tile8 / elements, tile8 / work.groups(8)),
    )


def corners(work: Work) -> tuple[tuple[Corner, ...], ...]:
    """Of each grid the four factors around a contraction, and how much each of them counts.

    Args:
        work: The contraction.
    """
    found: list[tuple[Corner, ...]] = []
    start = 0
    for (a, b), (x, y), end in zip(GRIDS, _ratios(work), GRID_ENDS, strict=True):
        (i, u), (j, v) = _cell(a, x), _cell(b, y)
        at = start + i * b.knots + j
        next_ = at + b.knots
        found.append(
            (
                (at, (1 - u) * (1 - v)),
                (at + 1, (1 - u) * v),
                (next_, u * (1 - v)),
                (next_ + 1, u * v),
            )
        )
        start = end
    return tuple(found)


def _cell(axis: Axis, ratio: float) -> tuple[int, float]:
    """The knot before a ratio, and how far it is to the next."""
    place = axis.place(ratio)
    knot = min(int(place), axis.knots - 2)
    return knot, place - knot


def factor_of(factors: Sequence[int], work: Work) -> float:
    """By what the sum of a variant's prices is multiplied.

    Args:
        factors: Of the variant, `FACTORS` thousandths; or none, for 1.
        work: The contraction.
    """
    if not factors:
        return 1.0
    each = (sum(factors[at] * share for at, share in grid) / UNIT for grid in corners(work))
    return math.prod(each)
