"""What CPU kernels are made of, as files: TIR, LLVM IR and assembly of each kernel and level.

pack_b4_v4.tir  pack_b4_v4.ll  pack_b4_v4.s  pack_b4_v3.tir  ..
"""

from collections.abc import Iterable
from pathlib import Path

from pitc.codegen.build.library import kernel_function
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import cpu_level_of

#: Endings of files, and what TVM calls their contents.
SOURCES = {"ll": "ll", "s": "asm"}


def dump_cpu_kernels(
    requests: Iterable[KernelRequest], levels: Iterable[str], folder: Path
) -> None:
    """Compile kernels once more, and write down what they are made of.

    Args:
        requests: The kernels.
        levels: CPU levels, each of which every kernel is compiled for.
        folder: Where to write; it is made where it does not exist.

    Raises:
        OSError: A file cannot be written.
        UsageError: An unknown level.
    """
    from pitc.codegen.build.lower import compiled

    targets = [cpu_level_of(level) for level in levels]
    folder.mkdir(parents=True, exist_ok=True)
    for request in requests:
        for target in targets:
            function = kernel_function(request, target)
            module = compiled(function, target)
            name = f"{request.symbol}_{target.level}"
            (folder / f"{name}.tir").write_text(f"{function.script()}\n", "utf-8")
            for ending, kind in SOURCES.items():
                (folder / f"{name}.{ending}").write_text(module.inspect_source(kind), "utf-8")
