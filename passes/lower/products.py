"""Products by a matrix become packed nodes: `contract`, before anything is fused into them.

    MatMul(x', w)            ->   Contract(k=64, n=64)(x', panels of w)
    Gemm(x', w, bias)        ->   Contract(k=64, n=64, bias)(x', panels of w, bias)

The matrix is a constant, which is stored as panels; or, where zeros are skipped, a value that is
computed when the model runs.
"""

from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.graph import Graph
from pitc.ir.kernel import MASK
from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import node_name
from pitc.ir.plans.ops import Contract
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed
from pitc.passes.lower.panels import stay_finite
from pitc.passes.regions.matrix import (
    Matrix,
    bias_row,
    dims_of,
    has_bias,
    has_kernels,
    is_large,
    right_matrix,
    type_of,
)


@dataclass(frozen=True, slots=True)
class Product:
    """A product that kernels of the target compute.

    Args:
        node: A MatMul or Gemm.
        a: Its rows.
        matrix: What they are multiplied by.
        bias: A constant row that is added; None: nothing is.
        dtype: Type of the elements.
    """

    node: ir.Node
    a: ir.Value
    matrix: Matrix
    bias: ir.Value | None
    dtype: ir.DataType


def product_of(graph: Graph, node: ir.Node, source: ir.Node | None = None) -> Product | None:
    """A node as a product; None where no kernel computes it.

    Args:
        graph: The analysed graph.
        node: A MatMul or Gemm, of the source graph or made of one.
        source: Where zeros are skipped, the node of the source graph; only there may the matrix be
            computed when the model runs.
    """
    found = right_matrix(graph, node, source or node)
    if found is None or not (found.constant or source) or not is_large(graph, found):
        return None
    a, bias = node.inputs[0], bias_row(node, found.n)
    assert a is not None
    if not has_kernels(graph, a) or (has_bias(node) and bias is None):
        return None
    dtype = type_of(graph, a)
    assert dtype is not None
    return Product(node, a, found, bias, dtype)


def contract(packed: Packed, product: Product, source: ir.Node, *, skips: bool) -> None:
    """Make a product a packed node, in place.

    Args:
        packed: Where it stands.
        product: The product.
        source: The node of the source graph that it is, or comes from.
        skips: Zeros are skipped.
    """
    node, matrix, build = product.node, product.matrix, packed.build
    rounded = packed.graph.target.rounds and matrix.constant and stay_finite(matrix.value)
    operands = {"a": product.a, "b": matrix.value}
    if matrix.constant:
        operands["b"] = packed.panels.value(build, matrix, rounded=rounded)
    if matrix.factor is not None:
        operands["factor"] = matrix.factor
    if product.bias is not None:
        operands["bias"] = product.bias
    plan = Contract(
        activation="none",
        bias=product.bias is not None,
        dtype=str(product.dtype.numpy()),
        factor=_factor(matrix),
        k=matrix.k,
        n=matrix.n,
        residual=False,
        right=_layout(matrix),
        rounded="bfloat16" if rounded else None,
        skips=skips,
    )
    out, dims, how = node.outputs[0], dims_of(packed.graph, node.outputs[0]), plan.op
    if node is not source:
        how = f"packed {how}"
    name = node_name(source)
    node.name = build.label(name, how)
    node.metadata_props.pop(BRANCH, None)  # its readers decide where it stands
    node.metadata_props.update({SOURCE: name, RULE: plan.op})
    out.type = ir.TensorType(product.dtype)
    out.shape = None if dims is None else declared(dims)
    packed.log.sources[node] = source
    packed.become(node, plan, operands)


def _layout(matrix: Matrix) -> str:
    """How a matrix lies in memory, as plans say it."""
    if matrix.constant:
        return "panels"
    return "nk" if matrix.transposed else "kn"


def _factor(matrix: Matrix) -> int:
    """What kind of factor a matrix has, as plans say it."""
    if matrix.finite and not matrix.transposed:
        return MASK
    return int(matrix.factor is not None)
