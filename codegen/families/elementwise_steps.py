"""What steps of formulas compute (`pitc.ir.formula`): of vectors on CPUs, of numbers on GPUs."""

import operator
from collections.abc import Callable, Mapping

from pitc.codegen import tir
from pitc.codegen.vector_math import erf, exp, relu, sigmoid, tanh

_HALF = 0.5  # between the truth values 0 and 1


def _like(x: tir.Expr, value: float) -> tir.Expr:
    return tir.splat(value, tir.lanes_of(x))


def truth(condition: tir.Expr, lanes: int) -> tir.Expr:
    """1 where a condition holds, else 0."""
    return tir.select(condition, tir.splat(1, lanes), tir.splat(0, lanes))


def _compared(holds: Callable[[tir.Expr, tir.Expr], tir.Expr]) -> Callable[..., tir.Expr]:
    return lambda a, b: truth(holds(a, tir.keep(b)), tir.lanes_of(a))


FUNCTIONS: Mapping[str, Callable[..., tir.Expr]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - tir.keep(b),
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Neg": lambda x: x * _like(x, -1),
    "Reciprocal": lambda x: _like(x, 1) / x,
    "Sqrt": tir.root,
    "Exp": exp,
    "Erf": erf,
    "Tanh": tanh,
    "Sigmoid": sigmoid,
    "Relu": relu,
    "Less": _compared(operator.lt),
    "LessOrEqual": _compared(operator.le),
    "Greater": _compared(operator.gt),
    "GreaterOrEqual": _compared(operator.ge),
    "Equal": _compared(operator.eq),
    "Not": lambda x: _like(x, 1) - x,
    "And": lambda a, b: a * b,
    "Or": _compared(lambda a, b: a + b > _like(a, _HALF)),
    "Where": lambda c, a, b: tir.select(c > _like(c, _HALF), a, b),
    "Cast": lambda x: x,
}
"""By operator. What is compared, or subtracted, has another name: TVM takes x - x for 0 and x == x
for true, which they are not of NaN. Who compiles has to keep a product from becoming one
multiply-add with a sum that it is in.
"""
