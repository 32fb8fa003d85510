"""The packed form of a node whose dimension 0 counts items, one like the other: images of a
convolution, of pooling, of norms over places. It is the node itself, on fewer items.

Whether a node is one follows from its expression, and from what its rule says of another number of
items.
"""

from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, UNDECLARED, Poly, dim_index, sym
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.form import (
    Form,
    Operand,
    PackCandidate,
    PackedOperand,
    WholeOperand,
    single,
)
from pitc.passes.rules.record import Items, operator_of
from pitc.passes.rules.registry import expr_of


def fewer_items(site: PackCandidate) -> Form | Refusal:
    """7. The packed axis is dimension 0, whole: the node itself on fewer items."""
    outputs, codes = single(site), site.out.layout.dim_codes()
    if isinstance(outputs, Refusal):
        return outputs
    if not codes or any(c != "r" for c in codes[1:]):
        return site.refuse(Code.NO_LOWERING, f"{site.node.op_type} packs along dimension 0 only")
    view = NodeView(site.context.graph, site.node)
    items = item_operands(view, site.expr)
    if isinstance(items, Refusal):
        return items
    operands: list[Operand | None] = []
    for k, value in enumerate(site.node.inputs):
        if value is None:
            operands.append(None)
        elif k in items:  # gathered where it is not packed: others may read its dead items
            operands.append(PackedOperand(site.input(k), site.context.domain, site.out.coords))
        else:
            operands.append(WholeOperand(site.input(k)))
    return Form(outputs, tuple(operands), site.node.op_type, item_attributes(view))


def item_attributes(node: NodeView) -> dict[str, int]:
    """Attributes that differ from the node's own, for any number of items."""
    named = operator_of(node.node).items is Items.NAMED
    return {"axis": node.attr("axis", 0) % node.rank(0)} if named else {}


def item_operands(node: NodeView, expr: TensorExpr) -> set[int] | Refusal:
    """Operands whose dimension 0 is that of the output, item by item.

    Args:
        node: The node.
        expr: How its first output is computed.

    Returns:
        The operands' places; a refusal where the node could not run on some of the items only, as
        it looks along them, or is told their number.
    """
    items: set[int] = set()
    if operator_of(node.node).items is Items.ALL:
        return Refusal(Code.NO_LOWERING, node.title, f"{node.op} has no packed form")
    if expr.shape[:1] == (ONE,):
        expr = _of_more(node, expr)
    if not expr.shape or expr.axes[0] not in expr.pit_axes():
        return Refusal(Code.AXIS_NOT_PIT, node.title, f"{node.op} computes along the packed axis")
    for read in expr.reads:
        if any(r.index[:1] != read.index[:1] for r in expr.reads if r.operand == read.operand):
            text = "an operand is read both by item and as a whole"
            return Refusal(Code.AXIS_NOT_PIT, node.title, text)
        along = [j for j, p in enumerate(read.index) if p is not None and _on(p, 0)]
        if along not in ([], [0]):
            return Refusal(Code.LAYOUT, node.title, f"an operand is read at {list(read.index)}")
        items |= {read.operand} if along else set()
    if not items:
        return Refusal(Code.AXIS_NOT_PIT, node.title, "no operand depends on the packed axis")
    if not _any_number(node, items, expr.shape[0]):
        return Refusal(Code.NO_LOWERING, node.title, f"{node.op} depends on the number of items")
    return items


def _of_more(node: NodeView, expr: TensorExpr) -> TensorExpr:
    """How the output is computed where its one item is any number of them: an extent of 1 has no
    digit that tells which operands hold the items. The expression as it is where nobody knows.
    """
    ones = {k for k in range(node.n_inputs) if node.has(k) and not node.is_constant(k)}
    ones = {k for k in ones if (node.graph[node.name(k)].shape or ())[:1] == (ONE,)}
    number = node.fresh()
    try:
        wider = expr_of(_Items(node, ones, number))[0]
    except NoRule:
        return expr
    return expr if wider is None or wider.shape[:1] != (number,) else wider


def _on(p: Poly, dim: int) -> bool:
    return any(a.dim == dim for a in p.digits())


class _Items(NodeView):
    """A node as its rule would see it with a certain number of items.

    Args:
        node: The node, as it is.
        items: Operands whose dimension 0 counts them.
        number: How many there are.
    """

    __slots__ = ("_unknown", "items", "number")

    def __init__(self, node: NodeView, items: set[int], number: Poly) -> None:
        super().__init__(node.graph, node.node)
        self.items, self.number = items, number
        self._unknown = 0

    def shape(self, i: int) -> Shape:
        """Extents of input i."""
        shape = super().shape(i)
        return (self.number, *shape[1:]) if i in self.items else shape

    def fresh(self) -> Poly:
        """The same symbols in every such view, so that what two of them say can be compared."""
        self._unknown += 1
        return sym(f"{UNDECLARED}:{self._unknown}")

    def inferred(self, out: int, dim: int) -> Poly:
        """Size of an output dimension: as known already, but for the items."""
        shape = self.graph[self.out(out)].shape
        return shape[dim] if shape and dim else super().inferred(out, dim)


def _any_number(node: NodeView, items: set[int], number: Poly) -> bool:
    """True where the node's own rule, asked about another number of items, gives that many and
    says the same about the rest.
    """
    said = []
    for n in (number, node.fresh()):
        try:
            expr = expr_of(_Items(node, items, n))[0]
        except NoRule:
            return False
        if expr is None or expr.shape[0] != n:
            return False
        if any(r.operand in items and r.index[0] != dim_index(0, n) for r in expr.reads):
            return False  # where there may be none, it looks at all of them
        reads = [(r.operand, r.index[r.operand in items :]) for r in expr.reads]
        said.append((expr.shape[1:], reads))
    return said[0] == said[1]
