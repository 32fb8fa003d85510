"""The tile table: what each micro-tile variant of a contraction costs, as values.

A variant's time is made of features, each with a price:

| feature | unit |
|---|---|
| launch | one call |
| scanned | one element of A that the detector reads |
| listed | one element of A that is copied into lists |
| written | one row of a panel of C (256 bytes) |
| runs | one stretch of rows of a panel that are read one after the other |
| streamed | one row of a panel (256 bytes) from memory; in a later pass a quarter of one |
| steps | one k of one row times one panel (64 columns) of fused multiply-adds |
| visits | one register tile of C brought in and out |

The time is the sum of all. The dense variant and those over blocks of k ask memory for rows of B in
order, long before they are used: there what is streamed and what is computed (`COMPUTED`) overlap,
and count together as the root of the sum of their squares.

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
one factor of each grid.

The selector computes features and factors from the detector's counts
(`runtime/ep/select/selector.cc`) and picks the variant with the smallest time (`docs/plans.md`,
`docs/tiles.md`); `pitc tune` asks it for them (`pitc/tiles/selector.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from pitc.ir.plans.base import Table
from pitc.ir.variants import FEATURES, VARIANTS

STREAMED = FEATURES.index("streamed")
COMPUTED = slice(STREAMED + 1, len(FEATURES))
HIGHEST_PRICE = 1 << 50
"""Of the runtime's plan reader."""

LATER_PASS = 0.25
"""Of what the first pass over B costs: it is in a cache then."""
LEAST_GAIN = 1.05
"""Of `v4` and `v3`: lists are chosen where they are predicted to be so much faster than the dense
kernel (`docs/adr/0050-lists-must-be-faster-than-predictions-err.md`)."""
FEMTOSECONDS = 1e9
"""Per microsecond."""
FACTOR_UNIT = 1000
HIGHEST_FACTOR = 10 * FACTOR_UNIT


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

Prices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """One contraction, as far as its time depends on it: what a trace line tells.

    Args:
        rows: Rows of A.
        k: Its columns.
        panels: Panels of B.
        row_block: Rows that share a pass over B on the sparse paths.
        k_blocks: Blocks of k of the row lists.
        scanned: The detector has still to read A.
        counts: Live micro-tiles: `elements`, and those of every variant but `dense` and `row`;
            columns with a live element, and pieces of 16, 32 and 64 columns; stretches of such
            columns (`runs`) and pieces (`runs16`).
    """

    rows: int
    k: int
    panels: int
    row_block: int
    k_blocks: int
    scanned: bool
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VariantCost:
    """Prices of one variant.

    Args:
        prices: Femtoseconds per unit of each of `FEATURES`.
        factors: By the shape of what lives, thousandths; or none.
    """

    prices: Prices
    factors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        prices = self.prices
        good = len(prices) == len(FEATURES) and min(prices) >= 0 and max(prices) <= HIGHEST_PRICE
        if not good:
            raise ValueError(f"expected {len(FEATURES)} prices in 0..{HIGHEST_PRICE}, got {prices}")
        factors = self.factors
        if factors and (len(factors) != FACTORS or not _in_range(factors)):
            raise ValueError(f"expected {FACTORS} factors in 1..{HIGHEST_FACTOR}, got {factors}")


def _in_range(factors: tuple[int, ...]) -> bool:
    return min(factors) >= 1 and max(factors) <= HIGHEST_FACTOR


@dataclass(frozen=True, slots=True)
class TileTable:
    """Prices of every variant for every CPU level, and where they were measured.

    Args:
        costs: By level (`v4_amx`, `v4`, `v3`) and variant.
        provenance: Device, CPU features, versions, unit, date and protocol of the measurement.
    """

    costs: Mapping[str, Mapping[str, VariantCost]]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for level, costs in self.costs.items():
            if unknown := set(costs) - set(VARIANTS):
                raise ValueError(f"unknown variants {sorted(unknown)} for level {level}")
            if "dense" not in costs:
                raise ValueError(f"level {level} has no price for the dense variant")

    def table(self, dtype: str) -> Table:
        """The lines of plans `cost_VARIANT_LEVEL`, the prices, and `shape_VARIANT_LEVEL`, factors.

        Args:
            dtype: That operands are rounded to: `float32`, or `bfloat16`, which a matrix unit may
                multiply at another price.
        """
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"no prices of {dtype}")
        found: list[tuple[str, tuple[int, ...]]] = []
        for level, costs in self.costs.items():
            if level == "v4_amx" and dtype == "float32":
                continue
            for variant, cost in costs.items():
                found.append((f"cost_{variant}_{level}", tuple(cost.prices)))
                if cost.factors:
                    found.append((f"shape_{variant}_{level}", tuple(cost.factors)))
        return tuple(found)
