"""The factors of grouped products: rows, and a table of matrices of which each row has one.

x[t, k], w[g[t], k, n]    an index says which        x[t, k], w[e, k, n]    a coordinate does
"""

from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, dim_digit
from pitc.passes.regions.contraction import factor_reads
from pitc.passes.regions.looked_up import looked_up
from pitc.passes.regions.stored import Index, origins


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of a product of which one is a matrix of a table.

    Args:
        rows: How the other one is read.
        table: The constant that holds the matrices.
        axes: Dimensions of the table: that of groups, that of terms, that of columns.
        column: The columns, as a digit of the result.
        group: The coordinate that is the group; None: an index says it.
        place: The value that holds the index.
        at: How that is read.
        nodes: What looks it up.
    """

    rows: Read
    table: str
    axes: tuple[int, int, int]
    column: Digit
    group: Digit | None = None
    place: str = ""
    at: Index = ()
    nodes: tuple[ir.Node, ...] = ()


def factors_of(
    graph: Graph, expr: TensorExpr, names: list[str], coords: Coords = ()
) -> Factors | None:
    """The factors of a contraction that is a grouped product; None where it is none.

    Args:
        graph: The analysed graph.
        expr: A contraction.
        names: Names of the node's inputs.
        coords: Coordinates of points of which some are dead, as digits of the result.
    """
    reads = factor_reads(expr)
    if [r.operand for r in reads] != [0, 1] or len(expr.reads) != 2 or len(expr.reduced) != 1:
        return None
    for read, rows in (reads[::-1], reads):
        name = names[read.operand]
        factors = _by_index(graph, expr, rows, name, read.index)
        if factors is None and coords:
            factors = _by_coordinate(graph, expr, rows, (name, read.index), coords)
        if factors is not None and None not in rows.index:
            return factors
    return None


def _by_index(
    graph: Graph, expr: TensorExpr, rows: Read, name: str, index: Index
) -> Factors | None:
    """A matrix that is looked up, by an index that depends on neither columns nor terms."""
    found = looked_up(graph, name, index, graph.is_constant)
    if found is None:
        return None
    matrix = _matrix(graph, expr, found.table, found.index, found.index.index(None))
    along = {d.dim for d in _digits(found.at)}
    # A number for all rows (`along` is empty) names one matrix for all: an ordinary product.
    if matrix is None or not along or len(expr.shape) in along:
        return None
    axes, column = matrix
    if _overlaps(column, [*_digits(found.at), *_digits(rows.index)]):
        return None
    return Factors(rows, found.table, axes, column, None, found.place, found.at, found.nodes)


def _by_coordinate(
    graph: Graph, expr: TensorExpr, rows: Read, operand: tuple[str, Index], coords: Coords
) -> Factors | None:
    """A matrix for each place of a coordinate."""
    for origin in origins(graph, *operand, scaled=False):
        if not graph.is_constant(origin.name) or None in origin.index:
            continue
        for d, p in enumerate(origin.index):
            group = next((c for c in coords if p == dim_digit(c.dim, c.stride, c.extent)), None)
            if group is None:
                continue
            matrix = _matrix(graph, expr, origin.name, origin.index, d)
            if matrix is None:
                continue
            axes, column = matrix
            others = [x for x in _digits(rows.index) if x != group]
            if column != group and not _overlaps(column, others):
                return Factors(rows, origin.name, axes, column, group)
    return None


def _matrix(
    graph: Graph, expr: TensorExpr, table: str, index: Index, group: int
) -> tuple[tuple[int, int, int], Digit] | None:
    """Dimensions of a table of matrices, and its columns; None where a matrix of it is not read as
    a whole, or along others than terms and a digit of the result.
    """
    shape, term = graph[table].shape or (), len(expr.shape)
    if len(shape) != 3:
        return None
    rows = columns = None
    for d, p in enumerate(index):
        if d == group:
            continue
        match () if p is None else tuple(p.terms.items()):
            case [((Digit() as digit,), 1)] if digit.extent == shape[d] and digit.dim >= 0:
                if digit == Digit(term, ONE, expr.extents[term]):
                    rows = d
                elif digit.dim < term:
                    columns = d, digit
    if rows is None or columns is None:
        return None
    return (group, rows, columns[0]), columns[1]


def _digits(index: Index) -> list[Digit]:
    return [a for p in index if p is not None for a in p.digits()]


def _overlaps(digit: Digit, others: list[Digit]) -> bool:
    """True where one of the others may depend on a digit, as far as is known."""
    return any(x.dim == digit.dim for x in others)


def group_coords(graph: Graph, expr: TensorExpr, names: list[str]) -> list[Coords]:
    """Coordinates that the rows of a grouped product may have where all of them live: all axes but
    that of columns, or the first of them.

    x[t, 1, k], g[t, j]   ->   (t, j), (t)          x[b, s, k], g[b]   ->   (b, s), (b)
    """
    factors = factors_of(graph, expr, names)
    if factors is None:
        return []
    axes = [a for a, e in enumerate(expr.shape) if e != ONE and a != factors.column.dim]
    every = tuple(Digit(a, ONE, expr.shape[a]) for a in axes)
    return [every[:n] for n in range(len(every), 0, -1)]
