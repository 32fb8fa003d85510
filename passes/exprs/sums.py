"""Integers as sums of elements of other values, by the arithmetic of their type.

    bar[b, q] - bar[b, k] - 2   ->   + bar[b, q] - bar[b, k], and -2

A sum that leaves its type wraps around, and so does every way to compute it. So an equation of two
sums stays right when terms change sides; an inequality does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Poly, fits, substitute
from pitc.ir.region import Region, position, region
from pitc.passes.exprs.affine import LONGEST, before_moves
from pitc.passes.rules.record import operator_of

DEEPEST = 4  # sums of sums

Element = tuple[str, tuple[Poly, ...]]
"""A value, and a place in it."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of integers.

    Args:
        terms: Elements, and how often each one is added.
        constant: What is added to them.
        dtype: The type of the sum.
        moved: Bits of the values on the way, which a test of an element rests on.
    """

    terms: tuple[tuple[Element, int], ...]
    constant: int
    dtype: np.dtype
    moved: int = 0

    def plus(self, other: "Sum", factor: int) -> "Sum":
        """The sum and `factor` times another of the same type; what cancels is left out."""
        terms = dict(self.terms)
        for element, count in other.terms:
            terms[element] = terms.get(element, 0) + factor * count
        left = tuple((element, count) for element, count in terms.items() if count)
        constant = self.constant + factor * other.constant
        return Sum(left, constant, self.dtype, self.moved | other.moved)

    def wrapped(self) -> int:
        """The constant, as a number of the type."""
        numbers = 1 << 8 * self.dtype.itemsize
        rest = self.constant % numbers
        return rest - numbers if self.dtype.kind == "i" and rest >= numbers // 2 else rest


def sum_of(
    graph: Graph,
    name: str,
    index: tuple[Poly, ...],
    is_split: Callable[[Element], bool] = lambda _: True,
    deepest: int = DEEPEST,
) -> Sum:
    """An element as a sum of others.

    Args:
        graph: The analysed graph.
        name: A value of integers, or of bools: these are no sums.
        index: The place of the element.
        is_split: Of an element, whether it may be replaced by what it is the sum of.
        deepest: How many sums of sums are looked through.
    """
    dtype = np.dtype(graph.dtype(name))
    name, index, moved = before_moves(graph, name, index)
    number = _number(graph, name, index)
    if number is not None:
        return Sum((), number, dtype, moved)
    # A narrower sum that a Cast widens has wrapped before.
    parts = _parts(graph, name, index) if np.dtype(graph.dtype(name)) == dtype else []
    if not parts or not deepest or not is_split((name, index)):
        return Sum((((name, index), 1),), 0, dtype, moved)
    total = Sum((), 0, dtype, moved | graph.note_bit(name))
    for factor, element in parts:
        total = total.plus(sum_of(graph, *element, is_split, deepest - 1), factor)
    return total


def same_element(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """A comparison of integers that are numbers, or differ by one, where their elements are the
    same, as a fact.

    x[b, q] == x[b, k]       ->   1 where q - k >= 0 and k - q >= 0
    x[b, q] - x[b, k] < 2    ->   1 there
    x[b, q] + 1 == x[b, k]   ->   0 there
    """
    order = operator_of(view).order
    if order is None:
        return []
    sides = []
    for read in expr.reads:
        name, index = view.name(read.operand), tuple(p for p in read.index if p is not None)
        if np.dtype(view.graph[name].dtype).kind not in "iub" or len(index) < len(read.index):
            return []
        sides.append(sum_of(view.graph, name, index))
    left, right = sides
    if left.dtype != right.dtype:
        return []
    places = [_apart(left), _apart(right)]
    difference = left.plus(right, -1)
    if None not in places:
        apart = [d for side in places for d in side or ()]
        holds = order.holds(left.wrapped(), right.wrapped())
    elif (found := _apart(difference)) is not None and (
        order.less is None or difference.wrapped() == 0
    ):
        apart, holds = found, order.holds(difference.wrapped(), 0)
    else:
        return []
    where = region(map(position, apart)) if all(fits(d, -LONGEST, LONGEST) for d in apart) else None
    return [] if where is None else [(Region(where, difference.moved), int(holds))]


def _apart(total: Sum) -> list[Poly] | None:
    """What must be at least 0, so that the terms cancel: of two the places; None of others."""
    match total.terms:
        case ():
            return []
        case (((x, at_x), 1), ((y, at_y), -1)) | (((x, at_x), -1), ((y, at_y), 1)) if x == y:
            return [d for p, q in zip(at_x, at_y, strict=True) for d in (p - q, q - p) if p != q]
        case _:
            return None


def _number(graph: Graph, name: str, index: tuple[Poly, ...]) -> int | None:
    """The number that an element is known to be."""
    value = graph[name].affine
    at = None if value is None else substitute(value, index, graph[name].shape)
    if at is None or not set(at.terms) <= {()}:
        return None
    return at.terms.get((), 0)


def _parts(graph: Graph, name: str, index: tuple[Poly, ...]) -> list[tuple[int, Element]]:
    """What an operator adds up, with their signs; nothing where it is no sum of integers."""
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or np.dtype(graph.dtype(name)).kind not in "iu":
        return []
    operator, view = operator_of(node), NodeView(graph, node)
    found = list[tuple[int, Element]]()
    if len(expr.reads) != view.n_inputs or expr.reduced:
        return []
    for read in expr.reads:
        places = [None if p is None else substitute(p, index, expr.extents) for p in read.index]
        known = tuple(p for p in places if p is not None)
        factor = operator.weight(read.operand)
        if not factor or read.within or len(known) < len(places):
            return []
        found.append((factor, (view.name(read.operand), known)))
    return found
