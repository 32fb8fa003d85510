"""Gradients where functions have corners and ends, and gradients of gradients there."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

import pitc
from pitc.errors import PitcError
from pitc.ir.graph import Graph, NodeView
from pitc.passes.exprs.derive import derive
from pitc.passes.grad.terms import evaluate
from pitc.passes.rules.record import OPERATORS
from tests.gradient_check import Differentiated, float_operands, in_float64, reference, runtime
from tests.rule_proof import Sample, array_of, node_model
from tests.rule_samples import SAMPLES

Arrays = dict[str, Any]


def model(body: str, inputs: str = "float[n] x", kind: str = "float") -> onnx.ModelProto:
    text = f"g ({inputs}) => (float loss) {{ {body} loss = ReduceSum <keepdims = 0> (y) }}"
    head = '<ir_version: 9, opset_import: ["": 20]> '
    return onnx.parser.parse_model(head + text.replace("float", kind))


def gradient(proto: onnx.ModelProto, feeds: Arrays, name: str = "x") -> Any:
    made = ir.to_proto(pitc.gradient(proto, "loss", [name]))
    names = [o.name for o in made.graph.output]
    return dict(zip(names, runtime(made, feeds), strict=True))[f"grad.{name}"]


CORNERS = {
    "Relu": ("y = Relu (x)", [-1, 0, -0.0, 2], [0, 0, 0, 1]),
    "Abs": ("y = Abs (x)", [-1, 0, -0.0, 2], [-1, 0, 0, 1]),
    "LeakyRelu": ("y = LeakyRelu <alpha = 0.5> (x)", [-1, 0, 2], [0.5, 0.5, 1]),
    "Clip": ("l = Constant <value = float {-1.0}> () h = Constant <value = float {1.0}> ()"
             " y = Clip (x, l, h)", [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
    "ReduceMax": ("y = ReduceMax <keepdims = 0> (x)", [1, 3, 3], [0, 0.5, 0.5]),
    "ReduceMin": ("y = ReduceMin <keepdims = 0> (x)", [1, 1, 3, 1], [1 / 3, 1 / 3, 0, 1 / 3]),
    "Max": ("z = Constant <value = float {1.0}> () y = Max (x, z)", [0, 1, 2], [0, 0.5, 1]),
    "Min": ("z = Constant <value = float {1.0}> () y = Min (x, z)", [0, 1, 2], [1, 0.5, 0]),
    "ReduceL2": ("y = ReduceL2 <keepdims = 0> (x)", [0, 0], [0, 0]),
    "ReduceL1": ("y = ReduceL1 <keepdims = 0> (x)", [0, -2], [0, -1]),
    "ReduceProd": ("y = ReduceProd <keepdims = 0> (x)", [0, 3, 4], [12, 0, 0]),
    "ReduceProd of two zeros": ("y = ReduceProd <keepdims = 0> (x)", [0, 0, 4], [0, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_corners_are_as_in_torch(name: str) -> None:
    body, x, want = CORNERS[name]
    found = gradient(model(body), {"x": np.array(x, np.float32)})
    np.testing.assert_allclose(found, want, rtol=1e-6)


def twice(body: str, x: Any) -> Any:
    """The gradient of the sum of the gradient."""
    proto = model(body, f"float[{len(x)}] x", kind="double")
    made = ir.to_proto(pitc.gradient(proto, "loss", ["x"]))
    made.graph.node.append(helper.make_node("ReduceSum", ["grad.x"], ["total"], keepdims=0))
    made.graph.output.append(helper.make_tensor_value_info("total", onnx.TensorProto.DOUBLE, []))
    again = ir.to_proto(pitc.gradient(made, "total", ["x"]))
    names = [o.name for o in again.graph.output]
    (found,) = [g for n, g in zip(names, reference(again, {"x": x}), strict=True) if "grad" in n]
    return found


SECOND = {
    "Elu": ("a = Elu (x) y = Mul (a, a)", [800, 1], [2, 2]),
    "Selu": ("a = Selu (x) y = Mul (a, a)", [800], [2 * 1.05070102214813232421875**2]),
    "Celu": ("a = Celu (x) y = Mul (a, a)", [800], [2]),
    "below 0": ("y = Elu (x)", [-1, 0], [np.exp(-1), 1]),
    "exponent 0": ("e = Constant <value = double[2] {0.0, 2.0}> () y = Pow (x, e)", [0, 3], [0, 2]),
    "length 0": ("a = ReduceL2 <keepdims = 0> (x) y = Mul (a, a)", [0, 0], [0, 0]),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_gradients_of_choices(name: str) -> None:
    """What a choice does not take is finite, or the gradient of the choice is NaN."""
    body, x, want = SECOND[name]
    np.testing.assert_allclose(twice(body, np.array(x, np.float64)), want, rtol=1e-6)


def test_the_gradient_of_a_product_has_none() -> None:
    with pytest.raises(PitcError, match="no gradient of Where: it is the gradient of a product"):
        twice("y = ReduceProd <keepdims = 0> (x)", np.ones(3))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_cross_entropy_of_certain_chances(dtype: Any) -> None:
    """Chances of 0 and 1 have a finite loss and a finite gradient; of NaN both are NaN."""
    kind = {2: "float16", 4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    text = f"g ({kind}[n] x) => ({kind}[n] p) {{ p = Sigmoid (x) }}"
    text = f'<ir_version: 9, opset_import: ["": 18]> {text}'
    made = ir.to_proto(pitc.gradient(onnx.parser.parse_model(text), pitc.Loss("bce", "p"), ["x"]))
    x = np.array([2000, -2000, 2000, 0.5], dtype)
    feeds = {"x": x, "labels": np.array([1, 0, 0, 1], dtype)}
    loss, found = runtime(made, feeds)
    sure = np.array([0, 0, 100, np.log1p(np.exp(-0.5))])
    np.testing.assert_allclose(loss, sure.mean(), rtol=2e-3)
    np.testing.assert_allclose(found, [0, 0, 0, (1 / (1 + np.exp(-0.5)) - 1) / 4], rtol=2e-3)
    feeds["x"] = np.array([np.nan, 0, 0, 0], dtype)
    assert all(np.isnan(v).any() for v in runtime(made, feeds))


@pytest.mark.parametrize("opset", [13, 22])
@pytest.mark.parametrize("trains", [True, False])
def test_dropout_drops_the_same_backwards(opset: int, trains: bool) -> None:
    proto = model(
        "r = Constant <value = float {0.4}> () z = Dropout (x, r, t) y = Mul (z, c)",
        "float[n] x, float[n] c, bool t",
    )
    proto.opset_import[0].version = opset
    made = ir.to_proto(pitc.gradient(proto, "loss", ["x"], keep=["z"]))
    rng = np.random.default_rng(0)
    x, c = ((rng.normal(size=200) + 5).astype(np.float32) for _ in range(2))
    names = [o.name for o in made.graph.output]
    found = dict(zip(names, runtime(made, {"x": x, "c": c, "t": np.array(trains)}), strict=True))
    assert bool((found["z"] == 0).any()) == trains
    np.testing.assert_allclose(found["grad.x"], found["z"] / x * c, rtol=1e-5)


def test_a_loss_of_which_the_rank_is_unknown_on_the_way() -> None:
    """The refusal says of what it follows; that the model declares a number is no proof."""
    with pytest.raises(PitcError, match=r"its shape is unknown .*the shape of input 0 \(y\) is"):
        pitc.gradient(model("y = Reshape (x, s)", "float[n] x, int64[k] s"), "loss", ["x"])


ELEMENTWISE = [
    s
    for s in map(in_float64, SAMPLES)
    if (record := OPERATORS.get((s.domain, s.op))) is not None
    and record.derivative is not None
    and record.function is not None
    and float_operands(s)
]


@pytest.mark.parametrize("sample", ELEMENTWISE, ids=lambda s: s.op)
def test_terms_are_evaluated_as_they_are_emitted(sample: Sample) -> None:
    """One term is both: numbers of numpy, and nodes of a graph."""
    proto = node_model(sample, [], False)
    made = ir.from_proto(proto)
    graph = Graph(made)
    derive(graph)
    record, view = OPERATORS[sample.domain, sample.op], NodeView(graph, made.graph[0])
    assert record.derivative is not None
    operands = {i: array_of(o) for i, o in enumerate(sample.operands) if o is not None}
    try:
        found, terms = Differentiated(sample, False, reference), record.derivative(view)
        (y, *_) = reference(proto, {f"x{i}": x for i, x in operands.items()})
    except (NotImplementedError, RuntimeError):
        pytest.skip("ONNX's reference has no such operator of float64")
    for place in float_operands(sample):
        if place >= len(terms):
            continue
        slope = evaluate(terms[place], operands, y) * np.ones(np.shape(y))
        shape = np.shape(operands[place])
        whole = slope * found.feeds["c0"]
        lead = tuple(range(whole.ndim - len(shape)))
        whole = whole.sum(lead)
        ones = tuple(d for d, n in enumerate(shape) if n == 1)
        got = whole.sum(ones, keepdims=True).reshape(shape)
        try:
            want = found.gradient(place)
        except PitcError as error:  # a step, or what changes a node otherwise than its elements do
            refused = any(text in str(error) for text in ("no gradient of", "is too old"))
            assert refused or not got.any()
            continue
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("opset", [13, 16, 19, 22])
def test_the_graph_keeps_its_operator_set(opset: int) -> None:
    """And has operators of the standard only."""
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g (float[n, 4] x) => (float[n, 3] s) {{ h = MatMul (x, w) r = Relu (h) s = MatMul (r, v) }}"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 5)), ("v", (5, 3))):
        numbers = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    loss = pitc.Loss("cross_entropy" if opset >= 16 else "mse", "s")  # which looks nothing up
    for made in (pitc.gradient(proto, loss), pitc.train_step(proto, loss, clip=1.0)):
        assert dict(made.opset_imports) == {"": opset}
        assert {node.domain for node in made.graph.all_nodes()} == {""}
        onnx.checker.check_model(ir.to_proto(made))


@pytest.mark.parametrize("extent", [1, 3])
def test_second_gradients_of_extents_that_a_run_tells(extent: int) -> None:
    """An operand of one row or of as many as the other one: its gradient is a sum, or is none."""
    proto = model("s = Mul (x, w) y = Tanh (s)", "float[n, 3] x, float[k, m] w", "double")
    made = ir.to_proto(pitc.gradient(proto, "loss", ["w"]))
    made.graph.node.append(helper.make_node("ReduceSum", ["grad.w"], ["total"], keepdims=0))
    made.graph.output.append(helper.make_tensor_value_info("total", onnx.TensorProto.DOUBLE, []))
    second = ir.to_proto(pitc.gradient(made, "total", ["w"]))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(4, 3)), "w": rng.normal(size=(1, extent))}
    found = reference(second, feeds)[-1]
    for k in range(extent):
        step = np.zeros((1, extent))
        step[0, k] = 1e-6
        ends = [reference(made, feeds | {"w": feeds["w"] + s * step})[-1] for s in (1, -1)]
        np.testing.assert_allclose(found[0, k], (ends[0] - ends[1]) / 2e-6, rtol=1e-5)
