"""Libraries of kernels that no request asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitc.codegen.build import cuda_library
from pitc.codegen.build.cache import Cache
from pitc.codegen.build.link import Built, find_compiler, link_library


def build_cuda_kernels(
    functions: Sequence[Any],
    archs: Sequence[str],
    out: Path,
    progress: cuda_library.Progress | None = None,
    cache: Cache | None = None,
) -> Built:
    """Write one shared object with all kernels of some TIR functions, for NVIDIA GPUs alone.

    Args:
        functions: As in `cuda_library.compile_functions`.
        archs: As in `cuda_library.compile_functions`.
        out: The file to write; it appears complete or not at all.
        progress: As in `cuda_library.compile_functions`.
        cache: As in `cuda_library.compile_functions`.

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
    modules, images = cuda_library.compile_functions(
        functions, archs, compiler, progress, cache=cache
    )
    return link_library([cuda_library.part_of(modules, images, compiler)], out)
