"""Compilers from CUDA source to images: what they have in common.

An *image* is what a driver loads: a *cubin*, machine code for `sm_XX` that also runs on later
devices of the same major version, or *PTX* for `compute_XX`, which the driver of any later device
translates when it is loaded.

    compiler = find_cuda_compiler()                 # from `find_cuda.py`
    compiler.compile(source, "sm_90").image         # a cubin
    compiler.compile(source, "compute_90").image    # PTX
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pitc.errors import UsageError

EXTRA = "pip install 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14'"
"""What installs NVRTC."""

OPTIONS = ("-std=c++17", "-fmad=false", "-diag-suppress=177,1046")
"""For every source: only a written `fma` is one, so that no compiler chooses a rounding. TVM may
name what it then does not use, and writes a float with all digits of a double, which compilers
round to the nearest."""

LONGEST_LOG = 4000
"""Letters of what a compiler said that an error repeats."""


class CudaSourceError(RuntimeError):
    """A CUDA compiler refused a source; the text holds what it said."""


@dataclass(frozen=True, slots=True)
class CudaModule:
    """What becomes of some TIR functions.

    Args:
        source: CUDA text of all kernels.
        host_object: An object file that holds `__tvm_ffi_<symbol>` of every function: it checks
            the arguments and launches the kernels, each by its name.
        launch: For each kernel what the numbers behind its arguments are, in their order, e.g.
            `("blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory")`.
    """

    source: str
    host_object: bytes
    launch: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made.

    Args:
        image: A cubin, or PTX.
        log: What the compiler said; empty where it had nothing to warn of.
    """

    image: bytes
    log: str


class CudaCompiler(Protocol):
    """A compiler from CUDA source to images; any number of threads may use it."""

    @property
    def version(self) -> str:
        """Name and version, e.g. `nvrtc-13.5.37`."""
        ...

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def fingerprint(self) -> str:
        """All that an image depends on besides source and target."""
        ...

    @property
    def archs(self) -> tuple[int, ...]:
        """The devices that it knows, ascending, e.g. `(75, 80, 90)`."""
        ...

    def compile(self, source: str, target: str) -> Compiled:
        """Compile a source.

        Args:
            source: CUDA text.
            target: `sm_XX` for a cubin, `compute_XX` for PTX.

        Raises:
            CudaSourceError: The compiler refused the source.
            MachineError: The compiler does not work.
            UsageError: A target that it does not know.
        """
        ...


def arch_number(arch: str) -> int:
    """The number of a device architecture: 90 of `sm_90`, and of `compute_90`.

    Raises:
        UsageError: Not such a name.
    """
    if not (found := re.fullmatch(r"(?:sm|compute)_(\d{2,3})", arch)):
        raise UsageError(f"unknown CUDA architecture {arch!r}", hint="e.g. sm_80 or sm_90")
    return int(found[1])


def check_target(target: str, compiler: CudaCompiler) -> None:
    """Refuse what a compiler does not compile for.

    Raises:
        UsageError: It is neither `sm_XX` nor `compute_XX` of a device that the compiler knows; an
            `a` behind it asks for code of that architecture alone.
    """
    number = arch_number(target.removesuffix("a"))
    if number not in compiler.archs:
        known = ", ".join(f"sm_{arch}" for arch in compiler.archs)
        raise UsageError(
            f"{compiler.version} cannot compile for sm_{number}", hint=f"it can: {known}"
        )


def cuda_version(compiler: CudaCompiler) -> tuple[int, int]:
    """The CUDA version of a compiler: a driver of an older major version loads nothing of it."""
    major, minor, *_ = compiler.version.rpartition("-")[2].split(".")
    return int(major), int(minor)
