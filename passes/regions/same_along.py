"""Along which dimensions all elements of a value are the same: a mask spread over queries.

mask [b, k] -> Unsqueeze -> Expand to m [b, 1, q, k] -> Not      m is the same along q
all j: m[d0, 0, j, d1] == 0      one place of q tells, where there is one
"""

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import dim_index


def is_same_along(graph: Graph, name: str, dim: int) -> bool:
    """Whether a value is proven to have the same element at all places of a dimension.

    It is where each of its elements is computed from elements alone, all of which are read at
    places that do not depend on the dimension, or from values that are the same along it too.

    Args:
        graph: The analysed graph.
        name: The value.
        dim: A dimension of it.
    """
    pending, seen = [(name, dim)], set[tuple[str, int]]()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        value, d = graph[at[0]], at[1]
        expr, node = value.expr, value.producer
        if expr is None or node is None or not expr.reads:
            return False
        if expr.combine not in (Combine.MAP, Combine.MOVE) or expr.reduced or d in expr.ordered:
            return False
        view, bare = NodeView(graph, node), dim_index(d, expr.shape[d])
        for read in expr.reads:
            if read.within.tests:
                return False
            for j, p in enumerate(read.index):
                if p is None:
                    return False
                if any(a.dim == d for a in p.digits()):
                    if p != bare:
                        return False
                    pending.append((view.name(read.operand), j))
    return True
