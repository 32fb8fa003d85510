"""What an adjoint is given: one node, and the gradients of its results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.index import dim_index
from pitc.ir.nodes import bodies
from pitc.passes.control.bodies import captured
from pitc.passes.grad.backward import Backward, wide

#: What a gradient is of: an operand by its place, a value that a body captures by its name.
Wrt = int | str
#: From a derived graph, what takes nodes, gradients of values and names: the gradients of those.
Engine = Callable[[Graph, Backward, Mapping[str, ir.Value], Collection[str]], dict[str, ir.Value]]


class NoOperand(NoRule):
    """The gradient of one operand is not known: it changes the node otherwise than by elements.

    Args:
        place: Which one it is.
    """

    def __init__(self, place: int) -> None:
        super().__init__(f"its input {place} has no derivative here")
        self.place = place


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

    @property
    def wide(self) -> np.dtype:
        """The type in which gradients are summed."""
        return wide(self.dtype)

    def widened(self, g: ir.Value) -> ir.Value:
        """A value of the first result's type in that type."""
        return g if self.wide == self.dtype else self.build.cast(g, self.wide)

    def narrowed(self, g: ir.Value) -> ir.Value:
        """A sum in the first result's type."""
        return g if self.wide == self.dtype else self.build.cast(g, self.dtype)

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
            NoOperand: One is asked for.
        """
        others = [i for i in self.wanted if i not in places]
        if others:
            raise NoOperand(others[0])


def bare_axes(expr: TensorExpr, index: Sequence[object]) -> list[int | None]:
    """The iteration axis that each dimension of an operand is, whole; None where it is none.

    Args:
        expr: How the result reads the operand.
        index: The places that it reads, one formula for each dimension.
    """
    known = {p: a for a, e in enumerate(expr.extents) if (p := dim_index(a, e)).digits()}
    return [known.get(p) if p is not None else None for p in index]  # type: ignore[call-overload]
