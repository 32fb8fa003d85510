"""Right operands of products as kernels take them: constant matrices, and those that are computed
when the model runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import attribute, is_plain_product

Dims = Sequence[int | str | None]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A right operand, `[K, N]`.

    Args:
        value: Its elements: an initializer in any number of dimensions; or, float32, of two.
        constant: It is the former, which kernels read as panels.
        factor: A value of the same shape that it is multiplied by, elementwise; None: no such.
        finite: `value` is, beside a factor: 0 there is 0 in the product.
        transposed: Both are stored `[N, K]`.
        k: Rows of the matrix.
        n: Its columns.
    """

    value: ir.Value
    constant: bool
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
    return type_of(graph, value) in graph.target.types


def is_large(graph: Graph, matrix: Matrix) -> bool:
    """True where a product by the matrix is worth a node."""
    return min(matrix.k, matrix.n) >= graph.target.least_extent


def right_matrix(graph: Graph, node: ir.Node, source: ir.Node) -> Matrix | None:
    """The matrix on the right of a contraction, as it lies in memory, with the transposes on its
    way: a constant, or one that is computed when the model runs.

    Of the latter, a product of two values that only this contraction reads is taken as its factors.

    Args:
        graph: The analysed graph.
        node: The contraction.
        source: The node of the source graph that it comes from, which reads the same values.
    """
    if not is_plain_product(node):
        return None
    operand = node.inputs[1]
    assert operand is not None
    chain, transposed = stored(operand, transposed=bool(attribute(node, "transB", 0)))
    value, factor, dims = chain[-1], None, dims_of(graph, chain[-1])
    constant = _constant(value)
    if constant is not None:
        value, dims = constant
    elif is_float32(graph, value):
        value, factor = _factors(graph, chain, {node, source})
    else:
        return None
    if factor is not None and is_finite(factor) and not is_finite(value):
        value, factor = factor, value
    finite = factor is not None and is_finite(value)
    match dims:
        case [int(rows), int(columns)]:
            k, n = (columns, rows) if transposed else (rows, columns)
            return Matrix(value, constant is not None, factor, finite, transposed, k, n)
    return None


def _constant(value: ir.Value) -> tuple[ir.Value, Dims] | None:
    """The constant that a value is, or is a reshape of, and its dimensions."""
    producer, sizes = value.producer(), None
    if producer is not None and producer.op_type == "Reshape" and not producer.domain:
        before, target = producer.inputs
        shape = tensor_of(target)
        if before is None or shape is None:
            return None
        value, sizes = before, [int(n) for n in shape.numpy().flat]
    tensor = tensor_of(value)
    if tensor is None:
        return None
    sizes = sizes or [int(d) for d in tensor.shape.numpy()]
    return (value, sizes) if prod(sizes) == tensor.size else None


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
    (matrix,) = node.inputs
    return matrix if attribute(node, "perm", [1, 0]) == [1, 0] else None


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


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The elements of a constant that no caller replaces."""
    return None if value is None or value.is_graph_input() else value.const_value


def is_finite(value: ir.Value) -> bool:
    """True for a constant of finite numbers."""
    tensor = tensor_of(value)
    return tensor is not None and bool(np.isfinite(tensor.numpy()).all())


def has_bias(node: ir.Node) -> bool:
    """True for a product with a third operand."""
    return len(node.inputs) > 2 and node.inputs[2] is not None


def bias_row(node: ir.Node, n: int) -> ir.Value | None:
    """The third operand of a Gemm, if it is a constant row of n numbers."""
    return node.inputs[2] if has_bias(node) and is_vector(node.inputs[2], n) else None


def is_vector(value: ir.Value | None, n: int) -> bool:
    """True for a constant row of n numbers."""
    tensor = tensor_of(value)
    dims = [] if tensor is None else [int(d) for d in tensor.shape.numpy()]
    return dims[-1:] == [n] and all(d == 1 for d in dims[:-1])
