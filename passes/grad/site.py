"""What an adjoint is given: one node, and the gradients of its results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.expr import Shape, TensorExpr
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.index import dim_index
from pitc.ir.nodes import bodies
from pitc.ir.since import Since
from pitc.passes.control.bodies import captured

PREFIX = "grad"


class Backward(NodeBuilder):
    """Appends nodes of the backward way to a graph; equal ones are made once.

    Args:
        graph: The analysed graph whose values are read.
        main: What gets the nodes.
    """

    def __init__(self, graph: Graph, main: ir.Graph) -> None:
        super().__init__(main, PREFIX)
        self.known = graph

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.asarray(numbers, np.int64))

    def number(self, x: float, dtype: np.dtype) -> ir.Value:
        """A scalar of that type."""
        return self.constant(np.asarray(x, dtype))

    def extents(self, x: ir.Value) -> Shape | None:
        """Extents of a value of the source graph; None where its rank is unknown, or it is new."""
        return self.known[x.name or ""].shape

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

    def scalar(self, x: ir.Value) -> ir.Value:
        """A vector of one element as a scalar."""
        return self.op("Reshape", [x, self.constant(np.zeros(0, np.int64))])

    def count(self, x: ir.Value, dims: Sequence[int], dtype: np.dtype) -> ir.Value:
        """How many elements some dimensions span, as a number of a type."""
        number = self.op("ReduceProd", [self.sizes(x, dims)], keepdims=0)
        return self.cast(number, dtype)

    def cast(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """A value in another type."""
        return self.op("Cast", [x], to=ir.DataType.from_numpy(dtype))

    def reshape(self, x: ir.Value, shape: ir.Value) -> ir.Value:
        """A value in another shape, of which any size may be 0."""
        if self.opset < Since.ZERO_SIZES:
            return self.op("Reshape", [x, shape])
        return self.op("Reshape", [x, shape], allowzero=1)

    def reshape_like(self, g: ir.Value, x: ir.Value) -> ir.Value:
        """The same elements in the shape of a value."""
        return self.reshape(g, self.shape(x))

    def joined(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Vectors of integers, one behind the other."""
        arrays = [p.const_value for p in parts]
        if all(a is not None for a in arrays):
            return self.constant(np.concatenate([a.numpy() for a in arrays if a is not None]))
        return parts[0] if len(parts) == 1 else self.op("Concat", parts, axis=0)

    def expand_like(self, g: ir.Value, x: ir.Value) -> ir.Value:
        """Broadcast to the shape of a value."""
        return self.op("Expand", [g, self.shape(x)])

    def zeros_like(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """Zeros in the shape of a value."""
        return self.op("Expand", [self.number(0, dtype), self.shape(x)])

    def transpose(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        """Dimensions in another order, if that changes anything."""
        return x if list(order) == sorted(order) else self.op("Transpose", [x], perm=list(order))

    def reduced(
        self, x: ir.Value, axes: Sequence[int], *, keep: bool, op: str = "ReduceSum"
    ) -> ir.Value:
        """A reduction over dimensions, none for none."""
        return self.along(op, x, axes, keepdims=int(keep)) if axes else x

    def total(self, parts: Sequence[ir.Value]) -> ir.Value:
        """The sum of values, from the first to the last."""
        whole = parts[0]
        for part in parts[1:]:
            whole = self.op("Add", [whole, part])
        return whole


#: What a gradient is of: an operand by its place, a value that a body captures by its name.
Place = int | str
#: From a derived graph, what takes nodes, gradients of values and names: the gradients of those.
Engine = Callable[[Graph, Backward, Mapping[str, ir.Value], Collection[str]], dict[str, ir.Value]]


@dataclass(frozen=True, slots=True)
class Site:
    """A node of which the gradients of operands are asked for.

    Args:
        view: The node.
        build: Takes the nodes that compute them.
        gradients: Of each result; None for one that the loss does not depend on.
        wanted: The operands, by their places.
        captured: What its bodies capture of which gradients are asked for, by name.
        engine: Takes gradients of the bodies.
    """

    view: NodeView
    build: Backward
    gradients: tuple[ir.Value | None, ...]
    wanted: tuple[int, ...]
    captured: tuple[str, ...]
    engine: Engine

    @property
    def expr(self) -> TensorExpr:
        """The tensor expression of the first result.

        Raises:
            NoRule: It has none.
        """
        value = self.view.graph[self.view.out()]
        if value.expr is None:
            raise NoRule(value.unruled or "it has no tensor expression")
        return value.expr

    @property
    def dtype(self) -> np.dtype:
        """The type of the first result.

        Raises:
            NoRule: It is unknown.
        """
        dtype = self.view.out_dtype(0)
        if dtype is None:
            raise NoRule(f"the type of '{self.view.out()}' is unknown")
        return dtype

    def x(self, i: int = 0) -> ir.Value:
        """Operand i.

        Raises:
            NoRule: It is absent.
        """
        value = self.view.node.inputs[i] if self.view.has(i) else None
        if value is None:
            raise NoRule(f"input {i} is absent")
        return value

    def y(self, k: int = 0) -> ir.Value:
        """Result k, which gets a name if it had none."""
        value = self.view.node.outputs[k]
        if not value.name:
            value.name = self.build.unique(f"{self.view.title}.{k}")
        return value

    def outer(self, name: str) -> ir.Value:
        """A value that some body of the node captures."""
        inner = (x for body in bodies(self.view.node) for x in captured(body))
        return next(value for _, _, value in inner if value.name == name)

    @property
    def g(self) -> ir.Value:
        """The gradient of the first result, the only one that may have one.

        Raises:
            NoRule: Another result has a gradient, or the first has none.
        """
        others = [k for k, g in enumerate(self.gradients) if g is not None and k > 0]
        if others:
            raise NoRule(f"the loss depends on its output {others[0]}")
        if self.gradients[0] is None:
            raise NoRule("the loss does not depend on its first output")
        return self.gradients[0]

    def only(self, *places: int) -> None:
        """Refuse gradients of other operands.

        Raises:
            NoRule: One is asked for.
        """
        others = [i for i in self.wanted if i not in places]
        if others:
            raise NoRule(f"its input {others[0]} has no derivative here")


def bare_axes(expr: TensorExpr, index: Sequence[object]) -> list[int | None]:
    """The iteration axis that each dimension of an operand is, whole; None where it is none."""
    known = {p: a for a, e in enumerate(expr.extents) if (p := dim_index(a, e)).digits()}
    return [known.get(p) if p is not None else None for p in index]  # type: ignore[call-overload]
