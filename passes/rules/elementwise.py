"""Elementwise operators: a table of what each computes, and the one rule that they share.

    out[i] = f(a[i], b[i], ...)        operands broadcast to the output

`evaluate` computes f with numpy in the operands' own types. It is used only to carry constants, and
only where the arithmetic is known to be the same everywhere: `trusted` says for which operands.
IEEE operations are trusted everywhere, library functions only at landmarks such as exp(0).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erf as _scalar_erf
from math import pi, sqrt
from typing import Any

import numpy as np

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.passes.rules.build import broadcast_read, broadcast_shape, scalar_constant
from pitc.passes.rules.registry import MICROSOFT, RULES

Array = Any  # a numpy array or scalar of any type
Parameters = dict[str, Any]
NEAR_TIE = 0.499  # of a quotient from its nearest integer


def always(*_: float) -> bool:
    """Trust the arithmetic for every operand."""
    return True


def never(*_: float) -> bool:
    """Trust no value: only the operator's reads are described."""
    return False


def at(*landmarks: float) -> Callable[..., bool]:
    """Trust the arithmetic where every operand is one of the landmarks."""
    known = frozenset(landmarks)
    return lambda *xs: all(x in known for x in xs)


at_zero = at(0.0)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """What one elementwise operator computes.

    Args:
        evaluate: Its function on numpy arrays of the operands' types, with `parameters` as
            keywords; None when unknown.
        total: Finite operands give finite results, 0 included (overflow aside).
        operands: How many leading inputs are data; None for all.
        trusted: Where `evaluate` is known to give the exact result, by the operands' values.
        parameters: Keyword arguments of `evaluate` from a node's attributes; None when they are not
            known.
        monotone: In each operand, for any numbers as the others: over a box of operands the results
            lie between those at its corners.
        image: Ends between which results lie for all operands but NaN, rounding included.
    """

    evaluate: Callable[..., Array] | None
    total: bool = True
    operands: int | None = None
    trusted: Callable[..., bool] = always
    parameters: Callable[[NodeView], Parameters | None] | None = None
    monotone: bool = False
    image: tuple[float, float] | None = None


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


def _cast_target(view: NodeView) -> Parameters | None:
    return {"to": view.out_dtype(0)}


erf = np.vectorize(_scalar_erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / sqrt(2)))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _divisible(x: Array, y: Array) -> bool:
    """False for floats; integers must not divide by zero, nor the least one by -1."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind not in "iu":
        return False
    least = np.iinfo(x.dtype).min
    if np.any(y == 0) or (least < 0 and np.any((y == -1) & (x == least))):
        raise ZeroDivisionError
    return True


def _divide(x: Array, y: Array) -> Array:
    """Division; integers truncate towards zero."""
    if not _divisible(x, y):
        return np.divide(x, y)
    floor = np.floor_divide(x, y)
    upwards = (floor * y != x) & ((x < 0) != (y < 0))
    return floor + upwards.astype(np.asarray(x).dtype)


def _modulo(x: Array, y: Array, fmod: int) -> Array:
    _divisible(x, y)
    return np.fmod(x, y) if fmod else np.mod(x, y)


def _power(x: Array, y: Array) -> Array:
    return np.power(np.asarray(x, np.float64), np.asarray(y, np.float64)).astype(
        np.asarray(x).dtype
    )


def _shift(x: Array, y: Array, direction: str) -> Array:
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


def _clip(x: Array, low: float, high: float) -> Array:
    x = np.asarray(x)
    return np.minimum(
        np.maximum(x, np.asarray(low).astype(x.dtype)), np.asarray(high).astype(x.dtype)
    )


def _is_inf(x: Array, detect_negative: int, detect_positive: int) -> Array:
    return (np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative))


def _cast(x: Array, to: np.dtype[Any]) -> Array:
    """Conversion where C and numpy agree: no float beyond the range of an integer type."""
    x = np.asarray(x)
    if x.dtype.kind == "f" and to.kind in "iu":
        info = np.iinfo(to)
        if not np.all(np.isfinite(x)) or np.any(
            (np.trunc(x) < info.min) | (np.trunc(x) > info.max)
        ):
            raise OverflowError
    if to.kind not in "biuf":
        raise TypeError(to)
    return x.astype(to)


def _quantised(x: Array, scale: Array, zero: Array = 0, *, to: np.dtype[Any]) -> Array:
    """Rounding to an integer type; not near ties, where divisions may differ in the last bit."""
    if to.kind not in "iu":
        raise TypeError(to)
    quotient = np.divide(x, scale)
    rounded, info = np.rint(quotient), np.iinfo(to)
    if np.isnan(quotient) or abs(quotient - rounded) > NEAR_TIE:
        raise ArithmeticError
    return np.clip(rounded + float(zero), info.min, info.max).astype(to)


def _dequantised(q: Array, scale: Array, zero: Array = 0) -> Array:
    scale = np.asarray(scale)
    return (np.asarray(q, np.int64) - np.asarray(zero, np.int64)).astype(scale.dtype) * scale


def _total(*xs: Array) -> Array:
    """The sum; of three half floats only where no partial sum is rounded."""
    out, exact = xs[0], np.asarray(xs[0], np.float64)
    for x in xs[1:]:
        out, exact = out + x, exact + x
    if len(xs) > 2 and np.asarray(out).dtype == np.float16:
        same = (out == exact) | np.isnan(exact)
        if not np.all(same):
            raise ArithmeticError
    return out


def _highest(*xs: Array) -> Array:
    out = xs[0]
    for x in xs[1:]:
        out = np.maximum(out, x)
    return out


def _lowest(*xs: Array) -> Array:
    out = xs[0]
    for x in xs[1:]:
        out = np.minimum(out, x)
    return out


_IEEE = {
    "Abs": Elementwise(np.abs),
    "Neg": Elementwise(np.negative, monotone=True),
    "Ceil": Elementwise(np.ceil, monotone=True),
    "Floor": Elementwise(np.floor, monotone=True),
    "Round": Elementwise(np.round, monotone=True),
    "Sign": Elementwise(np.sign),
    "Sqrt": Elementwise(np.sqrt, total=False),
    "Reciprocal": Elementwise(lambda x: 1 / x, total=False, trusted=at(0.0, 1.0, -1.0, 2.0, 0.5)),
    "Relu": Elementwise(lambda x: np.maximum(x, np.zeros_like(x)), monotone=True),
    "LeakyRelu": Elementwise(
        lambda x, alpha: np.where(x >= 0, x, x * np.float32(alpha)).astype(np.asarray(x).dtype),
        parameters=_attributes(alpha=0.01),
    ),
    "ThresholdedRelu": Elementwise(
        lambda x, alpha: np.where(x > alpha, x, np.zeros_like(x)), parameters=_attributes(alpha=1.0)
    ),
    "PRelu": Elementwise(lambda x, slope: np.where(x >= 0, x, x * slope)),
    "Shrink": Elementwise(
        _shrink, parameters=_attributes(bias=0.0, lambd=0.5), trusted=at(0.0, 1.0, -1.0)
    ),
    "Clip": Elementwise(_clip, operands=1, parameters=_clip_bounds, monotone=True),
    "Add": Elementwise(np.add, monotone=True),
    "Sub": Elementwise(np.subtract, monotone=True),
    "Mul": Elementwise(np.multiply, monotone=True),
    "Div": Elementwise(_divide, total=False, monotone=True),
    "Mod": Elementwise(_modulo, total=False, parameters=_attributes(fmod=0)),
    "Pow": Elementwise(_power, total=False, trusted=at(0.0, 1.0, 2.0)),
    "Sum": Elementwise(_total, monotone=True),
    "Mean": Elementwise(lambda *xs: _total(*xs) / len(xs), trusted=at_zero),
    "Max": Elementwise(_highest, monotone=True),
    "Min": Elementwise(_lowest, monotone=True),
    "Where": Elementwise(np.where),
    "Cast": Elementwise(_cast, parameters=_cast_target),
    "CastLike": Elementwise(_cast, operands=1, parameters=_cast_target),
    "IsNaN": Elementwise(np.isnan),
    "IsInf": Elementwise(_is_inf, parameters=_attributes(detect_negative=1, detect_positive=1)),
    "Not": Elementwise(np.logical_not),
    "And": Elementwise(np.logical_and),
    "Or": Elementwise(np.logical_or),
    "Xor": Elementwise(np.logical_xor),
    "Equal": Elementwise(np.equal),
    "Greater": Elementwise(np.greater, monotone=True),
    "GreaterOrEqual": Elementwise(np.greater_equal, monotone=True),
    "Less": Elementwise(np.less, monotone=True),
    "LessOrEqual": Elementwise(np.less_equal, monotone=True),
    "BitwiseAnd": Elementwise(np.bitwise_and),
    "BitwiseOr": Elementwise(np.bitwise_or),
    "BitwiseXor": Elementwise(np.bitwise_xor),
    "BitwiseNot": Elementwise(np.bitwise_not),
    "BitShift": Elementwise(_shift, parameters=_attributes(direction="LEFT")),
}

_LIBRARY = {
    # a 0 may be stored as -0.0, whose bits are not those of 0
    "BitCast": Elementwise(None, total=False, trusted=never),
    "Exp": Elementwise(np.exp, total=False, trusted=at_zero),
    "Log": Elementwise(np.log, total=False, trusted=at(0.0, 1.0)),
    "Erf": Elementwise(erf, trusted=at_zero, image=(-1.001, 1.001)),
    "Tanh": Elementwise(np.tanh, trusted=at_zero, image=(-1.001, 1.001)),
    "Sigmoid": Elementwise(_sigmoid, trusted=at_zero, image=(-0.001, 1.001)),
    "HardSigmoid": Elementwise(
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        trusted=never,
        parameters=_attributes(alpha=0.2, beta=0.5),
    ),
    "HardSwish": Elementwise(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), trusted=at_zero),
    "Softplus": Elementwise(_softplus, trusted=never),
    "Softsign": Elementwise(lambda x: x / (1 + np.abs(x)), trusted=at_zero, image=(-1.001, 1.001)),
    "Mish": Elementwise(lambda x: x * np.tanh(_softplus(x)), trusted=at_zero),
    "Elu": Elementwise(
        lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x)),
        trusted=at_zero,
        parameters=_attributes(alpha=1.0),
    ),
    "Celu": Elementwise(_celu, trusted=at_zero, parameters=_attributes(alpha=1.0)),
    "Selu": Elementwise(
        _selu,
        trusted=at_zero,
        parameters=_attributes(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    ),
    "Gelu": Elementwise(_gelu, trusted=at_zero, parameters=_attributes(approximate="none")),
    "Swish": Elementwise(
        lambda x, alpha: x * _sigmoid(alpha * x), trusted=at_zero, parameters=_attributes(alpha=1.0)
    ),
    "Sin": Elementwise(np.sin, trusted=at_zero, image=(-1.001, 1.001)),
    "Cos": Elementwise(np.cos, trusted=at_zero, image=(-1.001, 1.001)),
    "Tan": Elementwise(np.tan, total=False, trusted=at_zero),
    "Asin": Elementwise(np.arcsin, total=False, trusted=at_zero),
    "Acos": Elementwise(np.arccos, total=False, trusted=never),
    "Atan": Elementwise(np.arctan, trusted=at_zero),
    "Sinh": Elementwise(np.sinh, total=False, trusted=at_zero),
    "Cosh": Elementwise(np.cosh, total=False, trusted=at_zero),
    "Asinh": Elementwise(np.arcsinh, trusted=at_zero),
    "Acosh": Elementwise(np.arccosh, total=False, trusted=never),
    "Atanh": Elementwise(np.arctanh, total=False, trusted=at_zero),
}

_QUANTISED = {
    "QuantizeLinear": Elementwise(_quantised, parameters=_cast_target),
    "DequantizeLinear": Elementwise(_dequantised),
}

_FUSED = {
    "Gelu": Elementwise(_gelu, trusted=at_zero),
    "BiasGelu": Elementwise(lambda x, b: _gelu(x + b), trusted=at_zero),
    "FastGelu": Elementwise(lambda x, b=0.0: _gelu(x + b, "tanh"), trusted=at_zero),
    "QuickGelu": Elementwise(
        lambda x, alpha: x * _sigmoid(alpha * x),
        trusted=at_zero,
        parameters=_attributes(alpha=1.702),
    ),
}

ELEMENTWISE: dict[tuple[str, str], Elementwise] = {
    **{("", op): e for op, e in (_IEEE | _LIBRARY | _QUANTISED).items()},
    **{(MICROSOFT, op): e for op, e in (_FUSED | _QUANTISED).items()},
}

COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
BOOLEAN = COMPARISONS | {"And", "Or", "Xor", "Not", "IsNaN", "IsInf"}


NUMPY_BROADCAST = 7  # first operator set whose operands broadcast from the last dimension


def data_operands(view: NodeView) -> list[int]:
    """Numbers of the inputs that an elementwise node computes with, in order.

    Args:
        view: An elementwise node.
    """
    limit = ELEMENTWISE[view.domain, view.op].operands
    return [i for i in range(view.n_inputs) if view.has(i) and (limit is None or i < limit)]


def elementwise(view: NodeView) -> list[TensorExpr]:
    """The rule: every operand is read at the output's own point, broadcast."""
    operands = data_operands(view)
    shapes = {view.shape(i) for i in operands}
    if view.opset < NUMPY_BROADCAST and not view.domain and len(shapes) > 1:
        raise NoRule("operands of old operator sets broadcast along a given axis")
    shape = broadcast_shape([view.shape(i) for i in operands], view.joined)
    reads = tuple(broadcast_read(i, view.shape(i), shape) for i in operands)
    return [TensorExpr(shape, reads, combine=Combine.MAP)]


RULES.update({key: elementwise for key in ELEMENTWISE if key[1] not in _QUANTISED})
