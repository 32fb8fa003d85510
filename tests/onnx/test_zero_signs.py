"""Where the sign of a 0 is seen (passes/facts/zero_signs.py): exact sets; flipped elsewhere, no run
may notice it.
"""

import numpy as np
import onnx
import pytest

from pitc.passes.facts.zero_signs import _tells_zeros_apart, signed_zeros
from pitc.passes.rules.record import Elementwise
from tests.guard_worlds import Array, graph_of, model_of, session, values_of

SEEN = {
    "y = Mul (x, z)": "",
    "y = Reciprocal (x)": "x",
    "y = Div (x, z)": "z",
    "c = Mul (x, z) y = Reciprocal (c)": "c x z",
    "c = Mul (x, z) y = Cos (c)": "",
    "c = Reciprocal (x) y = Mul (c, z)": "x",
    "c = Mul (x, zero) d = Div (c, z) y = Reciprocal (d)": "c d x z zero",
    "d = Div (x, half) y = Reciprocal (d)": "d half x",
    # functions of one operand
    "c = Cos (x) y = Reciprocal (c)": "c",
    "c = Sigmoid (x) y = Reciprocal (c)": "c",
    "c = Abs (x) y = Reciprocal (c)": "c x",
    "c = Tanh (x) y = Reciprocal (c)": "c x",
    "c = Relu (x) y = Reciprocal (c)": "c x",
    "c = HardSigmoid (x) y = Reciprocal (c)": "c x",
    "a = Cos (x) c = Neg (a) y = Reciprocal (c)": "a c",
    "y = Pow (x, two)": "",
    # squares
    "c = Mul (x, x) y = Reciprocal (c)": "c",
    "c = Pow (x, two) y = Reciprocal (c)": "c",
    "c = ReduceL2 <keepdims = 1> (x) y = Reciprocal (c)": "c",
    "c = ReduceL1 <keepdims = 1> (x) y = Reciprocal (c)": "c",
    "c = ReduceSumSquare <keepdims = 1> (x) y = Reciprocal (c)": "c",
    "y = Pow (x, half)": "half x",
    "y = Pow (half, x)": "half x",
    # of several
    "c = Add (x, z) y = Reciprocal (c)": "c x z",
    "c = Max (x, z) y = Reciprocal (c)": "c x z",
    "c = Where (mask, x, z) y = Reciprocal (c)": "c x z",
    "c = Mul (x, z) y = Add (c, one)": "",
    "c = Less (x, zero) y = Where (c, x, z)": "",
    # sums start at 0
    "c = Transpose (z) d = MatMul (x, c) y = Reciprocal (d)": "d",
    'd = Einsum <equation = "ij,kj->ik"> (x, z) y = Reciprocal (d)': "d",
    'd = Einsum <equation = "ij,kl->ijkl"> (x, z) y = Reciprocal (d)': "d x z",
    "w = ReduceSum (z, last) c = Gemm <transB = 1> (x, x, w) y = Reciprocal (c)": "c w z",
    "w = ReduceSum (z, last) c = Gemm <transB = 1, alpha = -1.0> (x, x, w) y = Reciprocal (c)": (
        "c w z"
    ),
    "c = ReduceSum (x, last) y = Reciprocal (c)": "c x",
    "c = ReduceMax (x, last) y = Reciprocal (c)": "c x",
    # rows
    "c = Softmax (x) y = Reciprocal (c)": "c",
    "y = LpNormalization (x)": "x",
    "y = LayerNormalization (x, pair)": "",
    "c = LayerNormalization (x, pair) y = Reciprocal (c)": "c pair x",
    # places
    "c = Transpose (x) y = Reciprocal (c)": "c x",
    "c = Transpose (x) y = Tanh (c)": "",
    "c = Mul (x, z) t = Cast <to = 8> (c) y = Cast <to = 1> (t)": "c x z",
    "c = Cast <to = 16> (x) d = Cast <to = 1> (c) y = Reciprocal (d)": "c d x",
    "c = Clip (x, , one) y = Reciprocal (c)": "c one x",
    "c = Gather <axis = 1> (x, places) y = Reciprocal (c)": "c x",
    # no floats, or no element
    "c = Shape (x) d = Cast <to = 1> (c) y = Reciprocal (d)": "d",
    "c = Cast <to = 7> (x) d = Cast <to = 1> (c) y = Reciprocal (d)": "d",
    "c = Cast <to = 1> (mask) y = Reciprocal (c)": "c",
    # what nobody knows
    "y = Log (any)": "any",
    "y = Tanh (any)": "any",
    "c = Shape (any) d = Cast <to = 1> (c) y = Reciprocal (d)": "d",
    "y = other.Op (x)": "x",
    "y = other.Op (places)": "",
    "c = other.Op (places) y = Tanh (c)": "c",
    # a body
    """t = Tanh (z) y = Loop <body = g (int64 i, bool c, float[b, s] v) => (bool d, float[b, s] w) {
        d = Identity (c) w = Add (v, t) }> (trips, again, x)""": "t x z",
}


@pytest.mark.parametrize("body", SEEN)
def test_what_is_seen(body: str) -> None:
    assert sorted(signed_zeros(graph_of(model_of(body))) - {"again", "trips"}) == SEEN[body].split()


@pytest.mark.parametrize(("untyped", "seen"), [("", ""), ("q", "x"), ("r", "x"), ("q r", "x")])
def test_a_result_of_an_unknown_type_may_be_text(untyped: str, seen: str) -> None:
    graph = graph_of(model_of("q, r = Dropout (x) y = Tanh (q)"))
    for name in untyped.split():
        graph[name].dtype = None
    assert signed_zeros(graph) == set(seen.split())


def given(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with one of its values as a further input."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    nodes = [n for n in graph.node if name not in n.output]
    tensors = [t for t in graph.initializer if t.name != name]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    if name not in [x.name for x in graph.input]:
        graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return twin


def flipped(x: Array, rng: np.random.Generator) -> Array:
    """The zeros with other signs."""
    return np.where(x == 0, rng.choice(np.array([0.0, -0.0], x.dtype), x.shape), x)


# ONNX Runtime ends the process at an Einsum of nothing, and numpy has no bfloat16
NOT_RUN = ("other", "Einsum", "to = 16")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [b for b in SEEN if not any(r in b for r in NOT_RUN)])
def test_a_sign_that_is_flipped_elsewhere_is_not_noticed(body: str) -> None:
    model, rng = model_of(body), np.random.default_rng(2)
    seen = signed_zeros(graph_of(model))
    runs = list(values_of(model))
    assert runs
    named = {x for node in model.graph.node for x in (*node.input, *node.output)}
    free = [n for n in named if n in runs[0] and n not in seen and n != "y"]
    for name in (n for n in free if runs[0][n].dtype == np.float32):
        twin = given(model, name)
        run = session(twin)
        inputs = [x.name for x in twin.graph.input]
        for values in runs:
            feed = {n: values[n] for n in inputs} | {name: flipped(values[name], rng)}
            y = run.run(["y"], feed)[0]
            np.testing.assert_array_equal(y, values["y"])  # -0.0 is 0.0, NaN is NaN


@pytest.mark.parametrize(
    ("function", "apart"),
    [
        (np.cos, False),
        (lambda x: x * x + 1, False),
        (np.abs, True),
        (np.sin, True),
        (np.reciprocal, True),
        (lambda x: np.copysign(np.float32(2), x), True),
        (np.bitwise_not, True),
        (None, True),
    ],
)
def test_a_function_that_tells_zeros_apart(function: object, apart: bool) -> None:
    row = Elementwise(function)  # type: ignore[arg-type]
    assert _tells_zeros_apart(row) is apart
    assert _tells_zeros_apart(Elementwise(row.evaluate, parameters=lambda _: {}))
