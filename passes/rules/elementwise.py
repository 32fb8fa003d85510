"""Elementwise operators: the record of each, and the one rule that they share.

    out[i] = f(a[i], b[i], ...)        operands broadcast to the output

`evaluate` computes f with numpy in the operands' own types. It is used only to carry constants, and
only where the arithmetic is known to be the same everywhere: `trusted` says for which operands.
IEEE operations are trusted everywhere, library functions only at landmarks such as exp(0).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.since import Since
from pitc.passes.rules import affine, arithmetic, conditions, derivatives, laws, signs, values
from pitc.passes.rules.affine import Order
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import broadcast_read, broadcast_shape, scalar_constant
from pitc.passes.rules.few import of_numbers
from pitc.passes.rules.record import (
    OPERATORS,
    UNKNOWN,
    Array,
    Elementwise,
    Items,
    Operator,
    PackRule,
    Parameters,
    always,
    never,
    trust_all,
    trust_none,
)
from pitc.passes.rules.registry import MICROSOFT


def at(*landmarks: float) -> Callable[..., bool]:
    """Trust the arithmetic where every operand is one of the landmarks."""
    known = frozenset(landmarks)
    return lambda *xs: all(x in known for x in xs)


at_zero = at(0.0)


def _attributes(**defaults: float | str) -> Callable[[NodeView], Parameters | None]:
    return lambda view: {name: view.attr(name, value) for name, value in defaults.items()}


def _clip_bounds(view: NodeView) -> Parameters | None:
    dtype = view.dtype(0)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low, high = view.attr("min", limits.min), view.attr("max", limits.max)
    if view.has(1):
        low = scalar_constant(view, 1)
    if view.has(2):
        high = scalar_constant(view, 2)
    return None if low is None or high is None else {"low": low, "high": high}


def _clip_least(view: NodeView) -> Array | None:
    bounds = _clip_bounds(view)
    return None if bounds is None else np.minimum(*map(view.dtype(0).type, bounds.values()))


def _cast_target(view: NodeView) -> Parameters | None:
    dtype = view.out_dtype(0)
    return None if dtype is None else {"to": dtype}


def _exact(
    evaluate: Callable[..., Array],
    operands: int | None = None,
    parameters: Callable[[NodeView], Parameters | None] | None = None,
    monotone: bool = False,
    typed: bool = False,
) -> Elementwise:
    """A function that is computed alike everywhere."""
    return Elementwise(evaluate, operands, trust_all, parameters, monotone, typed=typed)


def _truth(evaluate: Callable[..., Array], monotone: bool = False) -> Elementwise:
    """An exact function whose results are bools."""
    return Elementwise(evaluate, None, trust_all, None, monotone, boolean=True)


# rounding, magnitudes, what is cut off: of one number
_ONE_NUMBER = {
    "Abs": Operator(
        function=_exact(np.abs),
        finite=always,
        law=laws.odd,
        sign=signs.never_negative,
        derivative=derivatives.absolute,
    ),
    "Neg": Operator(
        function=_exact(np.negative, monotone=True),
        finite=always,
        not_positive=conditions.negated,
        law=laws.odd,
        affine=affine.negative,
        value=values.negative,
        derivative=derivatives.opposite,
    ),
    "Ceil": Operator(
        function=_exact(np.ceil, monotone=True), finite=always, derivative=derivatives.step
    ),
    "Floor": Operator(
        function=_exact(np.floor, monotone=True), finite=always, derivative=derivatives.step
    ),
    "Round": Operator(
        function=_exact(np.round, monotone=True), finite=always, derivative=derivatives.step
    ),
    "Sign": Operator(function=_exact(np.sign), finite=always, derivative=derivatives.step),
    "Sqrt": Operator(
        function=_exact(np.sqrt),
        finite=conditions.root,
        law=laws.odd,
        sign=signs.never_negative,
        exponent=conditions.half,
        derivative=derivatives.square_root,
    ),
    "Reciprocal": Operator(
        function=Elementwise(lambda x: 1 / x, trusted=at(0.0, 1.0, -1.0, 2.0, 0.5)),
        finite=conditions.pole,
        exponent=conditions.minus_one,
        derivative=derivatives.reciprocal,
    ),
    "Relu": Operator(
        function=_exact(lambda x: np.maximum(x, np.zeros_like(x)), monotone=True),
        finite=always,
        keeps_clean=True,
        law=laws.odd,
        sign=signs.never_negative,
        derivative=derivatives.rectified,
    ),
    "LeakyRelu": Operator(
        function=_exact(
            lambda x, alpha: np.where(x >= 0, x, x * np.float32(alpha)).astype(np.asarray(x).dtype),
            parameters=_attributes(alpha=0.01),
        ),
        finite=always,
        law=laws.odd,
        derivative=derivatives.leaky,
    ),
    "ThresholdedRelu": Operator(
        function=_exact(
            lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)),
            parameters=_attributes(alpha=1.0),
        ),
        finite=always,
        derivative=derivatives.thresholded,
    ),
    "Shrink": Operator(
        function=Elementwise(
            arithmetic.shrink,
            trusted=at(0.0, 1.0, -1.0),
            parameters=_attributes(bias=0.0, lambd=0.5),
        ),
        finite=always,
        derivative=derivatives.shrink,
    ),
    "Clip": Operator(
        function=_exact(arithmetic.clip, 1, _clip_bounds, monotone=True),
        finite=always,
        sign=signs.clip,
        least=_clip_least,
        derivative=derivatives.clip,
    ),
    "Cast": Operator(
        function=_exact(arithmetic.cast, parameters=_cast_target),
        finite=always,
        keeps_clean=True,
        converts=True,
        sign=signs.narrowed,
        not_positive=conditions.all_fall,
        affine=affine.same,
        value=values.cast,
    ),
    "CastLike": Operator(
        function=_exact(arithmetic.cast, 1, _cast_target), finite=always, converts=True
    ),
    "IsNaN": Operator(function=_truth(np.isnan), finite=always, finds_nan=True),
    "IsInf": Operator(
        function=replace(
            _truth(arithmetic.is_inf),
            parameters=_attributes(detect_negative=1, detect_positive=1),
        ),
        finite=always,
    ),
    "Not": Operator(
        function=_truth(np.logical_not),
        finite=always,
        selects=True,
        law=laws.opposite,
        value=values.opposite,
    ),
    "BitwiseNot": Operator(function=_exact(np.bitwise_not, typed=True), finite=always),
}

_SEVERAL_NUMBERS = {
    "PRelu": Operator(
        function=_exact(lambda x, slope: np.where(x >= 0, x, x * slope)),
        finite=always,
        derivative=derivatives.sloped,
    ),
    "Add": Operator(
        function=_exact(np.add, monotone=True),
        finite=always,
        keeps_clean=True,
        weights=(1,),
        law=laws.total,
        sign=signs.total,
        not_positive=conditions.all_fall,
        affine=affine.total,
        value=values.add,
        derivative=derivatives.total,
    ),
    "Sub": Operator(
        function=_exact(np.subtract, monotone=True),
        finite=always,
        weights=(1, -1),
        law=laws.difference,
        not_positive=conditions.difference_falls,
        affine=affine.difference,
        value=values.subtract,
        derivative=derivatives.difference,
    ),
    "Mul": Operator(
        function=_exact(np.multiply, monotone=True),
        finite=always,
        powers=(1,),
        law=laws.product,
        sign=signs.product,
        not_positive=conditions.product_falls,
        square=conditions.same_factor,
        affine=affine.product,
        value=values.multiply,
        derivative=derivatives.product,
    ),
    "Div": Operator(
        function=_exact(arithmetic.divide, monotone=True, typed=True),
        finite=conditions.divisor,
        powers=(1, -1),
        law=laws.quotient,
        sign=signs.quotient,
        not_positive=conditions.quotient_falls,
        value=values.quotient,
        derivative=derivatives.quotient,
    ),
    "Mod": Operator(
        function=_exact(arithmetic.modulo, parameters=_attributes(fmod=0), typed=True),
        value=values.remainder,
        derivative=derivatives.remainder,
    ),
    "Pow": Operator(
        function=Elementwise(arithmetic.power, trusted=at(0.0, 1.0, 2.0), typed=True),
        finite=conditions.power,
        square=conditions.even,
        exponent=conditions.exponent,
        derivative=derivatives.power,
    ),
    "Sum": Operator(
        function=_exact(arithmetic.total, monotone=True),
        finite=always,
        keeps_clean=True,
        weights=(1,),
        law=laws.total,
        sign=signs.total,
        not_positive=conditions.all_fall,
        derivative=derivatives.total,
    ),
    "Mean": Operator(
        function=Elementwise(
            lambda *xs: arithmetic.total(*xs) / len(xs), trusted=at_zero, typed=True
        ),
        finite=always,
        derivative=derivatives.mean,
    ),
    "Max": Operator(
        function=_exact(arithmetic.highest, monotone=True),
        finite=always,
        keeps_clean=True,
        law=laws.extreme,
        sign=signs.largest,
        not_positive=conditions.all_fall,
        affine=affine.largest,
        value=values.largest,
        derivative=derivatives.extreme,
    ),
    "Min": Operator(
        function=_exact(arithmetic.lowest, monotone=True),
        finite=always,
        keeps_clean=True,
        law=laws.extreme,
        sign=signs.smallest,
        not_positive=conditions.one_falls,
        affine=affine.smallest,
        value=values.smallest,
        derivative=derivatives.extreme,
    ),
    "BitwiseAnd": Operator(function=_exact(np.bitwise_and), finite=always),
    "BitwiseOr": Operator(function=_exact(np.bitwise_or), finite=always),
    "BitwiseXor": Operator(function=_exact(np.bitwise_xor), finite=always),
    "BitShift": Operator(
        function=_exact(arithmetic.shift, parameters=_attributes(direction="LEFT"), typed=True),
        finite=always,
    ),
}

_CONDITIONS = {
    "Where": Operator(
        function=_exact(np.where),
        finite=always,
        keeps_clean=True,
        selects=True,
        chooses=True,
        law=laws.where,
        sign=signs.chosen,
        value=values.where,
        derivative=derivatives.choice,
    ),
    "And": Operator(
        function=_truth(np.logical_and),
        finite=always,
        selects=True,
        law=laws.both,
        value=values.both,
    ),
    "Or": Operator(
        function=_truth(np.logical_or),
        finite=always,
        selects=True,
        law=laws.either,
        value=values.either,
    ),
    "Xor": Operator(function=_truth(np.logical_xor), finite=always, selects=True),
    "Equal": Operator(
        function=_truth(np.equal),
        finite=always,
        selects=True,
        law=laws.unequal,
        order=Order(None, equal=True),
        value=values.equal,
        few=of_numbers,
    ),
    "Greater": Operator(
        function=_truth(np.greater, monotone=True),
        finite=always,
        order=Order(less=False, equal=False),
        value=values.greater,
    ),
    "GreaterOrEqual": Operator(
        function=_truth(np.greater_equal, monotone=True),
        finite=always,
        order=Order(less=False, equal=True),
        value=values.greater_or_equal,
    ),
    "Less": Operator(
        function=_truth(np.less, monotone=True),
        finite=always,
        order=Order(less=True, equal=False),
        value=values.less,
    ),
    "LessOrEqual": Operator(
        function=_truth(np.less_equal, monotone=True),
        finite=always,
        order=Order(less=True, equal=True),
        value=values.less_or_equal,
    ),
}


def _library(
    evaluate: Callable[..., Array],
    trusted: Callable[..., bool] = at_zero,
    parameters: Callable[[NodeView], Parameters | None] | None = None,
    image: tuple[float, float] | None = None,
) -> Elementwise:
    """A function that is not computed alike everywhere."""
    return Elementwise(evaluate, None, trusted, parameters, image=image)


_AROUND_1, _AROUND_0 = (-1.001, 1.001), (-0.001, 1.001)
_LIBRARY = {
    # a 0 may be stored as -0.0, whose bits are not those of 0
    "BitCast": Operator(function=Elementwise(None)),
    "Exp": Operator(
        function=_library(np.exp),
        finite=conditions.not_above,
        sign=signs.never_negative,
        derivative=derivatives.exponential,
    ),
    "Log": Operator(
        function=_library(np.log, at(0.0, 1.0)),
        finite=conditions.pole,
        derivative=derivatives.logarithm,
    ),
    "Erf": Operator(
        function=_library(arithmetic.erf, image=_AROUND_1),
        finite=always,
        law=laws.odd,
        derivative=derivatives.error_function,
    ),
    "Tanh": Operator(
        function=_library(np.tanh, image=_AROUND_1),
        finite=always,
        law=laws.odd,
        caps=True,
        derivative=derivatives.hyperbolic_tangent,
    ),
    "Sigmoid": Operator(
        function=_library(arithmetic.sigmoid, image=_AROUND_0),
        finite=always,
        sign=signs.never_negative,
        derivative=derivatives.logistic,
    ),
    "HardSigmoid": Operator(
        function=_library(
            lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
            trust_none,
            _attributes(alpha=0.2, beta=0.5),
        ),
        finite=always,
        derivative=derivatives.hard_sigmoid,
    ),
    "HardSwish": Operator(
        function=_library(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        finite=always,
        derivative=derivatives.hard_swish,
    ),
    "Softplus": Operator(
        function=_library(arithmetic.softplus, trust_none),
        finite=always,
        sign=signs.never_negative,
        derivative=derivatives.soft_plus,
    ),
    "Softsign": Operator(
        function=_library(lambda x: x / (1 + np.abs(x)), image=_AROUND_1),
        finite=always,
        derivative=derivatives.soft_sign,
    ),
    "Mish": Operator(
        function=_library(lambda x: x * np.tanh(arithmetic.softplus(x))),
        finite=always,
        derivative=derivatives.mish,
    ),
    "Elu": Operator(
        function=_library(
            lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x)),
            parameters=_attributes(alpha=1.0),
        ),
        finite=always,
        derivative=derivatives.elu,
    ),
    "Celu": Operator(
        function=_library(arithmetic.celu, parameters=_attributes(alpha=1.0)),
        finite=conditions.at_least(alpha=(1.0, conditions.TINY)),
        derivative=derivatives.celu,
    ),
    "Selu": Operator(
        function=_library(
            arithmetic.selu,
            parameters=_attributes(
                alpha=1.67326319217681884765625, gamma=1.05070102214813232421875
            ),
        ),
        finite=always,
        derivative=derivatives.selu,
    ),
    "Gelu": Operator(
        function=_library(arithmetic.gelu, parameters=_attributes(approximate="none")),
        finite=always,
        law=laws.odd,
        derivative=derivatives.gelu,
    ),
    "Swish": Operator(
        function=_library(
            lambda x, alpha: x * arithmetic.sigmoid(alpha * x), parameters=_attributes(alpha=1.0)
        ),
        finite=always,
        derivative=derivatives.swish,
    ),
    "Sin": Operator(
        function=_library(np.sin, image=_AROUND_1), finite=always, derivative=derivatives.sine
    ),
    "Cos": Operator(
        function=_library(np.cos, image=_AROUND_1), finite=always, derivative=derivatives.cosine
    ),
    "Tan": Operator(function=_library(np.tan), finite=never, derivative=derivatives.tangent),
    "Asin": Operator(function=_library(np.arcsin), finite=never, derivative=derivatives.arc_sine),
    "Acos": Operator(
        function=_library(np.arccos, trust_none), finite=never, derivative=derivatives.arc_cosine
    ),
    "Atan": Operator(
        function=_library(np.arctan), finite=always, derivative=derivatives.arc_tangent
    ),
    "Sinh": Operator(
        function=_library(np.sinh), finite=never, derivative=derivatives.hyperbolic_sine
    ),
    "Cosh": Operator(
        function=_library(np.cosh), finite=never, derivative=derivatives.hyperbolic_cosine
    ),
    "Asinh": Operator(
        function=_library(np.arcsinh), finite=always, derivative=derivatives.area_sine
    ),
    "Acosh": Operator(
        function=_library(np.arccosh, trust_none), finite=never, derivative=derivatives.area_cosine
    ),
    "Atanh": Operator(
        function=_library(np.arctanh), finite=never, derivative=derivatives.area_tangent
    ),
}

_FUSED = {
    "Gelu": Operator(
        function=_library(arithmetic.gelu), finite=always, law=laws.odd, derivative=derivatives.gelu
    ),
    "BiasGelu": Operator(
        function=_library(lambda x, b: arithmetic.gelu(x + b)),
        finite=always,
        derivative=derivatives.bias_gelu,
    ),
    "FastGelu": Operator(
        function=_library(lambda x, b=0.0: arithmetic.gelu(x + b, "tanh")),
        finite=always,
        derivative=derivatives.fast_gelu,
    ),
    "QuickGelu": Operator(
        function=_library(
            lambda x, alpha: x * arithmetic.sigmoid(alpha * x), parameters=_attributes(alpha=1.702)
        ),
        finite=always,
        derivative=derivatives.quick_gelu,
    ),
}

QUANTISING = Operator(
    function=_exact(arithmetic.quantised, parameters=_cast_target),
    finite=always,
    quantises=True,
    packs=PackRule.PER_TENSOR,
    items=Items.ANY,
)
DEQUANTISING = replace(
    QUANTISING, function=_exact(arithmetic.dequantised), quantises=False, dequantises=True
)


def function_of(domain: str, op: str) -> Elementwise | None:
    """What an operator computes element by element; None where it is not elementwise."""
    return OPERATORS.get((domain, op), UNKNOWN).function


def data_operands(view: NodeView) -> list[int]:
    """Numbers of the inputs that an elementwise node computes with, in order.

    Args:
        view: An elementwise node.
    """
    function = function_of(view.domain, view.op)
    limit = None if function is None else function.operands
    return [i for i in range(view.n_inputs) if view.has(i) and (limit is None or i < limit)]


def elementwise(view: NodeView) -> list[TensorExpr]:
    """The rule: every operand is read at the output's own point, broadcast."""
    operands = data_operands(view)
    shapes = {view.shape(i) for i in operands}
    if view.opset < Since.BROADCAST and not view.domain and len(shapes) > 1:
        raise NoRule("operands of old operator sets broadcast along a given axis")
    shape = broadcast_shape([view.shape(i) for i in operands], view.joined)
    reads = tuple(broadcast_read(i, view.shape(i), shape) for i in operands)
    return [TensorExpr(shape, reads, combine=Combine.MAP)]


_FORMULAS = {
    *("Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Exp", "Erf", "Tanh", "Sigmoid"),
    *("Relu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Not", "And", "Or"),
    *("Where", "Cast", "Pow"),
}
"""What kernels compute as a step of a formula (`pitc.ir.formula`)."""


def _add(domain: str, rows: dict[str, Operator]) -> None:
    fitting = (Assumes.FITTING_SIZES,)
    for op, row in rows.items():
        kernels = ("elementwise",) if not domain and op in _FORMULAS else ()
        made = replace(row, rule=elementwise, assumes=fitting, items=Items.ANY, kernels=kernels)
        OPERATORS[domain, op] = made


_add("", _ONE_NUMBER | _SEVERAL_NUMBERS | _CONDITIONS | _LIBRARY)
_add(MICROSOFT, _FUSED)
