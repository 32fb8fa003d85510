"""Parts that rules are built from: shapes, index maps and operand reads."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, ZERO, Poly, dim_index, nonneg, poly
from pitc.ir.region import EVERYWHERE, Region, position, truth

Joined = Callable[[Sequence[Poly]], Poly]
Index = tuple[Poly | None, ...]


def bare(shape: Shape, first: int = 0) -> tuple[Poly, ...]:
    """The index (axis first, axis first+1, ...) of a tensor that is read point by point."""
    return tuple(dim_index(first + d, e) for d, e in enumerate(shape))


def joint_extent(extents: Iterable[Poly]) -> Poly:
    """The extent of an axis whose operands agree: a number when one of them is a number."""
    known = list(extents)
    numbers = [e for e in known if e.as_int() is not None]
    if len(set(numbers)) > 1:
        raise NoRule(
            f"extents {numbers[0]} and {next(e for e in numbers if e != numbers[0])} differ"
        )
    return numbers[0] if numbers else min(known, key=lambda e: str(e).count("?"))


def broadcast_extent(extents: Iterable[Poly], joined: Joined) -> Poly:
    """The extent of a dimension whose operands broadcast; a new one where they may not agree."""
    known = list(dict.fromkeys(e for e in extents if e != ONE))
    if len(known) < 2:
        return known[0] if known else ONE
    numbers = [e for e in known if e.as_int() is not None]
    if len(numbers) > 1:
        raise NoRule(f"extents {numbers[0]} and {numbers[1]} do not broadcast")
    sure = numbers or [e for e in known if nonneg(e - 2)]
    return sure[0] if sure else joined(known)


def broadcast_shape(shapes: Sequence[Shape], joined: Joined) -> Shape:
    """Shape of operands that broadcast, aligned at the last dimension."""
    rank = max(map(len, shapes), default=0)
    columns = ([s[len(s) - k] for s in shapes if len(s) >= k] for k in range(rank, 0, -1))
    return tuple(broadcast_extent(column, joined) for column in columns)


def broadcast_index(shape: Shape, out: Shape) -> Index:
    """Index of an operand that broadcasts to `out`; None where an extent may or may not be 1."""
    first = len(out) - len(shape)
    if first < 0:
        raise NoRule(f"an operand of rank {len(shape)} does not broadcast to rank {len(out)}")
    return tuple(aligned(first + d, e, out[first + d]) for d, e in enumerate(shape))


def aligned(axis: int, extent: Poly, size: Poly) -> Poly | None:
    """Index of an operand dimension that broadcasts along an axis of the given size."""
    if extent == ONE:
        return ZERO
    return dim_index(axis, size) if extent == size else None


def broadcast_read(operand: int, shape: Shape, out: Shape) -> Read:
    """The read of an operand that broadcasts to the output."""
    return Read(operand, broadcast_index(shape, out))


def move(shape: Shape, index: Index, absent: tuple[Region, ...] = ()) -> TensorExpr:
    """An output whose points are elements of operand 0."""
    return TensorExpr(shape, (Read(0, index, absent=absent),), combine=Combine.MOVE)


def positional(
    shape: Shape, reads: Iterable[Read], reduced: Shape, places: Iterable[int]
) -> TensorExpr:
    """An unknown function of everything that is read.

    Args:
        shape: The output's extents.
        reads: Operand reads.
        reduced: Extents of the axes that each point reads whole, in an order that matters.
        places: Axes whose positions matter too.
    """
    kind = Combine.OPAQUE, Reducer.ORDERED
    return TensorExpr(shape, tuple(reads), reduced, *kind, ordered=frozenset(places))


def inside(index: Poly, size: Poly) -> Region:
    """The tests 0 <= index < size, those left out that always hold."""
    tests = (position(index), position(size - 1 - index))
    return Region(t for t in tests if truth(t) is not True)


def one_axis(view: NodeView, rank: int, default: int = -1) -> int:
    """The node's `axis` attribute as a dimension of a tensor of that rank."""
    return dimension(int(view.attr("axis", default)), rank)


def dimension(axis: int, rank: int) -> int:
    """A possibly negative axis as a dimension."""
    if not -rank <= axis < rank:
        raise NoRule(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def dimensions(axes: Iterable[int], rank: int) -> list[int]:
    """Possibly negative axes as different dimensions, in ascending order."""
    found = sorted(dimension(a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise NoRule(f"an axis occurs twice in {found}")
    return found


def line_index(shape: Shape, axes: Sequence[int], out: Sequence[int | None], first: int) -> Index:
    """Index of a tensor that is read in whole lines along some dimensions.

    Args:
        shape: Its extents.
        axes: The dimensions that are read whole: reduced axes `first`, `first + 1`, ...
        out: For each dimension the output dimension that it is read at; not looked at for `axes`.
        first: Number of the first reduced axis.
    """
    places: list[Poly | None] = []
    for d, e in enumerate(shape):
        at = first + axes.index(d) if d in axes else out[d]
        places.append(None if at is None else dim_index(at, e))
    return tuple(places)


def whole_lines(shape: Shape, axes: Sequence[int], within: Region = EVERYWHERE) -> Read:
    """Operand 0, of the output's shape, read in whole lines along some dimensions.

    Args:
        shape: Its extents.
        axes: The dimensions that are read whole: the first reduced axes.
        within: Tests for the steps that read it.
    """
    rank = len(shape)
    return Read(0, line_index(shape, axes, range(rank), rank), within=within)


def over_lines(
    shape: Shape,
    axes: Sequence[int],
    combine: Combine,
    reducer: Reducer,
    keep: bool = True,
) -> TensorExpr:
    """Operand 0 reduced over whole lines along some dimensions.

    Args:
        shape: Extents of operand 0.
        axes: Reduced dimensions.
        combine: What a point does.
        reducer: What happens along the lines.
        keep: Reduced dimensions stay with extent 1.
    """
    kept = [d for d in range(len(shape)) if keep or d not in axes]
    places: list[int | None] = [kept.index(d) if d in kept else None for d in range(len(shape))]
    out = tuple(ONE if d in axes else shape[d] for d in kept)
    read = Read(0, line_index(shape, axes, places, len(out)))
    return TensorExpr(out, (read,), tuple(shape[d] for d in axes), combine, reducer)


def row_normal(
    shape: Shape, axes: Sequence[int], combine: Combine, reads: tuple[Read, ...] = ()
) -> TensorExpr:
    """Operand 0 normalised over lines: every output point reads its whole line.

    Args:
        shape: Extents of operand 0 and of the output.
        axes: Normalised dimensions.
        combine: SOFTMAX or NORMALISE.
        reads: Further operands, over the output's dimensions.
    """
    lines = whole_lines(shape, axes)
    reduced = tuple(shape[d] for d in axes)
    normal = tuple(d for d in axes if shape[d] != ONE)
    return TensorExpr(shape, (lines, *reads), reduced, combine, Reducer.NORMALISE, normal)


def scalar_constant(view: NodeView, i: int) -> float | int | None:
    """The constant value of a one-element input; None when it is not known."""
    x = view.array(i)
    return x.reshape(-1)[0].item() if x is not None and x.size == 1 else None


def check_finite(view: NodeView, *names: str) -> None:
    """Refuse a node whose scale factors are not finite: 0 times such a factor is not 0."""
    for name in names:
        value = view.attr(name, 1.0)
        if not np.isfinite(value):
            raise NoRule(f"{name} is {value}")


def static(extents: Iterable[Poly], what: str) -> list[int]:
    """Extents as integers.

    Args:
        extents: Extents that must not depend on sizes.
        what: Their name for the refusal.
    """
    found = []
    for e in extents:
        n = e.as_int()
        if n is None:
            raise NoRule(f"{what} has the symbolic extent {e}")
        found.append(n)
    return found


def numbers(values: Iterable[int]) -> Shape:
    """Integers as extents."""
    return tuple(map(poly, values))
