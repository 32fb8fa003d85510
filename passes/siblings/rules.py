"""How nodes of siblings are joined, operator by operator.

With siblings in front (`Lead.EACH`) a value has one dimension more than that of one sibling: what
broadcasts has dimensions of 1 behind it, and axes are one further. With rows of lists in front
(`Lead.ROWS`) it has as many, of which the first one is longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Array, NodeView, NoRule
from pitc.ir.index import poly
from pitc.ir.nodes import is_plain_product
from pitc.passes.siblings.joined import ELEMENTWISE, Joined, Joiner, Lead, Rule


def elementwise(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """Operands broadcast from the last dimension; of other operators only the first one differs."""
    rank = j.rank(node.outputs[0])
    name, beside = node.op_identifier()[:2], operands[1:]
    if name == TO_THE_FIRST and operands[0].lead is lead:
        beside = ()
    if name not in BROADCASTING and any(x.lead is not Lead.NOTHING or x.rank for x in beside):
        raise NoRule(f"operands of {node.op_type} that do not broadcast")
    given = zip([x for x in node.inputs if x is not None], operands, strict=True)
    return j.make(node, [_broadcast(j, x, v, rank, lead) for x, v in given])


def _broadcast(j: Joiner, one: ir.Value, given: Joined, rank: int, lead: Lead) -> ir.Value:
    """An operand of a node whose result has so many dimensions for one sibling."""
    if lead is Lead.EACH:
        behind = rank - given.rank if given.lead is Lead.EACH else 0
        return j.body.unsqueeze(given.value, *range(1, 1 + behind))
    if given.lead is Lead.ROWS:
        if given.rank != rank:
            raise NoRule("rows of lists that are not the first dimension")
        return given.value
    if given.rank == rank and not j.is_one(one, 0):
        raise NoRule("an operand that differs along the places of a list")
    if given.lead is Lead.NOTHING:
        return given.value
    rows = j.row_of_each(given)
    if given.rank == rank:
        return j.body.along("Squeeze", rows, [1])
    return j.body.unsqueeze(rows, *range(1, rank - given.rank))


def product(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """MatMul, and Gemm that scales and transposes nothing."""
    a, b, *bias = operands
    if not is_plain_product(node) and node.op_type == "Gemm":
        raise NoRule("a Gemm that scales or transposes")
    if min(a.rank, b.rank) < 2:
        raise NoRule("a product of vectors")
    if NodeView(j.graph, node).attr("transB", 0):
        b = replace(b, value=_turned(j, b, [1, 0]))
    made = j.named(j.body.op("MatMul", *_sides(j, a, b)), node)
    if b.lead is Lead.EACH:
        j.products.append(cast(ir.Node, made.producer()))
    if lead is Lead.ROWS and b.lead is Lead.EACH:
        made = j.body.along("Squeeze", made, [1])
    if bias:
        term = _broadcast(j, cast(ir.Value, node.inputs[2]), bias[0], 2, lead)
        made = j.body.op("Add", made, term)
    return [made]


def _sides(j: Joiner, a: Joined, b: Joined) -> tuple[ir.Value, ir.Value]:
    """The factors: rows of lists one by one, as each has another matrix; else all siblings."""
    if Lead.ROWS not in (a.lead, b.lead):
        rank = max(a.rank, b.rank)
        x, y = (
            j.body.unsqueeze(s.value, *range(1, 1 + rank - s.rank))
            if s.lead is Lead.EACH
            else s.value
            for s in (a, b)
        )
        return x, y
    if a.lead is not Lead.ROWS or a.rank != 2 or b.rank != 2 or b.lead is Lead.ROWS:
        raise NoRule("a product of rows of lists by something else than a matrix")
    if b.lead is Lead.NOTHING:
        return a.value, b.value
    return j.body.unsqueeze(a.value, 1), j.row_of_each(b)


def look_up(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """Gather: of rows at the places of a list, or of one place for each sibling."""
    data, places = operands
    axis = _axis(node, 0, data.rank)
    if lead is Lead.ROWS:
        if places.lead is not Lead.ROWS or places.rank != 1 or axis or data.lead is Lead.ROWS:
            raise NoRule("a look-up that is not one row at each place of a list")
        if data.lead is Lead.NOTHING:
            return j.make(node, [data.value, places.value])
        points = (j.body.unsqueeze(x, 1) for x in (j.sibling_of_row, places.value))
        index = j.body.op("Concat", *points, axis=1)
        return [j.body.op("GatherND", data.value, index)]
    if data.lead is Lead.EACH and places.lead is Lead.NOTHING:
        return j.make(node, [data.value, places.value], axis=axis + 1)
    if data.lead is Lead.NOTHING:
        (made,) = j.make(node, [data.value, places.value], axis=axis)
        rest = [d for d in range(data.rank + places.rank) if d != axis]
        if not axis:
            if not places.rank:
                j.looks_up(made, data.value, places.value)
            return [made]
        return [j.body.transpose(made, [axis, *rest])]
    raise NoRule("a look-up in values that differ")


def along_axis(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """One operand that differs, and an axis that lies behind what stands in front."""
    data, *others = operands
    if any(x.lead is not Lead.NOTHING for x in others):
        raise NoRule("an operand that differs beside the first one")
    axis = _axis(node, AXES[node.op_type], data.rank)
    if lead is Lead.ROWS and axis == 0:
        raise NoRule("the places of a list are mixed")
    inputs = [x.value for x in (data, *others)]
    return j.make(node, inputs, axis=axis + (lead is Lead.EACH))


def along_axes(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """The same with a list of axes."""
    view = NodeView(j.graph, node)
    axes = view.ints(1) if view.has(1) else _listed(view.attr("axes", None))
    rank = j.rank(node.outputs[0]) if node.op_type == "Unsqueeze" else operands[0].rank
    shifted = _shifted(axes, rank, lead)
    kept = {n: a for n, a in node.attributes.items() if n != "axes"}
    return [j.body.along(node.op_type, operands[0].value, shifted, **kept)]


def _listed(axes: Sequence[int] | None) -> Array | None:
    return None if axes is None else np.array([poly(int(a)) for a in axes], object)


def _shifted(axes: Array | None, rank: int, lead: Lead) -> list[int]:
    """Axes behind what stands in front."""
    numbers = [] if axes is None else [a.as_int() for a in axes.reshape(-1)]
    known = [a % rank for a in numbers if a is not None]
    if not known or len(known) < len(numbers):
        raise NoRule("axes that are not known")
    if lead is Lead.ROWS and 0 in known:
        raise NoRule("the places of a list are mixed")
    return [a + (lead is Lead.EACH) for a in known]


def slices(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """Slice: the same part of the same axes of all siblings."""
    data, starts, ends, *more = operands
    view = NodeView(j.graph, node)
    if len(node.inputs) < 4 or any(x.lead is not Lead.NOTHING for x in operands[1:]):
        raise NoRule("a Slice whose part differs, or without axes")
    shifted = _shifted(view.ints(3), data.rank, lead)
    axes = j.body.constant(np.array(shifted, np.int64))
    steps = [x.value for x in more[1:]]
    if j.graph[cast(ir.Value, node.inputs[1]).name or ""].dtype != np.int64:
        raise NoRule("a Slice by other numbers than int64")
    return j.make(node, [data.value, starts.value, ends.value, axes, *steps])


def transpose(j: Joiner, node: ir.Node, operands: Sequence[Joined], lead: Lead) -> list[ir.Value]:
    """What stands in front stays there."""
    (data,) = operands
    order = [int(d) for d in NodeView(j.graph, node).attr("perm", range(data.rank)[::-1])]
    if lead is Lead.EACH:
        return [_turned(j, data, order)]
    if order[0]:
        raise NoRule("the places of a list are moved")
    return j.make(node, [data.value], perm=order)


def _turned(j: Joiner, given: Joined, order: Sequence[int]) -> ir.Value:
    """A value whose dimensions behind those of siblings have another order."""
    if given.lead is not Lead.EACH:
        return j.body.transpose(given.value, order)
    whole = [0, *(d + 1 for d in order)]
    made = j.body.transpose(given.value, whole)
    if (found := j.table_of(given.value)) is not None:
        table, index = found
        j.looks_up(made, j.body.transpose(table, whole), index)
    return made


def _axis(node: ir.Node, default: int, rank: int) -> int:
    attribute = node.attributes.get("axis")
    return (default if attribute is None else attribute.as_int()) % rank


AXES = {"LayerNormalization": -1, "LogSoftmax": -1, "Softmax": -1, "Split": 0, "TopK": -1}
"""What an axis is where nothing says it, from operator set 13 on."""
BROADCASTING = frozenset(
    ("", name)
    for name in (
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul"),
        *("Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    )
)
"""Operators whose operands all broadcast to each other."""
TO_THE_FIRST = ("", "PRelu")
"""One whose second operand broadcasts to the first one."""
REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
RULES: Mapping[str, Rule] = {
    ELEMENTWISE: elementwise,
    "Gather": look_up,
    "Gemm": product,
    "MatMul": product,
    "Slice": slices,
    "Transpose": transpose,
    **dict.fromkeys(AXES, along_axis),
    **dict.fromkeys((*REDUCTIONS, "Squeeze", "Unsqueeze"), along_axes),
}
