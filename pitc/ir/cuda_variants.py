"""Variants of contractions on a multiprocessor: micro-tiles, and what is predicted of them.

The device chooses by itself (`codegen/families/choose_cuda.py`): what is here says what it is given
and what it computes. A variant is a *line* of whole numbers (`COLUMNS`) beside a price for each of
its features (`FEATURES`); its time is their sum. Lines have the order in which they are numbered:
the first is the dense one, and of equal times the lowest number's is chosen.

Features follow from totals of live micro-tiles (`codegen/families/detect_cuda.py`). A dense tile
takes `each` steps on average:

    dense     ceil(K / step)
    tile      strips / step / down + 1/2          the last step of a list is half empty
    block     (segments + lists / 2 * step) / step / down, lists = min(segments, k blocks * down)
    square    squares * 32 / step / down

where down = ceil(T / m) dense tiles stand above each other, and across = ceil(N / n) side by side:

    launch    1
    listed    bytes that are copied to lists
    steps     each * down * across: what the device does
    turns     each * ceil(down * across / blocks): what its busiest thread block does

For example T = 64, K = 256, N = 1024 in float16, 12 of 256 columns live in each of two groups of 32
rows; dense tiles of 32 x 128, steps of 64 k, 108 blocks:

    dense     each 4           down 2, across 8: steps 64, turns 4    listed 0
    tile      each 24/64/2+1/2 = 0.6875            steps 11, turns 0.6875    listed 24 * 64

The runtime has what is here from a header (`python -m pitc.ir.cuda_variants FILE`).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pitc.ir.cuda_target import CUDA_TILES, CudaTile
from pitc.ir.variants import ITEM_BYTES, Tile, derive_micro_tile

SECTOR_BYTES = 32
"""What memory of a GPU fetches at once: no micro-tile is shorter than this along memory."""
KINDS = ("dense", "tile", "block", "square")
"""How lists look: none; k of a group of rows; rows of a block of k; blocks of k of a group."""
COLUMNS = ("kind", "m", "n", "step", "blocks", "entry")
"""Of a line: index of the kind; rows and columns of a dense tile; k, or entries, of a step; thread
blocks that compute at a time, one on each multiprocessor; bytes of an entry that is listed."""
FEATURES = ("launch", "listed", "steps", "turns")
GROUP, SEGMENT = 32, 256
"""Rows, and k, that a thread block of the detector looks at."""
TOTALS = ("elements", "strips", "segments32", "segments", "squares")
"""What it counts there."""
SQUARE = 32
"""k of a square."""
GATHERED_TILES = (
    CudaTile(32, 128, 64, 1, 4, 3, together=6),
    *(t for t in CUDA_TILES if t.name in ("mma16x128", "simt32x128")),
)
"""Dense tiles over listed k, and squares. Lists are short, so a block mostly waits for its first
steps: many small blocks wait beside each other (measured on an H100, benchmarks/gpu/tiles.py)."""
LISTED_TILES = (
    CudaTile(64, 64, 128, 2, 2, 3),
    CudaTile(64, 64, 128, 4, 2, 3, "simt"),
)
"""Dense tiles over blocks of k, by engine: listed micro-tiles of 128 bytes x a panel."""
TILES_OF_KIND: Mapping[str, Sequence[CudaTile]] = {
    "dense": CUDA_TILES,
    "tile": GATHERED_TILES,
    "block": LISTED_TILES,
    "square": GATHERED_TILES,
}
LEAST_TOGETHER = 2
"""Blocks of a contraction that a multiprocessor gets, at least: one computes while one waits."""
SUMMED_ROWS = (128, 256, 512)
"""Of C, whose sums their thread blocks hold in 32, 64 or 128 KiB of shared memory."""


@dataclass(frozen=True, slots=True)
class CudaVariant:
    """A way to cut A on a multiprocessor.

    Args:
        name: In plans, traces, prices and options.
        kind: One of `KINDS`.
        family: Kernel family (`codegen/families/`).
        pit_axis: Along which micro-tiles are gathered; empty where all of A is read.
        dense_tile: What is gathered before a kernel goes on; of k, at least.
        in_place: A is read where it lies, so that pieces along k are no shorter than a sector.
    """

    name: str
    kind: str
    family: str
    pit_axis: str
    dense_tile: Tile
    in_place: bool = False

    def micro_tile(self, dtype: str) -> Tile:
        """The smallest piece that is kept or skipped; an element where nothing is gathered."""
        if not self.pit_axis:
            return Tile(1, 1)
        if self.in_place:
            return Tile(
                self.dense_tile.m, max(self.dense_tile.k, SECTOR_BYTES // ITEM_BYTES[dtype])
            )
        return derive_micro_tile(self.dense_tile, self.pit_axis, dtype, SECTOR_BYTES)


CUDA_VARIANTS: dict[str, CudaVariant] = {
    variant.name: variant
    for variant in (
        CudaVariant("dense", "dense", "gather_gemm", "", Tile(1, 1)),
        CudaVariant("tile16", "tile", "contract_tile", "k", Tile(16, 64)),
        CudaVariant("tile32", "tile", "contract_tile", "k", Tile(32, 64)),
        CudaVariant("block32", "block", "contract_block", "m", Tile(64, 32)),
        CudaVariant("block64", "block", "contract_block", "m", Tile(64, 64)),
        CudaVariant("square32", "square", "contract_square", "k", Tile(32, SQUARE), in_place=True),
    )
}
"""By name. A contraction has at most one of each kind; `tile16` is for up to 16 rows."""


@dataclass(frozen=True, slots=True)
class CudaOffer:
    """A variant in a dense tile: what kernels are built of, and what has a price.

    Args:
        variant: The variant.
        tile: The dense tile.
    """

    variant: CudaVariant
    tile: CudaTile

    @property
    def name(self) -> str:
        """In plans: `tile32_mma32x128`."""
        return f"{self.variant.name}_{self.tile.name}"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block; of one over blocks of k but for its sums."""
        slot = self.tile.slot_bytes
        if self.variant.kind == "block":  # beside the operands lie the numbers of the rows
            slot += self.tile.m * ITEM_BYTES["int32"]
        return slot * self.tile.stages

    @property
    def together(self) -> int:
        """Blocks that a multiprocessor gets where its shared memory has room for them."""
        return max(LEAST_TOGETHER, self.tile.together)


def dense_tiles(dtype: str) -> tuple[CudaTile, ...]:
    """The dense tiles of a type: both engines for float32, tensor cores for the others."""
    return tuple(t for t in CUDA_TILES if t.engine == "mma" or dtype == "float32")


def offers_of(dtype: str) -> tuple[CudaOffer, ...]:
    """What is offered for operands of a type, variant by variant, in the order of their tiles.

    float16: dense in 4 tiles, tile16, tile32, block64, square32
    float32: dense in 6 tiles, tile16, tile32, block32 and square32, the last three by both engines
    """
    item = ITEM_BYTES[dtype]
    found = []
    for variant in CUDA_VARIANTS.values():
        for tile in TILES_OF_KIND[variant.kind]:
            rows = variant.kind in ("dense", "block") or tile.m == variant.dense_tile.m
            width = variant.kind != "block" or tile.k_bytes == variant.dense_tile.k * item
            if rows and width and (tile.engine == "mma" or dtype == "float32"):
                found.append(CudaOffer(variant, tile))
    return tuple(found)


GROUP_HEIGHTS = tuple(v.dense_tile.m for v in CUDA_VARIANTS.values() if v.kind == "tile")
"""Rows that share a list of k."""


def block_width(dtype: str) -> int:
    """K of the micro-tiles of blocks: 128 bytes."""
    return LISTED_TILES[0].k_bytes // ITEM_BYTES[dtype]


Line = tuple[int, ...]


def line_of(variant: CudaVariant, tile: CudaTile, dtype: str, blocks: int, rows: int = 0) -> Line:
    """The line of a variant.

    Args:
        variant: The variant.
        tile: Its dense tile.
        dtype: Of A.
        blocks: Thread blocks of its launch.
        rows: Of C that a thread block sums up at a time, where these are not those of the tile.
    """
    item = ITEM_BYTES[dtype]
    micro = variant.micro_tile(dtype)
    entry = {"dense": 0, "square": 4}.get(variant.kind, micro.m * micro.k * item)
    step = tile.m if variant.kind == "block" else tile.k_bytes // item
    return KINDS.index(variant.kind), rows or tile.m, tile.n, step, blocks, entry


def features_of(
    line: Line, totals: Mapping[str, int], rows: int, k: int, n: int, width: int
) -> tuple[float, ...]:
    """How much of each of `FEATURES` a variant has.

    Args:
        line: The variant.
        totals: Live micro-tiles of A.
        rows: Of A.
        k: Columns of A.
        n: Columns of C.
        width: k of a block.
    """
    kind, m, per_n, step, blocks, entry = line
    down, across = max(1, -(-rows // m)), -(-n // per_n)
    lists = min(totals["segments"], -(-k // 64) * (64 // width) * down)
    each, entries = {
        "dense": (-(-k // step), 0),
        "tile": (totals["strips"] / step / down + 0.5, totals["strips"]),
        "block": ((totals["segments"] / step + lists / 2) / down, totals["segments"]),
        "square": (totals["squares"] * SQUARE / step / down, totals["squares"]),
    }[KINDS[kind]]
    return 1, entries * entry, each * (down * across), each * -(-down * across // blocks)


def header() -> str:
    """The table for the runtime, as C++."""
    records = []
    for dtype in ("float16", "float32"):
        for offer in offers_of(dtype):
            variant, tile = offer.variant, offer.tile
            _, m, n, step, _, entry = line_of(variant, tile, dtype, 0)
            engine = str(tile.engine == "mma").lower()
            records.append(
                f'    {{{ITEM_BYTES[dtype]}, "{variant.name}", "{tile.name}",'
                f" CudaCut::k{variant.kind.capitalize()}, {engine}, {m}, {n}, {step}, {entry},"
                f" {offer.shared_bytes}, {offer.together}}},"
            )
    lines = "\n".join(records)
    return f"""// Written by pitc/ir/cuda_variants.py, which says what it means.
#pragma once

#include <cstdint>

namespace pitc {{

enum class CudaCut {{ {", ".join(f"k{kind.capitalize()}" for kind in KINDS)} }};
constexpr int kCudaCuts = {len(KINDS)};
constexpr const char* kCudaCutNames[] = {{{", ".join(f'"{kind}"' for kind in KINDS)}}};
constexpr int kCudaColumns = {len(COLUMNS)}, kCudaFeatures = {len(FEATURES)};
constexpr const char* kCudaTotals[] = {{{", ".join(f'"{name}"' for name in TOTALS)}}};
constexpr int64_t kCudaGroup = {GROUP}, kCudaSegment = {SEGMENT}, kCudaSquare = {SQUARE};
constexpr int64_t kCudaSummedRows[] = {{{", ".join(map(str, SUMMED_ROWS))}}};

struct CudaOffer {{
  int item_bytes;  // of the operands
  const char* variant;
  const char* tile;
  CudaCut cut;
  bool mma;  // by tensor cores, else by FMA units
  int64_t m, n, step, entry;
  int shared_bytes;  // of a block; for kBlock without its sums
  int together;      // blocks of a multiprocessor whose shared memory has room
}};
constexpr CudaOffer kCudaOffers[] = {{
{lines}
}};

}}  // namespace pitc
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
