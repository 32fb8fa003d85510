"""Facts of loops' bodies (passes/facts/fill.py): which are analysed, and why others are not."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.ir.graph import Graph
from pitc.passes.facts.fill import fill_facts
from tests.fact_check import built

HEAD = """
<ir_version: 8, opset_import: ["" : 18]>
model (float[b, s] x, bool[b, s] mask, int64 trips, bool go) => (float[b, s] y)
<float low = {-inf}, float zero = {0}>
{
    wild = Log (x)
    BODY
}
"""
TWO = """y, last, LINES = Loop (trips, go, START, x) <body = g (
    int64 i, bool c, float[b, s] v, float[b, s] w)
    => (bool d, float[b, s] p, float[b, s] q RESULTS) {
    d = Identity (c) STEP }>"""
READS = "what its body reads may be infinite"
CARRIES = "what its body carries on may become infinite"
NESTED = """p = Tanh (v) q = Tanh (w) inner = Loop (i, c, v) <body = h (
    int64 j, bool e, float[b, s] t) => (bool k, float[b, s] u) { k = Identity (e) u = Sin (t) }>"""


def graph_of(step: str, start: str = "x", line: str = "") -> Graph:
    """The facts of a loop of two states."""
    results = f", float[b, s] {line}" if line else ""
    text = TWO.replace("STEP", step).replace("START", start).replace("RESULTS", results)
    text = text.replace(", LINES", ", lines" if line else "")
    graph = Graph(ir.from_proto(onnx.parser.parse_model(HEAD.replace("BODY", text))))
    fill_facts(graph)
    return graph


@pytest.mark.parametrize(
    ("step", "start", "line", "why"),
    [
        ("p = Tanh (v) q = Sin (w)", "x", "", ""),
        ("p = Log (v) q = Sin (w)", "x", "", CARRIES),
        ("p = Tanh (v) q = Log (w)", "x", "", CARRIES),
        # what is only written line by line is read by no trip
        ("p = Tanh (v) q = Sin (w) r = Log (v)", "x", "r", ""),
        ("p = Tanh (v) q = Log (w) r = Sin (v)", "x", "r", CARRIES),
        # before the first trip
        ("p = Tanh (v) q = Sin (w)", "wild", "", READS),
        ("a = Max (v, wild) p = Tanh (a) q = Sin (w)", "x", "", READS),
        ("a = Where (mask, v, x) p = Tanh (a) q = Sin (w)", "x", "", ""),
        # a constant is known in the body as well
        ("a = Greater (v, low) p = Where (a, v, zero) q = Sin (w)", "x", "", ""),
        ("p = Max (v, low) q = Sin (w)", "x", "", CARRIES),
    ],
)
def test_a_body_has_facts_where_what_it_reads_is_finite(
    step: str, start: str, line: str, why: str
) -> None:
    graph = graph_of(step, start, line)
    (loop,) = (n for n in graph.nodes if n.op_type == "Loop")
    assert (loop in graph.bodies) is (not why)
    reasons = {graph[x.name or ""].unruled for x in loop.outputs}
    assert (reasons == {f"Loop: {why}"}) is bool(why)


def test_loops_in_bodies_stay_as_they_are() -> None:
    graph = graph_of(NESTED, line="inner")
    (body,) = graph.bodies.values()
    assert len(body.carried) == 1 and body.bodies == {} and body["inner"].finite_if is None


def test_branches_in_bodies_are_opened() -> None:
    choice = """q = Sin (w) p = If (c) <
        then_branch = t () => (float[b, s] n) { n = Tanh (v) },
        else_branch = e () => (float[b, s] m) { m = Sin (v) }>"""
    (body,) = graph_of(choice).bodies.values()
    kinds = {n.op_type for n in body.nodes}
    assert {"Tanh", "Sin"} <= kinds and "If" not in kinds


@pytest.mark.parametrize("wanted", [True, False])
def test_an_output_that_is_not_wanted_has_no_record(wanted: bool) -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, (1, 2, 8))
        p = g.op("MaxPool", g.op("Relu", x), kernel_shape=[2])
        g.output(p, "p", np.float32, (1, 2, 7))

    proto = built(make)
    (pool,) = (n for n in proto.graph.node if n.op_type == "MaxPool")
    pool.output.append("places" if wanted else "")
    graph = Graph(ir.from_proto(proto))
    fill_facts(graph)
    assert "" not in graph.values and ("places" in graph.values) == wanted
