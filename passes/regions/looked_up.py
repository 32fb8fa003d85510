"""Operands that are looked up: a slice of a table for each index.

    w [experts, k, n] -> Gather by g [t] -> Transpose, Unsqueeze, .. -> read at (t, k, n)
    is     w at (g[t], k, n)

Nodes that only move elements are undone by their index maps, in front of the look-up and behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Poly, dim_index, substitute
from pitc.ir.nodes import input_names
from pitc.passes.regions.stored import Index, Origin, origins
from pitc.passes.rules.record import LOOK_UPS, operator_of

NUMBER = 1 << 20
"""The axis that stands for what an index says, among those of a product."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A value that is read where an index says.

    Args:
        table: The value.
        index: How it is read; None at the dimension that is looked up.
        place: The value whose elements are indices: below 0 they count from the end.
        at: How that is read.
        nodes: What makes the operand of it.
    """

    table: str
    index: Index
    place: str
    at: Index
    nodes: tuple[ir.Node, ...]


def looked_up(
    graph: Graph, name: str, index: Index, is_table: Callable[[str], bool]
) -> LookedUp | None:
    """What an operand looks up in a table, one dimension of it; None where it does not.

    Args:
        graph: The analysed graph.
        name: The operand.
        index: How it is read.
        is_table: True for the name of a value that may be the table.
    """
    for origin in origins(graph, name, index, scaled=False):
        found = _look_up(graph, origin, is_table)
        if found is not None:
            return found
    return None


def _look_up(graph: Graph, origin: Origin, is_table: Callable[[str], bool]) -> LookedUp | None:
    """The look-up that gives a value."""
    node, expr = graph[origin.name].producer, graph[origin.name].expr
    if node is None or expr is None or expr.combine is not Combine.MOVE:
        return None
    if operator_of(node).packs not in LOOK_UPS or expr.shape != graph[origin.name].shape:
        return None
    if any(e != ONE for e in expr.reduced):  # indices of several numbers
        return None
    reads = {r.operand: r for r in expr.reads if not r.within and not r.sizing}
    if len(expr.reads) != 2 or reads.keys() != {0, 1} or not reads[0].computed:
        return None

    def behind(places: Index) -> Index:
        """An index over the axes of the look-up as one over those of the reader."""
        return tuple(None if p is None else substitute(p, origin.index, expr.shape) for p in places)

    place, at = input_names(node)[1], behind(reads[1].index)
    given = graph[place].dtype
    whole = given is not None and given.kind == "i"
    if not whole or None in at or reads[0].index.count(None) != 1:
        return None
    data, read = input_names(node)[0], behind(reads[0].index)
    shape = graph[data].shape
    if shape is None:
        return None
    number = dim_index(NUMBER, shape[read.index(None)])
    whole_read = tuple(number if p is None else p for p in read)
    for table in origins(graph, data, whole_read, scaled=False):
        dim = _of_numbers(graph, table, shape[read.index(None)])
        if is_table(table.name) and dim is not None:
            nodes = (*origin.nodes, node, *table.nodes)
            index = tuple(None if d == dim else p for d, p in enumerate(table.index))
            return LookedUp(table.name, index, place, at, nodes)
    return None


def _of_numbers(graph: Graph, table: Origin, count: Poly) -> int | None:
    """The dimension of a value that is looked up, if its slices are those of the look-up in their
    order: none are left out, turned around or repeated in front of it.
    """
    shape, number = graph[table.name].shape or (), dim_index(NUMBER, count)
    found = [d for d, p in enumerate(table.index) if p == number and shape[d] == count]
    others = (p for d, p in enumerate(table.index) if d not in found)
    if len(found) != 1 or any(p is None or _names(p) for p in others):
        return None
    return found[0]


def _names(index: Poly) -> bool:
    return any(d.dim == NUMBER for d in index.digits())
