"""Emulated kernels behind the host code that TVM writes for them.

It is the real one: it checks arguments, computes grids, finds kernels by name and launches them.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitc.codegen import call, launch
from pitc.codegen.build.link import SHIM, find_compiler
from tests.cuda_emulator import build
from tests.cuda_emulator.device import DeviceMemory, EmulatedText
from tests.kept_code import cuda_module

ARCH = "sm_80"
"""The least, whose text the others take as well."""


class Emulated(EmulatedText):
    """Kernels that run on the CPU as on a device.

    Args:
        functions: TIR functions with thread bindings.
        arch: What they are built for.
    """

    def __init__(self, functions: Sequence[Any], arch: str = ARCH) -> None:
        module = cuda_module(functions, arch)
        super().__init__(module.source)
        self._tags = module.launch
        self._parameters = {
            f.attrs["global_symbol"]: [parameter.name for parameter in f.params] for f in functions
        }

        def link(out: Path, scratch: Path) -> None:
            (scratch / "host.o").write_bytes(module.host_object)
            options = ["-shared", "-fPIC", "-o", out, SHIM, scratch / "host.o"]
            build.compiled([*find_compiler(), *options])

        host = build.kept("-host.so", [module.host_object, SHIM.read_bytes()], link)
        self._library = call.KernelLibrary(host)
        self._host_code = launch.Launches(ctypes.CDLL(str(host)), self._launch)

    def run(self, symbol: str, *arguments: Any) -> None:
        """Call a function, which may launch several kernels; arrays are changed in place.

        Args:
            symbol: The function's.
            arguments: Arrays, `DeviceMemory`, integers and floats, in order.

        Raises:
            EmulationError: A kernel is wrong.
            KernelError: The function refuses its arguments.
        """
        self.launches = ()
        with self._uploaded(arguments, self._parameters[symbol]) as given:
            tensors = [
                call.DeviceTensor(a.address, a.shape, a.dtype) if isinstance(a, DeviceMemory) else a
                for a in given
            ]
            self._host_code.run(lambda: self._library.call(symbol, *tensors))

    def _launch(self, kernel: str, arguments: Sequence[launch.Argument]) -> None:
        numbers = launch.launch_numbers(self._tags[kernel], arguments)
        shape = tuple(numbers.get(name, 1) for name in launch.DIMENSIONS)
        own = [argument.number for argument in arguments[: len(self._kinds[kernel])]]
        shared_bytes = numbers.get(launch.DYNAMIC_SHARED, 0)
        self._launched(kernel, shape[:3], shape[3:], own, shared_bytes)
