"""Rows that are added where index vectors say, several to the same one: a node of ours.

    ScatterND(start, places, rows, reduction="add")   ->   AddRows(places, rows, start)
    AddRows(places, Mul(rows, factors), ..)           ->   AddRows(places, rows, .., factors)

ONNX Runtime's node loses some of them on more than one thread. So joined siblings, whose rows were
added one sibling after the other before, need this (`passes/siblings`).
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import REPEATS, is_pit_node, node_name
from pitc.ir.plans.whole import AddRows
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed, operands_of, packed_plan, remove_idle, set_plan
from pitc.passes.lower.rows import only_reader
from pitc.passes.regions.matrix import Dims, dims_of, same_dims


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
    for node in packed.nodes():
        _take_factors(packed, node)


def _take_factors(packed: Packed, node: ir.Node) -> None:
    """Let a node multiply its rows by a number each, where they are multiplied for it alone."""
    plan = packed_plan(node)
    if not isinstance(plan, AddRows) or plan.scaled:
        return
    operands = operands_of(node)
    times = operands["updates"].producer()
    alone = only_reader(packed.graph, operands["updates"]) is node
    if times is None or not alone or times.op_identifier() != ("", "Mul", ""):
        return
    for rows, factors in (times.inputs, times.inputs[::-1]):
        assert rows is not None and factors is not None
        sides = dims_of(packed.graph, rows), dims_of(packed.graph, factors)
        if _are_rows_and_numbers(*sides):
            taken = operands | {"updates": rows, "factors": factors}
            set_plan(node, replace(plan, scaled=True), taken)
            packed.log.absorbed[times] = node
            remove_idle([times])
            return


def _are_rows_and_numbers(rows: Dims | None, factors: Dims | None) -> bool:
    if rows is None or factors is None or len(rows) != 2 or len(factors) != 2:
        return False
    return factors[1] == 1 and same_dims(rows[:1], factors[:1])
