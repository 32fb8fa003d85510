"""Variants of contractions on a multiprocessor: micro-tiles, and what is predicted of them.

The device chooses by itself (`codegen/families/choose_cuda.py`): what is here says what it is given
and what it computes. A variant is a *line* of whole numbers (`COLUMNS`) beside a price for each of
its features (`FEATURES`); its time is their sum. Lines have the order in which they are numbered:
the first is the dense one, and of equal times the lowest number's is chosen.

Features follow from totals of live micro-tiles (`codegen/families/detect_cuda.py`), by one function
(`features_of`), which kernels and C++ compute as well:

    launch    1
    listed    bytes that are copied to lists
    steps     of all dense tiles, the last one of a list being half empty: what the device does
    turns     of its busiest thread block, a step of a dense tile each

For example T = 64, K = 256, N = 1024 in float16, 12 of 256 columns live in each of two groups of 32
rows; dense tiles of 32 x 128, steps of 64 k, 108 blocks:

    dense     each 4           down 2, across 8: steps 64, turns 4    listed 0
    tile      each 24/64/2+1/2 = 0.6875            steps 11, turns 0.6875    listed 24 * 64
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

from pitc.ir.cuda_target import CUDA_TILES, CudaTile
from pitc.ir.variants import CUDA_VARIANTS, ITEM_BYTES, SQUARE, Variant

KINDS = tuple(dict.fromkeys(variant.kind for variant in CUDA_VARIANTS.values()))
"""By their numbers, which kernels and C++ know: dense, tile, block, square."""
COLUMNS = ("kind", "m", "n", "step", "blocks", "entry")
"""Of a line: index of the kind; rows and columns of a dense tile; k, or entries, of a step; thread
blocks that compute at a time, one on each multiprocessor; bytes of an entry that is listed."""
FEATURES = ("launch", "listed", "steps", "turns")
GROUP, SEGMENT = 32, 256
"""Rows, and k, that a thread block of the detector looks at."""
TOTALS: tuple[str, ...] = ("elements", "strips", "segments32", "segments", "squares")
"""What it counts there."""
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
BLOCK_BYTES = LISTED_TILES[0].k_bytes
"""Of a micro-tile over blocks of k."""
OTHER_LAUNCHES = 6 + 4
"""Launches that take as long as what comes beside the dense one: detect, choose, lists and three
products, and what the one block of choose waits for."""
SUMMED_ROWS = (128, 256, 512)
"""Of C, whose sums their thread blocks hold in 32, 64 or 128 KiB of shared memory."""


@dataclass(frozen=True, slots=True)
class CudaOffer:
    """A variant in a dense tile: what kernels are built of, and what has a price.

    Args:
        variant: The variant.
        tile: The dense tile.
    """

    variant: Variant
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
    """K of the micro-tiles of blocks."""
    return BLOCK_BYTES // ITEM_BYTES[dtype]


Line = tuple[int, ...]
Function = Callable[..., Any]


def line_of(variant: Variant, tile: CudaTile, dtype: str, blocks: int, rows: int = 0) -> Line:
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


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What formulas are made of, beside + and *.

    Kernels (`codegen/families/choose_cuda.py`) and the runtime (`machine_header.py`) have functions
    of their own, of what stands for numbers there.

    Args:
        real: A count as a number that is divided, or priced.
        steps: How many steps of a size a count takes.
        least: The smaller of two.
        most: The greater of two.
        chosen: One of some values, by its number.
        held: A value that is used more than once.
    """

    real: Function = float
    steps: Function = lambda count, by: -(-count // by)
    least: Function = min
    most: Function = max
    chosen: Function = getitem
    held: Function = lambda value: value


NUMBERS = Arithmetic()


def features_of(
    line: Sequence[Any],
    totals: Mapping[str, Any],
    sizes: tuple[Any, Any, Any],
    k_blocks: Any,
    on: Arithmetic = NUMBERS,
) -> tuple[Any, ...]:
    """How much of each of `FEATURES` a variant has: the one formula, here, in kernels and in C++.

    Args:
        line: The variant.
        totals: Live micro-tiles of A.
        sizes: Rows and columns of A, columns of C.
        k_blocks: Blocks of k (`block_count`).
        on: What computes.
    """
    kind, m, per_n, step, blocks, entry = line
    rows, k, n = sizes
    strips, segments, squares = (totals[name] for name in ("strips", "segments", "squares"))
    real = on.real
    down = on.held(on.most(1, on.steps(rows, m)))  # dense tiles above each other
    tiles = on.held(down * on.steps(n, per_n))
    lists = real(on.least(segments, k_blocks * down))
    each = (  # steps of a dense tile on average, in the order of `KINDS`
        real(on.steps(k, step)),
        real(strips) / real(step) / real(down) + 0.5,
        (real(segments) / real(step) + lists * 0.5) / real(down),
        real(squares) * SQUARE / real(step) / real(down),
    )
    entries = on.chosen((0, strips, segments, squares), kind)
    steps = on.held(on.chosen(each, kind))
    listed = real(entries) * real(entry)
    return 1, listed, steps * real(tiles), steps * real(on.steps(tiles, blocks))


def block_count(k: int, width: int) -> int:
    """Blocks of k of some columns: words of 64 bits are cut into them."""
    return -(-k // 64) * (64 // width)


def tile_time(
    tile: Any, clocks: Any, sizes: tuple[Any, Any, Any], processors: Any, on: Arithmetic = NUMBERS
) -> Any:
    """Half clocks until the busiest multiprocessor has done a product in dense tiles.

    With tiles of 128 x 128 (512 clocks a step) and 64 x 128 (288), 108 multiprocessors, n = 1024
    and 2048 bytes of k, in whole clocks:

        1000 rows     64 tiles or 128      1.5 * 32 * 512 or 2 * 32 * 288
        64 rows        8 tiles of either   1.5 * 32 * 512 or 1.5 * 32 * 288

    Two blocks stand on a multiprocessor beside each other; one that is alone there waits for its
    copies, so a last turn without another takes half as long again.

    Args:
        tile: The dense tile.
        clocks: Of a step of it.
        sizes: Rows, bytes of a row of A, columns of C.
        processors: Multiprocessors.
        on: What computes.
    """
    rows, row_bytes, n = sizes
    turns = on.held(on.steps(on.steps(rows, tile.m) * on.steps(n, tile.n), processors))
    half_turns = 2 * turns + turns % 2
    return on.real(half_turns) * on.real(on.steps(row_bytes, tile.k_bytes) * clocks)
