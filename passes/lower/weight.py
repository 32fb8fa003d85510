"""Constant right operands of contractions, and the panels that kernels read them from."""

from dataclasses import dataclass, field
from functools import partial
from math import prod

import onnx_ir as ir

from pitc.ir.nodes import Array
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from pitc.passes.lower.builder import Builder

MIN_EXTENT = 16  # smaller contractions stay with ONNX Runtime


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
            return pack_panels(w.reshape(self.n, self.k).T)
        return pack_panels(w.reshape(self.k, self.n))


@dataclass(slots=True)
class Panels:
    """Weights that a compiled graph holds as panels: names of the source weight and of the
    panels.
    """

    made: dict[tuple[str, bool, int, int], ir.Value] = field(default_factory=dict)

    def value(self, build: Builder, weight: Weight) -> ir.Value:
        """The panels of a weight, made once and computed when they are written."""
        key = (weight.value.name or "", weight.transposed, weight.k, weight.n)
        if key not in self.made:
            tensor = weight.value.const_value
            assert tensor is not None
            make = partial(weight.panels, tensor)
            shape = (panel_count(weight.n), weight.k, PANEL_WIDTH)
            self.made[key] = build.lazy_constant(f"{key[0]}.panels", make, shape)
        return self.made[key]


def constant_matrix(node: ir.Node) -> Weight | None:
    """The constant float32 matrix on the right of a contraction, with the transposes on its way."""
    attributes = {k: a.value for k, a in node.attributes.items()}
    if node.domain or node.op_type not in ("MatMul", "Gemm") or attributes.get("transA", 0):
        return None
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        return None
    value, transposed = node.inputs[1], bool(attributes.get("transB", 0))
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose" and not producer.domain:
        perm = producer.attributes.get("perm")
        if perm is not None and list(perm.as_ints()) != [1, 0]:
            return None
        value, transposed = producer.inputs[0], not transposed
        producer = None if value is None else value.producer()
    sizes: list[int] | None = None
    if producer is not None and producer.op_type == "Reshape" and not producer.domain:
        value, target = producer.inputs[0], producer.inputs[1]
        if target is None or target.const_value is None or not target.is_initializer():
            return None
        sizes = [int(n) for n in target.const_value.numpy().reshape(-1)]
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return None
    sizes = sizes or [int(d) for d in tensor.shape.numpy()]
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) != tensor.size:
        return None
    rows, columns = sizes
    k, n = (columns, rows) if transposed else (rows, columns)
    return Weight(value, transposed, k, n) if min(k, n) >= MIN_EXTENT else None


def is_vector(value: ir.Value | None, n: int) -> bool:
    """True for a constant float32 row of n numbers."""
    if value is None or value.const_value is None or not value.is_initializer():
        return False
    tensor = value.const_value
    dims = [int(d) for d in tensor.shape.numpy()]
    row = bool(dims) and dims[-1] == n and all(d == 1 for d in dims[:-1])
    return row and tensor.dtype == ir.DataType.FLOAT and not value.is_graph_input()
