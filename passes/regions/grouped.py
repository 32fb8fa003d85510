"""Grouped products: which of several matrices a row is multiplied by (e x m).

    y[t, n] = sum over k of x[t, k] * w[g[t], k, n]       experts of tokens, adapters of sequences
    y[e, t, n] = sum over k of x[t, k] * w[e, k, n]       where only some points (e, t) live

Exporters write a look-up that copies a matrix for every row, and a product of the batch; or the
products of all experts. Here the rows of a group are listed, and share one pass over their matrix,
where it lies:

    x[t, j, m, k], g[t, j], w[groups, k, n]  ->  y[t, j, m, n]      x may be the same for all j

t is the packed axis; j counts the indices of one of its rows, m the rows that share an index. Where
the group is a coordinate of the packed axis, it is that of the point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from pitc.ir.expr import Shape
from pitc.ir.index import ONE, Digit, Poly, dim_index
from pitc.ir.nodes import input_names
from pitc.ir.plans.whole import Grouped
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.form import (
    COORDINATES,
    Form,
    GatheredOperand,
    OffsetsOperand,
    PackCandidate,
    PackedOperand,
    WholeOperand,
    static_shape,
)
from pitc.passes.regions.grouped_factors import Factors, factors_of
from pitc.passes.regions.layout import coordinate_codes, index_in_packed
from pitc.passes.regions.stored import Index

AXES = "axes"
"""Attribute of a form: the dimensions of the table that are groups, terms and columns."""


def is_grouped(site: PackCandidate) -> bool:
    """True for a product by constant matrices, of which there is one for each row."""
    return _factors_at(site) is not None


def _factors_at(site: PackCandidate) -> Factors | None:
    coords = () if site.context.domain.lives_everywhere else site.out.coords
    return factors_of(site.context.graph, site.expr, input_names(site.node), coords)


def grouped(site: PackCandidate) -> Form | Refusal:
    """E and m, e, or m and n: rows by the matrices that an index or a coordinate names."""
    graph, factors = site.context.graph, _factors_at(site)
    assert factors is not None
    (e, k, n), x = factors.axes, site.input(factors.rows.operand)
    dtypes = {str(graph[name].dtype) for name in (factors.table, x, site.out.name)}
    wanted = ("float32",) if graph.target.kind == "cpu" else ("float32", "float16")
    if len(dtypes) > 1 or not dtypes <= {*wanted}:
        types = " and ".join(wanted)
        return site.refuse(Code.NO_LOWERING, f"grouped products are lowered for {types} only")
    table = static_shape(graph[factors.table].shape or ())
    if table is None or min(table[k], table[n]) < graph.target.least_extent:
        return site.refuse(Code.NO_GAIN, "its matrices are small")
    line = _Line.of(site)
    if not line.rest or line.rest[-1] != factors.column:
        return site.refuse(Code.LAYOUT, "the columns are not the last dimension of the result")
    group = _group(site, factors, line)
    if isinstance(group, Refusal):
        return group
    found = _operand(site, x, factors.rows.index, line)
    if isinstance(found, Refusal):
        return found
    many, (rows, read) = group.many, found
    shares = many > 0 and read == [*line.leading[many:], line.term]
    if not shares and read != [*line.leading, line.term]:
        return site.refuse(Code.LAYOUT, "the rows are not read along those of the result", x)
    extents = static_shape(d.extent for d in line.rest[:-1])
    if extents is None:
        return site.refuse(Code.DYNAMIC_DIM, "extents beside the packed one are not numbers")
    j, m = prod(extents[:many]), prod(extents[many:])
    index = group.operand
    operands = (
        replace(rows, shape=(1 if shares else j, m, table[k])),
        index if isinstance(index, OffsetsOperand) else replace(index, shape=(j,)),
        WholeOperand(factors.table),
    )
    return Form(
        (site.out,),
        operands,
        "EPContext",
        {AXES: factors.axes, **group.attributes},
        plan=Grouped(groups=table[e], k=table[k], n=table[n], dtype=dtypes.pop()),
        absorbs=factors.nodes,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The group of each row.

    Args:
        operand: The value, or the coordinates of points.
        many: Of how many dimensions of a packed row there is one for each place.
        attributes: Which coordinate it is.
    """

    operand: PackedOperand | GatheredOperand | OffsetsOperand
    many: int = 0
    attributes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _group(site: PackCandidate, factors: Factors, line: "_Line") -> _Group | Refusal:
    if factors.group is not None:
        number = site.out.coords.index(factors.group)
        return _Group(OffsetsOperand(site.context.domain, "coords"), 0, {COORDINATES: (number,)})
    found = _operand(site, factors.place, factors.at, line)
    if isinstance(found, Refusal):
        return found
    operand, read = found
    if read != line.leading[: len(read)]:
        text = "the indices are not read along the rows of the result"
        return site.refuse(Code.LAYOUT, text, factors.place)
    return _Group(operand, len(read))


Rows = tuple[PackedOperand | GatheredOperand, list[int | None]]


def _operand(site: PackCandidate, name: str, read: Index, line: "_Line") -> Rows | Refusal:
    """A value as rows of the packed axis, and along which dimensions of these it is read."""
    index = index_in_packed(site.space, site.expr, read)
    if (aligned := site.rows_of(name, index)) is not None:
        packing, rest = aligned
        return packing.operand(), line.along(rest, packing.layout.rest_shape)
    shape = site.context.shape(name)
    codes = coordinate_codes(index, shape, site.context.domain)
    if codes is None:
        text = f"'{name}' is not read at one packed row at a time"
        return site.refuse(Code.AXIS_NOT_PIT, text, name)
    extents = tuple(x for c, x in zip(codes[0], shape, strict=True) if c == "r")
    operand = GatheredOperand(name, site.context.domain, codes[0])
    return operand, line.along(codes[1], extents)


@dataclass(frozen=True, slots=True)
class _Line:
    """What one packed row of the result is made of.

    Args:
        rest: Digits of the result of more than one value.
        places: Dimensions of the packed space that they are.
        term: The dimension that is summed over.
        extents: Of these dimensions.
    """

    rest: tuple[Digit, ...]
    places: tuple[int, ...]
    term: int
    extents: Mapping[int, Poly]

    @classmethod
    def of(cls, site: PackCandidate) -> "_Line":
        """Of a candidate that is a contraction over one axis."""
        kept = [(i, d) for i, d in enumerate(site.out.layout.rest) if d.extent != ONE]
        places, term = [site.space.rest_dim(i) for i, _ in kept], site.space.reduced_dim(0)
        extents = {p: d.extent for p, (_, d) in zip(places, kept, strict=True)}
        extents[term] = site.expr.reduced[0]
        return cls(tuple(d for _, d in kept), tuple(places), term, extents)

    @property
    def leading(self) -> list[int]:
        """The dimensions in front of the columns."""
        return list(self.places[:-1])

    def along(self, index: Sequence[Poly], shape: Shape) -> list[int | None]:
        """The dimensions that those of an operand are, extents of 1 aside; None for others."""
        whole = {dim_index(d, x): d for d, x in self.extents.items()}
        return [whole.get(p) for p, x in zip(index, shape, strict=True) if x != ONE]
