"""Launches of CUDA kernels by the host code that TVM writes for them, taken over by Python.

Host code checks arguments, computes grids, finds kernels by name and launches them through three
pointers, which whoever loads its library fills (`docs/plans.md`). What a launch is, a device or an
emulator says:

    launches = Launches(ctypes.CDLL("kernels.so"), launch)
    launches.run(lambda: library.call("pack_b4", x, rows, y))     # calls launch(kernel, arguments)
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pitc.codegen.call import KernelError

DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
"""The tag of a launch's bytes of shared memory beyond those that a kernel declares."""
DIMENSIONS = [f"{what}Idx.{axis}" for what in ("block", "thread") for axis in "xyz"]
_SET_DEVICE = "__tvm_set_device"
_FLOAT = 3
"""`type_index` of a number with a point."""


class Argument(ctypes.Structure):
    """What host code passes on: an integer, an address, or the bits of a double."""

    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("bits", ctypes.c_int64),
    )

    @property
    def number(self) -> int | float:
        """An integer or an address; a float if it is one."""
        if self.type_index == _FLOAT:
            return float(ctypes.c_double.from_buffer(self, type(self).bits.offset).value)
        return int(self.bits)


#: Launches a kernel by name, with its own arguments and then one integer for each of its tags.
Launch = Callable[[str, Sequence[Argument]], None]

_POINTER = ctypes.POINTER(ctypes.c_void_p)
_INIT = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, _POINTER)
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Argument), ctypes.c_int32, ctypes.c_void_p
)

# A handle is the number of a name: host code keeps handles, whoever runs it.
_names: list[str] = ["", _SET_DEVICE]
_running: list["Launches"] = []


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


class Launches:
    """The launches of one library of host code.

    Args:
        library: It, loaded; its three pointers are filled.
        launch: What launches.
    """

    def __init__(self, library: ctypes.CDLL, launch: Launch) -> None:
        self._launch = launch
        self._raised: Exception | None = None
        for name, callback in _CALLBACKS.items():
            slot = ctypes.c_void_p.in_dll(library, name)
            slot.value = ctypes.cast(callback, ctypes.c_void_p).value

    def run(self, host_code: Callable[[], None]) -> None:
        """Run host code, which may launch.

        Raises:
            KernelError: It refuses its arguments; what `launch` raises comes as it is.
        """
        self._raised = None
        _running.append(self)
        try:
            host_code()
        except KernelError as error:
            raise self._raised or error from None
        finally:
            _running.pop()

    def called(self, kernel: str, arguments: Sequence[Argument]) -> int:
        """What the host code calls: a launch, or the choice of a device; 0 if that worked."""
        try:
            if kernel != _SET_DEVICE:
                self._launch(kernel, arguments)
        except Exception as error:  # it cannot pass through the host code
            self._raised = error
            return -1
        return 0


def launch_numbers(tags: Sequence[str], arguments: Sequence[Argument]) -> Mapping[str, int]:
    """The integers behind a kernel's own arguments, by its tags.

    ["blockIdx.x", "threadIdx.x"], (address, 7, 12, 128) -> {"blockIdx.x": 12, "threadIdx.x": 128}
    """
    last = arguments[len(arguments) - len(tags) :]
    return dict(zip(tags, (argument.bits for argument in last), strict=True))
