"""Which contractions run on live micro-tiles: those whose left operand may hold zeros, by a
constant finite matrix that is large enough for looking to pay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.passes.lower.weight import constant_matrix
from pitc.passes.regions.sparse import Order, SparseOperand, sparse_operands

LEAST_WEIGHT = 1 << 14  # elements; of smaller matrices ONNX Runtime's product is as fast as a look


@dataclass(frozen=True, slots=True)
class SparseContractions:
    """The contractions that detect and skip zeros when the model runs.

    Args:
        nodes: Each with its left operand.
        refusals: Why others that may hold zeros stay dense.
    """

    nodes: Mapping[ir.Node, SparseOperand] = field(default_factory=dict)
    refusals: Mapping[ir.Node, Refusal] = field(default_factory=dict)


def sparse_contractions(graph: Graph) -> SparseContractions:
    """Choose among the contractions of an analysed graph."""
    operands = sparse_operands(graph)
    nodes: dict[ir.Node, SparseOperand] = {}
    refusals = dict(operands.refusals)
    for node, found in operands.found.items():
        left = next((o for o in found if o.operand == 0), None)
        refusal = _refusal(node, left)
        if refusal is not None:
            refusals[node] = refusal
        elif left is not None:
            nodes[node] = left
    return SparseContractions(nodes, refusals)


def _refusal(node: ir.Node, left: SparseOperand | None) -> Refusal | None:
    name = node_name(node)
    if left is None or node.domain or node.op_type not in ("MatMul", "Gemm"):
        return Refusal(Code.NO_LOWERING, name, "kernels skip zeros of the left side of a product")
    if left.order is not Order.ROWS or left.axes.batch:
        return Refusal(Code.NO_LOWERING, name, f"'{left.name}' is not stored in rows along k")
    weight = constant_matrix(node) if left.weights else None
    if weight is None:
        return Refusal(Code.NO_LOWERING, name, f"'{left.name}' is multiplied by no constant matrix")
    if weight.k * weight.n < LEAST_WEIGHT:
        return Refusal(Code.NO_GAIN, name, f"the matrix has only {weight.k} x {weight.n} elements")
    return None
