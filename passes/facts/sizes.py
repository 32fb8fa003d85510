"""Numbers that are computed of sizes, as scales are: the root of a length.

s / sqrt(n)     ->     (q / sqrt(n)) @ k        bounded whatever n is, so nothing overflows
s * n ** -0.5   ->     a positive finite factor, wherever there is an element: n is not 0 there
"""

from collections.abc import Collection
from typing import NamedTuple

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, Poly, nonneg, total_of
from pitc.passes.facts.signs import Known
from pitc.passes.rules.record import operator_of

LONGEST = float(1 << 31)  # a size
STEPS = 8  # of producers that are looked at


class Bounds(NamedTuple):
    """Between which positive numbers one lies.

    Args:
        lo: The least one.
        hi: The largest one.
        sizes: Sizes that are not 0 where it does.
    """

    lo: float
    hi: float
    sizes: frozenset[Poly] = frozenset()

    def to_the(self, exponent: float) -> "Bounds":
        """Of a power of the number."""
        lo, hi = sorted((self.lo**exponent, self.hi**exponent))
        return Bounds(lo, hi, self.sizes)

    def hold(self, extents: Collection[Poly]) -> bool:
        """True where none of these extents is 0, and so none of the sizes."""
        return all(has_place(n, extents) for n in self.sizes)


def has_place(size: Poly, extents: Collection[Poly]) -> bool:
    """True where a size is not 0 because no extent is: it is one, or divides them multiplied."""
    return size in extents or (nonneg(size) and total_of(extents).divide(size) is not None)


def size_bounds(graph: Graph, name: str, steps: int = STEPS) -> Bounds | None:
    """Between which numbers a positive number lies that is computed of sizes.

    Args:
        graph: The derived graph.
        name: A value of one element.
        steps: How many producers may be looked at in a row.

    Returns:
        The bounds; None where it is no such number.
    """
    known, shape = graph.splat(name), graph[name].shape
    if known is not None:
        return Bounds(known, known) if known > 0 else None
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or shape is None or any(e != ONE for e in shape) or not steps:
        return None
    view, operator = NodeView(graph, node), operator_of(node)
    counts = graph.ints(view.name(0)) if operator.converts else None
    if counts is not None:
        return Bounds(1.0, LONGEST, frozenset(n for n in counts.flat if not nonneg(n - 1)))
    exponent = operator.exponent(Known(view)) if operator.exponent is not None else None
    if exponent is not None:
        base = size_bounds(graph, view.name(0), steps - 1) if -1 <= exponent <= 1 else None
        return None if base is None else base.to_the(float(exponent))
    found = [size_bounds(graph, view.name(r.operand), steps - 1) for r in expr.reads]
    bounds = [b for b in found if b is not None]
    if not bounds or len(bounds) < len(found):
        return None
    lo, hi, sizes = bounds[0]
    if expr.combine is Combine.MOVE and len(bounds) == 1:
        return bounds[0]
    if expr.combine is Combine.MAP and operator.powers and len(bounds) == 2:
        other = bounds[1] if operator.multiplies else bounds[1].to_the(-1.0)
        return Bounds(lo * other.lo, hi * other.hi, sizes | bounds[1].sizes)
    return None
