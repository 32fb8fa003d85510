"""Dimensions of extent 1, followed from value to value.

Such a dimension has no digit, so index expressions do not tell where it went. The node's own rule
does: asked about an operand that is larger there, it says which dimension of the output is.

    x [b, 1, 32] * m [b, 1, 1] -> [b, 1, 32]        asked with m [b, ?, 1] -> [b, ?, 32]

A Reshape to numbers has no answer; there, dimensions of extent 1 keep their order between the
others: `[b, 1, 32]` -> `[b, 1, 4, 8]`.
"""

from collections.abc import Iterator

import onnx_ir as ir

from pitc.ir.expr import Combine, Shape, TensorExpr
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.index import MAYBE_ZERO, ONE, sym
from pitc.passes.regions.axes import neighbours
from pitc.passes.rules.registry import expr_of

WIDER = sym(f"{MAYBE_ZERO}wider")

Place = tuple[str, int]


def follow_unit(graph: Graph, name: str, dim: int) -> dict[str, set[int]]:
    """The dimensions that are one with a dimension of extent 1 of some value.

    Args:
        graph: The graph, its expressions known.
        name: The value.
        dim: Its dimension.

    Returns:
        Dimensions by value.
    """
    found: dict[str, set[int]] = {name: {dim}}
    links: dict[ir.Node, list[tuple[Place, Place]]] = {}
    todo: list[Place] = [(name, dim)]
    while todo:
        place = todo.pop()
        for node in neighbours(graph, place[0]):
            if node not in links:
                links[node] = list(_links(graph, node))
            ends = (b if a == place else a for a, b in links[node] if place in (a, b))
            for value, d in ends:
                if d not in found.setdefault(value, set()) and not graph.is_constant(value):
                    found[value].add(d)
                    todo.append((value, d))
    return found


def _links(graph: Graph, node: ir.Node) -> Iterator[tuple[Place, Place]]:
    """Dimensions of extent 1 of a node's operands, and those of its outputs that they become."""
    for k, value in enumerate(node.inputs):
        name = value.name or "" if value is not None else ""
        shape = graph.shapes.get(name) or ()
        for j in (d for d, e in enumerate(shape) if e == ONE):
            for o, d in _asked(NodeView(graph, node), k, j):
                yield (name, j), (node.outputs[o].name or "", d)
        expr = graph.exprs.get(node.outputs[0].name or "")
        if k == 0 and node.op_type == "Reshape" and expr is not None:
            for j, d in _in_order(shape, expr):
                yield (name, j), (node.outputs[0].name or "", d)


class _Wider(NodeView):
    """A node as its rule would see it with one dimension of an operand larger."""

    __slots__ = ("dim", "operand")

    def __init__(self, node: NodeView, operand: int, dim: int) -> None:
        super().__init__(node.graph, node.node)
        self.operand, self.dim = operand, dim

    def shape(self, i: int) -> Shape:
        """Extents of input i."""
        shape = super().shape(i)
        if i != self.operand:
            return shape
        return tuple(WIDER if d == self.dim else e for d, e in enumerate(shape))

    def assume(self, text: str) -> None:
        """Nothing rests on a question."""


def _asked(node: NodeView, operand: int, dim: int) -> Iterator[tuple[int, int]]:
    """Outputs and their dimensions that are larger when a dimension of an operand is."""
    try:
        exprs = expr_of(_Wider(node, operand, dim))
    except NoRule:
        return
    for o, expr in enumerate(exprs):
        if expr is not None and len(expr.shape) == len(node.graph.shapes.get(node.out(o)) or ()):
            fixed = expr.ordered | set(expr.normal)
            yield from ((o, d) for d, e in enumerate(expr.shape) if e == WIDER and d not in fixed)


def _in_order(shape: Shape, expr: TensorExpr) -> Iterator[tuple[int, int]]:
    """Dimensions of extent 1 between the same other ones, where there are as many of them."""
    if expr.combine is not Combine.MOVE or len(expr.reads) != 1:
        return
    ends: list[tuple[int, int]] = [(-1, -1)]
    for j, p in enumerate(expr.reads[0].index):
        if shape[j] != ONE:
            places = sorted(a.dim for a in p.digits()) if p is not None else []
            if not places:
                return
            ends += [(j, places[0]), (j, places[-1])]
    ends.append((len(shape), len(expr.shape)))
    for (j0, d0), (j1, d1) in zip(ends[::2], ends[1::2], strict=True):
        mine, theirs = range(j0 + 1, j1), range(d0 + 1, d1)
        if len(mine) == len(theirs):
            yield from zip(mine, theirs, strict=True)
