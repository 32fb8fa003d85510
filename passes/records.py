"""The report's view of an analysed graph: one record per source node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from pitc.ir.branch import is_choice
from pitc.ir.emptiness import where_left_out
from pitc.ir.graph import Graph
from pitc.ir.nodes import captures, first_output, input_names, node_name, output_names
from pitc.ir.origin import line_of, module_of
from pitc.ir.plans.whole import Grouped
from pitc.ir.refusal import ALL_READ, Code, Refusal
from pitc.ir.region import describe
from pitc.ir.report import NodeRecord, RegionRecord
from pitc.ir.work import example_flops
from pitc.passes.lower.packed import Log
from pitc.passes.lower.rewrite import Rewriter
from pitc.passes.readers import Readers, readers_of
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.form import Form, PairsOperand
from pitc.passes.regions.sight_text import seen_text

UNSHARED = "no contraction shares its dead rows"


def node_records(
    graph: Graph, regions: Regions, readers: Readers | None = None
) -> list[NodeRecord]:
    """One record per node: axes, facts, and what became of it."""
    readers = readers or readers_of(graph)
    absorbed = {n: node_name(node) for n, node in _absorbed(regions).items()}
    done = {n: skip.lowering for skip in regions.skips.values() for n in skip.steps}
    done |= dict.fromkeys(absorbed, "folded")
    for node in regions.demand.forms:
        plan = regions.forms[node].plan
        done[node] = "packed" if plan is None else plan.op
    found = []
    makers = {name: i for i, node in enumerate(graph.nodes) for name in output_names(node)}
    for i, node in enumerate(graph.nodes):
        record, lowering = node_record(graph, node), done.get(node, "ordinary")
        why = regions.refusals.get(node) or _refusal(graph, node, bool(record.dead), readers)
        found.append(
            replace(
                record,
                lowering=lowering,
                refusal=why if lowering == "ordinary" else None,
                sparse=str(regions.skips.get(node, "")),
                inside=absorbed.get(node, "") if lowering == "folded" else "",
                rule=_rule(regions.forms[node]) if node in regions.demand.forms else "",
                reads=_reads(i, node, makers),
            )
        )
    return found


def _absorbed(regions: Regions) -> dict[ir.Node, ir.Node]:
    """Nodes that run inside a packed one only, and that one."""
    return {
        n: node
        for node in regions.demand.forms
        for n in regions.forms[node].absorbs
        if n not in regions.demand.nodes
    }


def packed_nodes(regions: Regions) -> set[ir.Node]:
    """All nodes that run on live rows."""
    return {*regions.demand.forms, *_absorbed(regions)}


def _reads(place: int, node: ir.Node, makers: Mapping[str, int]) -> tuple[int, ...]:
    """How many places before a node its makers stand, nearest first.

    0: a = Neg(x)    1: b = Exp(x)    2: y = Add(a, b)    ->    of 2: (1, 2)
    """
    names = (*input_names(node), *captures(node))
    return tuple(sorted({place - makers[name] for name in names if name in makers}))


def rewritten(
    records: Sequence[NodeRecord], nodes: Sequence[ir.Node], log: Log
) -> list[NodeRecord]:
    """The records, once the lowering has told what runs each node, or which node it runs inside.

    Args:
        records: One per node.
        nodes: The source nodes.
        log: Of the lowering.
    """
    names = {node: record.node for node, record in zip(nodes, records, strict=True)}
    inside = {node: names[into] for node, into in log.inside().items() if node in names}
    return [
        _rewritten(record, node, inside.get(node), log)
        for record, node in zip(records, nodes, strict=True)
    ]


def _rewritten(record: NodeRecord, node: ir.Node, inside: str | None, log: Log) -> NodeRecord:
    runs = log.runs.get(node)
    if runs is not None:
        record = replace(record, engine=runs.engine, kernel=runs.record)
        ordinary = record.lowering == "ordinary"
        return replace(record, lowering=runs.record.operation, refusal=None) if ordinary else record
    if record.lowering == "folded":
        return replace(record, engine="")
    if inside is not None and record.lowering in ("ordinary", "packed"):
        lowering = "folded" if record.lowering == "ordinary" else record.lowering
        return replace(record, lowering=lowering, refusal=None, inside=inside, engine="")
    made = log.made.get(node)
    gone = record.lowering == "packed" and (made is None or made.graph is None)
    return replace(record, engine="") if gone else record


def _rule(form: Form) -> str:
    """By which rule a node runs packed; of attention, which keys a query sees as well; of a grouped
    product, its matrices.
    """
    if isinstance(plan := form.plan, Grouped):
        return f"{form.rule}: {plan.groups} matrices of {plan.k} x {plan.n}"
    hidden = [o.hidden for o in form.operands if isinstance(o, PairsOperand)]
    return f"{form.rule}: {seen_text(hidden[0])}" if hidden else form.rule


def with_host_copies(regions: Regions, forms: Rewriter) -> list[RegionRecord]:
    """The records of the regions, once the lowering has told where their masks lie."""
    return [
        replace(record, host_copies=forms.host_copies(domain))
        for record, domain in zip(regions.records, regions.domains, strict=True)
    ]


def node_record(graph: Graph, node: ir.Node) -> NodeRecord:
    """What is known of a node before anything is decided: axes, facts and work."""
    names = output_names(node)
    expr = graph[names[0]].expr if names else None
    fills = [
        f"{f.constant!r} where {describe(f.region)}"
        for name in names
        for f in graph[name].fills
        if f.region
    ]
    dead = [describe(r) for name in names for r in where_left_out(graph[name].dead) if r]
    return NodeRecord(
        node_name(node),
        _operator(node),
        tuple(a.name for a in expr.pit_axes()) if expr is not None else (),
        tuple(fills),
        tuple(dead),
        flops=node_flops(graph, node),
        module=module_of(node.metadata_props),
        line=line_of(node.metadata_props),
    )


def node_flops(graph: Graph, node: ir.Node) -> int | None:
    """Operations of the output that takes most; none where a size or another number that is known
    beforehand is computed.
    """
    found = [graph[name] for name in output_names(node)]
    if found and all(value.ints is not None for value in found):
        return 0
    flops = [example_flops(value.expr) for value in found if value.expr is not None]
    known = [n for n in flops if n is not None]
    return max(known) if known and len(known) == len(flops) else None


def _operator(node: ir.Node) -> str:
    if is_choice(node):
        return "If"
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _refusal(graph: Graph, node: ir.Node, dead: bool, readers: Readers) -> Refusal:
    name = node_name(node)
    reason = next(filter(None, (graph[o].unruled for o in output_names(node))), None)
    if reason is not None:
        return Refusal(Code.NO_RULE, name, reason)
    inside = (n for o in output_names(node) for n in graph[o].uses if o in captures(n))
    reader = next(inside, None)
    if reader is not None:
        text = f"the body of '{node_name(reader)}' reads it"
        return Refusal(Code.SUBGRAPH, name, text, first_output(node))
    if not dead:
        keeper = next((end for o in output_names(node) for end in readers.of(o)), "")
        return Refusal(Code.NO_FACT, name, ALL_READ, keeper)
    return Refusal(Code.NOT_NEEDED, name, UNSHARED)
