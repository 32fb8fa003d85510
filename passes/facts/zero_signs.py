"""Where the sign of a 0 can be seen.

0 * x is 0 for every finite x, and -0.0 for a negative one. The two are equal, but 1 / (0 * x) is
-inf or inf: behind such a step, x is read after all.

    y = gate * x          z = 1 / y          the sign of y is seen, so x is read where gate is 0
"""

import numpy as np

from pitc.ir.expr import PRODUCTS, Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.nodes import captures, output_names
from pitc.passes.facts.signs import Known
from pitc.passes.facts.total import is_total
from pitc.passes.rules.record import Elementwise, operator_of

SIGNLESS, TEXT = "biuOSU", "OSU"  # kinds of types without a -0; those that spell it out


def signed_zeros(graph: Graph) -> set[str]:
    """Names of the values the sign of whose zeros may change an output by more than its own sign.

    Args:
        graph: The derived graph.
    """
    seen: set[str] = set()
    for node in reversed(graph.nodes):
        view = NodeView(graph, node)
        below = not seen.isdisjoint(output_names(node))
        for place in range(view.n_inputs):
            if view.has(place) and _shows_sign(view, place, below):
                seen.add(view.name(place))
        seen.update(captures(node))
    return seen


def _shows_sign(view: NodeView, place: int, below: bool) -> bool:
    """Whether the sign of a 0 in an operand is seen behind the node.

    Args:
        view: The node.
        place: The operand.
        below: The sign of a 0 in a result is seen.
    """
    dtype, expr = view.graph[view.name(place)].dtype, view.graph[view.out()].expr
    if (dtype is not None and dtype.kind in SIGNLESS) or operator_of(view).reads_no_element:
        return False
    results = [view.graph[name].dtype for name in output_names(view.node)]
    if expr is None or any(t is None or t.kind in TEXT for t in results):
        return True
    if not is_total(view.graph, view.node, [view.name(place)]):
        return True
    if not below or expr.combine is Combine.SOFTMAX or _is_square(view, expr):
        return False
    if expr.combine in PRODUCTS and place < 2:  # sums start at 0, and 0 + -0 is 0
        return not expr.reduced
    row = operator_of(view).function
    return row is None or view.n_inputs > 1 or _tells_zeros_apart(row)


def _is_square(view: NodeView, expr: TensorExpr) -> bool:
    """True for squares, and sums and roots of them: those of 0 and of -0.0 are the same 0."""
    if expr.combine is Combine.REDUCE:
        return expr.reducer is Reducer.SQUARE
    return operator_of(view).square(Known(view))


def _tells_zeros_apart(row: Elementwise) -> bool:
    """True unless a function of one operand has a 0 of one sign, or no 0, for both zeros."""
    if row.evaluate is None or row.parameters is not None:
        return True
    with np.errstate(all="ignore"):
        try:
            plus, minus = (float(row.evaluate(np.float32(x))) for x in (0.0, -0.0))
        except TypeError:  # it takes no such numbers
            return True
    # of a largest one of 0 and -0, the sign is up to the kernel
    return plus != minus or not plus
