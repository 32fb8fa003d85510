"""Sessions with the execution provider: clear errors, many threads, models from memory, hostile plans."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pitc.errors import MachineError, UsageError
from pitc.ir.plan import EP_NAME, Plan
from tests.runtime_support import (
    COORDS,
    OFFSETS,
    ROOT,
    ROWS,
    Array,
    BOOL,
    FLOAT,
    INT32,
    Value,
    attention_plan,
    built,
    gemm_plan,
    kernel_plan,
    make_model,
    panels,
    pit_node,
    points,
    save,
)

ort = pytest.importorskip("onnxruntime")

DETECT = Plan("detect", (("rank", 2),))


@pytest.fixture(scope="module", autouse=True)
def provider() -> Iterator[None]:
    from pitc.runtime.library import register_ep

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PITC_EP_LIBRARY", str(built() / "libpitc_ort_ep.so"))
        register_ep()
        yield


def quiet_options(threads: int = 1) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return options


def session(path: Path, options: Any = None, **provider_options: str) -> Any:
    from pitc.runtime.library import make_session

    return make_session(path, options or quiet_options(), provider_options)


def detect_model(node: onnx.NodeProto | None = None) -> onnx.ModelProto:
    node = node or pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"])
    return make_model([node], [("live", BOOL, ["b", "s"])], [ROWS, COORDS, OFFSETS])


# ---- run-time errors: one line that names node, expectation and finding; the session lives on

LIVE = np.array([[1, 0, 1], [1, 1, 0]], bool)
R, C, O = points(LIVE)
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
P = X.reshape(-1, 4)[R]
A3 = np.ones((2, 3, 3), np.float32)
B35 = panels(np.ones((3, 5), np.float32), 4)
HEADS = np.ones((4, 2, 4), np.float32)
BIAS = np.zeros((2, 2, 3, 3), np.float32)

PACK = kernel_plan("pack", "pack_b4", dims="c0,c1,r")
PACK_L = kernel_plan("pack", "pack_b4", dims="l,0,r")
UNPACK = kernel_plan("unpack", "unpack_b4", dims="c0,c1,r")
UNPACK_T = kernel_plan("unpack", "unpack_b4", dims="c0,r,c1")
GEMM = gemm_plan(3, 5, bias=1, gather=1, residual=1, scatter=1)
ATTENTION = attention_plan(4, 4, 2, bias=1)

# op -> (plan, input names, good inputs)
GOOD: dict[str, tuple[Plan, list[str], list[Array]]] = {
    "detect": (DETECT, ["live"], [LIVE]),
    "pack": (PACK, ["x", "rows", "coords"], [X, R, C]),
    "pack l": (PACK_L, ["x", "rows", "coords"], [X.reshape(6, 1, 4), R, C]),
    "unpack": (UNPACK, ["packed", "rows", "coords", "live"], [P, R, C, LIVE]),
    "unpack t": (UNPACK_T, ["packed", "rows", "coords", "live"], [P, R, C, LIVE]),
    "gather_gemm": (
        GEMM,
        ["a", "b", "bias", "residual", "rows", "live"],
        [A3, B35, np.ones(5, np.float32), np.ones((4, 5), np.float32), R, LIVE],
    ),
    "attention": (
        ATTENTION,
        ["q", "k", "v", "q_offsets", "k_offsets", "bias", "q_coords", "k_coords"],
        [HEADS, HEADS, HEADS, O, O, BIAS, C, C],
    ),
}


def changed(array: Array, at: tuple[int, ...], value: int) -> Array:
    out = array.copy()
    out[at] = value
    return out


# op, input, bad value, message
BAD: list[tuple[str, str, Array, str]] = [
    ("detect", "live", LIVE[0], r"expected live of rank 2, got bool \[3\]"),
    ("detect", "live", X[0], r"expected live as bool or uint8, got float32 \[3, 4\]"),
    ("pack", "x", X[0], r"expected x of rank 3, got float32 \[3, 4\]"),
    ("pack", "x", X[:1], r"expected 0 <= coords\[0\]\[2\] < 1, got 1"),
    ("pack", "x", X[:, :2], r"expected 0 <= coords\[1\]\[1\] < 2, got 2"),
    ("pack", "x", X[:0], r"expected 0 <= coords\[0\]\[0\] < 0, got 0"),
    ("pack", "x", X.astype(np.float16)[:, :, :3], r"rows of whole 4-byte words, got 6 bytes"),
    ("pack", "rows", R.astype(np.int64), r"expected rows as int32 \[\*\], got int64 \[4\]"),
    ("pack", "rows", R[:3], r"expected coords as int32 \[\*, 3\], got int32 \[2, 4\]"),
    ("pack", "coords", C[:1], r"expected coords of at least 2 coordinates, got 1"),
    ("pack", "coords", C[:0], r"expected coords of 1..8 coordinates, got int32 \[0, 4\]"),
    ("pack", "coords", changed(C, (0, 1), -1), r"expected 0 <= coords\[0\]\[1\] < 2, got -1"),
    ("pack", "coords", changed(C, (1, 3), 2**31 - 1), r"coords\[1\]\[3\] < 3, got 2147483647"),
    ("pack", "coords", changed(C, (1, 3), -(2**31)), r"coords\[1\]\[3\] < 3, got -2147483648"),
    ("pack l", "x", X.reshape(3, 2, 4), r"expected x with extent 1 in dimension 1, got"),
    ("pack l", "rows", changed(R, (3,), 6), r"expected 0 <= rows\[3\] < 6, got 6"),
    ("unpack", "packed", P[:3], r"expected packed as \[4, ..\] of rank 2, got float32 \[3, 4\]"),
    ("unpack", "packed", X, r"expected packed as \[4, ..\] of rank 2, got float32 \[2, 3, 4\]"),
    ("unpack", "rows", R[::-1].copy(), r"expected rows to ascend, got 4, 3 at \[0\]"),
    ("unpack", "rows", changed(R, (1,), 0), r"expected rows to ascend, got 0, 0 at \[0\]"),
    ("unpack", "rows", changed(R, (3,), 6), r"expected 0 <= rows\[3\] < 6, got 6"),
    ("unpack", "live", LIVE[:1], r"expected 0 <= rows\[2\] < 3, got 3"),
    ("unpack", "live", LIVE[None], r"expected coords of 3 coordinates \(the rank of live\), got 2"),
    ("unpack", "live", R, r"expected live as bool or uint8, got int32 \[4\]"),
    ("unpack t", "coords", changed(C, (1, 0), 1), r"coords of point 0 to be row 0, got 1"),
    ("unpack t", "coords", changed(C, (0, 0), 7), r"expected 0 <= coords\[0\]\[0\] < 2, got 7"),
    ("gather_gemm", "a", A3[..., :2], r"expected a of last dimension 3, got float32 \[2, 3, 2\]"),
    ("gather_gemm", "a", A3.astype(np.float64), r"expected a as float32 of rank >= 2, got float64"),
    ("gather_gemm", "a", A3[:1], r"expected 0 <= rows\[2\] < 3, got 3"),
    (
        "gather_gemm",
        "b",
        B35[:1],
        r"expected b as \[ceil\(5 / NR\), 3, NR\], got float32 \[1, 3, 4\]",
    ),
    ("gather_gemm", "b", B35[:, :, :0], r"expected b as .*, got float32 \[2, 3, 0\]"),
    ("gather_gemm", "b", B35[:, :2], r"expected b as .*, got float32 \[2, 2, 4\]"),
    ("gather_gemm", "b", B35[0], r"expected b as float32 of rank 3, got float32 \[3, 4\]"),
    ("gather_gemm", "bias", np.ones(8, np.float32), r"expected bias as float32 \[5\], got"),
    ("gather_gemm", "residual", np.ones((3, 5), np.float32), r"residual of 4 rows of 5, got"),
    ("gather_gemm", "residual", np.ones((4, 4), np.float32), r"residual of 4 rows of 5, got"),
    ("gather_gemm", "rows", changed(R, (2,), 6), r"expected 0 <= rows\[2\] < 6, got 6"),
    ("gather_gemm", "rows", changed(R, (2,), 2), r"expected rows to ascend, got 2, 2 at \[1\]"),
    ("gather_gemm", "live", LIVE[:1], r"expected 0 <= rows\[2\] < 3, got 3"),
    ("attention", "q", HEADS[:, :1], r"q as \[t, X, 4\] with X >= 2, got float32 \[4, 1, 4\]"),
    ("attention", "q", HEADS[..., :3], r"expected q as \[t, X, 4\] with X >= 2, got"),
    ("attention", "q", HEADS[0, 0], r"expected q as float32 of rank >= 2, got float32 \[4\]"),
    ("attention", "q", HEADS[:3], r"expected q_offsets\[2\] = 3 \(all rows\), got 4"),
    ("attention", "k", HEADS[:3], r"expected v of 3 rows, as k, got 4"),
    ("attention", "v", HEADS[:, :1], r"expected v as \[t, X, 4\] with X >= 2, got"),
    ("attention", "q_offsets", O[:2], r"expected k_offsets as int32 \[2\], got int32 \[3\]"),
    ("attention", "q_offsets", O[:0], r"expected q_offsets of one element or more, got"),
    ("attention", "q_offsets", changed(O, (0,), 1), r"expected q_offsets\[0\] = 0, got 1"),
    ("attention", "k_offsets", changed(O, (1,), 5), r"k_offsets not to fall, got 5, 4 at \[1\]"),
    ("attention", "k_offsets", changed(O, (1,), -1), r"k_offsets not to fall, got 0, -1 at \[0\]"),
    ("attention", "k_offsets", changed(O, (2,), 3), r"expected k_offsets\[2\] = 4 .*, got 3"),
    ("attention", "bias", BIAS[0], r"expected bias as float32 of rank 4, got float32 \[2, 3, 3\]"),
    ("attention", "bias", np.zeros((3, 2, 3, 3), np.float32), r"expected bias as \[2 or 1, 2 or 1"),
    ("attention", "bias", BIAS[:, :, :2], r"expected 0 <= q_coords\[1\] < 2, got 2"),
    ("attention", "bias", BIAS[..., :2], r"expected 0 <= k_coords\[1\] < 2, got 2"),
    (
        "attention",
        "q_coords",
        C[:, :3],
        r"expected q_coords as int32 \[\*, 4\], got int32 \[2, 3\]",
    ),
    ("attention", "k_coords", changed(C, (1, 0), -5), r"0 <= k_coords\[0\] < 3, got -5"),
]


@pytest.mark.parametrize(
    ("case", "name", "value", "message"), BAD, ids=[f"{b[0]}-{b[1]}-{i}" for i, b in enumerate(BAD)]
)
def test_bad_inputs(tmp_path: Path, case: str, name: str, value: Array, message: str) -> None:
    plan, names, good = GOOD[case]
    feeds = dict(zip(names, good, strict=True))
    kinds = {key: element_type(array) for key, array in feeds.items()}
    outputs = ["rows", "coords", "offsets"] if plan.op == "detect" else ["y"]
    result = INT32 if plan.op == "detect" else element_type(value) if name in ("x", "packed") else FLOAT
    # The model declares the bad input's type, so that ONNX Runtime itself has nothing to say.
    declared = {**kinds, name: element_type(value)}
    model = make_model(
        [pit_node("the node", plan, names, outputs)],
        [(key, declared[key], None) for key in names],
        [(output, result, None) for output in outputs],
    )
    run = session(save(tmp_path, model))
    with pytest.raises(Exception, match=message) as caught:
        run.run(None, {**feeds, name: value})
    assert f"pitc: node 'the node' ({plan.op}): " in str(caught.value)
    if declared == kinds:
        run.run(None, feeds)  # the same session works


@pytest.mark.parametrize("case", GOOD)
def test_good_inputs(tmp_path: Path, case: str) -> None:
    """The inputs that `BAD` spoils one by one are good."""
    plan, names, good = GOOD[case]
    outputs = ["rows", "coords", "offsets"] if plan.op == "detect" else ["y"]
    model = make_model(
        [pit_node("n", plan, names, outputs)],
        [(key, element_type(array), None) for key, array in zip(names, good, strict=True)],
        [(output, INT32 if plan.op == "detect" else FLOAT, None) for output in outputs],
    )
    results = session(save(tmp_path, model)).run(None, dict(zip(names, good, strict=True)))
    assert all(np.isfinite(result).all() for result in results)


def element_type(array: Array) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(array.dtype)


def test_kernel_errors(tmp_path: Path) -> None:
    """A kernel that refuses its arguments: its words, made printable."""
    names = ["a", "b"]
    model = make_model(
        [pit_node("g", gemm_plan(7, 7), names, ["c"])],
        [(name, FLOAT, None) for name in names],
        [("c", FLOAT, None)],
    )
    run = session(save(tmp_path, model))
    feeds = {"a": np.zeros((2, 7), np.float32), "b": np.zeros((1, 7, 7), np.float32)}
    for _ in range(3):
        with pytest.raises(
            Exception, match=r"'g' \(gather_gemm\): kernel 'gather_gemm_k7_n7_none_v\d'"
        ):
            run.run(None, feeds)
    assert run.run(None, {**feeds, "a": np.zeros((0, 7), np.float32)})[0].shape == (0, 7)


# ---- session creation


def creation_error(path: Path, options: Any = None, **provider_options: str) -> str:
    with pytest.raises(Exception) as caught:
        session(path, options, **provider_options)
    return str(caught.value)


def test_wrong_numbers_of_inputs_and_outputs(tmp_path: Path) -> None:
    node = pit_node("d", DETECT, ["live", "live"], ["rows", "coords", "offsets"])
    error = creation_error(save(tmp_path, detect_model(node)))
    assert "node 'd' (detect): expected 1 inputs and 3 outputs, got 2 and 3" in error
    node = pit_node("d", DETECT, ["live"], ["rows"])
    model = make_model([node], [("live", BOOL, ["b", "s"])], [ROWS])
    assert "expected 1 inputs and 3 outputs, got 1 and 1" in creation_error(save(tmp_path, model))


def test_missing_optional_input(tmp_path: Path) -> None:
    node = pit_node("p", PACK, ["x", "", "coords"], ["y"])
    run = session(save(tmp_path, make_model([node], [("x", FLOAT, None), COORDS], [("y", FLOAT, None)])))
    with pytest.raises(Exception, match=r"node 'p' \(pack\): expected input rows, got none"):
        run.run(None, {"x": X, "coords": C})


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("ep_cache_context", b"", "expected the line 'pitc-plan 1', got ''"),
        ("ep_cache_context", b"\xff\x00junk", r"expected the line 'pitc-plan 1', got '\?\?junk'"),
        ("ep_cache_context", None, "expected a plan in ep_cache_context, got none"),
        ("embed_mode", 0, "expected embed_mode 1"),
        ("main_context", 0, "expected main_context 1"),
    ],
)
def test_bad_attributes(tmp_path: Path, attribute: str, value: Any, message: str) -> None:
    model = detect_model()
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(onnx.helper.make_attribute(attribute, value))
    error = creation_error(save(tmp_path, model))
    assert re.search(r"pitc: node 'd' \(EPContext\): .*" + message, error)


def test_library_problems(tmp_path: Path) -> None:
    def make(plan: Plan) -> onnx.ModelProto:
        node = pit_node("p", plan, ["x", "rows", "coords"], ["y"])
        return make_model([node], [("x", FLOAT, None), ROWS, COORDS], [("y", FLOAT, None)])

    folder = tmp_path / "model"
    path, library = save(folder, make(PACK)), folder / "kernels.so"
    outside = tmp_path / "kernels.so"
    library.rename(outside)
    assert "cannot open the kernel library" in creation_error(path)
    library.symlink_to(outside)
    assert "expected the kernel library inside the model's folder" in creation_error(path)
    library.unlink()
    code = outside.read_bytes()
    for part in (10, 100, len(code) // 2, len(code) - 1):  # an interrupted copy
        library.write_bytes(code[:part])
        assert "node 'p' (pack): the kernel library is damaged" in creation_error(path)
    library.unlink()
    library.write_text("no library")
    assert "node 'p' (pack): cannot load the kernel library" in creation_error(path)
    library.unlink()
    shutil.copy(outside, library)
    session(path)
    (tmp_path / "link").symlink_to(folder)
    session(tmp_path / "link" / "model.onnx")
    model = make_model(
        [pit_node("g", gemm_plan(5, 5), ["a", "b"], ["c"])],
        [("a", FLOAT, None), ("b", FLOAT, None)],
        [("c", FLOAT, None)],
    )
    error = creation_error(save(folder, model))
    assert "expected kernel 'gather_gemm_k5_n5_none' for CPU level" in error
    assert "in 'kernels.so', got none; compile the model again" in error


def test_cpu_levels(tmp_path: Path) -> None:
    """Kernels k9_n9 write their level; k9_n10 exists for v3 only."""
    feeds = {"a": np.zeros((1, 9), np.float32)}
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
    node = pit_node("p", PACK, ["x", "rows", "coords"], ["y"])
    model = make_model([node], [("x", FLOAT, None), ROWS, COORDS], [("y", FLOAT, None)])
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
    np.testing.assert_array_equal(run.run(None, {"x": X, "rows": R, "coords": C})[0], P)
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
    then_node = pit_node("p", PACK, ["x2", "rows", "coords"], ["kept"])
    else_node = helper.make_node("Identity", ["x2"], ["kept"])
    branches = {
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
    run = session(save(tmp_path, model))
    for flag, expected in ((True, 2 * P), (False, 2 * X)):
        (y,) = run.run(None, {"x": X, "live": LIVE, "flag": np.array(flag)})
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-expected)), rtol=1e-5)


def test_an_ordinary_model_needs_no_kernels(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Neg", ["x"], ["y"])]
    onnx.save(make_model(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])]), tmp_path / "plain.onnx")
    run = session(tmp_path / "plain.onnx")
    assert run.run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [-1, -1, -1]


# ---- threads


def test_eight_threads_on_one_session(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal((64, 130), np.float32)
    nodes = [
        pit_node("d", DETECT, ["live"], ["rows", "coords", "offsets"]),
        pit_node("p", PACK, ["x", "rows", "coords"], ["px"]),
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
        shape = (1 + i % 3, 20 + 30 * i)
        live = rng.random(shape) < (i % 4) / 3
        feeds.append({"x": rng.standard_normal((*shape, 64), np.float32), "live": live})
        expected.append(run.run(None, feeds[-1]))
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(6):
            got = run.run(None, feeds[i])
            if not all(np.array_equal(*pair) for pair in zip(got, expected[i], strict=True)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    c = np.where(feeds[5]["live"][..., None], feeds[5]["x"] @ b, 0)
    np.testing.assert_allclose(expected[5][0], c, rtol=1e-4, atol=1e-4)


# ---- hostile plans

MUTATE = r"""
import random, sys
import onnx, onnxruntime
from pathlib import Path
from pitc.runtime.library import make_session

path, loaded = Path(sys.argv[1]), 0
model = onnx.load(path)
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
rng = random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    for node in mutant.graph.node:
        plan = bytearray(next(a for a in node.attribute if a.name == "ep_cache_context").s)
        at = rng.randrange(len(plan))
        match rng.randrange(4):
            case 0: plan[at] = rng.randrange(256)
            case 1: plan[at] = rng.choice(b"0123456789")
            case 2: del plan[at]
            case 3: plan.insert(at, rng.choice(b"0123456789=,cr\x0a"))
        next(a for a in node.attribute if a.name == "ep_cache_context").s = bytes(plan)
    onnx.save(mutant, path.with_name("mutant.onnx"))
    try:
        make_session(path.with_name("mutant.onnx"), options)
        loaded += 1
    except Exception as error:
        assert "pitc: node 'n' (" in str(error), error
print("loaded", loaded)
"""


@pytest.mark.parametrize("case", ["pack", "gather_gemm", "attention"])
def test_mutated_plans_never_crash(tmp_path: Path, case: str) -> None:
    plan, names, good = GOOD[case]
    model = make_model(
        [pit_node("n", plan, names, ["y"])],
        [(key, element_type(array), None) for key, array in zip(names, good, strict=True)],
        [("y", FLOAT, None)],
    )
    script = tmp_path / "mutate.py"
    script.write_text(MUTATE)
    run = subprocess.run(
        [sys.executable, str(script), str(save(tmp_path, model)), "1", "250"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PITC_EP_LIBRARY": str(built() / "libpitc_ort_ep.so"),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout.split()[-1]) < 100


# ---- finding and registering the library


def test_library_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pitc.runtime
    from pitc.runtime.library import LIBRARY_NAME, library_path

    monkeypatch.setenv("PITC_EP_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(MachineError, match="PITC_EP_LIBRARY names no file"):
        library_path()
    (tmp_path / LIBRARY_NAME).touch()
    monkeypatch.setenv("PITC_EP_LIBRARY", str(tmp_path / LIBRARY_NAME))
    assert library_path() == tmp_path / LIBRARY_NAME
    monkeypatch.delenv("PITC_EP_LIBRARY")
    monkeypatch.setattr(pitc.runtime, "__path__", [str(tmp_path / "none"), str(tmp_path)])
    assert library_path() == tmp_path / LIBRARY_NAME
    monkeypatch.setattr(pitc.runtime, "__path__", [str(tmp_path / "none")])
    with pytest.raises(MachineError, match="is not built"):
        library_path()


def test_registering_is_idempotent_and_thread_safe() -> None:
    code = """
import threading
import onnxruntime
from pitc.runtime.library import EP_NAME, register_ep
names = []
threads = [threading.Thread(target=lambda: names.append(register_ep())) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert names == [EP_NAME] * 8, names
assert sum(d.ep_name == EP_NAME for d in onnxruntime.get_ep_devices()) == 1
"""
    library = str(built() / "libpitc_ort_ep.so")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PITC_EP_LIBRARY": library}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_registering_reports_a_library_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "bad.so").write_text("no library")
    code = """
from pitc.errors import MachineError
from pitc.runtime.library import register_ep
try:
    register_ep()
except MachineError as error:
    print(error)
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PITC_EP_LIBRARY": str(tmp_path / "bad.so"),
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "ONNX Runtime cannot load it" in run.stdout


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = "import sys, pitc.runtime.library; print(sorted({'onnxruntime', 'numpy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]", run.stderr
