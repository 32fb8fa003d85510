"""Small integer tensors as symbols: what operators make of them, the column `value`.

They are numpy object arrays of polynomials; bools are 0 and 1.
"""

from collections.abc import Callable
from fractions import Fraction
from math import trunc
from typing import Any

import numpy as np

from pitc.ir.graph import Array, NodeView
from pitc.ir.index import ONE, Poly, nonneg, poly

Value = Callable[[NodeView, tuple[int, ...]], Array]


class Unknown(Exception):
    """The value cannot be said in symbols."""


def each(function: Callable[..., Poly]) -> Callable[..., Array]:
    """A function of single polynomials, on arrays of them."""

    def apply(*arrays: Array) -> Array:
        joint = np.broadcast(*arrays)
        return np.array([function(*xs) for xs in joint], object).reshape(joint.shape)

    return apply


def _quotient(x: Poly, y: Poly) -> Poly:
    """Integer division as ONNX has it, towards zero."""
    exact = x.divide(y)
    if exact is not None:
        return exact
    a, b = x.as_int(), y.as_int()
    if a is None or not b:
        raise Unknown
    return poly(trunc(Fraction(a, b)))


def _remainder(x: Poly, y: Poly) -> Poly:
    a, b = x.as_int(), y.as_int()
    if a is None or b is None or a < 0 or b <= 0:
        raise Unknown
    return poly(a % b)


def _largest(x: Poly, y: Poly) -> Poly:
    if nonneg(x - y):
        return x
    if nonneg(y - x):
        return y
    raise Unknown


def _smallest(x: Poly, y: Poly) -> Poly:
    return -_largest(-x, -y)


def _known(x: Poly) -> int:
    n = x.as_int()
    if n is None:
        raise Unknown
    return n


def _numbers(view: NodeView, i: int) -> Array:
    ints = view.ints(i)
    return np.array([_known(p) for p in ints.flat], np.int64).reshape(ints.shape)


def _decided(holds: bool, fails: bool) -> Poly:
    if not (holds or fails):
        raise Unknown
    return poly(holds)


def _equal(x: Poly, y: Poly) -> Poly:
    return _decided(x == y, nonneg(x - y - 1) or nonneg(y - x - 1))


def _less(x: Poly, y: Poly) -> Poly:
    return _decided(nonneg(y - x - 1), nonneg(x - y))


def _less_or_equal(x: Poly, y: Poly) -> Poly:
    return ONE - _less(y, x)


def _operand(view: NodeView) -> Array:
    """The values of the first operand."""
    return view.ints(0)


def sizes(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The extents of the operand."""
    del shape
    dims = view.shape(0)[slice(view.attr("start", 0), view.attr("end"))]
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


def fold(function: Callable[..., Array]) -> Value:
    """A function of two operands, applied over all of them."""

    def rule(view: NodeView, shape: tuple[int, ...]) -> Array:
        del shape
        out = view.ints(0)
        for i in range(1, view.n_inputs):
            out = function(out, view.ints(i))
        return out

    return rule


def same(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The same elements in the output's shape."""
    return _operand(view).reshape(shape)


def cast(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The same numbers; as a bool, whether they are not 0."""
    value = _operand(view).reshape(shape)
    dtype = view.out_dtype()
    if dtype is not None and dtype.kind == "b":
        return each(lambda p: poly(int(_known(p) != 0)))(value)
    return value


def expand(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The elements repeated."""
    return np.broadcast_to(_operand(view), shape)


def gather(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The elements at known places."""
    del shape
    return np.take(_operand(view), _numbers(view, 1), axis=view.attr("axis", 0))


def concat(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The operands one behind the other."""
    del shape
    return np.concatenate([view.ints(i) for i in range(view.n_inputs)], axis=view.attr("axis", 1))


def piece(view: NodeView, shape: tuple[int, ...]) -> Array:
    """A part of each axis."""
    del shape
    value = _operand(view)
    starts, ends = view.int_list(1, "starts"), view.int_list(2, "ends")
    if starts is None or ends is None:
        raise Unknown
    axes = view.int_list(3, "axes") or list(range(len(starts)))
    steps = view.int_list(4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        value = value[(slice(None),) * (axis % value.ndim) + (slice(start, end, step),)]
    return value


def transpose(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The elements with the axes in another order."""
    del shape
    value = _operand(view)
    order: list[int] = list(view.attr("perm", range(value.ndim)[::-1]))
    return value.transpose(order)


def fill_of(view: NodeView) -> Any:
    """The number of a ConstantOfShape; None where there is no one number."""
    fill = np.asarray(view.attr("value", np.float32(0)))
    return fill.item() if fill.size == 1 else None


def filled(view: NodeView, shape: tuple[int, ...]) -> Array:
    """One number everywhere."""
    fill = fill_of(view)
    if fill is None:
        raise Unknown
    return np.full(shape, poly(fill), object)


def where(view: NodeView, shape: tuple[int, ...]) -> Array:
    """One of two numbers, where it is known which."""
    del shape
    return np.where(_numbers(view, 0).astype(bool), view.ints(1), view.ints(2))


def one_hot(view: NodeView, shape: tuple[int, ...]) -> Array:
    """Numbers at known places."""
    axis = int(view.attr("axis", -1)) % len(shape)
    off, on = view.ints(2).flat
    given = _numbers(view, 0)
    places = np.expand_dims(np.where(given < 0, given + shape[axis], given), axis)
    numbers = np.expand_dims(np.arange(shape[axis]), [d for d in range(len(shape)) if d != axis])
    return np.asarray(np.where(places == numbers, on, off), object)


def whole_product(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The product of all elements."""
    if int(np.prod(shape, dtype=np.int64)) != 1:
        raise Unknown
    total = ONE
    for p in _operand(view).flat:
        total = total * p
    return np.full(shape, total, object)


def element_count(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The product of the extents."""
    total = ONE
    for e in view.shape(0):
        total = total * e
    return np.full(shape, total, object)


add, subtract, multiply = fold(np.add), fold(np.subtract), fold(np.multiply)
quotient, remainder = fold(each(_quotient)), fold(each(_remainder))
largest, smallest = fold(each(_largest)), fold(each(_smallest))
equal, less, less_or_equal = fold(each(_equal)), fold(each(_less)), fold(each(_less_or_equal))
greater = fold(each(lambda x, y: _less(y, x)))
greater_or_equal = fold(each(lambda x, y: _less_or_equal(y, x)))
both = fold(each(lambda x, y: poly(_known(x) & _known(y))))
either = fold(each(lambda x, y: poly(_known(x) | _known(y))))


def negative(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The numbers with the other sign."""
    return -_operand(view).reshape(shape)


def opposite(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The other truth values."""
    return each(lambda p: poly(1 - _known(p)))(_operand(view).reshape(shape))
