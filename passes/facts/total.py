"""Operators that give finite results for all finite operands (overflow aside)."""

import math
from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.nodes import output_names
from pitc.ir.region import EVERYWHERE, Region, position, truth
from pitc.passes.facts.signs import Known
from pitc.passes.rules.assumes import SUMS, Assumes
from pitc.passes.rules.record import always, operator_of


def is_total(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True where a node's results are finite when the changed operands hold any finite numbers, 0
    included, and the others what they hold.

    Args:
        graph: The derived graph.
        node: A node without bodies.
        changed: Names of operands.
    """
    if not _has_finite_attributes(node):
        return False
    expr = graph[node.outputs[0].name or ""].expr
    if expr is None:  # of unknown shape
        return operator_of(node).finite is always
    if expr.combine is Combine.MAP and not expr.reads:  # a constant, a mask of ones
        return True
    if expr.combine in (Combine.MAP, Combine.NORMALISE, Combine.OPAQUE):
        return operator_of(node).finite(Known(NodeView(graph, node), changed))
    return True


def may_fail(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True where a node may stop when operands hold other numbers: it looks outside of what it
    indexes, or finds a text that is no number.

    Gather(table[256], places): a 256 in a row that nobody reads stops it

    Args:
        graph: The derived graph.
        node: A node.
        changed: Names of operands.
    """
    operator = operator_of(node)
    types = [graph[x.name or ""].dtype for x in node.inputs if x is not None and x.name in changed]
    if operator.converts and any(dtype is None or dtype.kind in "OSU" for dtype in types):
        return True
    looks = Assumes.INSIDE in (operator.assumes or ())
    return looks and any(dtype is None or dtype.kind != "f" for dtype in types)


def reader_upset_by_zeros(
    graph: Graph, name: str, readers: Callable[[str], Iterable[ir.Node]]
) -> ir.Node | None:
    """A node that may stop at zeros in the dead part of a value, or make Inf or NaN of them.

    p = packed(x), q = tanh(p), s = y + q, t = y / q   ->   t

    They go wherever a dead fact was needed for what is computed from them, along whatever axes.

    Args:
        graph: The graph with dead facts.
        name: The value.
        readers: The nodes that see the zeros of a value.
    """
    changed, todo = {name}, [name]
    while todo:
        for node in readers(todo.pop()):
            if operator_of(node).reads_no_element:
                continue
            if not is_total(graph, node, changed) or may_fail(graph, node, changed):
                return node
            found = [o for o in output_names(node) if o not in changed and graph[o].is_loose]
            changed.update(found)
            todo += found
    return None


def filled(expr: TensorExpr) -> Region:
    """Where a reduction has something to reduce, if it must: a test of sizes."""
    if expr.combine is not Combine.REDUCE or expr.reducer in SUMS:
        return EVERYWHERE
    tests = (position(e - 1) for e in expr.reduced)
    return Region(t for t in tests if truth(t) is not True)


def _has_finite_attributes(node: ir.Node) -> bool:
    """True where no attribute is an infinite factor or filling: `LeakyRelu(alpha=inf)`."""
    floats = (a for a in node.attributes.values() if a.type is ir.AttributeType.FLOAT)
    return all(math.isfinite(a.as_float()) for a in floats)
