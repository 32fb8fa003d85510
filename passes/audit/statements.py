"""What is said of values, between stages: every fact speaks of what exists, in its own terms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan

from pitc.ir.constant import Range
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import Poly, bound, nonneg
from pitc.ir.nodes import captures, output_names
from pitc.ir.poly import UNDECLARED
from pitc.ir.predicate import SOME
from pitc.ir.region import Region, Test

ADDED = {"below": 1}  # places that a test has beyond those of what it looks at


def wrong_facts(graph: Graph) -> Iterator[str]:
    """Violations of an analysed graph."""
    declared = {s for name in graph.inputs for p in graph[name].shape or () for s in p.symbols()}
    seen: set[tuple[Region, str]] = set()
    for name, r, what in _regions(graph):
        if (r, name) not in seen:
            seen.add((r, name))
            yield from (f"{what} of {name}: {t}" for t in _wrong_region(graph, name, r, declared))
    for name, value in graph.values.items():
        for f in value.fills:
            if isinstance(f.constant, Range) and not f.constant.lo <= f.constant.hi:
                yield f"fill of {name}: the range {f.constant} is empty"
        for what, limit in (("slack", value.slack[1]), ("room", value.room[1])):
            if isnan(limit):
                yield f"{what} of {name}: limit {limit}"
    yield from _wrong_expressions(graph)
    yield from _wrong_integers(graph, declared)
    yield from _self_justified(graph)


def _regions(graph: Graph) -> Iterator[tuple[str, Region, str]]:
    """Every region with the value that it is of."""
    for name, value in list(graph.values.items()):
        yield from ((name, f.region, "fill") for f in value.fills)
        yield from ((name, r, "dead") for r in value.dead)
        yield from ((name, r, "slack") for r in value.slack[0])
        yield from ((name, r, "room") for r in value.room[0])
        yield from ((name, r, "signed") for r in value.signed)
        for what, r in (("finite_if", value.finite_if), ("clean_if", value.clean_if)):
            if r is not None:
                yield name, r, what


def _wrong_region(graph: Graph, name: str, r: Region, declared: set[str]) -> Iterator[str]:
    if not graph.has(name):
        yield "there is no such value"
        return
    if r.via >> len(graph.noted):
        yield f"it rests on bit {r.via.bit_length() - 1} of {len(graph.noted)}"
    shape = graph[name].shape
    for t in r:
        yield from (f"{t}: {text}" for text in _wrong_test(graph, t, shape, declared))
        if len(r) == 1:  # beside others a test may look beyond the end, where it says nothing
            yield from (f"{t}: {text}" for text in _never(graph, t, shape))


def _wrong_test(graph: Graph, t: Test, shape: Shape | None, declared: set[str]) -> Iterator[str]:
    if t.pred == "pos":
        if t.src or len(t.idx) != 1 or not t.yes:
            yield "a test of a position looks at a value"
    elif not graph.has(t.src):
        yield f"there is no value {t.src}"
        return
    else:
        looked_at = graph[t.src].shape
        rank = -1 if looked_at is None else len(looked_at) + ADDED.get(t.pred, 0)
        if len(t.idx) != rank:
            yield f"{len(t.idx)} places of a value of shape {looked_at}"
    if shape is None and any(d >= 0 for d in t.dims()):
        yield "the value has no known rank"
    for p in t.idx:
        yield from _wrong_place(p, shape, declared)


def _never(graph: Graph, t: Test, shape: Shape | None) -> Iterator[str]:
    """Places that are out of range whatever the point."""
    looked_at = graph[t.src].shape or ()
    bound_over = (a.extent for p in t.idx for a in p.digits() if a.dim < 0)
    if _empty((*looked_at, *(shape or ()), *bound_over)):
        return
    for p, extent in zip(t.idx, looked_at, strict=False):
        if nonneg(bound(p, False) - extent) or nonneg(-bound(p, True) - 1):
            yield f"{p} is never a place below {extent}"


def _empty(extents: Sequence[Poly]) -> bool:
    return any(e.as_int() == 0 for e in extents)


def _wrong_place(p: Poly, shape: Shape | None, declared: set[str]) -> Iterator[str]:
    """Digits of dimensions that are not there or not so long; symbols that nobody declares."""
    for a in p.digits():
        if a.dim == SOME:
            yield f"dimension {a.dim} is bound in no way"
        if a.dim < 0 or shape is None:
            continue
        if a.dim >= len(shape):
            yield f"dimension {a.dim} of a value of rank {len(shape)}"
        elif nonneg(a.stride - shape[a.dim]) and not nonneg(-shape[a.dim]):
            yield f"a part of {a.stride} places of dimension {a.dim}, which has {shape[a.dim]}"
    for s in p.symbols() - declared:
        if not s.startswith(UNDECLARED):
            yield f"no input has a size {s}"


def _wrong_expressions(graph: Graph) -> Iterator[str]:
    """Expressions that do not fit their operands, or the shape that is known."""
    for name, known in list(graph.values.items()):
        expr, node = known.expr, known.producer
        if expr is None or node is None:
            continue
        if known.shape != expr.shape:
            yield f"{name} has shape {known.shape}, by its expression {expr.shape}"
        for read in expr.reads:
            value = node.inputs[read.operand] if read.operand < len(node.inputs) else None
            if value is None:
                yield f"{name} reads operand {read.operand}, which is absent"
                continue
            shape = graph[value.name or ""].shape  # not known: the operator tells its rank
            if shape is not None and len(shape) != len(read.index):
                yield f"{name} reads operand {read.operand} at {len(read.index)} places of {shape}"
            dims = {a.dim for p in read.index if p is not None for a in p.digits()}
            if any(not 0 <= d < len(expr.extents) for d in dims):
                yield f"{name} reads operand {read.operand} along axes {sorted(dims)}"


def _wrong_integers(graph: Graph, declared: set[str]) -> Iterator[str]:
    """Symbolic integers of another shape than their value, or of a type that is none."""
    for name, value in graph.values.items():
        numbers = None if value.shape is None else [p.as_int() for p in value.shape]
        known = value.ints
        sized = known is not None and numbers is not None and None not in numbers
        if known is not None and sized and known.shape != tuple(numbers or ()):
            yield f"value of {name}: shape {known.shape} is {numbers}"
        for p in () if known is None else known.reshape(-1):
            yield from (f"value of {name}: {text}" for text in _wrong_place(p, (), declared))
        if value.affine is None:
            continue
        if value.dtype is not None and value.dtype.kind not in "biu":
            yield f"value of {name}: {value.affine}, of type {value.dtype}"
        found = _wrong_place(value.affine, value.shape, declared)
        yield from (f"value of {name}: {text}" for text in found)


def _self_justified(graph: Graph) -> Iterator[str]:
    """Dead facts that test what is computed from the value, or rest on its own fill facts."""
    tested = {t.src for x in graph.values.values() for r in x.dead for t in r if t.src}
    bits = {name: 1 << k for k, name in enumerate(sorted(tested))}
    for name, below in _below(graph, bits).items():
        own = graph[name].bit
        for r in graph[name].dead:
            late = [t for t in r if t.src and (bits[t.src] & (below | bits.get(name, 0)))]
            yield from (f"dead of {name}: {t} looks at what is computed from it" for t in late)
            if r.via & own:
                yield f"dead of {name}: {r} rests on its own fill facts"


def _below(graph: Graph, bits: Mapping[str, int]) -> dict[str, int]:
    """For each value the bits of those that are computed from it."""
    below: dict[str, int] = {}
    for node in reversed(graph.nodes):
        down = 0
        for name in output_names(node):
            down |= below.get(name, 0) | bits.get(name, 0)
        operands: Iterable[str] = (x.name or "" for x in node.inputs if x is not None)
        for name in (*operands, *captures(node)):
            below[name] = below.get(name, 0) | down
    return below
