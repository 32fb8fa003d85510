"""What became of CUDA kernels, as files: sources, PTX, cubins, and what each kernel uses.

detect_scan.cu  detect_scan.sm_80.cubin  detect_scan.compute_80.ptx  ..  resources.txt
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pitc.codegen.build.cubin import kernel_resources
from pitc.codegen.build.cuda_compiler import CudaModule
from pitc.codegen.build.cuda_library import Image

_NAMES = ("module", "target", "kernel")
_NUMBERS = ("registers", "shared", "stack", "stored", "loaded", "threads", "code")


def dump_cuda_kernels(
    modules: Mapping[str, CudaModule], images: Sequence[Image], folder: Path
) -> None:
    """Write what was compiled for NVIDIA GPUs.

    Args:
        modules: Modules by their symbols.
        images: Their images.
        folder: Where to write; it is made where it does not exist.

    Raises:
        OSError: A file cannot be written.
    """
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
