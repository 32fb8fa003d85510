"""pitc in the form of ONNX's backend interface."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

import pitc
from pitc import api, backend
from pitc.check.feeds import cases, input_specs

X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def minus(opset: int = 17, weight: bool = False) -> onnx.ModelProto:
    """c = a - b; with `weight`, b has a default that a caller may leave out."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "abc"]
    weights = [onnx.numpy_helper.from_array(X, "b")] if weight else []
    graph = helper.make_graph(
        [node("Sub", ["a", "b"], ["c"])], "minus", infos[:2], infos[2:], weights
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_it_has_the_form_of_onnx_backends() -> None:
    assert issubclass(backend.PitcBackend, Backend)
    rep = backend.prepare(minus())
    assert isinstance(rep, BackendRep)
    assert rep.inputs == ("a", "b") and rep.outputs == ("c",)
    for name in ("prepare", "run_model", "run_node", "is_compatible", "supports_device"):
        assert getattr(backend, name) == getattr(backend.PitcBackend, name)


def test_inputs_by_place_and_by_name_and_alone() -> None:
    rep = backend.prepare(minus())
    for inputs in ([X, 2 * X], (X, 2 * X), {"b": 2 * X, "a": X}):
        result = rep.run(inputs)
        assert isinstance(result, tuple) and len(result) == 1
        np.testing.assert_array_equal(result[0], -X)
        np.testing.assert_array_equal(result["c"], -X)  # type: ignore[call-overload]
    alone = backend.prepare(minus(weight=True))
    assert alone.inputs == ("a",)
    np.testing.assert_array_equal(alone.run(2 * X)[0], X)
    np.testing.assert_array_equal(backend.run_model(minus(), [X, X])[0], 0 * X)


@pytest.mark.parametrize("pattern", ["right", "left", "empty"])
def test_padding_goes_through_prepare(bert_path: Path, pattern: str) -> None:
    rep = backend.prepare(onnx.load(bert_path), padding="attention_mask")
    assert rep.model.manifest.pit_nodes > 0
    specs = input_specs(api.import_model(bert_path)[0])
    feeds = next(c for c in cases(specs, None, "attention_mask") if c.pattern == pattern).feeds
    plain = onnxruntime.InferenceSession(bert_path, providers=["CPUExecutionProvider"])
    want = np.asarray(plain.run(None, feeds)[0])
    (got,) = rep.run([feeds[name] for name in rep.inputs])
    live = feeds["attention_mask"] != 0
    assert np.linalg.norm(got[live] - want[live]) <= 1e-5 * np.linalg.norm(want[live])
    assert not got[~live].any()


def test_session_options_go_through_prepare(mlp_path: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    backend.prepare(mlp_path, target="cpu:v3", sess_options=options)
    assert (tmp_path / "optimized.onnx").is_file()


def test_devices() -> None:
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA") and not backend.supports_device("CPU:1")
    with pytest.raises(pitc.UsageError, match="device 'CUDA' is not supported"):
        backend.prepare(minus(), "CUDA")
    assert not backend.is_compatible(minus(), "CUDA")


def test_compatible_is_what_can_be_prepared() -> None:
    assert backend.is_compatible(minus())
    unknown = minus()
    unknown.graph.node[0].domain = "com.nobody"
    unknown.opset_import.append(helper.make_opsetid("com.nobody", 1))
    invalid = minus()
    invalid.graph.node[0].input[0] = "nowhere"
    for model in (unknown, invalid):
        assert not backend.is_compatible(model)
        with pytest.raises(pitc.ModelError):
            backend.prepare(model)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([X], "1 inputs given, the model has a, b"),
        (X, "1 inputs given, the model has a, b"),
        ({"a": X}, "inputs are missing: b"),
        ([X, X.astype(np.float64)], "input 'b': expected float32, got float64"),
        ([X, X[:, :2]], "input 'b': expected shape"),
    ],
)
def test_wrong_inputs_are_one_line(inputs: Any, text: str) -> None:
    with pytest.raises(pitc.UsageError, match=text):
        backend.run_model(minus(), inputs)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(pitc.UsageError, match="unknown options colour"):
        backend.prepare(minus(), colour="red")
    with pytest.raises(pitc.UsageError, match="unknown options colour"):
        backend.prepare(minus()).run([X, X], colour="red")


# Node, inputs, expected outputs.
NODES: dict[str, tuple[onnx.NodeProto, Any, list[Any]]] = {
    "one array": (node("Relu", ["a"], ["c"]), X, [np.maximum(X, 0)]),
    "one value twice": (node("Add", ["a", "a"], ["c"]), [X, X], [2 * X]),
    "long domain name": (node("Neg", ["a"], ["c"], domain="ai.onnx"), [X], [-X]),
    "operand left out": (
        node("Clip", ["a", "", "max"], ["c"]),
        [X, np.float32(1)],
        [np.minimum(X, 1)],
    ),
    "output left out": (
        node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2),
        [np.zeros((3, 1, 2), np.float32), *[np.ones((1, 8, 2), np.float32)] * 2],
        [np.zeros((1, 1, 2), np.float32)],
    ),
    "rank from a value": (
        node("Reshape", ["a", "shape"], ["c"]),
        [X, np.array([3, 2])],
        [X.reshape(3, 2)],
    ),
    "two outputs by name": (
        node("TopK", ["a", "k"], ["values", "places"]),
        {"k": np.array([1]), "a": X},
        [X[:, 2:], np.array([[2], [2]])],
    ),
    "sequence in": (node("SequenceAt", ["s", "i"], ["c"]), [[X, X[:1]], np.array(1)], [X[:1]]),
    "sequence out": (
        node("SplitToSequence", ["a"], ["c"], keepdims=0),
        [X],
        [[X[0], X[1]]],
    ),
    "text": (
        node("StringConcat", ["a", "b"], ["c"]),
        [np.array(["p"], object), np.array(["itc"], object)],
        [np.array(["pitc"], object)],
    ),
}


@pytest.mark.parametrize("case", NODES)
def test_nodes_run_alone(case: str) -> None:
    proto, inputs, want = NODES[case]
    before = proto.SerializeToString()
    got = backend.run_node(proto, inputs)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, list) == isinstance(b, list)
        for x, y in zip(a, b, strict=True) if isinstance(b, list) else ((a, b),):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    assert proto.SerializeToString() == before


def test_the_body_of_a_node_reads_what_is_given_by_name() -> None:
    bodies = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        out = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 3])
        bodies[name] = helper.make_graph([node(op, ["a"], ["inner"])], name, [], [out])
    proto = node("If", ["choice"], ["c"], **bodies)
    for choice, want in ((True, -X), (False, abs(X))):
        (got,) = backend.run_node(proto, {"choice": np.array(choice), "a": X})
        np.testing.assert_array_equal(got, want)


def test_the_opset_of_a_node_may_be_given() -> None:
    """Softmax of opset 11 flattens from its axis on; the newest one does not."""
    x = np.zeros((1, 2, 2), np.float32)
    proto = node("Softmax", ["a"], ["c"], axis=1)
    for opset, value in ((11, 0.25), (13, 0.5), (None, 0.5)):
        options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
        np.testing.assert_array_equal(backend.run_node(proto, [x], **options)[0], x + value)


def test_output_types_may_be_given() -> None:
    proto = node("BiasGelu", ["a", "b"], ["c"], domain="com.microsoft")
    with pytest.raises(pitc.UsageError, match=r"type of output 'c' is not known \(give outputs_i"):
        backend.run_node(proto, [X, X[0]])
    info = [(np.dtype(np.float32), (2, 3))]
    (got,) = backend.run_node(proto, [0 * X, 0 * X[0]], outputs_info=info)
    np.testing.assert_array_equal(got, 0 * X)
    with pytest.raises(pitc.UsageError, match="0 outputs described, the node has c"):
        backend.run_node(proto, [X, X[0]], outputs_info=[])


@pytest.mark.parametrize(
    ("proto", "inputs", "error", "text"),
    [
        (node("Add", ["a", "b"], ["c"]), [X], pitc.UsageError, "the node reads a, b"),
        (node("Add", ["a", "b"], ["c"]), {"a": X}, pitc.UsageError, "inputs are missing: b"),
        (node("Nope", ["a"], ["c"]), [X], pitc.UsageError, "type of output 'c' is not known"),
        (node("SequenceLength", ["s"], ["n"]), [[]], pitc.UsageError, "no common type"),
        (node("Add", ["a", "b"], ["c"]), [X, X > 0], pitc.ModelError, "cannot load"),
    ],
)
def test_wrong_nodes_are_one_line(
    proto: onnx.NodeProto, inputs: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        backend.run_node(proto, inputs)
    assert "\n" not in str(caught.value)


def test_the_module_loads_no_runtime_and_no_compiler() -> None:
    code = "import sys, pitc.backend; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pitc.backend" in loaded
    assert not loaded & {"onnxruntime", "tvm", "onnx_ir", "pitc.passes"}
