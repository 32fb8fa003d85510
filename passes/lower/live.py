"""Live points of a domain, computed by ordinary ONNX nodes: the run-time side of a dead fact.

    dead[c0, c1, ..] = and over tests          live = not dead

A test on a value looks it up at index expressions (GatherND over the coordinate grid), unless the
expressions are just the value's own dimensions. Bound dimensions ("for some key") become one more
dimension that is reduced away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, dim_index, sym, within
from pitc.ir.region import Test
from pitc.passes.lower.builder import Builder, sizes_known
from pitc.passes.regions.domain import Domain

VERY_NEGATIVE = -1e4
OLDEST = 9  # operator set that has what live points are computed with: Where, Expand
LOOKS_UP = 11  # first one that has Range and GatherND


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
    tests = sorted(domain.dead, key=str)
    if len(tests) == 1 and _dims_to_drop(graph, domain, tests[0]) is not None:
        return _test(build, graph, domain, tests[0], alive=True)
    dead: ir.Value | None = None
    for test in tests:
        value = _test(build, graph, domain, test, alive=False)
        dead = value if dead is None else build.op("And", [dead, value])
    assert dead is not None
    shape = build.concat([build.size(e) for e in domain.extents])
    return build.op("Expand", [build.op("Not", [dead]), shape])


def can_compute(graph: Graph, domain: Domain) -> bool:
    """True where the live points can be computed before the region runs, from sizes that some
    value has.
    """
    version = graph.model.opset_imports.get("", 0)
    direct = all(_dims_to_drop(graph, domain, t) is not None for t in domain.dead)
    if version < (OLDEST if direct else LOOKS_UP):
        return False
    polys = [*domain.extents, *(p for t in domain.dead for p in t.idx)]
    polys += [q for p in polys for a in p.digits() for q in (a.stride, a.extent)]
    sizes = [sym(a) for p in polys for m in p.terms for a in m if isinstance(a, str)]
    return sizes_known(graph, sizes) and not any(
        t.alls or (t.pred == "pos" and t.somes) for t in domain.dead
    )


def _dims_to_drop(graph: Graph, domain: Domain, test: Test) -> list[int] | None:
    """Dimensions of extent 1 of a tested value whose other ones are the coordinates, in order; None
    where they are not, and points have to be looked up.
    """
    own = tuple(dim_index(k, e) for k, e in enumerate(domain.extents))
    if test.pred not in ("nz", "neg"):
        return None
    shape = graph.shapes.get(test.src) or ()
    if (test.idx, shape) == (own, domain.extents):
        return []
    units = [d for d, e in enumerate(shape) if e == ONE]
    kept = [(p, e) for d, (p, e) in enumerate(zip(test.idx, shape, strict=False)) if d not in units]
    return units if kept == list(zip(own, domain.extents, strict=True)) else None


def _test(build: Builder, graph: Graph, domain: Domain, test: Test, alive: bool) -> ir.Value:
    """One test as bool, shaped to broadcast over the coordinates; its opposite where `alive`."""
    wanted = test.yes != alive
    dropped = _dims_to_drop(graph, domain, test)
    if dropped is not None:
        return _predicate(build, graph, test, build.squeeze(build.value(test.src), dropped), wanted)
    bound = sorted(d for d in test.dims() if d < 0)
    extents = [*domain.extents, *_bound_extents(test, bound)]
    grid = _Grid([*range(domain.rank), *bound], extents, [build.size(e) for e in extents])
    if test.pred == "pos":
        value = build.op(
            "GreaterOrEqual", [_index(build, graph, grid, test.idx[0]), _int(build, 0)]
        )
        return build.op("Not", [value]) if alive else value
    places = [_index(build, graph, grid, p) for p in test.idx]
    for d, (p, extent) in enumerate(zip(test.idx, graph.shapes.get(test.src) or (), strict=False)):
        if not within(p, extent):
            places[d] = _clipped(build, places[d], build.dimension(test.src, d))
    if test.pred == "below":
        looked = _look_up(build, graph, grid, test.src, places[:-1])
        value = build.op("Less", [places[-1], build.op("Cast", [looked], to=ir.DataType.INT64)])
        value = value if wanted else build.op("Not", [value])
    else:
        looked = _look_up(build, graph, grid, test.src, places)
        value = _predicate(build, graph, test, looked, wanted)
    if not bound:
        return value
    # opposite of "some" is "all": the negated predicate under the other quantifier
    some = bool(test.somes) != alive
    number = build.op("Cast", [value], to=ir.DataType.INT32)
    axes = list(range(domain.rank, domain.rank + len(bound)))
    reduced = build.reduce("ReduceMax" if some else "ReduceMin", number, axes)
    return build.op("Cast", [reduced], to=ir.DataType.BOOL)


def _predicate(build: Builder, graph: Graph, test: Test, x: ir.Value, yes: bool) -> ir.Value:
    if test.pred == "nz":
        boolean = graph.dtypes.get(test.src) == np.dtype(bool)
        value = x if boolean else build.op("Cast", [x], to=ir.DataType.BOOL)
    else:
        limit = build.constant(np.asarray(VERY_NEGATIVE, graph.dtypes.get(test.src, np.float32)))
        value = build.op("LessOrEqual", [x, limit])
    return value if yes else build.op("Not", [value])


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
    value, extents = build.value(name), graph.shapes.get(name) or ()
    sizes = [build.dimension(name, d) for d in range(len(extents))]
    for d, extent in enumerate(extents):
        if (extent.as_int() or 0) > 0 or extent in grid.extents:
            continue
        zero = build.constant(np.zeros((), graph.dtypes[name]))
        one = build.constant(np.ones(1, np.int64))
        more = build.op("Expand", [zero, build.concat([*sizes[:d], one, *sizes[d + 1 :]])])
        value = build.op("Concat", [value, more], axis=d)
        sizes[d] = build.op("Add", [sizes[d], one])
    return value
