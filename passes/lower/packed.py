"""The packed IR: a graph of ordinary nodes and of packed ones, which have a plan as a value.

    mask        -> Detect(rank=2)        -> rows, coords, offsets      which points live
    x, rows, .. -> Pack(dims=c0 c1 r)    -> x'                         SRead
    x', w       -> Contract(k=64, n=64)  -> y'
    y', rows, . -> Unpack(dims=c0 c1 r)  -> y                          SWrite

What a packed node computes is its plan (`pitc/ir/plans/ops.py`), whose operands are its inputs, in
order. Steps (`steps.py`) change plans and operands in place; kernels are chosen at the end
(`kernels.py`), and then every packed node is emitted as one that ONNX Runtime gives to the plug-in.
What is decided of the nodes of the source graph is kept in one log.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.engines import Kernels
from pitc.ir.graph import Graph
from pitc.ir.kernel import KernelRequest
from pitc.ir.nodes import PACKED, PLAN, is_pit_node, plan_of
from pitc.ir.plan import EP_NAME, PLAN_VERSION
from pitc.ir.plans.base import Plan
from pitc.ir.plans.ops import ChooseChannels, Contract, Detect
from pitc.ir.prices import Prices
from pitc.ir.refusal import Refusal
from pitc.passes.lower.builder import Builder, declared
from pitc.passes.lower.panels import Panels
from pitc.passes.lower.rows import forget_sizes
from pitc.passes.regions.matrix import dims_of
from pitc.passes.rules.record import operator_of

ON_HOST = (Detect, ChooseChannels)
"""Plans that run on the host, whatever the target."""


@dataclass(slots=True)
class Log:
    """What became of the nodes of the source graph.

    Args:
        made: The node that runs each one on live rows.
        runs: The kernels that run it, where it is a packed node.
        sources: The source node that a packed node computes.
        absorbed: Nodes that a packed node computes too; those that are still there have other
            readers.
        refused: Why a step was not taken.
    """

    made: dict[ir.Node, ir.Node] = field(default_factory=dict)
    runs: dict[ir.Node, Kernels] = field(default_factory=dict)
    sources: dict[ir.Node, ir.Node] = field(default_factory=dict)
    absorbed: dict[ir.Node, ir.Node] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)

    def inside(self) -> dict[ir.Node, ir.Node]:
        """Source nodes that run inside the node of another one, and that one."""
        gone = {n: self.sources[self._last(n)] for n in self.absorbed if n.graph is None}
        of_made = {node: gone[made] for node, made in self.made.items() if made in gone}
        return gone | of_made

    def _last(self, node: ir.Node) -> ir.Node:
        """The packed node that a node is part of in the end."""
        while node.graph is None and node in self.absorbed:
            node = self.absorbed[node]
        return node


@dataclass(slots=True)
class Packed:
    """A graph with packed nodes.

    Args:
        graph: The analysed graph, whose model is changed.
        build: Adds nodes.
        prices: Of contractions that skip zeros; None: none of them does.
        panels: Weights as panels.
        kernels: Kernels that its nodes need.
        log: What was decided.
    """

    graph: Graph
    build: Builder
    prices: Prices | None = None
    panels: Panels = field(default_factory=Panels)
    kernels: dict[KernelRequest, None] = field(default_factory=dict)
    log: Log = field(default_factory=Log)

    def nodes(self) -> list[ir.Node]:
        """The packed nodes of the graph itself, in its order."""
        return [node for node in self.graph.model.graph if PLAN in node.meta]

    def contractions(self) -> list[tuple[ir.Node, Contract]]:
        """Those that are contractions, in the order in which they became packed nodes."""
        found = [node for node in self.log.sources if node.graph is not None]
        return [(n, plan) for n in found if isinstance(plan := plan_of(n), Contract)]

    def become(
        self,
        node: ir.Node,
        plan: Plan,
        operands: Mapping[str, ir.Value],
        result: ir.Value | None = None,
        inside: Sequence[ir.Value] = (),
    ) -> None:
        """Let a node compute a plan, and perhaps what later nodes have computed until now.

        Args:
            node: A packed node, or one that becomes packed.
            plan: The plan.
            operands: Its operands, by name.
            result: The later value, which the node gives from now on under its name.
            inside: Values on the way there of which only sizes are read elsewhere.
        """
        out = node.outputs[0]
        result = result or out
        between = _between(set(operands.values()), result) - {node}
        self.log.absorbed |= dict.fromkeys(between, node)
        forget_sizes(self.graph, self.build, inside)
        set_plan(node, plan, operands)
        if result is not out:
            dims = dims_of(self.graph, result)
            out.shape = None if dims is None else declared(dims)
            ir.convenience.replace_all_uses_with(result, out, replace_graph_outputs=True)
            out.name, result.name = result.name, out.name
            self.build.rebind(out.name or "", out)
        remove_idle(between)


def set_plan(node: ir.Node, plan: Plan, operands: Mapping[str, ir.Value]) -> None:
    """Make a node a packed one, with these operands in the order of the plan."""
    node.domain, node.op_type, node.meta[PLAN] = PACKED, type(plan).__name__, plan
    node.attributes.clear()
    node.resize_inputs(len(plan.operands))
    for place, name in enumerate(plan.operands):
        node.replace_input_with(place, operands[name])


def operands_of(node: ir.Node) -> dict[str, ir.Value]:
    """The operands of a packed node, by name."""
    return {n: x for n, x in zip(plan_of(node).operands, node.inputs, strict=True) if x is not None}


def maker(value: ir.Value, kind: type[Plan]) -> ir.Node | None:
    """The packed node of that kind that gives a value."""
    node = value.producer()
    return node if node is not None and isinstance(packed_plan(node), kind) else None


def packed_plan(node: ir.Node | None) -> Plan | None:
    """The plan of a packed node; None for other nodes."""
    return plan_of(node) if node is not None and is_pit_node(node) else None


def _between(inputs: Collection[ir.Value], result: ir.Value) -> set[ir.Node]:
    """The nodes that lead from some values to another one, not past what reads sizes only."""
    found: set[ir.Node] = set()
    todo = [result]
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            if is_pit_node(node) or not operator_of(node).reads_no_element:
                todo += [x for x in node.inputs if x is not None and x not in inputs]
    return found


def remove_idle(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes without a reader, and those among them that then have none."""
    left = set(nodes)
    while idle := [n for n in left if not _is_read(n)]:
        left -= {*idle}
        for node in idle:
            if node.graph is not None:
                node.graph.remove(node, safe=True)


def _is_read(node: ir.Node) -> bool:
    return any(x.uses() or x.is_graph_output() for x in node.outputs)


def emit(packed: Packed) -> None:
    """Write packed nodes as ONNX Runtime hands them to the plug-in: their plan as text."""
    graph = packed.graph
    for node in packed.nodes():
        plan: Plan = node.meta.pop(PLAN)
        provider = EP_NAME if isinstance(plan, ON_HOST) else graph.target.provider
        attributes = {
            "main_context": 1,
            "embed_mode": 1,
            "ep_cache_context": plan.text(),
            "source": provider,
            "partition_name": node.name or "",
            "ep_sdk_version": f"pitc-plan {PLAN_VERSION}",
        }
        node.domain, node.op_type = "com.microsoft", "EPContext"
        for name, value in attributes.items():
            kind = ir.AttributeType.INT if isinstance(value, int) else ir.AttributeType.STRING
            node.attributes[name] = ir.Attr(name, kind, value)
        graph.model.graph.opset_imports.setdefault("com.microsoft", 1)
