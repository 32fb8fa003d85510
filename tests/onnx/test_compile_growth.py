"""The work of the compiler grows like the graph: twice the nodes, twice the calls."""

import cProfile

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from models.routed import RoutedConfig, routed
from models.tall import TALL
from pitc.importer import load_model
from pitc.ir import region
from pitc.passes.expand.unroll import MAX_NODES, MAX_TRIPS, number_of_nodes
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from tests.branch_models import loop
from tests.branch_models import model as build
from tests.tile_prices import PRICES

# sizes from which on every node has as much to do as the one before; a search of the graph for
# every node would take nearly four times the calls for twice the nodes
SIZES = {"transformer": 200, "relu": 150, "add": 150, "gate": 120, "residual": 150, "if": 100}
# work for pairs of nodes that is a twentieth of the work for nodes is found: 2 (1 + 0.1) / 1.05
MOST = 2.1
# of a node of the gate chain, whose values have as many facts as a value may have
MOST_PER_GATE_NODE = 20_000
MOST_OF_A_SUM = 2 * 10**6  # calls for one node of many operands


def calls(model: onnx.ModelProto) -> int:
    """Calls of functions while a model is imported and lowered."""
    for known in (region._pruned, region._resolved):  # of the same names in an earlier run
        known.cache_clear()
    profile = cProfile.Profile()
    profile.runcall(lambda: run_passes(load_model(model), LowerOptions(prices=PRICES)))
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("kind", TALL)
def test_twice_the_nodes_take_twice_the_calls(kind: str) -> None:
    few, more = TALL[kind](SIZES[kind]), TALL[kind](2 * SIZES[kind])
    calls(TALL[kind](SIZES[kind] // 10))  # what is done once only is done
    before, after = calls(few), calls(more)
    print(f"{kind}: {before} and {after} calls")
    assert after < MOST * before
    if kind == "gate":
        assert after - before < MOST_PER_GATE_NODE * SIZES[kind]


def test_twice_the_experts_take_twice_the_calls() -> None:
    """Four layers, each expert with a domain of its own."""
    few, more = (
        routed(RoutedConfig(n, 64, 128, layers=4), np.random.default_rng(0)) for n in (6, 12)
    )
    calls(routed(RoutedConfig(2, 64, 128, layers=1), np.random.default_rng(0)))
    before, after = calls(few), calls(more)
    print(f"experts: {before} and {after} calls")
    assert after < MOST * before


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("gated", ["one", "all"])
def test_many_operands_take_no_combinations_of_them(op: str, gated: str) -> None:
    """Of some that are 0 somewhere: neither their ends nor their facts are all combined."""
    assert max(calls(joined(op, n, gated)) for n in (8, 9, 20)) < MOST_OF_A_SUM


def joined(op: str, count: int, gated: str) -> onnx.ModelProto:
    """Several values under masks of their own, joined by one operator."""
    masks = [f"m{k}" for k in range(count if gated == "all" else 1)]
    inputs = ", ".join(["float[n, 8] x", *(f"bool[n, 1] {m}" for m in masks)])
    lines = [f"v{k} = Mul (x, c{k})" for k in range(count)]
    lines += [f"v{k} = Where ({m}, x, nought)" for k, m in enumerate(masks)]
    lines = [line for k, line in enumerate(lines) if k >= count or k >= len(masks)]
    numbers = ", ".join(f"float c{k} = {{{k + 2}}}" for k in range(count))
    operands = ", ".join(f"v{k}" for k in range(count))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g ({inputs}) => (float[n, 8] y) <float nought = {{0}}, {numbers}>
        {{ {" ".join(lines)} s = {op} ({operands}) r = Relu (s) y = Mul (r, r) }}""")


@pytest.mark.parametrize("kind", TALL)
def test_bits_are_for_values_with_facts(kind: str) -> None:
    """Provenance takes no space where nothing is known."""
    model = load_model(TALL[kind](120))
    normalise(model)
    graph, _ = analyse(model, None)
    tested = {t.src for x in graph.values.values() for f in x.fills for t in f.region}
    known = {n for n, x in graph.values.items() if x.fills and x.order >= 0}
    ordered = {n for n, x in graph.values.items() if x.order >= 0}
    assert set(graph.noted) == known | (tested & ordered)
    assert kind not in ("relu", "add", "if") or len(graph.noted) < len(ordered) / 2


@pytest.mark.parametrize("kind", TALL)
def test_tall_graphs_run(kind: str) -> None:
    model = TALL[kind](60)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {}
    for x in session.get_inputs():
        shape = [d if isinstance(d, int) else 2 for d in x.shape]
        feeds[x.name] = np.ones(
            shape, {"tensor(bool)": bool, "tensor(int64)": np.int64}.get(x.type, np.float32)
        )
    assert all(np.isfinite(np.asarray(y)).all() for y in session.run(None, feeds))
    assert 30 <= sum(1 for _ in load_model(model).graph.all_nodes()) <= 90


def nested(depth: int, hidden: bool) -> onnx.ModelProto:
    """Loops in each other that run 8 times; hidden: what tells so is computed in the bodies."""

    def inside(g: GraphBuilder, x: str, left: int) -> str:
        y = g.op("Neg", x)
        if not left:
            return y
        eight = g.op("Size", g.weight("w", np.zeros(8, np.float32)))
        trips = eight if hidden else g.const(MAX_TRIPS, np.int64)
        return loop(g, trips, [y], lambda b, i, states: [inside(b, states[0], left - 1)])[0]

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, (8,))
        g.output(inside(g, x, depth), "y", np.float32, (8,))

    return build(make)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
def test_loops_in_loops_do_not_multiply(depth: int, hidden: bool) -> None:
    model = load_model(nested(depth, hidden))
    before = number_of_nodes(model.graph)
    normalise(model)
    kinds = {n.op_type for n in model.graph}
    assert ("Loop" in kinds) == (depth > 2)
    assert number_of_nodes(model.graph) <= before + MAX_NODES + MAX_TRIPS * before
    if not hidden and depth > 2:  # it is known at first that there are too many
        assert number_of_nodes(model.graph) <= before
