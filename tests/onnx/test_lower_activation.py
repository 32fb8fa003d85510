"""Activations behind contractions: known by their expression, in every spelling."""

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.graph import GraphBuilder
from pitc.ir.graph import Graph
from pitc.passes.lower.activation import ACTIVATIONS, activation_behind
from pitc.passes.lower.formula import (
    NoFormula,
    X,
    alike,
    applied,
    number,
    plus,
    reciprocal,
    scaled,
    times,
)
from tests.lower_support import check, lower, plans, weight

HALF_ROOT = 1 / math.sqrt(2)


def unary(
    nodes: list[tuple],
    constants: Mapping[str, object],
    opset: int = 20,
    ends: int = TensorProto.FLOAT,
    starts: int = TensorProto.FLOAT,
) -> Graph:
    """x -> y by the given (op, inputs, output) steps; constants are of the type of x."""
    dtype = helper.tensor_dtype_to_np_dtype(starts)
    made = helper.make_graph(
        [
            helper.make_node(op, list(inputs), [out], **{"domain": "", **attrs})
            for op, inputs, out, *rest in nodes
            for attrs in [rest[0] if rest else {}]
        ],
        "g",
        [helper.make_tensor_value_info("x", starts, ["n"])],
        [helper.make_tensor_value_info("y", ends, ["n"])],
        [numpy_helper.from_array(np.asarray(v, dtype), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=9)
    return Graph(ir.serde.deserialize_model(model))


GELU_STEPS = [
    ("Div", ("x", "root"), "a"),
    ("Erf", ("a",), "e"),
    ("Add", ("e", "one"), "s"),
    ("Mul", ("x", "s"), "m"),
    ("Mul", ("m", "half"), "y"),
]
NUMBERS: dict[str, object] = {
    "root": math.sqrt(2),
    "one": 1.0,
    "half": 0.5,
    "inverse": HALF_ROOT,
    "zero": 0.0,
}
NUMBERS |= {"top": 20.0, "low": -15.0, "high": 15.0, "inf": math.inf, "big": 1e6}
NUMBERS |= {"near": 1.70201, "nan": math.nan, "cubed": [[[1.0]]]}
NUMBERS |= {"three": 3.0, "cube": 0.044715, "slope": math.sqrt(2 / math.pi), "quick": 1.702}
NUMBERS |= {"two": 2.0, "half_quick": 0.851}

TANH_STEPS = [  # by half of one plus the tanh of u
    ("Tanh", ("u",), "t"),
    ("Add", ("t", "one"), "s"),
    ("Mul", ("x", "half"), "h"),
    ("Mul", ("h", "s"), "y"),
]
SPELLINGS = {
    "exporter": (GELU_STEPS, "gelu"),
    "half first": (
        [
            ("Mul", ("x", "half"), "h"),
            ("Mul", ("x", "inverse"), "a"),
            ("Erf", ("a",), "e"),
            ("Add", ("one", "e"), "s"),
            ("Mul", ("s", "h"), "y"),
        ],
        "gelu",
    ),
    "operator": ([("Gelu", ("x",), "y")], "gelu"),
    "tanh operator": ([("Gelu", ("x",), "y", {"approximate": "tanh"})], "gelu_tanh"),
    "exported tanh": (
        [
            ("Pow", ("x", "three"), "p"),
            ("Mul", ("p", "cube"), "c"),
            ("Add", ("x", "c"), "i"),
            ("Mul", ("i", "slope"), "u"),
            *TANH_STEPS,
        ],
        "gelu_tanh",
    ),
    "swish": ([("Sigmoid", ("x",), "s"), ("Mul", ("s", "x"), "y")], "silu"),
    "clip": (
        [("Mul", ("x", "quick"), "q"), ("Sigmoid", ("q",), "s"), ("Mul", ("x", "s"), "y")],
        "gelu_quick",
    ),
    "relu": ([("Relu", ("x",), "y")], "relu"),
    "relu as max": ([("Max", ("x", "zero"), "y")], "relu"),
    "relu as clip": ([("Clip", ("x", "zero", "inf"), "y")], "relu"),
    "exponential": (
        [
            ("Neg", ("x",), "m"),
            ("Exp", ("m",), "e"),
            ("Add", ("e", "one"), "s"),
            ("Div", ("x", "s"), "y"),
        ],
        "silu",
    ),
    "reciprocal": (
        [
            ("Mul", ("x", "quick"), "q"),
            ("Neg", ("q",), "m"),
            ("Exp", ("m",), "e"),
            ("Add", ("one", "e"), "s"),
            ("Reciprocal", ("s",), "r"),
            ("Mul", ("r", "x"), "y"),
        ],
        "gelu_quick",
    ),
    "odd": (
        [
            ("Neg", ("x",), "m"),
            ("Mul", ("m", "inverse"), "a"),
            ("Erf", ("a",), "e"),
            ("Sub", ("one", "e"), "s"),
            ("Mul", ("x", "s"), "p"),
            ("Mul", ("p", "half"), "y"),
        ],
        "gelu",
    ),
    "quick operator": (
        [("QuickGelu", ("x",), "y", {"alpha": 1.702, "domain": "com.microsoft"})],
        "gelu_quick",
    ),
    "silu operator": (
        [("QuickGelu", ("x",), "y", {"alpha": 1.0, "domain": "com.microsoft"})],
        "silu",
    ),
    "quick operator as it is": (
        [("QuickGelu", ("x",), "y", {"domain": "com.microsoft"})],
        "gelu_quick",
    ),
    "other quick operator": (
        [("QuickGelu", ("x",), "y", {"alpha": 1.8, "domain": "com.microsoft"})],
        None,
    ),
    "swish operator": ([("Swish", ("x",), "y")], "silu"),
    "swish operator of another slope": ([("Swish", ("x",), "y", {"alpha": 1.702})], "gelu_quick"),
    "fused operator": ([("Gelu", ("x",), "y", {"domain": "com.microsoft"})], "gelu"),
    "fast operator": ([("FastGelu", ("x",), "y", {"domain": "com.microsoft"})], "gelu_tanh"),
    "square by x": (
        [
            ("Pow", ("x", "two"), "p"),
            ("Mul", ("p", "x"), "q"),
            ("Mul", ("q", "cube"), "c"),
            ("Sum", ("x", "c"), "i"),
            ("Mul", ("i", "slope"), "u"),
            *TANH_STEPS,
        ],
        "gelu_tanh",
    ),
    "silu by tanh": ([("Mul", ("x", "half"), "u"), *TANH_STEPS], "silu"),
    "quick by tanh": ([("Mul", ("x", "half_quick"), "u"), *TANH_STEPS], "gelu_quick"),
    "another by tanh": ([("Identity", ("x",), "u"), *TANH_STEPS], None),
    "tanh by sigmoid": (
        [
            ("Pow", ("x", "three"), "p"),
            ("Mul", ("p", "cube"), "c"),
            ("Add", ("x", "c"), "i"),
            ("Mul", ("i", "slope"), "u"),
            ("Add", ("u", "u"), "v"),
            ("Sigmoid", ("v",), "s"),
            ("Mul", ("x", "s"), "y"),
        ],
        "gelu_tanh",
    ),
    "the same again": (
        [
            ("Pow", ("x", "one"), "a"),
            ("Cast", ("a",), "c", {"to": TensorProto.FLOAT}),
            ("Identity", ("c",), "d"),
            ("Relu", ("d",), "y"),
        ],
        "relu",
    ),
    "relu of two": ([("Max", ("x", "zero", "zero"), "y")], None),
    "clamp": ([("Clip", ("x", "zero", "top"), "y")], None),
    "clamp of largest": ([("Clip", ("x", "zero"), "y")], None),  # of inf it is the largest number
    "relu of min": ([("Min", ("x", "top"), "a"), ("Relu", ("a",), "y")], None),
    "gelu of clip": (
        [
            ("Clip", ("x", "low", "high"), "c"),
            ("Div", ("c", "root"), "a"),
            ("Erf", ("a",), "e"),
            ("Add", ("e", "one"), "s"),
            ("Mul", ("c", "s"), "m"),
            ("Mul", ("m", "half"), "y"),
        ],
        None,
    ),
    "near quick": (
        [("Mul", ("x", "near"), "q"), ("Sigmoid", ("q",), "s"), ("Mul", ("x", "s"), "y")],
        None,
    ),
    "rounded": (
        [("Add", ("x", "big"), "a"), ("Sub", ("a", "big"), "b"), ("Relu", ("b",), "y")],
        None,
    ),
    "relu of nan": ([("Max", ("x", "nan"), "y")], None),
    "more dimensions": ([("Max", ("x", "cubed"), "a"), ("Relu", ("a",), "y")], None),
    "threshold": ([("ThresholdedRelu", ("x",), "y", {"alpha": 0.0})], None),  # of NaN it is 0
    "other tanh": ([("Tanh", ("x",), "t"), ("Mul", ("x", "t"), "y")], None),
    "other constant": ([("Div", ("x", "one"), "a"), *GELU_STEPS[1:]], None),
    "negative": ([("Neg", ("x",), "n"), ("Relu", ("n",), "y")], None),
    "leaky": ([("LeakyRelu", ("x",), "y")], None),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_activation_is_known_by_its_expression(name):
    steps, want = SPELLINGS[name]
    graph = unary(steps, NUMBERS)
    found = activation_behind(graph, graph.model.graph.inputs[0])
    assert (found.name if found else None) == want
    assert found is None or found.result.name == "y"


@pytest.mark.parametrize("slope", [1.702, 1.7, 1.7041])
def test_slopes_of_float16_are_told_apart(slope):
    """Of 1.702 the nearest number is 1.7021; its neighbours beyond 1.701 and 1.703 are others."""
    steps, _ = SPELLINGS["clip"]
    half = TensorProto.FLOAT16
    graph = unary(steps, {"quick": slope}, ends=half, starts=half)
    found = activation_behind(graph, graph.model.graph.inputs[0])
    assert (found.name if found else None) == ("gelu_quick" if slope == 1.702 else None)


@pytest.mark.parametrize("slope", [1.6875, 1.6953125, 1.703125, 1.7109375, 1.71875])
def test_slopes_of_bfloat16_are_told_apart(slope: float) -> None:
    """Two steps of a number are what two roundings make of it, and no more."""
    steps, _ = SPELLINGS["clip"]
    wide = TensorProto.BFLOAT16
    graph = unary(steps, {"quick": slope}, ends=wide, starts=wide)
    found = activation_behind(graph, graph.model.graph.inputs[0])
    near = abs(slope - 1.702) < 0.01
    assert (found.name if found else None) == ("gelu_quick" if near else None)


def test_a_value_read_elsewhere_ends_the_activation():
    graph = unary(
        [*GELU_STEPS[:-1], ("Mul", ("m", "half"), "g"), ("Add", ("g", "e"), "y")], NUMBERS
    )
    assert activation_behind(graph, graph.model.graph.inputs[0]) is None


NOT_FLOAT = {
    "half": ([("Cast", ("x",), "y", {"to": TensorProto.FLOAT16})], TensorProto.FLOAT16),
    "half relu": (
        [("Cast", ("x",), "h", {"to": TensorProto.FLOAT16}), ("Relu", ("h",), "y")],
        TensorProto.FLOAT16,
    ),
    "there and back": (
        [
            ("Cast", ("x",), "h", {"to": TensorProto.BFLOAT16}),
            ("Cast", ("h",), "f", {"to": TensorProto.FLOAT}),
            ("Relu", ("f",), "y"),
        ],
        TensorProto.FLOAT,
    ),
    "int": ([("Cast", ("x",), "y", {"to": TensorProto.INT8})], TensorProto.INT8),
    "float8": ([("Cast", ("x",), "y", {"to": TensorProto.FLOAT8E4M3FN})], TensorProto.FLOAT8E4M3FN),
    "string": ([("Cast", ("x",), "y", {"to": TensorProto.STRING})], TensorProto.STRING),
}


@pytest.mark.parametrize("name", NOT_FLOAT)
def test_other_types_are_no_activation(name):
    steps, ends = NOT_FLOAT[name]
    graph = unary(steps, {}, ends=ends)
    assert activation_behind(graph, graph.model.graph.inputs[0]) is None


def test_a_clip_by_attributes_is_no_activation():
    graph = unary([("Clip", ("x",), "y", {"min": 0.0, "max": 20.0})], {}, opset=6)
    assert activation_behind(graph, graph.model.graph.inputs[0]) is None


def test_formulas_are_told_apart_by_their_constants():
    for name, forms in ACTIVATIONS.items():
        for other, others in ACTIVATIONS.items():
            same = any(alike(a, b) for a in forms for b in others)
            assert same == (name == other)
        assert not any(alike(scaled(a, 1.001), b) for a in forms for b in forms)
        assert not any(alike(plus(a, X), b) for a in forms for b in forms)


def test_terms_that_are_alike_stand_for_one():
    """Two halves that differ in the last bit are not a pair of different terms."""
    a, b = (applied("erf", scaled(X, slope)) for slope in (0.5, 0.5 + 1e-9))
    assert not alike(plus(a, b), plus(a, X))


def test_what_rounds_otherwise_is_no_formula():
    for make in (
        lambda: plus(plus(X, number(3.0)), number(-3.0)),
        lambda: plus(X, scaled(X, -0.9)),
        lambda: scaled(X, 1e30),
        lambda: times(scaled(X, 1e-5), scaled(X, 1e-5)),
        lambda: reciprocal(X),
        lambda: reciprocal(number(0.0)),
        lambda: reciprocal(plus(number(2.0), applied("exp", X))),
        lambda: reciprocal(plus(number(1.0), times(X, applied("exp", X)))),
        lambda: reciprocal(plus(number(1.0), applied("erf", X))),
        lambda: reciprocal(plus(plus(number(1.0), applied("exp", X)), X)),
        lambda: reciprocal(applied("exp", X)),
        lambda: scaled(X, math.nan),
    ):
        with pytest.raises(NoFormula):
            make()


def test_a_formula_has_so_many_terms() -> None:
    many = X
    for slope in range(1, 16):
        many = plus(many, applied("exp", scaled(X, slope)))
    assert len(many.terms) == 16
    with pytest.raises(NoFormula):
        plus(many, number(1.0))


@pytest.mark.parametrize(("nodes", "name"), [(10, "relu"), (11, None)])
def test_an_activation_has_so_many_nodes(nodes: int, name: str | None) -> None:
    values = ["x", *(f"v{k}" for k in range(nodes - 1)), "y"]
    ops = ["Identity"] * (nodes - 1) + ["Relu"]
    steps = [(op, (a,), b) for op, a, b in zip(ops, values, values[1:], strict=False)]
    graph = unary(steps, {})
    found = activation_behind(graph, graph.model.graph.inputs[0])
    assert (found.name if found else None) == name


def clamp(g: GraphBuilder, h: str) -> str:
    return g.op("Clip", h, g.const(0, np.float32), g.const(20, np.float32))


def relu6(g: GraphBuilder, h: str) -> str:
    return g.op("Min", g.op("Relu", h), g.const(6, np.float32))


def relu_of_min(g: GraphBuilder, h: str) -> str:
    return g.op("Relu", g.op("Min", h, g.const(20, np.float32)))


def gelu_of_clip(g: GraphBuilder, h: str) -> str:
    return g.op("Gelu", g.op("Clip", h, g.const(-15, np.float32), g.const(15, np.float32)))


CLAMPS = {f.__name__: f for f in (clamp, relu6, relu_of_min, gelu_of_clip)}


@pytest.mark.parametrize("name", CLAMPS)
@pytest.mark.parametrize("padding", [None, "mask"])
def test_a_clamp_between_contractions_keeps_its_bounds(name, padding):
    g = GraphBuilder("clamps", opset=20)
    x, mask = g.input("x", np.float32, ("b", "s", 64)), g.input("mask", np.int64, ("b", "s"))
    h = CLAMPS[name](g, g.op("MatMul", x, weight(g, "w1", 64, 320)))
    y = g.op("MatMul", h, weight(g, "w2", 320, 96))
    if padding is None:  # a mask that nothing depends on
        y = g.op("Add", y, g.op("Cast", g.op("ReduceMin", mask, keepdims=0), to=TensorProto.FLOAT))
    g.output(y, "y", np.float32, ("b", "s", 96))
    proto = g.model()
    lowered = lower(proto, padding)
    assert {p.get("activation", "none") for p in plans(lowered)} <= {"none", "relu"}
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(0, 40, (2, 5, 64)).astype(np.float32)}
    check(proto, lowered, feeds | {"mask": np.ones((2, 5), np.int64)})


def test_a_product_that_is_narrowed_compiles_in_a_packed_region():
    g = GraphBuilder("narrow", opset=20)
    x, _ = g.input("x", np.float32, ("b", "s", 64)), g.input("mask", np.int64, ("b", "s"))
    h = g.op("Cast", g.op("MatMul", x, weight(g, "w1", 64, 320)), to=TensorProto.FLOAT16)
    h = g.op("Cast", g.op("Relu", h), to=TensorProto.FLOAT)
    g.output(g.op("MatMul", h, weight(g, "w2", 320, 96)), "y", np.float32, ("b", "s", 96))
    found = plans(lower(g.model(), "mask"))
    assert [p["activation"] for p in found if "activation" in p] == ["none", "none"]


@pytest.mark.parametrize("size", [1, 3, 16, 33])
def test_onnxruntime_keeps_nan_where_the_kernel_does(size):
    """`relu` of a kernel gives NaN for NaN: so does every spelling that is taken for it."""
    x = np.full(size, np.nan, np.float32)
    for name in ("relu", "relu as max", "relu as clip"):
        proto: onnx.ModelProto = ir.serde.serialize_model(unary(SPELLINGS[name][0], NUMBERS).model)
        session = ort.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (y,) = session.run(None, {"x": x})
        assert np.isnan(np.asarray(y)).all()
