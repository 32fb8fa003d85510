"""Sessions with the execution provider: CPU levels, options, models from memory, threads."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pitc.errors import MachineError, UsageError
from pitc.ir.plan import EP_NAME
from tests.runtime_support import (
    BOOL,
    BUILD_VARIABLE,
    COORDS,
    DETECT,
    FLOAT,
    MASK,
    OFFSETS,
    ROWS,
    Array,
    Value,
    attention_plan,
    creation_error,
    detect_model,
    gemm_plan,
    kernel_plan,
    make_model,
    panels,
    pit_node,
    points,
    quiet_options,
    save,
    session,
    use_built_provider,
)

ort = pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

PACK = kernel_plan("pack", "pack_b4", dims="c0,c1,r")
RUNS = 20 if BUILD_VARIABLE in os.environ else 500  # of each thread; few under a sanitizer
LIVE = np.array([[1, 0, 1], [1, 1, 0]], bool)
R, C, _ = points(LIVE)
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
P = X[LIVE]


def test_cpu_levels(tmp_path: Path) -> None:
    """Kernels k9_n9 write their level; k9_n10 exists for v3 only."""
    feeds: dict[str, Array] = {"a": np.zeros((1, 9), np.float32)}
    for n in (9, 10):
        model = make_model(
            [pit_node("g", gemm_plan(9, n), ["a", "b"], ["c"])],
            [("a", FLOAT, None), ("b", FLOAT, None)],
            [("c", FLOAT, None)],
        )
        path = save(tmp_path, model)
        feeds["b"] = np.zeros((1, 9, n), np.float32)
        best = session(path).run(None, feeds)[0][0, 0]
        assert session(path, cpu_level="v3").run(None, feeds)[0][0, 0] == 3
        assert best == 3 if n == 10 else best in (3, 4)
        if best == 4:
            assert session(path, cpu_level="v4").run(None, feeds)[0][0, 0] == 4
    assert "expected cpu_level v3 or v4, got 'v5'" in creation_error(path, cpu_level="v5")
    with pytest.raises(UsageError, match="unknown provider option 'colour'"):
        session(path, colour="red")


def test_one_options_object_for_several_sessions(tmp_path: Path) -> None:
    model = make_model(
        [pit_node("g", gemm_plan(9, 9), ["a", "b"], ["c"])],
        [("a", FLOAT, None), ("b", FLOAT, None)],
        [("c", FLOAT, None)],
    )
    path, options = save(tmp_path, model), quiet_options()
    feeds = {"a": np.zeros((1, 9), np.float32), "b": np.zeros((1, 9, 9), np.float32)}
    best = session(path).run(None, feeds)[0][0, 0]
    levels = [
        session(path, options, **given).run(None, feeds)[0][0, 0]
        for given in ({}, {"cpu_level": "v3"}, {})
    ]
    assert levels == [best, 3, best]
    assert session(path, options).get_providers()[0] == EP_NAME


def test_model_from_memory(tmp_path: Path) -> None:
    node = pit_node("p", PACK, ["x", "rows", "coords", "live"], ["y"])
    model = make_model([node], [("x", FLOAT, None), ROWS, COORDS, MASK], [("y", FLOAT, None)])
    path = save(tmp_path, model)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == EP_NAME]
    options = quiet_options()
    options.add_provider_for_devices(devices, {})
    with pytest.raises(
        Exception, match=r"'p' \(pack\): .*set the session option ep.context_file_path"
    ):
        ort.InferenceSession(model.SerializeToString(), options)
    options.add_session_config_entry("ep.context_file_path", str(path))
    run = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {"x": X, "rows": R, "coords": C, "live": LIVE}
    np.testing.assert_array_equal(run.run(None, feeds)[0], P)
    ort.InferenceSession(detect_model().SerializeToString(), quiet_options_with(devices))


def quiet_options_with(devices: Any) -> Any:
    options = quiet_options()
    options.add_provider_for_devices(devices, {})
    return options


def test_other_context_nodes_are_not_claimed(tmp_path: Path) -> None:
    node = pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"], source="OtherProvider")
    error = creation_error(save(tmp_path, detect_model(node)))
    assert "pitc:" not in error


def test_a_compiled_model_is_not_compiled_again(tmp_path: Path) -> None:
    options = quiet_options()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "again.onnx"))
    error = creation_error(save(tmp_path, detect_model()), options)
    assert "pitc: the model is compiled already" in error


def test_between_ordinary_nodes_and_in_a_subgraph(tmp_path: Path) -> None:
    """Dynamic shapes on both sides; the branch of an If reads values from outside."""
    helper = onnx.helper
    branch_outputs = [helper.make_tensor_value_info("kept", FLOAT, None)]
    then_node = pit_node("p", PACK, ["x2", "rows", "coords", "live"], ["kept"])
    else_node = helper.make_node("Identity", ["x2"], ["kept"])
    branches: dict[str, Any] = {
        name: helper.make_graph([node], name, [], branch_outputs)
        for name, node in (("then_branch", then_node), ("else_branch", else_node))
    }
    nodes = [
        pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"]),
        helper.make_node("Add", ["x", "x"], ["x2"]),
        helper.make_node("If", ["flag"], ["chosen"], **branches),
        helper.make_node("Sigmoid", ["chosen"], ["y"]),
    ]
    inputs: list[Value] = [("x", FLOAT, [None] * 3), ("live", BOOL, ["b", "s"]), ("flag", BOOL, [])]
    model = make_model(nodes, inputs, [("y", FLOAT, None)], [ROWS, COORDS, OFFSETS])
    if ort.__version__.startswith("1.23."):  # `make matrix`
        with pytest.raises(MachineError, match=r"If or Loop need onnxruntime 1\.24 or newer"):
            session(save(tmp_path, model))
        return
    run = session(save(tmp_path, model))
    for flag, expected in ((True, 2 * P), (False, 2 * X)):
        (y,) = run.run(None, {"x": X, "live": LIVE, "flag": np.array(flag)})
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-expected)), rtol=1e-5)


def test_an_ordinary_model_needs_no_kernels(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Neg", ["x"], ["y"])]
    onnx.save(make_model(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])]), tmp_path / "plain.onnx")
    run = session(tmp_path / "plain.onnx")
    assert run.run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [-1, -1, -1]


def test_eight_threads_on_one_session(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal((64, 130), np.float32)
    nodes = [
        pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"]),
        pit_node("p", PACK, ["x", "rows", "coords", "live"], ["px"]),
        pit_node("a", attention_plan(16, 16, 4), ["px", "px", "px", "offsets", "offsets"], ["y"]),
        pit_node("g", gemm_plan(64, 130, gather=1, scatter=1), ["x", "b", "rows", "live"], ["c"]),
        pit_node(
            "u",
            kernel_plan("unpack", "unpack_b4", dims="c0,r,c1,r"),
            ["y", "rows", "coords", "live"],
            ["z"],
        ),
    ]
    model = make_model(
        nodes,
        [("x", FLOAT, [None] * 3), ("live", BOOL, [None] * 2)],
        [("c", FLOAT, [None] * 3), ("z", FLOAT, [None] * 4)],
        [ROWS, COORDS, OFFSETS, ("px", FLOAT, ["t", 64]), ("y", FLOAT, ["t", 4, 16])],
        {"b": panels(b, 32)},
    )
    run = session(save(tmp_path, model), quiet_options(threads=2))
    feeds, expected = [], []
    for i in range(8):
        shape = (1 + i % 3, 5 + 20 * i)
        live = rng.random(shape) < (i % 4) / 3
        feeds.append({"x": rng.standard_normal((*shape, 64), np.float32), "live": live})
        expected.append(run.run(None, feeds[-1]))
    wrong: list[int] = []

    def work(i: int) -> None:
        for k in range(RUNS):
            j = (i + k) % len(feeds)
            got = run.run(None, feeds[j])
            if not all(np.array_equal(*pair) for pair in zip(got, expected[j], strict=True)):
                wrong.append(j)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    c = np.where(feeds[5]["live"][..., None], feeds[5]["x"] @ b, 0)
    np.testing.assert_allclose(expected[5][0], c, rtol=1e-4, atol=1e-4)
