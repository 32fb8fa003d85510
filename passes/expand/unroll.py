"""Loops that are known to run a few times become their bodies, one after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.build import NodeMaker
from pitc.ir.graph import Graph
from pitc.ir.nodes import FIXED, attribute, bodies, constant_of
from pitc.ir.since import Since
from pitc.passes.control.bodies import first_shapes
from pitc.passes.control.graft import detach, graft, substitute
from pitc.passes.exprs.derive import derive

MAX_TRIPS = 8
MAX_NODES = 1000  # of one unrolled loop, with the loops in it


@dataclass(frozen=True, slots=True)
class _Line:
    """A tensor that one iteration reads, or writes, one slice of.

    Args:
        axis: Its dimension.
        backwards: The last slice is the first one.
    """

    axis: int = 0
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """How a loop runs.

    Args:
        trips: How often.
        counted: Ranks of the number of the iteration and of the condition that its body takes, if
            it does; it gives a condition, too.
        states: How many values one iteration hands to the next.
        read: The inputs behind them, which are read slice by slice.
        written: The outputs that are written so.
    """

    trips: int
    counted: tuple[int, ...]
    states: int
    read: tuple[_Line, ...]
    written: tuple[_Line, ...]


def unroll(model: ir.Model, most: int) -> int:
    """Replace the loops of the main graph that are known to run at most `MAX_TRIPS` times.

    Args:
        model: The model; it is changed in place.
        most: How many nodes it may have at most when their bodies' loops are unrolled, too.

    Returns:
        How many there were. Their bodies may hold more.
    """
    loops = [n for n in model.graph if _is_loop(n)]
    if not loops:
        return 0
    graph = Graph(model)
    derive(graph)
    plans = [(n, plan) for n in loops if (plan := PLANS[n.op_type](graph, n)) is not None]
    count, nodes = 0, number_of_nodes(model.graph)
    for node, plan in plans:
        added = plan.trips * _size(graph, node.attributes["body"].as_graph())
        if added <= MAX_NODES and nodes + added <= most:
            unroll_loop(model, node, plan)
            nodes += added
            count += 1
    return count


def number_of_nodes(graph: ir.Graph) -> int:
    """Nodes of a graph, those of bodies counted."""
    return sum(1 for _ in ir.traversal.RecursiveGraphIterator(graph))


def _size(graph: Graph, body: ir.Graph) -> int:
    """Nodes of a body whose loops are unrolled, as far as constants tell how often they run."""
    return sum(
        1 + _times(graph, node) * sum(_size(graph, inner) for inner in bodies(node))
        for node in body
    )


def _times(graph: Graph, node: ir.Node) -> int:
    """How often the body of a node would be copied."""
    limit = node.inputs[0] if node.op_type == "Loop" and _is_loop(node) else None
    trips = None if limit is None else _constant(graph, limit)
    return 1 if trips is None or trips > MAX_TRIPS else max(int(trips), 1)


def counted_loop(graph: Graph, node: ir.Node) -> LoopPlan | None:
    """How a Loop runs; None where it is not known how often, or a trip may be its last one."""
    limit, condition = (x for x, _ in zip_longest(node.inputs[:2], range(2)))
    states = node.inputs[2:]
    body = node.attributes["body"].as_graph()
    runs = True if condition is None else _constant(graph, condition)
    trips = None if limit is None else _constant(graph, limit)
    if runs is None or (runs and trips is None):
        return None
    trips = max(int(trips or 0), 0) if runs else 0
    kept = len(states)
    written = tuple(_Line() for _ in body.outputs[1 + kept :])
    shapes = [s for s in first_shapes(graph, node) if s is not None]
    if any(x is None for x in states) or len(shapes) < FIXED:
        return None
    if (trips > 1 and not _goes_on(graph, body)) or (not trips and _wanted(node, kept)):
        return None
    return LoopPlan(trips, tuple(map(len, shapes)), kept, (), written)


def _loop(graph: Graph, node: ir.Node) -> LoopPlan | None:
    plan = counted_loop(graph, node)
    return plan if plan is not None and plan.trips <= MAX_TRIPS else None


def _scan(graph: Graph, node: ir.Node) -> LoopPlan | None:
    body = node.attributes["body"].as_graph()
    slices = node.attributes["num_scan_inputs"].as_int()
    kept = len(node.inputs) - slices
    operands = [x for x in node.inputs if x is not None]
    if len(operands) < len(node.inputs) or not slices or graph.opset < Since.SCANS:
        return None
    read = _lines(node, "input", slices)
    extents = {_extent(graph, x, line) for x, line in zip(operands[kept:], read, strict=True)}
    trips = extents.pop()
    if extents or not trips or trips > MAX_TRIPS:
        return None
    written = _lines(node, "output", len(body.outputs) - kept)
    return LoopPlan(trips, (), kept, tuple(read), tuple(written))


PLANS: dict[str, Callable[[Graph, ir.Node], LoopPlan | None]] = {"Loop": _loop, "Scan": _scan}


def _is_loop(node: ir.Node) -> bool:
    return node.op_type in PLANS and not node.domain


def _lines(node: ir.Node, kind: str, count: int) -> list[_Line]:
    axes, backwards = (
        attribute(node, f"scan_{kind}_{name}", [0] * count) for name in ("axes", "directions")
    )
    return [_Line(axis, bool(back)) for axis, back in zip(axes, backwards, strict=True)]


def _extent(graph: Graph, x: ir.Value, line: _Line) -> int | None:
    shape = graph[x.name or ""].shape
    known = shape is not None and -len(shape) <= line.axis < len(shape)
    return shape[line.axis].as_int() if known and shape is not None else None


def _constant(graph: Graph, x: ir.Value) -> Any:
    """The one element of a value, when constants (of a body, too) or sizes decide it."""
    made = x.producer()
    own = x.const_value if x.is_initializer() and not x.is_graph_input() else None
    tensor = own if made is None else constant_of(made)
    if tensor is not None:
        return tensor.numpy().reshape(-1)[0].item() if tensor.size == 1 else None
    symbolic = graph.ints(x.name or "")
    if symbolic is None or symbolic.size != 1:
        return None
    return symbolic.reshape(-1)[0].as_int()


def _wanted(node: ir.Node, first: int) -> bool:
    """True when what the loop writes slice by slice is read: without a trip it has no shape."""
    return any(o.uses() or o.is_graph_output() for o in node.outputs[first:])


def _goes_on(graph: Graph, body: ir.Graph) -> bool:
    """True when the condition that a body gives is always true where the one it takes is."""
    value = _source(body.outputs[0])
    return value is body.inputs[1] or bool(_constant(graph, value))


def _source(value: ir.Value) -> ir.Value:
    """What a value is the Identity of."""
    while (made := value.producer()) is not None and made.op_identifier() == ("", "Identity", ""):
        if made.inputs[0] is None:
            break
        value = made.inputs[0]
    return value


class _Writer(NodeMaker):
    """Adds nodes in front of a loop, in the branch of an If that it stands in."""

    CONSTANT = "axis"

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        super().__init__(model.graph, before=node)
        self.node, self.name = node, node.outputs[0].name

    def unique(self, stem: str) -> str:
        """A name that nothing in the graph has."""
        return self.names.value(f"{self.name}.{stem}")

    def insert(self, node: ir.Node) -> None:
        """Put a new node in front of the loop."""
        self.mark([node])
        super().insert(node)

    def mark(self, nodes: list[ir.Node]) -> None:
        """Keep nodes in the branch that the loop stands in."""
        for node in nodes:
            if BRANCH in self.node.metadata_props:
                node.metadata_props[BRANCH] = self.node.metadata_props[BRANCH]

    def number(self, stem: str, array: Any) -> ir.Value:
        """A constant of its own."""
        return self.named(self.unique(stem), array)


def unroll_loop(
    model: ir.Model, node: ir.Node, plan: LoopPlan
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Put the trips of a loop in its place.

    Args:
        model: The model; it is changed in place.
        node: The loop.
        plan: How it runs.

    Returns:
        The number of each trip, if the body takes it; and what the last trip hands on.
    """
    write = _Writer(model, node)
    given = [x for x in node.inputs[2 if plan.counted else 0 :] if x is not None]
    states = given[: plan.states]
    slices: list[list[ir.Value]] = [[] for _ in plan.written]
    going = [write.number("go_on", np.full((1,) * rank, True)) for rank in plan.counted[1:]]
    numbers = list[ir.Value]()
    for trip in range(plan.trips):
        shapes = [(1,) * rank for rank in plan.counted[:1]]
        number = [write.number("trip", np.full(shape, trip, np.int64)) for shape in shapes]
        numbers += number
        operands = [*number, *going, *states]
        for x, line in zip(given[plan.states :], plan.read, strict=True):
            at = plan.trips - 1 - trip if line.backwards else trip
            place = write.number("place", np.array(at, np.int64))
            operands.append(write.apply("Gather", [x, place], {"axis": line.axis}))
        body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        moved, results = graft(model, node, body, operands, write.names)
        write.mark(moved)
        going, results = list(map(_source, results[: len(going)])), results[len(going) :]
        states = results[: len(states)]
        for found, result in zip(slices, results[len(states) :], strict=True):
            found.append(result)
    results = list(states)
    for found, line in zip(slices, plan.written, strict=True):
        if found:
            parts = [write.unsqueeze(x, line.axis) for x in found]
            parts = parts[::-1] if line.backwards else parts
            results.append(write.apply("Concat", parts, {"axis": line.axis}))
    outputs = list(node.outputs[: len(results)])
    substitute(model, node, outputs, results[: len(outputs)])
    detach(node.attributes["body"].as_graph())
    return numbers, states
