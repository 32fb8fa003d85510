"""Signs by construction: where a divisor is never 0 and the operand of a root never negative.

A mean of squares plus a constant is positive whatever the squares are of. So the norm of a row that
comes back as 0 is as finite as that of any other row.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from pitc.ir.constant import Number
from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Array, Graph, NodeView
from pitc.ir.index import ONE, Poly, dim_index, nonneg
from pitc.passes.rules.record import Operator, operator_of
from pitc.passes.rules.signs import Sign

MAX_STEPS = 12  # of producers that are looked at


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a node's operands, for the conditions of its record.

    Args:
        view: The node.
        changed: Names of operands that may hold other numbers.
        zeroed: Names of values that may hold 0 where nobody reads them, however they are made.
    """

    view: NodeView
    changed: Collection[str] = ()
    zeroed: Collection[str] = ()

    def sign(self, i: int) -> Sign:
        """The sign of every element of input i."""
        shape = self.view.graph[self.view.out()].shape
        return sign_of(self.view.graph, self.view.name(i), self.zeroed, extents=shape or ())

    def is_not_positive(self, i: int) -> bool:
        """True where no element of input i is."""
        return not_positive(self.view.graph, self.view.name(i), self.zeroed)

    def number(self, i: int) -> Number | None:
        """The one number that input i is, as a constant."""
        return self.view.graph.splat(self.view.name(i))

    def has_no_zero(self, i: int) -> bool:
        """True for a constant without zeros: a divisor that is known."""
        x = self.view.graph.array(self.view.name(i))
        return x is not None and x.dtype.kind == "f" and _has_reciprocals(x)


def sign_of(
    graph: Graph,
    name: str,
    zeroed: Collection[str] = (),
    steps: int = MAX_STEPS,
    extents: Collection[Poly] = (),
) -> Sign:
    """The sign of every element of a value, whatever the graph's inputs are.

    |x| + 1 is positive, and so is its root; where |x| + 1 comes back with zeros, neither is.

    Args:
        graph: The derived graph.
        name: A value.
        zeroed: Values that may hold 0 instead of what is made.
        steps: How many producers may be looked at in a row.
        extents: Sizes that are not 0 where it matters: those of what the value is used for, which
            else has no elements.
    """
    sign = _sign_as_made(graph, name, zeroed, steps, extents)
    return min(sign, Sign.NONNEGATIVE) if name in zeroed else sign


def _sign_as_made(
    graph: Graph, name: str, zeroed: Collection[str], steps: int, extents: Collection[Poly]
) -> Sign:
    dtype, x = graph[name].dtype, graph.array(name)
    if dtype is None or dtype.kind != "f":  # integers wrap around
        return Sign.ANY
    if x is not None:
        return _sign_of_numbers(x)
    node, expr = graph[name].producer, graph[name].expr
    if expr is None or not steps:
        return Sign.ANY
    assert node is not None
    view = NodeView(graph, node)
    if expr.combine is Combine.SOFTMAX:
        return Sign.NONNEGATIVE
    if expr.combine is Combine.MAP:
        return _elementwise(view, zeroed, steps, extents)
    if expr.combine is Combine.REDUCE:
        if expr.reducer is Reducer.SQUARE:
            return Sign.NONNEGATIVE
        if expr.reducer not in (Reducer.SUM, Reducer.MEAN):  # of no elements a maximum is -inf
            return Sign.ANY
        if _has_positive_lines(view, expr, zeroed):
            return Sign.POSITIVE
        return min(sign_of(graph, view.name(0), zeroed, steps - 1, extents), Sign.NONNEGATIVE)
    if expr.combine is Combine.MOVE:
        found = (sign_of(graph, x, zeroed, steps - 1, extents) for x in _moved(view, expr))
        return min(found, default=Sign.ANY)
    return Sign.ANY


def _moved(view: NodeView, expr: TensorExpr) -> list[str]:
    """The values that a movement takes all its elements from; none where it may add others."""
    names = [view.name(r.operand) for r in expr.moving_reads]
    alone = len(names) == 1 and not any(r.within for r in expr.reads)
    return names if alone or view.op == "Concat" else []


def not_positive(
    graph: Graph, name: str, zeroed: Collection[str] = (), steps: int = MAX_STEPS
) -> bool:
    """True where no element of a value is above 0, whatever the graph's inputs are; NaN aside.

    Args:
        graph: The derived graph.
        name: A value.
        zeroed: Values that may hold 0 instead of what is made.
        steps: How many producers may be looked at in a row.
    """
    dtype, x = graph[name].dtype, graph.array(name)
    if dtype is None or dtype.kind != "f" or not steps:
        return False
    if x is not None:
        return bool((x <= 0).all())
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None:
        return False
    view = NodeView(graph, node)
    if expr.combine is Combine.MOVE:
        names = _moved(view, expr)
        return bool(names) and all(not_positive(graph, x, zeroed, steps - 1) for x in names)
    return operator_of(node).not_positive(Below(view, (), zeroed, steps - 1))


@dataclass(frozen=True, slots=True)
class Below(Known):
    """Operands of a value on a search for its sign.

    Args:
        steps: How many producers may still be looked at in a row.
    """

    steps: int = MAX_STEPS

    def is_not_positive(self, i: int) -> bool:
        """True where no element of input i is."""
        return not_positive(self.view.graph, self.view.name(i), self.zeroed, self.steps)


def _sign_of_numbers(x: Array) -> Sign:
    negative = not (x >= 0).all()
    return Sign.ANY if negative else Sign.POSITIVE if _has_reciprocals(x) else Sign.NONNEGATIVE


def _has_reciprocals(x: Array) -> bool:
    """True where no element is 0, or so small that 1 divided by it is infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        return not np.isinf(1 / x).any()


def _has_positive_lines(view: NodeView, expr: TensorExpr, zeroed: Collection[str]) -> bool:
    """True where whole lines are reduced, of which each has a positive element: a window of a line
    may hold zeros only.
    """
    (read,), rank = expr.reads, len(expr.shape)
    moves = [p is None or any(a.dim >= rank for a in p.digits()) for p in read.index]
    if not any(moves):  # lines of one element
        ones = [d for d, e in enumerate(view.shape(0)) if e == ONE]
        return any(_has_positive(view.graph, view.name(0), d, zeroed) for d in ones)
    if sum(moves) != 1:
        return False
    line = moves.index(True)
    wholes = [dim_index(r, view.shape(0)[line]) for r in range(rank, len(expr.extents))]
    return read.index[line] in wholes and _has_positive(view.graph, view.name(0), line, zeroed)


def _has_positive(graph: Graph, name: str, axis: int, zeroed: Collection[str]) -> bool:
    """True where each line of a value holds no negative number, and one that is not 0: the largest
    of n weights of a softmax is at least 1 / n, and is among the largest k of them.
    """
    node, expr = graph[name].producer, graph[name].expr
    if expr is None or name in zeroed:
        return False
    assert node is not None
    view = NodeView(graph, node)
    if expr.combine is Combine.SOFTMAX:  # of no elements the sum is 0
        return expr.normal == (axis,) and nonneg(expr.shape[axis] - 1)
    if expr.combine is Combine.MOVE:
        line = _line_moved(view, expr, axis)
        return line is not None and _has_positive(graph, view.name(0), line, zeroed)
    if (view.domain, view.op) != ("", "TopK") or not view.attr("largest", True):
        return False
    searched = axis in expr.ordered and bool(expr.shape[axis].as_int())
    return searched and _has_positive(graph, view.name(0), axis, zeroed)


def _line_moved(view: NodeView, expr: TensorExpr, axis: int) -> int | None:
    """The dimension of the first operand whose lines a movement gives along an axis, as they are or
    turned around; None where they are not whole.
    """
    if _moved(view, expr) != [view.name(0)] or expr.moving_reads[0].operand:
        return None
    index, place = expr.moving_reads[0].index, dim_index(axis, expr.shape[axis])
    along = [d for d, p in enumerate(index) if p is None or any(a.dim == axis for a in p.digits())]
    if len(along) != 1:
        return None
    (d,) = along
    whole = view.shape(0)[d] == expr.shape[axis]
    return d if whole and index[d] in (place, expr.shape[axis] - 1 - place) else None


def _is_root(operator: Operator, view: NodeView) -> bool:
    """A power that lies between 1 and its base: 1 divided by it is finite where 1 / base is."""
    exponent = operator.exponent(Known(view)) if operator.exponent is not None else None
    return exponent is not None and 0 <= exponent <= 1


def _elementwise(
    view: NodeView, zeroed: Collection[str], steps: int, extents: Collection[Poly]
) -> Sign:
    graph, operator = view.graph, operator_of(view)
    known = operator.fill(view) if operator.fill is not None else None
    if known is not None:
        return _sign_of_numbers(np.array(known, view.out_dtype()))
    if operator.square(Known(view)):
        return Sign.NONNEGATIVE
    if operator.sign is None and _is_root(operator, view):
        return sign_of(graph, view.name(0), zeroed, steps - 1, extents)
    sizes = graph.ints(view.name(0)) if operator.converts else None
    if sizes is not None and all(map(nonneg, sizes.flat)):
        filled = all(n in extents or nonneg(n - 1) for n in sizes.flat)
        return Sign.POSITIVE if filled else Sign.NONNEGATIVE
    if operator.sign is None:
        return Sign.ANY
    given = [i for i in range(view.n_inputs) if view.has(i)]
    signs = [Sign.ANY] * (max(given, default=-1) + 1)  # of operands that are left out
    for i in given:
        signs[i] = sign_of(graph, view.name(i), zeroed, steps - 1, extents)
    least = None if operator.least is None else operator.least(view)
    found = operator.sign(signs)
    return found if least is None else max(found, _sign_of_numbers(least))
