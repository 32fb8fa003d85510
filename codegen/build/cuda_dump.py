"""What became of CUDA kernels, as files: sources, PTX, cubins, and what each kernel uses.

detect_scan.cu  detect_scan.sm_80.cubin  detect_scan.compute_80.ptx  ..  resources.txt
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pitc.codegen.build.cache import Cache
from pitc.codegen.build.cubin import kernel_resources
from pitc.codegen.build.cuda_library import Image, compile_functions
from pitc.codegen.build.find_cuda import find_cuda_compiler

_NAMES = ("module", "target", "kernel")
_NUMBERS = ("registers", "shared", "stack", "stored", "loaded", "threads", "code")


def dump_cuda_kernels(
    functions: Sequence[Any], archs: Sequence[str], folder: Path, cache: Cache | None = None
) -> None:
    """Write what is compiled for some TIR functions.

    Args:
        functions: As in `compile_functions`.
        archs: As in `compile_functions`.
        folder: Where to write; it is made where it does not exist.
        cache: As in `compile_functions`.

    Raises:
        CudaSourceError: The CUDA compiler refused a source.
        MachineError: There is no CUDA compiler, or it does not work.
        OSError: A file cannot be written.
        UsageError: An architecture that the CUDA compiler does not know.
        ValueError: No function, no architecture, or two functions of one symbol.
    """
    compiler = find_cuda_compiler()
    modules, images = compile_functions(functions, archs, compiler, all_ptx=True, cache=cache)
    folder.mkdir(parents=True, exist_ok=True)
    for symbol, module in modules.items():
        (folder / f"{symbol}.cu").write_text(module.source, "utf-8")
    for image in images:
        kind = "ptx" if image.is_ptx else "cubin"
        (folder / f"{image.module}.{image.target}.{kind}").write_bytes(image.content)
    (folder / "resources.txt").write_text(resource_table(images), "utf-8")


def resource_table(images: Sequence[Image]) -> str:
    """What each kernel uses, a line for each one and architecture; bytes, but for the registers."""
    rows = [(*_NAMES, *_NUMBERS), *_rows(images)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(
            cell.ljust(width) if place < len(_NAMES) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + "\n"
        for row in rows
    )


def _rows(images: Sequence[Image]) -> Iterator[tuple[str, ...]]:
    for image in images:
        for r in () if image.is_ptx else kernel_resources(image.content):
            moved = (r.stack_bytes, r.stored_bytes, r.loaded_bytes)
            numbers = (r.registers, r.shared_bytes, *moved, r.max_threads, r.code_bytes)
            yield (image.module, image.target, r.kernel, *map(str, numbers))
