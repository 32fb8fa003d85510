"""Tensors that others lend: by DLPack, as an `onnxruntime.OrtValue` or as an array.

A tensor is an address, a type and a shape here. NumPy can neither look at memory of a device nor
tell what bfloat16 is, and ONNX Runtime takes bool by DLPack from 1.32 on only; so capsules are read
here. They are not consumed: who drops one gives the memory back.

Source: the DLPack 0.8 ABI, and the Python array API standard's `__dlpack__`.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from pitc.errors import MachineError, UsageError

#: NumPy's name, or that of ml_dtypes: ONNX's number and name, DLPack's code and bits.
TYPES: dict[str, tuple[int, str, tuple[int, int]]] = {
    "float32": (1, "float", (2, 32)),
    "uint8": (2, "uint8", (1, 8)),
    "int8": (3, "int8", (0, 8)),
    "uint16": (4, "uint16", (1, 16)),
    "int16": (5, "int16", (0, 16)),
    "int32": (6, "int32", (0, 32)),
    "int64": (7, "int64", (0, 64)),
    "bool": (9, "bool", (6, 8)),
    "float16": (10, "float16", (2, 16)),
    "float64": (11, "double", (2, 64)),
    "uint32": (12, "uint32", (1, 32)),
    "uint64": (13, "uint64", (1, 64)),
    "bfloat16": (16, "bfloat16", (4, 16)),
    "float8_e4m3fn": (17, "float8e4m3fn", (10, 8)),
    "float8_e4m3fnuz": (18, "float8e4m3fnuz", (11, 8)),
    "float8_e5m2": (19, "float8e5m2", (12, 8)),
    "float8_e5m2fnuz": (20, "float8e5m2fnuz", (13, 8)),
}
DTYPES = {f"tensor({onnx})": name for name, (_, onnx, _) in TYPES.items()}
"""ONNX Runtime's name of a type: NumPy's."""
LACKING = frozenset(name for name in TYPES if name.startswith(("bfloat", "float8")))
"""What NumPy lacks."""
BFLOAT16 = "tensor(bfloat16)"
"""The only one of which ONNX Runtime makes no array at all."""
_BY_DLPACK = {code: name for name, (_, _, code) in TYPES.items()}

_ON_HOST, _ON_CUDA = (1, 3), (2, 13)  # pinned memory and managed memory among them
_DEFAULT_STREAM = 1  # the legacy one, by the array API standard
_address_of: Callable[[Any, bytes], int] = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)(("PyCapsule_GetPointer", ctypes.pythonapi))


@dataclass(frozen=True)
class Tensor:
    """Elements behind one another, in memory of somebody else.

    Args:
        address: Of the first one.
        dtype: Their type, by NumPy's or ml_dtypes' name.
        shape: Extents.
        device: Number of the CUDA device, or None: the host.
        owner: Keeps the memory.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: int | None
    owner: Any


class Head(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


def head_of(capsule: Any) -> Head:
    """What a capsule says that nobody has consumed."""
    return Head.from_address(_address_of(capsule, b"dltensor"))


def cuda_device(producer: Any) -> int | None:
    """The number of the CUDA device that holds a tensor with `__dlpack__`; None: the host.

    Raises:
        UsageError: It is on a device of another kind.
    """
    try:
        kind, number = map(int, producer.__dlpack_device__())
    except Exception as error:  # whatever the producer's library raises
        raise UsageError(_said(error)) from error
    if kind not in (*_ON_HOST, *_ON_CUDA):
        text = f"it is on a device of DLPack's kind {kind}"
        raise UsageError(text, hint="tensors are read on the host and on CUDA devices")
    return number if kind in _ON_CUDA else None


def of_dlpack(producer: Any) -> "Tensor | np.ndarray":
    """What an object with `__dlpack__` lends, as an array if NumPy can hold it.

    Of a CUDA device, its elements are there once the legacy default stream has been waited for.

    Raises:
        UsageError: The producer does not lend it, its type is not ONNX's, or its elements do not
            lie behind one another.
    """
    device = cuda_device(producer)
    if device is None:  # fails on types that NumPy lacks, and on what the producer says again below
        with suppress(BufferError, RuntimeError, TypeError, ValueError):
            return np.from_dlpack(producer)
    try:
        capsule = producer.__dlpack__(stream=None if device is None else _DEFAULT_STREAM)
        head = head_of(capsule)
    except Exception as error:
        raise UsageError(_said(error)) from error
    dtype = _BY_DLPACK.get((head.code, head.bits)) if head.lanes == 1 else None
    if dtype is None:
        raise UsageError(f"DLPack type {head.code} of {head.bits} bits is none of an ONNX model")
    shape = tuple(head.shape[: head.rank])
    if head.strides and not _is_contiguous(shape, head.strides[: head.rank]):
        raise UsageError("it is not contiguous", hint="make it contiguous")
    address = (head.data or 0) + head.offset
    return Tensor(address, dtype, shape, device, (producer, capsule))


def of_array(array: np.ndarray) -> Tensor:
    """An array; one whose elements do not lie behind one another is copied.

    Raises:
        UsageError: Its type has no fixed size, or another order of bytes than the machine's.
    """
    if str(array.dtype) not in TYPES:
        raise UsageError(f"{array.dtype} cannot be lent to ONNX Runtime")
    whole = array if array.flags.c_contiguous else array.copy()
    return Tensor(whole.ctypes.data, str(whole.dtype), whole.shape, None, whole)


def of_value(value: Any, device: int | None) -> Tensor:
    """An `onnxruntime.OrtValue` on a device.

    Raises:
        UsageError: It is no tensor, or one of a type without a fixed size.
    """
    dtype = DTYPES.get(value.data_type())
    if dtype is None:
        raise UsageError(f"{value.data_type()} cannot be lent to ONNX Runtime")
    return Tensor(value.data_ptr(), dtype, tuple(value.shape()), device, value)


def bfloat16_array(value: Any) -> np.ndarray:
    """An `onnxruntime.OrtValue` of bfloat16 on the host as an array of ml_dtypes.

    Returns:
        A view, which keeps the value.

    Raises:
        MachineError: ml_dtypes is not installed; it comes with onnx, which runs need not have.
    """
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        hint = "pip install ml_dtypes, or ask for outputs with on_device=True"
        raise MachineError("arrays of bfloat16 are those of ml_dtypes", hint=hint) from error

    place = {"data": (value.data_ptr(), False), "shape": tuple(value.shape())}
    interface = {**place, "typestr": "<u2", "version": 3}
    words = SimpleNamespace(value=value, __array_interface__=interface)
    return np.asarray(words).view(ml_dtypes.bfloat16)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return 0 in shape
        expected *= extent
    return True
