"""Names of sizes may be any text: none is taken for a formula, or for a name that pitc makes."""

import numpy as np
import pytest

from pitc.check.verify import audit_facts
from pitc.importer import load_model
from pitc.ir.graph import Graph
from pitc.ir.index import poly, sym
from pitc.ir.inference import symbol_text
from pitc.passes.exprs.derive import derive
from tests.probes.build import D, Net, Probe, normal
from tests.probes.check import lower
from tests.probes.scopes import gate
from tests.probes.sizes import mask_of

INT, F, B = np.int64, np.float32, np.bool_
MADE = ("?1", "?2", "?3", "?:1", "?n1", "p.shape[0]", "x.shape[1]", "unk__0", "?unk__0")
NAMES = (
    *MADE,
    "2*b",
    "b*s",
    "b+1",
    "b//2",
    "d0",
    "5",
    "-1",
    "0",
    "'b'",
    "'",
    "a,b",
    "a\nb",
    " ",
    "批",
)


def _model(first: str, second: str) -> Probe:
    """Two named sizes, an unnamed one, one that a run decides, and sums and products of them."""
    g = Net(17)
    x, m = g.input("x", F, (first, "s", D)), g.input("mask", INT, (first, "s"))
    p, q = g.input("p", F, ("", "s", D)), g.input("q", F, (second, 1, D))
    h = g.Mul(g.mlp(x), gate(g, m))
    rows = g.GatherND(h, g.Transpose(g.NonZero(m), perm=[1, 0]))
    twice, more = g.Concat(h, h, axis=0), g.Concat(h, g.Mul(p, 0.5), axis=0)
    body = g.body(
        lambda b, i, going, s: [b.Identity(going), b.Add(s, b.Mul(b.Tanh(s), twice))],
        [("i", INT, ()), ("going", B, ()), ("state", F, None)],
        [B, F],
    )
    looped = g.Loop(g.Gather(g.Shape(x), g.const(1, INT)), g.const(True, B), twice, body=body)
    results = (g.linear(rows, D, D, 3), more, looped, g.mlp(q, 5))
    for y, rank in zip(results, (2, 3, 3, 3), strict=True):
        g.out(y, shape=[None] * rank)
    feed = {"x": normal(2, 5, D), "mask": mask_of(2, 5), "p": normal(3, 5, D), "q": normal(7, 1, D)}
    return Probe(g.model(), [feed])


@pytest.mark.parametrize("name", NAMES)
def test_a_size_may_have_any_name(name: str) -> None:
    for names in ((name, "q"), ("b", name)):
        probe = _model(*names)
        lower(probe)
        assert audit_facts(load_model(probe.model), None, probe.feeds).failures == []


def test_names_and_formulas_are_told_apart() -> None:
    b, s = sym("b"), sym("s")
    formulas = [str(p) for p in (2 * b, b * s, b + 1, 2 * b * s, poly(5), -poly(1))]
    texts = [*map(symbol_text, (*NAMES, "b", "s", "b + 1", "''", "pitc_rows", "é")), *formulas]
    assert len({*texts}) == len(texts)
    assert [symbol_text(n) for n in ("b", "batch_size", "_1", "d1x")] == [
        "b",
        "batch_size",
        "_1",
        "d1x",
    ]


def test_sizes_of_two_values_are_one_only_where_their_names_are() -> None:
    names = [*NAMES, "b", "x", "p"]
    g = Net(17)
    for k, name in enumerate((*names, "", "")):
        g.input(f"i{k}", F, (name, "i0.shape[0]"))
        g.out(f"i{k}", shape=[None, None])
    graph = Graph(load_model(g.model()))
    derive(graph)
    shapes = [graph[f"i{k}"].shape for k in range(len(names) + 2)]
    first, second = zip(*(s for s in shapes if s is not None), strict=True)
    assert len({*first}) == len(shapes) and len({*second, *first}) == len(shapes) + 1
