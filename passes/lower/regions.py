"""On a GPU, a domain whose mask is computed there runs as region nodes: the device finds the rows
that live, and no size of theirs crosses to the host.

    live -> detect -> rows                     live, x, .. -> region { rows } -> y
    x, rows -> product -> [t, n] -> product -> y

A region is products that packed values lead from one to another. What that assumes is asked, and
where it does not hold the detector stays, with one wait for the device in each run:

* The mask is no input of the graph, whose rows are found on the host anyway.
* Nobody reads coordinates or offsets; rows, and values packed by them, are read by products only,
  none of them in a body or given to the caller. This holds for all of a domain, or the detector
  would have to stay.
* No way leads out of a region and back into it.
* Where there are choices, a region has one result: of several, one could be of a branch that is not
  taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import onnx_ir as ir

from pitc.ir.branch import is_choice
from pitc.ir.graph import Graph
from pitc.ir.kernel import KernelRequest
from pitc.ir.nodes import node_name, plan_of
from pitc.ir.plans.ops import LIVE_COUNTS, Contract, Detect, Region, Step
from pitc.ir.refusal import Code, Refusal
from pitc.ir.unused import remove_unused
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.packed import ON_HOST, Packed, packed_plan

KERNEL = KernelRequest.of("live_points", "bool", "cuda")
MOST_STEPS, LONGEST_PLAN, MOST_INPUTS = 8, 1 << 16, 1 << 8
"""Of a region, as the runtime reads it."""
_IDENTITY_BYTES = 256  # that a plan gets when it is written


@dataclass(frozen=True, slots=True)
class _Product:
    """A node that may be a step."""

    node: ir.Node
    plan: Contract

    @property
    def is_packed(self) -> bool:
        """True where its result has a row for each live point."""
        return not self.plan.scatter

    @property
    def result(self) -> ir.Value:
        """What it gives."""
        return self.node.outputs[0]

    @property
    def packed_operands(self) -> list[ir.Value]:
        """Operands with a row for each live point."""
        packed = {"residual"} if self.plan.gather else {"a", "residual"}
        operands = zip(self.plan.operands, self.node.inputs, strict=True)
        return [x for name, x in operands if name in packed and x is not None]


class _NotMergedError(Exception):
    """Why a detector stays."""


def merge_regions(packed: Packed) -> None:
    """Replace detectors of computed masks, and the products that they are for, by region nodes.

    Args:
        packed: The graph, in order; kernels are chosen.
    """
    graph, main = packed.graph, packed.graph.model.graph
    if graph.target.kind != "cuda":
        return
    has_choices, merged = any(is_choice(node) for node in main), False
    for detector in [n for n in packed.nodes() if isinstance(plan_of(n), Detect)]:
        live = detector.inputs[0]
        if live is None or live.producer() is None:  # an input, or a constant
            continue
        try:
            groups = _groups(detector)
            _expect_convex(groups)
            plans = [_plan(graph, detector, group, has_choices) for group in groups]
        except _NotMergedError as why:
            packed.log.refused.append(Refusal(Code.ROWS_ON_HOST, live.name or "", str(why)))
            continue
        made: dict[ir.Value, ir.Value] = {}
        for plan, reads, gives in plans:
            made |= _replace(packed.build, detector, plan, [made.get(x, x) for x in reads], gives)
            packed.kernels[KERNEL] = None
            merged = True
    if merged:
        main.sort()
        remove_unused(graph.model)


def _groups(detector: ir.Node) -> list[list[_Product]]:
    """The products of a domain, by what packed values connect.

    Raises:
        _NotMergedError: Something else reads of the domain.
    """
    rows, *others = detector.outputs
    members: dict[ir.Node, _Product] = {}
    todo = _users(rows)
    while todo:
        node = todo.pop()
        if node not in members:
            product = members[node] = _product(detector, node)
            todo += _users(product.result) if product.is_packed else []
    for other in others:
        if other.uses() or other.is_graph_output():
            raise _NotMergedError(f"{_reader(other)} reads {other.name}, where points stand")
    connected = nx.Graph()
    connected.add_nodes_from(members)
    for node, product in members.items():
        for x in product.packed_operands:
            if x.producer() not in members:
                raise _NotMergedError(f"{node_name(node)} reads {x.name}, packed by others")
            connected.add_edge(x.producer(), node)
    place = {node: number for number, node in enumerate(detector.graph or ())}
    parts = (sorted(part, key=place.__getitem__) for part in nx.connected_components(connected))
    return [[members[node] for node in part] for part in parts]


def _users(value: ir.Value) -> list[ir.Node]:
    """Who reads a value of the inside of a region."""
    if value.is_graph_output():
        raise _NotMergedError(f"{value.name} is an output")
    return [use.node for use in value.uses()]


def _reader(value: ir.Value) -> str:
    return next((node_name(use.node) for use in value.uses()), "the caller")


def _product(detector: ir.Node, node: ir.Node) -> _Product:
    """A node as a step of the detector's domain."""
    name = f"{node_name(node)} ({node.op_type})"
    if node.graph is not detector.graph:
        raise _NotMergedError(f"{name} stands in a body")
    plan = packed_plan(node)
    if plan is None or isinstance(plan, ON_HOST):
        raise _NotMergedError(f"{name} is an ordinary node among packed rows")
    if not isinstance(plan, Contract):
        raise _NotMergedError(f"{node_name(node)} ({plan.op}) is no product")
    own = (node.inputs[-2], node.inputs[-1]) == (detector.outputs[0], detector.inputs[0])
    if (plan.gather or plan.scatter) and not own:
        raise _NotMergedError(f"{name} reads rows of another domain")
    return _Product(node, plan)


_Planned = tuple[Region, list[ir.Value], list[ir.Value]]


def _plan(
    graph: Graph, detector: ir.Node, group: Sequence[_Product], has_choices: bool
) -> _Planned:
    """The plan of a region, the values that it reads behind the mask, and those that it gives.

    Raises:
        _NotMergedError: Something of the region does not hold, or it is larger than plans are.
    """
    steps = {product.result: number for number, product in enumerate(group)}
    given = [p.result for p in group if _is_given_away(p, group)]
    if has_choices and len(given) > 1:
        raise _NotMergedError(f"{given[0].name} and {given[1].name} may be of two branches")
    live, rows = detector.inputs[0], detector.outputs[0]
    numbers: dict[ir.Value | None, str] = {live: "0", rows: "rows"}
    numbers |= {value: f"s{number}" for value, number in steps.items()}
    reads: list[ir.Value] = []
    planned: list[Step] = []
    for product in group:
        own = [x for x in product.node.inputs if x is not None]
        for x in own:
            if x not in numbers:
                reads.append(x)
                numbers[x] = str(len(reads))
        planned.append(Step(product.plan, tuple(numbers[x] for x in own)))
    too_many = f"{len(group)} products of {len(reads)} operands are too many"
    if len(group) > MOST_STEPS or len(reads) >= MOST_INPUTS:
        raise _NotMergedError(too_many)
    plan = Region(
        gives=tuple(steps[x] for x in given),
        kernels=(("counts", LIVE_COUNTS), ("points", KERNEL.symbol)),
        library=graph.target.library,
        steps=tuple(planned),
    )
    if len(plan.text()) + _IDENTITY_BYTES > LONGEST_PLAN:
        raise _NotMergedError(too_many)
    return plan, reads, given


def _is_given_away(product: _Product, group: Iterable[_Product]) -> bool:
    """True for a whole result that somebody outside of a region reads."""
    inside = {product.node for product in group}
    value = product.result
    read = value.is_graph_output() or any(use.node not in inside for use in value.uses())
    return read and not product.is_packed


def _expect_convex(groups: Iterable[Sequence[_Product]]) -> None:
    """Nothing that is made of a region's results, perhaps by another region, is read in it."""
    together = {p.node: tuple(q.node for q in group) for group in groups for p in group}
    for inside in dict.fromkeys(together.values()):
        seen: set[ir.Node] = set()
        todo = [n for n in _readers(inside) if n not in inside]
        while todo:
            node = todo.pop()
            if node in inside:
                raise _NotMergedError(f"{node_name(node)} reads what others make of its region")
            if node.graph is not inside[0].graph:  # what is made of its body's is not followed
                raise _NotMergedError(f"{node_name(node)} reads a result in a body")
            if node not in seen:
                seen |= {*together.get(node, (node,))}
                todo += _readers(together.get(node, (node,)))


def _readers(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Who reads what some nodes give."""
    return [use.node for node in nodes for output in node.outputs for use in output.uses()]


def _replace(
    build: Builder,
    detector: ir.Node,
    plan: Region,
    reads: Sequence[ir.Value],
    given: Sequence[ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Put a region node in place of its steps, which nobody reads then; its results by theirs."""
    live = detector.inputs[0]
    assert live is not None
    outputs = [(f"{live.name}.region", value.dtype or ir.DataType.FLOAT, None) for value in given]
    made = dict(
        zip(given, build.kernel(plan, [live, *reads], outputs, live.name or ""), strict=True)
    )
    for old, new in made.items():
        new.shape = old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        if new.is_graph_output():
            old.name, new.name = new.name, old.name
    return made
