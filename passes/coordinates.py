"""Coordinates of a domain, propagated from value to value along PIT axes.

A dead fact may not name every coordinate ("only position 0 is read" does not mention the batch).
The neighbours do: a permutation of a PIT axis of one value is a permutation of the matching axis of
the next one, through every index map. So coordinates start at the values whose facts name them all,
and travel along the tensor expressions in both directions.
"""

from collections.abc import Iterator

import onnx_ir as ir

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Digit, Poly, digit, invert
from pitc.passes.domain import Coords, Domain, named_coords

MAX_PER_VALUE = 4  # scores carry queries and keys; more than a few are of no use

Found = dict[str, list[Coords]]


def propagate_coordinates(graph: Graph, domain: Domain) -> Found:
    """All ways in which values of a graph carry a domain's coordinates.

    Args:
        graph: The analysed graph.
        domain: The domain.

    Returns:
        Per value, lists of coordinates: digits of its dimensions.
    """
    found: Found = {}
    todo: list[str] = []

    def add(name: str, coords: Coords) -> None:
        known = found.setdefault(name, [])
        if coords not in known and len(known) < MAX_PER_VALUE:
            known.append(coords)
            todo.append(name)

    for name, regions in graph.dead.items():
        if not graph.is_constant(name):
            for coords in named_coords(domain, regions):
                add(name, coords)
    while todo:
        name = todo.pop()
        for neighbour, coords in _neighbours(graph, name, list(found[name])):
            if not graph.is_constant(neighbour):
                add(neighbour, coords)
    return found


def _neighbours(graph: Graph, name: str, known: list[Coords]) -> Iterator[tuple[str, Coords]]:
    """Coordinates of a value carried over to the operands of its node, and to the nodes that read
    it.
    """
    producer = graph.producers.get(name)
    if producer is not None:
        expr = graph.exprs.get(name)
        for read in expr.reads if expr is not None else ():
            operand = _operand(producer, read)
            shape = graph.shapes.get(operand)
            if expr is not None and shape is not None:
                solved = invert(read.index, expr.extents, shape)
                for coords in known:
                    moved = _through(coords, solved, None)
                    if moved is not None:
                        yield operand, moved
    for user in graph.uses.get(name, ()):
        for out in user.outputs:
            expr = graph.exprs.get(out.name or "")
            for read in expr.reads if expr is not None else ():
                if expr is not None and _operand(user, read) == name:
                    maps = {j: p for j, p in enumerate(read.index) if p is not None}
                    for coords in known:
                        moved = _through(coords, maps, expr)
                        if moved is not None:
                            yield out.name or "", moved


def _operand(node: ir.Node, read: Read) -> str:
    value = node.inputs[read.operand]
    return "" if value is None else value.name or ""


def _through(coords: Coords, maps: dict[int, Poly], expr: TensorExpr | None) -> Coords | None:
    """The coordinates as digits of another space; None where one is not a digit there, or is
    reduced.
    """
    out: list[Digit] = []
    for c in coords:
        p = maps.get(c.dim)
        q = None if p is None else digit(p, c.stride, c.extent)
        digits = [] if q is None else list(q.digits())
        if q is None or len(digits) != 1 or q.terms != {(digits[0],): 1}:
            return None
        if digits[0].extent != c.extent or (expr is not None and digits[0].dim >= len(expr.shape)):
            return None
        out.append(digits[0])
    return tuple(out) if len(set(out)) == len(out) else None
