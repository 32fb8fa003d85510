"""CUDA kernels on the CPU: their source, compiled as C++ around an emulated warp.

What runs is the text that would go to nvcc and the host code that would launch it.
"""

import atexit
import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitc.codegen import call, cuda
from pitc.codegen.build.link import SHIM
from tests.runtime_support import tool

CXX = os.environ.get("CXX") or tool("c++")
HEADER = Path(__file__).with_name("warp_emulator.h")
CUDA_DEVICE = 2

_KERNEL = re.compile(
    r"__global__ void __launch_bounds__\(\d+\) (\w+)\(([^)]*)\) (\{.*?^\})",
    re.MULTILINE | re.DOTALL,
)

_TABLE = """
extern "C" {{
void* __TVMFFIEnvModLookupFromImports = reinterpret_cast<void*>(emulator::Find);
void* __TVMFFIFunctionCall = reinterpret_cast<void*>(Call);
void* __TVMFFIHandleInitOnce = reinterpret_cast<void*>(emulator::Initialise);
int* emulator_reversed = &reversed;
}}
const emulator::Kernel emulator::kKernels[] = {{{kernels}}};
const int emulator::kKernelCount = {count};
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a CUDA source, as text."""

    name: str
    parameters: str
    body: str


def kernels(source: str) -> list[Kernel]:
    """The kernels of a CUDA source, in order."""
    return [Kernel(*found) for found in _KERNEL.findall(source)]


def _entry(kernel: Kernel) -> str:
    """A line of the table: a kernel's name, how to call it, its number of arguments."""
    kinds = [parameter.rsplit(" ", 1)[0] for parameter in kernel.parameters.split(", ")]
    arguments = [
        f"static_cast<{kind.removesuffix(' __restrict__')}>(a[{i}].pointer)"
        if "*" in kind
        else f"a[{i}].integer"
        for i, kind in enumerate(kinds)
    ]
    body = f"{kernel.name}({', '.join(arguments)});"
    return f'{{"{kernel.name}", [](const Argument* a) {{ {body} }}, {len(kinds)}}}'


class Emulated:
    """Kernels that run on the CPU as on a device; NumPy arrays are the device's memory.

    Args:
        functions: TIR functions with thread bindings.
        arch: What they are built for.
    """

    def __init__(self, functions: Sequence[Any], arch: str) -> None:
        module = cuda.build(functions, arch)
        self.source = module.source
        folder = tempfile.TemporaryDirectory(prefix="pitc-test-warps-")
        atexit.register(folder.cleanup)
        here = Path(folder.name)
        (here / "cuda.h").touch()
        (here / "host.o").write_bytes(module.host_object)
        entries = [_entry(kernel) for kernel in kernels(self.source)]
        table = _TABLE.format(kernels=", ".join(entries), count=len(entries))
        text = f'#include "{HEADER}"\n{self.source}{table}'
        (here / "kernels.cc").write_text(text)
        # The kernels take floats for integers through pointers, as CUDA allows.
        options = ["-O1", "-fno-strict-aliasing", "-shared", "-fPIC", f"-I{here}"]
        inputs = ["-x", "c", SHIM, "-x", "c++", here / "kernels.cc", "-x", "none", here / "host.o"]
        subprocess.run([CXX, *options, *inputs, "-o", here / "kernels.so"], check=True)
        self._library = call.KernelLibrary(here / "kernels.so")
        loaded = ctypes.CDLL(str(here / "kernels.so"))
        self._reversed = ctypes.POINTER(ctypes.c_int).in_dll(loaded, "emulator_reversed")

    def run(self, symbol: str, *arrays: Any) -> None:
        """Launch; the arrays are changed in place."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(call, "_CPU", CUDA_DEVICE)
            self._library.call(symbol, *arrays)

    @contextmanager
    def backwards(self) -> Iterator[None]:
        """Launches in which lanes, warps and blocks take turns the other way round."""
        self._reversed[0] = 1
        try:
            yield
        finally:
            self._reversed[0] = 0
