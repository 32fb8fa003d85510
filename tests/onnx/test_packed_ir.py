"""The packed IR: nodes that become others in place, and what a wrong step leaves behind."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.ir.build import NodeBuilder
from pitc.ir.graph import Graph
from pitc.ir.nodes import is_pit_node, plan_of
from pitc.ir.plans.ops import Attention, Contract, Detect, Pack, Unpack
from pitc.ir.target import CPU
from pitc.passes.audit.stages import StageError
from pitc.passes.lower import steps
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.kernels import kernels_for
from pitc.passes.lower.packed import Log, Packed, operands_of, remove_idle
from pitc.passes.lower.steps import Lowering, Step
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.tile_prices import PRICES

K, N = 512, 512


def padded_product() -> ir.Model:
    g = GraphBuilder("m")
    x, mask = g.input("x", np.float32, ("b", "s", K)), g.input("mask", np.int64, ("b", "s"))
    w = g.weight("w", np.ones((K, N), np.float32))
    g.output(g.op("MatMul", x, w), "y", np.float32, ("b", "s", N))
    assert mask
    return ir.from_proto(g.model())


def lowered(
    change: Callable[[Lowering], None], behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower a model with one step more."""
    found = []
    for step in steps.STEPS:
        found += [step, *([Step("wrong", change)] if step.name == behind else [])]
    monkeypatch.setattr(steps, "STEPS", tuple(found))
    run_passes(padded_product(), LowerOptions("mask", check=True))


def first(low: Lowering, kind: type) -> ir.Node:
    return next(n for n in low.packed.nodes() if isinstance(plan_of(n), kind))


def _drops_an_operand(low: Lowering) -> None:
    first(low, Contract).resize_inputs(1)


def _swaps_rows_and_coordinates(low: Lowering) -> None:
    pack, detector = first(low, Pack), first(low, Detect)
    pack.replace_input_with(1, detector.outputs[1])


def _reads_another_mask(low: Lowering) -> None:
    unpack = first(low, Unpack)
    unpack.replace_input_with(3, low.packed.build.constant(np.ones((1, 1), np.int64)))


def _halves_an_operand(low: Lowering) -> None:
    first(low, Contract).inputs[1].type = ir.TensorType(ir.DataType.FLOAT16)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_drops_an_operand, "has 1 operands"),
        (_swaps_rows_and_coordinates, "operand rows, "),
        (_reads_another_mask, "is not what its detector has read"),
        (_halves_an_operand, "has type FLOAT16"),
    ],
)
def test_a_wrong_step_is_named(
    change: Callable[[Lowering], None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match=rf"after lower \(wrong\): .*{text}"):
        lowered(change, "contractions", monkeypatch)


def test_steps_change_plans_until_they_are_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two moves and a product; then one node that does both moves, with kernels; then a text."""
    seen: dict[str, list[str]] = {}

    def look(low: Lowering) -> None:
        found = [plan_of(n) for n in low.packed.nodes()]
        seen[str(len(seen))] = [type(plan).__name__ for plan in found]
        assert all(not isinstance(p, Contract) or not p.kernels for p in found)

    lowered(look, "contractions", monkeypatch)
    assert sorted(seen["0"]) == ["Contract", "Detect", "Pack", "Unpack"]
    low = run_passes(padded_product(), LowerOptions("mask"))
    nodes = [n for n in low.model.graph if is_pit_node(n)]
    assert {n.op_type for n in nodes} == {"EPContext"} and not any(n.meta for n in nodes)
    plans = [plan_of(n) for n in nodes]
    assert [type(p).__name__ for p in plans] == ["Detect", "Contract"]
    (product,) = (p for p in plans if isinstance(p, Contract))
    assert product.gather and product.scatter and product.kernels


def doubles(g: GraphBuilder, x: str) -> str:
    y = g.op("Cast", x, to=ir.DataType.DOUBLE)
    return g.op("Cast", g.op("MatMul", y, g.weight("w", np.ones((K, N)))), to=ir.DataType.FLOAT)


def narrow(g: GraphBuilder, x: str) -> str:
    w = g.weight("w", np.ones((K, 4), np.float32))
    h = g.op("MatMul", g.op("MatMul", x, w), g.weight("v", np.ones((4, K), np.float32)))
    return g.op("MatMul", h, g.input("u", np.float32, (K, N)))


def computed(g: GraphBuilder, x: str) -> str:
    return g.op("MatMul", x, g.input("w", np.float32, (K, N)))


def computed_bias(g: GraphBuilder, x: str) -> str:
    w, c = g.weight("w", np.ones((K, N), np.float32)), g.input("c", np.float32, (N,))
    y = g.op("Gemm", g.op("Reshape", x, g.ints(-1, K)), w, c)
    return g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), N))


@pytest.mark.parametrize("make", [doubles, narrow, computed, computed_bias])
def test_a_product_without_kernels_runs_as_it_is_on_live_rows(
    make: Callable[[GraphBuilder, str], str],
) -> None:
    g = GraphBuilder("m")
    x, mask = g.input("x", np.float32, ("b", "s", K)), g.input("mask", np.int64, ("b", "s"))
    g.output(make(g, x), "y", np.float32, ("b", "s", N))
    assert mask
    made = run_passes(ir.from_proto(g.model()), LowerOptions("mask", check=True))
    found = [type(plan_of(n)) for n in made.model.graph if is_pit_node(n)]
    assert found == [Detect, Pack, Unpack]
    assert {"MatMul", "Gemm"} & {n.op_type for n in made.model.graph}


def test_values_are_known_by_their_names_behind_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a product whose operand and result have other dimensions: one of them is made."""

    def look(low: Lowering) -> None:
        build, nodes = low.packed.build, low.graph.model.graph
        found = [o for n in nodes for o in n.outputs if build.has(o.name or "")]
        assert found and all(build.value(o.name or "") is o for o in found)

    wanted = [s for step in steps.STEPS for s in (step, Step("look", look))]
    monkeypatch.setattr(steps, "STEPS", tuple(wanted))
    g = GraphBuilder("m")
    x, w = g.input("x", np.float32, ("b", "s", K)), g.weight("w", np.ones((K, N), np.float32))
    a = g.op("Relu", g.op("Softplus", g.op("Reshape", x, g.ints(-1, K))))
    y = g.op("Reshape", g.op("MatMul", a, w), g.dims(g.size(x, 0), g.size(x, 1), N))
    g.output(g.op("Relu", y), "y", np.float32, ("b", "s", N))
    made = run_passes(ir.from_proto(g.model()), LowerOptions(prices=PRICES))
    assert [n.op_type for n in made.model.graph][-2:] == ["EPContext", "Reshape"]


@pytest.mark.parametrize("between", ["Relu", "Reshape"])
def test_a_constant_is_a_bias_behind_a_split_only(between: str) -> None:
    """What is added behind an activation is added behind it."""
    g = GraphBuilder("m")
    x, mask = g.input("x", np.float32, ("b", "s", K)), g.input("mask", np.int64, ("b", "s"))
    h = g.op("MatMul", x, g.weight("w", np.ones((K, N), np.float32)))
    split = (0, 0, 8, N // 8)
    h = g.op("Relu", h) if between == "Relu" else g.op("Reshape", h, g.ints(*split))
    shape = (N,) if between == "Relu" else split[2:]
    h = g.op("Add", h, g.weight("c", np.full(shape, 2, np.float32)))
    out = ("b", "s", N) if between == "Relu" else ("b", "s", *split[2:])
    g.output(h, "y", np.float32, out)
    assert mask
    low = run_passes(ir.from_proto(g.model()), LowerOptions("mask", check=True))
    found = [plan_of(n) for n in low.model.graph if is_pit_node(n)]
    (plan,) = (p for p in found if isinstance(p, Contract))
    activation, has_bias = ("relu", False) if between == "Relu" else ("none", True)
    assert (plan.activation, plan.bias) == (activation, has_bias)


@pytest.mark.parametrize(
    ("rest", "split", "constant"),
    [((), (N, 1), (N,)), ((2,), (2 * N,), (2 * N,)), ((), (8, N // 8), None)],
    ids=["along other columns", "of several rows", "of the caller"],
)
def test_what_else_is_added_behind_a_split_is_no_bias(
    rest: tuple[int, ...], split: tuple[int, ...], constant: tuple[int, ...] | None
) -> None:
    g = GraphBuilder("m")
    x, mask = g.input("x", np.float32, ("b", "s", *rest, K)), g.input("mask", np.int64, ("b", "s"))
    h = g.op("MatMul", x, g.weight("w", np.ones((K, N), np.float32)))
    h = g.op("Reshape", h, g.ints(0, 0, *split))
    c = g.weight("c", np.ones(constant, np.float32)) if constant else ""
    h = g.op("Add", h, c or g.input("c", np.float32, split))
    h = g.op("ReduceSum", h, g.ints(-1), keepdims=0)
    g.output(h, "y", np.float32, ("b", "s", *(f"n{d}" for d in split[1:])))
    assert mask
    low = run_passes(ir.from_proto(g.model()), LowerOptions("mask", check=True))
    found = [plan_of(n) for n in low.model.graph if is_pit_node(n)]
    assert [p.bias for p in found if isinstance(p, Contract)] == [False]
    assert "Add" in {n.op_type for n in low.model.graph}


MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)
<float[4, 4] w = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
  t = Neg (x) c = MatMul (t, w) r = Relu (c) y = Add (r, x) }"""


PLAN = Contract(activation="relu", bias=False, dtype="float32", k=4, n=4, residual=True)


def _packed_and_model() -> tuple[Packed, ir.Model]:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    graph = Graph(model)
    return Packed(graph, Builder(graph)), model


def test_a_node_becomes_what_later_nodes_compute() -> None:
    packed, model = _packed_and_model()
    negate, product, relu, add = list(model.graph)
    x, w = model.graph.inputs[0], model.graph.initializers["w"]
    packed.log.sources[product] = product
    packed.become(product, PLAN, {"a": x, "b": w, "residual": x}, add.outputs[0])
    assert list(model.graph) == [product]
    assert product.outputs[0] is model.graph.outputs[0] and product.outputs[0].name == "y"
    assert operands_of(product) == {"a": x, "b": w, "residual": x}
    assert packed.log.inside() == dict.fromkeys((negate, relu, add), product)
    assert packed.build.value("y") is product.outputs[0]


def test_a_node_takes_in_nothing_in_front_of_its_operands() -> None:
    packed, model = _packed_and_model()
    negate, product, relu, add = list(model.graph)
    t, w, x = negate.outputs[0], model.graph.initializers["w"], model.graph.inputs[0]
    packed.become(product, PLAN, {"a": t, "b": w, "residual": x}, add.outputs[0])
    assert packed.log.absorbed == {relu: product, add: product}


def test_a_node_is_inside_of_the_last_one_that_is_there() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    negate, product, relu, add = list(model.graph)
    log = Log(sources={product: product, relu: relu, add: add})
    log.absorbed = {negate: product, product: relu, relu: add}
    model.graph.outputs[:] = [relu.outputs[0]]
    model.graph.remove(add)
    assert log.inside() == {}
    for node in (negate, product):
        node.graph = None
    assert log.inside() == {negate: relu, product: relu}


def test_rounded_attention_has_kernels_of_its_own() -> None:
    plain = Attention(
        dtype="float32",
        d=8,
        dv=8,
        heads=2,
        scale=1.0,
        bias=False,
        nan_to_zero=False,
        no_keys_to_zero=False,
    )
    rounded = replace(plain, score_step=0.5, score_scale=1.0, score_below=8, score_above=8)
    names = [kernels_for(p, CPU)["attention"].symbol for p in (plain, rounded)]
    assert names == ["attention_d8_v8", "attention_d8_v8_score_steps"]


def test_only_idle_nodes_go() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    nodes = list(model.graph)
    remove_idle(nodes[:3])
    assert list(model.graph) == nodes
    model.graph.outputs[:] = [nodes[0].outputs[0]]
    remove_idle(nodes)
    assert list(model.graph) == nodes[:1]


def test_what_was_removed_is_made_again() -> None:
    """A value of the same make that is gone from the graph is not handed out."""
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    build = NodeBuilder(model.graph, "made")
    x = model.graph.inputs[0]
    value, number = build.op("Abs", [x]), build.constant(np.float32(2))
    assert build.op("Abs", [x]) is value and build.constant(np.float32(2)) is number
    node = value.producer()
    assert node is not None
    model.graph.remove(node, safe=True)
    del model.graph.initializers[number.name or ""]
    later, same = build.op("Abs", [x]), build.constant(np.float32(2))
    assert later is not value and same is not number
    assert later.producer() in list(model.graph)
    assert same.name in model.graph.initializers
