"""How the tests of a domain can be computed when the model runs: before anything is lowered.

some j: mask[d0, j] != 0   of mask [b, s]     dims 0, -1: in place, on the mask as it is
mask[d0, ids[d1]] != 0                        None: looked up at every point
"""

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, bare_dim, dim_index, sym
from pitc.ir.predicate import OF_ELEMENTS, Test
from pitc.ir.sizes import sizes_known
from pitc.passes.regions.domain import Domain

OLDEST = 9  # operator set that has what live points are computed with: Where, Expand
LOOKS_UP = 11  # first one that has Range and GatherND


def can_compute(graph: Graph, domain: Domain) -> bool:
    """True where the live points can be computed before the region runs, from sizes that some
    value has.
    """
    looked_up = [t for t in domain.dead if dims_in_place(graph, t) is None]
    if graph.model.opset_imports.get("", 0) < (LOOKS_UP if looked_up else OLDEST):
        return False
    polys = [*domain.extents, *(p for t in looked_up for p in t.idx)]
    polys += [q for p in polys for a in p.digits() for q in (a.stride, a.extent)]
    return sizes_known(graph, (sym(a) for p in polys for a in p.symbols()))


def dims_in_place(graph: Graph, test: Test) -> list[int | None] | None:
    """What each dimension of a tested value is: a whole coordinate, a whole bound dimension, or
    None for the only place of extent 1. None where points have to be looked up.
    """
    shape = graph[test.src].shape
    if test.pred not in OF_ELEMENTS or shape is None or len(shape) != len(test.idx):
        return None
    found: list[int | None] = []
    for p, extent in zip(test.idx, shape, strict=True):
        at = bare_dim(p)
        if at is None and extent != ONE:
            return None
        if at is not None and (p != dim_index(at, extent) or at in found):
            return None
        found.append(at)
    return found
