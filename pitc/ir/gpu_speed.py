"""How long a contraction should take on a GPU: a model of rates, beside what was measured.

Of each step of a dense tile it is known what it computes and moves. Each unit of a multiprocessor
takes its own time for that, and the slowest one decides:

    tensor cores or FMA units   2 m n k operations
    shared memory               wavefronts of 128 bytes: copies, and loads of every warp
    second-level cache          (m + n) k elements, shared by all multiprocessors
    memory                      what is there but once: A, B and C

    128 x 128 x 32, float16, on an A100: 512 clocks of its tensor cores, 384 wavefronts, 462 clocks
    of the cache

Rates are those of `cuda_target.CudaArch`: of tensor cores what mma.sync reaches, of the cache what
others have measured, as far as somebody has. Real kernels take longer: they wait, fill and empty
their rings, and share units. The model ranks tiles and variants, and is the first price of each
(`docs/cuda-developers.md`); `benchmarks/gpu/model.py` predicts other kernels by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from pitc.ir.cuda_target import CUDA_ARCHS, CudaArch, CudaTile
from pitc.ir.cuda_variants import CudaOffer, dense_tiles, offers_of
from pitc.ir.plans.base import Table
from pitc.ir.tiles import FEMTOSECONDS
from pitc.ir.variants import ITEM_BYTES

WAVEFRONT_BYTES = 128
LAUNCH_US = 2.0
"""One launch behind another on a stream."""
READ_SHARE = 0.895
"""Of what a data sheet says of memory: copies were seen to reach 3.0 of 3.35 TB/s on an H100, and
4.3 of 4.8 on an H200."""

# What kernels were seen to take where a GPU was at hand: it takes the model's place. Of
# `benchmarks/results/gpu` (steps `gemm` and `prices` of `docs/gpu-run.md`), float16, H100 SXM at
# 1980 MHz. An operand of another type takes as long per byte: a step is one of bytes.
STEP_NS: Mapping[str, Mapping[str, int]] = {
    "sm_90": {"mma128x128": 335, "mma64x128": 225, "mma32x128": 265, "mma16x128": 220}
}
"""By architecture and dense tile: a step, where two blocks stand on a multiprocessor and each turn
of it is one of both: 4096 x 4096 x 4096 takes 8 turns of 128 steps of 128 x 128, 343 us of 370."""
TURN_NS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "sm_90": {
        **{f"dense_{tile}": (2000, step) for tile, step in STEP_NS["sm_90"].items()},
        "tile32_mma32x128": (12600, 170),
        "square32_mma32x128": (12600, 170),
        "block64_mma64x64": (4000, 1050),
    }
}
"""By architecture and `CudaOffer.name`: the launches of lists and product with what the first tiles
wait for, and a turn. A device that is full takes turns, so steps have no price of their own. Of
blocks it is a turn where they are as fast as dense; of fewer it is more."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What each unit takes for one step of a dense tile, in clocks of a multiprocessor.

    Args:
        compute: Tensor cores, or FMA units.
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


def clocks_of(tile: CudaTile, dtype: str, arch: CudaArch) -> int:
    """Clocks of a step of a dense tile: as it was measured, else by the model."""
    if measured := STEP_NS.get(arch.name, {}).get(tile.name):
        return round(measured * arch.clock_mhz / 1e3)
    return ceil(step_clocks(tile, dtype, arch).most)


def clock_table(dtype: str) -> Table:
    """The lines `clocks_ARCH` of plans: what a step of each dense tile of a type takes."""
    return tuple(
        (f"clocks_{name}", tuple(clocks_of(tile, dtype, arch) for tile in dense_tiles(dtype)))
        for name, arch in CUDA_ARCHS.items()
    )


def prices_of(offer: CudaOffer, dtype: str, arch: CudaArch) -> tuple[int, ...]:
    """Femtoseconds for each of `cuda_variants.FEATURES`, by the model.

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
class GpuPrices:
    """Prices of every variant on every architecture: measured ones, else by this model."""

    def table(self, dtype: str) -> Table:
        """The lines `price_VARIANT_TILE_ARCH` of plans (`docs/plans.md`)."""
        found = []
        for offer in offers_of(dtype):
            for name, arch in CUDA_ARCHS.items():
                prices = prices_of(offer, dtype, arch)
                if measured := TURN_NS.get(name, {}).get(offer.name):
                    launch, turn = (round(ns * FEMTOSECONDS / 1e3) for ns in measured)
                    prices = launch, 0, 0, turn
                found.append((f"price_{offer.name}_{name}", prices))
        return tuple(found)
