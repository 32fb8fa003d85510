"""The update of all weights of a model, behind their gradients."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.unused import remove_unused
from pitc.passes.grad.names import value_of
from pitc.passes.grad.optimizers import Optimizer, Update

NEXT, RATE, STEP, SCALE, SKIPPED = "next.", "learning_rate", "step", "loss_scale", "skipped"
STATE = "pitc.state"  # key in `metadata_props` of a model: outputs, and the inputs they are next


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
        self._dtype = np.dtype(np.float32)
        self._next: dict[str, str] = {}
        self._outputs: list[ir.Value] = []
        self._finite: ir.Value | None = None

    def op(self, op_type: str, *operands: ir.Value | float) -> ir.Value:
        """A node of values and numbers, which get the type of the weight."""
        values = [
            x if isinstance(x, ir.Value) else self._build.constant(np.asarray(x, self._dtype))
            for x in operands
        ]
        return self._build.op(op_type, values)

    def add(self, of: Mapping[str, str], loss: str, keep: Sequence[str]) -> dict[str, str]:
        """Add all nodes; which outputs are next to which inputs."""
        graph, training = self._model.graph, self._training
        gradients = {name: self._gradient(of[name]) for name in of}
        kept = [value_of(self._model, name) for name in dict.fromkeys([loss, *keep])]
        rate = self._input(RATE, np.asarray(training.rate, np.float32))
        gradients = self._scaled(gradients)
        gradients = self._clipped(gradients)
        step = self._counted() if self._optimizer.counts else None
        for name, g in gradients.items():
            self._updated(name, g, rate, step)
        graph.outputs.clear()
        graph.outputs.extend([*kept, *self._outputs])
        remove_unused(self._model)
        self._model.metadata_props[STATE] = json.dumps(self._next)
        return self._next

    def _gradient(self, name: str) -> ir.Value:
        """The gradient behind the node that only names it."""
        node = value_of(self._model, name).producer()
        value = None if node is None else node.inputs[0]
        assert value is not None
        return value

    def _input(self, name: str, default: np.ndarray) -> ir.Value:
        """A new input with a default."""
        value = self._build.named(name, default)
        self._model.graph.inputs.append(value)
        return value

    def _output(self, name: str, value: ir.Value, like: ir.Value | None = None) -> None:
        node = ir.node("Identity", [value], outputs=[ir.Value(name=name)], name=name)
        self._model.graph.append(node)
        made = node.outputs[0]
        if like is not None:
            made.type, made.shape = like.type, like.shape
        self._outputs.append(made)

    def _keeps(self, name: str, old: ir.Value, new: ir.Value) -> None:
        """Something that the next step gets: as it was, where the update is left out."""
        if self._finite is not None:
            new = self._build.op("Where", [self._finite, new, old])
        self._output(f"{NEXT}{name}", new, old)
        self._next[f"{NEXT}{name}"] = name

    def _counted(self) -> ir.Value:
        """The number of this step, from 1 on."""
        before = self._input(STEP, np.asarray(0, np.int64))
        step = self._build.op("Add", [before, self._build.constant(np.asarray(1, np.int64))])
        self._keeps(STEP, before, step)
        return step

    def _scaled(self, gradients: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Without the factor of the loss; and whether all of them are finite."""
        if not self._training.scaled:
            return gradients
        build, scale = self._build, value_of(self._model, SCALE)
        zeros = []
        for name, g in gradients.items():
            self._dtype = self._type_of(name)
            total = build.op("ReduceSum", [self.op("Mul", g, 0.0)], keepdims=0)
            zeros.append(self._wide(total))  # NaN where one is infinite
        bad = build.op("IsNaN", [build.total(zeros)])
        self._finite = build.op("Not", [bad])
        self._output(SKIPPED, bad)
        return {
            name: build.op("Div", [g, self._typed(scale, self._type_of(name))])
            for name, g in gradients.items()
        }

    def _clipped(self, gradients: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Made smaller together where their norm is too large.

        Source: the documentation of `torch.nn.utils.clip_grad_norm_`.
        """
        most = self._training.clip
        if most is None:
            return gradients
        build = self._build
        squares = [
            build.op("ReduceSumSquare", [self._wide(g)], keepdims=0) for g in gradients.values()
        ]
        self._dtype = np.dtype(np.float32)
        norm = self.op("Sqrt", build.total(squares))
        factor = self.op("Min", self.op("Div", most, self.op("Add", norm, 1e-6)), 1.0)
        return {
            name: build.op("Mul", [g, self._typed(factor, self._type_of(name))])
            for name, g in gradients.items()
        }

    def _wide(self, g: ir.Value) -> ir.Value:
        return self._build.op("Cast", [g], to=ir.DataType.FLOAT)

    def _type_of(self, name: str) -> np.dtype:
        """The type of a weight and its gradient."""
        dtype = value_of(self._model, name).dtype
        assert dtype is not None
        return dtype.numpy()

    def _updated(self, name: str, g: ir.Value, rate: ir.Value, step: ir.Value | None) -> None:
        """Add the update of one weight."""
        weight, training = value_of(self._model, name), self._training
        self._dtype = dtype = self._type_of(name)
        states = {part: self._state(part, weight) for part in self._optimizer.state}
        spared = any(fnmatch.fnmatch(name, pattern) for pattern in training.no_decay)
        update = Update(
            self,
            weight,
            g,
            states,
            self._typed(rate, dtype),
            None if step is None else self._typed(step, dtype),
            0.0 if spared else training.decay,
            self._settings,
        )
        new, after = self._optimizer.rule(update)
        self._keeps(name, weight, new)
        for part, value in after.items():
            self._keeps(f"{part}.{name}", states[part], value)

    def _typed(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """A scalar in a type."""
        return self._build.op("Cast", [x], to=ir.DataType.from_numpy(dtype))

    def _state(self, part: str, weight: ir.Value) -> ir.Value:
        """An input for one part of a weight's state."""
        value = ir.Value(name=f"{part}.{weight.name}", type=weight.type, shape=weight.shape)
        self._model.graph.inputs.append(value)
        return value
