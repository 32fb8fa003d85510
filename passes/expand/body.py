"""Builds the nodes that a fused operator consists of."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.nodes import Array, node_name

ZERO_IS_A_SIZE = 14  # since this operator set for Reshape
LISTS_AS_INPUTS = 13  # since this operator set for Unsqueeze, ReduceSum and Split


@dataclass(slots=True)
class Names:
    """Names that a model uses; a new one is taken as it is made."""

    taken: set[str]

    def unique(self, stem: str) -> str:
        """A name that nothing has."""
        name, k = stem, 1
        while name in self.taken:
            k += 1
            name = f"{stem}.{k}"
        self.taken.add(name)
        return name


@dataclass(slots=True)
class Shared:
    """What several expansions of one graph read, such as the mask of all layers.

    Args:
        values: The values, by what they are.
        nodes: The nodes that compute them.
    """

    values: dict[Hashable, ir.Value] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)


@dataclass(slots=True)
class Body:
    """The nodes of one expansion, not yet in a graph.

    Args:
        view: The node that is taken apart.
        names: Names of the model.
        shared: Values of earlier expansions.
        nodes: The expansion's own nodes.
        prologue: New nodes whose results other expansions may read too.
        constants: New initializers.
    """

    view: NodeView
    names: Names
    shared: Shared
    nodes: list[ir.Node] = field(default_factory=list)
    prologue: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    _target: list[ir.Node] | None = None

    @property
    def expr(self) -> TensorExpr:
        """The node's own tensor expression.

        Raises:
            NoRule: It has none.
        """
        expr = self.view.graph[self.view.out()].expr
        if expr is None:
            raise NoRule("it has no tensor expression")
        return expr

    @property
    def opset(self) -> int:
        """Version of the standard operators."""
        versions = self.view.graph.model.opset_imports
        return versions.get("", versions.get("ai.onnx", 1))

    def input(self, i: int) -> ir.Value:
        """Input i of the node.

        Raises:
            NoRule: It is absent, or has other sizes than ONNX's inference says: ONNX Runtime may
                refuse to load parts that it computes for a fused operator.
        """
        value = self.view.node.inputs[i] if self.view.has(i) else None
        if value is None:
            raise NoRule(f"input {i} is absent")
        if not self.view.graph.is_as_inferred(value.name or ""):
            raise NoRule(f"the sizes of input {i} are not those that ONNX's inference states")
        return value

    def optional(self, i: int) -> ir.Value | None:
        """Input i of the node, None where it is absent."""
        return self.input(i) if self.view.has(i) else None

    def wants(self, output: int) -> bool:
        """True where somebody reads an output of the node."""
        if not self.view.out(output):
            return False
        value = self.view.node.outputs[output]
        return bool(value.uses()) or value.is_graph_output()

    def only_outputs(self, *outputs: int) -> None:
        """Refuse a node that is asked for other outputs.

        Raises:
            NoRule: Another output is read.
        """
        for k in range(self.view.n_outputs):
            if k not in outputs and self.wants(k):
                raise NoRule(f"output {k} is read")

    def without_inputs(self, *places: int) -> None:
        """Refuse a node with other than its plain operands.

        Raises:
            NoRule: One of the inputs is given.
        """
        for i in places:
            if self.view.has(i):
                raise NoRule(f"input {i} is given")

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        parts: int = 1,
        **attributes: Any,
    ) -> ir.Value:
        """Add a node; its first output."""
        return self._node(op_type, inputs, attributes, domain, parts)[0]

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        domain: str = "",
        parts: int = 1,
    ) -> Sequence[ir.Value]:
        stem = f"{node_name(self.view.node)}.{op_type.lower()}"
        name = self.names.unique(stem)
        outputs = [
            ir.Value(name=self.names.unique(f"{name}.{k}" if parts > 1 else f"{name}.out"))
            for k in range(parts)
        ]
        node = ir.node(op_type, list(inputs), attributes, domain=domain, outputs=outputs, name=name)
        (self.nodes if self._target is None else self._target).append(node)
        return node.outputs

    def constant(self, array: npt.ArrayLike) -> ir.Value:
        """A new initializer."""
        x: Array = np.asarray(array)
        key = ("constant", x.dtype.str, x.shape, x.tobytes())
        if key not in self.shared.values:
            name = self.names.unique(f"{node_name(self.view.node)}.constant")
            value = ir.Value(name=name, const_value=ir.tensor(x, name=name))
            self.constants.append(value)
            self.shared.values[key] = value
        return self.shared.values[key]

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.asarray(numbers, np.int64))

    def number(self, x: float) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.float32(x))

    def share(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that equal expansions make once.

        Args:
            key: What the value is.
            make: Builds it; its nodes belong to no single expansion.
        """
        if key not in self.shared.values:
            outer, self._target = self._target, self.prologue
            self.shared.values[key] = make()
            self._target = outer
        return self.shared.values[key]

    def reshape(self, x: ir.Value, *sizes: int) -> ir.Value:
        """Reshape; 0 keeps the dimension at that place."""
        return self.op("Reshape", x, self.ints(*sizes))

    def joined(self, x: ir.Value, kept: int, sizes: Sequence[int | ir.Value]) -> ir.Value:
        """Reshape to the first dimensions as they are, then numbers or computed sizes, `[1]`.

        Raises:
            NoRule: A computed size may be 0, which older operator sets take for a dimension kept.
        """
        numbers = [n for n in sizes if isinstance(n, int)]
        if len(numbers) == len(sizes):
            return self.reshape(x, *[0] * kept, *numbers)
        if self.opset < ZERO_IS_A_SIZE:
            raise NoRule("sizes that are joined to one dimension are not numbers")
        parts = [self.ints(n) if isinstance(n, int) else n for n in sizes]
        if kept:
            shape = self.op("Shape", x)
            parts.insert(0, self.op("Slice", shape, self.ints(0), self.ints(kept)))
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0), allowzero=1)

    def transpose(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        """Transpose, if that changes anything."""
        return x if list(order) == sorted(order) else self.op("Transpose", x, perm=list(order))

    def unsqueeze(self, x: ir.Value, *axes: int) -> ir.Value:
        """Insert dimensions of extent 1."""
        return self._listed("Unsqueeze", x, "axes", axes)[0]

    def row_sums(self, x: ir.Value) -> ir.Value:
        """Sums over dimension 1."""
        return self._listed("ReduceSum", x, "axes", [1], keepdims=0)[0]

    def split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        """Parts of the given sizes along an axis."""
        return self._listed("Split", x, "split", sizes, len(sizes), axis=axis)

    def _listed(
        self,
        op_type: str,
        x: ir.Value,
        name: str,
        numbers: Sequence[int],
        parts: int = 1,
        **rest: Any,
    ) -> Sequence[ir.Value]:
        """A node whose list of numbers is an input or, in older operator sets, an attribute."""
        if self.opset < LISTS_AS_INPUTS:
            return self._node(op_type, [x], {name: list(numbers), **rest}, parts=parts)
        return self._node(op_type, [x, self.ints(*numbers)], rest, parts=parts)

    def quantised(self, x: ir.Value) -> Sequence[ir.Value]:
        """A value as 8 bits, their scale and their zero point."""
        return self._node("DynamicQuantizeLinear", [x], {}, parts=3)

    def positions(self, i: int, dim: int) -> ir.Value:
        """int64 numbers 0, 1, .. along a dimension of input i; equal sizes share them."""
        extent = self.view.shape(i)[dim]

        def make() -> ir.Value:
            if (number := extent.as_int()) is not None:
                return self.constant(np.arange(number))
            size = self.op(
                "Gather", self.op("Shape", self.input(i)), self.constant(np.int64(dim)), axis=0
            )
            zero, one = (self.constant(np.int64(k)) for k in (0, 1))
            return self.op("Range", zero, size, one)

        return self.share(("positions", extent), make)

    def discard(self) -> None:
        """Let go of the operands of nodes that are not used after all."""
        for node in (*self.nodes, *self.prologue):
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)
