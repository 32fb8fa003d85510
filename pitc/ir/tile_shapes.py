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
one factor of each grid. The selector computes them (`runtime/ep/select/selector.cc`), from a header
that this file writes.
"""

import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

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


WIDTH, HEIGHT, LIST = Axis(1, 2), Axis(2, 3), Axis(2, 7)
GRIDS = ((WIDTH, LIST), (HEIGHT, LIST))
"""Of (width, block list), (height, group list)."""
GRID_ENDS = tuple(accumulate(a.knots * b.knots for a, b in GRIDS))
FACTORS = GRID_ENDS[-1]
"""How many a variant has: those of a grid are together, the second ratio's next to each other."""


def header() -> str:
    """The grids for the runtime, as C++."""
    grids = (", ".join(f"{{{axis.doublings}, {axis.knots}}}" for axis in axes) for axes in GRIDS)
    return f"""// Written by pitc/ir/tile_shapes.py, which says what it means.
#pragma once

#include <cstdint>

namespace pitc {{

// Knots of a ratio: 1, 2^doublings, 4^doublings, ...
struct Axis {{
  int doublings, knots;
}};
constexpr int kGrids = {len(GRIDS)}, kFactors = {FACTORS};
constexpr Axis kGridAxes[kGrids][2] = {{{", ".join(f"{{{grid}}}" for grid in grids)}}};
constexpr int64_t kFactorUnit = {UNIT}, kHighestFactor = {HIGHEST_FACTOR};

}}  // namespace pitc
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
