"""A library with tensors on a GPU that is not there. It has a stream of its own, which waits for no
other and for which no other waits.
"""

import ctypes
from typing import Any

import numpy as np

from tests.lent import CUDA, Lent
from tests.runtime_support import Array

NON_BLOCKING = 1


class Library:
    """A library that has tensors on a GPU.

    Args:
        number: Of the GPU.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self._do("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)

    def _do(self, name: str, *arguments: Any) -> None:
        before = ctypes.c_void_p()
        self.driver.cuCtxGetCurrent(ctypes.byref(before))
        self.driver.cuCtxSetCurrent(self.context)
        result = getattr(self.driver, name)(*arguments)
        self.driver.cuCtxSetCurrent(before)
        assert result == 0, (name, result)

    def put(self, array: Array, *, kind: int = CUDA, **other: Any) -> Lent:
        """An array as a tensor, whose elements are on their way."""
        at = ctypes.c_uint64()
        if array.size:
            self._do("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(array.nbytes))
            source, count = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            self._do("cuMemcpyHtoDAsync_v2", at, source, count, self.stream)
        place = (kind, self.number)
        made = Lent(at.value, str(array.dtype), array.shape, place=place, **other)
        made.ready = self._before_the_default_stream
        return made

    def _before_the_default_stream(self) -> None:
        event = ctypes.c_void_p()
        self._do("cuEventCreate", ctypes.byref(event), 0)
        self._do("cuEventRecord", event, self.stream)
        self._do("cuStreamWaitEvent", None, event, 0)

    def get(self, value: Any) -> Array:
        """What a value holds, whoever has still work to do."""
        got = np.empty(value.shape(), np.float32)
        if got.size:
            source, count = ctypes.c_uint64(value.data_ptr()), ctypes.c_size_t(got.nbytes)
            target = ctypes.c_void_p(got.ctypes.data)
            self._do("cuMemcpyDtoHAsync_v2", target, source, count, self.stream)
            self._do("cuStreamSynchronize", self.stream)
        return got
