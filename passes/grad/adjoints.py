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

MOVED = (
    PackRule.RESHAPED,
    PackRule.REPEATED,
    PackRule.TRANSPOSED,
    PackRule.LOOK_UP,
    PackRule.LOOK_UP_VECTORS,
)
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


def rule_of(graph: Graph, node: ir.Node) -> Rule | None:
    """How the gradients of a node's operands follow; None where its record does not tell.

    Args:
        graph: The graph, derived.
        node: Its node.
    """
    record, expr = operator_of(node), graph[first_output(node)].expr
    if record.adjoint is not None:
        return BY_RECORD[record.adjoint]
    if record.derivative is not None or record.converts:
        return maps.elementwise
    moves_elements = record.packs in MOVED if expr is None else expr.combine is Combine.MOVE
    return moves.move if moves_elements else None


def adjoint(site: Site) -> Mapping[int, ir.Value]:
    """The gradients of the wanted operands of a node, by their places.

    Args:
        site: The node.

    Returns:
        Those that are not 0.

    Raises:
        NoRule: One of them is not known; the text says why.
    """
    view = site.view
    rule = rule_of(view.graph, view.node)
    if rule is None:
        known = operator_of(view).rule is not None
        name = "it" if known else f"operator {view.domain or 'ai.onnx'}::{view.op}"
        raise NoRule(f"{name} has no derivative here")
    return rule(site)
