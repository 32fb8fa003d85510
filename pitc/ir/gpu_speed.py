"""How long a contraction should take on a GPU: a model of rates, beside what was measured.

Of each step of a dense tile it is known what it computes and moves. Each unit of a multiprocessor
takes its own time for that, and the slowest one decides:

    tensor cores or FMA units   2 m n k operations
    shared memory               wavefronts of 128 bytes: copies, and loads of every warp
    special functions           of attention, a power for each score
    second-level cache          (m + n) k elements, shared by all multiprocessors
    memory                      what is there but once: A, B and C

    128 x 128 x 32, float16, on an A100: 512 clocks of its tensor cores, 384 wavefronts, 462 clocks
    of the cache

Rates are those of `cuda_target.CudaArch`: of tensor cores what mma.sync reaches, of the cache what
others have measured, as far as somebody has. Attention takes such steps over keys; what only moves
(pack, unpack, detection, lists) takes what memory does. Real kernels take longer: they wait, fill
and empty their rings, and share units. The model ranks tiles and variants, and is the first price
of each (`docs/cuda-developers.md`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pitc.ir.attention_tile import WARPS, AttentionTile
from pitc.ir.cuda_target import CUDA_ARCHS, CudaArch, CudaTile
from pitc.ir.cuda_variants import (
    KINDS,
    SUMMED_ROWS,
    CudaOffer,
    block_width,
    dense_tiles,
    features_of,
    line_of,
    offers_of,
)
from pitc.ir.gpu_measured import STEP_NS, measured_prices
from pitc.ir.plans.ops import Table
from pitc.ir.variants import ITEM_BYTES

WAVEFRONT_BYTES = 128
LAUNCH_US = 2.0
"""One launch behind another on a stream."""
READ_SHARE = 0.895
"""Of what a data sheet says of memory: copies were seen to reach 3.0 of 3.35 TB/s on an H100, and
4.3 of 4.8 on an H200."""
FEMTOSECONDS = 1e9
"""Per microsecond."""
POWERS = 16
"""Of 2, that a multiprocessor computes in a clock: CUDA C++ Programming Guide, "Arithmetic
instructions", every architecture here."""
CHOOSE_US = 8.0
"""The choice, one block of 1024 threads, beside its launch: it waits for memory a few times, one
time behind the other, and has next to nothing to move."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What each unit takes for one step of a dense tile, in clocks of a multiprocessor.

    Args:
        compute: Tensor cores, or FMA units; of attention special functions, if these take longer.
        shared: Shared memory.
        cache: The multiprocessor's share of the second-level cache.
    """

    compute: float
    shared: float
    cache: float

    @property
    def most(self) -> float:
        """The slowest unit's."""
        return max(self.compute, self.shared, self.cache)

    @property
    def limit(self) -> str:
        """Which that is."""
        named = {"compute": self.compute, "shared memory": self.shared, "cache": self.cache}
        return max(named, key=named.__getitem__)


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


def step_wavefronts(tile: CudaTile) -> int:
    """Wavefronts of shared memory in a step: copies into it, and what every warp loads.

    Threads without tensor cores load each chunk of a for four rows of eight lanes at a time, and
    each of b for four groups of lanes.
    """
    copied = tile.slot_bytes
    if tile.engine == "mma":
        loaded = tile.slot_bytes_loaded
    else:
        warps = tile.warps_m * tile.warps_n
        m, n = tile.m // tile.warps_m, tile.n // tile.warps_n
        loaded = warps * (8 * m + 4 * n) * tile.k_bytes
    return (copied + loaded) // WAVEFRONT_BYTES


def step_clocks(tile: CudaTile, dtype: str, arch: CudaArch) -> Clocks:
    """What one step of a dense tile takes."""
    k = tile.k_bytes // ITEM_BYTES[dtype]
    rate = arch.mma_flops[dtype] if tile.engine == "mma" else arch.simt_flops
    share = arch.l2_bytes / arch.processors
    return Clocks(
        compute=2 * tile.m * tile.n * k / rate,
        shared=step_wavefronts(tile),
        cache=tile.slot_bytes / share,
    )


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
    limit = clocks.limit if tiles_us >= moved_us else "memory"
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


def clocks_of(tile: CudaTile, dtype: str, arch: CudaArch) -> int:
    """Clocks of a step of a dense tile: as it was measured, else by the model."""
    if measured := STEP_NS.get(arch.name, {}).get(tile.name):
        return round(measured * arch.clock_mhz / 1e3)
    return ceil(step_clocks(tile, dtype, arch).most)


def half_turns(turns: int) -> int:
    """Turns of the busiest multiprocessor, in halves, as the runtime counts them.

    Two blocks stand on it beside each other; one that is alone there waits for its copies, so a
    last turn without another takes half as long again (`runtime/ep/device/dense_tiles.cc`).
    """
    return 2 * turns + turns % 2


def clock_table(dtype: str) -> Table:
    """The lines `clocks_ARCH` of plans: what a step of each dense tile of a type takes."""
    return tuple(
        (f"clocks_{name}", tuple(clocks_of(tile, dtype, arch) for tile in dense_tiles(dtype)))
        for name, arch in CUDA_ARCHS.items()
    )


def prices_of(offer: CudaOffer, dtype: str, arch: CudaArch) -> tuple[int, ...]:
    """Femtoseconds for each of `cuda_variants.FEATURES`.

    A step takes its share of the second-level cache wherever it runs, and keeps its multiprocessor
    busy: that is `steps` and `turns`. What is listed is written and read again, by one kernel that
    a dense contraction leaves idle.

    Args:
        offer: What is priced.
        dtype: Of the operands.
        arch: Where it runs.
    """
    clocks, is_dense = step_clocks(offer.tile, dtype, arch), offer.variant.kind == "dense"
    shared = clocks.shared
    if offer.variant.kind == "block":  # sums are read, added to and written
        shared += 2 * offer.tile.m * offer.tile.n * ITEM_BYTES["float32"] / WAVEFRONT_BYTES
    clock = FEMTOSECONDS / arch.clock_mhz
    return (
        round(LAUNCH_US * FEMTOSECONDS * (1 if is_dense else 2)),
        0 if is_dense else round(2 * FEMTOSECONDS / (arch.memory_gbs * READ_SHARE * 1e3)),
        round(offer.tile.slot_bytes / arch.l2_bytes * clock),
        round(max(clocks.compute, shared) * clock),
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
    features = features_of(line, totals, rows, k, n, block_width(dtype))
    prices = prices_of(offer, dtype, arch)
    time = sum(x * price for x, price in zip(features, prices, strict=True)) / FEMTOSECONDS
    lists = 0 if offer.variant.kind == "dense" else LAUNCH_US  # has its price, and is in the chain
    return time - lists + predict_chain(dtype, arch, rows, k).total_us


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """Prices of every variant on every architecture: measured ones, else by this model."""

    def table(self, dtype: str) -> Table:
        """The lines `price_VARIANT_TILE_ARCH` of plans (`docs/plans.md`)."""
        return tuple(
            (
                f"price_{offer.name}_{name}",
                tuple(measured_prices(name, offer.name) or prices_of(offer, dtype, arch)),
            )
            for offer in offers_of(dtype)
            for name, arch in CUDA_ARCHS.items()
        )
