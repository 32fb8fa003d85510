"""Recognises an activation by its expression, not by how an exporter spelled it.

Elementwise nodes that together turn one value and some constant numbers of its type into another
are a function of one variable. Multiplied out (`formula.py`), every spelling of GELU is the same
formula, and what only looks like it, such as GELU of a clamp, is another one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, pi, sqrt

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import Array
from pitc.ir.view import NodeView, NoRule
from pitc.passes.lower.formula import (
    TOLERANCE,
    Formula,
    NoFormula,
    X,
    alike,
    applied,
    number,
    plus,
    raised,
    reciprocal,
    scaled,
    times,
)
from pitc.passes.lower.rows import is_outside
from pitc.passes.regions.matrix import dims_of, type_of
from pitc.passes.rules.registry import MICROSOFT

MAX_NODES = 10

# how far factors may be off by type: each multiplies at most two constants that were rounded
ROUNDED: Mapping[ir.DataType, float] = {
    ir.DataType.FLOAT: TOLERANCE,
    ir.DataType.FLOAT16: 2 * 2.0**-11,
    ir.DataType.BFLOAT16: 2 * 2.0**-8,
}

Step = Callable[[Sequence[Formula], NodeView], Formula]


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation found behind a value.

    Args:
        name: Its name in kernel plans.
        result: The value that holds it.
    """

    name: str
    result: ir.Value


def _each(combine: Callable[[Formula, Formula], Formula]) -> Step:
    return lambda xs, _: reduce(combine, xs)


def _unary(function: Callable[[Formula], Formula]) -> Step:
    return lambda xs, _: function(xs[0])


def _function(name: str) -> Step:
    return _unary(lambda x: applied(name, x))


def _gelu(x: Formula, inner: Formula) -> Formula:
    """The half of x, by one plus something."""
    return times(scaled(x, 0.5), plus(number(1), inner))


def _gelu_erf(x: Formula) -> Formula:
    return _gelu(x, applied("erf", scaled(x, sqrt(0.5))))


def _gelu_tanh(x: Formula) -> Formula:
    return _gelu(x, applied("tanh", _slope(x)))


def _slope(x: Formula) -> Formula:
    return scaled(plus(x, scaled(raised(x, 3), 0.044715)), sqrt(2 / pi))


def _times_sigmoid(x: Formula, slope: float) -> Formula:
    return times(x, applied("sigmoid", scaled(x, slope)))


def _gelu_operator(xs: Sequence[Formula], view: NodeView) -> Formula:
    form = view.attr("approximate", "none")
    if form not in ("none", "tanh"):
        raise NoFormula
    return _gelu_tanh(xs[0]) if form == "tanh" else _gelu_erf(xs[0])


def _swish(default: float) -> Step:
    return lambda xs, view: _times_sigmoid(xs[0], view.attr("alpha", default))


def _at_least_zero(xs: Sequence[Formula], _: NodeView) -> Formula:
    """Max with 0."""
    computed = [x for x in xs if x.number is None]
    if len(computed) != 1 or [x.number for x in xs if x.number is not None] != [0]:
        raise NoFormula
    return applied("relu", computed[0])


def _clip(xs: Sequence[Formula], view: NodeView) -> Formula:
    """A Clip to 0 .. inf; one without an upper bound turns inf into the largest number."""
    bounds = [scalar_of(x) for x in view.node.inputs[1:]]
    if view.attr("min") is not None or view.attr("max") is not None or bounds != [0, inf]:
        raise NoFormula
    return applied("relu", xs[0])


STEPS: Mapping[tuple[str, str], Step] = {
    ("", "Identity"): _unary(lambda x: x),
    ("", "Cast"): _unary(lambda x: x),  # operands and results are of one type
    ("", "Add"): _each(plus),
    ("", "Sum"): _each(plus),
    ("", "Sub"): _each(lambda a, b: plus(a, scaled(b, -1))),
    ("", "Neg"): _unary(lambda x: scaled(x, -1)),
    ("", "Mul"): _each(times),
    ("", "Div"): _each(lambda a, b: times(a, reciprocal(b))),
    ("", "Reciprocal"): _unary(reciprocal),
    ("", "Pow"): _each(lambda a, b: raised(a, b.number)),
    ("", "Exp"): _function("exp"),
    ("", "Erf"): _function("erf"),
    ("", "Tanh"): _function("tanh"),
    ("", "Sigmoid"): _function("sigmoid"),
    ("", "Relu"): _function("relu"),
    ("", "Max"): _at_least_zero,
    ("", "Clip"): _clip,
    ("", "Gelu"): _gelu_operator,
    ("", "Swish"): _swish(1.0),
    (MICROSOFT, "Gelu"): _unary(_gelu_erf),
    (MICROSOFT, "FastGelu"): _unary(_gelu_tanh),  # its bias is an Add by now
    (MICROSOFT, "QuickGelu"): _swish(1.702),
}

# of every activation the formulas that models write
ACTIVATIONS: Mapping[str, Sequence[Formula]] = {
    "relu": [applied("relu", X)],
    "gelu": [_gelu_erf(X)],
    "gelu_tanh": [_gelu_tanh(X), times(X, applied("sigmoid", scaled(_slope(X), 2)))],
    "gelu_quick": [_times_sigmoid(X, 1.702), _gelu(X, applied("tanh", scaled(X, 0.851)))],
    "silu": [_times_sigmoid(X, 1.0), _gelu(X, applied("tanh", scaled(X, 0.5)))],
}


def scalar_of(value: ir.Value | None) -> float | None:
    """The number that a one-element constant holds; None for types without activations."""
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    tensor = value.const_value
    if tensor.size != 1 or tensor.dtype not in ROUNDED or value.is_graph_input():
        return None
    array: Array = np.asarray(tensor.numpy(), np.float64)
    return float(array.reshape(()))


def activation_behind(graph: Graph, start: ir.Value) -> Activation | None:
    """The activation that the only readers of a value compute from it.

    Args:
        graph: The analysed graph, for types and attributes.
        start: The value before the activation.

    Returns:
        The activation, or None. No value between start and result is read by anybody else.
    """
    tolerance = ROUNDED.get(type_of(graph, start) or ir.DataType.UNDEFINED)
    if tolerance is None:
        return None
    formulas: dict[ir.Value, Formula] = {start: X}
    inside: list[ir.Node] = []
    while len(inside) < MAX_NODES:
        readers = dict.fromkeys(n for value in formulas for n in value.consumers())
        steps = ((n, _formula_of(graph, n, formulas)) for n in readers if n not in inside)
        step, found = next(((n, f) for n, f in steps if f is not None), (None, None))
        if step is None or found is None:
            return None
        inside.append(step)
        formulas[step.outputs[0]] = found
        end = _only_open(formulas, inside)
        name = None if end is None else _known(formulas[end], tolerance)
        if end is not None and name is not None:
            return Activation(name, end)
    return None


def relu_operand(graph: Graph, value: ir.Value) -> ir.Value | None:
    """The value of which one node makes another one by ReLU; None where it is made otherwise."""
    node = value.producer()
    operands = [] if node is None else [x for x in node.inputs if x is not None]
    computed = [x for x in operands if scalar_of(x) is None]
    if node is None or len(computed) != 1:
        return None
    found = _formula_of(graph, node, {computed[0]: X})
    return computed[0] if found is not None and _known(found, TOLERANCE) == "relu" else None


def _only_open(formulas: Mapping[ir.Value, Formula], inside: list[ir.Node]) -> ir.Value | None:
    """The one value that is read outside; None where several are, or an inner one is an output."""
    still_open = [
        v for v in formulas if v.is_graph_output() or any(n not in inside for n in v.consumers())
    ]
    return still_open[0] if len(still_open) == 1 else None


def _formula_of(
    graph: Graph, node: ir.Node, formulas: Mapping[ir.Value, Formula]
) -> Formula | None:
    """What a node of the main graph computes of formulas and numbers; None where it is no step."""
    view = NodeView(graph, node)
    step = STEPS.get((view.domain, view.op))
    if step is None or len(node.outputs) != 1 or not is_outside(graph, node):
        return None
    computed = [x for x in node.inputs if x is not None and x in formulas]
    types = {type_of(graph, x) for x in (*computed, node.outputs[0])}
    typed = len(types) == 1 and types <= ROUNDED.keys()
    rank = max([1, *(len(dims_of(graph, x) or ()) for x in computed)])
    operands: list[Formula] = []
    for value in node.inputs[: 1 if view.op == "Clip" else None]:
        known = None if value is None else formulas.get(value)
        try:
            operands.append(known or _number_of(value, rank))
        except NoFormula:
            return None
    if not typed or all(x.number is not None for x in operands):
        return None
    try:
        return step(operands, view)
    except (NoFormula, NoRule):
        return None


def _number_of(value: ir.Value | None, rank: int) -> Formula:
    """The number that a constant holds; it adds no dimensions."""
    found = scalar_of(value)
    if value is None or value.const_value is None or found is None:
        raise NoFormula
    if len(value.const_value.shape) > rank:
        raise NoFormula
    return number(found)


def _known(found: Formula, tolerance: float) -> str | None:
    fits = (n for n, forms in ACTIVATIONS.items() if any(alike(found, f, tolerance) for f in forms))
    return next(fits, None)
