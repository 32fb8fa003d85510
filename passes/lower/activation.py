"""Recognises an activation by what it computes, not by how an exporter spelled it.

Elementwise nodes that together turn one value and some constant numbers into another value are a
function of one variable. It is evaluated at sample points and compared with the activations that
kernels know. Every spelling of GELU is found by the one test, and anything that only looks like it
is not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import Array
from pitc.ir.view import NodeView
from pitc.passes.rules.elementwise import ELEMENTWISE, erf

MAX_NODES = 10
SAMPLES = np.concatenate([np.linspace(-12, 12, 481), np.linspace(-0.01, 0.01, 41)])
TOLERANCE = 2e-6  # float32 constants such as sqrt(1/2) are rounded in the model

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation found behind a value.

    Args:
        name: Its name in kernel plans.
        result: The value that holds it.
    """

    name: str
    result: ir.Value


def scalar_of(value: ir.Value | None) -> float | None:
    """The number that a one-element constant holds."""
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    tensor = value.const_value
    if tensor.size != 1 or value.is_graph_input():
        return None
    return float(np.asarray(tensor.numpy(), np.float64).reshape(()))


def activation_behind(graph: Graph, start: ir.Value) -> Activation | None:
    """The activation that the only readers of a value compute from it.

    Args:
        graph: The analysed graph, for attributes.
        start: The value before the activation.

    Returns:
        The activation, or None. No value between start and result is read by anybody else.
    """
    samples: dict[ir.Value, Array] = {start: SAMPLES}
    inside: list[ir.Node] = []
    while len(inside) < MAX_NODES:
        step = next(
            (
                n
                for value in samples
                for n in dict.fromkeys(value.consumers())
                if n not in inside and (_evaluate(graph, n, samples) is not None)
            ),
            None,
        )
        if step is None:
            return None
        result = _evaluate(graph, step, samples)
        assert result is not None
        inside.append(step)
        samples[step.outputs[0]] = result
        end = _only_open(samples, inside)
        if end is not None:
            name = _known(samples[end])
            if name is not None:
                return Activation(name, end)
    return None


def relu_operand(graph: Graph, value: ir.Value) -> ir.Value | None:
    """The value of which one node makes another one by ReLU; None where it is made otherwise."""
    node = value.producer()
    operands = [] if node is None else [x for x in node.inputs if x is not None]
    computed = [x for x in operands if scalar_of(x) is None]
    if node is None or len(computed) != 1:
        return None
    result = _evaluate(graph, node, {computed[0]: SAMPLES})
    return computed[0] if result is not None and _known(result) == "relu" else None


def _only_open(samples: Mapping[ir.Value, Array], inside: list[ir.Node]) -> ir.Value | None:
    """The one value that is read outside; None where several are, or an inner one is a graph
    output.
    """
    still_open = [
        v for v in samples if v.is_graph_output() or any(n not in inside for n in v.consumers())
    ]
    return still_open[0] if len(still_open) == 1 else None


def _evaluate(graph: Graph, node: ir.Node, samples: Mapping[ir.Value, Array]) -> Array | None:
    row = ELEMENTWISE.get((node.domain, node.op_type))
    if row is None or row.evaluate is None or len(node.outputs) != 1:
        return None
    parameters: dict[str, Any] | None = {}
    if row.parameters is not None:
        if any(a for a in node.inputs[1:] if a is not None):
            return None
        parameters = row.parameters(NodeView(graph, node))
    operands: list[Array] = []
    for value in node.inputs:
        if value is not None and value in samples:
            operands.append(samples[value])
            continue
        number = scalar_of(value)
        if number is None:
            return None
        operands.append(np.asarray(number))
    if parameters is None or not any(x.ndim for x in operands):
        return None
    with np.errstate(all="ignore"):
        out = np.asarray(row.evaluate(*operands, **parameters))
    return out if out.shape == SAMPLES.shape and out.dtype.kind == "f" else None


def _known(y: Array) -> str | None:
    for name, function in ACTIVATIONS.items():
        want = function(SAMPLES)
        if np.all(np.abs(y - want) <= TOLERANCE * np.abs(want) + TOLERANCE * np.abs(SAMPLES) * 0.5):
            return name
    return None
