"""Live points of a domain, computed by ordinary ONNX nodes: the run-time side of a dead fact.

    dead[c0, c1, ..] = and over tests          live = not dead

Where a test looks at whole coordinates only, its predicate is computed on the tested value as it
is, and bound dimensions ("for some key") are reduced away:

    some j: mask[d0, j] != 0        mask [b, s] -> Cast(bool) -> any over s -> [b, 1]

Any other test looks the value up at index expressions (GatherND over the grid of coordinates and
bound dimensions).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import MASKED, SMALL
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, sym, within
from pitc.ir.nodes import Array
from pitc.ir.region import Test
from pitc.passes.lower.builder import Builder
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import dims_in_place


def _nonzero(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    return x if dtype == np.bool_ else build.op("Cast", [x], to=ir.DataType.BOOL)


def _very_negative(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    """At most MASKED: below the next number of the type, as old operator sets have no other way."""
    x, limit = _comparable(build, x, dtype, MASKED)
    return build.op("Less", [x, build.constant(np.nextafter(limit, limit.dtype.type(0)))])


def _small(build: Builder, x: ir.Value, dtype: np.dtype) -> ir.Value:
    x, limit = _comparable(build, x, dtype, SMALL)
    return build.op("Less", [build.op("Abs", [x]), build.constant(limit)])


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


@dataclass(slots=True)
class _Grid:
    """Extents of the coordinates and of a test's bound dimensions, also as run-time sizes."""

    dims: list[int]
    extents: list[Poly]
    sizes: list[ir.Value]


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
        shape = build.concat([build.size(e) for e in domain.extents])
        return build.op("ConstantOfShape", [shape], value=ir.tensor([True]))
    tests = sorted(domain.dead, key=str)
    if len(tests) == 1 and _names_all(domain, tests[0]) and dims_in_place(graph, tests[0]):
        return _test(build, graph, domain, tests[0], alive=True)
    dead: ir.Value | None = None
    for test in tests:
        value = _test(build, graph, domain, test, alive=False)
        dead = value if dead is None else build.op("And", [dead, value])
    assert dead is not None
    sizes = [build.size(e) for e in domain.extents]
    return build.op("Expand", [build.op("Not", [dead]), build.concat(sizes)])


def detected_mask(build: Builder, graph: Graph, domain: Domain) -> ir.Value:
    """What a detector reads: an input as it is, where points live that are not 0, or `live_points`.

    An input lies where the detector runs, on the host; what a node made of it might lie on a GPU.
    """
    tests = list(domain.dead)
    if len(tests) == 1 and tests[0].pred == "nz" and not tests[0].yes:
        (test,), dims = tests, dims_in_place(graph, tests[0])
        fact, given = graph[test.src], build.value(test.src)
        number = fact.dtype is not None and fact.dtype.kind in "iuf"
        if number and given in graph.model.graph.inputs and dims == [*range(domain.rank)]:
            return given
    return live_points(build, graph, domain)


def _names_all(domain: Domain, test: Test) -> bool:
    return all(k in test.dims() for k in range(domain.rank))


def _test(build: Builder, graph: Graph, domain: Domain, test: Test, alive: bool) -> ir.Value:
    """One test as bool, shaped to broadcast over the coordinates; its opposite where `alive`."""
    dims = dims_in_place(graph, test)
    if dims is not None:
        return _on_the_value(build, graph, domain, test, dims, alive)
    bound_dims = sorted(d for d in test.dims() if d < 0)
    extents = [*domain.extents, *_bound_extents(test, bound_dims)]
    grid = _Grid([*range(domain.rank), *bound_dims], extents, [build.size(e) for e in extents])
    value = _looked_up(build, graph, grid, test, test.yes != alive)
    return _quantified(build, value, test, grid.dims, alive)


def _on_the_value(
    build: Builder,
    graph: Graph,
    domain: Domain,
    test: Test,
    dims: list[int | None],
    alive: bool,
) -> ir.Value:
    """A test of whole dimensions: the predicate on the value, reduced, turned and spread."""
    ones = [d for d, at in enumerate(dims) if at is None]
    value = build.squeeze(build.value(test.src), ones)
    value = _predicate(build, graph, test, value, test.yes != alive)
    kept = [at for at in dims if at is not None]
    value = _quantified(build, value, test, kept, alive)
    places = [at for at in kept if at >= 0]
    if places != sorted(places):
        order = sorted(range(len(places)), key=places.__getitem__)
        value = build.op("Transpose", [value], perm=order)
    for k in range(domain.rank):
        if k not in places:
            value = build.unsqueeze(value, k)
    return value


def _looked_up(build: Builder, graph: Graph, grid: _Grid, test: Test, wanted: bool) -> ir.Value:
    """A test, or its opposite, at every point of a grid."""
    if test.pred == "pos":
        place = _index(build, graph, grid, test.idx[0])
        if grid.dims[-1:] and grid.dims[-1] < 0:  # bound dimensions may be empty
            place = build.op("Expand", [place, build.concat(grid.sizes)])
        value = build.op("Less", [_int(build, -1), place])
        return value if wanted else build.op("Not", [value])
    places = [_index(build, graph, grid, p) for p in test.idx]
    for d, (p, extent) in enumerate(zip(test.idx, graph[test.src].shape or (), strict=False)):
        if not within(p, extent):
            places[d] = _clipped(build, places[d], build.dimension(test.src, d))
    if test.pred != "below":
        looked = _look_up(build, graph, grid, test.src, places)
        return _predicate(build, graph, test, looked, wanted)
    looked = _look_up(build, graph, grid, test.src, places[:-1])
    value = build.op("Less", [places[-1], build.op("Cast", [looked], to=ir.DataType.INT64)])
    return value if wanted else build.op("Not", [value])


def _predicate(build: Builder, graph: Graph, test: Test, x: ir.Value, yes: bool) -> ir.Value:
    value = PREDICATES[test.pred](build, x, graph[test.src].dtype or np.dtype(np.float32))
    return value if yes else build.op("Not", [value])


def _quantified(
    build: Builder, value: ir.Value, test: Test, dims: Sequence[int], alive: bool
) -> ir.Value:
    """The bound dimensions of a test reduced away, those "for some" first, as they stand inside.

    Where `alive`, the value is the opposite of the test's statement: of "some" that is "all".

    Args:
        build: Where nodes go.
        value: bool, with a dimension for each of `dims`.
        test: The test.
        dims: Dimensions of the point; the negative ones are bound.
        alive: The opposite is wanted.
    """
    left = list(dims)
    for names, some in ((test.somes, not alive), (test.alls, alive)):
        axes = [k for k, d in enumerate(left) if d in names]
        if axes:
            value = _any(build, value, axes) if some else _all(build, value, axes)
            left = [d for d in left if d not in names]
    return value


def _any(build: Builder, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """True where some element along the axes is: they are counted, as a sum of nothing is 0 (a
    maximum of nothing has no value).
    """
    number = build.op("Cast", [value], to=ir.DataType.INT32)
    return build.op("Cast", [build.reduce("ReduceSum", number, axes)], to=ir.DataType.BOOL)


def _all(build: Builder, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """True where no element along the axes is false, so also where there is none."""
    return build.op("Not", [_any(build, build.op("Not", [value]), axes)])


def _bound_extents(test: Test, bound: Sequence[int]) -> list[Poly]:
    """The extent of each bound dimension; its digits cover it whole."""
    extents: dict[int, Poly] = {}
    for p in test.idx:
        for a in p.digits():
            if a.dim < 0:
                known = extents.get(a.dim, ONE)
                size = a.stride * a.extent
                extents[a.dim] = size if known.divide(size) is None else known
    return [extents[d] for d in bound]


def _int(build: Builder, n: int) -> ir.Value:
    return build.constant(np.asarray(n, np.int64))


def _index(build: Builder, graph: Graph, grid: _Grid, p: Poly) -> ir.Value:
    """An index expression over the grid, int64, broadcastable."""
    total: ir.Value | None = None
    for monomial, factor in p.terms.items():
        term = _int(build, factor)
        for a in monomial:
            if isinstance(a, Digit):
                place = grid.dims.index(a.dim)
                part = build.coordinate(grid.sizes[place], place, len(grid.dims))
                if a.stride != ONE:
                    part = build.op("Div", [part, _positive(build, a.stride)])
                if a.stride * a.extent != grid.extents[place]:
                    part = build.op("Mod", [part, _positive(build, a.extent)])
            else:
                part = build.size(sym(a))
            term = build.op("Mul", [term, part])
        total = term if total is None else build.op("Add", [total, term])
    return total if total is not None else _int(build, 0)


def _positive(build: Builder, extent: Poly) -> ir.Value:
    """A size to divide by: 1 where it is 0, as there is no point to divide then."""
    size = build.size(extent)
    if (extent.as_int() or 0) > 0:
        return size
    return build.op("Where", [build.op("Less", [size, _int(build, 1)]), _int(build, 1), size])


def _clipped(build: Builder, place: ir.Value, size: ir.Value) -> ir.Value:
    """A place moved into range: no reader asks for the others, the look-up must only not fail."""
    last = build.op("Sub", [build.scalar(size), _int(build, 1)])
    place = build.op("Where", [build.op("Less", [last, place]), last, place])
    return build.op("Where", [build.op("Less", [place, _int(build, 0)]), _int(build, 0), place])


def _look_up(
    build: Builder, graph: Graph, grid: _Grid, name: str, places: Sequence[ir.Value]
) -> ir.Value:
    """The value at the given places, shaped like the grid."""
    shape = build.concat(grid.sizes)
    if not places:
        return build.value(name)
    columns = []
    for place in places:
        wide = build.op("Expand", [place, shape])
        columns.append(build.unsqueeze(wide, len(grid.dims)))
    index = columns[0] if len(columns) == 1 else build.op("Concat", columns, axis=len(grid.dims))
    return build.op("GatherND", [_with_elements(build, graph, grid, name), index])


def _with_elements(build: Builder, graph: Graph, grid: _Grid, name: str) -> ir.Value:
    """The value, with one more 0 along dimensions that may be empty where the grid is not.

    No reader asks for what is looked up then, but a look-up in nothing would fail.
    """
    value, extents = build.value(name), graph[name].shape or ()
    sizes = [build.dimension(name, d) for d in range(len(extents))]
    for d, extent in enumerate(extents):
        if (extent.as_int() or 0) > 0 or extent in grid.extents:
            continue
        zero = build.constant(np.zeros((), graph[name].dtype))
        one = build.constant(np.ones(1, np.int64))
        more = build.op("Expand", [zero, build.concat([*sizes[:d], one, *sizes[d + 1 :]])])
        value = build.op("Concat", [value, more], axis=d)
        sizes[d] = build.op("Add", [sizes[d], one])
    return value
