"""Layouts: how a value's dimensions split into coordinates of a domain and the rest, and how a node
reads its operands then.

A value whose coordinates are gathered into one packed axis has the packed shape `[t, rest...]`,
with one dimension for each remaining digit, in order. `[b, h, s, d]` with coordinates (b, s) packs
to `[t, h, d]`, and so does `[b, s, h, d]`: a Transpose between the two disappears.

The first dimension of extent 1 ahead of the coordinates is dropped: it stands where a batch does,
but has no digit and so is no coordinate. `[1, h, s, d]` with the coordinate s packs to `[t, h, d]`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pitc.ir.expr import Read, Shape, TensorExpr
from pitc.ir.index import ONE, ZERO, Coords, Digit, Poly, bare_dim, digit, dim_index, substitute
from pitc.passes.regions.domain import Domain


@dataclass(frozen=True, slots=True)
class Factor:
    """One digit of a dimension: a coordinate (`coordinate` is its number) or a part of the rest
    (None).
    """

    digit: Digit
    coordinate: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value's dimensions split.

    Args:
        factors: Per dimension its digits, outermost first; none where it is dropped.
        rank: Number of coordinates of the domain.
    """

    factors: tuple[tuple[Factor, ...], ...]
    rank: int

    @property
    def rest(self) -> tuple[Digit, ...]:
        """The digits that stay, in order: dimensions 1.. of the packed value."""
        return tuple(f.digit for dim in self.factors for f in dim if f.coordinate is None)

    @property
    def rest_shape(self) -> Shape:
        """Extents of the digits that stay."""
        return tuple(d.extent for d in self.rest)

    def rest_axis(self, dim: int) -> int | None:
        """The packed dimension that a whole unpacked dimension became, or None where it is a
        coordinate or split.
        """
        match self.factors[dim]:
            case [Factor(d, None)]:
                return 1 + self.rest.index(d)
        return None

    def dim_codes(self) -> tuple[str, ...] | None:
        """`dims=` of the pack and unpack plans (`docs/plans.md`); None where a dimension mixes
        coordinates and rest.

        A domain without coordinates is one point: its detector numbers it along the dimension that
        is dropped, and without one there is no place for it.
        """
        codes = []
        for dim in self.factors:
            numbers = [f.coordinate for f in dim]
            if not numbers:
                codes.append("0" if self.rank else "c0")
            elif numbers == [None]:
                codes.append("r")
            elif len(numbers) == 1:
                codes.append(f"c{numbers[0]}")
            elif numbers == list(range(self.rank)):
                codes.append("l")
            else:
                return None
        return tuple(codes) if self.rank or "c0" in codes else None

    @property
    def in_order(self) -> bool:
        """True where all rows lie as they are read: coordinates are the first dimensions."""
        codes = self.dim_codes()
        order = [c for c in codes or () if c != "0"]
        return codes is not None and order == sorted(order)


def layout_of(shape: Shape, coords: Coords) -> Layout | None:
    """Split a value's dimensions by its coordinates.

    Args:
        shape: The value's extents.
        coords: Its coordinates, disjoint digits of its dimensions.

    Returns:
        The layout, or None where the digits do not tile the dimensions.
    """
    dims = []
    ahead = shape[: min((c.dim for c in coords), default=len(shape))]
    batch_of_one = ahead.index(ONE) if ONE in ahead else None
    for d, extent in enumerate(shape):
        mine = [(k, c) for k, c in enumerate(coords) if c.dim == d]
        factors = () if d == batch_of_one else _tile(d, extent, mine)
        if factors is None:
            return None
        dims.append(factors)
    return Layout(tuple(dims), len(coords))


def _tile(d: int, extent: Poly, mine: list[tuple[int, Digit]]) -> tuple[Factor, ...] | None:
    """Digits of one dimension, outermost first: the coordinates, and the gaps between them."""
    if not mine:
        return (Factor(Digit(d, ONE, extent)),)
    inner_first: list[Factor] = []
    at, left = ONE, list(mine)
    while left:
        here = next((m for m in left if m[1].stride == at), None)
        if here is not None:
            inner_first.append(Factor(here[1], here[0]))
            left.remove(here)
            at = at * here[1].extent
            continue
        gap = _common([c.stride.divide(at) for _, c in left])
        if gap is None:
            return None
        inner_first.append(Factor(Digit(d, at, gap)))
        at = at * gap
    if at != extent:
        outer = extent.divide(at)
        if outer is None:
            return None
        inner_first.append(Factor(Digit(d, at, outer)))
    return tuple(reversed(inner_first))


def _common(sizes: Sequence[Poly | None]) -> Poly | None:
    """The one of the sizes that divides them all."""
    for q in sizes:
        if q is not None and all(p is not None and p.divide(q) is not None for p in sizes):
            return q
    return None


@dataclass(frozen=True, slots=True)
class PackedSpace:
    """The iteration space of a node whose output is packed.

    Dimensions 0..rank-1 are the coordinates, then come the output's rest digits, then the reduced
    axes.

    Args:
        domain: What the packed axis ranges over.
        layout: Layout of the output.
        reduced: Extents of the reduced axes.
    """

    domain: Domain
    layout: Layout
    reduced: Shape

    def maps(self) -> list[Poly]:
        """Index expression of every original iteration axis in the packed space."""
        rest = {d: k for k, d in enumerate(self.layout.rest)}
        out: list[Poly] = []
        for dim in self.layout.factors:
            total = ZERO
            for f in dim:
                at = f.coordinate if f.coordinate is not None else self.domain.rank + rest[f.digit]
                total = total + dim_index(at, f.digit.extent) * f.digit.stride
            out.append(total)
        first = self.domain.rank + len(rest)
        return out + [dim_index(first + k, e) for k, e in enumerate(self.reduced)]

    def rest_dim(self, k: int) -> int:
        """The dimension of rest digit k."""
        return self.domain.rank + k

    def reduced_dim(self, k: int) -> int:
        """The dimension of reduced axis k."""
        return self.domain.rank + len(self.layout.rest) + k


def read_in_packed(space: PackedSpace, expr: TensorExpr, read: Read) -> list[Poly | None]:
    """One index expression per operand dimension over the packed space; None where it is not
    known.
    """
    return index_in_packed(space, expr, read.index)


def index_in_packed(
    space: PackedSpace, expr: TensorExpr, index: Sequence[Poly | None]
) -> list[Poly | None]:
    """An index over a node's iteration axes as one over the packed space."""
    maps = space.maps()
    return [None if p is None else substitute(p, maps, expr.extents) for p in index]


def uses_coordinates(index: Iterable[Poly | None], rank: int) -> bool:
    """True where some index expression depends on a coordinate, or is not known."""
    return any(p is None or any(a.dim < rank for a in p.digits()) for p in index)


def aligned_rest(
    index: Sequence[Poly | None], coords: Coords, layout: Layout, domain: Domain
) -> list[Poly] | None:
    """How a packed operand is read at the same packed row.

    Args:
        index: The operand's index expressions in the packed space.
        coords: The operand's own coordinates.
        layout: The operand's layout.
        domain: The domain of both.

    Returns:
        One index expression per rest digit of the operand, over rest and reduced dimensions only;
        None where the operand is not read at the same coordinates, or a rest digit depends on them.
    """
    for k, c in enumerate(coords):
        if _part(index, c) != dim_index(k, domain.extents[k]):
            return None
    out: list[Poly] = []
    for d in layout.rest:
        value = _part(index, d)
        if value is None or uses_coordinates([value], domain.rank):
            return None
        out.append(value)
    return out


def _part(index: Sequence[Poly | None], d: Digit) -> Poly | None:
    """A digit of an operand's index where it is read; None where that is not known."""
    p = index[d.dim]
    return None if p is None else digit(p, d.stride, d.extent)


def coordinate_codes(
    index: Sequence[Poly | None], shape: Shape, domain: Domain
) -> tuple[tuple[str, ...], list[Poly]] | None:
    """How an operand that depends on some coordinates only is gathered: one row of it per live
    point.

    Args:
        index: The operand's index expressions in the packed space.
        shape: The operand's extents.
        domain: The domain of the packed axis.

    Returns:
        `dims=` of the pack plan, and the index expressions of the dimensions that stay; None where
        a dimension is neither one bare coordinate, nor free of coordinates.
    """
    number, points = _linear(domain)
    known = {(number, points): "l"}
    known |= {(dim_index(k, e), e): f"c{k}" for k, e in enumerate(domain.extents)}
    codes, rest = [], []
    for p, extent in zip(index, shape, strict=True):
        if p is None:
            return None
        if uses_coordinates([p], domain.rank):
            if (p, extent) not in known:
                return None
            codes.append(known[p, extent])
        elif extent == ONE:
            codes.append("0")
        else:
            codes.append("r")
            rest.append(p)
    return tuple(codes), rest


def _linear(domain: Domain) -> tuple[Poly, Poly]:
    """The number of a point, row by row, and how many points there are."""
    number, points = ZERO, ONE
    for k, e in enumerate(domain.extents):
        number, points = number * e + dim_index(k, e), points * e
    return number, points


def read_along(index: Sequence[Poly], extents: Shape, dims: Sequence[int | None]) -> bool:
    """True where dimensions are read along the given ones, in order; one of extent 1 has no digit
    and one place only, so that it is read along any.
    """
    return len(index) == len(dims) and all(
        e == ONE or bare_dim(p) == d for p, d, e in zip(index, dims, extents, strict=True)
    )


def wide(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """The digits that have more than one value."""
    return tuple(d for d in digits if d.extent != ONE)


def increasing(numbers: Iterable[int]) -> bool:
    """True for strictly rising numbers."""
    return all(a < b for a, b in pairwise(list(numbers)))
