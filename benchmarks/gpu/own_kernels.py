"""Libraries of kernels that no request asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitc.codegen.build import cuda_library
from pitc.codegen.build.cache import Cache
from pitc.codegen.build.cuda_code import makers_of
from pitc.codegen.build.cuda_compiler import CudaCompiler, CudaModule
from pitc.codegen.build.link import Built, find_compiler, link_library


def compile_functions(
    functions: Sequence[Any],
    archs: Sequence[str],
    compiler: CudaCompiler,
    progress: cuda_library.Progress | None = None,
    *,
    all_ptx: bool = False,
    cache: Cache | None = None,
) -> tuple[dict[str, CudaModule], list[cuda_library.Image]]:
    """Compile TIR functions for all architectures, in parallel.

    Args:
        functions: TIR functions with thread bindings, each of another symbol, at least one.
        archs: Architectures, e.g. `("sm_80", "sm_90")`, at least one.
        compiler: The CUDA compiler.
        progress: As of `cuda_library.compile_modules`, like what is returned.
        all_ptx: Make PTX for each architecture, not for the newest one only.
        cache: Where images are, and are kept; None makes all of them.
    """
    targets = cuda_library.targets_of(archs, compiler, all_ptx=all_ptx)
    makers = makers_of(functions, targets[0])
    return cuda_library.compile_modules(makers, targets, compiler, progress, cache)


def build_cuda_kernels(
    functions: Sequence[Any],
    archs: Sequence[str],
    out: Path,
    progress: cuda_library.Progress | None = None,
    cache: Cache | None = None,
) -> Built:
    """Write one shared object with all kernels of some TIR functions, for NVIDIA GPUs alone.

    Args:
        functions: As in `compile_functions`.
        archs: As in `compile_functions`.
        out: The file to write; it appears complete or not at all.
        progress: As in `compile_functions`.
        cache: As in `compile_functions`.

    Returns:
        What was built.

    Raises:
        CudaSourceError: The CUDA compiler refused a source.
        MachineError: There is no C compiler or no CUDA compiler, or one of them fails.
        UsageError: An architecture that the CUDA compiler does not know.
        ValueError: No function, no architecture, or two functions of one symbol.
    """
    find_compiler()  # before minutes of work
    compiler = cuda_library.find_cuda_compiler()
    modules, images = compile_functions(functions, archs, compiler, progress, cache=cache)
    return link_library([cuda_library.part_of(modules, images, compiler)], out)
