"""Integer values known as symbols: small tensors by element, and affine functions of the index.

Small tensors are what exporters compute shapes with; they are numpy object arrays of polynomials.
Affine values (Range, Unsqueeze, Add, ...) turn gathers by computed indices into index maps and
comparisons into position tests.
"""

from collections.abc import Callable

import numpy as np

from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import Array, Graph, NodeView, NoRule
from pitc.ir.index import ONE, Poly, bound, dim_index, nonneg, poly, substitute
from pitc.ir.region import Region, Test, position, region

SMALL_VALUE = 64  # elements
MAX_AFFINE_RANK = 4


class _Unknown(Exception):
    """The value cannot be said in symbols."""


# --- small tensors -------------------------------------------------------------------------------


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
    """A size fits in 32 bits; a number must fit in the type."""
    n = p.as_int()
    if dtype.kind == "b":
        return n in (0, 1)
    if n is None:
        return dtype.itemsize >= 4
    info = np.iinfo(dtype)
    return int(info.min) <= n <= int(info.max)


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
    axes, steps = view.int_list(3, "axes") or [0], view.int_list(4) or [1]
    if value.ndim != 1 or axes not in ([0], [-1]) or starts is None or ends is None:
        raise _Unknown
    return value[slice(starts[0], ends[0], steps[0])]


def _filled(view: NodeView, shape: tuple[int, ...]) -> Array:
    fill = np.asarray(view.attr("value", np.zeros(1, np.float32))).reshape(-1)
    return np.full(shape, poly(fill[0]), object)


def _where(view: NodeView, shape: tuple[int, ...]) -> Array:
    del shape
    return np.where(_numbers(view, 0).astype(bool), view.ints(1), view.ints(2))


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
    "ConstantOfShape": _filled,
    "Where": _where,
    "ReduceProd": _product,
}


# --- affine functions ----------------------------------------------------------------------------


def affine_of_array(x: Array) -> Poly | None:
    """A constant integer array as an affine function of its index, if it is one."""
    if x.size == 0 or x.ndim > MAX_AFFINE_RANK:
        return None
    first = int(x.reshape(-1)[0])
    value, fit = poly(first), np.full(x.shape, first, np.int64)
    for d in range(x.ndim):
        if x.shape[d] < 2:
            continue
        step = int(np.take(x, 1, d).reshape(-1)[0]) - first
        value = value + dim_index(d, poly(x.shape[d])) * step
        places = [-1 if k == d else 1 for k in range(x.ndim)]
        fit = fit + step * np.arange(x.shape[d]).reshape(places)
    return value if np.array_equal(fit, x) else None


def affine_value(view: NodeView, expr: TensorExpr) -> Poly | None:
    """The first output as an affine function of its index; None when it is not known to be one."""
    dtype = view.out_dtype(0)
    if dtype is None or dtype.kind != "i" or dtype.itemsize < 4 or view.domain != "":
        return None
    try:
        if view.op == "Range":
            start, step = (view.ints(i).reshape(-1)[0] for i in (0, 2))
            return poly(start + dim_index(0, expr.shape[0]) * step)
        if view.op == "ConstantOfShape":
            fill = np.asarray(view.attr("value", np.zeros(1, np.float32))).reshape(-1)
            return poly(fill[0])
    except NoRule:
        return None
    if expr.combine is Combine.MOVE:
        return _moved_affine(view, expr)
    rule = AFFINE.get(view.op)
    if rule is None or expr.combine is not Combine.MAP:
        return None
    operands = [at_read(view.graph, view.name(r.operand), r) for r in expr.reads]
    known = [p for p in operands if p is not None]
    return rule(known) if known and len(known) == len(operands) else None


def at_read(graph: Graph, name: str, read: Read) -> Poly | None:
    """The affine value of an operand at the places where the iteration points read it."""
    value, shape = graph.affine.get(name), graph.shapes.get(name)
    if value is None or shape is None:
        return None
    return substitute(value, read.index, shape)


def _moved_affine(view: NodeView, expr: TensorExpr) -> Poly | None:
    """Through an operand that every output element comes from (not Concat, Pad)."""
    read = expr.reads[0] if expr.reads else None
    if read is None or read.operand != 0 or read.within:
        return None
    return at_read(view.graph, view.name(0), read)


def _affine_product(xs: list[Poly]) -> Poly | None:
    """A product with at most one factor that moves."""
    return xs[0] * xs[1] if not (xs[0].digits() and xs[1].digits()) else None


def _affine_largest(xs: list[Poly]) -> Poly | None:
    if len(xs) != 2:
        return xs[0] if len(xs) == 1 else None
    d = xs[0] - xs[1]
    if nonneg(bound(d, False)):
        return xs[0]
    return xs[1] if nonneg(-bound(d, True)) else None


def _affine_smallest(xs: list[Poly]) -> Poly | None:
    least = _affine_largest([-x for x in xs])
    return None if least is None else -least


AFFINE: dict[str, Callable[[list[Poly]], Poly | None]] = {
    "Add": lambda xs: xs[0] + xs[1],
    "Sub": lambda xs: xs[0] - xs[1],
    "Mul": _affine_product,
    "Neg": lambda xs: -xs[0],
    "Cast": lambda xs: xs[0],
    "Identity": lambda xs: xs[0],
    "Max": _affine_largest,
    "Min": _affine_smallest,
}


def vector_value(view: NodeView, expr: TensorExpr) -> tuple[Poly | None, ...] | None:
    """Affine value of each last-axis component of an index tensor: a Concat of coordinates."""
    if view.op != "Concat" or view.domain != "" or not expr.shape:
        return None
    if int(view.attr("axis", 1)) not in (-1, len(expr.shape) - 1):
        return None
    parts = []
    for i in range(view.n_inputs):
        shape = view.graph.shapes.get(view.name(i))
        if not shape or shape[-1] != ONE:
            return None
        parts.append(view.graph.affine.get(view.name(i)))
    return tuple(parts) if any(p is not None for p in parts) else None


# --- comparisons ---------------------------------------------------------------------------------

NONNEGATIVE: dict[str, Callable[[Poly], list[Poly]]] = {
    "Equal": lambda d: [d, -d],
    "GreaterOrEqual": lambda d: [d],
    "Greater": lambda d: [d - 1],
    "LessOrEqual": lambda d: [-d],
    "Less": lambda d: [-d - 1],
}


def comparison(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """A comparison of two affine values as facts: where positions make it 1, and where 0."""
    if view.op not in NONNEGATIVE or view.domain != "" or len(expr.reads) != 2:
        return []
    x, y = (at_read(view.graph, view.name(r.operand), r) for r in expr.reads)
    if x is None or y is None:
        return []
    tests = [position(p) for p in NONNEGATIVE[view.op](x - y)]
    opposites: list[Test] = [t for t in (t.negate() for t in tests) if t is not None]
    cases = [(region(tests), 1), *((region([t]), 0) for t in opposites)]
    return [(r, c) for r, c in cases if r is not None]


def learn(view: NodeView, exprs: tuple[TensorExpr | None, ...]) -> None:
    """Note what is known of the node's first output as symbols."""
    graph, out, expr = view.graph, view.out(0), exprs[0] if exprs else None
    if not out:
        return
    value = small_value(view, expr)
    if value is not None:
        graph.values[out] = value
    if expr is None:
        return
    affine = affine_value(view, expr)
    if affine is None and value is not None and value.size == 1:
        affine = poly(value.reshape(-1)[0])
    if affine is not None:
        graph.affine[out] = affine
    else:
        vector = vector_value(view, expr)
        if vector is not None:
            graph.vectors[out] = vector
    _learn_image(view, expr)


def _learn_image(view: NodeView, expr: TensorExpr) -> None:
    """NonZero of a vector holds its live places; so does whatever only moves or converts those."""
    graph, out = view.graph, view.out(0)
    if view.op == "NonZero" and view.domain == "":
        if view.has(0) and len(graph.shapes.get(view.name(0)) or ()) == 1:
            graph.images[out] = view.name(0)
        return
    if not view.has(0) or not expr.reads or expr.reads[0].operand != 0:
        return
    dtype = view.out_dtype(0)
    converts = view.op == "Cast" and dtype is not None and dtype.kind == "i" and dtype.itemsize >= 4
    moves = expr.combine is Combine.MOVE and not expr.reads[0].within
    if (converts or moves) and view.domain == "" and (mask := view.image(0)) is not None:
        graph.images[out] = mask


def learn_constants(graph: Graph) -> None:
    """Affine functions that integer constants are."""
    for name in graph.constants():
        dtype = graph.dtypes.get(name)
        if dtype is None or dtype.kind != "i" or name not in graph.uses:
            continue
        x = graph.array(name)
        if x is not None and (value := affine_of_array(x)) is not None:
            graph.affine[name] = value
