"""Elementary functions of float vectors: LLVM would call the C library once per lane.

A GPU's thread computes the same with one lane.

Coefficients are own minimax fits (iteratively reweighted least squares on Chebyshev nodes, in
float64), rounded to float32. Largest relative errors against float64, over every float32 in range:

| function | largest relative error | exact cases |
|---|---|---|
| exp | 1.2e-7 on [-87.336, 88.722] | 0 below, +inf above; exp(0) = 1 |
| erf | 3.8e-7 | -1 and 1 from 3.94 on |
| tanh | 1.6e-7 | -1 and 1 from 9.02 on |

Every function maps NaN to NaN and infinities to their limits.
"""

from collections.abc import Sequence

from pitc.codegen import tir
from pitc.codegen.tir import Expr, as_bits, fma, from_bits, keep, lanes_of, select, shift_left

EXP_MIN, EXP_MAX = -87.33654, 88.72283

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: n * _LN2_HIGH is exact for |n| < 2^9.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054691e-4
# Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
_ROUND = 12582912.0
_ONE_BITS, _SIGN_BIT, _MAGNITUDE_BITS = 0x3F800000, -0x80000000, 0x7FFFFFFF
_ERF_MAX = 3.93
_TANH_SPLIT = 0.6
_QUICK = 1.702
# 2 u = 2 sqrt(2 / pi) (x + 0.044715 x^3)
_GELU_SLOPE = 1.5957691216057308
_GELU_CUBE = 0.044715 * _GELU_SLOPE

# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2
_EXP = (
    0.4999999403953552,
    0.1666651964187622,
    0.04166839271783829,
    0.008368780836462975,
    0.0013814467238262296,
)
# erf(x) / x = P(x^2) / Q(x^2) for |x| <= 3.93; all coefficients are positive: no cancellation
_ERF_P = (
    1.1283791065216064,
    0.19078287482261658,
    0.05279015377163887,
    0.003779567079618573,
    0.00028480752371251583,
    2.0419759039214114e-06,
)
_ERF_Q = (
    1.0,
    0.5024096369743347,
    0.11425711959600449,
    0.014997351914644241,
    0.0011652022367343307,
    3.800407284870744e-05,
)
# (tanh(x) - x) / x^3 in powers of x^2 for |x| <= 0.625
_TANH = (
    -0.3333328068256378,
    0.13331441581249237,
    -0.05373971536755562,
    0.0206390880048275,
    -0.005704987328499556,
)


def _like(x: Expr, value: float) -> Expr:
    """A number in as many lanes as `x` has."""
    return tir.splat(value, lanes_of(x))


def _bits_like(x: Expr, value: int) -> Expr:
    return tir.splat_bits(value, lanes_of(x))


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    value = _like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = fma(value, x, _like(x, c))
    return keep(value)


def exp(x: Expr, *, nonpositive: bool = False) -> Expr:
    """Compute e^x; cheaper if no lane is above 0 (`nonpositive`)."""
    shifted = keep(fma(x, _like(x, _LOG2_E), _like(x, _ROUND)))
    n = keep(shifted - _like(x, _ROUND))
    r = keep(fma(n, _like(x, -_LN2_LOW), keep(fma(n, _like(x, -_LN2_HIGH), x))))
    p = keep(fma(keep(r * r), _horner(_EXP, r), keep(r + _like(x, 1))))
    exponent = shift_left(as_bits(shifted), 23)
    if nonpositive:
        power = from_bits(exponent + _bits_like(x, _ONE_BITS))
        return keep(select(x < _like(x, EXP_MIN), _like(x, 0), keep(p * power)))
    # 2^128 is no float32, so the exponent is added to p, which is below 1 in that last interval.
    scaled = keep(from_bits(as_bits(p) + exponent))
    low = keep(select(x < _like(x, EXP_MIN), _like(x, 0), scaled))
    return keep(select(x <= _like(x, EXP_MAX), low, keep(x * _like(x, float("inf")))))


def whole(x: Expr) -> Expr:
    """The nearest integer, of two the even one; for |x| up to 2^22."""
    return keep(keep(x + _like(x, _ROUND)) - _like(x, _ROUND))


def erf(x: Expr) -> Expr:
    """The error function."""
    limit = _like(x, _ERF_MAX**2)
    square = keep(x * x)
    y = keep(select(square > limit, limit, square))
    # Only the square is limited: for larger |x| the value grows past 1, where it is cut.
    value = keep(x * keep(_horner(_ERF_P, y) / _horner(_ERF_Q, y)))
    value = keep(select(value > _like(x, 1), _like(x, 1), value))
    return keep(select(value < _like(x, -1), _like(x, -1), value))


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent: (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x, or a series."""
    square = keep(x * x)
    near = keep(fma(keep(square * x), _horner(_TANH, square), x))
    a = keep(from_bits(as_bits(x) & _bits_like(x, _MAGNITUDE_BITS)))
    e = exp(keep(a * _like(x, -2)), nonpositive=True)
    far = keep((_like(x, 1) - e) / (_like(x, 1) + e))
    signed = keep(from_bits(as_bits(far) | (as_bits(x) & _bits_like(x, _SIGN_BIT))))
    return keep(select(a < _like(x, _TANH_SPLIT), near, signed))


def relu(x: Expr) -> Expr:
    """The larger of x and 0; NaN stays NaN."""
    return keep(select(x < _like(x, 0), _like(x, 0), x))


def sigmoid(x: Expr) -> Expr:
    """The logistic function: 1 / (1 + e^-x)."""
    return keep(_like(x, 1) / keep(exp(keep(_like(x, 0) - x)) + _like(x, 1)))


def _times_sigmoid(x: Expr, t: Expr) -> Expr:
    """Compute x / (1 + e^-t), for t of the sign of x."""
    return keep(x / keep(exp(keep(_like(x, 0) - t)) + _like(x, 1)))


def silu(x: Expr) -> Expr:
    """The sigmoid linear unit: x * sigmoid(x)."""
    return _times_sigmoid(x, x)


def gelu_quick(x: Expr) -> Expr:
    """The sigmoid form of GELU: x * sigmoid(1.702 x)."""
    return _times_sigmoid(x, keep(x * _like(x, _QUICK)))


def gelu_tanh(x: Expr) -> Expr:
    """The tanh form of GELU, x * (1 + tanh(u)) / 2, which is x * sigmoid(2 u)."""
    inner = keep(fma(keep(x * x), _like(x, _GELU_CUBE), _like(x, _GELU_SLOPE)))
    return _times_sigmoid(x, keep(x * inner))


def gelu(x: Expr) -> Expr:
    """The exact form of GELU: x * (1 + erf(x / sqrt 2)) / 2."""
    tail = keep(erf(keep(x * _like(x, 0.7071067811865476))) + _like(x, 1))
    return keep(keep(x * _like(x, 0.5)) * tail)
