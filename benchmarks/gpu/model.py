"""How long kernels should take on a GPU: the model of rates (`pitc/ir/gpu_speed.py`) beyond prices.

Attention takes its steps over keys; what only moves (pack, unpack, detection, lists) takes what
memory does. Special functions compute a power for each score. Nothing that compiles or runs a model
asks for this: it ranks, and says where time goes (`docs/cuda-developers.md`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pitc.ir.attention_tile import WARPS, AttentionTile
from pitc.ir.cuda_target import CudaArch, CudaTile
from pitc.ir.cuda_variants import (
    KINDS,
    SUMMED_ROWS,
    CudaOffer,
    block_count,
    block_width,
    features_of,
    line_of,
)
from pitc.ir.gpu_speed import (
    LAUNCH_US,
    READ_SHARE,
    WAVEFRONT_BYTES,
    Clocks,
    prices_of,
    step_clocks,
)
from pitc.ir.tiles import FEMTOSECONDS
from pitc.ir.variants import ITEM_BYTES

POWERS = 16
"""Of 2, that a multiprocessor computes in a clock: CUDA C++ Programming Guide, "Arithmetic
instructions", every architecture here."""
CHOOSE_US = 8.0
"""The choice, one block of 1024 threads, beside its launch: it waits for memory a few times, one
time behind the other, and has next to nothing to move."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A predicted time and what it is made of, microseconds.

    Args:
        tiles_us: The busiest multiprocessor's dense tiles.
        memory_us: What memory takes.
        launches_us: Of all launches.
        limit: The slowest unit.
    """

    tiles_us: float
    memory_us: float
    launches_us: float
    limit: str

    @property
    def total_us(self) -> float:
        """All of it: memory is read meanwhile."""
        return max(self.tiles_us, self.memory_us) + self.launches_us


def limit_of(clocks: Clocks) -> str:
    """Which unit is the slowest."""
    named = {"compute": clocks.compute, "shared memory": clocks.shared, "cache": clocks.cache}
    return max(named, key=named.__getitem__)


def attention_clocks(tile: AttentionTile, arch: CudaArch) -> Clocks:
    """What a step of attention takes.

    Each warp loads all keys and values, and its queries if registers do not hold them; without
    tensor cores each chunk of keys for four groups of lanes, of queries for eight lanes of four
    rows.
    """
    on_tensor_cores = tile.engine == "mma"
    rate = arch.mma_flops[tile.dtype] if on_tensor_cores else arch.simt_flops
    keys = tile.n * (tile.d + tile.dv) * tile.item
    queries = 0 if tile.holds_queries else tile.m * tile.d * tile.item
    loaded = WARPS * keys + queries
    if not on_tensor_cores:
        loaded = 4 * (WARPS * keys + 2 * queries)
    scores = tile.m * tile.n
    return Clocks(
        compute=max(2 * scores * (tile.d + tile.dv) / rate, scores / POWERS),
        shared=(keys + loaded) / WAVEFRONT_BYTES,
        cache=keys / (arch.l2_bytes / arch.processors),
    )


def memory_us(moved_bytes: float, arch: CudaArch) -> float:
    """What memory takes to move some bytes."""
    return moved_bytes / (arch.memory_gbs * READ_SHARE) / 1e3


def predict(clocks: Clocks, arch: CudaArch, *, steps: float, tiles: int, moved: float) -> Speed:
    """What a kernel of dense tiles should take.

    Args:
        clocks: Of a step.
        arch: Where it runs.
        steps: Of one dense tile.
        tiles: Dense tiles.
        moved: Bytes that memory has to move at least.
    """
    busiest = ceil(tiles / arch.processors)
    tiles_us = busiest * steps * clocks.most / arch.clock_mhz
    moved_us = memory_us(moved, arch)
    limit = limit_of(clocks) if tiles_us >= moved_us else "memory"
    return Speed(tiles_us, moved_us, LAUNCH_US, limit)


def predict_copy(rows: int, width: int, arch: CudaArch) -> Speed:
    """What packing or unpacking rows of `width` bytes should take: each is read and written."""
    return Speed(0, memory_us(2 * rows * width, arch), LAUNCH_US, "memory")


def predict_attention(
    dtype: str,
    arch: CudaArch,
    lengths: Sequence[int],
    *,
    heads: int,
    d: int,
) -> Speed:
    """What attention among the rows of each of some sequences should take.

    Args:
        dtype: Of the operands.
        arch: Where it runs.
        lengths: Of the sequences.
        heads: How many.
        d: Width of a head.
    """
    tile = AttentionTile("mma", dtype, d, d, bias=False)
    m, n, clocks = tile.m, tile.n, attention_clocks(tile, arch)
    tiles = sum(heads * ceil(x / m) for x in lengths)
    steps = sum(heads * ceil(x / m) * ceil(x / n) for x in lengths) / max(1, tiles)
    moved = 4 * sum(lengths) * heads * d * ITEM_BYTES[dtype]
    return predict(clocks, arch, steps=steps, tiles=tiles, moved=moved)


def predict_product(tile: CudaTile, dtype: str, arch: CudaArch, rows: int, k: int, n: int) -> Speed:
    """What `rows` x k by k x n should take, every element of it."""
    item = ITEM_BYTES[dtype]
    return predict(
        step_clocks(tile, dtype, arch),
        arch,
        steps=k * item / tile.k_bytes,
        tiles=ceil(rows / tile.m) * ceil(n / tile.n),
        moved=item * (rows * k + k * n + rows * n),
    )


@dataclass(frozen=True, slots=True)
class Chain:
    """What a contraction over zeros takes however few of its micro-tiles live, microseconds.

    Args:
        detect_us: All of A is read, and a bit is written for each element.
        choose_us: The choice.
        lists_us: The lists, when nothing is listed: the bits are read.
        leave_us: Products that were not chosen.
    """

    detect_us: float
    choose_us: float
    lists_us: float
    leave_us: float

    @property
    def total_us(self) -> float:
        """All of it; the product that was chosen comes on top."""
        return self.detect_us + self.choose_us + self.lists_us + self.leave_us


def predict_chain(dtype: str, arch: CudaArch, rows: int, k: int) -> Chain:
    """The fixed part of a contraction over zeros of a `rows` x k operand."""
    bits = rows * k / 8
    return Chain(
        LAUNCH_US + memory_us(rows * k * ITEM_BYTES[dtype] + bits, arch),
        LAUNCH_US + CHOOSE_US,
        LAUNCH_US + memory_us(bits, arch),
        LAUNCH_US * (len(KINDS) - 1),
    )


def _summed_rows(offer: CudaOffer, arch: CudaArch, rows: int, n: int) -> int:
    """Rows of C that a thread block sums up: the most that leave one to each multiprocessor."""
    row_bytes = offer.tile.n * ITEM_BYTES["float32"]
    fit = [x for x in SUMMED_ROWS if offer.shared_bytes + x * row_bytes <= arch.shared_bytes]
    wide = [x for x in fit if ceil(rows / x) * ceil(n / offer.tile.n) >= arch.processors]
    return max(wide, default=min(fit))


def predict_listed(
    offer: CudaOffer,
    dtype: str,
    arch: CudaArch,
    totals: Mapping[str, int],
    rows: int,
    k: int,
    n: int,
) -> float:
    """Microseconds of a variant by its prices, with the fixed part of the chain (`predict_chain`).

    Args:
        offer: The variant.
        dtype: Of the operands.
        arch: Where it runs.
        totals: Live micro-tiles of A.
        rows: Of A.
        k: Columns of A.
        n: Columns of C.
    """
    summed = _summed_rows(offer, arch, rows, n) if offer.variant.kind == "block" else 0
    line = line_of(offer.variant, offer.tile, dtype, arch.processors, summed)
    features = features_of(line, totals, (rows, k, n), block_count(k, block_width(dtype)))
    prices = prices_of(offer, dtype, arch)
    priced = zip(features, prices, strict=True)
    time = float(sum(x * price for x, price in priced)) / FEMTOSECONDS
    lists = 0 if offer.variant.kind == "dense" else LAUNCH_US  # has its price, and is in the chain
    return time - lists + predict_chain(dtype, arch, rows, k).total_us
