"""Live points of a domain, computed by ordinary ONNX nodes: the run-time side of a dead fact.

    dead[c0, c1, ..] = and over tests          live = not dead

Each test is evaluated as `regions.reading` plans it, over what it mentions only, and what is bound
("for some key") is reduced away:

    some j: mask[d0, j] != 0        mask [b, s] -> Cast(bool) -> any over s -> [b, 1]

Other coordinates are broadcast, when the tests meet.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import MASKED, SMALL
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Digit, Poly, sym, within
from pitc.ir.nodes import Array
from pitc.ir.predicate import Test
from pitc.ir.since import Since
from pitc.passes.lower.builder import Builder
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import input_mask
from pitc.passes.regions.reading import (
    Ask,
    Axis,
    Cut,
    Drop,
    Pick,
    Reading,
    Split,
    Step,
    Take,
    Turn,
    is_bound,
    is_narrow,
    reading_of,
)


def _nonzero(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    return x if dtype == np.bool_ else build.op("Cast", [x], to=ir.DataType.BOOL)


def _number(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    return x if dtype == np.int64 else build.op("Cast", [x], to=ir.DataType.INT64)


def _very_negative(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """At most MASKED: below the next number of the type, as old operator sets have no other way."""
    x, limit = _comparable(build, x, dtype, MASKED)
    return build.op("Less", [x, build.constant(np.nextafter(limit, limit.dtype.type(0)))])


def _small(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """Between the limits: flags take a quarter of the memory of absolute values."""
    x, limit = _comparable(build, x, dtype, SMALL)
    below = build.op("Less", [x, build.constant(limit)])
    return build.op("And", [below, build.op("Less", [build.constant(-limit), x])])


# what a predicate says of elements (`OF_ELEMENTS`); each is false for NaN but `nz`
PREDICATES: Mapping[str, Callable[[Builder, ir.Value, np.dtype], ir.Value]] = {
    "nz": _nonzero,
    "neg": _very_negative,
    "small": _small,
}


def _comparable(
    build: Builder, x: ir.Value, dtype: np.dtype, limit: float
) -> tuple[ir.Value, Array]:
    """A value and a number of one type that ONNX Runtime compares, and that holds the number."""
    if dtype.name not in ("float16", "float32", "float64"):
        dtype, x = np.dtype(np.float32), build.op("Cast", [x], to=ir.DataType.FLOAT)
    return x, np.asarray(limit, dtype)


def live_points(build: Builder, graph: Graph, domain: Domain) -> ir.Value:
    """Emit nodes that compute which points are live.

    Args:
        build: Where nodes go.
        graph: The analysed graph, for shapes and types of the tested values.
        domain: The domain.

    Returns:
        bool `[E0, .., E(r-1)]`.
    """
    if domain.lives_everywhere:
        shape = build.concat(build.sizes(domain.extents))
        return build.op("ConstantOfShape", [shape], value=ir.tensor([True]))
    readings = _readings(graph, domain)
    if len(readings) == 1 and _is_everywhere(domain, readings[0].axes):
        return _test(build, graph, domain, readings[0], alive=True)
    dead: ir.Value | None = None
    for reading in readings:
        value = _test(build, graph, domain, reading, alive=False)
        dead = value if dead is None else build.op("And", [dead, value])
    assert dead is not None
    sizes = build.sizes(domain.extents)
    return build.op("Expand", [build.op("Not", [dead]), build.concat(sizes)])


def detected_mask(build: Builder, graph: Graph, domain: Domain) -> ir.Value:
    """What a detector reads: an input as it is, where points live that are not 0, or `live_points`.

    An input lies where the detector runs, on the host; what a node made of it might lie on a GPU.
    """
    mask = input_mask(graph, domain)
    return build.value(mask) if mask else live_points(build, graph, domain)


def _readings(graph: Graph, domain: Domain) -> list[Reading]:
    """How its tests are evaluated.

    Raises:
        ValueError: One of them is not (`live_tests.can_compute`).
    """
    return [_reading(graph, test, domain.extents) for test in sorted(domain.dead, key=str)]


def _reading(graph: Graph, test: Test, extents: Shape) -> Reading:
    reading = reading_of(graph, test, extents)
    if reading is None:
        raise ValueError(f"the test '{test}' cannot be evaluated")
    return reading


def _is_everywhere(domain: Domain, axes: Sequence[Axis]) -> bool:
    """True where a test goes along every coordinate."""
    return all(e == ONE or Digit(k, ONE, e) in axes for k, e in enumerate(domain.extents))


def _test(
    build: Builder, graph: Graph, domain: Domain, reading: Reading, *, alive: bool
) -> ir.Value:
    """One test as bool, shaped to broadcast over the coordinates; its opposite where `alive`."""
    value, test = _Flags(build, narrow=is_narrow(graph)), reading.test
    axes = _evaluate(value, graph, reading)
    for bound, some in ((test.somes, True), (test.alls, False)):
        gone = [k for k, a in enumerate(axes) if is_bound(a, test, some=some)]
        if gone:
            axes = value.reduce(axes, gone, some=some)
        for extent in (e for d, e in reading.absent if d in bound):
            value.of_none(build.size(extent), some=some)
    return _along(build, value.plain(opposite=alive), axes, domain.rank)


def _along(build: Builder, value: ir.Value, axes: Sequence[Axis], rank: int) -> ir.Value:
    """A value with its axes in the order of coordinates, shaped to broadcast over all of them."""
    places = [a.dim for a in axes if isinstance(a, Digit)]
    if places != sorted(places):
        order = sorted(range(len(places)), key=places.__getitem__)
        value = build.op("Transpose", [value], perm=order)
    for k in range(rank):
        if k not in places:
            value = build.unsqueeze(value, k)
    return value


def table(build: Builder, graph: Graph, test: Test, extents: Shape) -> ir.Value:
    """Emit nodes that read the numbers which a test looks at.

    Args:
        build: Where nodes go.
        graph: The analysed graph.
        test: `nz` of an integer, without bound dimensions.
        extents: Of the coordinates.

    Returns:
        int64, of these extents.
    """
    reading = _reading(graph, test, extents)
    value = _steps(build, graph, reading, _number, np.dtype(np.int64))
    sizes = build.concat(build.sizes(extents))
    return build.op("Expand", [_along(build, value, reading.axes, len(extents)), sizes])


class _Flags:
    """Flags on their way: what they say, or the opposite of it, as bool or as bytes.

    Args:
        build: Where nodes go.
        narrow: They are reduced as bytes; else they are counted, as int32, since a sum of nothing
            is 0 in every version and on every provider.
    """

    def __init__(self, build: Builder, *, narrow: bool) -> None:
        self.build, self._narrow = build, narrow
        self._value: ir.Value | None = None
        self._bytes = self._opposite = False

    @property
    def value(self) -> ir.Value:
        assert self._value is not None
        return self._value

    def set(self, value: ir.Value, *, opposite: bool) -> None:
        """Begin with flags, or with their opposite."""
        self._value, self._opposite = value, opposite

    def plain(self, *, opposite: bool = False) -> ir.Value:
        """What they say, or its opposite, as bool."""
        value = self.value
        if self._bytes:
            value = self.build.op("Cast", [value], to=ir.DataType.BOOL)
        return value if self._opposite == opposite else self.build.op("Not", [value])

    def reduce(self, axes: Sequence[Axis], gone: Sequence[int], *, some: bool) -> list[Axis]:
        """Reduce some axes away: does some place say it, or does every one? What is left of them.

        A maximum of no bytes is 0, a minimum 255: "some" of nothing is false, "all" is true.
        """
        op, rest = self.build.op, [k for k in range(len(axes)) if k not in gone]
        left = [axes[k] for k in rest]
        if not self._narrow:
            number = op("Cast", [self.plain(opposite=not some)], to=ir.DataType.INT32)
            count = self.build.reduce("ReduceSum", number, gone)
            self.set(op("Cast", [count], to=ir.DataType.BOOL), opposite=not some)
            return left
        value = self.value if self._bytes else op("Cast", [self.value], to=ir.DataType.UINT8)
        kind, self._bytes = "ReduceMax" if some != self._opposite else "ReduceMin", True
        apart = bool(rest) and rest[-1] > gone[0]
        coordinates = all(isinstance(a, Digit) and a.dim >= 0 for a in left)
        whole = coordinates and self.build.opset >= Since.ZERO_SIZES
        if not apart or (len(left) > 1 and not whole):
            self._value = self.build.reduce(kind, value, gone)
            return left
        # what lies side by side is reduced 30 times faster; behind a Flatten it stays so, as ONNX
        # Runtime moves a Transpose behind a reduction that follows it
        value = op("Transpose", [value], perm=[*rest, *gone])
        self._value = self.build.reduce(kind, op("Flatten", [value], axis=len(rest)), [1])
        if len(left) > 1:
            sizes = [self.build.size(a.extent) for a in left if isinstance(a, Digit)]
            self._value = self.build.reshape_to(self._value, sizes)
        return left

    def of_none(self, size: ir.Value, *, some: bool) -> None:
        """They are "some" or "all" of nothing where a size is 0."""
        value, op = self.plain(), self.build.op
        none = op("Equal", [self.build.scalar(size), _int(self.build, 0)])
        value = op("And", [value, op("Not", [none])]) if some else op("Or", [value, none])
        self._bytes = False
        self.set(value, opposite=False)


def _evaluate(flags: _Flags, graph: Graph, reading: Reading) -> list[Axis]:
    """Emit a test's steps; the axes of its flags."""
    build, test = flags.build, reading.test
    value: ir.Value | None = None
    if test.src:
        ask = PREDICATES.get(test.pred, _nonzero)  # of a length none is asked
        value = _steps(build, graph, reading, ask, np.dtype(np.bool_))
    if reading.place is not None:
        value = _compared(build, reading, value)
    assert value is not None
    flags.set(value, opposite=not test.yes)
    return reading.axes


def _steps(
    build: Builder,
    graph: Graph,
    reading: Reading,
    ask: Callable[[Builder, ir.Value, np.dtype], ir.Value],
    asked: np.dtype,
) -> ir.Value:
    """The tested value at the points of a reading, each element as `ask` makes it."""
    test = reading.test
    value, dtype = build.value(test.src), graph.dtype(test.src)
    rank = len(graph[test.src].shape or ())
    for step in reading.steps:
        if isinstance(step, Ask):
            value, dtype = ask(build, value, dtype), asked
        elif isinstance(step, Pick):
            value = _picked(build, graph, test, step, value, rank, dtype)
            rank += len(step.lines) - len(step.sources)
        else:
            value, rank = _moved(build, graph, test, step, value, rank)
    return value


def _moved(
    build: Builder, graph: Graph, test: Test, step: Step, value: ir.Value, rank: int
) -> tuple[ir.Value, int]:
    """A step that needs no table, and the rank behind it."""
    match step:
        case Drop(axis):
            return build.squeeze(value, [axis]), rank - 1
        case Turn(order):
            return build.op("Transpose", [value], perm=order), rank
        case Split(axis, lines):
            sizes = _sizes(build, value, rank)
            sizes[axis : axis + 1] = [build.size(a.extent) for a in lines]
            return build.reshape_to(value, sizes), len(sizes)
        case Take(axis, source, place):
            at = _place(build, graph, test.src, source, place)
            return build.op("Gather", [value, at], axis=axis), rank - 1
        case Cut(axis, source, place):
            first = build.reshape(_place(build, graph, test.src, source, place), [1])
            last = build.op("Add", [first, build.constant(np.ones(1, np.int64))])
            axes = build.constant(np.asarray([axis], np.int64))
            return build.op("Slice", [value, first, last, axes]), rank
    raise AssertionError(step)


def _sizes(build: Builder, value: ir.Value, rank: int) -> list[ir.Value]:
    """Each size of a value, as int64 [1]."""
    shape = build.op("Shape", [value])
    places = (build.constant(np.asarray([d], np.int64)) for d in range(rank))
    return [build.op("Gather", [shape, p], axis=0) for p in places]


def _place(build: Builder, graph: Graph, name: str, d: int, p: Poly) -> ir.Value:
    """One place along a dimension of a value: int64, a scalar, in range."""
    place, extent = _index(build, (), p), (graph[name].shape or ())[d]
    return place if within(p, extent) else _clipped(build, place, build.dimension(name, d))


def _picked(
    build: Builder,
    graph: Graph,
    test: Test,
    step: Pick,
    value: ir.Value,
    rank: int,
    dtype: np.dtype,
) -> ir.Value:
    """Dimensions side by side at a table of places."""
    shape, sizes = graph[test.src].shape or (), _sizes(build, value, rank)
    known = dict(zip(step.sources, sizes[step.axis :], strict=False))
    one = build.constant(np.ones(1, np.int64))
    for axis in (step.axis + step.sources.index(d) for d in step.padded):
        value = _with_element(build, value, sizes, axis, dtype)
        sizes[axis] = build.op("Add", [sizes[axis], one])
    end = step.axis + len(step.sources)
    joined, places = sizes[step.axis : end], list[ir.Value]()
    for d, p in zip(step.sources, step.index, strict=True):
        place = _index(build, step.lines, p)
        places.append(place if within(p, shape[d]) else _clipped(build, place, known[d]))
    if step.rows:
        return build.op("GatherND", [value, _rows(build, step, places)])
    table, total = places[0], joined[0]
    for place, size in zip(places[1:], joined[1:], strict=True):
        table = build.op("Add", [build.op("Mul", [table, build.scalar(size)]), place])
        total = build.op("Mul", [total, size])
    if places[1:]:
        value = build.reshape_to(value, [*sizes[: step.axis], total, *sizes[end:]])
    return build.op("Gather", [value, table], axis=step.axis)


def _rows(build: Builder, step: Pick, places: Sequence[ir.Value]) -> ir.Value:
    """A table that has a row of places for each point of its lines."""
    rank, shape = len(step.lines), build.concat([build.size(a.extent) for a in step.lines])
    columns = [build.unsqueeze(build.op("Expand", [p, shape]), rank) for p in places]
    return build.op("Concat", columns, axis=rank)


def _with_element(
    build: Builder, value: ir.Value, sizes: Sequence[ir.Value], axis: int, dtype: np.dtype
) -> ir.Value:
    """The value with one more 0 along a dimension that may be empty where the points are not.

    No reader asks for what is looked up then, but a look-up in nothing would fail.
    """
    one = build.constant(np.ones(1, np.int64))
    shape = build.concat([*sizes[:axis], one, *sizes[axis + 1 :]])
    more = build.op("Expand", [build.constant(np.zeros((), dtype)), shape])
    return build.op("Concat", [value, more], axis=axis)


def _compared(build: Builder, reading: Reading, lengths: ir.Value | None) -> ir.Value:
    """A place is below a length, or is not below 0.

    What rises with a place stands on the one side and what falls on the other, so that neither has
    all dimensions: d0 - d1 >= 0 is d1 - 1 < d0.
    """
    place = reading.place or ZERO
    if lengths is not None:
        for k in range(len(reading.axes) - reading.beside, len(reading.axes)):
            lengths = build.unsqueeze(lengths, k)
        lengths = build.op("Cast", [lengths], to=ir.DataType.INT64)
        return build.op("Less", [_index(build, reading.axes, place), lengths])
    rises = Poly({m: c for m, c in place.terms.items() if c > 0})
    low = _index(build, reading.axes, rises - place - 1)
    return build.op("Less", [low, _index(build, reading.axes, rises)])


def _int(build: Builder, n: int) -> ir.Value:
    return build.constant(np.asarray(n, np.int64))


def _index(build: Builder, axes: Sequence[Axis], p: Poly) -> ir.Value:
    """An index expression over some lines, int64, broadcastable; without lines a scalar."""
    total: ir.Value | None = None
    for monomial, factor in p.terms.items():
        term = _int(build, factor)
        for a in monomial:
            part = (
                _digit(build, axes, a) if isinstance(a, Digit) else build.scalar(build.size(sym(a)))
            )
            term = part if factor == 1 == len(monomial) else build.op("Mul", [term, part])
        total = term if total is None else build.op("Add", [total, term])
    return total if total is not None else _int(build, 0)


def _digit(build: Builder, axes: Sequence[Axis], a: Digit) -> ir.Value:
    """A digit along its line: all its values, or a part of the whole dimension's."""
    line = next(x for x in axes if isinstance(x, Digit) and (x == a or _has(x, a, axes)))
    part = build.coordinate(build.size(line.extent), axes.index(line), len(axes))
    if line == a:
        return part
    if a.stride != ONE:
        part = build.op("Div", [part, _positive(build, a.stride)])
    if a.stride * a.extent != line.extent:
        part = build.op("Mod", [part, _positive(build, a.extent)])
    return part


def _has(line: Digit, a: Digit, axes: Sequence[Axis]) -> bool:
    """True for the line of a whole dimension, of which a digit is a part."""
    return line.dim == a.dim and line.stride == ONE and a not in axes


def _positive(build: Builder, extent: Poly) -> ir.Value:
    """A size to divide by: 1 where it is 0, as there is no point to divide then."""
    size = build.size(extent)
    if (extent.as_int() or 0) > 0:
        return size
    return build.op("Where", [build.op("Less", [size, _int(build, 1)]), _int(build, 1), size])


def _clipped(build: Builder, place: ir.Value, size: ir.Value) -> ir.Value:
    """A place moved into range, or to 0 where there is none: no reader asks for the others, the
    look-up must only not fail.
    """
    last = build.op("Sub", [build.scalar(size), _int(build, 1)])
    place = build.op("Where", [build.op("Less", [last, place]), last, place])
    return build.op("Where", [build.op("Less", [place, _int(build, 0)]), _int(build, 0), place])
