"""Derivatives of elementwise operators and of reductions, as terms (`term.py`).

Where a function has a corner, the choice is PyTorch's: 0 for Relu and Abs at 0, 1 for Clip at its
bounds; equal largest operands share the gradient. Steps (Floor, Sign, ..) have the derivative 0.

In reductions `X` is the operand and `Y` the result, spread over the places that it was made of.
"""

from functools import reduce
from math import pi, sqrt
from typing import TYPE_CHECKING

from pitc.passes.rules.term import (
    ONE,
    X1,
    ZERO,
    Number,
    Operand,
    Term,
    X,
    Y,
    always,
    apply,
    select,
)

if TYPE_CHECKING:
    from pitc.ir.graph import NodeView

ROOT_2_OVER_PI, CUBIC = sqrt(2 / pi), 0.044715


def exp(x: Term) -> Term:
    """E to the power of a term."""
    return apply("Exp", x)


def _sigmoid(x: Term) -> Term:
    return apply("Sigmoid", x)


def _above(x: Term, y: Term | float) -> Term:
    return apply("Greater", x, y)


def _equal(x: Term, y: Term | float) -> Term:
    return apply("Equal", x, y)


def _attribute(view: "NodeView", name: str, default: float) -> Number:
    return Number(float(view.attr(name, default)))


# what a choice does not take must be finite, or the derivative of the choice is 0 * Inf
BELOW_0 = select(_above(X, 0.0), ZERO, X)


# of one operand
step = always(ZERO)
same = always(ONE)
opposite = always(Number(-1.0))
absolute = always(apply("Sign", X))
square_root = always(0.5 / Y)
reciprocal = always(-(Y * Y))
exponential = always(Y)
logarithm = always(1.0 / X)
rectified = always(select(apply("LessOrEqual", X, 0.0), ZERO, ONE))  # of NaN: 1
error_function = always(2.0 / sqrt(pi) * exp(-(X * X)))
hyperbolic_tangent = always(1.0 - Y * Y)
logistic = always(Y * (1.0 - Y))
soft_plus = always(_sigmoid(X))
sine = always(apply("Cos", X))
cosine = always(-apply("Sin", X))
tangent = always(Y * Y + 1.0)
arc_sine = always(1.0 / apply("Sqrt", 1.0 - X * X))
arc_cosine = always(-(1.0 / apply("Sqrt", 1.0 - X * X)))
arc_tangent = always(1.0 / (X * X + 1.0))
hyperbolic_sine = always(apply("Cosh", X))
hyperbolic_cosine = always(apply("Sinh", X))
area_sine = always(1.0 / apply("Sqrt", X * X + 1.0))
area_cosine = always(1.0 / (apply("Sqrt", X - 1.0) * apply("Sqrt", X + 1.0)))
area_tangent = always(1.0 / (1.0 - X * X))
soft_sign = always(1.0 / ((apply("Abs", X) + 1.0) * (apply("Abs", X) + 1.0)))
hard_swish = always(
    select(
        apply("LessOrEqual", X, -3.0),
        ZERO,
        select(apply("GreaterOrEqual", X, 3.0), ONE, X / 3.0 + 0.5),
    )
)


def leaky(view: "NodeView") -> list[Term]:
    """Of LeakyRelu; at 0 the lower one."""
    return [select(apply("Greater", X, 0.0), ONE, _attribute(view, "alpha", 0.01))]


def thresholded(view: "NodeView") -> list[Term]:
    """1 above the threshold."""
    return [select(_above(X, _attribute(view, "alpha", 1.0)), ONE, ZERO)]


def shrink(view: "NodeView") -> list[Term]:
    """0 in the middle."""
    return [select(_above(apply("Abs", X), _attribute(view, "lambd", 0.5)), ONE, ZERO)]


def hard_sigmoid(view: "NodeView") -> list[Term]:
    """The slope between the ends."""
    alpha, beta = _attribute(view, "alpha", 0.2), _attribute(view, "beta", 0.5)
    line = alpha * X + beta
    inner = apply("And", _above(line, 0.0), apply("Less", line, 1.0))
    return [select(inner, alpha, ZERO)]


def elu(view: "NodeView") -> list[Term]:
    """1, or what the exponential side gives."""
    alpha = _attribute(view, "alpha", 1.0)
    return [select(_above(X, 0.0), ONE, alpha * exp(BELOW_0))]


def celu(view: "NodeView") -> list[Term]:
    """The same of a scaled operand."""
    return [select(_above(X, 0.0), ONE, exp(BELOW_0 / _attribute(view, "alpha", 1.0)))]


def selu(view: "NodeView") -> list[Term]:
    """The same, times a number."""
    alpha = _attribute(view, "alpha", 1.67326319217681884765625)
    gamma = _attribute(view, "gamma", 1.05070102214813232421875)
    return [select(_above(X, 0.0), gamma, Number(gamma.value * alpha.value) * exp(BELOW_0))]


def mish(_: "NodeView") -> list[Term]:
    """Of x * tanh(softplus(x))."""
    t = apply("Tanh", apply("Softplus", X))
    return [t + X * (1.0 - t * t) * _sigmoid(X)]


def _gelu(x: Term) -> Term:
    """Of x * (1 + erf(x / sqrt(2))) / 2: the distribution function, and x times the density."""
    whole = 0.5 * (apply("Erf", x * sqrt(0.5)) + 1.0)
    return whole + x * (exp(-0.5 * (x * x)) * (1 / sqrt(2 * pi)))


def _tanh_gelu(x: Term) -> Term:
    """Of x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 * x ** 3)."""
    square = x * x
    t = apply("Tanh", ROOT_2_OVER_PI * (x * (CUBIC * square + 1.0)))
    slope = ROOT_2_OVER_PI * (3 * CUBIC * square + 1.0)
    return 0.5 * (t + 1.0) + 0.5 * (x * ((1.0 - t * t) * slope))


def gelu(view: "NodeView") -> list[Term]:
    """By which form the node has."""
    return [_tanh_gelu(X) if view.attr("approximate", "none") == "tanh" else _gelu(X)]


def _swish(alpha: Number) -> Term:
    s = _sigmoid(alpha * X)
    return s + alpha * X * (s * (1.0 - s))


def swish(view: "NodeView") -> list[Term]:
    """Of x * sigmoid(alpha * x)."""
    return [_swish(_attribute(view, "alpha", 1.0))]


def quick_gelu(view: "NodeView") -> list[Term]:
    """The same with another factor."""
    return [_swish(_attribute(view, "alpha", 1.702))]


def bias_gelu(_: "NodeView") -> list[Term]:
    """Of the sum of both operands."""
    return [_gelu(X + X1)] * 2


def fast_gelu(view: "NodeView") -> list[Term]:
    """The same of the other form; the bias may be absent."""
    return [_tanh_gelu(X + X1)] * 2 if view.has(1) else [_tanh_gelu(X)]


def clip(view: "NodeView") -> list[Term]:
    """1 from bound to bound, both included."""
    bounds = [
        Operand(i)
        if view.has(i)
        else None
        if view.attr(name) is None
        else _attribute(view, name, 0)
        for i, name in ((1, "min"), (2, "max"))
    ]
    term: Term = ONE
    for op, bound in zip(("GreaterOrEqual", "LessOrEqual"), bounds, strict=True):
        term = term if bound is None else select(apply(op, X, bound), term, ZERO)
    return [term]


# of several operands
difference = always(ONE, Number(-1.0))
product = always(X1, X)
quotient = always(1.0 / X1, -(Y / X1))
choice = always(ZERO, select(X, ONE, ZERO), select(X, ZERO, ONE))
power = always(
    select(_equal(X1, 0.0), ZERO, X1 * apply("Pow", select(_equal(X1, 0.0), ONE, X), X1 - 1.0)),
    select(_equal(X, 0.0), ZERO, Y * apply("Log", select(_equal(X, 0.0), ONE, X))),
)
sloped = always(select(_above(X, 0.0), ONE, X1), select(_above(X, 0.0), ZERO, X))


def remainder(view: "NodeView") -> list[Term]:
    """Of x - y * trunc(x / y), the form for floats."""
    ratio = X / X1
    whole = apply("Sign", ratio) * apply("Floor", apply("Abs", ratio))
    return [ONE, -whole] if view.attr("fmod", 0) else []


def total(view: "NodeView") -> list[Term]:
    """Of a sum of any number of operands."""
    return [ONE] * view.n_inputs


def mean(view: "NodeView") -> list[Term]:
    """Of their mean."""
    return [Number(1.0 / view.n_inputs)] * view.n_inputs


def extreme(view: "NodeView") -> list[Term]:
    """Of the largest or least one: shared by those that are equal to it."""
    hits = [_equal(Operand(i), Y) for i in range(view.n_inputs)]
    if len(hits) == 1:
        return [ONE]
    count = reduce(lambda x, y: x + y, (select(hit, ONE, ZERO) for hit in hits))
    return [select(hit, 1.0 / count, ZERO) for hit in hits]


def per_channel(view: "NodeView") -> list[Term]:
    """Of BatchNormalization outside of training: operands scale, shift, mean and variance."""
    epsilon = _attribute(view, "epsilon", 1e-5)
    scale, mean_of, variance = Operand(1), Operand(3), Operand(4)
    inverse = 1.0 / apply("Sqrt", variance + epsilon)
    centred = X - mean_of
    return [
        scale * inverse,
        centred * inverse,
        ONE,
        -(scale * inverse),
        -0.5 * (scale * centred * (inverse * (inverse * inverse))),
    ]


# of reductions
sum_of_squares = always(2.0 * X)
sum_of_magnitudes = always(apply("Sign", X))
length = always(select(_equal(Y, 0.0), ZERO, X / select(_equal(Y, 0.0), ONE, Y)))
logarithm_of_sum = always(1.0 / exp(Y))
log_sum_exp = always(exp(X - Y))
