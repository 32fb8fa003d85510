"""How a test is evaluated when the model runs: small steps, and the bytes that they touch.

A test is evaluated over what it mentions only. Its *lines* are independent indices: a coordinate,
or a digit of a bound dimension. What is bound is reduced away; other coordinates are broadcast.

    all j: m[d0, j] == 0                       m [b, s]        -> any over s -> [b]
    all j: all k: m[d0, k//64%4, j, d1] == 0   m [b, 4, q, s]  -> any over 4, q -> [b, s]
    all j: m[d0, j, j] == 0                    m [b, q, q]     -> its diagonal [b, q] -> any -> [b]
    all j: m[d0, j, d1] == 0, m spread over q  m [b, q, s]     -> its first q, if any -> [b, s]

No step makes more elements than the value that it looks at has, or than its coordinates have
points: so memory stays a small multiple of what is there anyhow, whatever the sizes. What would
take more, such as `some j: m[d0 + j]`, is not computed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, bare_dim, dim_index, nonneg, total_of
from pitc.ir.predicate import OF_ELEMENTS, Test
from pitc.ir.since import Since
from pitc.passes.regions.same_along import is_same_along

WIDE, INDEX = 4, 8  # bytes of an int32, of an index


@dataclass(frozen=True, slots=True)
class Place:
    """An axis that is one place of a dimension, or none where that is empty."""

    dim: int


Axis = int | Digit | Place  # a dimension of the value, a line, or one place


@dataclass(frozen=True, slots=True)
class Drop:
    """A dimension of extent 1 goes."""

    axis: int


@dataclass(frozen=True, slots=True)
class Take:
    """One place of a dimension that is not empty; the dimension goes."""

    axis: int
    source: int
    place: Poly


@dataclass(frozen=True, slots=True)
class Cut:
    """One place of a dimension that may be empty: its extent becomes 1, or 0."""

    axis: int
    source: int
    place: Poly


@dataclass(frozen=True, slots=True)
class Split:
    """A dimension seen as several lines."""

    axis: int
    lines: tuple[Digit, ...]


@dataclass(frozen=True, slots=True)
class Pick:
    """Dimensions side by side, joined, at a table of places over some lines.

    Args:
        axis: The first one.
        sources: Which dimensions of the value they are.
        index: The place in each.
        lines: What the table goes along.
        padded: Those that may be empty where the table is not: they get one more element.
        rows: They stay apart, in front, and the table has a row of places: old operator sets cannot
            join dimensions that may be empty.
    """

    axis: int
    sources: tuple[int, ...]
    index: tuple[Poly, ...]
    lines: tuple[Digit, ...]
    padded: tuple[int, ...] = ()
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """Another order of the axes."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """The predicate, of each element."""


Step = Drop | Take | Cut | Split | Pick | Turn | Ask


@dataclass(slots=True)
class Reading:
    """How one test is evaluated.

    Args:
        test: The test.
        steps: What is done to the tested value.
        axes: What is left behind them.
        place: What is compared with a length, or with 0: without bound dimensions that nothing else
            looks at, as their first or last place decides.
        beside: How many of the axes, at the end, only the place goes along.
        absent: Bound dimensions that may be empty though no axis is, and their sizes.
        sizes: Sizes that the steps need.
        touched: Bytes that are read and made.
    """

    test: Test
    steps: list[Step] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    place: Poly | None = None
    beside: int = 0
    absent: list[tuple[int, Poly]] = field(default_factory=list)
    sizes: list[Poly] = field(default_factory=list)
    touched: Poly = ZERO

    @property
    def looks_up(self) -> bool:
        """More than whole dimensions are looked at."""
        return self.place is not None or any(not isinstance(s, Drop | Ask) for s in self.steps)


def reading_of(graph: Graph, test: Test, extents: Shape) -> Reading | None:
    """How a test is evaluated at the coordinates of those extents; None where that takes more
    elements than the tested value and the coordinates have.
    """
    plans = (_Planner(graph, test, extents, joined=joined).plan() for joined in (False, True))
    return next((p for p in plans if p is not None), None)


def is_narrow(graph: Graph) -> bool:
    """True where flags are reduced as bytes, which ONNX Runtime does on CPUs."""
    return graph.target.kind == "cpu" and graph.opset >= Since.REDUCED_BYTES


def at_most(n: Poly, limit: Poly) -> bool:
    """Proven n <= limit, of sizes, which are integers >= 0: b*s <= b*s*s, as either is 0 or no
    factor is.
    """
    left = {m: c for m, c in (limit - n).terms.items() if c > 0}
    for m, c in (limit - n).terms.items():
        for other in left if c < 0 else ():
            if set(other) == set(m) and all(other.count(a) >= m.count(a) for a in m):
                taken = min(-c, left[other])
                left[other], c = left[other] - taken, c + taken
        if c < 0:
            return False
    return not (limit - n).digits()


def is_bound(axis: Axis, test: Test, *, some: bool) -> bool:
    """True for an axis that "for some", or "for all", takes away; one place is some place."""
    if isinstance(axis, Digit):
        return axis.dim in (test.somes if some else test.alls)
    return some


class _Planner:
    """Plans one test.

    Args:
        graph: The analysed graph.
        test: The test.
        extents: Of the coordinates.
        joined: All dimensions that need a table share one, which has as many places as are looked
            at; tables one after the other may look at more on the way.
    """

    def __init__(self, graph: Graph, test: Test, extents: Shape, *, joined: bool) -> None:
        self._joined = joined
        self._graph, self._test, self._extents = graph, test, extents
        self._shape: Sequence[Poly] = graph[test.src].shape or () if test.src else ()
        dtype = graph[test.src].dtype if test.src else None
        self._itemsize = 4 if dtype is None else dtype.itemsize
        self._asked = False
        self._points = total_of(extents[d] for d in test.dims() if d >= 0)
        self._whole = total_of(self._shape)
        self._allows_zero = graph.opset >= Since.ZERO_SIZES
        self._lines: dict[int, tuple[Digit, ...]] = {}
        self._out = Reading(test)
        self._fits = True

    def plan(self) -> Reading | None:
        out, test = self._out, self._test
        looked: Sequence[Poly] = test.idx
        place = None
        if test.pred not in OF_ELEMENTS:
            looked, place = test.idx[:-1], test.idx[-1]
        if test.src and (self._graph[test.src].shape is None or len(self._shape) != len(looked)):
            return None
        if place is not None:
            place = self._without_free(place, looked)
            if place is None:
                return None
        looked = [self._at_once(d, p) for d, p in enumerate(looked)]
        self._find_lines((*looked, *([] if place is None else [place])))
        if test.src:
            self._look(looked)
        out.place = place
        if place is not None:
            out.sizes.append(place)
            self._compare(place)
        self._find_absent()
        self._reduced()
        return out if self._fits else None

    def _at_once(self, d: int, p: Poly) -> Poly:
        """Where all of a bound dimension is looked at, along which the value is the same, one place
        of it tells; that there may be none is told apart (`_find_absent`).
        """
        dim = bare_dim(p)
        if dim is None or dim >= 0 or p != dim_index(dim, self._shape[d]):
            return p
        if sum(dim in {a.dim for a in q.digits()} for q in self._test.idx) > 1:
            return p
        return ZERO if is_same_along(self._graph, self._test.src, d) else p

    # which lines there are

    def _without_free(self, p: Poly, looked: Sequence[Poly]) -> Poly | None:
        """A place that is compared, without the bound digits that nothing else looks at: the first
        or the last one decides; None where that is not known.
        """
        kept = {a for q in looked for a in q.digits()}
        total = ZERO
        for digits, factor in p.by_digits().items():
            free = [a for a in digits if a.dim < 0 and a not in kept]
            if not free:
                total = total + factor * total_of(map(atom, digits))
                continue
            (a,) = digits if len(digits) == 1 else (None,)
            rises = True if nonneg(factor) else False if nonneg(-factor) else None
            if a is None or rises is None or not _disjoint(self._digits_of(a.dim)):
                return None
            large = self._test.pred == "pos" or not self._test.yes  # where the test holds
            last = (a.dim in self._test.somes) == (large == rises)
            total = total + (factor * (a.extent - 1) if last else ZERO)
        return total

    def _digits_of(self, dim: int) -> list[Digit]:
        return list(dict.fromkeys(a for p in self._test.idx for a in p.digits() if a.dim == dim))

    def _find_lines(self, index: Iterable[Poly]) -> None:
        used: dict[int, dict[Digit, None]] = {}
        for p in index:
            for a in sorted(p.digits(), key=str):
                used.setdefault(a.dim, {})[a] = None
        for d, digits in used.items():
            if d >= 0:
                self._lines[d] = (Digit(d, ONE, self._extents[d]),)
            elif _disjoint(self._digits_of(d)):
                self._lines[d] = tuple(digits)
            else:
                self._lines[d] = (Digit(d, ONE, self._size_of(d)),)

    def _size_of(self, dim: int) -> Poly:
        """The extent of a bound dimension; its digits cover it whole."""
        size = ONE
        for a in self._digits_of(dim):
            reach = a.stride * a.extent
            size = reach if size.divide(reach) is None else size
        return size

    def _lines_in(self, p: Poly) -> list[Digit]:
        """The lines that an index expression goes along."""
        found: dict[Digit, None] = {}
        for a in sorted(p.digits(), key=lambda a: (a.dim, str(a))):
            lines = self._lines[a.dim]
            found.setdefault(a if a in lines else lines[0])
        return list(found)

    # how the value is looked at

    def _look(self, index: Sequence[Poly]) -> None:
        out = self._out
        out.axes = list(range(len(self._shape)))
        tables = [
            (dims, lines)
            for dims, lines in _together(index, self._lines_in)
            if len(dims) > 1 or not self._in_place(dims[0], index[dims[0]], lines)
        ]
        if self._joined and tables:
            along = dict.fromkeys(a for _, lines in tables for a in lines)
            tables = [(sorted(d for dims, _ in tables for d in dims), list(along))]
        now = [t for t in tables if not self._is_later(*t)]
        for dims, lines in now:
            self._pick(dims, lines, index)
        if self._test.pred in OF_ELEMENTS:
            self._ask()
        for dims, lines in tables:
            if (dims, lines) not in now:
                self._gather_axes(dims)
                self._pick(dims, lines, index)

    def _is_later(self, dims: list[int], lines: list[Digit]) -> bool:
        """True where dimensions move, or grow: behind the predicate that is a byte an element."""
        apart = dims[-1] - dims[0] != len(dims) - 1
        return apart or bool(self._padded(dims, lines)) or self._in_rows(dims)

    def _in_rows(self, dims: list[int]) -> bool:
        """True where dimensions cannot be joined."""
        return len(dims) > 1 and not (self._allows_zero or all(map(_is_some, self._shape)))

    def _in_place(self, d: int, p: Poly, lines: list[Digit]) -> bool:
        """A dimension that needs no table: whole, at one place, or lines one inside the other."""
        extent, axis = self._shape[d], self._out.axes.index(d)
        if not lines:
            if extent == ONE and p == ZERO:
                self._step(Drop(axis), [])
            elif _is_some(extent):
                self._moved(Take(axis, d, p), [])
            else:
                self._moved(Cut(axis, d, p), [Place(d)])
            self._out.sizes += [] if extent == ONE else [p]
            return True
        order = _nested(p, lines, extent)
        if order is not None and len(order) == 1:
            self._out.axes[axis] = order[0]
            return True
        if order is None or not (self._allows_zero or all(_is_some(a.extent) for a in order)):
            return False
        self._step(Split(axis, order), list(order))
        self._out.sizes += [a.extent for a in order]
        return True

    def _padded(self, dims: list[int], lines: list[Digit]) -> tuple[int, ...]:
        """Dimensions that may be empty where the lines are not."""
        along = [a.extent for a in lines]
        return tuple(
            d for d in dims if not _is_some(self._shape[d]) and self._shape[d] not in along
        )

    def _pick(self, dims: list[int], lines: list[Digit], index: Sequence[Poly]) -> None:
        axis, table = self._out.axes.index(dims[0]), total_of(a.extent for a in lines)
        source = total_of(self._shape[d] for d in dims)
        coordinates = all(a.dim >= 0 for a in lines)
        known = at_most(table, source) or (coordinates and at_most(table, self._points))
        if not (known or (coordinates and len(lines) == 1)):
            self._fits = False
        places = tuple(index[d] for d in dims)
        padded = self._padded(dims, lines)
        if padded:
            self._out.touched += 2 * self._elements() * self._width()
        self._out.touched += 3 * INDEX * table
        self._out.sizes += [*places, *(a.extent for a in lines)]
        rows = self._in_rows(dims)
        self._moved(Pick(axis, tuple(dims), places, tuple(lines), padded, rows), list(lines))

    def _gather_axes(self, dims: list[int]) -> None:
        """Bring dimensions side by side."""
        axes = self._out.axes
        places = [axes.index(d) for d in dims]
        first = 0 if self._in_rows(dims) else places[0]
        if places == list(range(first, first + len(places))):
            return
        rest = [k for k in range(len(axes)) if k not in places]
        self._turn([*places, *rest])

    def _turn(self, order: list[int]) -> None:
        self._out.axes = [self._out.axes[k] for k in order]
        self._out.steps.append(Turn(tuple(order)))
        self._out.touched += 2 * self._elements() * self._width()

    def _ask(self) -> None:
        dtype, n = self._graph[self._test.src].dtype, self._elements()
        kind, size = ("f", 4) if dtype is None else (dtype.kind, self._itemsize)
        if self._test.pred == "nz":
            self._out.touched += n * (size + 1 if kind != "b" else 0)
        else:
            if kind != "f":  # compared as float32
                self._out.touched, size = self._out.touched + n * (size + 4), 4
            self._out.touched += n * (2 * size + 5 if self._test.pred == "small" else size + 1)
        self._out.steps.append(Ask())
        self._asked = True

    def _compare(self, place: Poly) -> None:
        """A place is compared with a length, or with 0: flags over all lines of both."""
        lines = [a for a in self._lines_in(place) if a not in self._out.axes]
        more = total_of(a.extent for a in lines)
        self._bound(more)
        self._out.touched += self._elements() * more * 2 + more * 3 * INDEX
        self._out.axes += lines
        self._out.beside = len(lines)
        self._out.sizes += [a.extent for a in lines]
        self._asked = True

    # what is bound

    def _find_absent(self) -> None:
        """Bound dimensions that may be empty though the axes are not."""
        for d in sorted(x for x in self._test.dims() if x < 0):
            size = self._size_of(d)
            shown = total_of(
                a.extent for a in self._out.axes if isinstance(a, Digit) and a.dim == d
            )
            if not _is_some(size) and shown != size:
                self._out.absent.append((d, size))
                self._out.sizes.append(size)

    def _reduced(self) -> None:
        """What reducing bound axes takes: those "for some", then those "for all"."""
        axes, narrow, kept_as_bytes = list(self._out.axes), is_narrow(self._graph), False
        for some in (True, False):
            gone = [a for a in axes if is_bound(a, self._test, some=some)]
            if not gone:
                continue
            n = self._elements(axes)
            turned = not is_bound(axes[-1], self._test, some=some)
            per = (1 + 2 * turned + 2 * (not kept_as_bytes)) if narrow else 2 * WIDE + 3
            self._out.touched += per * n
            axes, kept_as_bytes = [a for a in axes if a not in gone], True

    # counting

    def _width(self) -> int:
        return 1 if self._asked else self._itemsize

    def _elements(self, axes: Sequence[Axis] | None = None, *, most: bool = False) -> Poly:
        """How many there are; `most`: one place is at most all of its dimension."""
        total = ONE
        for a in self._out.axes if axes is None else axes:
            if isinstance(a, Digit):
                total = total * a.extent
            elif isinstance(a, int) or most:
                total = total * self._shape[a if isinstance(a, int) else a.dim]
        return total

    def _bound(self, others: Poly = ONE) -> None:
        """What is made has no more elements than the value, or than the coordinates have points."""
        counts = (self._elements() * others, self._elements(most=True) * others)
        if not any(at_most(n, limit) for n in counts for limit in (self._whole, self._points)):
            self._fits = False

    def _step(self, step: Drop | Take | Cut | Split | Pick, axes: Sequence[Axis]) -> None:
        count = len(step.sources) if isinstance(step, Pick) else 1
        self._out.axes[step.axis : step.axis + count] = axes
        self._out.steps.append(step)

    def _moved(self, step: Take | Cut | Pick, axes: Sequence[Axis]) -> None:
        self._step(step, axes)
        self._bound()
        self._out.touched += 2 * self._elements() * self._width()


def _is_some(extent: Poly) -> bool:
    """True for an extent that is known not to be 0."""
    return (extent.as_int() or 0) > 0


def _disjoint(digits: Sequence[Digit]) -> bool:
    """True for digits of one dimension that take all their values independently."""
    reaches = [a.stride * a.extent for a in digits]
    if not any(all(top.divide(r) is not None for r in reaches) for top in reaches):
        return False
    return not any(a.overlaps(b) for a, b in combinations(digits, 2))


def _together(
    index: Sequence[Poly], lines_in: Callable[[Poly], list[Digit]]
) -> list[tuple[list[int], list[Digit]]]:
    """Dimensions that have lines in common, and these lines."""
    groups: list[tuple[list[int], list[Digit]]] = []
    for d, p in enumerate(index):
        dims, lines = [d], lines_in(p)
        for group in [g for g in groups if not set(g[1]).isdisjoint(lines)]:
            groups.remove(group)
            dims, lines = [*group[0], *dims], list(dict.fromkeys([*group[1], *lines]))
        groups.append((sorted(dims), lines))
    return sorted(groups)


def _nested(p: Poly, lines: Sequence[Digit], extent: Poly) -> tuple[Digit, ...] | None:
    """The lines in the order in which they count through a dimension, slowest first.

    4*d0 + d1 [d1 < 4] of b*4 places   ->   d0, d1
    """
    factors = p.by_digits()
    if len(factors) != len(lines) or set(factors) != {(a,) for a in lines}:
        return None
    order: list[Digit] = []
    reach, left = ONE, list(lines)
    while left:
        inner = next((a for a in left if factors[(a,)] == reach), None)
        if inner is None:
            return None
        order.insert(0, inner)
        left.remove(inner)
        reach = reach * inner.extent
    return tuple(order) if reach == extent else None
