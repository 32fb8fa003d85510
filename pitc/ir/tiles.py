"""The tile table: what each micro-tile variant of a contraction costs, as values.

A variant's time is a sum of features, each with a price. The prices depend on the reuse of B, the
steps per streamed row (`REUSE`): with little a contraction is bound by memory, with much by
arithmetic.

| feature | unit |
|---|---|
| launch | one call |
| steps | one k of one row times one panel (64 columns) of fused multiply-adds |
| visits | one register tile of C brought in and out |
| scanned | one element of A that the detector reads |
| listed | one element of A that is copied into lists |
| streamed | one row of a panel (256 bytes) that is read from memory |
| written | one row of a panel of C (256 bytes) |
| reread | one row of a panel of B that is read again from a cache |
| pages | one page of a panel (16 rows) that is read from, or one list of a k block |
| runs | one stretch of rows of a panel that are read one after the other |

`features_of` says what the features of a variant are; the run-time selector computes the same from
the detector's counts (`runtime/ep/selector.cc`) and picks the variant with the smallest sum
(`docs/plans.md`, `docs/tiles.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from pitc.ir.plan import Field

VARIANTS = ("dense", "row", "tile8", "tile32", "block16", "block32", "block64")
TILE_HEIGHTS = {"tile8": 8, "tile32": 32}
BLOCK_WIDTHS = {"block16": 16, "block32": 32, "block64": 64}
FEATURES = (
    "launch",
    "steps",
    "visits",
    "scanned",
    "listed",
    "streamed",
    "written",
    "reread",
    "pages",
    "runs",
)
REUSE = (2, 8, 32)
"""Rows of A that meet a row of B on average: there are prices for at most so many, and for more."""
HIGHEST_PRICE = 1 << 50
"""Of the runtime's plan reader."""

TILE_ROWS, LISTED_ROWS, DENSE_ROWS = 6, 4, 96
FEMTOSECONDS = 1e9
"""Per microsecond."""

Prices = tuple[int, ...]


def reuse_class(amounts: tuple[float, ...]) -> int:
    """The class of the reuse of B, 0..len(REUSE).

    Args:
        amounts: The features of a variant.
    """
    found = dict(zip(FEATURES, amounts, strict=True))
    reuse = found["steps"] / max(1, found["streamed"])
    return sum(reuse > most for most in REUSE)


@dataclass(frozen=True, slots=True)
class VariantCost:
    """Prices of one variant.

    Args:
        prices: For each class of reuse, femtoseconds per unit of each of `FEATURES`.
    """

    prices: tuple[Prices, ...]

    def __post_init__(self) -> None:
        good = len(self.prices) == len(REUSE) + 1 and all(
            len(p) == len(FEATURES) and min(p) >= 0 and max(p) <= HIGHEST_PRICE for p in self.prices
        )
        if not good:
            raise ValueError(
                f"expected {len(REUSE) + 1} x {len(FEATURES)} prices in 0..{HIGHEST_PRICE}, "
                f"got {self.prices}"
            )

    @classmethod
    def same(cls, prices: Prices) -> "VariantCost":
        """The same prices for any reuse."""
        return cls((prices,) * (len(REUSE) + 1))


@dataclass(frozen=True, slots=True)
class TileTable:
    """Prices of every variant for every CPU level, and where they were measured.

    Args:
        costs: By level (`v4`, `v3`) and variant.
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

    def fields(self) -> dict[str, Field]:
        """The plan fields `cost_VARIANT_LEVEL`: the prices, one class behind the other."""
        return {
            f"cost_{variant}_{level}": tuple(chain.from_iterable(cost.prices))
            for level, costs in self.costs.items()
            for variant, cost in costs.items()
        }


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


def features_of(variant: str, work: Work) -> tuple[float, ...]:
    """How much of each of `FEATURES` a variant has.

    Args:
        variant: One of `VARIANTS`.
        work: The contraction.
    """
    rows, k, panels, counts = work.rows, work.k, work.panels, work.counts
    scanned, written = rows * k if work.scanned else 0, panels * rows
    passes = -(-rows // work.row_block)
    names = ("columns", "columns16", "runs")
    columns, pages, runs = (panels * passes * counts[name] for name in names)
    if variant == "dense":
        tiles, again = -(-rows // TILE_ROWS), panels * k * -(-rows // DENSE_ROWS)
        return (1, panels * k * rows, panels * tiles, 0, 0, panels * k, written, again, 0, 0)
    if variant == "row":
        found = counts["elements"]
        visits = written * work.k_blocks
        return (1, panels * found, visits, scanned, found, columns, written, 0, pages, runs)
    if variant in TILE_HEIGHTS:
        height, lists = TILE_HEIGHTS[variant], counts[variant]
        found = lists * min(height, rows)
        visits, again = panels * -(-rows // height), panels * lists
        return (1, panels * found, visits, scanned, found, columns, written, again, pages, runs)
    width, pieces = BLOCK_WIDTHS[variant], counts[variant]
    lists = min(pieces, passes * counts[f"columns{width}"])
    # a list ends with half a register tile where that is enough
    register_tiles = pieces / LISTED_ROWS + lists / (2 * LISTED_ROWS)
    steps = panels * register_tiles * LISTED_ROWS * width
    found, pages, columns = pieces * width, panels * lists, panels * lists * width
    runs = panels * min(lists, passes * counts[f"runs{width}"])
    return (1, steps, panels * register_tiles, scanned, found, columns, written, 0, pages, runs)


def predicted_us(cost: VariantCost, variant: str, work: Work) -> float:
    """What a variant is predicted to take, microseconds."""
    amounts = features_of(variant, work)
    prices = cost.prices[reuse_class(amounts)]
    return sum(a * p for a, p in zip(amounts, prices, strict=True)) / FEMTOSECONDS
