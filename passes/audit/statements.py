"""What is said of values, between stages: every fact speaks of what exists, in its own terms."""

from collections.abc import Iterable, Iterator, Mapping
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
    declared = {
        s for name in graph.inputs for p in graph.shapes.get(name) or () for s in p.symbols()
    }
    seen: set[tuple[Region, str]] = set()
    for name, r, what in _regions(graph):
        if (r, name) not in seen:
            seen.add((r, name))
            yield from (f"{what} of {name}: {t}" for t in _wrong_region(graph, name, r, declared))
    for name, facts in graph.fills.items():
        for f in facts:
            if isinstance(f.constant, Range) and not f.constant.lo <= f.constant.hi:
                yield f"fill of {name}: the range {f.constant} is empty"
    yield from (f"slack of {n}: limit {s[1]}" for n, s in graph.slack.items() if isnan(s[1]))
    yield from _wrong_expressions(graph)
    yield from _wrong_integers(graph, declared)
    yield from _self_justified(graph)


def _regions(graph: Graph) -> Iterator[tuple[str, Region, str]]:
    """Every region with the value that it is of."""
    for name, facts in graph.fills.items():
        yield from ((name, f.region, "fill") for f in facts)
    for name, regions in graph.dead.items():
        yield from ((name, r, "dead") for r in regions)
    for name, (regions, _) in graph.slack.items():
        yield from ((name, r, "slack") for r in regions)
    for what, table in (("finite_if", graph.finite_if), ("clean_if", graph.clean_if)):
        yield from ((name, r, what) for name, r in table.items() if r is not None)


def _exists(graph: Graph, name: str) -> bool:
    return name in graph.order or graph.is_constant(name)


def _wrong_region(graph: Graph, name: str, r: Region, declared: set[str]) -> Iterator[str]:
    if not _exists(graph, name):
        yield "there is no such value"
        return
    if r.via >> len(graph.bits):
        yield f"it rests on bit {r.via.bit_length() - 1} of {len(graph.bits)}"
    shape = graph.shapes.get(name)
    for t in r:
        yield from (f"{t}: {text}" for text in _wrong_test(graph, t, shape, declared))
        if len(r) == 1:  # beside others a test may look beyond the end, where it says nothing
            yield from (f"{t}: {text}" for text in _never(graph, t, shape))


def _wrong_test(graph: Graph, t: Test, shape: Shape | None, declared: set[str]) -> Iterator[str]:
    if t.pred == "pos":
        if t.src or len(t.idx) != 1 or not t.yes:
            yield "a test of a position looks at a value"
    elif not _exists(graph, t.src):
        yield f"there is no value {t.src}"
        return
    else:
        looked_at = graph.shapes.get(t.src)
        rank = -1 if looked_at is None else len(looked_at) + ADDED.get(t.pred, 0)
        if len(t.idx) != rank:
            yield f"{len(t.idx)} places of a value of shape {looked_at}"
    if shape is None and any(d >= 0 for d in t.dims()):
        yield "the value has no known rank"
    for p in t.idx:
        yield from _wrong_place(p, shape, declared)


def _never(graph: Graph, t: Test, shape: Shape | None) -> Iterator[str]:
    """Places that are out of range whatever the point."""
    looked_at = graph.shapes.get(t.src) or ()
    if _empty((*looked_at, *(shape or ()))):
        return
    for p, extent in zip(t.idx, looked_at, strict=False):
        if nonneg(bound(p, False) - extent) or nonneg(-bound(p, True) - 1):
            yield f"{p} is never a place below {extent}"


def _empty(shape: Shape) -> bool:
    return any(e.as_int() == 0 for e in shape)


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
    for name, expr in graph.exprs.items():
        node = graph.producers.get(name)
        if expr is None or node is None:
            continue
        if graph.shapes.get(name) != expr.shape:
            yield f"{name} has shape {graph.shapes.get(name)}, by its expression {expr.shape}"
        for read in expr.reads:
            value = node.inputs[read.operand] if read.operand < len(node.inputs) else None
            if value is None:
                yield f"{name} reads operand {read.operand}, which is absent"
                continue
            shape = graph.shapes.get(value.name or "")  # not known: the operator tells its rank
            if shape is not None and len(shape) != len(read.index):
                yield f"{name} reads operand {read.operand} at {len(read.index)} places of {shape}"
            dims = {a.dim for p in read.index if p is not None for a in p.digits()}
            if any(not 0 <= d < len(expr.extents) for d in dims):
                yield f"{name} reads operand {read.operand} along axes {sorted(dims)}"


def _wrong_integers(graph: Graph, declared: set[str]) -> Iterator[str]:
    """Symbolic integers of another shape than their value, or of a type that is none."""
    for name, known in graph.values.items():
        shape = graph.shapes.get(name)
        numbers = None if shape is None else [p.as_int() for p in shape]
        if numbers is not None and None not in numbers and known.shape != tuple(numbers):
            yield f"value of {name}: shape {known.shape} is {numbers}"
        for p in known.reshape(-1):
            yield from (f"value of {name}: {text}" for text in _wrong_place(p, (), declared))
    for name, p in graph.affine.items():
        if name in graph.dtypes and graph.dtypes[name].kind not in "biu":
            yield f"value of {name}: {p}, of type {graph.dtypes[name]}"
        found = _wrong_place(p, graph.shapes.get(name), declared)
        yield from (f"value of {name}: {text}" for text in found)


def _self_justified(graph: Graph) -> Iterator[str]:
    """Dead facts that test what is computed from the value, or rest on its own fill facts."""
    tested = {t.src for regions in graph.dead.values() for r in regions for t in r if t.src}
    bits = {name: 1 << k for k, name in enumerate(sorted(tested))}
    for name, below in _below(graph, bits).items():
        own = graph.bits.get(name, 0)
        for r in graph.dead.get(name, ()):
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
