"""Kernel libraries for the GPU that is not there: the compiler's own, but for what makes machine
code: that writes modules of the emulator.

    path = emulated_library(KernelRequest.of_cuda("gather_gemm", "float16", k=64, ..))
    with emulated_process(arch=80) as call:
        call(work, path)               # sessions there run the kernels on the CPU
"""

import functools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from filelock import FileLock

from benchmarks.gpu.own_kernels import build_cuda_kernels
from pitc.codegen.build import cuda_code, cuda_functions, cuda_library, library
from pitc.codegen.build.cuda_compiler import Compiled, CudaModule
from pitc.codegen.build.cuda_functions import functions_of
from pitc.codegen.build.link import Built
from pitc.ir.kernel import KernelRequest
from tests import kept_code
from tests.cuda_emulator import ARCH, build, build_module
from tests.device_support import Call, process
from tests.runtime_support import ROOT, kernel_identity, save

kept_code.install()  # processes of their own have no `conftest.py`


class EmulatorCompiler:
    """Makes modules of the emulator in place of cubins; its PTX is for no driver."""

    version = "emulator-13.0"
    path = build.HERE
    archs = (80, 90)

    @property
    def fingerprint(self) -> str:
        """The run time's file name has the hash of all sources of the emulator."""
        return build.run_time().name

    def compile(self, source: str, target: str) -> Compiled:
        """The module of a source."""
        if target.startswith("compute_"):
            return Compiled(b"//ptx of the emulator\n", "")
        with tempfile.TemporaryDirectory() as folder:
            return Compiled(build_module(source, Path(folder)).read_bytes(), "")


@contextmanager
def emulator_compiles(cache: Path) -> Iterator[None]:
    """What is compiled for GPUs here is compiled for the emulator.

    Args:
        cache: A folder for what was compiled.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PITC_CACHE_DIR", str(cache))
        patch.setattr(cuda_library, "find_cuda_compiler", EmulatorCompiler)
        yield


def emulated_library(*requests: KernelRequest, without: str = "") -> Path:
    """A library of kernels, made once for all who ask with the same sources.

    Args:
        requests: What it has kernels for.
        without: Kernels whose symbols have this in them are left out; empty: all are made.
    """
    sources = sorted(p for room in ("codegen", "pitc/ir") for p in (ROOT / room).rglob("*.py"))
    parts = [repr((requests, without)).encode(), *(path.read_bytes() for path in sources)]

    def make(out: Path, scratch: Path) -> None:
        named = {str(f.attrs["global_symbol"]): f for f in functions_of(requests)}
        functions = [f for symbol, f in named.items() if not without or without not in symbol]
        with emulator_compiles(scratch / "cache"):
            build_cuda_kernels(functions, (ARCH,), out)

    with FileLock(build.run_time().with_suffix(".lock")):
        return build.kept("-library.so", parts, make)


@contextmanager
def kept_kernels(without: str = "") -> Iterator[None]:
    """What is compiled for GPUs here gets kernels of `emulated_library`, each made once.

    Args:
        without: As there.
    """
    functions = functools.cache(lambda request: tuple(made(request)))
    made = cuda_functions.cuda_functions
    modules: dict[str, CudaModule] = {}

    def module_once(function: Any, arch: str) -> CudaModule:
        symbol = str(function.attrs["global_symbol"])
        if symbol not in modules:
            modules[symbol] = kept_code.cuda_module([function], arch)
        return modules[symbol]

    def build_kernels(requests: Sequence[KernelRequest], _: Any, out: Path, *__: Any) -> Built:
        shutil.copy(path := emulated_library(*requests, without=without), out)
        return Built(kernel_identity(path), ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_functions, "cuda_functions", functions)
        patch.setattr(cuda_code, "module_of", module_once)
        patch.setattr(library, "build_kernels", build_kernels)
        yield


@contextmanager
def emulated_process(arch: int = 80) -> Iterator[Call]:
    """As `device_support.process`, with a GPU that the emulator stands for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CUDA_EMULATOR", str(build.run_time()))
        with process(arch=arch) as call:
            yield call


def save_with(folder: Path, library: Path, model: onnx.ModelProto, name: str) -> Path:
    """Write a model beside a kernel library, which is copied once: it may be loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "kernels.so").exists():
        shutil.copy(library, folder / "kernels.so")
    return save(folder, model, name)


def clocks(dtype: str, *numbers: int) -> dict[str, str]:
    """The plan field that says what a step of each dense tile takes; one number is for all."""
    count = 6 if dtype == "float32" else 4
    return {f"clocks_{ARCH}": ",".join(map(str, numbers if len(numbers) > 1 else numbers * count))}
