"""Elementwise nodes that lead to one value become one node, which computes them in one pass.

    c = LessOrEqual(x, 0), Where(c, 0, g)      ->   Elementwise(x, g)
    t = Mul(x, w), Sub(t, ReduceMean(t))       ->   Elementwise(x, w), w a row
    a, b = Split(x, axis=-1), Mul(Silu(a), b)  ->   Elementwise(x, x), its halves

ONNX Runtime runs such nodes one by one, and each goes through memory. Of what is computed on the
way, values that are read elsewhere too are further results.

* Values are float32, or truth values on the way.
* A result is as large as an operand; other operands, and other results, are as large, or have one
  number for each row; an operand may also have one for each place along the last axis, or for all.
* Reductions are means and sums over the last axis, which stays as an axis of extent 1.
* No way leads out of the nodes and back to one of them, and they are of one branch.
* Sums in front of a norm stay: ONNX Runtime adds there. So does all of a graph that chooses between
  few channels and all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.formula import (
    COLUMN,
    FLAGS,
    HALVES,
    LONGEST,
    MOST_OPERANDS,
    MOST_RESULTS,
    MOST_STEPS,
    NUMBER,
    REDUCTIONS,
    ROW,
    WHOLE,
    Formula,
    Step,
)
from pitc.ir.graph import Graph
from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import attribute, is_pit_node, node_name, plan_of
from pitc.ir.plans.ops import ChooseChannels
from pitc.ir.plans.whole import Elementwise
from pitc.ir.work import EXAMPLE_SIZE
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed, remove_idle
from pitc.passes.lower.rows import is_outside
from pitc.passes.regions.matrix import Dims, dims_of, same_dims, tensor_of, type_of
from pitc.passes.rules.record import operator_of

LEAST_ROW = 64
"""Elements of a row, where rows count: each takes about as long as 64 elements to begin."""
LEAST_ELEMENTS = 1 << 14
"""Of a result, as estimated: smaller ones take no longer than a node does to start."""


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that are computed together.

    Args:
        dims: Dimensions of the result.
        nodes: From the one of the result back.
    """

    dims: Dims
    nodes: list[ir.Node] = field(default_factory=list)

    def results(self) -> list[ir.Value]:
        """What others read of it, that of the first node first."""
        inside = {*self.nodes}
        return [n.outputs[0] for n in self.nodes if _is_read_beside(n.outputs[0], inside)]


def fuse_elementwise(packed: Packed) -> None:
    """Make one node of elementwise nodes, where a graph has packed nodes."""
    graph, main = packed.graph, packed.graph.model.graph
    plans = [plan_of(node) for node in packed.nodes()]
    chooses = any(isinstance(plan, ChooseChannels) for plan in plans)  # sizes are others then
    if not plans or chooses:
        return
    main.sort()
    sources = {made: source for source, made in packed.log.made.items()}
    for group in _groups(graph):
        _make(packed, group, sources)
    main.sort()


def _is_read_beside(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


class _Search:
    """Which nodes join which group, from the outputs of a graph to its inputs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of: dict[ir.Node, Group] = {}
        self.place = {node: k for k, node in enumerate(graph.model.graph)}
        self.owner = {
            inner: node
            for node in graph.model.graph
            for attr in node.attributes.values()
            if attr.type == ir.AttributeType.GRAPH
            for inner in attr.as_graph().all_nodes()
        }

    def groups(self) -> list[Group]:
        """All groups, of one node or more."""
        found = list[Group]()
        for node in reversed(list(self.graph.model.graph)):
            dims = _dims_if_step(self.graph, node)
            if dims is None:
                continue
            readers = [self.of[u.node] for u in node.outputs[0].uses() if u.node in self.of]
            group = next((g for g in dict.fromkeys(readers) if self.joins(g, node, dims)), None)
            if group is None and _may_lead(self.graph, node):
                group = Group(dims)
                found += [group]
            if group is not None:
                group.nodes.append(node)
                self.of[node] = group
        return found

    def joins(self, group: Group, node: ir.Node, dims: Dims) -> bool:
        """True where a node can be computed with those that read it."""
        if node.metadata_props.get(BRANCH) != group.nodes[0].metadata_props.get(BRANCH):
            return False
        column = (*group.dims[:-1], 1)
        larger = Group(group.dims, [*group.nodes, node])
        if not (same_dims(dims, group.dims) or same_dims(dims, column)):
            return False
        if len(larger.nodes) > MOST_STEPS or not _is_formula(self.graph, larger):
            return False
        results = larger.results()
        floats = all(type_of(self.graph, x) == ir.DataType.FLOAT for x in results)
        return floats and len(results) <= MOST_RESULTS and not self.leads_back(node, group)

    def leads_back(self, node: ir.Node, group: Group) -> bool:
        """True where a way leads from a node past a group to a node of it; groups are one step."""
        inside, last = {*group.nodes}, max(self.place[n] for n in group.nodes)
        todo = [u.node for u in node.outputs[0].uses() if u.node not in inside]
        seen = set[ir.Node]()
        while todo:
            at = todo.pop()
            at = self.owner.get(at, at)
            if at in seen or (self.place[at] > last and at not in self.of):
                continue
            seen.add(at)
            together = self.of.get(at)
            if together is group:
                return True
            for one in (at,) if together is None else together.nodes:
                todo += [u.node for x in one.outputs for u in x.uses()]
        return False


def _groups(graph: Graph) -> Iterator[Group]:
    """What is worth a node."""
    for group in _Search(graph).groups():
        wide = sum(same_dims(dims_of(graph, n.outputs[0]), group.dims) for n in group.nodes)
        formula, _ = _formula(graph, group)
        large = np.prod(
            [d if isinstance(d, int) else EXAMPLE_SIZE for d in group.dims], dtype=float
        )
        if wide < 2 or large < LEAST_ELEMENTS or not {WHOLE, *HALVES} & {*formula.kinds}:
            continue
        if formula.by_rows and not (
            isinstance(group.dims[-1], int) and group.dims[-1] >= LEAST_ROW
        ):
            continue
        if not _is_sum_of_norm(group):
            yield group


def _is_sum_of_norm(group: Group) -> bool:
    """True for nothing but sums, of which a norm is."""
    sums = all(operator_of(n).weights == (1,) for n in group.nodes)
    readers = [u.node for u in group.nodes[0].outputs[0].uses()]
    return sums and any(operator_of(n).centres is not None for n in readers)


def _make(packed: Packed, group: Group, sources: Mapping[ir.Node, ir.Node]) -> None:
    """Let the node of a group's result compute all of it."""
    root, graph = group.nodes[0], packed.graph
    formula, operands = _formula(graph, group)
    plan = Elementwise(
        kinds=formula.kinds,
        columns=tuple(map(int, formula.column_results)),
        formula=formula.text,
        by_rows=formula.by_rows,
    )
    source = sources.get(root, root)
    name, values = node_name(source), group.results()
    shapes = [x.shape if x.is_graph_output() else declared(dims_of(graph, x) or ()) for x in values]
    root.name = packed.build.label(name, plan.op)
    root.metadata_props.update({SOURCE: name, RULE: plan.op})
    packed.log.sources[root] = source
    packed.become(root, plan, dict(zip(plan.operands, operands, strict=True)))
    root.resize_outputs(len(values))
    for old, new, shape in zip(values, root.outputs, shapes, strict=True):
        new.type, new.shape = ir.TensorType(ir.DataType.FLOAT), shape
        if new is not old:
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            new.name, old.name = old.name, packed.build.unique(f"{old.name}.alone")
            packed.build.rebind(new.name or "", new)
    remove_idle(group.nodes)


def _dims_if_step(graph: Graph, node: ir.Node) -> Dims | None:
    """The dimensions of what a node gives, where kernels compute it as a step; else None."""
    record = operator_of(node)
    if is_pit_node(node) or not is_outside(graph, node) or "elementwise" not in record.kernels:
        return None
    dims, given = dims_of(graph, node.outputs[0]), type_of(graph, node.outputs[0])
    types = {given, *(type_of(graph, x) for x in _read(node))}
    if not dims or None in dims or not types <= {ir.DataType.FLOAT, ir.DataType.BOOL}:
        return None
    if node.op_type in REDUCTIONS:
        return dims if _is_of_rows(graph, node) else None
    if record.converts:
        return dims if given == ir.DataType.FLOAT else None
    if record.exponent is not None and len(node.inputs) == 2:
        return dims if _number(node.inputs[1]) == (2.0).hex() else None
    return None if node.attributes else dims


def _may_lead(graph: Graph, node: ir.Node) -> bool:
    """True for a node whose result may be the largest of a group."""
    return node.op_type not in REDUCTIONS and (type_of(graph, node.outputs[0]) == ir.DataType.FLOAT)


def _is_of_rows(graph: Graph, node: ir.Node) -> bool:
    """True for a reduction over the last axis that keeps it."""
    x = node.inputs[0]
    dims = None if x is None else dims_of(graph, x)
    axes = attribute(node, "axes")
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = tensor_of(node.inputs[1])
        axes = None if tensor is None else tensor.numpy().tolist()
    return bool(dims and attribute(node, "keepdims", 1) and axes in ([-1], [len(dims) - 1]))


def _read(node: ir.Node) -> Sequence[ir.Value]:
    """What a node computes with."""
    alone = node.op_type in REDUCTIONS or operator_of(node).exponent is not None
    return [x for x in (node.inputs[:1] if alone else node.inputs) if x is not None]


def _is_formula(graph: Graph, group: Group) -> bool:
    """True where all operands of a group are of a known kind, and not too many."""
    made = {n.outputs[0] for n in group.nodes}
    operands = {x for n in group.nodes for x in _read(n) if x not in made and _number(x) is None}
    if len(operands) > MOST_OPERANDS or None in {_kind(graph, x, group.dims) for x in operands}:
        return False
    reduced = (dims_of(graph, _read(n)[0]) for n in group.nodes if n.op_type in REDUCTIONS)
    if not all(dims is not None and same_dims(dims, group.dims) for dims in reduced):
        return False  # a kernel sums whole rows
    return len(_formula(graph, group)[0].text) <= LONGEST


def _kind(graph: Graph, value: ir.Value, dims: Dims) -> str | None:
    """What an operand is to a result of those dimensions; None where it is none of them."""
    mine, dtype = dims_of(graph, value), type_of(graph, value)
    if mine is None or dtype not in (ir.DataType.FLOAT, ir.DataType.BOOL):
        return None
    if dtype == ir.DataType.BOOL:
        return FLAGS if same_dims(mine, dims) else None
    if same_dims(mine, dims):
        return WHOLE
    if all(extent == 1 for extent in mine):
        return NUMBER
    if same_dims(mine[-1:], dims[-1:]) and all(extent == 1 for extent in mine[:-1]):
        return ROW
    return COLUMN if same_dims(mine, (*dims[:-1], 1)) else None


def _number(value: ir.Value | None) -> str | None:
    """A finite constant number as a formula says it."""
    tensor = tensor_of(value)
    if tensor is None or tensor.size != 1 or tensor.dtype != ir.DataType.FLOAT:
        return None
    number = float(np.asarray(tensor.numpy()).reshape(())[()])
    return number.hex() if np.isfinite(number) else None


def _formula(graph: Graph, group: Group) -> tuple[Formula, list[ir.Value]]:
    """What a group computes, and its operands."""
    names: dict[ir.Value, str] = {}
    operands, steps = list[ir.Value](), list[Step]()

    def named(x: ir.Value) -> str:
        number = _number(x)
        if number is None and x not in names:
            names[x] = f"x{len(operands)}"
            operands.append(x)
        return names[x] if number is None else number

    for node in reversed(group.nodes):
        read = tuple(map(named, _read(node)))
        squares = operator_of(node).exponent is not None and len(node.inputs) == 2
        names[node.outputs[0]] = f"s{len(steps)}"
        steps.append(Step("Mul", (*read, *read)) if squares else Step(node.op_type, read))
    kinds = [_kind(graph, x, group.dims) or NUMBER for x in operands]
    for i, (x, kind) in enumerate(zip(operands, kinds, strict=True)):
        if kind == WHOLE and (half := _half(graph, x)) is not None:
            operands[i], kinds[i] = half
    results = (int(names[x][1:]) for x in group.results())
    return Formula(tuple(kinds), tuple(steps), tuple(results)), operands


def _half(graph: Graph, value: ir.Value) -> tuple[ir.Value, str] | None:
    """What a value is a half of the rows of, and which one; None where it is none."""
    node = value.producer()
    if node is None or node.op_identifier() != ("", "Split", "") or len(node.outputs) != 2:
        return None
    both = node.inputs[0]
    dims = None if both is None else dims_of(graph, both)
    if both is None or not dims or graph.target.kind != "cpu" or not is_outside(graph, node):
        return None
    last, n = attribute(node, "axis", 0) % len(dims), (dims_of(graph, value) or (None,))[-1]
    if last != len(dims) - 1 or not isinstance(n, int) or n < LEAST_ROW or dims[-1] != 2 * n:
        return None
    return both, HALVES[node.outputs.index(value)]
