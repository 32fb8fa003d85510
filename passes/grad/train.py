"""Puts a whole training step into a model: forward, backward, and the update of the weights.

    x, labels, w, state  ->  loss, new w, new state

Every weight and every part of the state is an input and, by the name `next.NAME`, an output.
"""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from math import inf
from numbers import Real

import numpy as np
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.build import NodeBuilder
from pitc.ir.graph import Graph
from pitc.ir.metadata import STATE
from pitc.passes.exprs.derive import derive
from pitc.passes.grad.gradient import add_gradients
from pitc.passes.grad.masks import mask_weights
from pitc.passes.grad.names import near, take_name, value_of
from pitc.passes.grad.optimizers import OPTIMIZERS, Optimizer
from pitc.passes.grad.step import SCALE, Step, Training

_ANY, _PART = "a number that is finite and not negative", "a number from 0 on, below 1"
RANGES: Mapping[str, tuple[float, str]] = {
    **dict.fromkeys(("learning_rate", "decay", "momentum", "epsilon"), (inf, _ANY)),
    **dict.fromkeys(("beta1", "beta2"), (1.0, _PART)),
    "clip": (inf, "a positive number"),
}
"""Of each number of a training: what it is below, and its range in words."""


def add_training(
    model: ir.Model,
    loss: str,
    wrt: Sequence[str] | None,
    training: Training,
    keep: Sequence[str] = (),
) -> dict[str, str]:
    """Let a model compute one training step.

    Args:
        model: The model; it is changed in place.
        loss: A value of one element.
        wrt: As of `add_gradients`; weights only.
        training: The update.
        keep: Other outputs to keep.

    Returns:
        For each output that is a weight or a state after the step, the input that it is before.

    Raises:
        UsageError: A name, type or number does not fit.
        ModelError: Something on the way has no derivative here.
    """
    optimizer, settings = _checked(training)
    if STATE in model.metadata_props:
        raise UsageError("the model is a training step already", hint="give what it was made of")
    masked = mask_weights(model, training.masks)
    scaled = _scale(model, loss) if training.scaled else loss
    gradients = add_gradients(model, scaled, wrt, [loss, *keep], weights_only=True)
    if moving := [name for name in gradients.of if name not in model.graph.initializers]:
        raise UsageError(f"'{moving[0]}' is an input, no weight", hint="leave it out of wrt")
    if missing := [name for name in masked if name not in gradients.of]:
        raise UsageError(f"'{missing[0]}' has a mask, but is not trained", hint="name it in wrt")
    _check_spared(training, gradients.of)
    for name in gradients.of:  # an input may declare less than its numbers say
        weight = model.graph.initializers[name]
        if weight.const_value is not None:
            weight.shape = ir.Shape(weight.const_value.shape.numpy())
    if training.scaled:  # a default earlier would make it a weight
        scale = value_of(model, SCALE)
        scale.const_value = ir.tensor(np.asarray(1.0, np.float32), name=SCALE)
        model.graph.register_initializer(scale)
    step = Step(model, training, optimizer, settings)
    return step.add(gradients.of, loss, keep)


def _checked(training: Training) -> tuple[Optimizer, dict[str, float]]:
    optimizer = OPTIMIZERS.get(training.optimizer)
    if optimizer is None:
        known = ", ".join(OPTIMIZERS)
        raise UsageError(f"no optimizer is named '{training.optimizer}'", hint=f"there are {known}")
    other = [name for name in training.settings if name not in optimizer.settings]
    if other:
        known = ", ".join(optimizer.settings) or "none"
        text = f"{training.optimizer} has no setting '{other[0]}'"
        raise UsageError(text, hint=f"it has {known}")
    given: dict[str, object] = {"learning_rate": training.rate, "decay": training.decay}
    given |= {} if training.clip is None else {"clip": training.clip}
    for name, value in {**given, **training.settings}.items():
        _check_number(name, value)
    return optimizer, {**optimizer.settings, **training.settings}


def _check_number(name: str, value: object) -> None:
    """Refuse what is no number, or one outside of its range."""
    limit, text = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{name} is {value!r}, expected {text}")
    if not 0 <= float(value) < limit or (name == "clip" and not value):  # NaN is not
        raise UsageError(f"{name} is {value}, expected {text}")


def _check_spared(training: Training, trained: Collection[str]) -> None:
    for pattern in training.no_decay:
        if not fnmatch.filter(trained, pattern):
            hint = f"the model trains {', '.join(list(trained)[:3])}, .."
            raise UsageError(f"no_decay names '{pattern}', which is no trained weight", hint=hint)


def _scale(model: ir.Model, loss: str) -> str:
    """Multiply the loss by a new input; the name of the product."""
    graph = Graph(model)
    derive(graph)
    dtype = graph[loss].dtype
    if not graph.has(loss) or dtype is None:
        raise UsageError(f"the model has no value '{loss}'", hint=near(graph, loss))
    value, build = value_of(model, loss), NodeBuilder(model.graph, "update")
    name = take_name(build.names, SCALE, "the factor of the loss")
    scale = ir.val(name, ir.DataType.FLOAT, [])
    model.graph.inputs.append(scale)
    factor = build.op("Cast", [scale], to=ir.DataType.from_numpy(dtype))
    return build.op("Mul", [value, factor]).name or ""
