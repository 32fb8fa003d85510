"""Builds the nodes that a fused operator consists of."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.build import Names, NodeMaker
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.nodes import node_name
from pitc.ir.since import Since


@dataclass(slots=True)
class Shared:
    """What several expansions of one graph read, such as the mask of all layers.

    Args:
        values: The values, by what they are.
        nodes: The nodes that compute them.
    """

    values: dict[Hashable, ir.Value] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)


class Body(NodeMaker):
    """The nodes of one expansion, not yet in a graph.

    Args:
        view: The node that is taken apart.
        names: Names of the model.
        shared: Values of earlier expansions.

    Attributes:
        nodes: The expansion's own nodes.
        prologue: New nodes whose results other expansions may read too.
        constants: New initializers.
    """

    CONSTANT = "constant"

    def __init__(self, view: NodeView, names: Names, shared: Shared) -> None:
        super().__init__(view.graph.model.graph, names)
        self.view, self.shared, self._known = view, shared, shared.values
        self.nodes: list[ir.Node] = []
        self.prologue: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._target = self.nodes

    def unique(self, stem: str) -> str:
        """A name that nothing has."""
        return self.names.unique(f"{node_name(self.view.node)}.{stem}")

    def insert(self, node: ir.Node) -> None:
        """Keep a new node."""
        self._target.append(node)

    def register(self, constant: ir.Value) -> None:
        """Keep a new constant."""
        self.constants.append(constant)

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
        self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> ir.Value:
        """Add a node; its first output."""
        return self._node(op_type, inputs, attributes, domain)[0]

    def apply(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> ir.Value:
        """Add a node; its first output."""
        return self._node(op_type, inputs, attributes)[0]

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        domain: str = "",
        parts: int = 1,
    ) -> Sequence[ir.Value]:
        name = self.unique(op_type.lower())
        outputs = [
            self.names.unique(f"{name}.{k}" if parts > 1 else f"{name}.out") for k in range(parts)
        ]
        return self.add(op_type, inputs, attributes, outputs, name, domain)

    def number(self, x: float) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.float32(x))

    def share(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """A value that equal expansions make once.

        Args:
            key: What the value is.
            make: Builds it; its nodes belong to no single expansion.
        """
        outer, self._target = self._target, self.prologue
        try:
            return self.once(key, make)
        finally:
            self._target = outer

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
        if self.opset < Since.ZERO_SIZES:
            raise NoRule("sizes that are joined to one dimension are not numbers")
        parts = [self.ints(n) if isinstance(n, int) else n for n in sizes]
        if kept:
            shape = self.op("Shape", x)
            parts.insert(0, self.op("Slice", shape, self.ints(0), self.ints(kept)))
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0), allowzero=1)

    def split(self, x: ir.Value, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
        """Parts of the given sizes along an axis."""
        inputs, attributes = self.listed("Split", sizes, "split")
        return self._node("Split", [x, *inputs], {**attributes, "axis": axis}, parts=len(sizes))

    def parts(
        self,
        count: int,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Add a node of several outputs; all of them."""
        return self._node(op_type, inputs, attributes, domain, parts=count)

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
