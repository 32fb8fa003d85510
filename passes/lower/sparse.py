"""Which contractions run on live micro-tiles: those whose right operand may hold zeros, or the left
one where the right one is constant and finite, if it is large enough for looking to pay.
"""

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import first_output, is_plain_product, node_name
from pitc.ir.refusal import Code, Refusal
from pitc.passes.regions.choose import Chosen
from pitc.passes.regions.form import static_shape
from pitc.passes.regions.matrix import (
    ComputedMatrix,
    Weight,
    bias_row,
    computed_matrix,
    constant_matrix,
    has_bias,
    has_kernels,
    is_large,
)
from pitc.passes.regions.sparse import SparseOperand, sparse_operands

SparseContractions = Chosen[SparseOperand]
"""The contractions that detect and skip zeros when the model runs, each with the operand that has
them.
"""


def sparse_contractions(graph: Graph) -> SparseContractions:
    """Choose among the contractions of an analysed graph."""
    known = sparse_operands(graph)
    return Chosen.of(known.refusals | {n: _choose(graph, n, x) for n, x in known.nodes.items()})


def _choose(graph: Graph, node: ir.Node, found: Sequence[SparseOperand]) -> SparseOperand | Refusal:
    """The operand whose zeros are skipped: the left one where the other one is constant."""
    operand = found[0]

    def refuse(code: Code, text: str) -> Refusal:
        return Refusal(code, node_name(node), text, operand.name)

    if node.op_type == "Conv" and not node.domain:
        text = "zeros of single places are not skipped by a convolution, only those of channels"
        return refuse(Code.NO_LOWERING, text)
    if not is_plain_product(node):
        return refuse(Code.NO_LOWERING, "kernels skip zeros of MatMul and of Gemm")
    operand = next((o for o in found if o.operand), operand)
    matrix = _right_matrix(graph, node, operand)
    if isinstance(matrix, str):
        return refuse(Code.NO_LOWERING, matrix)
    if has_bias(node) and bias_row(node, matrix.n) is None:
        return refuse(Code.NO_LOWERING, f"its bias is not a constant row of {matrix.n}")
    if not is_large(graph, matrix) or matrix.k * matrix.n < graph.target.least_weight:
        text = f"the matrix has only {matrix.k} x {matrix.n} elements"
        return refuse(Code.NO_GAIN, text)
    products = _products(graph, node)
    if products is not None and products < graph.target.least_products:
        text = f"it sums only {products} products in every run: too few for a node of its own"
        return refuse(Code.NO_GAIN, text)
    return operand


def _products(graph: Graph, node: ir.Node) -> int | None:
    """How many a contraction sums; None where that is known only when the model runs."""
    expr = graph[first_output(node)].expr
    sizes = None if expr is None else static_shape(expr.extents)
    return prod(sizes) if sizes else None


def _right_matrix(
    graph: Graph, node: ir.Node, operand: SparseOperand
) -> Weight | ComputedMatrix | str:
    """The right operand, or why zeros of an operand cannot be skipped."""
    if operand.operand:
        if not graph.target.skips_right:
            return f"zeros of the right operand '{operand.name}' are skipped on CPUs only"
        matrix = computed_matrix(graph, node, node)
        return matrix or f"'{operand.name}' is no float32 matrix of known extents"
    constant = constant_matrix(node) if operand.weights else None
    if constant is None or not has_kernels(graph, constant.value):
        types = ", ".join(str(t.numpy()) for t in graph.target.types)
        return f"'{operand.name}' is multiplied by no constant matrix of {types}"
    return constant
