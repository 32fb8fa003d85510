"""Right operands of products as kernels take them: constant matrices, and those that are computed
when the model runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import Array, attribute, is_plain_product
from pitc.ir.panels import pack_panels

Dims = Sequence[int | str | None]


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant right operand.

    Args:
        value: The initializer; `[K, N]` in any number of dimensions.
        transposed: It is stored `[N, K]`.
        k: Rows of the matrix.
        n: Its columns.
    """

    value: ir.Value
    transposed: bool
    k: int
    n: int

    def panels(self, tensor: ir.TensorProtocol) -> Array:
        """The weight in the layout that kernels read.

        Args:
            tensor: Its elements: by then, those of the initializer may be in the artifact.
        """
        w = tensor.numpy()
        if self.transposed:
            return pack_panels(w.reshape(self.n, self.k).T, w.dtype)
        return pack_panels(w.reshape(self.k, self.n), w.dtype)


@dataclass(frozen=True, slots=True)
class ComputedMatrix:
    """A right operand that is computed when the model runs.

    Args:
        value: float32 `[K, N]`.
        factor: A value of the same shape that it is multiplied by, elementwise; None: no such.
        finite: `value` is, beside a factor: 0 there is 0 in the product.
        transposed: Both are stored `[N, K]`.
        k: Rows of the matrix.
        n: Its columns.
    """

    value: ir.Value
    factor: ir.Value | None
    finite: bool
    transposed: bool
    k: int
    n: int


def dims_of(graph: Graph, value: ir.Value) -> Dims | None:
    """The dimensions of a value: numbers, text that is equal where sizes are, None for sizes that
    are not known; None without a rank.
    """
    known = graph[value.name or ""].shape
    if known is not None:
        numbers = ((e, e.as_int()) for e in known)
        return tuple(str(e) if number is None else number for e, number in numbers)
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def same_dims(x: Dims | None, y: Dims | None) -> bool:
    """True for dimensions that are known to be the same."""
    return x is not None and y is not None and None not in x and tuple(x) == tuple(y)


def type_of(graph: Graph, value: ir.Value) -> ir.DataType | None:
    """The type of a value's elements, if it is known."""
    dtype = graph[value.name or ""].dtype
    return value.dtype if dtype is None else ir.DataType.from_numpy(dtype)


def is_float32(graph: Graph, value: ir.Value) -> bool:
    """True where the elements of a value are known to be float32."""
    return type_of(graph, value) == ir.DataType.FLOAT


def has_kernels(graph: Graph, value: ir.Value) -> bool:
    """True where kernels of the target compute with the elements of a value."""
    dtype = type_of(graph, value)
    return dtype is not None and dtype in graph.target.types


def constant_matrix(node: ir.Node) -> Weight | None:
    """The constant matrix on the right of a contraction, with the transposes on its way."""
    if not is_plain_product(node):
        return None
    (*_, value), transposed = _right_operand(node)
    producer = value.producer()
    sizes: list[int] | None = None
    if producer is not None and producer.op_type == "Reshape" and not producer.domain:
        before, target = producer.inputs
        if before is None or target is None:
            return None
        if target.const_value is None or not target.is_initializer():
            return None
        value, sizes = before, [int(n) for n in target.const_value.numpy().reshape(-1)]
    if not value.is_initializer() or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None:
        return None
    sizes = sizes or [int(d) for d in tensor.shape.numpy()]
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) != tensor.size:
        return None
    rows, columns = sizes
    k, n = (columns, rows) if transposed else (rows, columns)
    return Weight(value, transposed, k, n)


def is_large(graph: Graph, matrix: Weight | ComputedMatrix) -> bool:
    """True where a product by the matrix is worth a node."""
    return min(matrix.k, matrix.n) >= graph.target.least_extent


def computed_matrix(graph: Graph, node: ir.Node, source_node: ir.Node) -> ComputedMatrix | None:
    """The float32 matrix on the right of a contraction, as it lies in memory.

    A product of two values that only this contraction reads is taken as its two factors.

    Args:
        graph: The analysed graph.
        node: The contraction.
        source_node: The node of the source graph that it comes from, which reads the same values.
    """
    if not is_plain_product(node):
        return None
    chain, transposed = _right_operand(node)
    dims = dims_of(graph, chain[-1])
    if dims is None or len(dims) != 2 or not is_float32(graph, chain[-1]):
        return None
    rows, columns = dims
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    value, factor = _factors(graph, chain, {node, source_node})
    k, n = (columns, rows) if transposed else (rows, columns)
    if factor is not None and is_finite(factor) and not is_finite(value):
        value, factor = factor, value
    finite = factor is not None and is_finite(value)
    return ComputedMatrix(value, factor, finite, transposed, k, n)


def _right_operand(node: ir.Node) -> tuple[list[ir.Value], bool]:
    """The right operand of a contraction, as `stored` says it."""
    operand = node.inputs[1]
    assert operand is not None
    return stored(operand, transposed=bool(attribute(node, "transB", 0)))


def stored(operand: ir.Value, *, transposed: bool) -> tuple[list[ir.Value], bool]:
    """A right operand and what it is a transpose of, the stored matrix last, and whether that is
    `[N, K]`.

    Args:
        operand: A matrix.
        transposed: It is `[N, K]` itself.
    """
    chain = [operand]
    while (before := _turned(chain[-1].producer())) is not None:
        chain.append(before)
        transposed = not transposed
    return chain, transposed


def _turned(node: ir.Node | None) -> ir.Value | None:
    """The matrix that a node transposes."""
    if node is None or node.domain or node.op_type != "Transpose":
        return None
    return node.inputs[0] if attribute(node, "perm", [1, 0]) == [1, 0] else None


def _factors(
    graph: Graph, chain: list[ir.Value], readers: set[ir.Node]
) -> tuple[ir.Value, ir.Value | None]:
    """The stored matrix as a product of two of its shape, where nobody wants the product itself."""
    stored = chain[-1]
    for value in chain:
        producer = value.producer()
        if producer is None or value.is_graph_output() or not readers.issuperset(value.consumers()):
            return stored, None
        readers = {producer}
    (product,) = readers
    if product.domain or product.op_type != "Mul":
        return stored, None
    x, y = product.inputs
    assert x is not None and y is not None
    whole = all(same_dims(dims_of(graph, v), dims_of(graph, stored)) for v in (x, y))
    return (x, y) if whole else (stored, None)


def is_finite(value: ir.Value) -> bool:
    """True for a constant of finite numbers that no caller replaces."""
    if not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return False
    return bool(np.isfinite(value.const_value.numpy()).all())


def has_bias(node: ir.Node) -> bool:
    """True for a Gemm with a third operand."""
    return node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None


def bias_row(node: ir.Node, n: int) -> ir.Value | None:
    """The third operand of a Gemm, if it is a constant row of n numbers."""
    return node.inputs[2] if has_bias(node) and is_vector(node.inputs[2], n) else None


def is_vector(value: ir.Value | None, n: int) -> bool:
    """True for a constant row of n numbers."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    tensor = value.const_value
    dims = [int(d) for d in tensor.shape.numpy()]
    row = bool(dims) and dims[-1] == n and all(d == 1 for d in dims[:-1])
    return row and not value.is_graph_input()
