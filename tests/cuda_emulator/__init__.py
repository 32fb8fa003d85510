"""CUDA kernels on the CPU: the text that goes to nvcc, run by an emulated GPU.

    emulated = Emulated(functions)
    emulated.run("symbol", x, y, 3)           # NumPy arrays are device memory, changed in place
    emulated.launches[0].counts.load_sectors

What runs is TVM's CUDA source, compiled as C++ (`text.py`, `build.py`, `device_code.h`), launched
by TVM's host code (`host.py`). `memory.cc` has the rules; an `EmulationError` names buffer, thread,
block and line.
"""

from tests.cuda_emulator.build import EmulationError, build_module, build_run_time
from tests.cuda_emulator.device import Counts, DeviceMemory, EmulatedText, Launch, Line
from tests.cuda_emulator.host import ARCH, Emulated
from tests.cuda_emulator.text import Kernel, kernels

__all__ = [
    "ARCH",
    "Counts",
    "DeviceMemory",
    "Emulated",
    "EmulatedText",
    "EmulationError",
    "Kernel",
    "Launch",
    "Line",
    "build_module",
    "build_run_time",
    "kernels",
]
