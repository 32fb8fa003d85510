"""Operators that give finite results for all finite operands (overflow aside)."""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Array, Graph, NodeView
from pitc.ir.index import Poly, nonneg
from pitc.ir.nodes import input_names, output_names
from pitc.ir.region import EVERYWHERE, Region, position, truth
from pitc.passes.facts.signs import Known
from pitc.passes.rules.assumes import SUMS, Assumes
from pitc.passes.rules.record import PackRule, always, operator_of


def is_total(
    graph: Graph, node: ir.Node, changed: Collection[str], zeroed: Collection[str] = ()
) -> bool:
    """True where a node's results are finite when the changed operands hold any finite numbers, 0
    included, and the others what they hold.

    Args:
        graph: The derived graph.
        node: A node without bodies.
        changed: Names of operands.
        zeroed: Names of values that may hold 0 in their dead part, however they are made.
    """
    if not _has_finite_attributes(graph, node) or _reads_text(graph, node, changed):
        return False
    view = NodeView(graph, node)
    expr = graph[view.out()].expr
    if expr is None:  # of unknown shape
        return operator_of(node).finite is always
    if expr.combine is Combine.MAP and not expr.reads:  # a constant, a mask of ones
        return True
    if expr.combine in (Combine.MAP, Combine.NORMALISE, Combine.OPAQUE):
        return operator_of(node).finite(Known(view, changed, zeroed))
    return True


def may_fail(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True where a node may stop when operands hold other numbers: it looks outside of what it
    indexes, or finds a text that is no number.

    Gather(table[256], places): a 256 in a row that nobody reads stops it
    Gather(table[256], the best places of rows of 256): whatever the rows hold, these are inside

    Args:
        graph: The derived graph.
        node: A node.
        changed: Names of operands.
    """
    if _reads_text(graph, node, changed):
        return True
    if Assumes.INSIDE not in (operator_of(node).assumes or ()):
        return False
    asked = set(changed).intersection(_places(graph, node))
    asked -= {name for name in asked if _is_inside(graph, node, name)}
    return any(t is None or t.kind != "f" for t in _types(graph, node, asked))


def _is_inside(graph: Graph, node: ir.Node, name: str) -> bool:
    """True for indices that number the places of a dimension no longer than what they index, or are
    0, whatever they are computed of.
    """
    view = NodeView(graph, node)
    expr, shape, extent = graph[view.out()].expr, graph[view.name(0)].shape, _places_of(graph, name)
    alone = [i for i in range(view.n_inputs) if view.has(i) and view.name(i) == name] == [1]
    if expr is None or shape is None or extent is None or not alone:
        return False
    dims = list[int]()
    if expr.combine is Combine.MOVE:
        dims = [d for r in expr.reads if r.operand == 0 for d, p in enumerate(r.index) if p is None]
    elif expr.combine is Combine.SCATTER and len(expr.reduced) == 1:  # an index per element
        dims = list(expr.ordered)
    return len(dims) == 1 and nonneg(shape[dims[0]] - extent)


def _places_of(graph: Graph, name: str, steps: int = 8) -> Poly | None:
    """The extent of the dimension whose places a value numbers; None where it may hold others."""
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or not steps:
        return None
    if operator_of(node).packs is PackRule.BEST_PLACES and name == output_names(node)[-1]:
        return expr.reduced[0] if len(expr.reduced) == 1 else None
    same = graph[name].dtype == graph[NodeView(graph, node).name(0)].dtype
    if expr.combine is not Combine.MOVE or {r.operand for r in expr.reads} != {0} or not same:
        return None
    return _places_of(graph, NodeView(graph, node).name(0), steps - 1)


def _places(graph: Graph, node: ir.Node) -> set[str]:
    """The operands that may tell where a node looks: of a movement not what is moved."""
    view, found = NodeView(graph, node), set[str]()
    for expr in (graph[o].expr for o in output_names(node)):
        moves = expr is not None and expr.combine is Combine.MOVE
        moved = {r.operand for r in expr.moving_reads} if expr is not None and moves else ()
        found |= {view.name(i) for i in range(view.n_inputs) if view.has(i) and i not in moved}
    return found


def reader_upset_by_zeros(
    graph: Graph,
    name: str,
    readers: Callable[[str], Iterable[ir.Node]],
    zeroed: Collection[str] = (),
) -> ir.Node | None:
    """A node that may stop at zeros in the dead part of a value, or make Inf or NaN of them.

    p = packed(x), q = tanh(p), s = y + q, t = y / q   ->   t

    They go wherever a dead fact was needed for what is computed from them, along whatever axes.

    Args:
        graph: The graph with dead facts.
        name: The value.
        readers: The nodes that see the zeros of a value.
        zeroed: Other values that have such zeros.
    """
    changed, todo, zeroed = {name}, [name], {name, *zeroed}
    while todo:
        for node in readers(todo.pop()):
            if operator_of(node).reads_no_element:
                continue
            if not is_total(graph, node, changed, zeroed) or may_fail(graph, node, changed):
                return node
            found = [o for o in _results(graph, node) if o not in changed and graph[o].is_loose]
            changed.update(found)
            todo += found
    return None


def _results(graph: Graph, node: ir.Node) -> list[str]:
    """What a node computes; of a list that is followed what its rows are written into: they stay
    as they are, be there more of them or fewer.
    """
    return [
        x
        for name in output_names(node)
        for x in ([s.out for s in graph.lists.sinks.get(name, ())] or [name])
    ]


def filled(expr: TensorExpr) -> Region:
    """Where a reduction has something to reduce, if it must: a test of sizes."""
    sums = expr.combine is not Combine.REDUCE or expr.reducer in SUMS
    return EVERYWHERE if sums else some_term(expr)


def some_term(expr: TensorExpr) -> Region:
    """Where the reduced lines are not empty: a test of sizes."""
    tests = (position(e - 1) for e in expr.reduced)
    return Region(t for t in tests if truth(t) is not True)


def _has_finite_attributes(graph: Graph, node: ir.Node) -> bool:
    """True where no attribute is an infinite factor or filling: `LeakyRelu(alpha=inf)`, or one of
    1e20 for float16.
    """
    types = [t for t in _types(graph, node, input_names(node)) if t is not None and t.kind == "f"]
    narrow = min(types, key=lambda t: t.itemsize, default=np.dtype(np.float64))
    return all(np.isfinite(_floats(a, narrow)).all() for a in node.attributes.values())


def _floats(attribute: ir.Attr, dtype: np.dtype) -> Array:
    """The floats that an attribute holds, plain numbers in a certain type."""
    match attribute.type:
        case ir.AttributeType.FLOAT | ir.AttributeType.FLOATS:
            with np.errstate(over="ignore"):
                return np.asarray(attribute.value, np.float64).astype(dtype)
        case ir.AttributeType.TENSOR:
            x = attribute.as_tensor().numpy()
            return np.array(()) if x.dtype.kind in "biuOSU" else x.astype(np.complex128)
    return np.array(())


def _reads_text(graph: Graph, node: ir.Node, changed: Collection[str]) -> bool:
    """True for a conversion of what may be text: it may say "inf", or nothing that is a number."""
    types = _types(graph, node, changed) if operator_of(node).converts else ()
    return any(t is None or t.kind in "OSU" for t in types)


def _types(graph: Graph, node: ir.Node, names: Collection[str]) -> list[np.dtype | None]:
    """The types of those operands that are named."""
    return [graph[name].dtype for name in input_names(node) if name in names]
