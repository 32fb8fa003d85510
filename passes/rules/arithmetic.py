"""Elementwise functions on numpy arrays, computed in the operands' own types."""

from functools import reduce
from math import erf as _scalar_erf
from math import pi, sqrt
from typing import Any

import numpy as np

Array = Any  # a numpy array or scalar of any type
NEAR_TIE = 0.499  # of a quotient from its nearest integer

erf = np.vectorize(_scalar_erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), in double precision."""
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def gelu(x: Array, approximate: str = "none") -> Array:
    """X times the normal distribution's share below x, or the common approximation."""
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / sqrt(2)))


def softplus(x: Array) -> Array:
    """log(exp(x) + 1)."""
    return np.logaddexp(x, 0.0)


def celu(x: Array, alpha: float) -> Array:
    """x, or alpha * (exp(x / alpha) - 1) below 0."""
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))


def selu(x: Array, alpha: float, gamma: float) -> Array:
    """Gamma times x, or times alpha * (exp(x) - 1) below 0."""
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def shrink(x: Array, bias: float, lambd: float) -> Array:
    """0 between -lambd and lambd, else closer to 0 by the bias."""
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


def divide(x: Array, y: Array) -> Array:
    """Division; integers truncate towards zero."""
    if not _divisible(x, y):
        return np.divide(x, y)
    floor = np.floor_divide(x, y)
    upwards = (floor * y != x) & ((x < 0) != (y < 0))
    return floor + upwards.astype(np.asarray(x).dtype)


def modulo(x: Array, y: Array, fmod: int) -> Array:
    """Remainder with the divisor's sign, or the dividend's."""
    _divisible(x, y)
    return np.fmod(x, y) if fmod else np.mod(x, y)


def power(x: Array, y: Array) -> Array:
    """Power in double precision, in the base's type."""
    return np.power(np.asarray(x, np.float64), np.asarray(y, np.float64)).astype(
        np.asarray(x).dtype
    )


def shift(x: Array, y: Array, direction: str) -> Array:
    """Bits shifted: not by all of them or more, which C does not define."""
    if np.any(np.asarray(y) >= 8 * np.asarray(x).dtype.itemsize):
        raise ArithmeticError
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


def clip(x: Array, low: float, high: float) -> Array:
    """The nearest number between two bounds."""
    x = np.asarray(x)
    return np.minimum(
        np.maximum(x, np.asarray(low).astype(x.dtype)), np.asarray(high).astype(x.dtype)
    )


def is_inf(x: Array, detect_negative: int, detect_positive: int) -> Array:
    """Whether it is one of the wanted infinities."""
    return (np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative))


def cast(x: Array, to: np.dtype[Any]) -> Array:
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
    out = x.astype(to)
    # runtimes round a double to half precision by way of a float, and may end elsewhere
    if to == np.float16 and x.dtype == np.float64:
        by_float = x.astype(np.float32).astype(to)
        if not np.array_equal(out, by_float, equal_nan=True):
            raise ArithmeticError
    return out


def quantised(x: Array, scale: Array, zero: Array = 0, *, to: np.dtype[Any]) -> Array:
    """Rounding to an integer type; not near ties, where divisions may differ in the last bit."""
    if to.kind not in "iu":
        raise TypeError(to)
    quotient = np.divide(x, scale)
    rounded, info = np.rint(quotient), np.iinfo(to)
    if np.isnan(quotient) or abs(quotient - rounded) > NEAR_TIE:
        raise ArithmeticError
    return np.clip(rounded + float(zero), info.min, info.max).astype(to)


def dequantised(q: Array, scale: Array, zero: Array = 0) -> Array:
    """(q - zero) * scale."""
    scale = np.asarray(scale)
    return (np.asarray(q, np.int64) - np.asarray(zero, np.int64)).astype(scale.dtype) * scale


def total(*xs: Array) -> Array:
    """The sum; of three half floats only where no partial sum is rounded."""
    out, exact = xs[0], np.asarray(xs[0], np.float64)
    for x in xs[1:]:
        out, exact = out + x, exact + x
    if len(xs) > 2 and np.asarray(out).dtype == np.float16:
        same = (out == exact) | np.isnan(exact)
        if not np.all(same):
            raise ArithmeticError
    return out


def highest(*xs: Array) -> Array:
    """The largest operand."""
    return reduce(np.maximum, xs)


def lowest(*xs: Array) -> Array:
    """The smallest operand."""
    return reduce(np.minimum, xs)
