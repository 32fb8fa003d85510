"""Which domains are tried, and which nodes run packed: worked examples of small graphs."""

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from pitc.ir.graph import Graph
from pitc.passes.regions.choose import _contexts, choose_regions
from tests.fact_check import analysed
from tests.random_check import lowering_everything

TEXT = """
<ir_version: 10, opset_import: ["": OPSET]>
g (float[b, s, 64] x, float[b, s, 64] u, bool[b, s] mask, bool[b, s] other, bool[s] line,
   bool[b, s, s] pairs, float[b, s] score, bool flag) => (float[b, s, 64] y)
<int64[1] last = {-1}, int64[1] one = {1}, float zero = {0}, float low = {-1e9},
 int64 first = {0}, int64 second = {1}>
{
    BODY
}
"""
ROWS = """live = Unsqueeze (mask, last)  shown = Unsqueeze (other, last)
    lines = Unsqueeze (line, last)"""
MASK, OTHER, LINE = "mask[d0, d1] == 0", "other[d0, d1] == 0", "line[d0] == 0"
FIRST, BEFORE, AFTER = "d0-1 >= 0", "-d0 >= 0", "d0-2 >= 0"
KEYS, SEEN = "all d-1: pairs[d0, d-1, d1] == 0", "all d-1: some d-101: pairs[d0, d-1, d-101] != 0"


def graph_of(body: str, opset: int = 20, rows: str = ROWS) -> Graph:
    """A graph with weights of 64 by 64, and one column."""
    text = TEXT.replace("OPSET", str(opset)).replace("BODY", f"{rows}  {body}")
    model = onnx.parser.parse_model(text)
    shapes = {"w": (64, 64), "w2": (64, 64), "w3": (64, 64), "col": (64, 1), "stack": (3, 64, 64)}
    for name, shape in shapes.items():
        array = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return analysed(model)[0]


def domains_of(graph: Graph) -> list[str]:
    """Where each domain is dead, in the order in which they are tried."""
    return [" and ".join(sorted(map(str, c.domain.dead))) for c in _contexts(graph)]


MASKED = "d = Where (live, c, zero)  c2 = MatMul (u, w2)"
KEPT_FIRST = "p = MatMul (x, w)  q = Gather <axis = 1> (p, first)  z = Unsqueeze (q, one)"
SCORES = """t2 = MatMul (u, w)  t = Transpose <perm = [0, 2, 1]> (t2)  s0 = MatMul (x, t)
    m = Where (pairs, s0, low)  p = Softmax <axis = -1> (m)  v = MatMul (u, w3)
    o = MatMul (p, v)"""
FOUND = """n = Squeeze (k, last)  f = Greater (n, zero)  found = Unsqueeze (f, last)
    p = MatMul (x, w)  q = Where (found, p, zero)"""


@pytest.mark.parametrize(
    ("body", "domains"),
    [
        ("p = MatMul (x, w)  y = Where (live, p, zero)", [MASK]),
        ("p = MatMul (x, w)  y = Identity (p)", []),
        ("p = Tanh (x)  y = Where (live, p, zero)", []),  # no contraction
        # more work first, whatever the names
        (
            f"c = MatMul (x, w)  {MASKED}  e = Where (shown, c2, zero)  y = Add (d, e)",
            [MASK, OTHER],
        ),
        (
            f"c = MatMul (x, w)  {MASKED}  c3 = MatMul (c2, w3)  e = Where (shown, c3, zero)"
            "  y = Add (d, e)",
            [OTHER, MASK],
        ),
        # of a sum of products that is dead twice, either
        ("p = MatMul (x, w)  q = Where (live, p, zero)  y = Where (shown, q, zero)", [MASK, OTHER]),
        # by position
        (f"{KEPT_FIRST}  y = Identity (z)", [FIRST]),
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  e2 = MatMul (e, w3)"
            "  h = Gather <axis = 1> (e2, second)  i = Unsqueeze (h, one)  y = Add (z, i)",
            [BEFORE, AFTER, FIRST],
        ),
        # beside values: first, where there are as many coordinates
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  h = Where (shown, e, zero)  y = Add (z, h)",
            [OTHER],
        ),
        (
            f"{KEPT_FIRST}  e = MatMul (u, w2)  h = Where (lines, e, zero)  y = Add (z, h)",
            [FIRST, LINE],
        ),
        # what holds for all of a dimension last; a whole line of a mask is none
        (
            f"{SCORES}  y = Where (live, o, zero)",
            [MASK, "pairs[d0, d1, d2] == 0", f"{KEYS} and {SEEN}", KEYS],
        ),
        (
            "p = MatMul (x, w)  q = ReduceSum <keepdims = 1> (p, one)  e = MatMul (p, w2)"
            "  i = Where (live, e, zero)  r = Add (q, i)  y = Where (live, r, zero)",
            [MASK],
        ),
        # live points that a covered contraction computes, and one that is not covered
        (f"k = MatMul (x, col)  {FOUND}  y = Identity (q)", ["f[d0, d1] == 0"]),
        (f"k = MatMul (x, col)  {FOUND}  y = Where (live, q, zero)", [MASK]),
        (
            f"u2 = Unsqueeze (score, last)  k = Sin (u2)  {FOUND}  y = Where (live, q, zero)",
            ["f[d0, d1] == 0", MASK],
        ),
    ],
)
def test_domains_in_order(body: str, domains: list[str]) -> None:
    assert domains_of(graph_of(body)) == domains


def chosen(body: str, everything: bool = True) -> str:
    """Nodes that run packed, what comes back whole, and the refusals."""
    graph = graph_of(body)
    if everything:
        with lowering_everything():
            found = choose_regions(graph)
    else:
        found = choose_regions(graph)
    forms = " ".join(n.outputs[0].name or "" for n in graph.nodes if n in found.forms)
    refusals = [(n.outputs[0].name, r.code.name) for n, r in found.refusals.items()]
    no = " ".join(sorted(f"{name}:{code}" for name, code in refusals))
    records = " ".join(f"{r.nodes}*{r.flops_per_row}" for r in found.records)
    return f"{forms} | {' '.join(sorted(found.demand.exits))} | {no} | {records}"


if __name__ == "__main__":
    for body in []:
        print(chosen(body))
