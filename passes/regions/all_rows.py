"""Coordinates that rows of attention may have where all of them live: of a batch, or of each head.

out[b, h, q, d] = sum_k p[b, h, q, k] * v[b, h, k, d]     keys at (b, k), queries at (b, q)
                                                          or (b, h, k) and (b, h, q)
out[x, q, d] = sum_k p[x, q, k] * v[x, k, d], where x = 4 * b + h       (x // 4, k) and (x, k)
"""

from collections.abc import Iterator

from pitc.ir.constant import ZN, is_zero
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, bare_dim
from pitc.ir.region import Region
from pitc.passes.regions.contraction import Rows, read_of
from pitc.passes.regions.stored import Index, origins


def row_coords(expr: TensorExpr, values: Rows) -> list[Coords]:
    """Coordinates that a contraction's rows may have beside its right operand's, whose last one is
    reduced over: of several row axes all but one are heads that share one of the right operand, the
    last one first.

    out[b, h, q, d] = sum_k p[b, h, q, k] * v[b, h, k, d], v at (b, k)         ->   (b, q)
    out[b, g, e, q, d] = sum_k p[b, g, e, q, k] * v[b, g, k, d], v at (b, k)   ->   (b, q), (b, e)
    """
    read, other = read_of(expr, 0), read_of(expr, 1)
    if read is None or other is None:
        return []
    left, right = ({bare_dim(p) for p in r.index if p is not None} - {None} for r in (read, other))
    rows = [a for a in range(len(expr.shape)) if a in left - right]
    lead = values.coords[:-1]
    if any(c.dim >= len(expr.shape) for c in lead):
        return []
    return [(*lead, Digit(a, ONE, expr.shape[a])) for a in reversed(rows)]


def key_coords(graph: Graph, expr: TensorExpr, left: str, right: str) -> list[Coords]:
    """Coordinates that all keys of a contraction's right operand may have: axes that the left one
    has, too, the last of which may be that of heads, and the one that is summed over. Batch and
    heads may be merged in the first of them.

    Args:
        graph: The analysed graph.
        expr: The contraction.
        left: Its weights.
        right: Its values.

    Returns:
        Digits of the values' dimensions.
    """
    weights, values, shape = read_of(expr, 0), read_of(expr, 1), graph[right].shape
    if weights is None or values is None or shape is None or len(expr.reduced) != 1:
        return []
    place = {bare_dim(p): k for k, p in enumerate(values.index) if p is not None}
    mine = [None if p is None else bare_dim(p) for p in weights.index]
    key = place.get(len(expr.shape))
    if key is None:
        return []
    shared = [Digit(a, ONE, e) for a, e in enumerate(expr.shape) if a in mine and a in place]
    batches = {
        d
        for d in (*_looked_at(graph, left, mine), *_moved(graph, right, values.index))
        if d.stride != ONE and d.stride * d.extent == expr.extents[d.dim]
    }
    merged = [(d,) for d in sorted(batches, key=str) if shared and d.dim == shared[0].dim]
    of_batch, of_heads = tuple(shared[:-1]), tuple(shared)
    leads = dict.fromkeys((of_batch, *merged, of_heads) if of_batch else (*merged, (), of_heads))
    last = Digit(key, ONE, shape[key])
    return [(*(Digit(place[d.dim], d.stride, d.extent) for d in lead), last) for lead in leads]


def zeros_of(graph: Graph, name: str) -> list[Region]:
    """Where weights are 0, or NaN with the rest of their rows."""
    return [f.region for f in graph[name].fills if is_zero(f.constant) or f.constant == ZN]


def _looked_at(graph: Graph, weights: str, axes: list[int | None]) -> Iterator[Digit]:
    """Digits of iteration axes that tests look at where weights are 0."""
    for fact in zeros_of(graph, weights):
        for d in (d for test in fact for p in test.idx for d in p.digits()):
            axis = axes[d.dim] if 0 <= d.dim < len(axes) else None
            if axis is not None:
                yield Digit(axis, d.stride, d.extent)


def _moved(graph: Graph, values: str, index: Index) -> Iterator[Digit]:
    """Parts of iteration axes that are dimensions of what values are moved from: so are the rests.

    Reshape [b, 4, k, d] -> [4 * b, k, d] at (x, k, d)   is   (x // 4, x mod 4, k, d): x // 4
    """
    *_, origin = origins(graph, values, index, scaled=False)
    parts = {d for p in origin.index if p is not None for d in p.digits() if d.dim >= 0}
    yield from (d for d in parts if Digit(d.dim, ONE, d.stride) in parts)
