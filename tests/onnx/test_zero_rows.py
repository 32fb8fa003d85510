"""Rows that are read, and 0: left out, they come back as they were, and facts about them stay."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from pitc.passes.audit.packing import wrong_regions
from pitc.passes.regions.choose import Regions, choose_regions
from pitc.passes.regions.contexts import contexts_of
from pitc.passes.regions.form import zero_regions
from pitc.passes.regions.legal import kept_exits, overwritten_bits, unsound_forms
from tests.fact_check import analysed
from tests.lower_support import check, lower
from tests.random_check import lowering_everything

HEAD = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[b, s, 64] x, float[b, s, 64] dy, int64[b, s] mask) => (OUTPUTS)
<int64[1] last = {-1}, int64[2] tokens = {0, 1}, int64[2] rows = {-1, 64}, float one = {1}>
{
    u = Unsqueeze (mask, last) m = Cast <to = 1> (u) g0 = Mul (dy, m) BODY
}
"""
# of a layer's gradient: h is read whole by a sum, and its padded rows are 0
GRADIENT = """h2 = Sigmoid (x) h = MatMul (g0, w) t = Mul (h, h2) k = MatMul (t, w2)
    x2 = Reshape (x, rows) xt = Transpose <perm = [1, 0]> (x2) k2 = Reshape (k, rows)
    dw = MatMul (xt, k2) db = ReduceSum <keepdims = 0> (k, tokens)"""


def model(body: str, outputs: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEAD.replace("BODY", body).replace("OUTPUTS", outputs))
    for seed, name in enumerate(("w", "w2")):
        w = (np.random.default_rng(seed).normal(size=(64, 64)) / 8).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(w, name))
    return proto


def chosen(body: str, outputs: str) -> tuple[set[str], Regions]:
    with lowering_everything():
        graph = analysed(model(body, outputs))[0]
        found = choose_regions(graph)
        assert list(wrong_regions(graph, found)) == []
    return {n.outputs[0].name or "" for n in found.forms}, found


SUMS = "float[64, 64] dw, float[64] db"


def test_a_gradient_runs_on_live_rows() -> None:
    """Nothing of h, t and k is unread."""
    proto = model(GRADIENT, SUMS)
    graph = analysed(proto)[0]
    assert not any(graph[name].dead for name in ("h", "t", "k"))
    packed, found = chosen(GRADIENT, SUMS)
    assert {"h", "t", "k", "dw", "db"} <= packed
    assert set(found.demand.exits) == {"db", "dw"}
    lowered = lower(proto, sparse=False)
    rng = np.random.default_rng(1)
    mask = (np.arange(9) < np.array([[9], [4], [0]])).astype(np.int64)
    feeds = {k: rng.normal(size=(3, 9, 64)).astype(np.float32) for k in ("x", "dy")}
    with lowering_everything():
        everything = lower(proto, sparse=False)
    for found_so in (lowered, everything):
        check(proto, found_so, feeds | {"mask": mask})


def test_zeros_whose_sign_is_seen_are_no_proof() -> None:
    """1 / h is minus infinity where h is -0.0: SWrite would leave 0."""
    body = "h = MatMul (g0, w) k = MatMul (h, w2) y = Identity (k) z = Reciprocal (h)"
    proto = model(body, "float[b, s, 64] y, float[b, s, 64] z")
    graph = analysed(proto)[0]
    assert graph["h"].fills and not zero_regions(graph, "h")
    packed, _ = chosen(body, "float[b, s, 64] y, float[b, s, 64] z")
    assert "h" not in packed
    seen = "h = MatMul (g0, w) k = MatMul (h, w2) y = Identity (k) z = Tanh (h)"
    assert "h" in chosen(seen, "float[b, s, 64] y, float[b, s, 64] z")[0]


def test_zero_rows_lead_to_a_packed_contraction() -> None:
    """What stands behind the last one is read, and would be packed for nothing."""
    packed, _ = chosen("h = MatMul (g0, w) t = Tanh (h) y = Neg (t)", "float[b, s, 64] y")
    assert packed == {"u", "m", "g0", "h"}


def test_facts_of_exits_that_come_back_as_they_were_stay() -> None:
    """Of two exits one is 0 because of the other: both stay while that one is 0, none where it is
    overwritten.
    """
    body = "h = MatMul (g0, w) k = MatMul (h, w2) y = Add (h, k)"
    with lowering_everything():
        graph = analysed(model(body, "float[b, s, 64] y"))[0]
        found = choose_regions(graph)
    exits = found.demand.exits
    assert set(exits) == {"h", "k"} == kept_exits(graph, found.forms, exits)
    assert overwritten_bits(graph, exits, exits) == 0
    assert overwritten_bits(graph, exits, {"k"}) == graph["h"].bit
    assert not unsound_forms(graph, found.forms, found.demand)
    form = found.forms[exits["h"]]
    (packing,) = form.outputs
    assert packing is not None and packing.zero is not None and packing.proof is None
    forms = found.forms | {exits["h"]: replace(form, outputs=(replace(packing, zero=None),))}
    assert kept_exits(graph, forms, exits) == set()
    wrong = unsound_forms(graph, forms, found.demand)
    assert {n.outputs[0].name for n in wrong} == {"h", "k"}


@pytest.mark.parametrize("name", ["h", "k"])
def test_zero_rows_belong_to_the_domain(name: str) -> None:
    graph = analysed(model(GRADIENT, SUMS))[0]
    (context,) = [c for c in contexts_of(graph) if c.packings(name)]
    (packing,) = context.packings(name)
    assert packing.proof is None and packing.zero in zero_regions(graph, name)
