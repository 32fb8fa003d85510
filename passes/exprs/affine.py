"""Integer values as affine functions of their own index (Range, Unsqueeze, Add, ...).

They turn gathers by computed indices into index maps, and comparisons into position tests.
"""

import numpy as np

from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import Array, Graph, NodeView, NoRule
from pitc.ir.index import ONE, Poly, dim_index, fits, poly, substitute
from pitc.ir.region import Region, Test, position, region
from pitc.passes.exprs.values import small_value
from pitc.passes.rules.affine import Order
from pitc.passes.rules.record import operator_of

MAX_AFFINE_RANK = 4
LONGEST = 1 << 62
LONG = np.dtype(np.int64)


def affine_of_array(x: Array) -> Poly | None:
    """A constant integer array as an affine function of its index, if it is one."""
    if x.size == 0 or x.ndim > MAX_AFFINE_RANK:
        return None
    first = int(x.flat[0])
    spread = poly(0)
    for d, size in enumerate(x.shape):
        if size > 1:
            step = int(np.take(x, 1, d).flat[0]) - first
            spread = spread + dim_index(d, poly(size)) * step
    value = spread + first
    # numbers of a type would wrap around
    if not (in_type(value, x.dtype) and in_type(value, LONG) and in_type(spread, LONG)):
        return None
    fit = value.evaluate({}, dict(enumerate(np.ix_(*map(np.arange, x.shape)))))
    return value if (np.asarray(fit).astype(x.dtype) == x).all() else None


def affine_value(view: NodeView, expr: TensorExpr) -> Poly | None:
    """The first output as an affine function of its index; None when it is not known to be one.

    The function is one of integers; an operator computes with integers of a type. Operands are what
    is said of them, so a result that fits in the type has not wrapped around.
    """
    dtype = view.out_dtype()
    if dtype is None or dtype.kind not in "iu":
        return None
    value = _computed(view, expr)
    return value if value is not None and in_type(value, dtype) else None


def in_type(p: Poly, dtype: np.dtype) -> bool:
    """True where every value of a polynomial is a number of an integer type."""
    info = np.iinfo(dtype)
    return fits(p, int(info.min), int(info.max))


def _computed(view: NodeView, expr: TensorExpr) -> Poly | None:
    operator = operator_of(view)
    try:
        if operator.positions is not None:
            start, step = (view.int_scalar(i) for i in operator.positions)
            (size,) = expr.shape
            return poly(start + dim_index(0, size) * step)
        if operator.fill is not None:
            fill = operator.fill(view)
            return None if fill is None else poly(fill)
    except NoRule:
        return None
    if expr.combine is Combine.MOVE:
        return _moved_affine(view, expr)
    rule = operator.affine
    if rule is None:
        return None
    operands = [at_read(view.graph, view.name(r.operand), r) for r in expr.reads]
    known = [p for p in operands if p is not None]
    return rule(known) if len(known) == len(operands) else None


def at_read(graph: Graph, name: str, read: Read) -> Poly | None:
    """The affine value of an operand at the places where the iteration points read it."""
    value = graph[name].affine
    return None if value is None else substitute(value, read.index, graph[name].shape)


def _moved_affine(view: NodeView, expr: TensorExpr) -> Poly | None:
    """Through an operand that every output element comes from (not Concat, Pad)."""
    read = _moved_read(expr)
    return None if read is None else at_read(view.graph, view.name(read.operand), read)


def _moved_read(expr: TensorExpr) -> Read | None:
    """The read of a MOVE that every element comes from: not always of operand 0, as Concat leaves
    out empty operands, all of them perhaps.
    """
    read = expr.reads[0] if expr.combine is Combine.MOVE and expr.reads else None
    return None if read is None or read.within else read


def vector_value(view: NodeView, expr: TensorExpr) -> tuple[Poly | None, ...] | None:
    """Affine value of each last-axis component of an index tensor: a Concat of coordinates."""
    if (view.domain, view.op) != ("", "Concat"):
        return None
    if int(view.attr("axis", 1)) not in (-1, len(expr.shape) - 1):
        return None
    if any(view.shape(i)[-1] != ONE for i in range(view.n_inputs)):
        return None
    parts = [view.affine(i) for i in range(view.n_inputs)]
    return tuple(parts) if any(p is not None for p in parts) else None


def comparison(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """A comparison of two affine values, or of the magnitude of one, as facts: where positions make
    it 1, and where 0.
    """
    order = operator_of(view).order
    if order is None:
        return []
    x, y = (at_read(view.graph, view.name(r.operand), r) for r in expr.reads)
    if x is None or y is None:
        return _window(view, expr, order, x, y)
    return _decided(order.nonnegative(x - y), 1)


def diagonal(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """Ones on a diagonal and zeros beside it, as facts of positions."""
    at = operator_of(view).diagonal
    if at is None or len(expr.shape) != 2:
        return []
    row, column = (dim_index(d, e) for d, e in enumerate(expr.shape))
    return _decided(Order(None, equal=True).nonnegative(column - row - at(view)), 1)


def zero_place(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """Numbers that positions become, as a fact: 0 where they are (the distance to the own key).

    Cast (k - q)   ->   0 where k - q >= 0 and q - k >= 0
    """
    out = view.out_dtype()
    if not operator_of(view).converts or out is None or out.kind != "f":
        return []
    place = at_read(view.graph, view.name(0), expr.reads[0])
    if place is None or not place.digits() or not fits(place, -LONGEST, LONGEST):
        return []
    where = region([position(place), position(-place)])
    return [] if where is None else [(where, 0)]


def _decided(differences: list[Poly], holds: int) -> list[tuple[Region, int]]:
    """`holds` where none of them is negative, the opposite where one is."""
    # positions are computed in 64 bits when the model runs; a difference may be one bit longer
    if not all(fits(d, -LONGEST, LONGEST) for d in differences):
        return []
    cases = [
        (region(map(position, differences)), holds),
        *((region([position(-d - 1)]), 1 - holds) for d in differences),
    ]
    return [(r, c) for r, c in cases if r is not None]


def threshold(view: NodeView, expr: TensorExpr) -> list[tuple[Region, int]]:
    """A comparison of an affine value with a run-time integer as facts: `d1 < lengths[d0]`."""
    order = operator_of(view).order
    if order is None:
        return []
    for k, below in ((0, order.below()), (1, order.turned().below())):
        place, other = at_read(view.graph, view.name(expr.reads[k].operand), expr.reads[k]), 1 - k
        name = view.name(expr.reads[other].operand)
        index = tuple(p for p in expr.reads[other].index if p is not None)
        if place is None or below is None or len(index) < len(expr.reads[other].index):
            continue
        more, holds = below
        # lengths, and what they are compared with, are 64-bit numbers
        if not (
            np.can_cast(np.dtype(view.graph[name].dtype), LONG) and in_type(place + more, LONG)
        ):
            continue
        name, index, moved = before_moves(view.graph, name, index)
        where = (*index, place + more)
        return [
            (Region({Test(name, where, "below", yes)}, moved), int(yes == holds))
            for yes in (True, False)
        ]
    return []


def before_moves(
    graph: Graph, name: str, index: tuple[Poly, ...]
) -> tuple[str, tuple[Poly, ...], int]:
    """The value, and the place in it, that an element of integers comes from, only moved or put
    into a wider type; and the bits of the values on the way, which a test of it rests on.
    """
    moved = 0
    while (expr := graph[name].expr) is not None and len(expr.reads) == 1:
        (read,), node = expr.reads, graph[name].producer
        assert node is not None
        view = NodeView(graph, node)
        if read.within or not (expr.combine is Combine.MOVE or _widens(view)):
            break
        places = [None if p is None else substitute(p, index, expr.extents) for p in read.index]
        known = tuple(p for p in places if p is not None)
        if len(known) != len(places):
            break
        moved |= graph.note_bit(name)
        name, index = view.name(read.operand), known
    return name, index, moved


def _widens(view: NodeView) -> bool:
    """True for a Cast of integers to a type that holds them all."""
    if not operator_of(view).converts:
        return False
    narrow = view.graph[view.name(0)].dtype
    return (
        narrow is not None
        and narrow.kind in "iu"
        and np.can_cast(narrow, np.dtype(view.out_dtype()))
    )


def _window(
    view: NodeView, expr: TensorExpr, order: Order, x: Poly | None, y: Poly | None
) -> list[tuple[Region, int]]:
    """|p| against an affine value: p and -p against it, e.g. the distance of a key."""
    known = y if x is None else x
    if order.less is None or known is None:
        return []
    read = expr.reads[0 if x is None else 1]
    p = _inside_abs(view.graph, view.name(read.operand), read)
    if p is None:
        return []
    sides = [q - known if x is None else known - q for q in (p, -p)]
    slack = [d for side in sides for d in order.nonnegative(side)]
    near = order.less == (x is None)  # it holds for small magnitudes: for both
    found = _decided(slack, 1) if near else _decided([-d - 1 for d in slack], 0)
    magnitude = view.graph.note_bit(view.name(read.operand))
    return [(Region(r, magnitude), holds) for r, holds in found]


def _inside_abs(graph: Graph, name: str, read: Read) -> Poly | None:
    """The affine value whose magnitude an operand is, where the iteration points read it."""
    node = graph[name].producer
    view = None if node is None else NodeView(graph, node)
    if view is None or (view.domain, view.op) != ("", "Abs"):
        return None
    value = at_read(graph, view.name(0), read)
    # the least number of a type has no magnitude in it
    return value if value is not None and in_type(-value, graph.dtype(name)) else None


def learn(view: NodeView) -> None:
    """Note what is known of the node's first output as symbols."""
    graph, out = view.graph, view.out()
    expr = graph[out].expr
    if expr is None:
        return
    ints, affine = small_value(view, expr), affine_value(view, expr)
    if ints is not None and ints.size == 1:
        affine = poly(ints.item())
    graph[out].ints, graph[out].affine = ints, affine
    graph[out].vectors = vector_value(view, expr)
    graph[out].live_places_of = _image(view, expr)


def _image(view: NodeView, expr: TensorExpr) -> str | None:
    """NonZero of a vector holds its live places; so does whatever only moves or converts those."""
    if operator_of(view).live_places:
        return view.name(0) if view.rank(0) == 1 else None
    moved = _moved_read(expr)
    if moved is not None:
        return view.image(moved.operand)
    converts = operator_of(view).converts and view.out_dtype() in (np.int32, np.int64)
    return view.image(0) if converts else None


def learn_constants(graph: Graph) -> None:
    """Affine functions that integer constants are."""
    for name in graph.constants():
        dtype = graph[name].dtype
        x = graph.array(name) if dtype is not None and dtype.kind in "iu" else None
        if x is not None:
            graph[name].affine = affine_of_array(x)
