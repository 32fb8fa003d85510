"""Choices between the results of two branches: what an If is in a flat graph."""

import numpy as np

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, ZERO, Poly, dim_index
from pitc.passes.rules import laws
from pitc.passes.rules.build import bare
from pitc.passes.rules.record import Elementwise, Items, Operator, PackRule, always, trust_all
from pitc.passes.rules.registry import rule

CHOOSING = Operator(
    function=Elementwise(np.where, trusted=trust_all),
    finite=always,
    keeps_clean=True,
    selects=True,
    chooses=True,
    law=laws.where,
    packs=PackRule.CHOICE,
    items=Items.ANY,
)


def known_condition(view: NodeView) -> bool | None:
    """The condition of a choice, when constants or sizes decide it."""
    symbolic, constant = view.graph.ints(view.name(0)), view.array(0)
    if symbolic is not None and symbolic.size == 1:
        number = symbolic.reshape(-1)[0].as_int()
        return None if number is None else bool(number)
    return bool(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else None


@rule(CHOOSE, domain=DOMAIN, assumes=(), has=CHOOSING)
def choose(view: NodeView) -> list[TensorExpr]:
    """out[i] = then[i] where the condition holds, else else[i]; nothing is broadcast."""
    taken = known_condition(view)
    if taken is not None:
        operand = 1 if taken else 2
        shape = view.shape(operand)
        return [TensorExpr(shape, (Read(operand, bare(shape)),), combine=Combine.MOVE)]
    if any(e != ONE for e in view.shape(0)):
        raise NoRule(f"the condition has shape {[str(e) for e in view.shape(0)]}")
    a, b = view.shape(1), view.shape(2)
    if len(a) != len(b):
        raise NoRule(f"the branches give rank {len(a)} and rank {len(b)}")
    shape = tuple(x if x == y else view.fresh() for x, y in zip(a, b, strict=True))
    reads = [Read(0, (ZERO,) * view.rank(0), sizing=a != b)]
    reads += [Read(k, _index(shape, extents)) for k, extents in ((1, a), (2, b))]
    return [TensorExpr(shape, tuple(reads), combine=Combine.MAP)]


def _index(shape: tuple[Poly, ...], extents: tuple[Poly, ...]) -> tuple[Poly | None, ...]:
    """A branch's own point; unknown along a dimension in which the branches differ."""
    pairs = enumerate(zip(shape, extents, strict=True))
    return tuple(dim_index(d, e) if e == size else None for d, (size, e) in pairs)
