"""A library of CUDA kernels, called on a real device: no ONNX Runtime and no compiler is needed.

The library's host code checks arguments, computes grids and asks three pointers, which whoever
loads it fills, for kernels by name and for launches (`codegen/build/cuda_tables.c`).
"""

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.driver import DYNAMIC_SHARED, USUAL_SHARED, CudaError, Device
from pitc.codegen.call import KernelError, KernelLibrary

_FLOAT = 3
"""`type_index` of a number with a point."""
_DIMENSIONS = [f"{what}Idx.{axis}" for what in ("block", "thread") for axis in "xyz"]
_SHARED = "tirx.use_dyn_shared_memory"
_SET_DEVICE = "__tvm_set_device"


class _Argument(ctypes.Structure):
    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("bits", ctypes.c_int64),
    )


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


_POINTER = ctypes.POINTER(ctypes.c_void_p)
_INIT = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _POINTER)
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Argument), ctypes.c_int32, ctypes.c_void_p
)

# A handle is the number of a name: host code keeps handles, whoever runs it.
_names: list[str] = ["", _SET_DEVICE]
_running: list["CudaLibrary"] = []


def _find(_: Any, name: bytes, place: Any) -> int:
    if (text := name.decode()) not in _names:
        _names.append(text)
    place[0] = _names.index(text)
    return 0


def _call(handle: int, arguments: Any, count: int, _: Any) -> int:
    return _running[-1].called(_names[handle], arguments[:count])


def _initialise(place: Any, initialise: Any) -> int:
    return 0 if place[0] else int(initialise(place))


# Held for ever: libraries call them through bare pointers.
_CALLBACKS = {
    "__TVMFFIEnvModLookupFromImports": _FIND(_find),
    "__TVMFFIFunctionCall": _CALL(_call),
    "__TVMFFIHandleInitOnce": ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _INIT)(_initialise),
}


class CudaLibrary:
    """Kernels on a device.

    Args:
        device: Where they run.
        path: The library.
    """

    def __init__(self, device: Device, path: Path) -> None:
        self.device, self._calls = device, KernelLibrary(path)
        library = ctypes.CDLL(str(path.resolve()))
        for name, callback in _CALLBACKS.items():
            slot = ctypes.c_void_p.in_dll(library, name)
            slot.value = ctypes.cast(callback, ctypes.c_void_p).value
        self._kernels = {
            kernel.name.decode(): (kernel.module.decode(), kernel.launch.decode().split(","))
            for kernel in _table(library, "kernel", _Kernel)
        }
        self._images: list[Any] = _table(library, "image", _Image)
        self._library = library
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._shared: dict[str, int] = {}
        self._error: Exception | None = None

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

    def bound(self, symbol: str, *arguments: Any) -> "Launch":
        """The same with arguments that are converted now; calling the result launches."""
        return Launch(self, self._calls.bind(symbol, *arguments))

    def called(self, kernel: str, arguments: Sequence[_Argument]) -> int:
        """What the host code calls: a launch, or the choice of a device."""
        if kernel == _SET_DEVICE:
            return 0
        try:
            self._launch(kernel, arguments)
        except Exception as error:
            self._error = error
            return -1
        return 0

    def raised(self, error: KernelError) -> Exception:
        """What really went wrong when a function failed."""
        found, self._error = self._error, None
        return found or error

    def _launch(self, kernel: str, arguments: Sequence[_Argument]) -> None:
        tags = self._kernels[kernel][1]
        split = len(arguments) - len(tags)
        numbers = dict(zip(tags, (a.bits for a in arguments[split:]), strict=True))
        shape = [numbers.get(name, 1) for name in _DIMENSIONS]
        if not all(shape[:3]):
            return  # no block
        slots: list[Any] = []
        for argument in arguments[:split]:
            if argument.type_index == _FLOAT:
                slots.append(ctypes.c_float(ctypes.c_double.from_buffer(argument, 8).value))
            else:
                slots.append(ctypes.c_int64(argument.bits))
        places = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        shared, function = numbers.get(_SHARED, 0), self._function(kernel)
        driver = self.device.driver
        if shared > max(USUAL_SHARED, self._shared.get(kernel, 0)):
            driver.cuFuncSetAttribute(function, DYNAMIC_SHARED, shared)
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


class Launch:
    """A function with its arguments; calling it launches."""

    def __init__(self, library: CudaLibrary, bound: Any) -> None:
        self._library, self._bound = library, bound

    def __call__(self) -> None:
        """Launch into the device's stream."""
        _running.append(self._library)
        try:
            self._bound()
        except KernelError as error:
            raise self._library.raised(error) from None
        finally:
            _running.pop()


def _table(library: Any, what: str, kind: Any) -> list[Any]:
    count = ctypes.c_int32.in_dll(library, f"pitc_cuda_{what}_count").value
    return list((kind * count).in_dll(library, f"pitc_cuda_{what}s"))
