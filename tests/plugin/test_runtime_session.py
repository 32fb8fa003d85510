"""Sessions with the execution provider: CPU levels, options, models from memory, threads."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pitc.errors import MachineError, UsageError
from pitc.host.machine import LEVEL_VARIABLE, machine_level
from pitc.ir.plan import EP_NAME
from tests.plan_text import contract_plan
from tests.runtime_support import (
    BOOL,
    BUILD_VARIABLE,
    COORDS,
    DETECT,
    FLOAT,
    MASK,
    OFFSETS,
    ROWS,
    Value,
    answers_on_eight_threads,
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


def product(folder: Path, n: int) -> Path:
    """A model of kernel k9_n9, which writes its level, or k9_n10, which exists for v3 only."""
    model = make_model(
        [pit_node("g", gemm_plan(9, n), ["a", "b"], ["c"])],
        [("a", FLOAT, [1, 9]), ("b", FLOAT, [1, 9, n])],
        [("c", FLOAT, None)],
    )
    return save(folder, model)


def level(run: Any) -> float:
    """What such a kernel has written."""
    return run.run(None, {x.name: np.zeros(x.shape, np.float32) for x in run.get_inputs()})[0][0, 0]


def test_cpu_levels(tmp_path: Path) -> None:
    for n in (9, 10):
        path = product(tmp_path, n)
        best = level(session(path))
        assert level(session(path, cpu_level="v3")) == 3
        assert best == 3 if n == 10 else best in (3, 4)
        if best == 4:
            assert level(session(path, cpu_level="v4")) == 4
    assert "expected cpu_level v3, v4, v4_bf16 or v4_amx, got 'v5'" in creation_error(
        path, cpu_level="v5"
    )
    with pytest.raises(UsageError, match="unknown provider option 'colour'"):
        session(path, colour="red")


def test_a_variable_names_the_level_where_no_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = product(tmp_path, 9)
    best = level(session(path))
    monkeypatch.setenv(LEVEL_VARIABLE, "v3")
    assert level(session(path)) == 3
    assert level(session(path, cpu_level="v4" if best == 4 else "v3")) == best
    monkeypatch.setenv(LEVEL_VARIABLE, "")
    assert level(session(path)) == best
    monkeypatch.setenv(LEVEL_VARIABLE, "v5")
    assert "pitc: expected PITC_CPU v3, v4, v4_bf16 or v4_amx, got 'v5'" in creation_error(path)
    assert level(session(path, cpu_level="v3")) == 3
    if machine_level() in ("v3", "v4", "v4_bf16"):
        monkeypatch.setenv(LEVEL_VARIABLE, "v4_amx")
        wanted = f"pitc: expected PITC_CPU up to {machine_level()} on this CPU, got v4_amx"
        assert wanted in creation_error(path)


def test_one_options_object_for_several_sessions(tmp_path: Path) -> None:
    path, options = product(tmp_path, 9), quiet_options()
    best = level(session(path))
    given: list[dict[str, str]] = [{}, {"cpu_level": "v3"}, {}]
    assert [level(session(path, options, **each)) for each in given] == [best, 3, best]
    assert session(path, options).get_providers()[0] == EP_NAME


def test_model_from_memory(tmp_path: Path) -> None:
    node = pit_node("p", PACK, ["x", "rows", "coords", "live"], ["y"])
    model = make_model([node], [("x", FLOAT, None), ROWS, COORDS, MASK], [("y", FLOAT, None)])
    path = save(tmp_path, model)
    options = options_of_ort()
    with pytest.raises(
        Exception, match=r"'p' \(pack\): .*set the session option ep.context_file_path"
    ):
        ort.InferenceSession(model.SerializeToString(), options)
    options.add_session_config_entry("ep.context_file_path", str(path))
    run = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {"x": X, "rows": R, "coords": C, "live": LIVE}
    np.testing.assert_array_equal(run.run(None, feeds)[0], P)
    ort.InferenceSession(detect_model().SerializeToString(), options_of_ort())


def options_of_ort() -> Any:
    """Session options with the provider in them, for a session that ONNX Runtime makes."""
    devices = [device for device in ort.get_ep_devices() if device.ep_name == EP_NAME]
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
    feeds = []
    for i in range(8):
        shape = (1 + i % 3, 5 + 20 * i)
        live = rng.random(shape) < (i % 4) / 3
        feeds.append({"x": rng.standard_normal((*shape, 64), np.float32), "live": live})
    expected = answers_on_eight_threads(run, feeds, RUNS)
    c = np.where(feeds[5]["live"][..., None], feeds[5]["x"] @ b, 0)
    np.testing.assert_allclose(expected[5][0], c, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("external", [False, True])
def test_weights_in_huge_pages(tmp_path: Path, external: bool) -> None:
    """Two nodes, one of them in a branch, and an ordinary one read the same constant."""
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(shape, np.float32) for shape in ((5, 70), (70, 5)))
    plan = contract_plan(k=70, n=5, skips=1)
    inside = helper.make_graph(
        [pit_node("inner", plan, ["x", "b"], ["inner"])],
        "then",
        [],
        [helper.make_tensor_value_info("inner", FLOAT, None)],
    )
    outside = helper.make_graph(
        [helper.make_node("Identity", ["y"], ["same"])],
        "else",
        [],
        [helper.make_tensor_value_info("same", FLOAT, None)],
    )
    nodes = [
        pit_node("outer", plan, ["x", "b"], ["y"]),
        helper.make_node("ReduceSum", ["b"], ["sum"], keepdims=0),
        helper.make_node("If", ["choice"], ["z"], then_branch=inside, else_branch=outside),
    ]
    outputs: list[Value] = [(name, FLOAT, None) for name in ("y", "sum", "z")]
    inputs: list[Value] = [("x", FLOAT, [None, 70]), ("choice", BOOL, [])]
    model = make_model(nodes, inputs, outputs, constants={"b": panels(b, 64)})
    path = save(tmp_path, model)
    if external:
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    if ort.__version__.startswith("1.23."):  # `make matrix`
        with pytest.raises(MachineError, match=r"If or Loop need onnxruntime 1\.24 or newer"):
            session(path)
        return
    for options in ({}, {"huge_pages": "0"}, {"huge_pages": "1"}):
        run = session(path, **options)
        for choice in (False, True):
            y, total, z = run.run(None, {"x": x, "choice": np.array(choice)})
            np.testing.assert_allclose(y, x @ b, rtol=1e-5, atol=1e-4)
            np.testing.assert_array_equal(y, z)
            np.testing.assert_allclose(total, b.sum(), rtol=1e-4)
    assert "expected huge_pages 0 or 1, got '2'" in creation_error(path, huge_pages="2")


@pytest.mark.parametrize("inside", [False, True])
def test_initializers_that_are_inputs_may_change(tmp_path: Path, inside: bool) -> None:
    """Where a constant lies is read once; what a caller may give otherwise is none."""
    rng = np.random.default_rng(0)
    x, *weights = (rng.standard_normal(s, np.float32) for s in ((4, 3), (3, 5), (3, 5), (3, 5)))
    node = pit_node("g", gemm_plan(3, 5), ["x", "b"], ["y"])
    if inside:
        body = helper.make_graph(
            [node], "then", [], [helper.make_tensor_value_info("y", FLOAT, None)]
        )
        node = helper.make_node("If", ["choice"], ["z"], then_branch=body, else_branch=body)
        if ort.__version__.startswith("1.23."):  # `make matrix`
            pytest.skip("no nodes in branches")
    inputs: list[Value] = [("x", FLOAT, [None, 3]), ("choice", BOOL, []), ("b", FLOAT, [1, 3, 5])]
    constants = {"b": panels(weights[0], 5)}
    model = make_model([node], inputs, [(node.output[0], FLOAT, None)], constants=constants)
    run = session(save(tmp_path, model))
    given = {"x": x, "choice": np.array(True)}
    for b in (None, weights[1], weights[2], None):
        feeds = given if b is None else {**given, "b": panels(b, 5)}
        (y,) = run.run(None, feeds)
        np.testing.assert_allclose(y, x @ (weights[0] if b is None else b), rtol=1e-5, atol=1e-5)
