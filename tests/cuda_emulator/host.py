"""Emulated kernels behind the host code that TVM writes for them.

It is the real one: it checks arguments, computes grids, finds kernels by name and launches them,
through three pointers that whoever loads it fills.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitc.codegen import call
from pitc.codegen.build.cuda_module import cuda_module
from pitc.codegen.build.link import SHIM, find_compiler
from tests.cuda_emulator import build
from tests.cuda_emulator.build import EmulationError
from tests.cuda_emulator.device import DeviceMemory, EmulatedText


class _Argument(ctypes.Structure):
    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("bits", ctypes.c_int64),
    )


_POINTER = ctypes.POINTER(ctypes.c_void_p)
_INIT = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_DIMENSIONS = [f"{what}Idx.{axis}" for what in ("block", "thread") for axis in "xyz"]
_SHARED = "tirx.use_dyn_shared_memory"

# A handle is the number of a name: host code is loaded once, and keeps handles whoever runs it.
_names: list[str] = ["", "__tvm_set_device"]
_running: list["Emulated"] = []


def _find(_: Any, name: bytes, place: Any) -> int:
    if (text := name.decode()) not in _names:
        _names.append(text)
    place[0] = _names.index(text)
    return 0


def _call(handle: int, arguments: Any, count: int, _: Any) -> int:
    return _running[-1].called(_names[handle], arguments[:count])


def _initialise(place: Any, initialise: Any) -> int:
    return 0 if place[0] else int(initialise(place))


_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _POINTER)
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Argument), ctypes.c_int32, ctypes.c_void_p
)
_CALLBACKS = {
    "__TVMFFIEnvModLookupFromImports": _FIND(_find),
    "__TVMFFIFunctionCall": _CALL(_call),
    "__TVMFFIHandleInitOnce": ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _INIT)(_initialise),
}


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
        self._wrong: EmulationError | None = None

        def link(out: Path, scratch: Path) -> None:
            (scratch / "host.o").write_bytes(module.host_object)
            options = ["-shared", "-fPIC", "-o", out, SHIM, scratch / "host.o"]
            build.compiled([*find_compiler(), *options])

        host = build.kept("-host.so", [module.host_object, SHIM.read_bytes()], link)
        self._library = call.KernelLibrary(host)
        pointers = ctypes.CDLL(str(host))
        for name, callback in _CALLBACKS.items():
            slot = ctypes.c_void_p.in_dll(pointers, name)
            slot.value = ctypes.cast(callback, ctypes.c_void_p).value

    def run(self, symbol: str, *arguments: Any) -> None:
        """Call a function, which may launch several kernels; arrays are changed in place.

        Args:
            symbol: The function's.
            arguments: Arrays, `DeviceMemory`, integers and floats, in order.

        Raises:
            EmulationError: A kernel is wrong.
            KernelError: The function refuses its arguments.
        """
        self.launches, self._wrong = (), None
        with self._uploaded(arguments, self._parameters[symbol]) as given:
            tensors = [
                call.DeviceTensor(a.address, a.shape, a.dtype) if isinstance(a, DeviceMemory) else a
                for a in given
            ]
            _running.append(self)
            try:
                self._library.call(symbol, *tensors)
            except call.KernelError as error:
                raise self._wrong or error from None
            finally:
                _running.pop()

    def called(self, kernel: str, arguments: Sequence[_Argument]) -> int:
        """What TVM's host code calls: a launch, or the choice of a device."""
        if kernel not in self._kinds:
            return 0
        kinds, tags = self._kinds[kernel], self._tags[kernel]
        numbers = dict(zip(tags, (a.bits for a in arguments[len(kinds) :]), strict=True))
        shape = tuple(numbers.get(dimension, 1) for dimension in _DIMENSIONS)
        values = [
            ctypes.c_double.from_buffer(a, 8).value if kind in ("float", "double") else a.bits
            for kind, a in zip(kinds, arguments, strict=False)
        ]
        try:
            self._launched(kernel, shape[:3], shape[3:], values, numbers.get(_SHARED, 0))
        except EmulationError as error:
            self._wrong = error
            return -1
        return 0
