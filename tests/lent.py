"""A library that lends tensors by DLPack, and counts what has not been given back."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from pitc.runtime.dlpack import TYPES, head_of

CPU, CUDA, PINNED, METAL, MANAGED = 1, 2, 3, 8, 13
OTHER = {"complex64": (5, 64)}
"""Types that ONNX Runtime is not given."""


class Lent:
    """A tensor that is lent: NumPy's capsule, changed to say what NumPy cannot.

    Args:
        address: Of its first element.
        dtype: NumPy's or ml_dtypes' name.
        shape: Its extents.
        place: Kind and number of the device.
        strides: In elements; None: DLPack's null.
        offset: From what DLPack calls its data to the first element, in bytes.
        owner: Keeps the memory.
    """

    out: ClassVar[int] = 0
    """How many have been lent and not given back."""

    def __init__(
        self,
        address: int,
        dtype: str,
        shape: tuple[int, ...],
        *,
        place: tuple[int, int] = (CPU, 0),
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
        owner: Any = None,
    ) -> None:
        self.address, self.shape, self.place = address, shape, place
        self.code, self.bits = OTHER.get(dtype) or TYPES[dtype][2]
        self.strides, self.offset, self.owner = strides, offset, owner
        self.streams: list[Any] = []
        self.ready: Callable[[], None] = lambda: None
        """Called when it is lent."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        self.ready()
        base = np.empty(1, f"u{self.bits // 8}")
        steps = [base.itemsize * stride for stride in self.strides or self.shape]
        base = np.lib.stride_tricks.as_strided(base, self.shape, steps)
        capsule = base.__dlpack__()
        head = head_of(capsule)
        head.kind, head.device = self.place
        head.code, head.bits = self.code, self.bits
        head.data, head.offset = self.address - self.offset or None, self.offset
        if self.strides is None:
            head.strides = None
        Lent.out += 1
        weakref.finalize(base, self._given_back)
        return capsule

    def _given_back(self) -> None:
        Lent.out -= 1


def lent(array: np.ndarray, **other: Any) -> Lent:
    """An array, lent as it lies."""
    strides = tuple(step // array.itemsize for step in array.strides)
    given = {"strides": strides, "owner": array, **other}
    return Lent(array.ctypes.data, str(array.dtype), array.shape, **given)


def not_given_back() -> int:
    """How many tensors are still lent."""
    if Lent.out:  # perhaps an exception's frames have it
        gc.collect()
    return Lent.out
