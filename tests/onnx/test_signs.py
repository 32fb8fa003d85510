"""Signs by construction, on values that try to break them; and what they let run packed."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir import target as targets
from pitc.ir.graph import Graph, NodeView
from pitc.passes.exprs.derive import derive
from pitc.passes.facts.signs import Known, sign_of
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from pitc.passes.rules.record import operator_of
from pitc.passes.rules.signs import Sign
from tests.plan_reference import run_lowered

ANY, NONNEGATIVE, POSITIVE = Sign
HEAD = """
<ir_version: 8, opset_import: ["" : 18]>
model (float[b, s, 4] x, float[b, s, 4] z) => (float[b, s, n] y)
<float two = {2}, float three = {3}, float half = {0.5}, float minus = {-1}, float zero = {0},
 float eps = {0.000001}, float tiny = {1e-40}, int64[1] last = {-1}, int64[1] one = {1}>
{
"""
SIGNS = {
    "y = Identity (x)": ANY,
    "y = Mul (x, x)": NONNEGATIVE,
    "y = Mul (x, z)": ANY,
    "y = Pow (x, two)": NONNEGATIVE,
    "y = Pow (x, three)": ANY,
    "y = Pow (x, half)": ANY,
    "a = Abs (x) y = Pow (a, half)": NONNEGATIVE,
    "a = Max (x, eps) y = Pow (a, half)": POSITIVE,
    "a = Max (x, eps) y = Pow (a, three)": ANY,  # it may underflow
    "a = Max (x, eps) y = Pow (a, minus)": ANY,
    "a = Abs (x) y = Add (a, eps)": POSITIVE,
    "a = Abs (x) y = Add (a, minus)": ANY,
    "a = Abs (x) y = Add (a, tiny)": NONNEGATIVE,
    "a = Abs (x) y = Add (x, a)": ANY,
    "a = Exp (x) y = Mul (a, eps)": NONNEGATIVE,
    "a = Relu (x) b = Sigmoid (z) y = Sum (a, b, eps)": POSITIVE,
    "a = Relu (x) y = Neg (a)": ANY,
    "y = Max (x, half)": POSITIVE,
    "y = Min (x, half)": ANY,
    "y = Clip (x, eps)": POSITIVE,
    "y = Clip (x, minus)": ANY,
    "y = Clip (x, eps, two)": POSITIVE,
    "y = Clip (x, eps, )": POSITIVE,  # an operand that is left out
    "y = Clip (x, , two)": ANY,
    "a = Abs (x) y = Clip (a, , two)": NONNEGATIVE,
    "y = Clip (x, eps, minus)": ANY,
    "y = Softmax (x)": NONNEGATIVE,
    "a = Softmax (x) y = ReduceSum (a, last)": POSITIVE,
    "a = Softmax <axis = 1> (x) y = ReduceSum (a, one)": NONNEGATIVE,  # 0 of no elements
    "y = ReduceSumSquare (x, last)": NONNEGATIVE,
    "a = Pow (x, two) b = ReduceMean (a, last) y = Add (b, eps)": POSITIVE,
    "a = Exp (x) y = ReduceMax (a, last)": ANY,  # of no elements it is minus infinity
    "a = Exp (x) b = Transpose <perm = [1, 0, 2]> (a) y = Add (b, eps)": POSITIVE,
    "a = Exp (x) y = Concat <axis = 2> (a, x)": ANY,
    "y = Identity (zero)": NONNEGATIVE,
    # through gathers, pieces and choices
    "a = Exp (x) i = ArgMax <axis = 2> (z) y = GatherElements <axis = 2> (a, i)": NONNEGATIVE,
    "a = Abs (x) b = Add (a, eps) i = ArgMax <axis = 2> (z) y = GatherElements <axis = 2> (b, i)": (
        POSITIVE
    ),
    "a = Abs (x) b = Add (a, eps) y = Gather <axis = 1> (b, one)": POSITIVE,
    "a = Exp (x) b = Abs (z) y = Concat <axis = 2> (a, b)": NONNEGATIVE,
    "a = Exp (x) c = Greater (z, zero) y = Where (c, a, zero)": NONNEGATIVE,
    "a = Exp (x) c = Greater (z, zero) y = Where (c, a, z)": ANY,
}
FINITE = {
    "a = Mul (x, x) y = Sqrt (a)": True,
    "y = Sqrt (x)": False,
    "a = Mul (x, x) y = Reciprocal (a)": False,
    "a = Mul (x, x) b = Add (a, eps) c = Sqrt (b) y = Reciprocal (c)": True,
    "a = Exp (x) y = Log (a)": False,
    "a = Max (z, eps) y = Div (x, a)": True,
    "a = Max (z, zero) y = Div (x, a)": False,
    "y = Pow (x, three)": True,
    # 1 divided by so small a number is infinite
    "a = Mul (x, x) b = Add (a, tiny) y = Reciprocal (b)": False,
    "a = Mul (x, x) b = Add (a, tiny) y = Div (x, b)": False,
    "y = Div (x, tiny)": False,
    "y = Pow (x, half)": False,
    "y = Pow (x, minus)": False,
    "a = Abs (x) y = Pow (a, half)": True,
    # where there is an element, there is a size
    "e = Shape <start = 1, end = 2> (x) f = Cast <to = 1> (e) c = Sqrt (f) y = Div (x, c)": True,
    "e = Shape <start = 1, end = 2> (x) f = Cast <to = 1> (e) r = ReduceSum (x, one)"
    " y = Div (r, f)": False,
    "a = Abs (x) b = Add (a, eps) y = Pow (b, minus)": True,
    # an exponential of what is not positive
    "y = Exp (x)": False,
    "a = Mul (x, x) b = Neg (a) y = Exp (b)": True,
    "a = Mul (x, x) b = Mul (a, minus) y = Exp (b)": True,
    "a = Mul (x, x) b = Mul (minus, a) y = Exp (b)": True,
    "a = Mul (x, x) b = Div (a, minus) y = Exp (b)": True,
    "a = Mul (x, x) b = Neg (a) c = Div (b, two) y = Exp (c)": True,
    "a = Mul (x, x) b = Neg (a) c = Mul (b, z) y = Exp (c)": False,
    "a = Mul (x, x) b = Neg (a) c = Mul (b, minus) y = Exp (c)": False,
    "a = Mul (x, x) b = Neg (a) c = Add (b, minus) y = Exp (c)": True,
    "a = Mul (x, x) b = Neg (a) c = Add (b, z) y = Exp (c)": False,
    "a = Mul (x, x) b = Neg (a) c = Sub (b, a) y = Exp (c)": True,
    "a = Mul (x, x) b = Neg (a) c = Sub (a, b) y = Exp (c)": False,
    "a = Mul (x, x) b = Neg (a) c = Transpose <perm = [1, 0, 2]> (b) y = Exp (c)": True,
    "a = Min (x, minus) y = Exp (a)": True,
    "a = Max (x, minus) y = Exp (a)": False,
    "a = LogSoftmax (x) y = Exp (a)": True,
    "a = Mul (x, x) y = Exp (a)": False,
}


def model_of(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + body + "}")


def derived(model: onnx.ModelProto) -> Graph:
    graph = Graph(ir.serde.deserialize_model(model))
    derive(graph)
    return graph


def hard_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.choice([0.0, -0.0, 1e-30, -1e-30, 1.0, -3.0, 50.0, -120.0], (3, 40, 4))
    return {"x": x.astype(np.float32), "z": np.roll(x, 1, axis=1).astype(np.float32)}


def result(model: onnx.ModelProto) -> np.ndarray:
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(run.run(None, hard_feeds())[0])


@pytest.mark.parametrize("body", SIGNS)
def test_signs(body: str) -> None:
    model = model_of(body)
    assert sign_of(derived(model), "y") is SIGNS[body]
    y = result(model)
    assert SIGNS[body] is ANY or (y >= 0).all()
    assert SIGNS[body] is not POSITIVE or (y > 0).all()


@pytest.mark.parametrize(
    ("bounds", "sign"),
    [("min = 0.5", POSITIVE), ("min = 0.0", NONNEGATIVE), ("max = 0.5", ANY)],
)
def test_bounds_that_are_attributes(bounds: str, sign: Sign) -> None:
    model = model_of(f"y = Clip <{bounds}> (x)")
    model.opset_import[0].version = 10
    assert sign_of(derived(model), "y") is sign
    y = result(model)
    assert sign is ANY or (y >= 0).all()


POOLED = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[b, s, 64] x, int64[b, s] mask) => (float[b, 64] y)
<float eps = {1e-12}, float tiny = {1e-9}, int64[1] last = {-1}, int64[1] one = {1}>
{
    h = MatMul (x, w) u = Unsqueeze (mask, last) m = Cast <to = 1> (u)
    hm = Mul (h, m) sum = ReduceSum <keepdims = 0> (hm, one)
    count = ReduceSum <keepdims = 0> (m, one) c = Clip (count, tiny, ) o = Div (sum, c)
    NORM
}
"""
L2 = "n = ReduceL2 <axes = [-1], keepdims = 1> (o)"
NORMS = (
    "y = Identity (o)",
    f"{L2} nc = Clip (n, eps, ) sh = Shape (o) ne = Expand (nc, sh) y = Div (o, ne)",
    f"{L2} nc = Max (n, eps) y = Div (o, nc)",
    f"{L2} y = Div (o, n)",
    "n = ReduceL1 <axes = [-1], keepdims = 1> (o) y = Div (o, n)",
    "q = Mul (o, o) r = ReduceSum <keepdims = 1> (q, last) e = Add (r, eps) n = Sqrt (e)"
    " y = Div (o, n)",
)


@pytest.mark.parametrize("norm", NORMS)
def test_a_mean_of_tokens_leaves_out_padding_whatever_its_norm(norm: str) -> None:
    proto = onnx.parser.parse_model(POOLED.replace("NORM", norm))
    w = (np.random.default_rng(0).normal(size=(64, 64)) / 8).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model = ir.from_proto(proto)
    graph, _ = analyse(model, None)
    assert [str(r) for r in graph["h"].dead] == ["mask[d0, d1] == 0"]
    assert graph["o"].sign_unseen


def _finite(graph: Graph) -> bool:
    """Whether the producer of y is finite for finite operands, none of which changes."""
    view = NodeView(graph, graph.nodes[-1])
    names = [view.name(i) for i in range(view.n_inputs)]
    return operator_of(view).finite(Known(view, names))


@pytest.mark.parametrize("body", FINITE)
def test_partial_operators_that_are_finite_here(body: str) -> None:
    model = model_of(body)
    graph = derived(model)
    assert _finite(graph) is FINITE[body]
    assert not FINITE[body] or np.isfinite(result(model)).all()


def test_a_norm_may_read_rows_that_come_back_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of every axis has no packed form: what it reads is put back, 0 in rows that nobody
    reads. The norm behind it divides by no 0.
    """
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    model (float[b, s, 4] x, bool[b, s] mask) => (float[b, s, 3] y)
    <float two = {2}, float eps = {0.000001}, int64[1] last = {-1},
     int64[3] first = {0, 0, 1}, int64[3] end = {MAX, MAX, MAX}>
    {
        h = MatMul (x, w)
        p = Slice (h, first, end)
        square = Pow (p, two)
        mean = ReduceMean (square, last)
        more = Add (mean, eps)
        size = Sqrt (more)
        norm = Div (p, size)
        live = Cast <to = 1> (mask)
        row = Unsqueeze (live, last)
        y = Mul (norm, row)
    }
    """
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text.replace("MAX", str(2**63 - 1)))
    w = rng.normal(size=(4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions())
    assert [r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"] == ["packed"]
    feeds = {"x": rng.normal(size=(3, 5, 4)).astype(np.float32), "mask": rng.random((3, 5)) < 0.5}
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = run_lowered(ir.serde.serialize_model(lowered.model), feeds)
    np.testing.assert_allclose(got, np.asarray(run.run(None, feeds)[0]), rtol=1e-5, atol=1e-6)
