"""Grouped products: an index says which of several matrices a row is multiplied by (e x m).

    y[t, n] = sum over k of x[t, k] * w[g[t], k, n]       experts of tokens, adapters of sequences

Exporters write a look-up that copies a matrix for every row, and a product of the batch. Here the
rows of a group are listed, and share one pass over their matrix, where it lies:

    x[t, j, m, k], g[t, j], w[groups, k, n]  ->  y[t, j, m, n]      x may be the same for all j

t is the packed axis; j counts the indices of one of its rows, m the rows that share an index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from pitc.ir.expr import Read, Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, Poly, bare_dim, dim_index
from pitc.ir.nodes import input_names
from pitc.ir.plans.whole import Grouped
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.contraction import factor_reads
from pitc.passes.regions.form import (
    Form,
    GatheredOperand,
    PackCandidate,
    PackedOperand,
    WholeOperand,
    static_shape,
)
from pitc.passes.regions.layout import coordinate_codes, index_in_packed
from pitc.passes.regions.looked_up import LookedUp, looked_up

AXES = "axes"
"""Attribute of a form: the dimensions of the table that are groups, terms and columns."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of a product of which one is looked up.

    Args:
        rows: How the other one is read.
        matrices: What is looked up.
        axes: Dimensions of the table: that of groups, that of terms, that of columns.
        column: The axis of columns.
    """

    rows: Read
    matrices: LookedUp
    axes: tuple[int, int, int]
    column: int


def factors_of(graph: Graph, expr: TensorExpr, names: list[str]) -> Factors | None:
    """The factors of a contraction that is a grouped product; None where it is none.

    Args:
        graph: The analysed graph.
        expr: A contraction.
        names: Names of the node's inputs.
    """
    reads = factor_reads(expr)
    if [r.operand for r in reads] != [0, 1] or len(expr.reads) != 2 or len(expr.reduced) != 1:
        return None
    for read, rows in (reads[::-1], reads):
        found = looked_up(graph, names[read.operand], read.index)
        factors = None if found is None else _factors(graph, expr, rows, found)
        if factors is not None:
            return factors
    return None


def _factors(graph: Graph, expr: TensorExpr, rows: Read, found: LookedUp) -> Factors | None:
    """The factors, where each group of the table is a matrix, all of which is read."""
    shape, term = graph[found.table].shape or (), len(expr.shape)
    group = found.index.index(None)
    where = {bare_dim(p): d for d, p in enumerate(found.index) if p is not None}
    column = next((a for a in where if a is not None and a < term), None)
    if column is None or where.keys() != {term, column} or len(shape) != 3:
        return None
    axes = group, where[term], where[column]
    whole = all(
        found.index[d] == dim_index(a, shape[d]) and shape[d] == expr.extents[a]
        for a, d in ((term, axes[1]), (column, axes[2]))
    )
    used = {a.dim for index in (found.at, rows.index) for p in index if p for a in p.digits()}
    hangs = {a.dim for p in found.at if p is not None for a in p.digits()}
    if not whole or column in used or term in hangs or None in rows.index:
        return None
    return Factors(rows, found, axes, column)


def group_coords(graph: Graph, expr: TensorExpr, names: list[str]) -> list[Coords]:
    """Coordinates that the rows of a grouped product may have where all of them live: all axes but
    that of columns, or the first of them.

    x[t, 1, k], g[t, j]   ->   (t, j), (t)          x[b, s, k], g[b]   ->   (b, s), (b)
    """
    factors = factors_of(graph, expr, names)
    if factors is None:
        return []
    axes = [a for a, e in enumerate(expr.shape) if e != ONE and a != factors.column]
    every = tuple(Digit(a, ONE, expr.shape[a]) for a in axes)
    return [every[:n] for n in range(len(every), 0, -1)]


def is_grouped(site: PackCandidate) -> bool:
    """True for a product by constant matrices of which an index names one for each row."""
    return _factors_at(site) is not None


def _factors_at(site: PackCandidate) -> Factors | None:
    return factors_of(site.context.graph, site.expr, input_names(site.node))


def grouped(site: PackCandidate) -> Form | Refusal:
    """e, or e and m: rows by the matrices that an index names."""
    graph, expr, factors = site.context.graph, site.expr, _factors_at(site)
    assert factors is not None
    if graph.target.kind != "cpu":
        return site.refuse(Code.NO_KERNEL, "a product by groups of rows (e x m) has no kernel")
    found, (e, k, n), x = factors.matrices, factors.axes, site.input(factors.rows.operand)
    if any(graph[name].dtype != np.float32 for name in (found.table, x, site.out.name)):
        return site.refuse(Code.NO_LOWERING, "grouped products are lowered for float32 only")
    table = static_shape(graph[found.table].shape or ())
    if table is None or min(table[k], table[n]) < graph.target.least_extent:
        return site.refuse(Code.NO_GAIN, "its matrices are small")
    line = _Line.of(site)
    if not line.rest or line.rest[-1].dim != factors.column:
        return site.refuse(Code.LAYOUT, "the columns are not the last dimension of the result")
    groups = _groups(site, found, line)
    if isinstance(groups, Refusal):
        return groups
    index, many = groups
    a = site.rows_of(x, index_in_packed(site.space, expr, factors.rows.index))
    if a is None:
        return site.refuse(Code.AXIS_NOT_PIT, "the rows are not packed like the result", x)
    read = line.along(a[1], a[0].layout.rest_shape)
    shares = many > 0 and read == [*line.leading[many:], line.term]
    if not shares and read != [*line.leading, line.term]:
        return site.refuse(Code.LAYOUT, f"the rows are read at {a[1]}", x)
    extents = static_shape(d.extent for d in line.rest[:-1])
    if extents is None:
        return site.refuse(Code.DYNAMIC_DIM, "extents beside the packed one are not numbers")
    j, m = prod(extents[:many]), prod(extents[many:])
    plan = Grouped(groups=table[e], k=table[k], n=table[n])
    rows = a[0].operand((1 if shares else j, m, table[k]))
    operands = rows, replace(index, shape=(j,)), WholeOperand(found.table)
    attributes = {AXES: factors.axes}
    return Form((site.out,), operands, "EPContext", attributes, plan=plan, absorbs=found.nodes)


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


def _groups(
    site: PackCandidate, found: LookedUp, line: _Line
) -> tuple[PackedOperand | GatheredOperand, int] | Refusal:
    """The indices, and along how many of the leading dimensions they are read."""
    index = index_in_packed(site.space, site.expr, found.at)
    operand: PackedOperand | GatheredOperand
    if (aligned := site.rows_of(found.place, index)) is not None:
        operand, read, extents = aligned[0].operand(), aligned[1], aligned[0].layout.rest_shape
    else:
        shape = site.context.shape(found.place)
        codes = coordinate_codes(index, shape, site.context.domain)
        if codes is None:
            text = "the indices are not read at one packed row at a time"
            return site.refuse(Code.AXIS_NOT_PIT, text, found.place)
        operand, read = GatheredOperand(found.place, site.context.domain, codes[0]), codes[1]
        extents = tuple(x for c, x in zip(codes[0], shape, strict=True) if c == "r")
    dims = line.along(read, extents)
    if dims != line.leading[: len(dims)]:
        return site.refuse(Code.LAYOUT, f"the indices are read at {index}", found.place)
    return operand, len(dims)
