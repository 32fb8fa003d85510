"""One table: how the gradients of a node's operands follow from those of its results.

A node's record names a form (`Operator.adjoint`), or has derivatives; of a movement the tensor
expression tells all. Each form takes axes, labels and places from the expression.
"""

from collections.abc import Callable, Mapping
from functools import partial

import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NoRule
from pitc.ir.nodes import first_output
from pitc.passes.grad import (
    blocks,
    maps,
    moves,
    normalisers,
    pools,
    products,
    reductions,
    resample,
    scatters,
    windows,
)
from pitc.passes.grad.site import Site
from pitc.passes.rules.record import Adjoint, PackRule, operator_of

#: Gives the gradients of the wanted operands, by their places; those that are 0 are left out.
Rule = Callable[[Site], Mapping[int, ir.Value]]

MOVED = (PackRule.RESHAPED, PackRule.REPEATED, PackRule.TRANSPOSED)
"""Of such an operator the node itself tells where elements go, where its expression does not."""

BY_RECORD: Mapping[Adjoint, Rule] = {
    Adjoint.PRODUCT: products.product,
    Adjoint.SOFTMAX: normalisers.softmax,
    Adjoint.MOVED: scatters.by_places,
    Adjoint.ELEMENTS: scatters.by_elements,
    Adjoint.CUMULATED: moves.cumulated,
    Adjoint.SCATTERED_ELEMENTS: partial(scatters.scattered, look="GatherElements"),
    Adjoint.SCATTERED_SLICES: partial(scatters.scattered, look="GatherND"),
    Adjoint.REDUCED: reductions.reduced,
    Adjoint.LOG_SOFTMAX: normalisers.log_softmax,
    Adjoint.ROW_NORM: normalisers.row_norm,
    Adjoint.INSTANCE_NORM: normalisers.instance_norm,
    Adjoint.CHANNEL_NORM: normalisers.channel_norm,
    Adjoint.LP_NORM: normalisers.lp_norm,
    Adjoint.DROPPED: maps.dropout,
    Adjoint.CONVOLVED: windows.convolved,
    Adjoint.CONVOLVED_BACK: windows.convolved_back,
    Adjoint.COLUMNS: blocks.columns,
    Adjoint.POOLED: pools.pooled,
    Adjoint.POOLED_WHOLE: pools.pooled_whole,
    Adjoint.LOCAL_NORM: pools.local_norm,
    Adjoint.RESAMPLED: resample.resized,
}


def has_adjoint(graph: Graph, node: ir.Node) -> bool:
    """True for a node whose record and expression say how its gradients follow."""
    record, expr = operator_of(node), graph[first_output(node)].expr
    moved = record.packs in MOVED if expr is None else expr.combine is Combine.MOVE
    known = record.adjoint is not None or record.derivative is not None
    return moved or known or record.converts


def adjoint(site: Site) -> Mapping[int, ir.Value]:
    """The gradients of the wanted operands of a node, by their places.

    Args:
        site: The node.

    Returns:
        Those that are not 0.

    Raises:
        NoRule: One of them is not known; the text says why.
    """
    record = operator_of(site.view)
    if record.adjoint is not None:
        return BY_RECORD[record.adjoint](site)
    if record.rule is None:
        raise NoRule(
            f"operator {site.view.domain or 'ai.onnx'}::{site.view.op} has no derivative here"
        )
    expr = site.view.graph[site.view.out()].expr
    if record.derivative is not None or record.converts:
        return maps.elementwise(site)
    if record.packs in MOVED if expr is None else expr.combine is Combine.MOVE:
        return moves.move(site)
    raise NoRule("it has no derivative here")
