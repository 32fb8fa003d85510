"""A library of CUDA kernels, called on a real device: no ONNX Runtime and no compiler is needed.

The library's host code checks arguments, computes grids and launches kernels by name
(`codegen/launch.py`); its tables say where their machine code is (`codegen/build/cuda_tables.c`).
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.driver import (
    CARVEOUT,
    DYNAMIC_SHARED,
    LARGEST_CARVEOUT,
    RING_SHARED,
    USUAL_SHARED,
    CudaError,
    Device,
)
from pitc.codegen import launch
from pitc.codegen.call import KernelLibrary


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("module", ctypes.c_char_p),
        ("launch", ctypes.c_char_p),
    )


class _Image(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_char_p),
        ("arch", ctypes.c_int32),
        ("is_ptx", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
    )


class CudaLibrary:
    """Kernels on a device.

    Args:
        device: Where they run.
        path: The library.
    """

    def __init__(self, device: Device, path: Path) -> None:
        self.device, self._calls = device, KernelLibrary(path)
        library = ctypes.CDLL(str(path.resolve()))
        self._launches = launch.Launches(library, self._launch)
        self._kernels = {
            kernel.name.decode(): (kernel.module.decode(), kernel.launch.decode().split(","))
            for kernel in _table(library, "kernel", _Kernel)
        }
        self._images: list[Any] = _table(library, "image", _Image)
        self._library = library
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._shared: dict[str, int] = {}

    def symbols(self) -> Iterator[str]:
        """Of the functions that it has, but for the ending `_cuda`."""
        for symbol in sorted({module for module, _ in self._kernels.values()}):
            yield symbol.removesuffix("_cuda")

    def run(self, symbol: str, *arguments: Any) -> None:
        """Launch a function's kernels; nobody waits for them.

        Args:
            symbol: The function's.
            arguments: `pitc.codegen.call.DeviceTensor`, integers and floats, in order.

        Raises:
            CudaError: The driver refuses.
            KernelError: The function refuses its arguments.
        """
        self.bound(symbol, *arguments)()

    def bound(self, symbol: str, *arguments: Any) -> Callable[[], None]:
        """The same with arguments that are converted now; calling the result launches."""
        return partial(self._launches.run, self._calls.bind(symbol, *arguments))

    def _launch(self, kernel: str, arguments: Sequence[launch.Argument]) -> None:
        tags = self._kernels[kernel][1]
        numbers = launch.launch_numbers(tags, arguments)
        shape = [numbers.get(name, 1) for name in launch.DIMENSIONS]
        if not all(shape[:3]):
            return  # no block
        own = [argument.number for argument in arguments[: len(arguments) - len(tags)]]
        slots = [ctypes.c_float(x) if isinstance(x, float) else ctypes.c_int64(x) for x in own]
        places = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        shared, function = numbers.get(launch.DYNAMIC_SHARED, 0), self._function(kernel)
        driver = self.device.driver
        if shared > RING_SHARED and shared > self._shared.get(kernel, 0):
            if shared > USUAL_SHARED:
                driver.cuFuncSetAttribute(function, DYNAMIC_SHARED, shared)
            driver.cuFuncSetAttribute(function, CARVEOUT, LARGEST_CARVEOUT)
            self._shared[kernel] = shared
        stream = self.device.stream
        driver.cuLaunchKernel(function, *shape, shared, stream, places, None)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        if kernel not in self._functions:
            function, module = ctypes.c_void_p(), self._module(self._kernels[kernel][0])
            driver = self.device.driver
            driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode())
            self._functions[kernel] = function
        return self._functions[kernel]

    def _module(self, name: str) -> ctypes.c_void_p:
        if name not in self._modules:
            module, image = ctypes.c_void_p(), self._image(name)
            self.device.driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_void_p(image.data))
            self._modules[name] = module
        return self._modules[name]

    def _image(self, module: str) -> Any:
        """The best image: machine code of the device's generation, else PTX that is no newer."""
        arch = self.device.arch
        fitting = [
            image
            for image in self._images
            if image.module.decode() == module
            and image.arch <= arch
            and (image.is_ptx or image.arch // 10 == arch // 10)
        ]
        if not fitting:
            raise CudaError(f"no code of {module} for sm_{arch}")
        return max(fitting, key=lambda image: (not image.is_ptx, image.arch))


def _table(library: Any, what: str, kind: Any) -> list[Any]:
    count = ctypes.c_int32.in_dll(library, f"pitc_cuda_{what}_count").value
    return list((kind * count).in_dll(library, f"pitc_cuda_{what}s"))
