"""The packed form of a node that takes its rows however many dimensions they lie in: the node
itself, on packed rows.

    y[b, s, n] = f(x[b, s, :], w[:, n])      x packed to [t, k]   ->   f(x, w) is y packed to [t, n]

That an operator may take its rows so is in its record; whether it takes these is asked of its rule:
told the shapes of the packed operands, it has to describe the same reads, with one row in the place
of the coordinates.
"""

from collections.abc import Mapping
from dataclasses import replace

from pitc.ir.expr import Read, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, bare_dim, dim_index, substitute
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import EVERYWHERE
from pitc.passes.regions.form import (
    Form,
    Operand,
    PackCandidate,
    WholeOperand,
    single,
)
from pitc.passes.rules.registry import expr_of


def same_node(site: PackCandidate) -> Form | Refusal:
    """8. Rows of operands where they are read along the packed axis, the others whole."""
    outputs, node = single(site), site.node
    if isinstance(outputs, Refusal):
        return outputs
    free = site.expr.pit_axes()
    if any(site.expr.axes[c.dim] not in free for c in site.out.coords):
        return site.refuse(Code.AXIS_NOT_PIT, f"{node.op_type} computes along the packed axis")
    view = NodeView(site.context.graph, node)
    operands: list[Operand | None] = [None] * len(node.inputs)
    shapes, number = dict[int, Shape](), view.fresh()
    read = {r.operand for r in site.expr.reads}
    for k, value in enumerate(node.inputs):
        if value is None:
            continue
        if k not in read:
            text = f"how '{site.input(k)}' is read is not described"
            return site.refuse(Code.AXIS_NOT_PIT, text)
        if site.invariant(k):
            operands[k] = WholeOperand(site.input(k))
            continue
        found = site.aligned(k)
        if found is None:
            text = f"operand '{site.input(k)}' is not read at one packed row at a time"
            return site.refuse(Code.AXIS_NOT_PIT, text)
        packing = found[0]
        operands[k] = packing.operand()
        shapes[k] = (number, *packing.layout.rest_shape)
    if not shapes:
        return site.refuse(Code.LAYOUT, "no operand depends on the packed axis")
    if not _is_same(site, view, shapes, number):
        text = f"{node.op_type} does not accept packed rows in the same way"
        return site.refuse(Code.LAYOUT, text)
    return Form(outputs, tuple(operands), node.op_type)


class _Packed(NodeView):
    """A node as its rule would see it with packed operands.

    Args:
        node: The node, as it is.
        shapes: Extents of the packed operands.
    """

    __slots__ = ("shapes",)

    def __init__(self, node: NodeView, shapes: Mapping[int, Shape]) -> None:
        super().__init__(node.graph, node.node)
        self.shapes = shapes

    def shape(self, i: int) -> Shape:
        """Extents of input i."""
        return self.shapes[i] if i in self.shapes else super().shape(i)

    def inferred(self, out: int, dim: int) -> Poly:
        """Packed results have no inferred shape."""
        raise NoRule(f"size {dim} of output {out} is not known")


def _is_same(
    site: PackCandidate, node: NodeView, shapes: Mapping[int, Shape], number: Poly
) -> bool:
    """True where the rule, told the shapes of packed operands, describes the packed output."""
    try:
        found = expr_of(_Packed(node, shapes))[0]
        return found is not None and found == _packed(site, shapes, number)
    except NoRule:
        return False


def _packed(site: PackCandidate, shapes: Mapping[int, Shape], number: Poly) -> TensorExpr:
    """How the packed output is computed, if the node is the same one.

    Raises:
        NoRule: An index is none of the packed output's and operands'.
    """
    expr, rank, row = site.expr, site.context.domain.rank, dim_index(0, number)
    kept = [*site.out.layout.rest_shape, *expr.reduced]
    to_row = [*[None] * rank, *(dim_index(1 + k, e) for k, e in enumerate(kept))]
    extents = (*site.context.domain.extents, *kept)

    def moved(index: list[Poly]) -> tuple[Poly, ...]:
        known = [substitute(p, to_row, extents) for p in index]
        if any(p is None for p in known):
            raise NoRule("an index depends on a coordinate")
        return tuple(p for p in known if p is not None)

    reads = []
    for r in expr.reads:
        found = site.aligned(r.operand) if r.operand in shapes else None
        if r.within != EVERYWHERE or r.absent or r.sizing or (found is None and None in r.index):
            raise NoRule("a read is a part of an operand, or not described")
        if found is None:
            (index,) = site.reads(r.operand)
            reads.append(Read(r.operand, moved([p for p in index if p is not None]), r.computed))
        else:
            reads.append(Read(r.operand, (row, *moved(found[1])), r.computed))
    axes = {a: d for a, p in enumerate(site.space.maps()) if (d := bare_dim(p)) is not None}
    places = {a: axes[a] - rank + 1 for a in axes if axes[a] >= rank}
    if not places.keys() >= {*expr.ordered, *expr.normal}:
        raise NoRule("an axis whose places matter is split")
    return replace(
        expr,
        shape=(number, *site.out.layout.rest_shape),
        reads=tuple(reads),
        normal=tuple(places[a] for a in expr.normal),
        ordered=frozenset(places[a] for a in expr.ordered),
    )
