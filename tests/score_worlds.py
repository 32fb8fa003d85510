"""Small attention graphs as text, and where the walk between their contractions ends."""

from math import inf

import numpy as np
import onnx.numpy_helper
import onnx.parser

from pitc.ir.constant import BOUNDED
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Coords, Digit, dim_index, poly, sym
from pitc.ir.refusal import Refusal
from pitc.ir.region import Test
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import FormContext, PackCandidate, Packing
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.score_walk import walk
from pitc.passes.regions.scores import Scores, live_pairs, rest_on_zeros
from tests.fact_check import analysed

TEXT = """
<ir_version: 10, opset_import: ["": 20, "other": 1]>
g (float[b, 3, s, 4] q, float[b, 3, 4, s] k, float[b, 3, s, 4] v, bool[b, 1, 1, s] live,
   bool[b, 1, s, s] keep, float[b, 3, s, s] bias, float[b, 1, 1, s] small, float number,
   bool flag, float[b, 3, s, s] other, float[b, 3, s, 1] tall)
=> (float[b, 3, s, 4] o)
<float zero = {0}, float one = {1}, float two = {2}, float half = {0.5}, float tiny = {1e-7},
 float low = {-1e9}, float five = {5}, bool yes = {1}, bool no = {0}, int64[1] top = {1},
 int64[3] pairs = {0, 3, -1}, int64[1] minus = {-1}>
{
    raw = MatMul (q, k)
    size = Shape (raw)
    tail = Shape <start = 2> (raw)
    merged = Concat <axis = 0> (minus, tail)
    BODY
    o = MatMul (p, v)
}
"""
B, S = sym("b"), sym("s")
QUERIES: Coords = (Digit(0, ONE, B), Digit(2, ONE, S))
KEYS: Coords = (Digit(0, ONE, B), Digit(3, ONE, S))
MASK = Test("live", (dim_index(0, B), ZERO, ZERO, dim_index(1, S)), "nz", False)
DOMAIN = Domain((B, S), frozenset([MASK]))
SHORT = {
    "live[d0, 0, 0, d3] == 0": "DEAD",
    "live[d0, 0, 0, d3] != 0": "LIVE",
    "live[d0, 0, 0, d2] != 0": "QUERY",
    "everywhere": "ALL",
    "small[d0, 0, 0, d2] within 1e3 and small[d0, 0, 0, d3] <= -1e4": "LOW",
    "some d-101: live[d0, 0, 0, d-101] != 0": "ANY",
}
MASKED = "m = Where (live, raw, ninf)"
END = "p = Softmax <axis = -1> (m)"


def graph_of(body: str) -> Graph:
    """The graph whose steps lead from `raw` to `p`."""
    model = onnx.parser.parse_model(TEXT.replace("BODY", body))
    for name, value in {"ninf": -inf, "pinf": inf}.items():
        array = np.array(value, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return analysed(model)[0]


def site_of(graph: Graph) -> PackCandidate:
    """The second contraction."""
    node, expr = graph["o"].producer, graph["o"].expr
    layout = layout_of((B, poly(3), S, poly(4)), QUERIES)
    assert node is not None and expr is not None and layout is not None
    packing = Packing("o", DOMAIN, QUERIES, layout, DOMAIN.at(QUERIES))
    return PackCandidate(FormContext(graph, DOMAIN), node, expr, packing)


def scores_at(name: str) -> Scores:
    """Where a walk starts."""
    pairs = live_pairs(DOMAIN, DOMAIN, QUERIES, KEYS)
    assert pairs is not None
    return Scores(name, QUERIES, KEYS, pairs)


def walked(graph: Graph) -> tuple[Refusal | None, Scores]:
    """Where the walk from p ends."""
    found, site = scores_at("p"), site_of(graph)
    found.zero = rest_on_zeros(site.context, DOMAIN, found) is True
    found.rests_on.clear()
    return walk(site, DOMAIN, found), found


def short(text: object) -> str:
    """A text with names for some tests."""
    out = str(text)
    for test, name in SHORT.items():
        out = out.replace(test, name)
    return out


def end_of(graph: Graph) -> str:
    """The end: the value, nodes, scale, bias, assumptions and facts; or where it is refused."""
    refusal, found = walked(graph)
    if refusal is not None:
        return f"{refusal.code.name} at {found.name}"
    terms = [f"{t.name}{'' if t.low is None else f'[{t.low_when}]={t.low}'}" for t in found.bias]
    bounded = "o" in graph.assumptions.get(BOUNDED, ())
    flags = ["nan to zero"] * found.nan_to_zero + ["no keys to zero"] * found.no_keys_to_zero
    flags += ["bounded"] * bounded
    parts = [found.name, " ".join(n.outputs[0].name or "" for n in found.absorbs)]
    parts += [f"{found.scale:g}", " ".join(terms), " ".join(flags)]
    parts += [", ".join(map(short, found.rests_on))]
    return " ".join(" | ".join(parts).split())
