"""Sizes that can be computed when the model runs: from its inputs, and of lists of places."""

from collections.abc import Iterable

from pitc.ir.graph import Graph
from pitc.ir.index import Poly


def input_dimension(graph: Graph, symbol: str) -> tuple[str, int] | None:
    """A graph input that has a dimension of that size."""
    for name in graph.inputs:
        for d, e in enumerate(graph.values[name].shape or ()):
            if e.terms == {(symbol,): 1}:
                return name, d
    return None


def dimension_of_size(graph: Graph, symbol: str) -> tuple[str, int] | None:
    """A value that has a dimension of that size: a graph input, or the list of places that a
    NonZero makes, which alone tells how long it is.
    """
    found = input_dimension(graph, symbol)
    if found is None and (listed := graph.list_of_size(symbol)) is not None:
        return listed, 1
    return found


def sizes_known(graph: Graph, extents: Iterable[Poly]) -> bool:
    """True where every size can be computed from numbers and such dimensions."""
    atoms = {a for e in extents for m in e.terms for a in m}
    return all(isinstance(a, str) and dimension_of_size(graph, a) is not None for a in atoms)
