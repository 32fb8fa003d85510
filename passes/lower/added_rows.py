"""Rows that are added where index vectors say, several to the same one: a node of ours.

    ScatterND(start, places, rows, reduction="add")   ->   AddRows(places, rows, start)

ONNX Runtime's node loses some of them on more than one thread. So joined siblings, whose rows were
added one sibling after the other before, need this (`passes/siblings`).
"""

import onnx_ir as ir

from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import REPEATS, is_pit_node, node_name
from pitc.ir.plans.whole import AddRows
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed, set_plan
from pitc.passes.regions.matrix import dims_of


def add_rows(packed: Packed) -> None:
    """Make packed nodes of scatters that may add several rows to one."""
    sources = {made: source for source, made in packed.log.made.items()}
    for node in packed.graph.model.graph:
        source = sources.get(node, node)
        if REPEATS not in source.meta or is_pit_node(node):
            continue
        start, places, rows = node.inputs
        assert start is not None and places is not None and rows is not None
        name, plan = node_name(source), AddRows(started=True)
        node.name = packed.build.label(name, plan.op)
        node.metadata_props.update({SOURCE: name, RULE: plan.op})
        packed.log.sources[node] = source
        set_plan(node, plan, {"indices": places, "updates": rows, "start": start})
        out, dims = node.outputs[0], dims_of(packed.graph, start)
        out.type = ir.TensorType(ir.DataType.FLOAT)
        out.shape = declared(dims) if out.shape is None and dims is not None else out.shape
