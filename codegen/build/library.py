"""Building a kernel library: every requested kernel for every CPU level or GPU architecture."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pitc.codegen.build.cache import Cache
from pitc.codegen.build.kernel_keys import Key, generator, kept
from pitc.codegen.build.link import Built, Part, find_compiler, link_library
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CpuLevel, cpu_level_of, levels_of

Progress = Callable[[int, int, str], None]

MOST_THREADS = 8
"""Kernels that are compiled at once, at most: each takes some tens of megabytes meanwhile."""
_POINTERS = ("__TVMBackend*",)
"""Pointers to what allocates scratch memory; object code declares those that it uses."""


def kernel_function(request: KernelRequest, target: CpuLevel) -> Any:
    """The TIR function that answers a request; its symbol is `request.symbol` and the level."""
    from pitc.codegen.families import (
        attention,
        attention_grad,
        contract_block,
        contract_row,
        contract_tile,
        elementwise,
        gather_gemm,
        norm,
        outer_products,
        outer_products_dense,
        pack,
        panels,
        stored_rows,
        swrite_columns,
    )

    emitters = {
        "pack": pack.pack_func,
        "unpack": pack.unpack_func,
        "gather_gemm": gather_gemm.prim_func,
        "contract_row": contract_row.prim_func,
        "contract_tile": contract_tile.prim_func,
        "contract_block": contract_block.prim_func,
        "panels": panels.prim_func,
        "stored_rows": stored_rows.prim_func,
        "swrite_columns": swrite_columns.prim_func,
        "attention": attention.prim_func,
        "attention_grad": attention_grad.prim_func,
        "norm": norm.prim_func,
        "elementwise": elementwise.prim_func,
        "outer_products": outer_products.prim_func,
        "outer_products_dense": outer_products_dense.prim_func,
    }
    params = dict(request.params) | {"dtype": request.dtype}
    return emitters[request.family](f"{request.symbol}_{target.level}", params, target)


def cpu_part(
    requests: Sequence[KernelRequest],
    levels: Sequence[str],
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Part:
    """Compile every requested kernel for every level, several at once; TVM is loaded where one is
    not in the cache.

    Args:
        requests: What the lowered graph needs, at least one; order and repetitions do not matter.
        levels: CPU levels, e.g. `("v4", "v3")`.
        progress: Called with (kernels done, kernels in all, symbol) before each kernel is awaited.
        cache: Where kernels are kept; None makes all of them.

    Raises:
        UsageError: An unknown level.
        ValueError: No request, or a request that no family can answer.
    """
    if not requests or not levels:
        raise ValueError("a kernel library needs at least one request and one level")
    targets = [cpu_level_of(level) for level in sorted(set(levels))]
    ordered = sorted(set(requests), key=lambda r: r.symbol)
    work = [(r, t) for r in ordered for t in levels_of(r.dtype, targets, tiles=r.suits_tiles)]

    objects = {}
    with ThreadPoolExecutor(_threads()) as pool:
        made = {f"{r.symbol}_{t.level}": pool.submit(_object_code, r, t, cache) for r, t in work}
        try:
            for done, (symbol, code) in enumerate(made.items()):
                if progress:
                    progress(done, len(work), symbol)
                objects[symbol] = code.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    triples = {target.triple for target in targets}
    if len(triples) > 1:
        raise ValueError(f"one library is of one machine, not of {sorted(triples)}")
    return Part(objects, _POINTERS, triple=triples.pop())


def _threads() -> int:
    """How many kernels are compiled at once: LLVM works without Python's lock."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return min(len(usable) or os.cpu_count() or 1, MOST_THREADS)


def _object_code(request: KernelRequest, target: CpuLevel, cache: Cache | None) -> bytes:
    if (made_by := generator()) is None:
        return object_code(request, target)
    key = Key("object", request, target, made_by)
    return kept(cache, key, lambda: object_code(request, target))


def object_code(request: KernelRequest, target: CpuLevel) -> bytes:
    """Compile one kernel for a CPU level; the bytes of its object file."""
    from pitc.codegen.build import lower

    return lower.object_code(kernel_function(request, target), target)


def build_kernels(
    requests: Sequence[KernelRequest],
    levels: Sequence[str],
    out: Path,
    progress: Progress | None = None,
    archs: Sequence[str] = (),
    cache: Cache | None = None,
) -> Built:
    """Write one shared object with every requested kernel.

    Args:
        requests: What lowered graphs need, at least one.
        levels: CPU levels of the requests for CPUs.
        out: The file to write; it appears complete or not at all.
        progress: Called with (done, in all, what comes next) before a kernel is waited for.
        archs: GPU architectures of the requests for GPUs.
        cache: Where what was compiled before is, and is kept; None makes all of it.

    Returns:
        What was built: the plans of nodes that run these kernels name its identity.

    Raises:
        MachineError: There is no C compiler, or no compiler for GPUs, or it fails.
        UsageError: An unknown level or architecture.
        ValueError: No request, or a request that no family can answer.
    """
    triple = next((cpu_level_of(level).triple for level in levels), "")
    find_compiler(triple)  # before minutes of work
    on_cpus = [request for request in requests if request.kind != "cuda"]
    parts = [cpu_part(on_cpus, levels, progress, cache)] if on_cpus or not requests else []
    if len(on_cpus) < len(requests):
        from pitc.codegen.build.cuda_library import compile_requests, part_of

        on_gpus = [request for request in requests if request.kind == "cuda"]
        parts.append(part_of(*compile_requests(on_gpus, archs, progress, cache)))
    return link_library(parts, out)
