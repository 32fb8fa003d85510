"""Gathers and scatters: places that come from another operand.

    Gather   y[a, j, b] = x[a, index[j], b]          ScatterND  y = x; y[index[j], b] = update[j, b]

Where the index operand is an affine function of its own position, a gather is a plain index map,
and the index operand is left out: its elements are known, and to permute it too would move twice.
"""

from collections.abc import Sequence

from pitc.ir.constant import is_zero
from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ZERO, Poly, bound, dim_index, nonneg, substitute
from pitc.ir.region import Region, Test, position
from pitc.passes.rules import few, values
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import Index, bare, dimension, one_axis, positional
from pitc.passes.rules.record import Adjoint, Items, Operator, PackRule, Zeros, always
from pitc.passes.rules.registry import rule


def _wrapped(at: Poly | None, size: Poly) -> Poly | None:
    """An index expression counted from the start; None where its sign is not known."""
    if at is None:
        return None
    if nonneg(bound(at, False)):
        return at
    return at + size if nonneg(-bound(at, True) - 1) else None


def _others(own: Poly, at: Poly) -> tuple[Region, ...]:
    """All places of a dimension but one."""
    return (Region({position(own - at - 1)}), Region({position(at - 1 - own)}))


def _masked(mask: str, own: Poly) -> tuple[Region, ...]:
    """The places that NonZero of the mask does not list."""
    return (Region({Test(mask, (own,), "nz", False)}),)


@rule(
    "Gather",
    assumes=(Assumes.INSIDE,),
    has=Operator(finite=always, value=values.gather, packs=PackRule.LOOK_UP, items=Items.ANY),
)
def gather(view: NodeView) -> list[TensorExpr]:
    """Slices along one axis, chosen by index."""
    shape, places = view.shape(0), view.shape(1)
    axis = one_axis(view, len(shape), 0)
    out = (*shape[:axis], *places, *shape[axis + 1 :])
    coords = bare(places, axis)
    known = view.affine(1)
    at = _wrapped(known and substitute(known, coords), shape[axis])
    tail = bare(shape[axis + 1 :], axis + len(places))
    index: Index = (*bare(shape[:axis]), at, *tail)
    own = dim_index(axis, shape[axis])
    absent: tuple[Region, ...] = ()
    mask = view.image(1)
    if at is not None and not at.digits():
        absent = _others(own, at)
    elif mask is not None and len(places) == 1:
        absent = _masked(mask, own)
    data = Read(0, index, computed=at is None, absent=absent)
    reads = (data,) if at is not None else (data, Read(1, coords))
    return [TensorExpr(out, reads, combine=Combine.MOVE)]


def _vectors(view: NodeView, places: Shape) -> Index:
    """Components of the index vectors, operand 1, as functions of the coordinates in front."""
    depth = places[-1].as_int() or 0
    known: Index = view.vector(1) or (None,) * depth
    whole = view.affine(1)
    if depth == 1 and whole is not None:
        known = (whole,)
    coords = (*bare(places[:-1]), ZERO)
    return tuple(None if k is None else substitute(k, coords) for k in known[:depth])


@rule(
    "GatherND",
    assumes=(Assumes.INSIDE,),
    has=Operator(packs=PackRule.LOOK_UP_VECTORS, items=Items.ANY),
)
def gather_nd(view: NodeView) -> list[TensorExpr]:
    """Slices chosen by index vectors; leading batch dimensions go along."""
    shape, places = view.shape(0), view.shape(1)
    batch = int(view.attr("batch_dims", 0))
    depth = places[-1].as_int() if places else None
    if depth is None or batch + depth > len(shape) or batch >= len(places):
        raise NoRule(f"index vectors of shape {places} into rank {len(shape)}")
    if shape[:batch] != places[:batch]:  # ONNX Runtime does not look
        raise NoRule(f"the batches of {shape} and {places} are not known to be the same")
    rest = shape[batch + depth :]
    out = (*places[:-1], *rest)
    lead = bare(places[:-1])
    found = [_wrapped(k, shape[batch + c]) for c, k in enumerate(_vectors(view, places))]
    index = (*bare(shape[:batch]), *found, *bare(rest, len(places) - 1))
    mask = view.image(1)
    absent: tuple[Region, ...] = ()
    if mask is not None and depth == 1 and batch == 0:
        absent = _masked(mask, dim_index(0, shape[0]))
    if None not in found:
        return [TensorExpr(out, (Read(0, index, absent=absent),), combine=Combine.MOVE)]
    # components that are affine look at the position of the vector itself
    ordered = {a.dim for p in found if p is not None for a in p.digits()}
    vectors = Read(1, (*lead, dim_index(len(out), places[-1])))
    return [
        TensorExpr(
            out,
            (Read(0, index, computed=True, absent=absent), vectors),
            (places[-1],),
            Combine.MOVE,
            Reducer.ORDERED,
            ordered=frozenset(ordered),
        )
    ]


@rule(
    "GatherElements",
    assumes=(Assumes.INSIDE,),
    has=Operator(items=Items.ANY, adjoint=Adjoint.ELEMENTS),
)
def gather_elements(view: NodeView) -> list[TensorExpr]:
    """y[i, j] = x[index[i, j], j] along axis 0."""
    shape, places = view.shape(0), view.shape(1)
    if len(shape) != len(places):
        raise NoRule(f"ranks {len(shape)} and {len(places)} differ")
    axis = one_axis(view, len(shape), 0)
    index = tuple(None if d == axis else p for d, p in enumerate(bare(places)))
    reads = (Read(0, index, computed=True), Read(1, bare(places)))
    return [TensorExpr(places, reads, combine=Combine.MOVE)]


REDUCTIONS = {
    "none": Reducer.ORDERED,  # of several updates of one place the last one stays
    "add": Reducer.SUM,
    "mul": Reducer.PROD,
    "max": Reducer.MAX,
    "min": Reducer.MIN,
}


def operand_has_zeros(view: NodeView) -> bool:
    """The first operand is known to have some."""
    return any(is_zero(f.constant) for f in view.graph[view.name(0)].fills)


@rule(
    "ScatterElements",
    "Scatter",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(
        few=few.of_written,
        zeros=Zeros(operand_has_zeros),
        items=Items.ANY,
        adjoint=Adjoint.SCATTERED_ELEMENTS,
    ),
)
def scatter_elements(view: NodeView) -> list[TensorExpr]:
    """A copy of x with y[index[i, j], j] = update[i, j] along axis 0."""
    shape, places = view.shape(0), view.shape(1)
    if len(shape) != len(places):
        raise NoRule(f"ranks {len(shape)} and {len(places)} differ")
    axis = one_axis(view, len(shape), 0)
    own = places == shape and view.affine(1) == dim_index(axis, shape[axis])
    if own and view.attr("reduction", "none") == "none":
        return [_overwritten(shape)]
    index = tuple(
        dim_index(len(shape), e) if d == axis else dim_index(d, shape[d])
        for d, e in enumerate(places)
    )
    tests = Region(
        position(e - 1 - dim_index(d, shape[d]))
        for d, e in enumerate(places)
        if d != axis and e != shape[d]
    )
    updates = (Read(1, index, within=tests), Read(2, index, within=tests))
    return [_scatter(view, shape, updates, (places[axis],), [axis])]


@rule(
    "ScatterND",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(zeros=Zeros(operand_has_zeros), items=Items.ANY, adjoint=Adjoint.SCATTERED_SLICES),
)
def scatter_nd(view: NodeView) -> list[TensorExpr]:
    """A copy of x with y[index[j]] = update[j], where index[j] names a slice."""
    shape, places, parts = view.shape(0), view.shape(1), view.shape(2)
    depth = places[-1].as_int() if places else None
    if depth is None or depth > len(shape):
        raise NoRule(f"index vectors of shape {places} into rank {len(shape)}")
    first, lead = len(shape), len(places) - 1
    if len(parts) != lead + len(shape) - depth:
        raise NoRule(f"updates of rank {len(parts)} do not fit")
    own = places[:-1] == shape[:depth] and _vectors(view, places) == bare(shape[:depth])
    if own and view.attr("reduction", "none") == "none":
        return [_overwritten(shape)]
    rows = bare(places[:-1], first)
    updates = (
        Read(1, (*rows, dim_index(first + lead, places[-1]))),
        Read(2, (*rows, *bare(shape[depth:], depth))),
    )
    return [_scatter(view, shape, updates, places, range(depth))]


def _overwritten(shape: Shape) -> TensorExpr:
    """The updates, one for every place at its own coordinates."""
    return TensorExpr(shape, (Read(2, bare(shape)),), combine=Combine.MOVE)


def _scatter(
    view: NodeView,
    shape: Shape,
    updates: tuple[Read, ...],
    reduced: Shape,
    ordered: Sequence[int],
) -> TensorExpr:
    mode = str(view.attr("reduction", "none"))
    if mode not in REDUCTIONS:
        raise NoRule(f"reduction {mode} is not known")
    return TensorExpr(
        shape,
        (Read(0, bare(shape)), *updates),
        reduced,
        Combine.SCATTER,
        REDUCTIONS[mode],
        ordered=frozenset(ordered),
    )


def _off_is_zero(view: NodeView) -> bool:
    """The number at all other places is 0, as far as is known."""
    numbers = view.array(2)
    return numbers is None or (numbers.size > 0 and is_zero(numbers.reshape(-1)[0].item()))


@rule(
    "OneHot",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(
        finite=always,
        value=values.one_hot,
        few=few.of_one_hot,
        zeros=Zeros(_off_is_zero, mostly=True),
        items=Items.ANY,
    ),
)
def one_hot(view: NodeView) -> list[TensorExpr]:
    """y[i, d] = on if index[i] == d, else off; index may count from the end."""
    shape = view.shape(0)
    depth = view.ints(1).reshape(-1)
    if len(depth) != 1:
        raise NoRule(f"{len(depth)} depths")
    axis = dimension(int(view.attr("axis", -1)), len(shape) + 1)
    out = (*shape[:axis], depth[0], *shape[axis:])
    index = tuple(dim_index(d + (d >= axis), e) for d, e in enumerate(shape))
    reads = (Read(0, index), Read(2, (None,), computed=True))
    return [TensorExpr(out, reads, combine=Combine.OPAQUE, ordered=frozenset({axis}))]


@rule(
    "Compress",
    assumes=(),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.MOVED),
)
def compress(view: NodeView) -> list[TensorExpr]:
    """The slices, or elements, whose condition holds: how many there are is data."""
    shape, flags = view.shape(0), view.shape(1)
    if view.attr("axis") is None:
        whole = bare(shape, 1)
        out: Shape = (view.fresh(),)
        reads = (Read(0, whole), Read(1, bare(flags, 1 + len(shape)), sizing=True))
        ordered, reduced = 0, (*shape, *flags)
    else:
        ordered = one_axis(view, len(shape), 0)
        out = tuple(view.fresh() if d == ordered else e for d, e in enumerate(shape))
        line = dim_index(len(shape), shape[ordered])
        index = tuple(line if d == ordered else p for d, p in enumerate(bare(shape)))
        reads = (Read(0, index), Read(1, bare(flags, len(shape) + 1), sizing=True))
        reduced = (shape[ordered], *flags)
    return [positional(out, reads, reduced, [ordered])]


@rule(
    "TensorScatter",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=always, items=Items.ANY),
)
def tensor_scatter(view: NodeView) -> list[TensorExpr]:
    """A cache with new rows written from a place of each sequence on: cache, update, places."""
    shape, parts = view.shape(0), view.shape(1)
    axis = one_axis(view, len(shape), -2)
    if len(parts) != len(shape) or axis == 0:
        raise NoRule(f"ranks {len(shape)} and {len(parts)}, axis {axis}")
    line = dim_index(len(shape), parts[axis])
    index = tuple(line if d == axis else p for d, p in enumerate(bare(shape)))
    reads = [Read(0, bare(shape)), Read(1, index)]
    if view.has(2):
        reads.append(Read(2, (dim_index(0, shape[0]),)))
    return [positional(shape, reads, (parts[axis],), [axis])]
