"""Processes that see a GPU which is not there, and models for it.

Once a process has looked for a driver it has that one for good: a test's work is done in a process
of its own, by functions of its module.
"""

import ctypes
import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pitc.ir.plan import CUDA_EP_NAME, EP_NAME
from tests.plan_text import Plan
from tests.runtime_support import (
    BOOL,
    COORDS,
    DETECT,
    OFFSETS,
    ROWS,
    Array,
    Value,
    built,
    kernel_plan,
    make_model,
    pit_node,
    save,
)

VENDOR = 0x10DE
"""NVIDIA's number."""

NEIGHBOUR = "FakeCudaExecutionProvider"

Call = Callable[..., Any]


def fake_folder() -> Path:
    """Where the fake driver is, its kernels and its other provider."""
    return built() / "tests" / "fake_cuda"


@contextmanager
def process(*, driver: bool = True, **knobs: int) -> Iterator[Call]:
    """A process with a driver; the context value calls a function in it.

    Args:
        driver: Whether there is one.
        knobs: See `tests/fake_cuda/fake_driver.cc`.
    """
    context = multiprocessing.get_context("spawn")
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, context) as pool:
        patch.setenv("PITC_EP_LIBRARY", str(built() / "libpitc_ort_ep.so"))
        if driver:
            before = os.environ.get("LD_LIBRARY_PATH", "")
            patch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(fake_folder()), before]))
        for name, value in knobs.items():
            patch.setenv(f"FAKE_CUDA_{name.upper()}", str(value))
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


class FakeDriver:
    """What the driver of this process has counted, and its knobs."""

    NAMES = (
        *("launches", "copies_up", "copies_down", "copies_across", "fills", "waits"),
        *("allocations", "bytes", "contexts", "streams", "modules", "compiled"),
    )

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.fake_cuda_count.restype = ctypes.c_int64
        self._library.fake_cuda_launched.restype = ctypes.c_char_p

    def count(self, name: str) -> int:
        return int(self._library.fake_cuda_count(name.encode()))

    def set(self, knob: str, value: int) -> None:
        self._library.fake_cuda_set(knob.encode(), ctypes.c_int64(value))

    def launched(self) -> str:
        """The name of the last kernel that was launched."""
        return str(self._library.fake_cuda_launched().decode())

    def settled(self, name: str) -> int:
        """The same when all is done that waits in streams."""
        self._library.fake_cuda_settle()
        return self.count(name)

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """The context value holds, in the end, what has been done since the beginning."""
        counts = {name: -self.count(name) for name in self.NAMES}
        yield counts
        for name in self.NAMES:
            counts[name] += self.count(name)


def devices(name: str) -> list[Any]:
    """The devices of a provider, whose library is registered if it has to be."""
    from pitc.runtime.library import cuda_devices, register_ep

    if name == CUDA_EP_NAME:
        return list(cuda_devices())
    register_ep()
    found = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
    if name == NEIGHBOUR and not found:
        path = fake_folder() / "fake_neighbour.so"
        onnxruntime.register_execution_provider_library("neighbour", str(path))
        return devices(name)
    return found


def session(
    path: Path,
    providers: Sequence[str] = (CUDA_EP_NAME, EP_NAME),
    *,
    number: int = 0,
    trace: Path | None = None,
    given: Mapping[str, str] | None = None,
    optimise: bool = True,
) -> Any:
    """A session whose providers are asked in that order.

    Args:
        path: The model.
        providers: Their names.
        number: Of the CUDA device.
        trace: The CUDA provider's `trace`.
        given: Other options of the CUDA provider.
        optimise: Whether ONNX Runtime may change the graph.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in providers:
        cuda = name == CUDA_EP_NAME
        told = {"trace": str(trace)} if trace else {}
        device = devices(name)[number if cuda else 0]
        options.add_provider_for_devices([device], {**told, **(given or {})} if cuda else {})
    return onnxruntime.InferenceSession(str(path), options, enable_fallback=0)


def cuda_node(name: str, plan: Plan | str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A PIT node for GPUs."""
    return pit_node(name, plan, inputs, outputs, source=CUDA_EP_NAME)


def detect() -> Any:
    """The node that makes `rows` and `coords` of `live`, on the CPU."""
    return pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"])


def pack(x: str, out: str, dims: str = "c0,c1,r", word: int = 4) -> Any:
    return cuda_node(f"pack_{x}", kernel_plan("pack", f"pack_b{word}", dims=dims), *_ends(x, out))


def unpack(x: str, out: str, dims: str = "c0,c1,r", word: int = 4) -> Any:
    plan = kernel_plan("unpack", f"unpack_b{word}", dims=dims)
    return cuda_node(f"unpack_{x}", plan, *_ends(x, out))


def _ends(x: str, out: str) -> tuple[list[str], list[str]]:
    return [x, "rows", "coords", "live"], [out]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    values: Sequence[Value] = (),
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model with a mask `live` and its lists."""
    mask: Value = ("live", BOOL, ["b", "s"])
    lists = (ROWS, COORDS, OFFSETS)
    return make_model([detect(), *nodes], [mask, *inputs], outputs, [*lists, *values], constants)


def save_cuda(folder: Path, made: onnx.ModelProto, name: str = "model.onnx") -> Path:
    """Write a model with kernels for GPUs beside it; those of the CPU are not among them."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "kernels.so").exists():
        shutil.copy(fake_folder() / "cuda_reference_kernels.so", folder / "kernels.so")
    return save(folder, made, name)


def told(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def on_device(array: Array, memory: int = 0) -> Any:
    """An array as a value on the first device; memory 5 is the host's, for copies."""
    value = _native().OrtValue.ortvalue_from_numpy(array, _native().OrtDevice(1, memory, VENDOR, 0))
    return onnxruntime.OrtValue(value)


def bind_on_device(binding: Any, name: str) -> None:
    """Leave an output where it is computed."""
    binding._iobinding.bind_output(name, _native().OrtDevice(1, 0, VENDOR, 0))


def _native() -> Any:
    """What ONNX Runtime's Python package is made of: older releases name no vendor elsewhere."""
    return importlib.import_module("onnxruntime.capi._pybind_state")


def bind_at(binding: Any, name: str, address: int, array: Array) -> None:
    """Read an input of an array's type and shape from an address on the first device."""
    device = _native().OrtDevice(1, 0, VENDOR, 0)
    binding._iobinding.bind_input(name, device, array.dtype, array.shape, address)


def feeds(seed: int = 0, width: int = 8, dtype: Any = np.float32) -> dict[str, Array]:
    """A mask and a tensor to pack."""
    rng = np.random.default_rng(seed)
    live = rng.random((3, 5)) < 0.6
    return {"live": live, "x": rng.integers(-99, 99, (3, 5, width)).astype(dtype)}


def failure(call: Call, *arguments: Any) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(Exception) as caught:
        call(*arguments)
    return str(caught.value)
