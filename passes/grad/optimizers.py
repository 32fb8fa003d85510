"""Optimizers: how a weight and its state change by a gradient, as PyTorch's do.

    sgd       w - lr * g                            momentum   b = mu * b + g;  w - lr * b
    adam      m = b1 * m + (1 - b1) * g             adamw      the same, and w * (1 - lr * decay)
              v = b2 * v + (1 - b2) * g * g                    instead of g + decay * w
              w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

Source: the documentation of `torch.optim` SGD, Adam and AdamW.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Adds nodes of values of one type.

    Args:
        build: Takes the nodes.
        dtype: The type.
    """

    build: NodeBuilder
    dtype: np.dtype

    def op(self, op_type: str, *operands: ir.Value | float) -> ir.Value:
        """A node of values and numbers."""
        values = [
            x if isinstance(x, ir.Value) else self.build.constant(np.asarray(x, self.dtype))
            for x in operands
        ]
        return self.build.op(op_type, values)

    def cast(self, x: ir.Value) -> ir.Value:
        """A value in that type."""
        kind = ir.DataType.from_numpy(self.dtype)
        return x if x.dtype == kind else self.build.op("Cast", [x], to=kind)


@dataclass(frozen=True, slots=True)
class Update:
    """What an update is made of, all of it in one type: half floats lose small changes and squares.

    Args:
        make: Adds its nodes.
        weight: The weight.
        gradient: Its gradient.
        state: Its state before, by name.
        rate: The learning rate, a scalar.
        step: How many updates there were with this one, a scalar.
        decay: The weight decay; 0 for none.
        settings: The optimizer's numbers, by name.
    """

    make: Arithmetic
    weight: ir.Value
    gradient: ir.Value
    state: Mapping[str, ir.Value]
    rate: ir.Value
    step: ir.Value | None
    decay: float
    settings: Mapping[str, float]


#: Gives the new weight and the new state.
Rule = Callable[[Update], tuple[ir.Value, dict[str, ir.Value]]]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer.

    Args:
        rule: Its update.
        state: Names of what it keeps for each weight, all 0 at first.
        settings: Its numbers and their defaults.
        counts: It looks at how many updates there were.
    """

    rule: Rule
    state: tuple[str, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    counts: bool = False


def _decayed(it: Update) -> ir.Value:
    """The gradient of the loss with the squares of weights in it."""
    if not it.decay:
        return it.gradient
    return it.make.op("Add", it.gradient, it.make.op("Mul", it.weight, it.decay))


def _sgd(it: Update) -> tuple[ir.Value, dict[str, ir.Value]]:
    op = it.make.op
    return op("Sub", it.weight, op("Mul", _decayed(it), it.rate)), {}


def _momentum(it: Update) -> tuple[ir.Value, dict[str, ir.Value]]:
    op = it.make.op
    velocity = op("Add", op("Mul", it.state["momentum"], it.settings["momentum"]), _decayed(it))
    return op("Sub", it.weight, op("Mul", velocity, it.rate)), {"momentum": velocity}


def _adam(it: Update) -> tuple[ir.Value, dict[str, ir.Value]]:
    return _moments(it, it.weight, _decayed(it))


def _adamw(it: Update) -> tuple[ir.Value, dict[str, ir.Value]]:
    op, weight = it.make.op, it.weight
    if it.decay:
        kept = op("Sub", 1.0, op("Mul", it.rate, it.decay))
        weight = op("Mul", weight, kept)
    return _moments(it, weight, it.gradient)


def _moments(it: Update, weight: ir.Value, g: ir.Value) -> tuple[ir.Value, dict[str, ir.Value]]:
    assert it.step is not None
    op, step = it.make.op, it.step
    first, second = it.settings["beta1"], it.settings["beta2"]
    mean = op("Add", op("Mul", it.state["mean"], first), op("Mul", g, 1 - first))
    squares = op("Mul", op("Mul", g, g), 1 - second)
    square = op("Add", op("Mul", it.state["square"], second), squares)
    # of a few updates the moments are too small by these factors
    rate = op("Div", it.rate, _share_seen(it, first, step))
    root = op("Sqrt", _share_seen(it, second, step))
    size = op("Add", op("Div", op("Sqrt", square), root), it.settings["epsilon"])
    change = op("Mul", op("Div", mean, size), rate)
    return op("Sub", weight, change), {"mean": mean, "square": square}


def _share_seen(it: Update, beta: float, step: ir.Value) -> ir.Value:
    """1 - beta^step, in float64: of small steps float32 would leave five digits of it."""
    wide = Arithmetic(it.make.build, np.dtype(np.float64))
    return it.make.cast(wide.op("Sub", 1.0, wide.op("Pow", beta, wide.cast(step))))


_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(_sgd),
    "momentum": Optimizer(_momentum, ("momentum",), {"momentum": 0.9}),
    "adam": Optimizer(_adam, ("mean", "square"), _ADAM, counts=True),
    "adamw": Optimizer(_adamw, ("mean", "square"), _ADAM, counts=True),
}
