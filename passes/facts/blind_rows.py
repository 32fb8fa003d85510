"""Guards on rows of a softmax: what is 0 where every term of a row is -inf is never NaN.

    p = softmax(z)                     NaN in a row of -inf alone
    c = not (max over k of (z != -inf))
    w = Where(c, 0, p)                 no NaN: let a row of z be -inf alone, then c is 1 there

That c is 1 in such a row is found by evaluating it for one.
"""

from math import inf

from pitc.ir.constant import TOP, Constant, is_number, is_zero
from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, dim_index
from pitc.passes.rules.build import broadcast_index
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import operator_of

MAX_STEPS = 8  # from the terms to the condition


def note_row_guard(view: NodeView) -> NodeView | None:
    """Note the softmax whose rows of -inf a choice makes 0, and what the condition is made of: it
    must come from the same terms.

    Returns:
        The softmax, if the node is such a choice.
    """
    graph, found = view.graph, _guarded(view)
    if found is None:
        return None
    softmax, steps = found
    graph[view.out()].guarded_softmax = softmax.out()
    for name in steps:
        graph[name].guards_softmax = True
    return softmax


def _guarded(view: NodeView) -> tuple[NodeView, list[str]] | None:
    """The softmax that a choice guards, and the values between its terms and the condition."""
    graph, operator = view.graph, operator_of(view)
    expr = graph[view.out()].expr
    if not operator.chooses or expr is None or view.domain:
        return None
    for kept in (1, 2):
        node = graph[view.name(kept)].producer
        softmax = graph[view.name(kept)].expr
        zero = any(not f.region and is_zero(f.constant) for f in graph[view.name(3 - kept)].fills)
        if node is None or softmax is None or softmax.combine is not Combine.SOFTMAX or not zero:
            continue
        found = NodeView(graph, node)
        in_place = softmax.shape == expr.shape and len(softmax.normal) == 1
        if not in_place or not _broadcasts(view, expr):
            continue
        row = _Row(graph, found.name(0), softmax.normal[0])
        if row.value(view.name(0), MAX_STEPS) == (kept == 2):
            return found, row.steps
    return None


def _broadcasts(view: NodeView, expr: TensorExpr) -> bool:
    """True where all operands are read where the result is."""
    places = [broadcast_index(view.shape(r.operand), expr.shape) for r in expr.reads]
    return [r.index for r in expr.reads] == places and not any(r.within for r in expr.reads)


class _Row:
    """Evaluates values of a row of terms that are all -inf.

    Args:
        graph: The graph.
        terms: The value that the softmax is of.
        axis: Its dimension that a row lies along.
    """

    def __init__(self, graph: Graph, terms: str, axis: int) -> None:
        self.graph, self.terms, self.axis = graph, terms, axis
        self.shape = graph[terms].shape or ()
        self.steps = list[str]()

    def value(self, name: str, steps: int) -> Constant:
        """What a value is at all elements of such a row; TOP where that is not known."""
        if name == self.terms:
            return -inf
        number, node = self.graph.splat(name), self.graph[name].producer
        expr = self.graph[name].expr
        if number is not None:
            return number
        if node is None or expr is None or not steps:
            return TOP
        self.steps.append(name)
        view, rows = NodeView(self.graph, node), list(self.shape)
        rows[self.axis] = ONE
        if expr.combine is Combine.MAP and expr.shape in (self.shape, tuple(rows)):
            if not _broadcasts(view, expr):
                return TOP
            operands = tuple(self.value(view.name(r.operand), steps - 1) for r in expr.reads)
            known = all(map(is_number, operands))
            return evaluate_constants(view.op, operands, node=view) if known else TOP
        if expr.reducer not in (Reducer.MAX, Reducer.MIN) or expr.combine is not Combine.REDUCE:
            return TOP
        along = [dim_index(d, e) for d, e in enumerate(rows)]
        along[self.axis] = dim_index(len(rows), self.shape[self.axis])
        whole = expr.shape == tuple(rows) and expr.reduced == (self.shape[self.axis],)
        if not whole or [list(r.index) for r in expr.reads] != [along]:
            return TOP
        return self.value(view.name(0), steps - 1)
