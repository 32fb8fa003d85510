"""Which live points can be computed before a region runs, and what it takes: a domain's tests are
evaluated as `reading` plans it.
"""

from pitc.ir.graph import Graph
from pitc.ir.index import Poly, sym, total_of
from pitc.ir.sizes import sizes_known
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.reading import reading_of

OLDEST = 9  # operator set that has what live points are computed with: Where, Expand
LOOKS_UP = 11  # first one that has Range, and a Slice and a Gather as they are used here


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
    if opset < (LOOKS_UP if any(r.looks_up for r in kept) else OLDEST):
        return f"operator set {opset} has no operators for it"
    polys = [*domain.extents, *(p for r in kept for p in r.sizes)]
    polys += [q for p in polys for a in p.digits() for q in (a.stride, a.extent)]
    if not sizes_known(graph, (sym(a) for p in polys for a in p.symbols())):
        return "a size of the live points is not a size of a graph input"
    return ""


def bytes_touched(graph: Graph, domain: Domain) -> Poly:
    """Bytes that evaluating all tests of a domain reads and makes, up to its live points."""
    readings = [reading_of(graph, t, domain.extents) for t in domain.dead]
    points = total_of(domain.extents)
    return sum((r.touched + 3 * points for r in readings if r is not None), 2 * points)
