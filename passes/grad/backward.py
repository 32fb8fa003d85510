"""What takes the nodes of the backward way."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.nodes import Array, attribute
from pitc.ir.since import Since

PREFIX = "grad"
BOOL, INT64 = np.dtype(bool), np.dtype(np.int64)
_INTEGERS: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
}


def wide(dtype: np.dtype) -> np.dtype:
    """The type of sums and counts: half floats end at 65504, and ONNX Runtime scatters no sums of
    them.
    """
    return np.promote_types(dtype, np.float32)


def _producer(x: ir.Value, op: str) -> ir.Node | None:
    """The node of that operator that makes a value; None where it is another one."""
    node = x.producer()
    return node if node is not None and not node.domain and node.op_type == op else None


class Backward(NodeBuilder):
    """Appends nodes of the backward way to a graph; equal ones are made once.

    Args:
        graph: The analysed graph whose values are read.
        main: What gets the nodes.
    """

    def __init__(self, graph: Graph, main: ir.Graph) -> None:
        super().__init__(main, PREFIX)
        self.graph = graph

    def number(self, x: float, dtype: np.dtype) -> ir.Value:
        """A scalar of that type."""
        return self.constant(np.asarray(x, dtype))

    def extents(self, x: ir.Value) -> Shape | None:
        """Extents of a value of the source graph; None where its rank is unknown, or it is new."""
        return self.graph[x.name or ""].shape

    def shape(self, x: ir.Value) -> ir.Value:
        """The shape of a value: a constant where all of it is known."""
        extents = self.extents(x)
        numbers = [e.as_int() for e in extents or ()]
        if extents is not None and None not in numbers:
            return self.constant(np.asarray(numbers, np.int64))
        return self.op("Shape", [x])

    def sizes(self, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        """Some sizes of a value, as a vector."""
        extents = self.extents(x)
        numbers = [None if extents is None else extents[d].as_int() for d in dims]
        if None not in numbers:
            return self.constant(np.asarray(numbers, np.int64))
        return self.op("Gather", [self.op("Shape", [x]), self.ints(*dims)], axis=0)

    def transpose(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        """Dimensions in another order; of a matrix's gradient, those of its factors.

        Transpose(MatMul(Transpose(a), g))   ->   MatMul(Transpose(g), a)
        """
        product = _producer(x, "MatMul") if list(order) == [1, 0] else None
        if product is not None and (product.name or "").startswith(f"{self.prefix}."):
            left, right = (f for f in product.inputs if f is not None)
            if _producer(left, "Transpose") is not None:
                return self.op(
                    "MatMul", [self.transpose(right, order), self.transpose(left, order)]
                )
        turn = _producer(x, "Transpose")
        if turn is not None and turn.inputs[0] is not None:
            before = attribute(turn, "perm", tuple(reversed(range(len(order)))))
            order, x = [before[d] for d in order], turn.inputs[0]
        return super().transpose(x, order)

    def numbered(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Numbers of a value's elements, from 1 on, in its shape; and the one behind the last."""
        one = self.constant(np.int64(1))
        end = self.op("Add", [self.op("Size", [x]), one])
        return self.reshape_like(self.op("Range", [one, end, one]), x), end

    def scalar(self, x: ir.Value) -> ir.Value:
        """A vector of one element as a scalar."""
        return self.op("Reshape", [x, self.constant(np.zeros(0, np.int64))])

    def count(self, x: ir.Value, dims: Sequence[int], dtype: np.dtype) -> ir.Value:
        """How many elements some dimensions span, as a number of a type."""
        number = self.op("ReduceProd", [self.sizes(x, dims)], keepdims=0)
        return self.cast(number, dtype)

    def cast(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """A value in a type."""
        known = self.graph[x.name or ""].dtype
        if known is not None and known == dtype:  # NumPy takes None for float64
            return x
        return self.op("Cast", [x], to=ir.DataType.from_numpy(dtype))

    def reshape(self, x: ir.Value, shape: ir.Value) -> ir.Value:
        """A value in another shape, of which any size may be 0."""
        if self.opset < Since.ZERO_SIZES:
            return self.op("Reshape", [x, shape])
        return self.op("Reshape", [x, shape], allowzero=1)

    def reshape_like(self, g: ir.Value, x: ir.Value) -> ir.Value:
        """The same elements in the shape of a value."""
        return self.reshape(g, self.shape(x))

    def arithmetic(self, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """The sum, difference or product of two vectors of integers, known where both are."""
        a, b = x.const_value, y.const_value
        if a is None or b is None:
            return self.op(op, [x, y])
        return self.constant(_INTEGERS[op](a.numpy(), b.numpy()))

    def joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Vectors of integers, one behind the other."""
        arrays = [p.const_value for p in parts]
        if all(a is not None for a in arrays):
            return self.constant(np.concatenate([a.numpy() for a in arrays if a is not None]))
        return parts[0] if len(parts) == 1 else self.op("Concat", parts, axis=0)

    def expand_like(self, g: ir.Value, x: ir.Value) -> ir.Value:
        """Broadcast to the shape of a value."""
        return self.op("Expand", [g, self.shape(x)])

    def full(self, number: float, dtype: np.dtype, shape: ir.Value) -> ir.Value:
        """One number everywhere."""
        return self.op("Expand", [self.number(number, dtype), shape])

    def zeros_like(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """Zeros in the shape of a value."""
        return self.full(0, dtype, self.shape(x))

    def reduced(
        self, x: ir.Value, axes: Sequence[int], *, keep: bool, op: str = "ReduceSum"
    ) -> ir.Value:
        """A reduction over dimensions, none for none."""
        return self.along(op, x, axes, keepdims=int(keep)) if axes else x
