"""Signs by construction: where a divisor is never 0 and the operand of a root never negative.

A mean of squares plus a constant is positive whatever the squares are of. So the norm of a row that
comes back as 0 is as finite as that of any other row.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Poly, nonneg

MAX_STEPS = 12  # of producers that are looked at


class Sign(IntEnum):
    """What is known of every element of a value; a NaN stays what it is."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2


Signs = Sequence[Sign]


def _product(signs: Signs) -> Sign:
    """Two small factors may underflow to 0."""
    return Sign.NONNEGATIVE if min(signs) > Sign.ANY else Sign.ANY


def _quotient(signs: Signs) -> Sign:
    """What is not negative may be -0.0, by which a quotient is minus infinity."""
    dividend, divisor = signs
    known = dividend > Sign.ANY and divisor is Sign.POSITIVE
    return Sign.NONNEGATIVE if known else Sign.ANY


def _sum(signs: Signs) -> Sign:
    return max(signs) if min(signs) > Sign.ANY else Sign.ANY


def _never_negative(_: Signs) -> Sign:
    return Sign.NONNEGATIVE


def _clip(signs: Signs) -> Sign:
    """Bounds that are attributes are not looked at."""
    if len(signs) < 2:
        return Sign.ANY
    low = max(signs[:2])
    return low if len(signs) == 2 else min(low, signs[2])


SIGNS: dict[str, Callable[[Signs], Sign]] = {
    **dict.fromkeys(("Abs", "Relu", "Exp", "Sigmoid", "Softplus"), _never_negative),
    **dict.fromkeys(("Identity", "Sqrt"), lambda signs: signs[0]),
    "Cast": lambda signs: min(signs[0], Sign.NONNEGATIVE),  # a narrower type may hold 0 instead
    "Mul": _product,
    "Div": _quotient,
    "Add": _sum,
    "Sum": _sum,
    "Max": lambda signs: max(signs),
    "Min": lambda signs: min(signs),
    "Clip": _clip,
}


def sign_of(graph: Graph, name: str, steps: int = MAX_STEPS) -> Sign:
    """The sign of every element of a value, whatever the graph's inputs are.

    Args:
        graph: The derived graph.
        name: A value.
        steps: How many producers may be looked at in a row.
    """
    dtype, x = graph.dtypes.get(name), graph.array(name)
    if dtype is None or dtype.kind != "f":  # integers wrap around
        return Sign.ANY
    if x is not None:
        least = x.min() if x.size else -1.0
        return Sign.POSITIVE if least > 0 else Sign.NONNEGATIVE if least >= 0 else Sign.ANY
    known = next((f.constant for f in graph.fills.get(name, ()) if not f.region), None)
    if isinstance(known, (int, float)):
        return Sign.POSITIVE if known > 0 else Sign.NONNEGATIVE if known == 0 else Sign.ANY
    node, expr = graph.producers.get(name), graph.exprs.get(name)
    if node is None or expr is None or not steps:
        return Sign.ANY
    names = [v.name for v in node.inputs if v is not None and v.name]
    if expr.combine is Combine.SOFTMAX:
        return Sign.NONNEGATIVE if node.op_type == "Softmax" else Sign.ANY
    if expr.combine is Combine.MAP:
        return _elementwise(graph, node, names, steps)
    if expr.combine is Combine.REDUCE:
        if expr.reducer is Reducer.SQUARE:
            return Sign.NONNEGATIVE
        if expr.reducer not in (Reducer.SUM, Reducer.MEAN):  # of no elements a maximum is -inf
            return Sign.ANY
        lines = [d for d, p in enumerate(expr.reads[0].index) if _is_reduced(p, expr)]
        if len(lines) == 1 and _has_positive(graph, names[0], lines[0]):
            return Sign.POSITIVE
        return min(sign_of(graph, names[0], steps - 1), Sign.NONNEGATIVE)
    if expr.combine is Combine.MOVE and all(r.operand == 0 and not r.within for r in expr.reads):
        return sign_of(graph, names[0], steps - 1)
    return Sign.ANY


def _is_reduced(p: Poly | None, expr: TensorExpr) -> bool:
    return p is not None and any(a.dim >= len(expr.shape) for a in p.digits())


def _has_positive(graph: Graph, name: str, axis: int) -> bool:
    """True where each line of a value holds no negative number, and one that is not 0: the largest
    of n weights of a softmax is at least 1 / n, and is among the largest k of them.
    """
    node, expr = graph.producers.get(name), graph.exprs.get(name)
    if node is None or expr is None or node.domain:
        return False
    if expr.combine is Combine.SOFTMAX:
        return tuple(expr.normal) == (axis,)
    largest = node.attributes.get("largest")
    if node.op_type != "TopK" or (largest is not None and not largest.as_int()):
        return False
    x, count = node.inputs[0], expr.shape[axis].as_int()
    searched = axis in expr.ordered and node.outputs[0].name == name
    return searched and bool(count) and x is not None and _has_positive(graph, x.name or "", axis)


def _elementwise(graph: Graph, node: ir.Node, names: list[str], steps: int) -> Sign:
    if node.domain:
        return Sign.ANY
    if node.op_type == "Mul" and len(set(names)) == 1:
        return Sign.NONNEGATIVE
    if node.op_type == "Pow" and (exponent := graph.splat(names[1])) is not None:
        return Sign.NONNEGATIVE if exponent % 2 == 0 else Sign.ANY
    sizes = graph.ints(names[0]) if node.op_type == "Cast" and names else None
    if sizes is not None:
        return Sign.POSITIVE if all(nonneg(n - 1) for n in sizes.reshape(-1)) else Sign.ANY
    rule = SIGNS.get(node.op_type)
    if rule is None or len(names) < len(node.inputs):
        return Sign.ANY
    return rule([sign_of(graph, n, steps - 1) for n in names])


def _has_no_zero(graph: Graph, name: str) -> bool:
    """True for a constant without zeros: a divisor that is known."""
    x = graph.array(name)
    return x is not None and x.dtype.kind == "f" and bool((x != 0).all())


def finite_at(graph: Graph, node: ir.Node) -> bool:
    """True where a partial elementwise operator is finite for all operands that it can get.

    Args:
        graph: The derived graph.
        node: A Div, Sqrt, Reciprocal, Log or Pow of finite operands.
    """
    names = [v.name or "" for v in node.inputs if v is not None]
    match node.op_type:
        case "Div":
            return sign_of(graph, names[1]) is Sign.POSITIVE or _has_no_zero(graph, names[1])
        case "Sqrt":
            return sign_of(graph, names[0]) >= Sign.NONNEGATIVE
        case "Reciprocal" | "Log":
            return sign_of(graph, names[0]) is Sign.POSITIVE
        case "Pow":
            exponent = graph.splat(names[1])
            if exponent is None:
                return False
            if exponent >= 0 and float(exponent).is_integer():
                return True
            least = Sign.NONNEGATIVE if exponent >= 0 else Sign.POSITIVE
            return sign_of(graph, names[0]) >= least
    return False
