"""Calling a built kernel from Python through ctypes, without TVM and without a session.

The structures are this project's own declarations of the packed calling convention that
`docs/plans.md` builds on. Workspace comes 64-byte aligned from the C library.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT, _FLOAT, _TENSOR = 1, 3, 7
_CPU, _CUDA = 1, 2
_TYPE_CODES = {"i": 0, "u": 1, "f": 2}
_BFLOAT = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Value(ctypes.Union):
    _fields_ = (
        ("integer", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("pointer", ctypes.c_void_p),
    )


class _Any(ctypes.Structure):
    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("value", _Value),
    )


_ALLOC = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.restype = None
_libc.free.argtypes = (ctypes.c_void_p,)


def _alloc(_device: int, _id: int, size: int, _code: int, _bits: int) -> Any:
    return _libc.aligned_alloc(64, -(-max(size, 1) // 64) * 64)


def _free(_device: int, _id: int, pointer: Any) -> int:
    _libc.free(pointer)
    return 0


# Held for ever: kernels call them through a bare pointer.
_CALLBACKS = {"Alloc": _ALLOC(_alloc), "Free": _FREE(_free)}


class KernelError(RuntimeError):
    """A kernel refused its arguments."""


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A compact tensor in the memory of a CUDA device.

    Args:
        address: Of its first element.
        shape: Its dimensions.
        dtype: Its element type.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class BoundKernel:
    """A kernel with its arguments converted; calling it runs the kernel and nothing else.

    Args:
        library: The loaded library, for its error text.
        function: The packed function.
        args: Arrays (C-contiguous, not copied), device tensors, integers and floats, in order.
    """

    def __init__(self, library: Any, function: Any, args: tuple[Any, ...]) -> None:
        self._library, self._function, self._count = library, function, len(args)
        self._keep: list[Any] = []
        self._args = (_Any * len(args))(*(self._convert(a) for a in args))
        self._result = _Any()

    def _convert(self, value: Any) -> _Any:
        if isinstance(value, int | np.integer):
            return _Any(_INT, 0, _Value(integer=int(value)))
        if isinstance(value, float | np.floating):
            return _Any(_FLOAT, 0, _Value(number=float(value)))
        return _Any(_TENSOR, 0, _Value(pointer=ctypes.addressof(self._tensor(value))))

    def _tensor(self, given: NDArray[Any] | DeviceTensor) -> _Tensor:
        if isinstance(given, DeviceTensor):
            data, device = given.address, _CUDA
        elif not given.flags.c_contiguous:
            raise ValueError("kernels take C-contiguous arrays")
        else:
            data, device = given.ctypes.data, _CPU
        rank = len(given.shape)
        shape = (ctypes.c_int64 * rank)(*given.shape)
        bfloat = given.dtype.name == "bfloat16"  # of a package that adds it to NumPy
        code = _BFLOAT if bfloat else _TYPE_CODES[given.dtype.kind]
        bits = given.dtype.itemsize * 8
        tensor = _Tensor(data, device, 0, rank, code, bits, 1, shape, None, 0)
        self._keep += [given, shape, tensor]
        return tensor

    def __call__(self) -> None:
        """Run the kernel.

        Raises:
            KernelError: The kernel refused its arguments.
        """
        if self._function(None, self._args, self._count, ctypes.byref(self._result)):
            raise KernelError(self._library.pitc_kernel_last_error().decode(errors="replace"))


class KernelLibrary:
    """A kernel library loaded into this process.

    Args:
        path: The shared object that `build_kernels` wrote.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path.resolve()))
        self._library.pitc_kernel_last_error.restype = ctypes.c_char_p
        for name, callback in _CALLBACKS.items():
            pointer = f"__TVMBackend{name}Workspace"
            if hasattr(self._library, pointer):
                slot = ctypes.c_void_p.in_dll(self._library, pointer)
                slot.value = ctypes.cast(callback, ctypes.c_void_p).value

    def bind(self, symbol: str, *args: Any) -> BoundKernel:
        """Bind a kernel (symbol with level) to its arguments."""
        function = getattr(self._library, f"__tvm_ffi_{symbol}")
        function.restype = ctypes.c_int
        kinds = (ctypes.c_void_p, ctypes.POINTER(_Any), ctypes.c_int32, ctypes.POINTER(_Any))
        function.argtypes = kinds
        return BoundKernel(self._library, function, args)

    def call(self, symbol: str, *args: Any) -> None:
        """Run a kernel once."""
        self.bind(symbol, *args)()
