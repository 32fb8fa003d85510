"""The tile table: what each micro-tile variant of a contraction costs, as values.

A variant's time is made of features, each with a price:

| feature | unit |
|---|---|
| launch | one call |
| scanned | one element of A that the detector reads |
| listed | one element of A that is copied into lists |
| written | one row of a panel of C (256 bytes) |
| runs | one stretch of rows of a panel that are read one after the other |
| streamed | one row of a panel (256 bytes) from memory; in a later pass `LATER_PASS` of one |
| steps | one k of one row times one panel (64 columns) of fused multiply-adds |
| visits | one register tile of C brought in and out |

The time is the sum of all. The dense variant and those over blocks of k ask memory for rows of B in
order, long before they are used: there what is streamed and what is computed (`COMPUTED`) overlap,
and count together as the root of the sum of their squares. Factors that depend on the shape of what
lives correct the whole (`pitc/ir/tile_shapes.py`).

`features_of` says what the features of a variant are; the run-time selector computes the same from
the detector's counts (`runtime/ep/select/selector.cc`) and picks the variant with the smallest time
(`docs/plans.md`, `docs/tiles.md`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pitc.ir.plans.ops import Table
from pitc.ir.tile_shapes import FACTORS, HIGHEST_FACTOR, factor_of
from pitc.ir.tile_work import Work
from pitc.ir.variants import (
    CHUNK,
    FEATURES,
    LISTED_ROWS,
    PAIR_ROWS,
    TILE_ROWS,
    VARIANTS,
)

STREAMED = FEATURES.index("streamed")
COMPUTED = slice(STREAMED + 1, len(FEATURES))
HIGHEST_PRICE = 1 << 50
"""Of the runtime's plan reader."""

FEMTOSECONDS = 1e9
"""Per microsecond."""

LATER_PASS = 0.25
"""Of what the first pass over B costs, which then is in a cache; measured on two threads."""

Prices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VariantCost:
    """Prices of one variant.

    Args:
        prices: Femtoseconds per unit of each of `FEATURES`.
        factors: By the shape of what lives, thousandths (`pitc.ir.tile_shapes`); or none.
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

    def table(self, dtype: str) -> Table:
        """The lines of plans `cost_VARIANT_LEVEL`, the prices, and `shape_VARIANT_LEVEL`, factors.

        Args:
            dtype: Of the operands: `float32`, which alone CPUs have variants for.
        """
        if dtype != "float32":
            raise ValueError(f"no prices of {dtype}")
        found: list[tuple[str, tuple[int, ...]]] = []
        for level, costs in self.costs.items():
            for variant, cost in costs.items():
                found.append((f"cost_{variant}_{level}", tuple(cost.prices)))
                if cost.factors:
                    found.append((f"shape_{variant}_{level}", tuple(cost.factors)))
        return tuple(found)


def features_of(variant: str, work: Work) -> tuple[float, ...]:
    """How much of each of `FEATURES` a variant has.

    Args:
        variant: One of `VARIANTS`.
        work: The contraction.
    """
    amounts = _dense(work) if variant == "dense" else _sparse(variant, work)
    amounts |= {"launch": 1, "written": work.panels * work.rows}
    return tuple(amounts.get(name, 0) for name in FEATURES)


def _dense(work: Work) -> dict[str, float]:
    full, rest = divmod(work.rows, TILE_ROWS)
    padded = TILE_ROWS if rest > PAIR_ROWS else PAIR_ROWS if rest else 0
    streamed = work.panels * work.k
    return {
        "streamed": streamed,
        "steps": streamed * (full * TILE_ROWS + padded),
        "visits": work.panels * (full + (rest > 0)),
    }


def _sparse(variant: str, work: Work) -> dict[str, float]:
    rows, panels, counts = work.rows, work.panels, work.counts
    passes = 1 + LATER_PASS * (work.passes - 1)
    amounts: dict[str, float] = {"scanned": rows * work.k if work.scanned else 0}
    height, width = VARIANTS[variant].height, VARIANTS[variant].width
    entries = counts["elements" if variant == "row" else variant]
    if width:
        lists = work.block_lists(width)
        # a list ends with half a register tile where that is enough
        register_tiles = entries / LISTED_ROWS + lists / (2 * LISTED_ROWS)
        return amounts | {
            "listed": entries * width,
            "runs": panels * min(lists, passes * counts[f"runs{width}"]),
            "streamed": panels * min(lists, passes * counts[f"columns{width}"]) * width,
            "steps": panels * register_tiles * LISTED_ROWS * width,
            "visits": panels * register_tiles,
        }
    amounts["streamed"] = panels * passes * counts["columns"]
    amounts["runs"] = panels * passes * counts["runs"]
    if not height:
        return amounts | {
            "listed": entries,
            "steps": panels * entries,
            "visits": panels * rows * work.k_blocks,
        }
    lists = work.groups(height)
    last = max(0, rows - (lists - 1) * height)
    strips = ((lists - 1) * height + -(-last // LISTED_ROWS) * LISTED_ROWS) / LISTED_ROWS
    listed = entries * strips * LISTED_ROWS / lists
    return amounts | {
        "listed": listed,
        "steps": panels * listed,
        "visits": panels * strips * (1 + entries / lists / CHUNK),
    }


def time_of(prices: Prices, variant: str, amounts: tuple[float, ...]) -> float:
    """What a variant is predicted to take but for its factors, femtoseconds.

    Args:
        prices: Of its features.
        variant: One of `VARIANTS`.
        amounts: Its features.
    """
    each = [amount * price for amount, price in zip(amounts, prices, strict=True)]
    streamed, computed = each[STREAMED], sum(each[COMPUTED])
    if VARIANTS[variant].waits:
        return sum(each)
    return sum(each[:STREAMED]) + math.sqrt(streamed * streamed + computed * computed)


def predicted_us(cost: VariantCost, variant: str, work: Work) -> float:
    """What a variant is predicted to take, microseconds."""
    priced = time_of(cost.prices, variant, features_of(variant, work))
    return factor_of(cost.factors, work) * priced / FEMTOSECONDS
