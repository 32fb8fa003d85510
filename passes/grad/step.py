"""The update of all weights of a model, behind their gradients."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.metadata import GRADIENTS, STATE
from pitc.ir.unused import remove_unused
from pitc.passes.grad.backward import wide
from pitc.passes.grad.names import take_name, value_of
from pitc.passes.grad.optimizers import Arithmetic, Optimizer, Update

NEXT, RATE, STEP, SCALE, SKIPPED = "next.", "learning_rate", "step", "loss_scale", "skipped"


@dataclass(frozen=True, slots=True)
class Training:
    """How weights are trained.

    Args:
        optimizer: `sgd`, `momentum`, `adam` or `adamw`.
        rate: The learning rate that the input `learning_rate` has as its default.
        decay: The weight decay.
        no_decay: Names or patterns of weights without it.
        clip: The largest norm of all gradients together; None: any.
        scaled: The loss is multiplied by the input `loss_scale` before the backward way, and an
            update whose gradients are not finite is left out: the output `skipped` is true.
        masks: Weights, by names or patterns, that are multiplied by a bool input `mask.NAME`.
        settings: Numbers of the optimizer: `momentum`, `beta1`, `beta2`, `epsilon`.
    """

    optimizer: str = "adamw"
    rate: float = 1e-3
    decay: float = 0.0
    no_decay: Sequence[str] = ()
    clip: float | None = None
    scaled: bool = False
    masks: Sequence[str] = ()
    settings: Mapping[str, float] = field(default_factory=dict)


class Step:
    """Adds the update of all weights behind their gradients.

    Args:
        model: The model with gradients.
        training: The update.
        optimizer: The optimizer.
        settings: Its numbers.
    """

    def __init__(
        self,
        model: ir.Model,
        training: Training,
        optimizer: Optimizer,
        settings: Mapping[str, float],
    ) -> None:
        self._model, self._training = model, training
        self._optimizer, self._settings = optimizer, settings
        self._build = NodeBuilder(model.graph, "update")
        self._next: dict[str, str] = {}
        self._outputs: list[ir.Value] = []
        self._finite: ir.Value | None = None
        self._single = Arithmetic(self._build, np.dtype(np.float32))

    def add(self, of: Mapping[str, str], loss: str, keep: Sequence[str]) -> dict[str, str]:
        """Add all nodes.

        Args:
            of: For each weight, the output with its gradient.
            loss: The loss that stays an output.
            keep: Other values that stay outputs.

        Returns:
            For each output that is a weight or a state after the step, the input that it is before.
        """
        graph, training = self._model.graph, self._training
        gradients = {name: self._gradient(name, of[name]) for name in of}
        kept = [value_of(self._model, name) for name in dict.fromkeys([loss, *keep])]
        rate = self._input(RATE, "the learning rate", np.asarray(training.rate, np.float32))
        gradients = self._scaled(gradients)
        gradients = self._clipped(gradients)
        step = self._counted() if self._optimizer.counts else None
        for name, g in gradients.items():
            self._updated(name, g, rate, step)
        graph.outputs.clear()
        graph.outputs.extend([*kept, *self._outputs])
        remove_unused(self._model)
        self._model.metadata_props.pop(GRADIENTS, None)  # they are no outputs now
        self._model.metadata_props[STATE] = json.dumps(self._next)
        return self._next

    def _gradient(self, name: str, output: str) -> ir.Value:
        """The gradient of a weight in the type of its update, behind the node that names it."""
        node = value_of(self._model, output).producer()
        value = None if node is None else node.inputs[0]
        assert value is not None
        make = self._arithmetic(name)
        return value if make.dtype == self._type_of(name) else make.cast(value)

    def _arithmetic(self, name: str) -> Arithmetic:
        """Of the update of a weight."""
        return Arithmetic(self._build, wide(self._type_of(name)))

    def _input(self, name: str, what: str, default: np.ndarray) -> ir.Value:
        """A new input with a default."""
        value = self._build.named(take_name(self._build.names, name, what), default)
        self._model.graph.inputs.append(value)
        return value

    def _output(self, name: str, what: str, value: ir.Value, like: ir.Value) -> None:
        names = self._build.names
        made = ir.Value(name=take_name(names, name, what), type=like.type, shape=like.shape)
        node = ir.node("Identity", [value], outputs=[made], name=names.node(name))
        self._model.graph.append(node)
        self._outputs.append(made)

    def _keeps(self, name: str, old: ir.Value, new: ir.Value) -> None:
        """Something that the next step gets: as it was, where the update is left out."""
        if self._finite is not None:
            new = self._build.op("Where", [self._finite, new, old])
        self._output(f"{NEXT}{name}", f"'{name}' after the step", new, old)
        self._next[f"{NEXT}{name}"] = name

    def _counted(self) -> ir.Value:
        """The number of this step, from 1 on."""
        before = self._input(STEP, "the number of the step", np.asarray(0, np.int64))
        step = self._build.op("Add", [before, self._build.constant(np.asarray(1, np.int64))])
        self._keeps(STEP, before, step)
        return step

    def _scaled(self, gradients: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Without the factor of the loss; and whether all of them are finite."""
        if not self._training.scaled:
            return gradients
        build, single, scale = self._build, self._single, value_of(self._model, SCALE)
        zeros, found = [], {}
        for name, g in gradients.items():
            make = self._arithmetic(name)
            total = build.op("ReduceSum", [make.op("Mul", g, 0.0)], keepdims=0)
            zeros.append(single.cast(total))  # NaN where one is infinite
            found[name] = make.op("Div", g, make.cast(scale))
        bad = build.op("IsNaN", [build.total(zeros)])
        bad.type, bad.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
        self._finite = build.op("Not", [bad])
        self._output(SKIPPED, "the output for a step that is left out", bad, bad)
        return found

    def _clipped(self, gradients: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Made smaller together where their norm is too large.

        Source: the documentation of `torch.nn.utils.clip_grad_norm_`.
        """
        most = self._training.clip
        if most is None:
            return gradients
        build, single = self._build, self._single
        squares = [
            build.op("ReduceSumSquare", [single.cast(g)], keepdims=0) for g in gradients.values()
        ]
        norm = single.op("Sqrt", build.total(squares))
        factor = single.op("Min", single.op("Div", most, single.op("Add", norm, 1e-6)), 1.0)
        return {
            name: self._arithmetic(name).op("Mul", g, self._arithmetic(name).cast(factor))
            for name, g in gradients.items()
        }

    def _type_of(self, name: str) -> np.dtype:
        """The type of a weight and its gradient."""
        dtype = value_of(self._model, name).dtype
        assert dtype is not None
        return dtype.numpy()

    def _updated(self, name: str, g: ir.Value, rate: ir.Value, step: ir.Value | None) -> None:
        """Add the update of one weight."""
        weight, training, make = value_of(self._model, name), self._training, self._arithmetic(name)
        states = {part: self._state(part, weight, make.dtype) for part in self._optimizer.state}
        spared = any(fnmatch.fnmatch(name, pattern) for pattern in training.no_decay)
        update = Update(
            make,
            make.cast(weight),
            g,
            states,
            make.cast(rate),
            None if step is None else make.cast(step),
            0.0 if spared else training.decay,
            self._settings,
        )
        new, after = self._optimizer.rule(update)
        narrow = Arithmetic(self._build, self._type_of(name))
        self._keeps(name, weight, new if narrow.dtype == make.dtype else narrow.cast(new))
        for part, value in after.items():
            self._keeps(f"{part}.{name}", states[part], value)

    def _state(self, part: str, weight: ir.Value, dtype: np.dtype) -> ir.Value:
        """An input for one part of a weight's state."""
        kind = ir.TensorType(ir.DataType.from_numpy(dtype))
        name, what = f"{part}.{weight.name}", f"the {part} of '{weight.name}'"
        name = take_name(self._build.names, name, what)
        value = ir.Value(name=name, type=kind, shape=weight.shape)
        self._model.graph.inputs.append(value)
        return value
