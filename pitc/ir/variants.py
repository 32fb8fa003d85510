"""The one table of variants: how the sparse operand of a contraction is cut into micro-tiles.

    y[m, n] = sum over k of A[m, k] * B[k, n], pieces of A that hold zeros only left out

A kernel gathers pieces along a PIT axis of A into a dense tile: single k for a group of rows, or
single rows for a block of k. The micro-tile follows (`derive_micro_tile`). Everything that goes
through variants reads this table: prices, tuning, the compiler, the kernels, the docs, and the
runtime through a header (`python pitc/ir/variants.py FILE` writes it, so this module imports
nothing of pitc). A new line is a new variant; `pitc tune` measures its prices.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LINE_BYTES = 64
"""One cache line: no micro-tile is shorter than this along memory."""
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int8": 1}
TILE_ROWS, PAIR_ROWS, LISTED_ROWS = 6, 2, 4
"""Rows of a register tile: of whole rows, of few of them, of listed micro-tiles."""
CHUNK = 64
"""Entries of a list that a register tile of a group of rows takes at a time."""
_SHARED = ("TILE_ROWS", "PAIR_ROWS", "LISTED_ROWS", "CHUNK")

FEATURES = ("launch", "scanned", "listed", "written", "runs", "streamed", "steps", "visits")
"""What a variant's time is made of (`pitc/ir/tiles.py`)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a matrix A [m, k].

    Args:
        m: Rows.
        k: Columns, which lie side by side in memory.
    """

    m: int
    k: int

    def __str__(self) -> str:
        return f"{self.m} x {self.k}"


def derive_micro_tile(
    dense_tile: Tile, pit_axis: str, dtype: str = "float32", line_bytes: int = LINE_BYTES
) -> Tile:
    """The smallest piece of A that is kept or skipped as a whole (the PIT paper, section 3.1).

    Pieces of a dense tile may come from anywhere along the PIT axis: there the micro-tile is 1. On
    the other axis it is what the dense tile is, and no shorter than a line where that axis lies
    along memory: a shorter read would fetch the line all the same. Single elements along memory are
    picked while the detector has their line, so that no floor holds for them.

        32 x 64 along k -> 32 x 1        4 x 32 along m -> 1 x 32        4 x 8 along m -> 1 x 16

    Args:
        dense_tile: What the gathered pieces fill.
        pit_axis: `m` or `k`.
        dtype: Element type.
        line_bytes: What memory fetches at once.
    """
    if pit_axis == "k":
        return Tile(dense_tile.m, 1)
    if pit_axis == "m":
        return Tile(1, max(dense_tile.k, line_bytes // ITEM_BYTES[dtype]))
    raise ValueError(f"PIT axis {pit_axis!r} is not m or k")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to cut A, and the kernel family that computes with it.

    Args:
        name: In plans, traces, tables of prices and options.
        family: Kernel family (`codegen/families/`).
        pit_axis: Along which micro-tiles are gathered; empty where all of A is read.
        dense_tile: What a kernel fills with what it gathers before it goes on.
        dtype: Element type.
    """

    name: str
    family: str
    pit_axis: str
    dense_tile: Tile
    dtype: str = "float32"

    @property
    def micro_tile(self) -> Tile:
        """The smallest piece that is kept or skipped; an element where nothing is gathered."""
        if not self.pit_axis:
            return Tile(1, 1)
        return derive_micro_tile(self.dense_tile, self.pit_axis, self.dtype)

    @property
    def waits(self) -> bool:
        """It reads rows of B here and there; others ask for them in order and compute meanwhile."""
        return self.pit_axis == "k"

    @property
    def height(self) -> int:
        """Rows of a group that share a list of k; 0 where there are no groups."""
        return self.micro_tile.m if self.micro_tile.m > 1 else 0

    @property
    def width(self) -> int:
        """Elements of a block of k that share a list of rows; 0 where there are no blocks."""
        return self.micro_tile.k if self.micro_tile.k > 1 else 0


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("dense", "gather_gemm", "", Tile(TILE_ROWS, 1)),
        Variant("row", "contract_row", "k", Tile(1, 1)),
        Variant("tile8", "contract_tile", "k", Tile(8, CHUNK)),
        Variant("block16", "contract_block", "m", Tile(LISTED_ROWS, 16)),
        Variant("block32", "contract_block", "m", Tile(LISTED_ROWS, 32)),
        Variant("block64", "contract_block", "m", Tile(LISTED_ROWS, 64)),
    )
}
"""By name. Groups and blocks each stand together, in ascending order; `dense` is the first."""

SPARSE_FAMILIES = tuple(dict.fromkeys(v.family for v in VARIANTS.values() if v.pit_axis))


def header() -> str:
    """The table for the runtime, as C++."""
    heights = [v.height for v in VARIANTS.values() if v.height]
    widths = [v.width for v in VARIANTS.values() if v.width]
    records = []
    for v in VARIANTS.values():
        kind = "Tile" if v.height else "Block" if v.width else v.name.capitalize()
        size = v.height or v.width or 1
        place = heights.index(size) if v.height else widths.index(size) if v.width else 0
        waits = str(v.waits).lower()
        records.append(f'    {{"{v.name}", Cut::k{kind}, {size}, {place}, {waits}}},')
    constants = (
        f"constexpr int64_t k{name.title().replace('_', '')} = {globals()[name]};"
        for name in _SHARED
    )
    lines = "\n".join
    return f"""// Written by pitc/ir/variants.py, which says what it means.
#pragma once

#include <cstdint>

namespace pitc {{

enum class Variant : int {{ {_enumerators(VARIANTS)} }};
constexpr int kVariants = {len(VARIANTS)};

// Into what A is cut: nothing, elements, kStripHeights x 1, or 1 x kSegmentWidths.
enum class Cut {{ kDense, kRow, kTile, kBlock }};
constexpr int kStripKinds = {len(heights)};
constexpr int kSegmentKinds = {len(widths)};
constexpr int64_t kStripHeights[kStripKinds] = {{{", ".join(map(str, heights))}}};
constexpr int64_t kSegmentWidths[kSegmentKinds] = {{{", ".join(map(str, widths))}}};

struct VariantRecord {{
  const char* name;
  Cut cut;
  int64_t size;  // the height or width of its micro-tile, the other one is 1
  int place;     // of that among kStripHeights or kSegmentWidths
  bool waits;    // for rows of B that it reads here and there
}};
constexpr VariantRecord kTable[] = {{
{lines(records)}
}};
constexpr const VariantRecord& RecordOf(Variant variant) {{
  return kTable[static_cast<int>(variant)];
}}

enum class Feature : int {{ {_enumerators(FEATURES)} }};
constexpr int kFeatures = {len(FEATURES)};

{lines(constants)}

}}  // namespace pitc
"""


def _enumerators(names: Iterable[str]) -> str:
    return ", ".join(f"k{name.capitalize()}" for name in names)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
