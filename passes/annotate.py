"""What is known of nodes is written into the graph, as `metadata_props` (`pitc.ir.metadata`): after
each stage of a dump what that stage knows, and into the compiled graph.

    facts     a MatMul    pitc.axes = o0 o1 o2 r0    pitc.facts = dead where mask[d0,d1]==0
    regions               and pitc.rule = packed: contraction, or pitc.refusal = PIT012: ..
    lower     its node    and pitc.node = /layer.0/MatMul
"""

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.metadata import AXES, FACTS, KEYS, REFUSAL, RULE, SOURCE, VALUE
from pitc.ir.nodes import is_pit_node
from pitc.ir.report import NodeRecord
from pitc.passes.records import node_record

MOST_FACTS = 4  # of a node, that are written: the weakest ones of many say little more


def annotate_facts(graph: Graph) -> None:
    """Write what the facts stage knows of each node."""
    for node in graph.nodes:
        record = node_record(graph, node)
        _write(node, {AXES: " ".join(record.pit_axes), FACTS: _facts(record)})


def annotate(nodes: Iterable[ir.Node], known: Mapping[ir.Node, NodeRecord]) -> None:
    """Write what became of the nodes of the source graph, at whatever runs each one now.

    Args:
        nodes: Nodes of the source graph, or of the lowered one.
        known: The records of the source graph's nodes.
    """
    by_name = {record.node: record for record in known.values()}
    for node in nodes:
        kept = {k: v for k, v in node.metadata_props.items() if k in (SOURCE, VALUE)}
        record = by_name.get(kept[SOURCE]) if SOURCE in kept else known.get(node)
        told = {} if record is None else _told(record)
        if is_pit_node(node) and not told.get(RULE):
            told[RULE] = node.metadata_props.get(RULE, "")  # its operation, as it was made
        _write(node, told | kept)


def _told(record: NodeRecord) -> dict[str, str]:
    refusal = record.refusal
    why = "" if refusal is None else f"{refusal.code.id}: {refusal.reason}"
    rule = "" if record.lowering == "ordinary" else f"{record.lowering}: {record.rule}"
    told = {AXES: " ".join(record.pit_axes), FACTS: _facts(record), RULE: rule.removesuffix(": ")}
    return told if record.is_plumbing else told | {REFUSAL: why}


def _facts(record: NodeRecord) -> str:
    more = len(record.facts) - MOST_FACTS
    return "\n".join([*record.facts[:MOST_FACTS], *[f"and {more} more"] * (more > 0)])


def _write(node: ir.Node, told: Mapping[str, str]) -> None:
    """Only this: what an earlier stage knew is known no less now."""
    for key in KEYS:
        node.metadata_props.pop(key, None)
    node.metadata_props.update({key: text for key, text in told.items() if text})
