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

from pitc.ir.constant import SCORE, is_zero
from pitc.ir.graph import Graph, NodeView
from pitc.passes.facts.limits import never_largest
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from tests.fact_check import proven
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


def model(place: tuple[str, str, str] = BEHIND, sinks: str = "-0.21, 0.52") -> onnx.ModelProto:
    text = TEXT.replace("SINKS", sinks)
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


def test_a_product_by_live_rows_is_right() -> None:
    proto = model()
    with lowering_everything():
        lowered = run_passes(ir.from_proto(proto), LowerOptions(padding="mask"))
    products = [r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert products == ["packed"] * 3 + ["ordinary"] * 2 + ["packed"]
    rng = np.random.default_rng(5)
    mask = np.arange(9) < np.array([[9], [4], [1], [0]])
    feeds: dict[str, np.ndarray] = {
        "x": rng.normal(size=(4, 9, 64)).astype(np.float32),
        "mask": mask.astype(np.int64),
    }
    want = np.asarray(ort.InferenceSession(proto.SerializeToString()).run(None, feeds)[0])
    (got,) = run_lowered(ir.to_proto(lowered.model), feeds)
    np.testing.assert_allclose(got[mask], want[mask], rtol=1e-4, atol=1e-5)
