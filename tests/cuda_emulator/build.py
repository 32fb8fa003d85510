"""Emulated modules: a CUDA source as a shared object that stands for its cubin.

A module exports `emulated_NAME` for each kernel and takes the run time from `libcuda_emulator.so`.
What was built is kept in the system's temporary folder, under the hash of all that goes into it, so
that test processes share it; what was not used for a week is removed.
"""

import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pitc.ir.digest import joint_sha256
from tests.cuda_emulator.text import entry, kernels, translate
from tests.runtime_support import tool

HERE = Path(__file__).parent
CXX = tool("g++")  # its hooks of accesses, and its options, are needed
_SOURCES = sorted(HERE.glob("*.cc"))
SONAME = "libcuda_emulator.so"
_WEEK = 7 * 24 * 3600

_COMMON = ["-std=c++17", "-fPIC", "-march=native", "-ffp-contract=off"]
_KERNELS = [
    *_COMMON,
    "-Og",  # more makes nothing faster that calls the run time before each access
    # Registers in a hurry: texts of many kernels are long, and this took half of the time.
    *("--param=lra-max-considered-reload-pseudos=20", "-fira-region=one"),
    "-fno-var-tracking",  # lines are wanted, places of variables are not: half of the time
    *("-g1", "-gdwarf-4", "-w", "-fno-exceptions"),
    *("-fsanitize=thread", "--param=tsan-distinguish-volatile=1"),  # a call before each access
    "-fsanitize-coverage=trace-pc",  # and in each basic block: loops for ever are noticed
    "-fno-strict-aliasing",  # as CUDA
    "-ftrivial-auto-var-init=pattern",  # what is not initialised is not 0
    "-fno-tree-sra",  # else accesses of 16 bytes become scalars, and are counted so
    # An access stays the one place that it is in the source, as far as the compiler can be told.
    *("-fno-thread-jumps", "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-reorder-blocks"),
]


class EmulationError(RuntimeError):
    """What a kernel did wrong, or what the emulator does not know."""


def compiled(command: Sequence[str | Path]) -> None:
    """Run a compiler.

    Raises:
        EmulationError: It refuses.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise EmulationError("\n".join(errors[:5]) or done.stderr)


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"pitc-cuda-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in folder.glob("*.so"):
        with suppress(FileNotFoundError):  # somebody else was faster
            if old.stat().st_mtime < time.time() - _WEEK:
                old.unlink()
    return folder


@functools.cache
def _version() -> list[bytes]:
    sources = [*sorted(HERE.glob("*.h")), *_SOURCES, Path(__file__)]
    compiler = subprocess.run([CXX, "--version"], capture_output=True, check=True).stdout
    return [compiler, *(path.read_bytes() for path in sources)]


def kept(suffix: str, parts: Sequence[bytes], make: Callable[[Path, Path], None]) -> Path:
    """The file that `make(out, scratch)` writes from some parts, made only once."""
    path = _folder() / f"{joint_sha256([*_version(), *parts])[:32]}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix=".making-", dir=_folder()) as scratch:
            make(Path(scratch) / "out", Path(scratch))
            os.replace(Path(scratch) / "out", path)
    os.utime(path)
    return path


def run_time() -> Path:
    """The run time; its soname is `SONAME`, so it must be loaded before modules are."""

    def make(out: Path, _: Path) -> None:
        options = [*_COMMON, "-O2", "-Wall", "-Wextra", "-shared", f"-Wl,-soname,{SONAME}"]
        compiled([CXX, *options, *_SOURCES, "-ldl", "-o", out])

    return kept("-run-time.so", [], make)


def build_run_time(folder: Path) -> Path:
    """Write the run time into a folder, as `libcuda_emulator.so`."""
    return Path(shutil.copy(run_time(), folder / SONAME))


def module(source: str) -> Path:
    """The shared object of a CUDA source.

    Raises:
        EmulationError: The source has what the emulator does not know, e.g. an instruction.
    """
    text = f'#include "{HERE}/device_code.h"\n#line 1 "kernel.cu"\n{translate(source)}\n'
    text += "".join(entry(kernel) for kernel in kernels(source))

    def make(out: Path, scratch: Path) -> None:
        for header in ("cuda.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "math_constants.h"):
            (scratch / header).touch()
        (scratch / "kernel.cc").write_text(text)
        (scratch / SONAME).symlink_to(run_time())
        unlinked = scratch / "kernel.o"
        compiled([CXX, *_KERNELS, f"-I{scratch}", "-c", scratch / "kernel.cc", "-o", unlinked])
        compiled([CXX, "-shared", unlinked, f"-L{scratch}", "-lcuda_emulator", "-o", out])

    return kept("-kernels.so", [text.encode()], make)


def build_module(source: str, folder: Path) -> Path:
    """Write the module of a CUDA source into a folder, as `kernels.so`."""
    return Path(shutil.copy(module(source), folder / "kernels.so"))
