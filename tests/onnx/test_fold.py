"""Numbers that a model computes of constants and sizes become constants, bit for bit."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir.constant import is_zero
from pitc.ir.index import poly, sym
from pitc.ir.region import EVERYWHERE
from pitc.passes.facts.sizes import has_place, size_bounds
from pitc.passes.fold import _may_trap, fold_numbers
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from tests.lower_support import lower
from tests.plan_reference import run_lowered

HEAD = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[b, s, 24] x, float[2, 3] t) => (float[b, s, 24] y)
<float two = {2}, float half = {0.5}, float k = {7.3}, float[2] pair = {2, 3},
 float minus = {-1}, int64 i2 = {2}, int64 i1 = {1}, int64 zero = {0}, int64 four = {4},
 int64 third = {3}, int64 huge = {4611686018427387904}, int64[1] last = {-1}, int64[1] one = {1},
 int64[1] end = {9223372036854775807}>
{
"""
SIZE = "e = Shape (x) d = Gather (e, i2)"
CAST = "f = Cast <to = 1> (d)"
# the steps up to c, and how many of them become constants
FOLDED = {
    "c = Pow (k, half)": 1,
    "c = Pow (k, minus)": 1,
    "a = Sqrt (k) c = Div (two, a)": 2,
    f"{SIZE} {CAST} c = Sqrt (f)": 2,
    f"{SIZE} {CAST} c = Pow (f, half)": 2,
    f"{SIZE} d4 = Div (d, four) f = Cast <to = 1> (d4) c = Sqrt (f)": 2,
    f"{SIZE} d4 = Mod (d, four) f = Cast <to = 1> (d4) c = Sqrt (f)": 2,
    "e = Shape (x) p = Slice (e, last, end) f = Cast <to = 1> (p) c = Pow (f, half)": 2,
    "e = Shape <start = 2> (x) f = Cast <to = 1> (e) c = Sqrt (f)": 2,
    "n = Size (t) f = Cast <to = 1> (n) c = Sqrt (f)": 2,
    "a = Cast <to = 11> (k) b = Sqrt (a) c = Cast <to = 1> (b)": 3,
    "q = Pow (pair, half) c = Gather (q, i1)": 1,
    "a = Unsqueeze (k, last) b = Exp (a) c = Squeeze (b)": 3,
}
KEPT = (
    f"e = Shape (x) d = Gather (e, zero) {CAST} c = Sqrt (f)",  # depends on a size
    "r = ReduceMax <keepdims = 0> (t) c = Sqrt (r)",  # on an input
    f"{SIZE} d0 = Div (d, zero) f = Cast <to = 1> (d0) c = Sqrt (f)",  # would stop the compiler
    "c = RandomNormal <shape = [1]> ()",
    "a = RandomNormalLike (k) c = Sqrt (a)",
    "a = Cast <to = 10> (k) b = Sqrt (a) c = Cast <to = 1> (b)",  # how often it rounds, who knows
)


def model_of(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + body + " y = Mul (x, c) }")


def computed(steps: str) -> np.ndarray:
    """What ONNX Runtime's kernels make of the steps."""
    proto = model_of(steps)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    feeds = {"x": np.ones((1, 2, 24), np.float32), "t": np.ones((2, 3), np.float32)}
    return np.asarray(session.run(["c"], feeds)[0])


@pytest.mark.parametrize("steps", FOLDED)
def test_a_number_becomes_the_constant_that_onnx_runtime_computes(steps: str) -> None:
    model = ir.from_proto(model_of(steps))
    assert fold_numbers(model) == FOLDED[steps]
    assert [n.op_type for n in model.graph] == ["Mul"]
    constant = model.graph.initializers["c"].const_value
    assert constant is not None
    want = computed(steps)
    got = constant.numpy()
    assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
    onnx.checker.check_model(ir.to_proto(model))


@pytest.mark.parametrize("steps", KEPT)
def test_what_depends_on_more_stays(steps: str) -> None:
    model = ir.from_proto(model_of(steps))
    before = [n.op_type for n in model.graph]
    assert fold_numbers(model) == 0
    assert [n.op_type for n in model.graph] == before


def test_integers_that_wrap_do_so_here_as_well() -> None:
    steps = "w = Mul (huge, four) v = Add (w, i2) f = Cast <to = 1> (v) c = Sqrt (f)"
    model = ir.from_proto(model_of(steps))
    assert fold_numbers(model) == 2
    constant = model.graph.initializers["c"].const_value
    assert constant is not None and constant.numpy() == np.sqrt(np.float32(2))


def test_no_integer_is_divided_by_what_may_stop_the_compiler() -> None:
    numbers = [np.array([4]), np.array([0])]
    assert _may_trap((1, -1), numbers) and _may_trap((1, -1), [numbers[0], np.array(-1)])
    assert not _may_trap((1, -1), numbers[::-1]) and not _may_trap((1,), numbers)
    assert not _may_trap((1, -1), [x.astype(np.float32) for x in numbers])


def test_what_a_caller_may_replace_and_what_he_gets_stay() -> None:
    proto = model_of("c = Sqrt (k)")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("k", 1, ()))
    assert fold_numbers(ir.from_proto(proto)) == 0
    proto = model_of("c = Sqrt (k)")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, ()))
    assert fold_numbers(ir.from_proto(proto)) == 0


def attention(steps: str, scale: str = "c") -> onnx.ModelProto:
    """Attention whose scores are divided by what some steps compute."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    model (float[b, s, 64] x, int64[b, s] mask) => (float[b, s, 64] y)
    <int64[4] split = {0, 0, 2, 32}, int64[3] join = {0, 0, 64}, int64[2] between = {1, 2},
     float one = {1}, float low = {-10000}, int64 i1 = {1}, int64 i2 = {2}, int64 i3 = {3},
     int64 heads = {2}, float half = {0.5}, float width = {32}, float under = {-0.5},
     float below = {-3}>
    {
        a0 = MatMul (x, wa) b0 = MatMul (x, wb) v0 = MatMul (x, wv)
        a1 = Reshape (a0, split) b1 = Reshape (b0, split) v1 = Reshape (v0, split)
        a = Transpose <perm = [0, 2, 1, 3]> (a1) b = Transpose <perm = [0, 2, 3, 1]> (b1)
        v = Transpose <perm = [0, 2, 1, 3]> (v1)
        STEPS
        r = MatMul (a, b) r1 = Div (r, SCALE)
        m0 = Unsqueeze (mask, between) m1 = Cast <to = 1> (m0) m2 = Sub (one, m1)
        m = Mul (m2, low) z = Add (r1, m) p = Softmax <axis = -1> (z) o = MatMul (p, v)
        o1 = Transpose <perm = [0, 2, 1, 3]> (o) o2 = Reshape (o1, join) y = MatMul (o2, wo)
    }""".replace("STEPS", steps).replace("SCALE", scale)
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for name in ("wa", "wb", "wv", "wo"):
        weight = (rng.normal(size=(64, 64)) / 8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return proto


SPELLINGS = (
    "e = Shape (x) d = Gather (e, i2) f = Cast <to = 1> (d) c = Sqrt (f)",
    "e = Shape (x) d = Gather (e, i2) h = Div (d, heads) f = Cast <to = 1> (h) c = Sqrt (f)",
    "e = Shape (x) d = Gather (e, i2) f = Cast <to = 1> (d) c = Pow (f, half)",
    "e = Shape (a) d = Gather (e, i3) f = Cast <to = 1> (d) c = Pow (f, half)",
    "c = Pow (width, half)",
)


@pytest.mark.parametrize("steps", SPELLINGS)
def test_attention_packs_however_its_scale_is_spelt(steps: str) -> None:
    proto = attention(steps)
    lowered = lower(proto, "mask", sparse=False)
    rng = np.random.default_rng(5)
    mask = np.arange(9) < np.array([[9], [4], [1]])
    x = rng.normal(size=(3, 9, 64)).astype(np.float32)
    feeds: dict[str, np.ndarray] = {"x": x, "mask": mask.astype(np.int64)}
    constant = lower(attention("", "width"), "mask", sparse=False)
    kinds = [r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Softmax")]
    assert kinds == [
        r.lowering for r in constant.report.nodes if r.op_type in ("MatMul", "Softmax")
    ]
    assert kinds.count("attention") == 1 and "ordinary" not in kinds
    session = ort.InferenceSession(proto.SerializeToString())
    want = np.asarray(session.run(None, feeds)[0])
    (got,) = run_lowered(ir.to_proto(lowered.model), feeds)
    np.testing.assert_allclose(got[mask], want[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("root", ["Sqrt (f)", "Pow (f, half)"])
def test_a_scale_of_a_size_is_a_positive_number(root: str) -> None:
    """The root of a length: that weights of hidden keys are 0 is known behind it as well."""
    proto = attention(f"e = Shape (x) d = Gather (e, i1) f = Cast <to = 1> (d) c = {root}")
    model = ir.from_proto(proto)
    normalise(model)
    graph, _ = analyse(model, "mask")
    assert any(is_zero(f.constant) for f in graph["p"].fills)
    assert all(graph[name].dead for name in ("a0", "b0", "v0", "o"))


@pytest.mark.parametrize("scale", ["Div (r, c)", "Mul (r, c)"])
@pytest.mark.parametrize(
    ("steps", "packs"),
    [
        ("c = Sqrt (f)", {"Div (r, c)", "Mul (r, c)"}),
        ("c = Pow (f, half)", {"Div (r, c)", "Mul (r, c)"}),
        ("n = Sqrt (f) c = Mul (n, half)", {"Mul (r, c)"}),  # as a divisor it might be 0
        *[
            (steps, {"Mul (r, c)"})
            for steps in (
                "n = Sqrt (f) c = Div (one, n)",
                "n = Sqrt (f) c = Reciprocal (n)",
                "n = Reciprocal (f) c = Sqrt (n)",
                "c = Pow (f, under)",
                "n = Div (one, f) c = Pow (n, half)",
                "n = Pow (f, half) n4 = Mul (n, half) c = Reciprocal (n4)",
            )
        ],
        ("c = Pow (f, below)", set[str]()),  # the cube of a size may overflow
        (
            "l = ReduceMax <keepdims = 0> (mask) n = Cast <to = 1> (l) c = Reciprocal (n)",
            set[str](),
        ),
        ("c = Identity (f)", set[str]()),  # no root: it may be too large
        ("n = ReduceMax <keepdims = 0> (x) g = Abs (n) t = Add (g, one) c = Sqrt (t)", set[str]()),
    ],
)
def test_attention_packs_by_a_scale_of_a_size(steps: str, packs: set[str], scale: str) -> None:
    """Queries are scaled by what is known when the model runs; by what values say, none are."""
    steps = f"e = Shape (x) d = Gather (e, i1) f = Cast <to = 1> (d) {steps}"
    proto = attention(steps)
    (node,) = (n for n in proto.graph.node if n.output[0] == "r1")
    node.op_type = scale[:3]
    lowered = lower(proto, "mask", sparse=False)
    kinds = [r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert ("ordinary" not in kinds) == (scale in packs)
    mask = np.arange(9) < np.array([[9], [4], [1]])
    x = np.random.default_rng(5).normal(size=(3, 9, 64)).astype(np.float32)
    feeds: dict[str, np.ndarray] = {"x": x, "mask": mask.astype(np.int64)}
    want = np.asarray(ort.InferenceSession(proto.SerializeToString()).run(None, feeds)[0])
    (got,) = run_lowered(ir.to_proto(lowered.model), feeds)
    np.testing.assert_allclose(got[mask], want[mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("steps", "bounds"),
    [
        ("c = Sqrt (f)", (1.0, 2.0**15.5)),
        ("q = Sqrt (f) c = Div (k, q)", (4 / 2.0**15.5, 4.0)),
        ("c = Cast <to = 1> (d)", (1.0, 2.0**31)),
        ("q = Sqrt (f) c = Neg (q)", None),
        ("q = Sqrt (f) c = Mul (q, low)", None),
    ],
)
def test_bounds_of_what_is_computed_of_sizes(
    steps: str, bounds: tuple[float, float] | None
) -> None:
    proto = attention(f"e = Shape (x) d = Gather (e, i1) f = Cast <to = 1> (d) {steps}")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4, np.float32), "k"))
    graph, _ = analyse(ir.from_proto(proto), "mask")
    shape = graph["r"].shape or ()
    found = size_bounds(graph, "c")
    assert (found and (found.lo, found.hi)) == (None if bounds is None else pytest.approx(bounds))
    assert found is None or (found.hold(shape) and not found.hold(shape[:1]))  # of no token


def test_a_size_is_not_0_where_it_divides_an_extent_that_is_not() -> None:
    s, b = sym("s"), sym("b")
    assert has_place(b * s, [b, s]) and has_place(4 * s, [s, poly(8)])
    assert not has_place(b * s, [s, s]) and not has_place(3 * s, [s, poly(8)])
    assert has_place(s, [b * s]) and has_place(s - 1, [s - 1]) and has_place(2 * s, [4 * s * b])
    assert (
        not has_place(s, [b]) and not has_place(s, [s + 1]) and not has_place(s - 5, [s * s - 25])
    )


@pytest.mark.parametrize(
    ("body", "finite"),
    [
        ("y0 = Mul (x, c)", True),  # of no token there is no element
        ("w = Gather (x, i0) y0 = Mul (w, c)", False),  # there the batch may have no token
        ("y0 = Gemm (flat, flat2, c)", False),  # nothing is summed up, but the bias is there
    ],
)
def test_one_by_the_root_of_a_size_is_finite_where_there_is_an_element(
    body: str, finite: bool
) -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[s, b] x, float[4, s] flat, float[s, 4] flat2) => (float y)
        <int64 i0 = {0}, int64[1] first = {0}>
        { e = Shape (x) d = Gather (e, first) f = Cast <to = 1> (d) n = Sqrt (f) c = Reciprocal (n)
          BODY y = ReduceSum <keepdims = 0> (y0) }""".replace("BODY", body)
    )
    graph, _ = analyse(ir.from_proto(proto), None)
    assert (graph["y0"].finite_if == EVERYWHERE) is finite
