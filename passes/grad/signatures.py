"""How values go into the bodies of control flow, and out of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NoRule
from pitc.ir.index import Poly
from pitc.ir.nodes import FIXED, attribute
from pitc.passes.control.bodies import first_shapes, is_loop, states_of
from pitc.passes.rules.record import Key

BOOL, INT64 = np.dtype(bool), np.dtype(np.int64)
Typed = tuple[np.dtype | None, Shape | None]


@dataclass(frozen=True, slots=True)
class Slicing:
    """A tensor that a trip reads, or writes, one slice of.

    Args:
        axis: Its dimension.
        back: 1 where the last slice comes first.
    """

    axis: int = 0
    back: int = 0

    @property
    def reverse(self) -> "Slicing":
        """The same the other way."""
        return Slicing(self.axis, 1 - self.back)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a body takes and gives. What it takes stands for the node's operands, in their order.

    Args:
        given: Types and shapes of what it takes; a shape that every trip has, or None.
        before: How many of those come in front of the states that it carries.
        behind: How many results come in front of them.
        states: How many states there are.
        read: What it reads slice by slice, behind the states.
        written: What it writes so.
        runs: There is at least one trip, or the node fails.
        trips: How many there are, where that is a known size.
    """

    given: tuple[Typed, ...] = ()
    before: int = 0
    behind: int = 0
    states: int = 0
    read: tuple[Slicing, ...] = ()
    written: tuple[Slicing, ...] = ()
    runs: bool = False
    trips: Poly | None = None

    def written_sizes(self, k: int, sizes: Sequence[Poly | None]) -> tuple[Poly | None, ...] | None:
        """Sizes of what is written slice by slice.

        Args:
            k: Which of those it is.
            sizes: Those of a slice.
        """
        rank, axis = len(sizes) + 1, self.written[k].axis
        if not -rank <= axis < rank:
            return None
        axis %= rank
        # ONNX Runtime makes up sizes where there is no trip
        known = list(sizes) if self.runs else [None] * len(sizes)
        return (*known[:axis], self.trips, *known[axis:])


def _branches(graph: Graph, node: ir.Node) -> Signature:
    return Signature()


def _loop(graph: Graph, node: ir.Node) -> Signature:
    if not is_loop(graph, node):
        raise NoRule(
            "it carries a value that is absent, or its body takes the number of the trip, or the "
            "condition, in a shape that is not one element"
        )
    states = states_of(node)
    types = [INT64, BOOL, *(graph[x.name or ""].dtype for x in states)]
    shapes = [first_shapes(graph, node)[0], *graph.carried[node]]
    count = len(node.attributes["body"].as_graph().outputs) - 1 - len(states)
    given = tuple(zip(types, shapes, strict=True))
    return Signature(given, FIXED, 1, len(states), (), (Slicing(),) * count)


def _scan(graph: Graph, node: ir.Node) -> Signature:
    operands = [x for x in node.inputs if x is not None]
    read = _lines(node, "input", int(attribute(node, "num_scan_inputs", 0)))
    kept = len(operands) - len(read)
    if len(operands) < len(node.inputs) or not read or kept < 0:
        raise NoRule("one of its inputs is absent")
    known = [graph[x.name or ""] for x in operands]
    # that states keep their shapes is a rule of the operator
    shapes = [x.shape for x in known[:kept]]
    shapes += [_slice(x.shape, slicing) for x, slicing in zip(known[kept:], read, strict=True)]
    given = tuple((x.dtype, shape) for x, shape in zip(known, shapes, strict=True))
    count = len(node.attributes["body"].as_graph().outputs) - kept
    first, slicing = known[kept].shape, read[0]
    trips = (
        first[slicing.axis] if first is not None and _slice(first, slicing) is not None else None
    )
    return Signature(given, 0, 0, kept, read, _lines(node, "output", count), True, trips)


def _lines(node: ir.Node, kind: str, count: int) -> tuple[Slicing, ...]:
    axes, back = (attribute(node, f"scan_{kind}_{x}") for x in ("axes", "directions"))
    pairs = zip(axes or [0] * count, back or [0] * count, strict=True)
    return tuple(Slicing(int(axis), int(way)) for axis, way in pairs)


def _slice(shape: Shape | None, slicing: Slicing) -> Shape | None:
    if shape is None or not -len(shape) <= slicing.axis < len(shape):
        return None
    axis = slicing.axis % len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


#: Gives the signature of a node's bodies, or raises NoRule.
SIGNATURES: Mapping[Key, Callable[[Graph, ir.Node], Signature]] = {
    ("", "If"): _branches,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
}
