"""Factors of attention scores that depend on sizes: the root of a length.

s / sqrt(n)     ->     (q / sqrt(n)) @ k        bounded whatever n is, so nothing overflows
"""

from pitc.ir.expr import Combine, Shape
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, nonneg
from pitc.passes.facts.signs import Known
from pitc.passes.rules.record import operator_of

LONGEST = float(1 << 31)  # a size
STEPS = 8  # of producers that are looked at

Bounds = tuple[float, float]


def size_bounds(graph: Graph, name: str, extents: Shape, steps: int = STEPS) -> Bounds | None:
    """Between which numbers a positive number lies that is computed of sizes.

    Args:
        graph: The derived graph.
        name: A value of one element.
        extents: Sizes that are not 0 where it is used.
        steps: How many producers may be looked at in a row.

    Returns:
        The bounds; None where it is no such number.
    """
    known, shape = graph.splat(name), graph[name].shape
    if known is not None:
        return (known, known) if known > 0 else None
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or shape is None or any(e != ONE for e in shape) or not steps:
        return None
    view, operator = NodeView(graph, node), operator_of(node)
    sizes = graph.ints(view.name(0)) if operator.converts else None
    if sizes is not None:
        filled = all(n in extents or nonneg(n - 1) for n in sizes.flat)
        return (1.0, LONGEST) if filled else None
    found = [size_bounds(graph, view.name(r.operand), extents, steps - 1) for r in expr.reads]
    bounds = [b for b in found if b is not None]
    if not bounds or len(bounds) < len(found):
        return None
    lo, hi = bounds[0]
    if expr.combine is Combine.MOVE and len(bounds) == 1:
        return lo, hi
    if operator.root(Known(view)):
        power = float(Known(view).number(1) or 0) if view.n_inputs > 1 else 0.5
        return lo**power, hi**power
    if expr.combine is Combine.MAP and operator.powers and len(bounds) == 2:
        other = bounds[1] if operator.multiplies else (1 / bounds[1][1], 1 / bounds[1][0])
        return lo * other[0], hi * other[1]
    return None
