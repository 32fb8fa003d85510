"""Attention with a sink: a learnt number beside the scores of each row, and the largest one of the
row subtracted before the softmax.

    z = [scores + mask, sink]      p = softmax(z - max(z)), without the sink's own weight
"""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from pitc.ir import target as targets
from pitc.ir.constant import SCORE, is_zero
from pitc.ir.graph import Graph, NodeView
from pitc.passes.facts.limits import never_largest
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from tests.fact_check import proven
from tests.lower_support import plans
from tests.plan_reference import run_lowered
from tests.random_check import lowering_everything

TEXT = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[b, s, 64] x, int64[b, s] mask) => (float[b, s, 64] y)
<int64[4] split = {0, 0, 2, 32}, int64[3] join = {0, 0, 64}, int64[2] between = {1, 2},
 float one = {1}, float low = {-10000}, float root = {5.6}, float[1, 2, 1, 1] sinks = {SINKS},
 int64[1] last = {-1}, int64[1] first = {0}, int64[1] three = {3}, int64[1] single = {1}>
{
    a0 = MatMul (x, wa) b0 = MatMul (x, wb) v0 = MatMul (x, wv)
    a1 = Reshape (a0, split) b1 = Reshape (b0, split) v1 = Reshape (v0, split)
    a = Transpose <perm = [0, 2, 1, 3]> (a1) b = Transpose <perm = [0, 2, 3, 1]> (b1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    r0 = MatMul (a, b) r = Div (r0, root)
    m0 = Unsqueeze (mask, between) m1 = Cast <to = 1> (m0) m2 = Sub (one, m1) m = Mul (m2, low)
    scores = Add (r, m)
    sizes = Shape <start = 0, end = 3> (scores) wide = Concat <axis = 0> (sizes, single)
    sink = Expand (sinks, wide) z = Concat <axis = 3> (CONCAT)
    most = ReduceMax <keepdims = 1> (z, last) zs = Sub (z, most) p0 = Softmax <axis = -1> (zs)
    p = Slice (p0, FROM, TO, three)
    o0 = MatMul (p, v) o1 = Transpose <perm = [0, 2, 1, 3]> (o0) o = Reshape (o1, join)
    y = MatMul (o, wo)
}
"""
BEHIND, BEFORE = ("scores, sink", "first", "last"), ("sink, scores", "single", "end")


def model(
    place: tuple[str, str, str] = BEHIND, sinks: str = "-0.21, 0.52", text: str = TEXT
) -> onnx.ModelProto:
    text = text.replace("SINKS", sinks)
    for mark, value in zip(("CONCAT", "FROM", "TO"), place, strict=True):
        text = text.replace(mark, value)
    text = text.replace("float one", "int64[1] end = {9223372036854775807}, float one")
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for name in ("wa", "wb", "wv", "wo"):
        weight = (rng.normal(size=(64, 64)) / 8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return proto


def facts(proto: onnx.ModelProto) -> Graph:
    ir_model = ir.from_proto(proto)
    normalise(ir_model)
    return analyse(ir_model, "mask")[0]


@pytest.mark.parametrize("place", [BEHIND, BEFORE])
def test_the_largest_of_a_row_with_a_sink_is_a_score(place: tuple[str, str, str]) -> None:
    graph = facts(model(place))
    assert any(f.constant == SCORE and not f.region.tests for f in graph["most"].fills)
    zeros = [str(f.region) for f in graph["p"].fills if is_zero(f.constant)]
    assert "mask[d0, d3] == 0" in zeros  # whatever else the row keeps: it has the sink
    for name in ("a0", "b0", "v0"):
        assert "mask[d0, d1] == 0" in map(str, graph[name].dead)


@pytest.mark.parametrize("sinks", ["-2000, 0", "0, 2000"])
def test_a_sink_out_of_bounds_proves_nothing(sinks: str) -> None:
    graph = facts(model(sinks=sinks))
    assert not any(f.constant == SCORE and not f.region.tests for f in graph["most"].fills)


def test_only_hidden_scores_are_never_the_largest() -> None:
    graph = facts(model())
    node, expr = graph["most"].producer, graph["most"].expr
    assert node is not None and expr is not None
    found = never_largest(NodeView(graph, node), expr, expr.reads[0])
    assert found and all("mask[d0, d3] == 0" in str(r) for r in found)


@pytest.mark.parametrize("place", [BEHIND, BEFORE])
def test_facts_hold(place: tuple[str, str, str]) -> None:
    proven(model(place), "mask", ["y"])


PER_HEAD, ONE = "float[1, 2, 1, 1] sinks = {SINKS}", "float sinks = {0.3}"
SHIFTED = "most = ReduceMax <keepdims = 1> (z, last) zs = Sub (z, most)"
UNSHIFTED = ("p0 = Softmax <axis = -1> (zs)", "p0 = Softmax <axis = -1> (z)")
#: changes of the text, and how many numbers the sink of the plan has; None: attention stays
FORMS: dict[str, tuple[list[tuple[str, str]], int | None]] = {
    "one for each head": ([], 2),
    "one": ([(PER_HEAD, ONE)], 1),
    "one, of rank 4": ([(PER_HEAD, "float[1, 1, 1, 1] sinks = {0.3}")], 1),
    "of fewer dimensions": ([(PER_HEAD, "float[2, 1, 1] sinks = {SINKS}")], 2),
    "no maximum is subtracted": ([(SHIFTED, ""), UNSHIFTED], 2),
    "no sink, a maximum": (
        [
            ("Concat <axis = 3> (CONCAT)", "Identity (scores)"),
            ("p = Slice (p0, FROM, TO, three)", "p = Identity (p0)"),
        ],
        0,
    ),
    "a cap": ([("r = Div (r0, root)", "r1 = Div (r0, root) r = Tanh (r1)")], 2),
    "very large": ([("SINKS", "3e38, 400")], 2),
    "minus infinity": (
        [
            ("float one", "float[1, 2, 1, 1] ends = {0, 0}, float one"),
            ("(sinks, wide)", "(ends, wide)"),
        ],
        2,
    ),
    "its row's minimum": ([("ReduceMax", "ReduceMin")], None),
    "the maximum of other scores": ([("(z, last) zs", "(scores, last) zs")], None),
    "the maximum of heads": ([("(z, last) zs", "(z, single) zs")], None),
    "the maximum is added": ([("Sub (z, most)", "Add (z, most)")], None),
    "two sinks": (
        [
            ("(CONCAT)", "(CONCAT, sink)"),
            ("FROM, TO", "FROM, less_two"),
            ("float one", "int64[1] less_two = {-2}, float one"),
        ],
        None,
    ),
    "a sink of each sequence": (
        [
            ("(sinks, wide)", "(each, wide)"),
            (
                "sink = Expand",
                "each = ReduceSum <keepdims = 1> (x4, ones) sink = Expand",
            ),
            ("sizes = Shape", "x4 = Unsqueeze (x, single) sizes = Shape"),
            ("float one", "int64[2] ones = {2, 3}, float one"),
        ],
        None,
    ),
    "the sink's weight, too": ([("FROM, TO", "single, end")], None),
}


def formed(case: str, place: tuple[str, str, str] = BEHIND) -> onnx.ModelProto:
    text = TEXT.replace("-10000", "-3e38")
    for old, new in FORMS[case][0]:
        assert old in text, old
        text = text.replace(old, new)
    proto = model(place, text=text)
    for value in proto.graph.initializer:
        if value.name == "ends":
            ends = np.array([-np.inf, 0.5], np.float32).reshape(1, 2, 1, 1)
            value.CopyFrom(onnx.numpy_helper.from_array(ends, "ends"))
    return proto


def agrees(proto: onnx.ModelProto, padding: str | None) -> list[dict[str, str]]:
    """Lower, and compare with ONNX Runtime; the plans of attention."""
    with lowering_everything():
        options = LowerOptions(padding=padding, check=True)
        lowered = run_passes(ir.from_proto(proto), options)
    session, made = ort.InferenceSession(proto.SerializeToString()), ir.to_proto(lowered.model)
    rng = np.random.default_rng(5)
    for s in (1, 2, 9, 40):
        mask = np.arange(s) < np.array([[s], [max(s // 2, 1)], [1], [0]])
        feeds: dict[str, np.ndarray] = {
            "x": rng.normal(size=(4, s, 64)).astype(np.float32),
            "mask": mask.astype(np.int64),
        }
        want, (got,) = np.asarray(session.run(None, feeds)[0]), run_lowered(made, feeds)
        live = mask if padding else np.ones_like(mask)
        np.testing.assert_allclose(got[live], want[live], rtol=1e-4, atol=1e-5)
    return [p for p in plans(lowered) if p["op"] == "attention"]


@pytest.mark.parametrize("padding", [None, "mask"])
@pytest.mark.parametrize("case", FORMS)
def test_forms_of_sinks(case: str, padding: str | None) -> None:
    sinks = FORMS[case][1]
    found = agrees(formed(case), padding)
    assert [p.get("sinks", "0") for p in found] == ([] if sinks is None else [str(sinks)])


@pytest.mark.parametrize("case", [c for c, (_, n) in FORMS.items() if n])
def test_a_sink_in_front_of_the_keys(case: str) -> None:
    (plan,) = agrees(formed(case, BEFORE), "mask")
    assert plan["sinks"] == str(FORMS[case][1])


CAUSAL = (
    ("-10000", "-3e38"),
    (
        "m = Mul (m2, low)",
        """m3 = Mul (m2, low) size = Shape <start = 1, end = 2> (x) n = Squeeze (size)
        at = Range (zero_i, n, one_i) q_at = Unsqueeze (at, single) early = Less (q_at, at)
        low_q = Where (early, low, zero) m = Add (m3, low_q)""",
    ),
    ("float one", "int64 zero_i = {0}, int64 one_i = {1}, float zero = {0}, float one"),
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pairs_that_a_mask_hides_are_left_out_beside_a_sink() -> None:
    text = TEXT
    for old, new in CAUSAL:
        text = text.replace(old, new)
    (plan,) = agrees(model(text=text), None)
    assert (plan["pairs"], plan["no_keys_to_zero"], plan["no_pairs"]) == ("1", "1", "nan")


def test_a_guard_of_rows_beside_a_sink_stays() -> None:
    guard = "all = ReduceMax (m, last) c = Equal (all, low) w = Where (c, zero, p)"
    text = TEXT.replace("o0 = MatMul (p, v)", f"{guard} o0 = MatMul (w, v)")
    assert not agrees(model(text=text.replace("float one", "float zero = {0}, float one")), None)


def test_a_gpu_has_no_sink() -> None:
    with lowering_everything():
        options = LowerOptions(padding="mask", target=targets.target_of("cuda"))
        lowered = run_passes(ir.from_proto(model()), options)
    assert "attention" not in [p["op"] for p in plans(lowered)]
    refusals = [r.refusal for r in lowered.report.nodes if r.refusal is not None]
    reasons = {r.reason for each in refusals for r in (each, each.also) if r is not None}
    assert "scores have a sink, on cuda" in reasons


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_without_keys_beside_a_sink_of_minus_infinity_is_nan() -> None:
    """As in the model; beside a finite sink it is 0."""
    text = TEXT.replace(
        "m = Mul (m2, low)", "seen = Cast <to = 9> (m0) m = Where (seen, none, ends)"
    )
    text = text.replace("(sinks, wide)", "(of_heads, wide)").replace(
        "float one",
        "float none = {0}, float ends = {0}, float[1, 2, 1, 1] of_heads = {0, 0}, float one",
    )
    proto = model(text=text)
    for value in proto.graph.initializer:
        if value.name in ("ends", "of_heads"):
            numbers = np.array(-np.inf if value.name == "ends" else [-np.inf, 0.5], np.float32)
            numbers = numbers.reshape(() if value.name == "ends" else (1, 2, 1, 1))
            value.CopyFrom(onnx.numpy_helper.from_array(numbers, value.name))
    (plan,) = agrees(proto, None)
    assert (plan["sinks"], plan["no_keys_to_zero"]) == ("2", "0")
