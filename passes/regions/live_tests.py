"""Which live points can be computed before a region runs, and what it takes: a domain's tests are
evaluated as `reading` plans it.
"""

from collections.abc import Callable

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, Poly, sym, total_of
from pitc.ir.since import Since
from pitc.ir.sizes import sizes_known
from pitc.ir.work import EXAMPLE_SIZE
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.reading import Ask, reading_of

#: What unknown sizes count for where a price must hold for all of them.
SIZE_CLASSES = (16, EXAMPLE_SIZE, 512)


def can_compute(graph: Graph, domain: Domain) -> bool:
    """True where the live points can be computed before the region runs: from sizes that some
    value has, and in memory that is bounded by the tested values and the domain.
    """
    return why_not(graph, domain) == ""


def why_not(graph: Graph, domain: Domain) -> str:
    """Why live points cannot be computed before the region runs; empty where they can."""
    opset, kept = graph.opset, []
    for test in sorted(domain.dead, key=str):
        reading = reading_of(graph, test, domain.extents)
        if reading is None:
            return f"evaluating '{test}' takes more memory than the values that it reads"
        kept.append(reading)
    if opset < (Since.LOOK_UPS if any(r.looks_up for r in kept) else Since.LIVE_TESTS):
        return f"operator set {opset} has no operators for it"
    polys = [*domain.extents, *(p for r in kept for p in r.sizes)]
    polys += [q for p in polys for a in p.digits() for q in (a.stride, a.extent)]
    if not sizes_known(graph, (sym(a) for p in polys for a in p.symbols())):
        return "a size of the live points is not a size of a graph input"
    return ""


def input_mask(graph: Graph, domain: Domain) -> str:
    """The graph input of numbers that are not 0 just where points of a domain live; empty where
    there is none. It needs no node: whoever looks for live points reads it as it is.
    """
    tests = list(domain.dead)
    if len(tests) != 1 or tests[0].pred != "nz" or tests[0].yes or tests[0].src not in graph.inputs:
        return ""
    reading, dtype = reading_of(graph, tests[0], domain.extents), graph[tests[0].src].dtype
    plain = [Digit(k, ONE, e) for k, e in enumerate(domain.extents)]
    number = dtype is not None and dtype.kind in "iufb"
    as_it_is = reading is not None and reading.steps == [Ask()] and reading.axes == plain
    return tests[0].src if number and as_it_is else ""


def bytes_touched(graph: Graph, domain: Domain) -> Poly:
    """Bytes that evaluating all tests of a domain reads and makes, up to its live points."""
    mask = input_mask(graph, domain)
    if mask:
        return total_of(domain.extents) * graph.dtype(mask).itemsize
    readings = [reading_of(graph, t, domain.extents) for t in domain.dead]
    points = total_of(domain.extents)
    return sum((r.touched + 3 * points for r in readings if r is not None), 2 * points)


def tests_cost_more(
    graph: Graph, touched: Poly, saved: Callable[[int], int], *, in_place: bool = False
) -> str:
    """Why tests do not pay: at some size class they cost more than what they may save.

    Args:
        graph: The analysed graph.
        touched: Bytes that they read and make.
        saved: Operations that are left out at most, by what unknown sizes are.
        in_place: A node that leaves something out reads them where they are: no node makes them.

    Returns:
        The reason; empty where they pay.
    """
    target = graph.target
    price = target.flops_per_byte * (1 if in_place else target.tested_price)
    for size in SIZE_CLASSES:
        tested = int(touched.evaluate(dict.fromkeys(touched.symbols(), size), {}))
        if saved(size) < price * (tested - target.tested_free_bytes):
            return (
                f"at sizes of {size}, its tests read and make {tested} bytes to save at most "
                f"{saved(size)} operations: under {price} per byte"
            )
    return ""
