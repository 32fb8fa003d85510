"""Terms added to attention scores, as a kernel reads them: `[batch, heads, queries, keys]`.

scores [b, h, q, k] + mask [b, 1, 1, k]            as it is
scores [b * h, q, k] + distances [b * h, 1, k]     [b, h, 1, k]
scores [b, h, q, k] + mask [b, h, 1, k]            [b * h, 1, 1, k], where rows are of each head
scores [b, h, q, k] + slopes [1, h, 1, k]          [1, h, 1, k] in b turns, where rows are of each
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Poly
from pitc.ir.since import Since
from pitc.ir.sizes import sizes_known
from pitc.passes.regions.layout import layout_of

BATCH, HEADS, QUERIES, KEYS = range(4)


@dataclass(frozen=True, slots=True)
class _Part:
    """A digit of the scores, and what a term has of it.

    Args:
        place: Which dimension of four it belongs to, and where it stands in that.
        extent: In the term.
        repeats: The term is the same along it.
    """

    place: tuple[int, int]
    extent: Poly
    repeats: bool


@dataclass(frozen=True, slots=True)
class TermShape:
    """How a kernel reads a term.

    Args:
        extents: [batch, heads, queries, keys].
        turns: How many times the sequences of a batch go through the heads of the term, where each
            of them is a head; 1 elsewhere.
    """

    extents: Shape
    turns: Poly = ONE


def shape_of_term(
    graph: Graph, scores: Shape | None, coords: Coords, term: Shape | None
) -> TermShape | None:
    """How a term is read; None where a kernel cannot read it.

    Args:
        graph: The analysed graph.
        scores: Extents of the scores that it is added to.
        coords: Coordinates of queries, and that of keys, in the scores; the rest are heads.
        term: Extents of the term.
    """
    parts = None if scores is None or term is None else _parts(scores, coords, term)
    if parts is None or term is None:
        return None
    varying = [p.place for p in parts if not p.repeats and p.extent != ONE]
    if not all(a < b for a, b in pairwise(varying)):
        return None
    of_four = [[p for p in parts if p.place[0] == k] for k in range(4)]
    found = tuple(prod((p.extent for p in of_dim), start=ONE) for of_dim in of_four)
    turns = ONE
    if any(len({p.repeats for p in of_dim}) > 1 for of_dim in of_four):
        # heads are sequences: they share what is of all batches, in turn
        repeats = [p.repeats for p in sorted(of_four[BATCH], key=lambda p: p.place)]
        turns = prod((coords[p.place[1]].extent for p in of_four[BATCH] if p.repeats), start=ONE)
        shared = graph.target.hides_pairs == "lists" and found[HEADS] == ONE
        known = sizes_known(graph, (*found, turns))
        if not shared or not known or repeats != sorted(repeats, reverse=True):
            return None
        found = (ONE, found[BATCH], *found[QUERIES:])
    may_reshape = graph.opset >= Since.ZERO_SIZES and sizes_known(graph, found)
    as_it_is = found == (*[ONE] * (4 - len(term)), *term)
    return TermShape(found, turns) if as_it_is or may_reshape else None


def repeats_turns(shapes: Sequence[TermShape]) -> bool:
    """True where terms are summed of which some are read in turn, and others by other sequences."""
    by = {s.extents[:QUERIES] for s in shapes} - {(ONE, ONE)}
    return len(by) > 1 and any(s.turns != ONE for s in shapes)


def numbers_of_sink(graph: Graph, scores: Shape | None, coords: Coords, sink: str) -> int | None:
    """How many numbers of float32 a sink has, one or one for each head; None where it is neither.

    Args:
        graph: The analysed graph.
        scores: Extents of the scores that it stands beside.
        coords: Coordinates of queries, and that of keys, in the scores; the rest are heads.
        sink: A value that broadcasts to the scores of one key.

    [1, 4, 1, 1] beside scores [batch, 4, queries, keys]   ->   4
    """
    shape = shape_of_term(graph, scores, coords, graph[sink].shape)
    if shape is None or shape.extents != (ONE, heads := shape.extents[HEADS], ONE, ONE):
        return None
    return heads.as_int() if graph[sink].dtype == np.float32 else None


def _parts(scores: Shape, coords: Coords, term: Shape) -> list[_Part] | None:
    """The digits of more than one value, of all dimensions, outermost first."""
    layout = layout_of(scores, coords)
    if layout is None or len(term) > len(scores):
        return None
    last, found = len(coords) - 1, list[_Part]()
    of_term = (*[ONE] * (len(scores) - len(term)), *term)
    for extent, of_scores, factors in zip(of_term, scores, layout.factors, strict=True):
        digits = [f for f in factors if f.digit.extent != ONE]
        if extent not in (ONE, of_scores) and len(digits) != 1:
            return None
        for f in digits:
            k = f.coordinate
            dim = HEADS if k is None else {last - 1: QUERIES, last: KEYS}.get(k, BATCH)
            whole = extent if len(digits) == 1 else f.digit.extent
            place = dim, len(found) if k is None else k
            found.append(_Part(place, ONE if extent == ONE else whole, extent == ONE))
    return found
