"""Keys and values of attention where they are stored: what an operand of a contraction copies.

    present [b, g, k, d] -> Unsqueeze -> Expand [b, g, n, k, d] -> Reshape [b, h, k, d]
    read there at (b, h, k, d), h = n * g      is      present at (b, h // n, k, d)

Nodes that only move elements are undone by their index maps, so that a head of keys is read once
for the n heads of queries that share it, and a cache is read as it lies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, Read
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Coords, Digit, Poly, digit, dim_digit, poly, substitute
from pitc.ir.nodes import input_names
from pitc.passes.regions.form import (
    FormContext,
    PackedOperand,
    Packing,
    WholeOperand,
    static_shape,
)
from pitc.passes.regions.layout import wide
from pitc.passes.regions.steps import LEAST, MOST
from pitc.passes.rules.record import PackRule, operator_of

Index = tuple[Poly | None, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """A value of whose elements an operand is made.

    Args:
        name: The value.
        index: Its index over the axes of the contraction.
        scale: What its elements are multiplied by.
        nodes: What makes the operand of it.
    """

    name: str
    index: Index
    scale: float = 1.0
    nodes: tuple[ir.Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Heads:
    """How a contraction reads keys or values.

    Args:
        coords: Their coordinates, as digits of its axes.
        heads: Digits of the number of the head, the slowest first.
        size: The digit along a head.
    """

    coords: Coords
    heads: tuple[Digit, ...]
    size: Digit

    @property
    def count(self) -> int | None:
        """How many heads there are; None where that is not known."""
        extents = static_shape(d.extent for d in self.heads)
        return None if extents is None else prod(extents)

    def shared(self, count: int | None, index: Poly | None) -> int | None:
        """How many heads read one of `count` heads that has the index; None where they do not read
        it in turn: h // n for the number of a head h.
        """
        total = self.count
        if not total or not count or total % count:
            return None
        number = _linear([_atom(d) for d in self.heads], [d.extent for d in self.heads])
        n = total // count
        return n if index is not None and digit(number, poly(n), poly(count)) == index else None


@dataclass(frozen=True, slots=True)
class Stored:
    """One way in which keys, or values, may be read.

    Args:
        name: The value that is read.
        group: How many heads share one of its heads.
        scale: What its elements are multiplied by.
        rows: Its rows; None: it is read whole, as a cache lies.
        moves_nothing: No element is moved for that.
        nodes: What makes the operand of it.
    """

    name: str
    group: int
    scale: float
    rows: Packing | None
    moves_nothing: bool
    nodes: tuple[ir.Node, ...]

    @property
    def whole(self) -> bool:
        """It is read as a cache lies, [batch, heads, positions, size]."""
        return self.rows is None

    def operand(self) -> PackedOperand | WholeOperand:
        """It as an operand."""
        return WholeOperand(self.name) if self.rows is None else self.rows.operand()


def origins(graph: Graph, name: str, index: Index, *, scaled: bool) -> Iterator[Origin]:
    """The operand of a contraction, then what it is made of, step by step.

    Args:
        graph: The graph.
        name: The operand.
        index: How the contraction reads it.
        scaled: Multiplications by one number are stepped over, too.
    """
    at: Origin | None = Origin(name, index)
    while at is not None:
        yield at
        at = _moved_from(graph, at) or (_multiplied_from(graph, at) if scaled else None)


def _moved_from(graph: Graph, at: Origin) -> Origin | None:
    """What the elements of a value are, where a node moves or repeats those of one other value."""
    node, expr = graph[at.name].producer, graph[at.name].expr
    if node is None or expr is None or expr.combine is not Combine.MOVE:
        return None
    if expr.reduced or expr.shape != graph[at.name].shape:
        return None
    read, names = expr.reads[0] if expr.reads else None, input_names(node)
    if read is not None and len(expr.reads) == 2 and operator_of(node).packs is PackRule.LOOK_UP:
        read = _repeated(graph, read, expr.reads[1], names)
    elif len(expr.reads) != 1:
        return None
    if read is None or read.within or read.sizing or read.computed:
        return None
    index = (None if p is None else substitute(p, at.index, expr.shape) for p in read.index)
    nodes = (*at.nodes, node)
    return replace(at, name=names[read.operand], index=tuple(index), nodes=nodes)


def _repeated(graph: Graph, data: Read, look: Read, names: Sequence[str]) -> Read | None:
    """How elements are read that a constant looks up, each as often as the others, side by side:
    at i // n.
    """
    places, at = graph.array(names[look.operand]), look.index[0] if len(look.index) == 1 else None
    if places is None or at is None or places.ndim != 1 or data.index.count(None) != 1:
        return None
    many = int(np.count_nonzero(places == places[0])) if places.size else 0
    if not many or not np.array_equal(places, np.arange(places.size) // many):
        return None
    place = digit(at, poly(many), poly(-(-places.size // many)))
    return replace(data, index=tuple(place if p is None else p for p in data.index), computed=False)


def _multiplied_from(graph: Graph, at: Origin) -> Origin | None:
    """What a value is one moderate number times of."""
    node = graph[at.name].producer
    if node is None or node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    names = input_names(node)
    for k in (0, 1) if node.op_type == "Mul" else (0,):
        factor = graph.splat(names[1 - k])
        if factor is not None and LEAST <= abs(factor) <= MOST:
            if graph[names[k]].shape != graph[at.name].shape:
                return None
            scale = at.scale * (factor if node.op_type == "Mul" else 1 / factor)
            return replace(at, name=names[k], scale=scale, nodes=(*at.nodes, node))
    return None


def ways_to_read(
    context: FormContext, direct: Packing, index: Index, read: Heads, *, scaled: bool
) -> list[Stored]:
    """All ways in which keys or values may be read, the operand's rows first.

    Args:
        context: The domain of the keys.
        direct: Rows of the operand.
        index: How the contraction reads it.
        read: Heads and coordinates of that.
        scaled: A number that it is multiplied by may become part of the scale.
    """
    graph, found = context.graph, list[Stored]()
    everywhere = context.domain.lives_everywhere
    for origin in origins(graph, direct.name, index, scaled=scaled):
        first = origin.name == direct.name
        shape = graph[origin.name].shape
        if shape is None:
            break
        rows = direct if first else _rows(context, origin, read)
        group = None if rows is None else _group_of_rows(rows, origin, read)
        name, scale, nodes = origin.name, origin.scale, origin.nodes
        if rows is not None and group is not None:
            in_place = not everywhere or rows.layout.in_order
            found.append(Stored(name, group, scale, rows, in_place, nodes))
        group = _group_of_cache(graph, origin, read) if everywhere else None
        if group is not None:
            found.append(Stored(name, group, scale, None, True, nodes))
    taken = graph.target.reads_stored
    return [s for s in found if taken or (s.group == 1 and not s.whole)]


def best_ways(keys: Sequence[Stored], values: Sequence[Stored]) -> tuple[Stored, Stored] | None:
    """What is read of keys and of values, as one plan has it: where nothing is moved, if there is
    such a way, of as few heads as possible, as far back as possible. None where none fits both.

    Rows of as many heads as the queries have are those of the operands: what is in front of them
    moves rows, too, which costs nothing.
    """
    best: tuple[tuple[bool, int, int, int], Stored, Stored] | None = None
    for (i, k), (j, v) in product(enumerate(keys), enumerate(values)):
        if (k.group, k.whole) != (v.group, v.whole):
            continue
        worth = k.moves_nothing and v.moves_nothing, k.group, i, j
        if best is None or worth > best[0]:
            best = worth, k, v
    if best is None:
        return None
    (in_place, *_), k, v = best
    first = keys[0], values[0]
    ready = k.group == 1 and not k.whole and all(s.group == 1 for s in first)
    as_good = not in_place or all(s.moves_nothing for s in first)
    return first if ready and as_good else (k, v)


def _rows(context: FormContext, origin: Origin, read: Heads) -> Packing | None:
    """An origin's rows at the coordinates; None where these are not dimensions of it."""
    shape, coords = context.shape(origin.name), list[Digit]()
    for c in read.coords:
        dims = (d for d, p in enumerate(origin.index) if p == _atom(c) and shape[d] == c.extent)
        d = next((d for d in dims if all(x.dim != d for x in coords)), None)
        if d is None:
            return None
        coords.append(Digit(d, ONE, c.extent))
    packing = context.packing_at(origin.name, tuple(coords))
    return None if packing is None or packing.layout.dim_codes() is None else packing


def _group_of_rows(rows: Packing, origin: Origin, read: Heads) -> int | None:
    """How many heads share one of the rows' heads; None where rows are not heads, one by one."""
    rest = wide(rows.layout.rest)
    places = ((d, origin.index[d.dim]) for d in rest)
    index = [None if p is None else digit(p, d.stride, d.extent) for d, p in places]
    if read.size.extent != ONE:
        if not rest or (index.pop(), rest[-1].extent) != (_atom(read.size), read.size.extent):
            return None
        rest = rest[:-1]
    extents = [d.extent for d in rest]
    known = [p for p in index if p is not None]
    counts = static_shape(extents)
    if len(known) != len(index) or counts is None:
        return None
    return read.shared(prod(counts), _linear(known, extents))


def _group_of_cache(graph: Graph, origin: Origin, read: Heads) -> int | None:
    """How many heads share one of a value that lies as a cache, [batch, heads, positions, size];
    None where it does not.
    """
    shape, lead = graph[origin.name].shape or (), read.coords
    if len(shape) != 4 or not 1 <= len(lead) <= 2:
        return None
    batch = lead[0] if len(lead) == 2 else Digit(0, ONE, ONE)
    for d, place in ((0, batch), (2, lead[-1]), (3, read.size)):
        if shape[d] != place.extent or origin.index[d] != _atom(place):
            return None
    return read.shared(shape[1].as_int(), origin.index[1])


def _atom(d: Digit) -> Poly:
    return dim_digit(d.dim, d.stride, d.extent)


def _linear(index: Sequence[Poly], extents: Sequence[Poly]) -> Poly:
    """The number of a place, row by row."""
    number = ZERO
    for p, e in zip(index, extents, strict=True):
        number = number * e + p
    return number
