"""Tensors on the device that live as long as the run."""

from typing import Any

import numpy as np

from benchmarks.gpu.driver import Array, Device, contiguous
from pitc.codegen.call import DeviceTensor


def upload(device: Device, array: Array) -> DeviceTensor:
    """A copy of an array on the device."""
    array = contiguous(array)
    made = empty(device, array.shape, array.dtype)
    device.upload(made.address, array)
    return made


def empty(device: Device, shape: tuple[int, ...], dtype: Any) -> DeviceTensor:
    """Memory that nobody has written; its bytes are no number that is expected."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    made = DeviceTensor(device.take(size), tuple(shape), dtype)
    device.fill(made.address, 0xFF, size)
    return made


def download(device: Device, tensor: DeviceTensor) -> Array:
    """What it holds when the stream is done."""
    array = np.empty(tensor.shape, tensor.dtype)
    device.download(array, tensor.address)
    return array


def part(tensor: DeviceTensor, *shape: int) -> DeviceTensor:
    """The first elements, seen in another shape."""
    return DeviceTensor(tensor.address, shape, tensor.dtype)


def release(device: Device, *tensors: DeviceTensor) -> None:
    """Give memory back."""
    for tensor in tensors:
        device.give_back(tensor.address)
