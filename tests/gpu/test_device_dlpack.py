"""Tensors that another library lends on a GPU that is not there: they are read where they lie.

Device memory is closed to the host, and work waits in streams until somebody waits for it.
"""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import pitc
from pitc.runtime.library import device_of, make_cuda_session
from pitc.session import quiet_options, run_session
from tests.device_lender import Library
from tests.device_support import (
    NEIGHBOUR,
    Call,
    FakeDriver,
    devices,
    feeds,
    on_device,
    process,
    save_cuda,
)
from tests.gpu.test_device_session import neighbours, round_trip
from tests.lent import MANAGED, not_given_back
from tests.runtime_support import Array

LEGACY = 1
"""The default stream, in the words of `__dlpack__`."""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> Iterator[Call]:
    with process(devices=2) as call:
        yield call


def _expected(given: dict[str, Array]) -> tuple[Array, Array]:
    live = given["live"]
    return given["x"][live], np.where(live[..., None], given["x"], 0)


def _copies(counts: dict[str, int]) -> tuple[int, int, int]:
    return counts["copies_up"], counts["copies_down"], counts["copies_across"]


def _no_copies(folder: Path) -> None:
    driver, library = FakeDriver(), Library()
    run = make_cuda_session(save_cuda(folder, round_trip()))
    assert device_of(run) == 0
    given = feeds()
    packed, y = _expected(given)
    x = library.put(given["x"])
    driver.settled("bytes")
    run_session(run, {**given, "x": x}, on_device=True)  # the list of the mask goes up, once
    for put, down in ((x, 0), (library.put(given["x"], kind=MANAGED, offset=8), 0)):
        driver.settled("bytes")
        with driver.counted() as counts:
            values = run_session(run, {**given, "x": put}, on_device=True)
            assert _copies({n: c + driver.count(n) for n, c in counts.items()}) == (0, down, 0)
        assert set(values) == {"packed", "y"}
        assert np.array_equal(library.get(values["packed"]), packed)
        assert np.array_equal(library.get(values["y"]), y)
        assert put.streams[-1] == LEGACY
    with driver.counted() as counts:
        got = run_session(run, {**given, "x": x})
    assert _copies(counts) == (0, 2, 0) and counts["launches"] == 2
    assert np.array_equal(got["packed"], packed) and np.array_equal(got["y"], y)
    with driver.counted() as counts:
        value = run_session(run, {**given, "x": x}, ["y"], on_device=True)["y"]
        again = run_session(run, {**given, "x": value}, ["packed"], on_device=True)["packed"]
    assert _copies(counts) == (0, 0, 0) and counts["launches"] >= 3
    assert np.array_equal(library.get(again), packed)
    with driver.counted() as counts:  # an array goes up
        again = run_session(run, given, ["y"], on_device=True)["y"]
    assert _copies(counts) == (1, 0, 0) and np.array_equal(library.get(again), y)
    assert not_given_back() == 0


def test_nothing_is_copied(gpu: Call, tmp_path: Path) -> None:
    gpu(_no_copies, tmp_path)


def _masks(folder: Path) -> None:
    """The mask is bool, and read on the host."""
    driver, library = FakeDriver(), Library()
    run = make_cuda_session(save_cuda(folder, round_trip()))
    for seed, make in enumerate((library.put, on_device, np.asarray)):
        given = feeds(seed)
        lent = {"live": make(given["live"]), "x": library.put(given["x"])}
        got = run_session(run, lent)
        assert all(map(np.array_equal, got.values(), _expected(given)))
        with driver.counted() as counts:
            run_session(run, lent, ["y"], on_device=True)
        assert _copies(counts) == (0, int(make is not np.asarray), 0)
    assert not_given_back() == 0


def test_masks_on_the_device(gpu: Call, tmp_path: Path) -> None:
    gpu(_masks, tmp_path)


def _types(folder: Path) -> None:
    library = Library()
    kind = TensorProto.BFLOAT16
    run = make_cuda_session(save_cuda(folder, round_trip(word=1, kind=kind), "half.onnx"))
    given = feeds()
    given["x"] = given["x"].astype(BFLOAT16)
    for x in (library.put(given["x"]), given["x"]):
        got = run_session(run, {**given, "x": x})
        assert got["y"].dtype == BFLOAT16
        assert all(map(np.array_equal, got.values(), _expected(given)))
    run = make_cuda_session(save_cuda(folder, round_trip()))
    for shape in ((0, 5, 4), (3, 0, 4), (3, 5, 0), (1, 1, 1)):
        given = {"live": np.ones(shape[:2], bool), "x": np.ones(shape, np.float32)}
        values = run_session(run, {**given, "x": library.put(given["x"])}, on_device=True)
        for value, want in zip(values.values(), _expected(given), strict=True):
            assert np.array_equal(library.get(value), want)
    assert not_given_back() == 0


def test_types_and_empty_tensors(gpu: Call, tmp_path: Path) -> None:
    gpu(_types, tmp_path)


def _order(folder: Path) -> None:
    """The neighbour's stream does not follow the default stream."""
    library, given = Library(), feeds()
    options = quiet_options()
    options.add_provider_for_devices(devices(NEIGHBOUR)[:1], {})
    run = make_cuda_session(save_cuda(folder, neighbours()), options)
    doubled = 2 * given["x"]
    want = np.where(given["live"][..., None], np.maximum(doubled[..., ::-1], 0), 0) + doubled
    for _ in range(3):
        inputs = {**given, "x": library.put(given["x"])}
        assert np.array_equal(library.get(run_session(run, inputs, on_device=True)["y"]), want)
        inputs = {**given, "x": library.put(given["x"])}
        assert np.array_equal(run_session(run, inputs)["y"], want)


def test_what_is_on_its_way_is_waited_for(gpu: Call, tmp_path: Path) -> None:
    gpu(_order, tmp_path)


def _message(run: Any, inputs: dict[str, Any]) -> str:
    try:
        run_session(run, inputs)
    except pitc.UsageError as error:
        return str(error)
    raise AssertionError("it ran")


def _two_devices(folder: Path) -> None:
    given = feeds()
    path = save_cuda(folder, round_trip())
    runs = [make_cuda_session(path, device=number) for number in (0, 1)]
    libraries = [Library(number) for number in (0, 1)]
    driver = FakeDriver()
    for number, run in enumerate(runs):
        assert device_of(run) == number
        inputs = {**given, "x": libraries[number].put(given["x"])}
        run_session(run, inputs)
        with driver.counted() as counts:
            values = run_session(run, inputs, on_device=True)
        assert _copies(counts) == (0, 0, 0)
        for value, want in zip(values.values(), _expected(given), strict=True):
            assert np.array_equal(libraries[number].get(value), want)
        other = 1 - number
        text = f"input 'x': it is on cuda:{other}, and the session runs on cuda:{number}"
        foreign = libraries[other].put(given["x"])
        assert _message(run, {**given, "x": foreign}) == text and foreign.streams == []
        if number == 1:
            assert _message(run, {**given, "x": on_device(given["x"])}) == text
    text = "input 'x': it is not contiguous (make it contiguous)"
    gaps = libraries[0].put(given["x"], strides=(40, 1, 5))
    assert _message(runs[0], {**given, "x": gaps}) == text
    text = "input 'x': expected float32, got float64"
    assert _message(runs[0], {**given, "x": libraries[0].put(given["x"].astype(float))}) == text
    assert not_given_back() == 0


def test_other_devices_are_told(gpu: Call, tmp_path: Path) -> None:
    gpu(_two_devices, tmp_path)


def _threads(folder: Path) -> None:
    run = make_cuda_session(save_cuda(folder, round_trip()))
    given = [feeds(seed) for seed in range(8)]

    def work(first: int) -> int:
        library, wrong = Library(), 0
        for k in range(16):
            one = given[(first + k) % len(given)]
            want = _expected(one)[1]
            inputs = {**one, "x": library.put(one["x"])}
            got = run_session(run, inputs, on_device=True)["y"]
            wrong += not np.array_equal(library.get(got), want)
            wrong += not np.array_equal(run_session(run, inputs)["y"], want)
            wrong += not np.array_equal(run_session(run, one)["y"], want)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0
    assert not_given_back() == 0


def test_many_threads(gpu: Call, tmp_path: Path) -> None:
    gpu(_threads, tmp_path)


def _given_back(folder: Path) -> None:
    """Outputs outlive their session, and what a consumer keeps outlives them."""
    driver, library, given = FakeDriver(), Library(), feeds()
    x = library.put(given["x"])
    devices(NEIGHBOUR)
    on_device(np.zeros(1))
    gc.collect()
    before = driver.settled("bytes")
    run = make_cuda_session(save_cuda(folder, round_trip()))
    values = run_session(run, {**given, "x": x}, on_device=True)
    del run
    gc.collect()
    assert all(map(np.array_equal, map(library.get, values.values()), _expected(given)))
    held = sum(value.tensor_size_in_bytes() for value in values.values())
    capsules = [value._get_c_value().__dlpack__() for value in values.values()]
    del values
    gc.collect()
    assert driver.settled("bytes") - before == held
    capsules.clear()
    assert driver.settled("bytes") == before


def test_everything_is_given_back(gpu: Call, tmp_path: Path) -> None:
    gpu(_given_back, tmp_path)


def _sequences(folder: Path) -> None:
    nodes = [helper.make_node("SplitToSequence", ["y"], ["s"])]
    made = round_trip()
    made.graph.node.extend(nodes)
    made.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    run = make_cuda_session(save_cuda(folder, made))
    given = feeds()
    inputs = {**given, "x": Library().put(given["x"])}
    got = run_session(run, inputs, ["s"])["s"]
    assert isinstance(got, list) and np.array_equal(np.concatenate(got), _expected(given)[1])


def test_sequences_come_to_the_host(gpu: Call, tmp_path: Path) -> None:
    gpu(_sequences, tmp_path)


def _lost(folder: Path) -> None:
    run = make_cuda_session(save_cuda(folder, round_trip()))
    library, given = Library(), feeds()
    inputs = {**given, "x": library.put(given["x"])}
    run_session(run, inputs)
    FakeDriver().set("failing_launch", 2)
    text = "an illegal memory access was encountered"
    with pytest.raises(pitc.UsageError, match=text):
        run_session(run, inputs)
    inputs["x"].ready = lambda: None  # that library would have failed as well
    with pytest.raises(pitc.MachineError, match=f"CUDA device 0: {text}"):
        run_session(run, inputs)


def test_a_lost_device(tmp_path: Path) -> None:
    with process() as call:
        call(_lost, tmp_path)
