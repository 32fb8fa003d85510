"""Puts the gradients of a loss into a model, as further outputs.

loss(x; w)  ->  loss, grad.w        w becomes an input, with its numbers as the default
"""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from pitc.errors import ModelError, UsageError
from pitc.ir.graph import Graph
from pitc.ir.index import ONE
from pitc.ir.metadata import note_gradients, outputs_of_weights
from pitc.ir.nodes import OVERRIDABLE_SINCE, captures, input_names, output_names
from pitc.ir.unused import remove_unused
from pitc.passes.grad.backward import PREFIX, Backward
from pitc.passes.grad.names import MADE, near, value_of
from pitc.passes.grad.opened import opened
from pitc.passes.grad.reach import differentiable, reached_from
from pitc.passes.grad.reverse import gradients, ones_like
from pitc.passes.grad.settle import settle
from pitc.passes.normalise import inline_functions, lift_constants

OPSET = 13  # the first whose reductions take the axes that a run finds


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a model with gradients computes.

    Args:
        loss: The loss.
        of: For each value that the loss was differentiated by, the output with its gradient.
    """

    loss: str
    of: dict[str, str]


def add_gradients(
    model: ir.Model,
    loss: str,
    wrt: Sequence[str] | None,
    keep: Sequence[str] = (),
    *,
    weights_only: bool = False,
) -> Gradients:
    """Let a model compute the gradients of one of its values.

    Args:
        model: The model; it is changed in place. Its outputs are the loss, those of `keep`, then
            the gradients.
        loss: A value of one element.
        wrt: Inputs and weights, by their names, or patterns of names (`*`, `?`) of those that the
            loss depends on by a derivative; None: such weights with at least one dimension. Inputs
            with a default are weights.
        keep: Other outputs to keep.
        weights_only: Patterns take no inputs without a default.

    Returns:
        The names of what it computes.

    Raises:
        UsageError: A name or type does not fit.
        ModelError: Something on the way has no derivative here.
    """
    if model.opset_imports.get("", 1) < OPSET:
        text = f"its operator set {model.opset_imports.get('', 1)} is too old for gradients"
        raise ModelError(text, hint=f"convert it to {OPSET} or later: onnx.version_converter")
    inline_functions(model)
    lift_constants(model)
    settle(model)
    _keep(model, [loss, *keep])
    weights = {n for n, x in model.graph.initializers.items() if MADE not in x.meta}
    graph = opened(model)
    _check_loss(graph, loss)
    reached = _reached(graph, loss, weights)
    names = [n for n in reached if graph[n].shape]
    if wrt is not None:
        names = _named(graph, wrt, reached, weights_only)
    asked, build = wrt or (), Backward(graph, model.graph)
    # before new nodes take them
    outputs = {name: build.names.unique(f"{PREFIX}.{name}") for name in names}
    value = value_of(model, loss)
    seed = ones_like(build, value, graph.dtype(loss))
    found = gradients(graph, build, {loss: seed}, names, [n for n in names if n not in asked])
    if missing := [name for name in asked if name in names and name not in found]:
        text = f"the loss '{loss}' does not depend on '{missing[0]}' by a derivative"
        raise UsageError(text, hint="leave it out of wrt")
    if not found:
        raise UsageError("the loss depends on no weight of floats", hint="name inputs with wrt")
    _open_weights(model, list(found))
    return _set_outputs(model, [loss, *keep], found, outputs, weights)


def _keep(model: ir.Model, names: Sequence[str]) -> None:
    """Make values outputs, so that nothing takes them for unread."""
    graph = Graph(model)
    for name in names:
        if not graph.has(name):
            raise UsageError(f"the model has no value '{name}'", hint=near(graph, name))
        value = value_of(model, name)
        if not value.is_graph_output():
            model.graph.outputs.append(value)


def _check_loss(graph: Graph, loss: str) -> None:
    if not differentiable(graph, loss):
        raise UsageError(f"the loss '{loss}' is of type {graph[loss].dtype}, no float")
    shape, why = graph[loss].shape, graph[loss].unruled
    if shape is None or any(e != ONE for e in shape):
        found = f"unknown ({why})" if shape is None else f"[{', '.join(map(str, shape))}]"
        raise UsageError(
            f"the loss '{loss}' is not one number: its shape is {found}",
            hint="add a reduction to the model, or pass a pitc.Loss",
        )


def _reached(graph: Graph, loss: str, weights: Collection[str]) -> list[str]:
    """Those weights that the loss depends on, by way of floats."""
    sources = graph.sources_of([loss]) | {loss}
    read = {
        x
        for n in graph.nodes
        if sources & {*output_names(n)}
        for x in (*input_names(n), *captures(n))
    }
    given = [*graph.constants(), *graph.inputs]
    found = [name for name in given if name in weights and name in read]
    return [name for name in found if loss in reached_from(graph, [name])]


def _named(graph: Graph, wrt: Sequence[str], reached: Sequence[str], bare: bool) -> list[str]:
    """Inputs and weights of floats by names, and by patterns; `bare`: patterns of weights only."""
    known, what = ([], "weight") if bare else (graph.inputs, "input or weight")
    names: list[str] = []
    for name in wrt:
        if name in graph.inputs or graph.is_constant(name):
            names.append(name)
            continue
        found = [n for n in fnmatch.filter([*known, *reached], name) if differentiable(graph, n)]
        if not found:
            text = f"the model has no {what} '{name}'"
            raise UsageError(text, hint=near(graph, name))
        names += found
    for name in names:
        if not differentiable(graph, name):
            raise UsageError(f"'{name}' is of type {graph[name].dtype}: only floats have gradients")
    return list(dict.fromkeys(names))


def _open_weights(model: ir.Model, names: Sequence[str]) -> None:
    """Let callers give other numbers for weights."""
    inputs = {v.name for v in model.graph.inputs}
    for name in names:
        weight = model.graph.initializers.get(name)
        if weight is not None and name not in inputs:
            model.graph.inputs.append(weight)
    model.ir_version = max(model.ir_version, OVERRIDABLE_SINCE)


def _set_outputs(
    model: ir.Model,
    kept: Sequence[str],
    found: dict[str, ir.Value],
    names: Mapping[str, str],
    weights: Collection[str],
) -> Gradients:
    """The loss, what is kept, and the gradients, each with a name."""
    outputs = [value_of(model, name) for name in dict.fromkeys(kept)]
    of: dict[str, str] = {}
    for name, g in found.items():
        of[name] = names[name]
        node = ir.node("Identity", [g], outputs=[ir.Value(name=of[name])], name=of[name])
        model.graph.append(node)
        weight = value_of(model, name)
        made = node.outputs[0]
        made.type, made.shape = weight.type, weight.shape
        outputs.append(made)
    model.graph.outputs.clear()
    model.graph.outputs.extend(outputs)
    remove_unused(model)
    noted = outputs_of_weights(model.metadata_props) | {of[name] for name in of if name in weights}
    note_gradients(model, noted)
    return Gradients(kept[0], of)
