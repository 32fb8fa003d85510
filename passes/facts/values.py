"""Small integer tensors as symbols, element by element: what exporters compute shapes with.

They are numpy object arrays of polynomials; bools are 0 and 1.
"""

from collections.abc import Callable

import numpy as np

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Array, NodeView, NoRule
from pitc.ir.index import ONE, Poly, fits, nonneg, poly

SMALL_VALUE = 64  # elements


class _Unknown(Exception):
    """The value cannot be said in symbols."""


def small_value(view: NodeView, expr: TensorExpr | None) -> Array | None:
    """The symbolic value of the node's first output, computed on arrays of polynomials.

    Args:
        view: A node whose operands' values are known or not.
        expr: The output's expression, when it has one: its shape is needed by some operators.

    Returns:
        An object array of polynomials (0 and 1 for bools), or None.
    """
    rule = VALUES.get(view.op) if view.domain == "" else None
    dtype = view.out_dtype(0)
    if rule is None or expr is None or dtype is None or dtype.kind not in "iub":
        return None
    sizes = [e.as_int() for e in expr.shape]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes) or int(np.prod(known, dtype=np.int64)) > SMALL_VALUE:
        return None
    try:
        value = np.asarray(rule(view, tuple(known)), object)
    except (NoRule, _Unknown, ValueError, IndexError):
        return None
    if value.shape != tuple(known) or not all(_fits(p, dtype) for p in value.reshape(-1)):
        return None
    return value


def _fits(p: Poly, dtype: np.dtype) -> bool:
    """True where a type can hold the number for all sizes: it has not wrapped around."""
    if dtype.kind == "b":
        return p.as_int() in (0, 1)
    info = np.iinfo(dtype)
    return fits(p, int(info.min), int(info.max))


def _each(function: Callable[..., Poly]) -> Callable[..., Array]:
    def apply(*arrays: Array) -> Array:
        joint = np.broadcast(*arrays)
        out = np.empty(joint.shape, object)
        for i, xs in zip(np.ndindex(joint.shape), joint, strict=True):
            out[i] = function(*xs)
        return out

    return apply


def _quotient(x: Poly, y: Poly) -> Poly:
    """Integer division as ONNX has it, towards zero."""
    exact = x.divide(y)
    if exact is not None:
        return exact
    a, b = x.as_int(), y.as_int()
    if a is None or not b:
        raise _Unknown
    q = abs(a) // abs(b)
    return poly(q if (a < 0) == (b < 0) else -q)


def _remainder(x: Poly, y: Poly) -> Poly:
    a, b = x.as_int(), y.as_int()
    if a is None or b is None or a < 0 or b <= 0:
        raise _Unknown
    return poly(a % b)


def _largest(x: Poly, y: Poly) -> Poly:
    if nonneg(x - y):
        return x
    if nonneg(y - x):
        return y
    raise _Unknown


def _smallest(x: Poly, y: Poly) -> Poly:
    return -_largest(-x, -y)


def _known(x: Poly) -> int:
    n = x.as_int()
    if n is None:
        raise _Unknown
    return n


def _numbers(view: NodeView, i: int) -> Array:
    ints = view.ints(i)
    return np.array([_known(p) for p in ints.reshape(-1)], np.int64).reshape(ints.shape)


def _decide(holds: Callable[[Poly], bool], fails: Callable[[Poly], bool]) -> Callable[..., Array]:
    """A comparison of x and y by the sign of x - y."""

    def compare(x: Poly, y: Poly) -> Poly:
        d = x - y
        if holds(d):
            return ONE
        if fails(d):
            return poly(0)
        raise _Unknown

    return _each(compare)


_EQUAL = _decide(lambda d: not d.terms, lambda d: nonneg(d - 1) or nonneg(-d - 1))
_LESS = _decide(lambda d: nonneg(-d - 1), nonneg)
_LESS_EQUAL = _decide(lambda d: nonneg(-d), lambda d: nonneg(d - 1))


def _sizes(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    operand = view.shape(0)
    dims = operand[slice(view.attr("start", 0), view.attr("end"))]
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


def _fold(function: Callable[..., Array]) -> Callable[[NodeView, tuple[int, ...]], Array]:
    """A function of two operands, applied over all of them."""

    def rule(view: NodeView, shape: tuple[int, ...]) -> Array:
        del shape
        out = view.ints(0)
        for i in range(1, view.n_inputs):
            out = function(out, view.ints(i))
        return out

    return rule


def _same(view: NodeView, shape: tuple[int, ...]) -> Array:
    """The same elements in the output's shape."""
    return view.ints(0).reshape(shape)


def _cast(view: NodeView, shape: tuple[int, ...]) -> Array:
    value = view.ints(0).reshape(shape)
    dtype = view.out_dtype(0)
    if dtype is not None and dtype.kind == "b":
        return _each(lambda p: poly(int(_known(p) != 0)))(value)
    return value


def _expand(view: NodeView, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(view.ints(0), shape)


def _gather(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    return np.take(view.ints(0), _numbers(view, 1), axis=view.attr("axis", 0))


def _concat(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    return np.concatenate([view.ints(i) for i in range(view.n_inputs)], axis=view.attr("axis", 1))


def _slice(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    value = view.ints(0)
    starts, ends = view.int_list(1, "starts"), view.int_list(2, "ends")
    if starts is None or ends is None:
        raise _Unknown
    axes = view.int_list(3, "axes") or list(range(len(starts)))
    steps = view.int_list(4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        value = value[(slice(None),) * (axis % value.ndim) + (slice(start, end, step),)]
    return value


def _transpose(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    value = view.ints(0)
    order: list[int] = list(view.attr("perm", range(value.ndim)[::-1]))
    return value.transpose(order)


def _filled(view: NodeView, shape: tuple[int, ...]) -> Array:
    fill = np.asarray(view.attr("value", np.zeros(1, np.float32))).reshape(-1)
    return np.full(shape, poly(fill[0]), object)


def _where(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    return np.where(_numbers(view, 0).astype(bool), view.ints(1), view.ints(2))


def _one_hot(view: NodeView, shape: tuple[int, ...]) -> Array:
    axis = int(view.attr("axis", -1)) % len(shape)
    off, on = view.ints(2).reshape(-1)
    given = _numbers(view, 0)
    places = np.expand_dims(np.where(given < 0, given + shape[axis], given), axis)
    numbers = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.asarray(np.where(places == numbers, on, off), object)


def _product(view: NodeView, shape: tuple[int, ...]) -> Array:
    if int(np.prod(shape, dtype=np.int64)) != 1:
        raise _Unknown
    total = ONE
    for p in view.ints(0).reshape(-1):
        total = total * p
    return np.full(shape, total, object)


def _element_count(view: NodeView, shape: tuple[int, ...]) -> Array:
    total = ONE
    for e in view.shape(0):
        total = total * e
    return np.full(shape, total, object)


VALUES: dict[str, Callable[[NodeView, tuple[int, ...]], Array]] = {
    "Shape": _sizes,
    "Size": _element_count,
    "Add": _fold(np.add),
    "Sub": _fold(np.subtract),
    "Mul": _fold(np.multiply),
    "Div": _fold(_each(_quotient)),
    "Mod": _fold(_each(_remainder)),
    "Neg": lambda view, shape: -view.ints(0).reshape(shape),
    "Max": _fold(_each(_largest)),
    "Min": _fold(_each(_smallest)),
    "Equal": _fold(_EQUAL),
    "Less": _fold(_LESS),
    "LessOrEqual": _fold(_LESS_EQUAL),
    "Greater": _fold(lambda x, y: _LESS(y, x)),
    "GreaterOrEqual": _fold(lambda x, y: _LESS_EQUAL(y, x)),
    "Not": lambda view, shape: _each(lambda p: poly(1 - _known(p)))(view.ints(0).reshape(shape)),
    "And": _fold(_each(lambda x, y: poly(_known(x) & _known(y)))),
    "Or": _fold(_each(lambda x, y: poly(_known(x) | _known(y)))),
    "Cast": _cast,
    "Identity": _same,
    "Squeeze": _same,
    "Unsqueeze": _same,
    "Reshape": _same,
    "Flatten": _same,
    "Expand": _expand,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Transpose": _transpose,
    "ConstantOfShape": _filled,
    "Where": _where,
    "OneHot": _one_hot,
    "ReduceProd": _product,
}
