"""Which CUDA compiler is used: NVRTC where pip installed it, else the nvcc on the PATH."""

import os

from pitc.codegen.build.cuda_compiler import EXTRA, CudaCompiler
from pitc.codegen.build.nvcc import find_nvcc
from pitc.codegen.build.nvrtc import find_nvrtc
from pitc.errors import MachineError, UsageError

VARIABLE = "PITC_CUDA_COMPILER"
"""The environment variable that names one: `nvrtc` or `nvcc`."""


def installed_cuda_compiler() -> CudaCompiler | None:
    """The compiler that `PITC_CUDA_COMPILER` names, else NVRTC, else nvcc, else None.

    Raises:
        MachineError: The named one is not installed, or what is installed does not work.
        UsageError: The variable names another one.
    """
    if not (named := os.environ.get(VARIABLE)):
        return find_nvrtc() or find_nvcc()
    if named not in ("nvrtc", "nvcc"):
        raise UsageError(f"{VARIABLE}: {named!r} is no CUDA compiler", hint="nvrtc or nvcc")
    found = find_nvrtc() if named == "nvrtc" else find_nvcc()
    if found is None:
        hint = EXTRA if named == "nvrtc" else "add its folder to PATH"
        raise MachineError(f"{VARIABLE} asks for {named}, which is not installed", hint=hint)
    return found


def find_cuda_compiler() -> CudaCompiler:
    """As `installed_cuda_compiler`, where one is needed.

    Raises:
        MachineError: None is installed, or what is installed does not work.
        UsageError: `PITC_CUDA_COMPILER` names no CUDA compiler.
    """
    if found := installed_cuda_compiler():
        return found
    raise MachineError("no CUDA compiler is installed", hint=EXTRA)
