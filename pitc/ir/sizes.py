"""Sizes that can be computed when the model runs, from its inputs."""

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


def sizes_known(graph: Graph, extents: Iterable[Poly]) -> bool:
    """True where every size can be computed from numbers and dimensions of graph inputs."""
    atoms = {a for e in extents for m in e.terms for a in m}
    return all(isinstance(a, str) and input_dimension(graph, a) is not None for a in atoms)
