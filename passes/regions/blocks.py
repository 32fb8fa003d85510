"""Masks of pairs that are the same throughout blocks of queries and keys, as tables of blocks.

    wide[b, q, k] == 0, where wide [b, s, s] has each element of blocks [b, n, n] for 32 x 32 pairs
    ->   blocks[b, d1, d2] == 0 over [b, n, n]

An element that is read is there. So positions lie below the size of every dimension that they are
places of, numbers of blocks below that of the one in which they are looked up, and what is reshaped
has as many elements before as behind: that says what is not known of sizes that inputs declare.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import (
    ONE,
    ZERO,
    Atom,
    Digit,
    Poly,
    atom,
    bare_dim,
    dim_index,
    nonneg,
    poly,
    reshape_map,
    substitute,
    total_of,
    within,
)
from pitc.ir.plans.program import MOST_BLOCK
from pitc.ir.predicate import OF_ELEMENTS
from pitc.ir.region import Test
from pitc.passes.exprs.affine import at_read, before_moves
from pitc.passes.regions.domain import Domain, Table, exchange


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which blocks of pairs are dead.

    Args:
        queries: How many positions of queries a block has.
        keys: Of keys.
        domain: Over blocks; its last two coordinates are numbers of blocks.
    """

    queries: int
    keys: int
    domain: Domain


@dataclass(frozen=True, slots=True)
class _Place:
    """An element of a value, in coordinates of pairs of which the last two are positions.

    Args:
        name: The value.
        index: The place.
        extents: Of the coordinates; those of positions at least as many as there are.
    """

    name: str
    index: tuple[Poly, ...]
    extents: Shape

    def position(self, p: Poly | None) -> int | None:
        """The coordinate that is a position and that an index expression is, whole and alone."""
        k = None if p is None else bare_dim(p)
        places = (len(self.extents) - 2, len(self.extents) - 1)
        return k if k in places and p == dim_index(k, self.extents[k]) else None

    def wider(self, k: int, extent: Poly) -> "_Place":
        """The same, where positions lie below another extent as well."""
        whole, extents = Digit(k, ONE, self.extents[k]), list(self.extents)
        table: Table = {whole: dim_index(k, extent)}
        extents[k] = extent
        index = exchange(Test(self.name, self.index, "nz", True), table).idx
        return _Place(self.name, index, tuple(extents))


def blocks_of(graph: Graph, tests: Sequence[Test], extents: Shape) -> Blocks | None:
    """The blocks in which tests of pairs all hold; None where one of them looks closer.

    Args:
        graph: The analysed graph.
        tests: Of coordinates of pairs.
        extents: Of these.
    """
    moved, wide = zip(*(_source(graph, test, extents) for test in tests), strict=True)
    sizes, coarse, table = list[int](), list(extents), dict[Atom, Poly]()
    for k in (len(extents) - 2, len(extents) - 1):
        digits = {a for t in moved for p in t.idx for a in p.digits() if a.dim == k}
        size = gcd(*(a.stride.as_int() or 1 for a in digits))
        parts = [p for e in wide if (p := e[k].divide(poly(size))) is not None]
        if not parts or not 0 < size <= MOST_BLOCK:
            return None
        sizes.append(size)
        coarse[k] = extent = parts[0]
        table |= {a: _digit(a, size, extent) for a in digits}
    if sizes == [1, 1]:
        return None
    dead = frozenset(exchange(test, table) for test in moved)
    return Blocks(sizes[0], sizes[1], Domain(tuple(coarse), dead))


def _digit(a: Digit, size: int, extent: Poly) -> Poly:
    """A digit of a position, as one of the number of its block."""
    stride = a.stride.divide(poly(size))
    assert stride is not None
    if extent == ONE or (stride == ONE and nonneg(a.extent - extent)):
        return dim_index(a.dim, extent)
    return atom(Digit(a.dim, stride, a.extent))


def _source(graph: Graph, test: Test, extents: Shape) -> tuple[Test, Shape]:
    """A test of the element that a test's comes from, and the extents of its coordinates."""
    one = test.pred in OF_ELEMENTS and not (test.somes or test.alls)
    shape = graph[test.src].shape if one else None
    # beside other tests one may ask for an element that is not there
    if shape is None or not all(within(p, n) for p, n in zip(test.idx, shape, strict=True)):
        return test, extents
    at = _Place(test.src, test.idx, extents)
    while True:
        name, index, _ = before_moves(graph, at.name, at.index)
        moved = _below_sizes(graph, replace(at, name=name, index=index))
        further = _before_reshape(graph, moved) or _before_lookup(graph, moved) or moved
        if further == at:
            return Test(at.name, at.index, test.pred, test.yes), at.extents
        at = further


def _below_sizes(graph: Graph, at: _Place) -> _Place:
    """The same, where positions lie below the sizes of dimensions that they are places of."""
    for p, size in zip(at.index, graph[at.name].shape or (), strict=False):
        k = at.position(p)
        at = at if k is None else at.wider(k, size)
    return at


def _before_reshape(graph: Graph, at: _Place) -> _Place | None:
    """The element of what is reshaped, where the numbers of elements say what a size is.

    [b, n, 32, n, 32] as [b, s, s]   ->   s = 32*n, unless there is no element
    """
    node, out = graph[at.name].producer, graph[at.name].shape
    if node is None or out is None or (node.domain, node.op_type) != ("", "Reshape"):
        return None
    operand = NodeView(graph, node).name(0)
    shape = graph[operand].shape
    equal = None if shape is None else _equal(out, shape)
    if shape is None or equal is None:
        return None
    index, whole, inner, extents = (
        tuple(_with_size(p, *equal) for p in ps) for ps in (at.index, out, shape, at.extents)
    )
    maps = reshape_map(whole, inner)
    places = [None if p is None else substitute(p, index, whole) for p in maps]
    known = tuple(p for p in places if p is not None)
    return _Place(operand, known, extents) if len(known) == len(places) else None


def _equal(left: Shape, right: Shape) -> tuple[str, Poly] | None:
    """A size and what it is, where shapes have equally many elements, and some."""
    shared, mine = list(right), list[Poly]()
    for extent in left:
        if extent in shared:
            shared.remove(extent)
        elif extent != ONE:
            mine.append(extent)
    others = total_of(shared)
    if len(set(mine)) != 1 or len(others.terms) != 1:
        return None
    match list(mine[0].terms.items()):
        case [((str() as name,), 1)]:
            size = _root(others, len(mine))
            return None if size is None else (name, size)
    return None


def _root(p: Poly, n: int) -> Poly | None:
    """The number of which a product is the n-th power."""
    ((factors, number),) = p.terms.items()
    root = round(abs(number) ** (1 / n))
    once = factors[::n]
    if root**n != number or tuple(a for a in once for _ in range(n)) != factors:
        return None
    return Poly({once: root})


def _with_size(p: Poly, name: str, size: Poly) -> Poly:
    """The polynomial, and its digits, with what a size is."""

    def part(a: Atom) -> Poly:
        if isinstance(a, str):
            return size if a == name else atom(a)
        stride, extent = (_with_size(q, name, size) for q in (a.stride, a.extent))
        return atom(Digit(a.dim, stride, extent))

    return sum((c * total_of(map(part, m)) for m, c in p.terms.items()), ZERO)


def _before_lookup(graph: Graph, at: _Place) -> _Place | None:
    """The element that is looked up for each block of positions: else the look-up had failed.

    Gather (blocks, q // 32), blocks [n, n]   ->   blocks[q//32 [q < 32*n], ..]
    """
    node, expr = graph[at.name].producer, graph[at.name].expr
    if node is None or expr is None or (node.domain, node.op_type) != ("", "Gather"):
        return None
    view = NodeView(graph, node)
    operand, numbers = view.name(0), view.name(1)
    maps = expr.reads[0].index
    places = [None if p is None else substitute(p, at.index, expr.shape) for p in maps]
    if places.count(None) != 1:
        return None
    axis, rank = places.index(None), len(graph[numbers].shape or ())
    found = _block(graph, replace(at, name=numbers, index=at.index[axis : axis + rank]))
    if found is None:
        return None
    k, size = found
    extent = (graph[operand].shape or ())[axis]
    places[axis] = atom(Digit(k, ONE, at.extents[k]))
    known = tuple(p for p in places if p is not None)
    wide = _Place(operand, known, at.extents).wider(k, extent * size)
    index = list(wide.index)
    index[axis] = atom(Digit(k, poly(size), extent)) if extent != ONE else ZERO
    return replace(wide, index=tuple(index))


def _block(graph: Graph, at: _Place) -> tuple[int, int] | None:
    """The position of which an element is the number of the block, and the block's size."""
    name, index, _ = before_moves(graph, at.name, at.index)
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or (node.domain, node.op_type) != ("", "Div"):
        return None
    view = NodeView(graph, node)
    position, size = (at_read(graph, view.name(r.operand), r) for r in expr.reads)
    k = at.position(None if position is None else substitute(position, index, expr.shape))
    number = None if size is None else size.as_int()
    return None if k is None or number is None or number < 1 else (k, number)
