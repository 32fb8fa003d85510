"""A plug-in of pytest: what is recorded is built for the emulator. It comes before `record`."""

from pitc.codegen.build import cuda_library
from tests.device_kernels import EmulatorCompiler

cuda_library.find_cuda_compiler = EmulatorCompiler  # type: ignore[assignment]
