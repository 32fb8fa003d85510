"""What goes wrong with a GPU is one clear error, and never a run on the CPU."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pitc.ir.plan import CUDA_EP_NAME, EP_NAME
from tests.device_support import (
    Call,
    FakeDriver,
    cuda_node,
    devices,
    failure,
    feeds,
    model,
    on_device,
    pack,
    process,
    save_cuda,
    session,
)
from tests.runtime_support import (
    BOOL,
    COORDS,
    DETECT,
    FLOAT,
    OFFSETS,
    ROWS,
    Value,
    built,
    detect_model,
    kernel_plan,
    make_model,
    save,
)

CUBE: Value = ("x", FLOAT, ["b", "s", "n"])
OUT: Value = ("y", FLOAT, None)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Call]:
    with process() as call:
        yield call


def packed(dims: str = "c0,c1,r") -> Any:
    return model([pack("x", "y", dims)], [CUBE], [OUT])


# ---- no driver, or none that serves


def _trouble(folder: Path) -> str:
    """Why there is no device; the provider of the CPU runs all the same."""
    run = session(save(folder, detect_model()), (EP_NAME,))
    assert run.run(None, {"live": np.ones((2, 3), bool)})[2].tolist() == [0, 3, 6]
    text = failure(devices, CUDA_EP_NAME)
    assert CUDA_EP_NAME not in [d.ep_name for d in onnxruntime.get_ep_devices()]
    # A model for GPUs does not load: nobody else takes its nodes.
    refused = failure(session, save_cuda(folder / "cuda", packed()), (EP_NAME,))
    assert "EPContext" in refused, refused
    return text


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"driver": False}, "no CUDA device: no NVIDIA driver: libcuda.so.1: cannot open"),
        (
            {"version": 11080},
            "no CUDA device: expected a driver for CUDA 12.0 or newer, got one for CUDA 11.8",
        ),
        (
            {"devices": 0},
            "no CUDA device: the NVIDIA driver has no device",
        ),
    ],
)
def test_no_driver_that_serves(tmp_path: Path, knobs: dict[str, Any], text: str) -> None:
    with process(**knobs) as call:
        assert text in call(_trouble, tmp_path)


def test_a_driver_without_functions(tmp_path: Path) -> None:
    source = tmp_path / "libcuda.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    command = [os.environ.get("CC") or "cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, str(source), "-o", str(tmp_path / "libcuda.so.1")], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        with process(driver=False) as call:
            text = call(failure, devices, CUDA_EP_NAME)
    wanted = "expected a driver for CUDA 12.0 or newer, got a libcuda.so.1 without "
    assert f"{wanted}cuDriverGetVersion (pitc doctor tells more; " in text


# ---- kernels


def _no_image(folder: Path) -> str:
    return failure(session, save_cuda(folder, packed()))


def test_no_code_for_the_device(tmp_path: Path) -> None:
    with process(arch=70) as call:
        text = call(_no_image, tmp_path)
    assert text.endswith(
        "pitc: node 'pack_x' (pack): expected code of kernel 'pack_b4_cuda' for CUDA device 0 "
        "(Fake GPU 0, sm_70), got sm_80, sm_90, PTX for sm_75; compile the model again for "
        "cuda:sm_70"
    )


def _other_libraries(folder: Path) -> None:
    path = save_cuda(folder / "a", packed())
    shutil.copy(built() / "tests" / "reference_kernels.so", folder / "a" / "kernels.so")
    text = failure(session, path)
    assert text.endswith("got one without pitc_cuda_kernels"), text
    # A build of another day may have the same names, and mean other arguments.
    path = save_cuda(folder / "b", packed())
    path.write_bytes(path.read_bytes().replace(b"identity=2/reference", b"identity=2/referencf"))
    text = failure(session, path)
    assert "expected kernels '2/referencf' in 'kernels.so', got '2/reference'" in text, text
    path = save_cuda(folder / "c", packed())
    library = folder / "c" / "kernels.so"
    library.write_bytes(library.read_bytes().replace(b"pack_b4_cuda", b"pack_b4_cudb"))
    text = failure(session, path)
    assert text.endswith(
        "expected kernel 'pack_b4_cuda' in 'kernels.so', got none; compile the model again for CUDA"
    ), text
    # What stands for machine code is damaged.
    path = save_cuda(folder / "d", packed())
    library = folder / "d" / "kernels.so"
    whole = library.read_bytes()
    image = (built() / "tests" / "fake_cuda" / "plain_kernels_90.so").read_bytes()
    library.write_bytes(whole.replace(image[:64], b"\0" * 64))
    text = failure(session, path)
    assert (
        "cannot load kernel 'pack_b4_cuda' (sm_90) on CUDA device 0 (Fake GPU 0, sm_90): "
        "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid); the driver "
        "is for CUDA 13.0, code of a newer toolkit needs a newer one"
    ) in text, text


def test_libraries_that_do_not_serve(gpu: Call, tmp_path: Path) -> None:
    gpu(_other_libraries, tmp_path)


# ---- nodes and their inputs


def _refused_nodes(folder: Path) -> None:
    values: list[Value] = [ROWS, COORDS, OFFSETS]
    node = cuda_node("d", DETECT, ["live"], ["rows", "coords", "offsets"])
    path = save_cuda(folder, make_model([node], [("live", BOOL, ["b", "s"])], values))
    text = failure(session, path)
    assert text.endswith(
        "pitc: node 'd' (EPContext): plan: expected op as one of pack, unpack, contract, "
        "attention, attention_grad, grouped, elementwise, region, got 'detect'"
    ), text
    short = cuda_node("s", kernel_plan("pack", "pack_b4", dims="c0,c1,r"), ["x", "rows"], ["y"])
    text = failure(session, save_cuda(folder, model([short], [CUBE], [OUT]), "short.onnx"))
    assert text.endswith("expected 4 inputs and 1 outputs, got 2 and 1"), text
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(folder / "out.onnx"))
    options.add_provider_for_devices(devices(CUDA_EP_NAME), {})
    options.add_provider_for_devices(devices(EP_NAME), {})
    text = failure(onnxruntime.InferenceSession, str(save_cuda(folder, packed())), options)
    assert "the model is compiled already" in text, text


def test_nodes_that_are_not_for_a_gpu(gpu: Call, tmp_path: Path) -> None:
    gpu(_refused_nodes, tmp_path)


def _wrong_inputs(folder: Path) -> None:
    run = session(save_cuda(folder, packed()))
    given = feeds()
    other = failure(run.run, None, {**given, "x": given["x"][:, :4]})
    assert other.endswith(
        "pitc: node 'pack_x' (pack): expected x with extent 5 (that of the mask) in dimension 1, "
        "got float32 [3, 4, 8]: a sequence is longer than a table of the model, or inputs are of "
        "different sizes"
    ), other
    assert np.array_equal(run.run(None, given)[0], given["x"][given["live"]])
    odd = model([pack("x", "y", word=4)], [("x", 10, None)], [("y", 10, None)])  # float16
    run = session(save_cuda(folder, odd, "odd.onnx"))
    text = failure(run.run, None, {**given, "x": given["x"][:, :, :3].astype(np.float16)})
    assert text.endswith("expected rows of whole 4-byte words, got 6 bytes"), text


def test_wrong_inputs(gpu: Call, tmp_path: Path) -> None:
    gpu(_wrong_inputs, tmp_path)


# ---- devices


def _no_memory(folder: Path) -> None:
    """It is told, and the session goes on when there is some again."""
    driver = FakeDriver()
    run = session(save_cuda(folder, packed()))
    given = feeds()
    want = given["x"][given["live"]]
    assert np.array_equal(run.run(None, given)[0], want)
    used = driver.settled("bytes")
    # There is room for x, or for nothing.
    driver.set("memory", used + given["x"].nbytes + 100)
    text = failure(run.run, None, given)
    assert text.endswith(
        f"pitc: node 'pack_x' (pack): out of device memory: {want.nbytes} bytes on CUDA device 0 "
        "(Fake GPU 0, sm_90)"
    ), text
    assert "EP_FAIL" in text or ": 11 :" in text, text
    driver.set("memory", used)
    text = failure(run.run, None, given)
    assert "Allocation failed" in text, text  # ONNX Runtime's words; the log has the reason
    driver.set("memory", 2**40)
    assert np.array_equal(run.run(None, given)[0], want)
    big = given["x"].repeat(1000, axis=2)
    driver.set("memory", used + 1000)
    weights = model([pack("x", "y")], [], [OUT], (), {"x": big})
    text = failure(session, save_cuda(folder, weights, "weights.onnx"))
    assert f"pitc: node 'pack_x' (pack): out of device memory: {big.nbytes} bytes" in text, text


def test_no_memory_on_the_device(tmp_path: Path) -> None:
    with process() as call:
        call(_no_memory, tmp_path)


LOST = (
    "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered); the device works again "
    "only in a new process"
)


def _lost(folder: Path) -> None:
    driver = FakeDriver()
    path = save_cuda(folder, packed())
    run = session(path)
    given = feeds()
    run.run(None, given)
    driver.set("failing_launch", 1)
    first = failure(run.run, None, given)  # told by who waits first
    assert "pitc: CUDA device 0 (Fake GPU 0, sm_90): cu" in first and LOST in first, first
    second = failure(run.run, None, given)
    assert LOST in second, second
    assert LOST in failure(on_device, given["x"])
    assert LOST in failure(session(path).run, None, given)


def test_a_lost_device(tmp_path: Path) -> None:
    with process() as call:
        call(_lost, tmp_path)


def _several() -> str:
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(devices(CUDA_EP_NAME), {})
    made = detect_model().SerializeToString()
    return failure(partial(onnxruntime.InferenceSession, enable_fallback=0), made, options)


def test_several_devices_for_one_session() -> None:
    with process(devices=2) as call:
        assert "pitc: expected one CUDA device for a session, got 2" in call(_several)
