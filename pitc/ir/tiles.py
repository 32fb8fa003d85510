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
and count together as the root of the sum of their squares. Factors that depend on the shape of what
lives correct the whole (`pitc/ir/tile_shapes.py`).

The selector computes the features of a variant from the detector's counts
(`runtime/ep/select/selector.cc`) and picks the variant with the smallest time (`docs/plans.md`,
`docs/tiles.md`); `pitc tune` asks it for them (`pitc/tiles/selector.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pitc.ir.plans.ops import Table
from pitc.ir.tile_shapes import FACTORS, HIGHEST_FACTOR
from pitc.ir.variants import (
    FEATURES,
    VARIANTS,
)

STREAMED = FEATURES.index("streamed")
COMPUTED = slice(STREAMED + 1, len(FEATURES))
HIGHEST_PRICE = 1 << 50
"""Of the runtime's plan reader."""

FEMTOSECONDS = 1e9
"""Per microsecond."""

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
