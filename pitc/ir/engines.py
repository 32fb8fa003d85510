"""The engines and tiles of a node, read from its plan: what `pitc explain` shows.

contract on GPUs, float16       mma     mma128x128 mma64x128 mma32x128 mma16x128
the same on CPUs                cpu     v4:6x64 v3:6x16
"""

from dataclasses import dataclass

from pitc.ir.attention_tile import AttentionTile, GradientTile
from pitc.ir.cuda_target import CUDA_ARCHS, CudaArch, CudaTile
from pitc.ir.cuda_variants import dense_tiles, offers_of, tile_time
from pitc.ir.gpu_speed import clocks_of
from pitc.ir.plans.base import KernelPlan
from pitc.ir.plans.ops import Attention, AttentionGrad, Contract
from pitc.ir.plans.whole import Grouped, OuterProducts
from pitc.ir.report import KernelRecord
from pitc.ir.target import V4_BF16, Target, cpu_level_of, levels_of
from pitc.ir.variants import ITEM_BYTES, VARIANTS


@dataclass(frozen=True, slots=True)
class Kernels:
    """What runs a lowered node.

    Args:
        engine: As in `NodeRecord`.
        record: Its kernels.
    """

    engine: str
    record: KernelRecord


def kernels_of(plan: KernelPlan, target: Target, rows: int | None = None) -> Kernels:
    """What runs a node that computes.

    Args:
        plan: Of the node.
        target: What it is compiled for.
        rows: Of the product, where they are known.
    """
    if not isinstance(plan, Contract | Attention | AttentionGrad | Grouped | OuterProducts):
        return Kernels("simt" if target.kind == "cuda" else "cpu", KernelRecord(plan.op, ()))
    of_rows = tuple(
        f"{v.name} {v.micro_tile().k}x1"
        for v in VARIANTS.values()
        if v.micro_tile().m == 1 and v.pit_axis
    )
    if isinstance(plan, OuterProducts):
        listed = (cpu_level_of(name) for name in target.machines)
        tiles = tuple(f"{x.level}:{x.listed_tile[0]}x{x.listed_tile[1]}" for x in listed)
        return Kernels("cpu", KernelRecord(plan.op, tiles, of_rows))
    if isinstance(plan, AttentionGrad) and target.kind == "cuda":
        tile = GradientTile(plan.d, plan.dv)
        return Kernels("simt", KernelRecord(plan.op, (f"simt{tile.m}x{tile.n}",)))
    if target.kind == "cuda" and isinstance(plan, Contract | Attention | Grouped):
        return _on_cuda(plan, target.machines, rows)
    levels, engine = [cpu_level_of(name) for name in target.machines], "cpu"
    if isinstance(plan, Contract | Attention) and plan.rounded:
        levels = list(levels_of("bfloat16", levels, tiles=True))
        if V4_BF16 in levels:
            engine = "amx, avx512_bf16, cpu"
    if isinstance(plan, Attention | AttentionGrad):
        pairs = [
            (x.level, *pair)
            for x in levels
            for pair in zip(x.attention_lanes, x.attention_rows, strict=True)
        ]
    else:
        pairs = [(x.level, *x.gemm_tile) for x in levels]
    cut: tuple[str, ...] = ()
    if isinstance(plan, Contract) and plan.skips:
        found = [(v.name, v.micro_tile()) for v in VARIANTS.values() if v.pit_axis]
        cut = tuple(f"{name} {tile.m}x{tile.k}" for name, tile in found)
        if plan.tiles:  # of C, which lists columns for as many rows
            cut = of_rows
    tiles = tuple(f"{level}:{m}x{n}" for level, m, n in pairs)
    return Kernels(engine, KernelRecord(plan.op, tiles, cut))


def _on_cuda(
    plan: Contract | Attention | Grouped, archs: tuple[str, ...], rows: int | None
) -> Kernels:
    dtype = plan.dtype
    engines = ("mma", "simt") if dtype == "float32" else ("mma",)
    if isinstance(plan, Attention):
        made = [(e, AttentionTile(e, dtype, plan.d, plan.dv, plan.bias)) for e in engines]
        tiles = tuple(f"{engine}{tile.m}x{tile.n}" for engine, tile in made)
        return Kernels(", ".join(engines), KernelRecord(plan.op, tiles))
    offered = [t for t in dense_tiles(dtype) if any(_fits(t, a) for a in archs)]
    variants = {o.variant.name: o.variant.micro_tile(dtype) for o in offers_of(dtype)}
    del variants["dense"]
    cut = tuple(f"{name} {t.m}x{t.k}" for name, t in variants.items() if plan.skips)
    predicted: dict[str, list[str]] = {}
    if rows:
        for arch in archs:
            fastest = predicted_tile(dtype, CUDA_ARCHS[arch], rows, plan.k, plan.n)
            predicted.setdefault(fastest.name, []).append(arch)
    texts = tuple(f"{tile} on {' '.join(names)}" for tile, names in predicted.items())
    names = tuple(t.name for t in offered)
    return Kernels(", ".join(engines), KernelRecord(plan.op, names, cut, texts))


def _fits(tile: CudaTile, arch: str) -> bool:
    return tile.shared_bytes <= CUDA_ARCHS[arch].shared_bytes


def predicted_tile(dtype: str, arch: CudaArch, rows: int, k: int, n: int) -> CudaTile:
    """The dense tile that the run time takes on an architecture's largest device: the first whose
    busiest multiprocessor is done the soonest.
    """
    sizes = rows, k * ITEM_BYTES[dtype], n

    def time(tile: CudaTile) -> float:
        return float(tile_time(tile, clocks_of(tile, dtype, arch), sizes, arch.processors))

    return min((t for t in dense_tiles(dtype) if _fits(t, arch.name)), key=time)
