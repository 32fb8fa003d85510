"""What scores, or weights, go through on their way: DequantizeLinear(QuantizeLinear(x)), a cap.

    x' = clamp(round(x / step), -below, above) * step

With one scale and one zero point for both, a constant number each, the zero point only says how far
the type reaches: `below` steps under 0, `above` steps over it. 0 stays 0.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import attribute, first_input, first_output
from pitc.passes.rules.record import operator_of

LEAST, MOST = 1e-6, 1e6  # of a factor: products and quotients stay far from the ends of float32
TYPES = ("int8", "uint8", "int16", "uint16")
"""Of what is quantised: a float32 counts all their steps."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A range of multiples of one number; see above."""

    step: float
    below: int
    above: int


@dataclass(frozen=True, slots=True)
class Cap:
    """The hyperbolic tangent, between -1 and 1: scores are capped by the factor behind it.

    x' = tanh(x / cap) * cap
    """


@dataclass(frozen=True, slots=True)
class Inner:
    """A function of scores, with a factor in front and one behind.

    Args:
        function: Rounding to steps, or a cap.
        scale: The factor behind it.
        terms: How many terms of the bias are added behind it.
    """

    function: Steps | Cap
    scale: float
    terms: int

    @property
    def verb(self) -> str:
        """What it does with scores, for people."""
        return "capped" if isinstance(self.function, Cap) else "quantised"


def pair_of(graph: Graph, node: ir.Node) -> tuple[ir.Node, Steps] | str:
    """What a dequantising node makes of a quantised value.

    Args:
        graph: The graph.
        node: A node that dequantises.

    Returns:
        The node that has quantised, and the steps; or what is between the two, for people.
    """
    before = graph[first_input(node)].producer
    if before is None or not operator_of(before).quantises:
        return "is of a value that no QuantizeLinear gives"
    dtype = graph[first_input(node)].dtype
    floats = {graph[first_input(before)].dtype, graph[first_output(node)].dtype}
    if dtype is None or dtype.name not in TYPES or floats != {np.dtype(np.float32)}:
        return f"is of {dtype} and not of 8 or 16 bits, from and to float32"
    number, there = _numbers(graph, before), _numbers(graph, node)
    if number is None or there is None:
        return "is not by one constant step and one zero point"
    if number != there:
        return "is by another step or zero point than its QuantizeLinear"
    step, zero = number
    if not LEAST <= step <= MOST:
        return f"has steps of {step}"
    ends = np.iinfo(dtype)
    return before, Steps(step, zero - ends.min, ends.max - zero)


def _numbers(graph: Graph, node: ir.Node) -> tuple[float, int] | None:
    """Scale and zero point, where they are one constant number each; float32, and not in blocks."""
    names = [x.name if x is not None and x.name else "" for x in node.inputs[1:3]]
    scale, zero = graph.splat(names[0]), graph.splat(names[1]) if any(names[1:]) else 0
    if attribute(node, "precision", 0) not in (0, ir.DataType.FLOAT):
        return None
    if scale is None or zero is None or graph[names[0]].dtype != np.float32:
        return None
    return float(scale), int(zero)
