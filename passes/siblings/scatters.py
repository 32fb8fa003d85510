"""Chains of rows that are added at places, as models write them.

    y = ScatterND(ScatterND(x, r_0, a_0), r_1, a_1)                    rows that are added
    y = (x + ScatterElements(0, r_0, a_0)) + ScatterElements(0, r_1, a_1)    torch's index_add

In the second form rows that name the same place overwrite each other: the last one stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.ir.nodes import REPEATS, attribute
from pitc.passes.rules.record import operator_of
from pitc.passes.siblings.joined import Joiner, Lead

ADD = ("", "Add", "")
VECTORS, ELEMENTS = ("", "ScatterND", ""), ("", "ScatterElements", "")


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that are added to a value at places.

    Args:
        node: The node that gives the sum.
        before: What they are added to.
        places: Where: index vectors, or an index for each element.
        rows: What is added.
        by_vectors: The places are index vectors.
        zeros: They are written into these, which are added then; None: they are added at once.
        last_stands: Of rows that name the same place, only the last one counts.
    """

    node: ir.Node
    before: ir.Value
    places: ir.Value
    rows: ir.Value
    by_vectors: bool
    zeros: ir.Value | None = None
    last_stands: bool = False


def step_of(node: ir.Node | None) -> Step | None:
    """The rows that a node adds to something; None for other nodes."""
    if node is None:
        return None
    inputs, kind = tuple(node.inputs), node.op_identifier()
    if kind == ADD:
        a, b = inputs
        return _apart(node, a, b) or _apart(node, b, a)
    if kind not in (VECTORS, ELEMENTS) or None in inputs or not _by_rows(node):
        return None
    if attribute(node, "reduction", "none") != "add":
        return None
    before, places, rows = (x for x in inputs if x is not None)
    return Step(node, before, places, rows, kind == VECTORS)


def _apart(node: ir.Node, before: ir.Value | None, scattered: ir.Value | None) -> Step | None:
    scatter = None if scattered is None else scattered.producer()
    if before is None or scatter is None or before is scattered:
        return None
    kind = scatter.op_identifier()
    if kind not in (VECTORS, ELEMENTS) or not _by_rows(scatter) or None in scatter.inputs:
        return None
    reduction = attribute(scatter, "reduction", "none")
    zeros, places, rows = (x for x in scatter.inputs if x is not None)
    if reduction not in ("none", "add") or not is_zero(zeros):
        return None
    return Step(node, before, places, rows, kind == VECTORS, zeros, reduction == "none")


def _by_rows(scatter: ir.Node) -> bool:
    return scatter.op_identifier() == VECTORS or attribute(scatter, "axis", 0) == 0


def is_zero(value: ir.Value) -> bool:
    """True for a fill of 0, and not of -0.0."""
    node = value.producer()
    if node is not None and node.op_identifier() == ("", "ConstantOfShape", ""):
        given = node.attributes.get("value")
        numbers = np.zeros(1) if given is None else given.as_tensor().numpy()
    elif value.is_initializer() and not value.is_graph_input() and value.const_value is not None:
        numbers = value.const_value.numpy()
    else:
        return False
    return bool(np.all(numbers == 0)) and not np.any(np.signbit(numbers.astype(np.float64)))


def chain_of(node: ir.Node) -> list[Step]:
    """Steps one behind the other, up to a node that no other step follows; first ones first."""
    step, found = step_of(node), list[Step]()
    if step is None or _next(step) is not None:
        return found
    while step is not None:
        found.append(step)
        before = step_of(step.before.producer())
        step = before if before is not None and _next(before) is step.node else None
    return found[::-1]


def _next(step: Step) -> ir.Node | None:
    """The node of a step that alone reads the elements of what this one gives."""
    (out,) = step.node.outputs
    readers = [use.node for use in out.uses() if not _asks_size(use.node)]
    if len(readers) != 1 or out.is_graph_output():
        return None
    after = step_of(readers[0])
    return readers[0] if after is not None and after.before is out else None


def _asks_size(node: ir.Node, depth: int = 3) -> bool:
    """True for a node whose results depend on no element of its first operand."""
    if operator_of(node).reads_no_element:
        return True
    uses = [use for out in node.outputs for use in out.uses()]
    if node.op_type != "Slice" or not uses or any(o.is_graph_output() for o in node.outputs):
        return False
    return depth > 0 and all(_asks_size(use.node, depth - 1) for use in uses)


def add_rows(joiner: Joiner, steps: Sequence[Step]) -> ir.Value:
    """The rows of all lists, added at once.

    Raises:
        NoRule: They are no rows of a matrix at the places of lists.
    """
    graph, start = joiner.graph, steps[0].before
    whole, floats = graph[start.name or ""].shape, graph[start.name or ""].dtype == np.float32
    shapes = [graph[s.node.outputs[0].name or ""].shape for s in steps]
    shapes += [graph[s.zeros.name or ""].shape for s in steps if s.zeros is not None]
    if whole is None or len(whole) != 2 or any(s != whole for s in shapes) or not floats:
        raise NoRule("not float32 rows of a matrix")
    if len({(s.by_vectors, s.zeros is None, s.last_stands) for s in steps}) != 1:
        raise NoRule("rows that are added in different ways")
    joiner.last_stands = steps[0].last_stands
    for s in () if steps[0].by_vectors else steps:
        index, added = (graph[x.name or ""].shape for x in (s.places, s.rows))
        if index is None or index != added or index[1] != whole[1]:
            raise NoRule("rows of which some elements are not added")
    places = joiner.place_rows(tuple(s.places for s in steps))
    rows = joiner.join(tuple(s.rows for s in steps))
    if rows.lead is not Lead.ROWS or rows.rank != 2:
        raise NoRule("not rows at places of lists")
    if steps[0].zeros is not None and not is_zero(start):  # -0.0 + 0 is 0
        start = joiner.body.op("Add", start, steps[0].zeros)
    made = joiner.body.op("ScatterND", start, places, rows.value, reduction="add")
    cast(ir.Node, made.producer()).meta[REPEATS] = True  # one row may be in several lists
    return made


def ask_start(steps: Sequence[Step]) -> None:
    """Let nodes that ask for the size of what steps give ask for that of what the first adds to."""
    for step in steps[:-1]:
        (out,) = step.node.outputs
        for use in [use for use in out.uses() if _asks_size(use.node)]:
            use.node.replace_input_with(use.idx, steps[0].before)
