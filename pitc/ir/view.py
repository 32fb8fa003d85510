"""What a rule sees of one node."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.index import ONE, Poly, nonneg, poly
from pitc.ir.nodes import Array, attribute, node_name

if TYPE_CHECKING:
    from pitc.ir.graph import Graph


class NoRule(Exception):
    """A rule cannot describe this node; the text says why."""


class NodeView:
    """A node with what is known of its operands. Operands and outputs are addressed by position.

    Args:
        graph: The graph store.
        node: The node.
    """

    __slots__ = ("domain", "graph", "node", "op")

    def __init__(self, graph: "Graph", node: ir.Node) -> None:
        self.graph = graph
        self.node = node
        self.op = node.op_type
        self.domain = node.domain

    @property
    def title(self) -> str:
        """The node's name, or that of its first output."""
        return node_name(self.node)

    @property
    def opset(self) -> int:
        """Version of the node's operator set that the model imports."""
        return self.node.version or self.graph.model.opset_imports.get(self.domain, 1)

    @property
    def n_inputs(self) -> int:
        """Input places, absent ones included."""
        return len(self.node.inputs)

    @property
    def n_outputs(self) -> int:
        """Output places, unnamed ones included."""
        return len(self.node.outputs)

    def has(self, i: int) -> bool:
        """True when input i is given."""
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def name(self, i: int) -> str:
        """Name of input i.

        Raises:
            NoRule: The input is absent.
        """
        inputs = self.node.inputs
        x = inputs[i] if i < len(inputs) else None
        name = None if x is None else x.name
        if not name:
            raise NoRule(f"input {i} is absent")
        return name

    def out(self, i: int = 0) -> str:
        """Name of output i; empty when it is not wanted."""
        return (self.node.outputs[i].name or "") if i < len(self.node.outputs) else ""

    def shape(self, i: int) -> Shape:
        """Extents of input i.

        Raises:
            NoRule: The input is absent or its rank unknown.
        """
        shape = self.graph[self.name(i)].shape
        if shape is None:
            raise NoRule(f"the shape of input {i} ({self.name(i)}) is unknown")
        return shape

    def has_shape(self, i: int) -> bool:
        """True when input i is given and its rank known."""
        return self.has(i) and self.graph[self.name(i)].shape is not None

    def rank(self, i: int) -> int:
        """Rank of input i.

        Raises:
            NoRule: The input is absent or its rank unknown.
        """
        return len(self.shape(i))

    def dtype(self, i: int) -> np.dtype:
        """Element type of input i.

        Raises:
            NoRule: The input is absent or its type unknown.
        """
        dtype = self.graph[self.name(i)].dtype
        if dtype is None:
            raise NoRule(f"the type of input {i} ({self.name(i)}) is unknown")
        return dtype

    def out_dtype(self, i: int = 0) -> np.dtype | None:
        """Element type of output i, when known."""
        return self.graph[self.out(i)].dtype

    def ints(self, i: int) -> Array:
        """Input i as an object array of polynomials (shapes, axes, indices).

        Raises:
            NoRule: Its values are not known.
        """
        known = self.graph.ints(self.name(i))
        if known is None:
            raise NoRule(f"the values of input {i} ({self.name(i)}) are not known")
        return known

    def int_scalar(self, i: int) -> Poly:
        """Input i, one integer, as a polynomial.

        Raises:
            NoRule: Its value is not known, or there is not one.
        """
        known = self.ints(i)
        if known.size != 1:
            raise NoRule(f"input {i} ({self.name(i)}) has {known.size} elements")
        return poly(known.item())

    def sizes(self, i: int | None, attr: str | None = None) -> list[Poly] | None:
        """Integers given as input i or, in older operator sets, as an attribute.

        Args:
            i: Input place, or None when there is no such input.
            attr: Attribute name, or None when there is no such attribute.

        Returns:
            The integers; None when neither is given.

        Raises:
            NoRule: The input is given, and its values are not known.
        """
        if i is not None and self.has(i):
            return list(self.ints(i).reshape(-1))
        value = self.attr(attr) if attr else None
        return None if value is None else [poly(int(n)) for n in np.atleast_1d(value)]

    def int_list(self, i: int | None, attr: str | None = None) -> list[int] | None:
        """The same where they are constant.

        Raises:
            NoRule: One of them is not.
        """
        found = self.sizes(i, attr)
        numbers = [n for p in found or () if (n := p.as_int()) is not None]
        if found is not None and len(numbers) < len(found):
            raise NoRule(f"the values of input {i} ({self.name(i or 0)}) depend on sizes")
        return None if found is None else numbers

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as int, float, str, list, numpy array or graph; the default when not set.

        Raises:
            NoRule: The attribute is a reference to a function's own attribute.
        """
        attr = self.node.attributes.get(name)
        if attr is not None and attr.is_ref():
            raise NoRule(f"attribute {name} refers to a function attribute")
        return attribute(self.node, name, default)

    def affine(self, i: int) -> Poly | None:
        """Input i as an affine function of its own index, when it is one."""
        return self.graph[self.name(i)].affine

    def vector(self, i: int) -> tuple[Poly | None, ...] | None:
        """Input i's last-axis components as affine functions of the index, when known."""
        return self.graph[self.name(i)].vectors

    def image(self, i: int) -> str | None:
        """The mask whose live places input i holds (NonZero), when it does."""
        return self.graph[self.name(i)].live_places_of

    def array(self, i: int) -> Array | None:
        """The constant value of input i, else None."""
        return self.graph.array(self.name(i))

    def is_constant(self, i: int) -> bool:
        """True when input i is a constant."""
        return self.has(i) and self.graph.is_constant(self.name(i))

    def fresh(self) -> Poly:
        """A new size symbol."""
        return self.graph.fresh()

    def part(self, size: Poly) -> Poly:
        """The size of a dimension that is a part of another one, of which it is not known which."""
        found = self.fresh()
        self.graph.parts[found] = size
        return found

    def joined(self, extents: Sequence[Poly]) -> Poly:
        """The size of a dimension whose operands broadcast, of which it is not known how."""
        found = self._beside_one(extents)
        if found is not None:
            return found
        self.graph.joins.append((self.node, frozenset(extents)))
        return self.fresh()

    def _beside_one(self, extents: Sequence[Poly]) -> Poly | None:
        """Of the live places of something and of 1, or 0 where that has no place, it is the first:
        there are no live places where there are none.
        """
        counted = [e for e in extents if e in self.graph.counts]
        others = [self.graph.clamps.get(e) for e in extents if e not in self.graph.counts]
        if len(counted) != 1:
            return None
        places = self.graph.counts[counted[0]]
        for clamp in others:
            if clamp is None or clamp[0] != ONE or places.divide(clamp[1]) is None:
                return None
        return counted[0]

    def counted(self, places: Poly) -> Poly:
        """A new size symbol: how many of some places have something."""
        found = self.fresh()
        self.graph.counts[found] = places
        return found

    def clamped(self, last: Poly, size: Poly) -> Poly:
        """The size of the first places of a dimension: `last` of them, but at most `size`."""
        if (last, size) in self.graph.reached:
            return last
        found = self.fresh()
        self.graph.clamps[found] = (last, size)
        return found

    def copied(self, size: Poly, own: Poly | None) -> Poly:
        """A size that is asked for, where 0 asks for the dimension's own, if it has one."""
        if own is None:
            self.graph.demands.append((self.node, size))
        if own is None or (ONE, size) in self.graph.reached or self._is_never_0(size):
            return size
        found = self.fresh()
        self.graph.copies[found] = (size, own)
        return found

    def _is_never_0(self, size: Poly) -> bool:
        """True for a size that is another one, or what is not 0 where that is 0."""
        while size in self.graph.copies:
            size = self.graph.copies[size][1]
            if nonneg(size - 1):
                return True
        return False

    def inferred(self, out: int, dim: int) -> Poly:
        """Size of an output dimension by ONNX's inference, else a fresh symbol."""
        return self.graph.inferred_dim(self.out(out), dim)

    def assume(self, text: str) -> None:
        """Note a named assumption."""
        self.graph.assume(text, self.node)
