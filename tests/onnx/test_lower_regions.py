"""Lowering for GPUs: a domain whose mask is computed there is region nodes, or says why not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from models.routed import RoutedConfig, routed
from pitc.ir.gpu_speed import GpuPrices
from pitc.ir.target import CPU, CUDA, Target
from pitc.passes.lower import regions
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import run_lowered

FIXTURES = Path(__file__).parents[2] / "models" / "export" / "fixtures"
Array = np.ndarray
K = 64
EAGER = replace(CUDA, flops_per_byte=0)
"""Every region pays."""


def lower(model: onnx.ModelProto, target: Target = EAGER) -> Lowered:
    prices = None if target is CPU else GpuPrices()
    return run_passes(ir.from_proto(model), LowerOptions(prices=prices, target=target, check=True))


def ops(lowered: Lowered) -> list[str]:
    return sorted(plan["op"] for plan in plans(lowered))


def check(model: onnx.ModelProto, lowered: Lowered, feeds: dict[str, Array]) -> None:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = run_lowered(ir.serde.serialize_model(lowered.model), feeds)
    for got, want in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-4)


def tokens(*lead: int) -> Array:
    rng = np.random.default_rng(len(lead))
    return rng.standard_normal((*lead, K)).astype(np.float32)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_each_expert_is_one_node(activation: str) -> None:
    model = routed(RoutedConfig(activation=activation), np.random.default_rng(0))
    lowered = lower(model)
    assert ops(lowered) == ["region"] * 4 and not lowered.report.notes
    assert "live_points" in lowered.report.kernels
    for plan in plans(lowered):
        assert plan["steps"] == "2" and plan["gives"] == "1"
        assert plan["step0.skips"] == plan["step1.skips"] == "0"
        assert (plan["step0.reads"], plan["step1.reads"]) == ("1,2,3,rows,0", "s0,4,5,rows,0")
    x = tokens(2, 9)
    all_to_one = x.copy()
    all_to_one[..., 2] += 9
    for feed in (x, all_to_one, x[:, :1], x[:0], x[:, :0]):
        check(model, lowered, {"x": feed})


def test_a_large_expert_is_one_step() -> None:
    model = routed(RoutedConfig(2, 128, 512), np.random.default_rng(0))
    (plan, _) = plans(lower(model))
    assert (plan["op"], plan["steps"], plan["step0.skips"]) == ("region", "1", "1")
    assert "step0.inner" in plan
    assert {"detect_bits_f32", "choose_f32", "live_points"} <= set(lower(model).report.kernels)


def test_cpus_have_no_regions() -> None:
    found = ops(lower(routed(RoutedConfig(), np.random.default_rng(0)), CPU))
    assert "region" not in found and found.count("detect") == 4


# ---- what a region assumes

Body = Callable[[GraphBuilder, str, str], tuple[str, ...]]


def product(g: GraphBuilder, x: str, name: str) -> str:
    weight = np.random.default_rng(len(name)).normal(0, K**-0.5, (K, K)).astype(np.float32)
    return g.op("MatMul", x, g.weight(name, weight))


def masked(g: GraphBuilder, x: str, live: str) -> str:
    """0 where a token is dead."""
    row = g.op("Cast", g.op("Unsqueeze", live, g.ints(-1)), to=onnx.TensorProto.FLOAT)
    return g.op("Mul", x, row)


def model_of(body: Body, given: tuple[int | str, ...] = (), outputs: int = 1) -> onnx.ModelProto:
    """A model of tokens and their numbers, of which 0 is none; or of tokens and a mask of a shape
    with a 1 in it, or none.
    """
    g = GraphBuilder("regions")
    x = g.input("x", np.float32, ("b", "s", K))
    if given:
        live = g.input("live", np.bool_, given)
        live = g.op("Squeeze", live, g.ints(1)) if 1 in given else live
    else:
        live = g.op("Greater", g.input("ids", np.int64, ("b", "s")), g.const(0, np.int64))
    results = body(g, x, live)
    assert len(results) == outputs
    for i, y in enumerate(results):
        g.output(y, f"y{i}", np.float32, ("b", "s", K))
    return g.model()


def one_layer(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    return (masked(g, product(g, g.op("Relu", product(g, x, "w")), "ww"), live),)


def two_layers(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    (y,) = one_layer(g, x, live)
    y = g.op("CumSum", y, g.const(1, np.int64))
    return (masked(g, product(g, y, "www"), live),)


def two_results(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    h = g.op("Relu", product(g, x, "w"))
    return tuple(masked(g, product(g, h, name), live) for name in ("ww", "www"))


def a_residual(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    h = g.op("Relu", product(g, x, "w"))
    y = g.op("Add", product(g, g.op("Relu", product(g, h, "ww")), "www"), h)
    return (masked(g, y, live),)


def three_products(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    h = product(g, g.op("Relu", product(g, x, "w")), "ww")
    return (masked(g, product(g, g.op("Relu", h), "www"), live),)


def two_ways_in(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    first, second = (g.op("Relu", product(g, x, name)) for name in ("w", "www"))
    return (masked(g, g.op("Add", product(g, first, "ww"), second), live),)


MERGED: dict[str, tuple[Body, int, list[str]]] = {
    "one layer": (one_layer, 1, ["2"]),
    "two layers, one behind the other": (two_layers, 1, ["1", "2"]),
    "two results": (two_results, 2, ["3"]),
    "a residual inside": (a_residual, 1, ["3"]),
    "three products": (three_products, 1, ["3"]),
    "two ways in": (two_ways_in, 1, ["3"]),
}


def feeds(*lead: int, share: float = 0.5) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {"x": tokens(*lead), "ids": (rng.random(lead) < share).astype(np.int64) * 7}


@pytest.mark.parametrize("name", MERGED)
def test_products_for_live_points_are_regions(name: str) -> None:
    body, outputs, steps = MERGED[name]
    model = model_of(body, outputs=outputs)
    lowered = lower(model)
    assert ops(lowered) == ["region"] * len(steps) and not lowered.report.notes
    assert sorted(plan["steps"] for plan in plans(lowered)) == steps
    for feed in (feeds(2, 9), feeds(2, 9, share=0), feeds(1, 1, share=1), feeds(0, 4), feeds(3, 0)):
        check(model, lowered, feed)


def normalised(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    h = g.op("Softmax", product(g, x, "w"), axis=-1)
    return (masked(g, product(g, h, "ww"), live),)


def outer_residual(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    y = product(g, g.op("Relu", product(g, x, "w")), "ww")
    return (masked(g, g.op("Add", y, x), live),)


def not_convex(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    h = g.op("Relu", product(g, x, "w"))
    whole = g.op("CumSum", masked(g, product(g, h, "ww"), live), g.const(1, np.int64))
    return (masked(g, g.op("Add", product(g, whole, "www"), h), live),)


def through_each_other(g: GraphBuilder, x: str, live: str) -> tuple[str, ...]:
    """Each of two regions has a step in front of the other, and one behind it."""
    a, b = (g.op("Relu", product(g, x, name)) for name in ("w", "ww"))
    ends = (
        g.op("CumSum", masked(g, product(g, h, "www"), live), g.const(1, np.int64)) for h in (a, b)
    )
    of_a, of_b = (product(g, end, "wwww") for end in ends)
    return tuple(masked(g, g.op("Add", y, h), live) for y, h in ((of_b, a), (of_a, b)))


REFUSED: dict[str, tuple[Body, str]] = {
    "an ordinary node": (normalised, "(Softmax) is an ordinary node among packed rows"),
    "rows that are packed": (outer_residual, "(pack) is no product"),
    "a way out and back": (not_convex, "reads what others make of its region"),
    "a way through another region": (through_each_other, "reads what others make of its region"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_detector_stays_and_says_why(name: str) -> None:
    body, why = REFUSED[name]
    model = model_of(body, outputs=2 if body is through_each_other else 1)
    lowered = lower(model)
    assert "detect" in ops(lowered) and "region" not in ops(lowered)
    (note,) = lowered.report.notes
    assert note.startswith("PIT020 ") and why in note
    assert "live_points" not in lowered.report.kernels
    check_padded(model, lowered)


def check_padded(model: onnx.ModelProto, lowered: Lowered) -> None:
    """As `check`, of plans outside of regions, whose biases are as long as all panels: K is whole
    panels.
    """
    for feed in (feeds(2, 9), feeds(2, 9, share=0), feeds(0, 4)):
        check(model, lowered, feed)


def test_rows_of_a_given_mask_are_found_on_the_host() -> None:
    lowered = lower(model_of(one_layer, given=("b", "s")))
    assert "detect" in ops(lowered) and "region" not in ops(lowered)
    assert not lowered.report.notes


def test_a_mask_in_another_shape_is_made_on_the_device() -> None:
    lowered = lower(model_of(one_layer, given=("b", 1, "s")))
    assert "region" in ops(lowered) and "detect" not in ops(lowered)


def test_who_reads_places_keeps_rows_on_the_host() -> None:
    """Attention over all queries reads where sequences begin, and no rows."""
    model = onnx.load(FIXTURES / "switch-eager-traced.onnx")
    assert any(" reads pitc.coords, where points stand" in n for n in lower(model).report.notes)


def test_plans_are_not_larger_than_the_runtime_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(three_products)
    monkeypatch.setattr(regions, "MOST_STEPS", 2)
    assert "3 products of 5 operands are too many" in lower(model).report.notes[0]
    monkeypatch.undo()
    (node,) = [n for n in lower(model).model.graph if n.op_type == "EPContext"]
    size = len(node.attributes["ep_cache_context"].as_string())
    for longest, merged in ((size + 256, True), (size + 255, False)):
        monkeypatch.setattr(regions, "LONGEST_PLAN", longest)
        assert bool(lower(model).report.notes) != merged


def branches(*names: str) -> onnx.ModelProto:
    """A model whose branches negate and double a result each, of products of those names, or of the
    same one.
    """
    g = GraphBuilder("branches")
    x = g.input("x", np.float32, ("b", "s", K))
    ids, wide = g.input("ids", np.int64, ("b", "s")), g.input("wide", np.bool_, ())
    live = g.op("Greater", ids, g.const(0, np.int64))
    h = g.op("Relu", product(g, x, "w"))
    results = [masked(g, product(g, h, name), live) for name in names]
    sides = []
    for value, op in ((results[0], "Neg"), (results[-1], "Abs")):
        node = onnx.helper.make_node(op, [value], [f"{op}.y"])
        out = onnx.helper.make_tensor_value_info(f"{op}.y", onnx.TensorProto.FLOAT, None)
        sides.append(onnx.helper.make_graph([node], op, [], [out]))
    y = g.op("If", wide, then_branch=sides[0], else_branch=sides[1])
    g.output(y, "y", np.float32, ("b", "s", K))
    return g.model()


@pytest.mark.parametrize("names", [("ww", "www"), ("ww",)], ids=["two results", "one"])
def test_results_of_two_branches_are_not_computed_together(names: tuple[str, ...]) -> None:
    """A branch that is not taken computes nothing."""
    model = branches(*names)
    lowered = lower(model)
    assert ("region" in ops(lowered)) == (len(names) == 1)
    for choice in (True, False):
        check(model, lowered, feeds(2, 5) | {"wide": np.array(choice)})
