"""Domains in strata: what a layer of experts packs decides what lives in the next one."""

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import pitc
from models.routed import RoutedConfig, routed
from pitc.ir.graph import Graph
from pitc.ir.refusal import Code
from pitc.passes.audit.packing import wrong_regions
from pitc.passes.exprs.coordinates import Paths, follow
from pitc.passes.regions.choose import Regions, choose_regions
from pitc.passes.regions.contexts import contexts_of, strata_of
from tests.fact_check import analysed
from tests.lower_support import check, lower, plans
from tests.random_check import lowering_everything


def layers(experts: int, count: int, hidden: int = 64) -> onnx.ModelProto:
    config = RoutedConfig(experts, hidden, 2 * hidden, layers=count)
    return routed(config, np.random.default_rng(count))


def feeds(hidden: int = 64, seed: int = 7) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(2, 9, hidden)).astype(np.float32)
    return {"x": x}


@pytest.mark.parametrize(("experts", "count"), [(8, 1), (3, 2), (8, 3)])
def test_every_expert_of_every_layer_runs_packed(experts: int, count: int) -> None:
    proto = layers(experts, count)
    lowered = lower(proto, sparse=False)
    assert Counter(p["kind"] for p in plans(lowered)) == {
        "detect": experts * count,
        "dense": 2 * experts * count,
    }
    check(proto, lowered, feeds())
    products = [r for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert Counter(r.lowering for r in products) == {
        "packed": 2 * experts * count,
        "ordinary": count,
    }


def test_layers_of_experts_in_onnx_runtime_sessions() -> None:
    """Three layers of eight experts by the plug-in; where an expert has no token, too."""
    proto = layers(8, 3)
    compiled = pitc.compile(proto, suggest=False)
    packed = [r for r in compiled.report.nodes if r.op_type == "MatMul" and r.lowering == "packed"]
    assert len(packed) == 48
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    one = {"x": feeds(seed=8)["x"][:1, :1]}
    for fed in (feeds(), one, {"x": feeds()["x"][:, :0]}):
        want = np.asarray(session.run(None, fed)[0])
        np.testing.assert_allclose(compiled.run(fed)["y"], want, rtol=1e-4, atol=1e-6)


def test_live_points_are_computed_from_earlier_strata() -> None:
    graph, _ = analysed(layers(2, 3))
    contexts = contexts_of(graph)
    strata = strata_of(graph, [c.domain for c in contexts])
    assert sorted(strata.number.values()) == [0, 0, 1, 1, 2, 2]
    by_number = {n: d for d, n in strata.number.items()}
    routers = [n.outputs[0].name or "" for n in graph.nodes if n.op_type == "ArgMax"]
    for k, router in enumerate(routers):
        allowed = [strata.allow([router], [by_number[j]]) for j in range(3)]
        assert allowed == [j < k for j in range(3)]
    # the last number counts, and none where nothing is tested
    assert not strata.allow([routers[1]], [by_number[0], by_number[2]])
    assert strata.allow(routers, [])


def test_a_way_back_to_its_own_live_points_is_found() -> None:
    """What the first layer's router chooses by, as if packed by what the second one chooses."""
    graph, _ = analysed(layers(2, 2))
    found = choose_regions(graph)
    assert list(wrong_regions(graph, found)) == []
    first, *_, last = (n for n in graph.nodes if n in found.demand.forms)
    found.forms[first] = found.forms[last]
    text = "runs packed, and live points are computed from it that it needs"
    assert [line for line in wrong_regions(graph, found) if line.endswith(text)]


TEXT = """
<ir_version: 10, opset_import: ["": 20]>
g (float[a, b, c, d, e, 64] x, bool[a, b, c, d, e] five, bool[a, b, c, d, 1] four) => (float[n] y)
<float zero = {0}, int64[1] last = {-1}>
{
    h = MatMul (x, w) BODY
    live = Unsqueeze (mask, last) z = Where (live, h, zero) y = ReduceSum <keepdims = 0> (z)
}
"""


def chosen(mask: str) -> tuple[Graph, Regions]:
    """Of a product whose rows are wanted where a mask is not 0."""
    proto = onnx.parser.parse_model(TEXT.replace("BODY", mask))
    w = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    with lowering_everything():
        graph = analysed(proto)[0]
        return graph, choose_regions(graph)


def test_rows_of_four_coordinates_run_packed() -> None:
    graph, found = chosen("mask = Identity (four)")
    assert [c.domain.rank for c in contexts_of(graph)] == [4]
    assert "h" in {n.outputs[0].name for n in found.forms}


def test_rows_of_five_coordinates_are_refused_for_that() -> None:
    graph, found = chosen("mask = Identity (five)")
    assert not contexts_of(graph) and not found.forms
    (refusal,) = found.refusals.values()
    assert (refusal.node, refusal.code) == ("h", Code.LAYOUT)
    assert refusal.reason == "live points have 5 coordinates, and at most 4 are packed"


def test_a_product_that_only_its_sizes_are_read_of_says_so() -> None:
    """No default: every contraction with unread rows has a form or a reason of its own."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[b, s, 64] x) => (int64[3] y) { h = MatMul (x, w) y = Shape (h) }"""
    proto = onnx.parser.parse_model(text)
    w = np.zeros((64, 64), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    (refusal,) = choose_regions(analysed(proto)[0]).refusals.values()
    assert (refusal.code, refusal.reason) == (Code.NOT_NEEDED, "only its sizes are read")


def test_ways_of_coordinates_are_those_of_each_domain_alone() -> None:
    """Followed once for all, they lead where they lead for each."""
    graph, _ = analysed(layers(3, 2))
    paths = Paths(graph)
    for context in contexts_of(graph):
        alone = follow(graph, context.starts)
        assert {n: set(c) for n, c in paths.reached(context.starts).items()} == {
            n: set(c) for n, c in alone.items()
        }
