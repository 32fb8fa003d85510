"""Which values are worth a test of their own zeros.

"Where x == 0, x is 0" is true of every value. It is said of those that have a reason to hold zeros
(a function that is 0 on a whole interval, a base of zeros that is written to) and whose zeros
arrive at an operand of a contraction. Nothing rests on this choice but the cost of the analysis.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from pitc.ir.constant import FillFact, Number, is_zero
from pitc.ir.expr import PRODUCTS, Combine, TensorExpr
from pitc.ir.graph import Array, Graph, NodeView, NoRule
from pitc.passes.facts.few_elements import most_elements
from pitc.passes.facts.terms import is_float, known_number
from pitc.passes.facts.uses import is_factor, is_window
from pitc.passes.rules.gather import operand_has_zeros
from pitc.passes.rules.record import operator_of

# where functions are looked at: beyond it, others come so near to 0 that they are rounded to it
SAMPLES = (-4.0, -3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)


def holds_zeros(view: NodeView, expr: TensorExpr | None, facts: Sequence[FillFact]) -> bool:
    """True when a node's first output has zeros of its own that a contraction gets to see, or that
    hide what something else computes.

    Args:
        view: The node.
        expr: The expression of the output; None where it has no rule.
        facts: What is known of the output so far.
    """
    combine = None if expr is None else expr.combine
    if combine is Combine.MOVE:
        return False
    own = operator_of(view).zeros
    if own is not None:
        source = own.expected(view)
    elif expr is None:
        source = False
    elif combine in PRODUCTS and expr.reduced:
        source = _joint(facts) and all(
            most_elements(view.graph, view.name(r.operand)) < 1 for r in expr.reads
        )
    else:
        source = (
            (operator_of(view).multiplies and _joint(facts))
            or _flat(view, expr)
            or (is_window(expr) and operand_has_zeros(view))
        )
    graph, name = view.graph, view.out()
    mostly = own is not None and own.mostly
    return source and (mostly or graph[name].contracted or is_factor(graph, name))


def scattered(graph: Graph, name: str) -> bool:
    """True for zeros of single elements, as ReLU has them: of whole lines nothing is to be said."""
    node, expr = graph[name].producer, graph[name].expr
    own = None if node is None else operator_of(node).zeros
    if node is None or (own is not None and own.scattered):
        return node is not None
    return expr is not None and (_flat(NodeView(graph, node), expr) or is_window(expr))


def _joint(facts: Sequence[FillFact]) -> bool:
    """A product of several masks: zero where any of them is, which is a union. The product's own
    "!= 0" says it in one test.
    """
    if not all(is_zero(f.constant) for f in facts):
        return False
    return len({t.src for f in facts if len(f.region) == 1 for t in f.region}) > 1


def _flat(view: NodeView, expr: TensorExpr) -> bool:
    """A function of one element, the others being constant numbers, that is 0 on an interval."""
    row = operator_of(view).function if expr.combine is Combine.MAP else None
    if row is None or row.evaluate is None or not is_float(view.graph, view.out()):
        return False
    names = [view.name(r.operand) for r in expr.reads]
    numbers = [known_number(view.graph, name) for name in names]
    if numbers.count(None) != 1 or not all(is_float(view.graph, name) for name in names):
        return False
    try:
        parameters = {} if row.parameters is None else row.parameters(view)
    except NoRule:
        return False
    if parameters is None:
        return False
    return _is_flat(row.evaluate, tuple(numbers), tuple(parameters.items()))


@lru_cache(maxsize=1 << 10)
def _is_flat(
    evaluate: Callable[..., Array],
    numbers: tuple[Number | None, ...],
    parameters: tuple[tuple[str, object], ...],
) -> bool:
    x = np.array(SAMPLES)
    with np.errstate(all="ignore"):
        try:
            y = evaluate(*(x if n is None else np.asarray(n) for n in numbers), **dict(parameters))
        except (ArithmeticError, TypeError, ValueError):
            return False
    return int(np.count_nonzero(np.asarray(y) == 0)) > 1
