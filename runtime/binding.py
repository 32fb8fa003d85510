"""Inputs and outputs of sessions that stay where they are: what is not NumPy's, by IO bindings."""

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from pitc.errors import MachineError, UsageError
from pitc.runtime.dlpack import (
    BFLOAT16,
    LACKING,
    TYPES,
    Tensor,
    bfloat16_array,
    cuda_device,
    of_array,
    of_dlpack,
    of_value,
)
from pitc.runtime.library import device_of

_NVIDIA = 0x10DE


def take(value: Any, session: Any) -> Tensor | np.ndarray:
    """What is given for an input, as an array, or as a tensor where NumPy cannot hold it.

    Args:
        value: An array, an `onnxruntime.OrtValue`, an object with `__dlpack__`: none is copied; or
            anything else of which NumPy makes an array.
        session: The session that is to read it.

    Raises:
        UsageError: It is on another device than the session, or is not lent.
    """
    if isinstance(value, np.ndarray):
        return of_array(value) if str(value.dtype) in LACKING else value
    import onnxruntime

    is_value = isinstance(value, onnxruntime.OrtValue)
    if not is_value and not hasattr(value, "__dlpack_device__"):
        return np.asarray(value)
    # older releases have the protocol on the inner object only
    where = cuda_device(value._get_c_value() if is_value else value)
    if where is not None and where != (own := device_of(session)):
        runs = "the CPU" if own is None else f"cuda:{own}"
        raise UsageError(f"it is on cuda:{where}, and the session runs on {runs}")
    return of_value(value, where) if is_value else of_dlpack(value)


def run_bound(
    session: Any,
    outputs: Mapping[str, str],
    feeds: Mapping[str, Any],
    *,
    on_device: bool,
) -> dict[str, Any]:
    """Run a session once; inputs are read where they lie.

    Args:
        session: An `onnxruntime.InferenceSession`; any number of threads may use it.
        outputs: Names and types of the outputs to compute.
        feeds: Tensors and arrays by input name.
        on_device: Leave outputs on the session's device.

    Returns:
        By output name: values of ONNX Runtime if `on_device`, else arrays; sequences are lists.

    Raises:
        UsageError: An input or output that cannot be bound.
        MachineError: The device is lost.
    """
    binding = session.io_binding()
    native = binding._iobinding  # its public face names no vendor before onnxruntime 1.32
    kept = [_tensor(name, feed) for name, feed in feeds.items()]
    for name, t in zip(feeds, kept, strict=True):
        native.bind_input(name, _place(t.device), TYPES[t.dtype][0], t.shape, t.address)
    lacking = [name for name, kind in outputs.items() if kind == BFLOAT16]
    place = _place(device_of(session) if on_device else None)
    by_value = on_device or bool(lacking)
    for name, kind in outputs.items():
        if by_value and not kind.startswith("tensor("):
            what = "on a device" if on_device else f"beside {lacking[0]!r}"
            raise UsageError(f"output {name!r} is {kind}, which cannot be returned {what}")
        if by_value and name in feeds:  # it would be the lender's memory, and not keep it
            raise UsageError(f"output {name!r} is an input", hint="leave it out of the outputs")
        native.bind_output(name, place)
    for number in {t.device for t in kept if t.device is not None}:
        _wait_for_default_stream(number)
    session.run_with_iobinding(binding)
    if not by_value:
        return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))
    values = dict(zip(outputs, binding.get_outputs(), strict=True))
    for value in values.values():  # those of onnxruntime 1.23 do not keep their session
        value._keeps = session
    if on_device:
        return values
    return {n: bfloat16_array(v) if n in lacking else v.numpy() for n, v in values.items()}


def _tensor(name: str, feed: Any) -> Tensor:
    """What is given for an input, as a tensor."""
    if isinstance(feed, Tensor):
        return feed
    if isinstance(feed, np.ndarray):
        try:
            return of_array(feed)
        except UsageError as error:
            raise UsageError(f"input {name!r}: {error.message}", hint=error.hint) from error
    text = f"input {name!r}: {type(feed).__name__} cannot be given to a run that copies nothing"
    raise UsageError(text, hint="beside tensors of a device or bfloat16, all inputs are tensors")


@functools.cache
def _place(device: int | None) -> Any:
    """Where a tensor lies, in ONNX Runtime's words."""
    from onnxruntime import OrtDevice

    if device is None:
        return OrtDevice.make("cpu", 0)._get_c_device()
    return OrtDevice.make("gpu", device, _NVIDIA)._get_c_device()


def _wait_for_default_stream(device: int) -> None:
    """Wait until all is done that the legacy default stream of a CUDA device was told.

    ONNX Runtime's own streams do not follow it.

    Raises:
        MachineError: The driver says that something went wrong.
    """
    driver, before = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(before)), device)
    _check(driver.cuCtxSetCurrent(ctypes.c_void_p(_context(device))), device)
    try:
        _check(driver.cuStreamSynchronize(None), device)
    finally:
        driver.cuCtxSetCurrent(before)


@functools.cache
def _context(device: int) -> int | None:
    """The primary context of a CUDA device, which stays alive from now on."""
    driver, number, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuInit(0), device)
    _check(driver.cuDeviceGet(ctypes.byref(number), device), device)
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), device)
    return context.value


def _check(result: int, device: int) -> None:
    if result:
        text = ctypes.c_char_p()
        ctypes.CDLL("libcuda.so.1").cuGetErrorString(result, ctypes.byref(text))
        said = (text.value or b"").decode(errors="replace") or f"CUDA error {result}"
        raise MachineError(f"CUDA device {device}: {said}")
