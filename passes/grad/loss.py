"""Losses, added to a model as nodes.

Loss("cross_entropy", scores="logits")  ->  an input `labels`, and the mean over labels that count
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.build import NodeBuilder
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.passes.exprs.derive import derive
from pitc.passes.grad.backward import wide
from pitc.passes.grad.names import MADE, near, take_name, value_of
from pitc.passes.grad.reach import differentiable

IGNORED = -100  # the label that PyTorch ignores


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of one output of a model, as one number.

    Args:
        kind: `cross_entropy` (scores of classes, along the last dimension), `nll` (their logarithms
            of probabilities), `mse`, `bce` (probabilities) or `bce_with_logits`.
        scores: The value that it is of.
        labels: The name of the new input: int64 classes, of the shape of `scores` without its last
            dimension; or, of the last three kinds, numbers of the shape and type of `scores`.
        ignore_index: Of the first two kinds: a label that does not count; None: all count.
        weights: Of the first two kinds: an input or weight of the model with a factor for each
            class.
        mask: An input of the model. Of the first two kinds it has the shape of the labels: where it
            is 0, no label counts. Of the others it has a factor for each element, and broadcasts;
            the loss is then the sum over the sum of factors.
    """

    kind: str
    scores: str
    labels: str = "labels"
    ignore_index: int | None = IGNORED
    weights: str | None = None
    mask: str | None = None

    @staticmethod
    def kinds() -> tuple[str, ...]:
        """The kinds that there are."""
        return tuple(KINDS)


def add_loss(model: ir.Model, loss: Loss) -> str:
    """Add the nodes and the input of a loss.

    Args:
        model: The model; it is changed in place.
        loss: The loss.

    Returns:
        The name of its value.

    Raises:
        UsageError: The loss does not fit the model.
    """
    kind = KINDS.get(loss.kind)
    if kind is None:
        raise UsageError(f"no loss is named '{loss.kind}'", hint=f"losses: {', '.join(KINDS)}")
    graph = Graph(model)
    derive(graph)
    for name in (loss.scores, loss.weights, loss.mask):
        if name is not None and not graph.has(name):
            raise UsageError(f"the model has no value '{name}'", hint=near(graph, name))
    build = NodeBuilder(model.graph, "loss")
    name = take_name(build.names, loss.labels, "the input of labels", "choose another for labels")
    by_class = kind.by_class
    if by_class and loss.mask is not None and loss.ignore_index is None:
        raise UsageError("a mask needs an ignore_index", hint="it is what masked labels become")
    if not by_class and loss.weights is not None:
        raise UsageError(f"{loss.kind} has no classes, so no weights of them")
    shape, dtype = graph[loss.scores].shape, graph[loss.scores].dtype
    floats = differentiable(graph, loss.scores)
    if shape is None or dtype is None or not floats or (by_class and len(shape) < 2):
        raise UsageError(f"'{loss.scores}' are no scores: {dtype} of shape {shape}")
    if by_class and loss.mask is not None and graph[loss.mask].shape != shape[:-1]:
        found, wanted = graph[loss.mask].shape, shape[:-1]
        raise UsageError(f"the mask '{loss.mask}' is of shape {found}, the labels of {wanted}")
    labels = ir.Value(name=name)
    labels.type = ir.TensorType(ir.DataType.INT64 if by_class else ir.DataType.from_numpy(dtype))
    labels.shape = _declared(shape[:-1] if by_class else shape)
    model.graph.inputs.append(labels)
    result = kind.make(_Parts(build, model, loss, value_of(model, loss.scores), labels, dtype))
    result.name = build.names.value("loss")
    result.type, result.shape = ir.TensorType(ir.DataType.from_numpy(dtype)), ir.Shape([])
    return result.name


def _declared(shape: Shape) -> ir.Shape:
    """Extents as an input declares them: a sum or product of sizes has no name."""
    texts = [(e.as_int(), str(e)) for e in shape]
    return ir.Shape([n if n is not None else t if t.isidentifier() else None for n, t in texts])


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the nodes of a loss are made of."""

    build: NodeBuilder
    model: ir.Model
    loss: Loss
    scores: ir.Value
    labels: ir.Value
    dtype: np.dtype

    def number(self, x: float) -> ir.Value:
        """A scalar of the scores' type."""
        value = self.build.constant(np.asarray(x, self.dtype))
        value.meta[MADE] = True
        return value

    def value(self, name: str) -> ir.Value:
        """A value of the model."""
        return value_of(self.model, name)


def _rows(parts: _Parts) -> tuple[ir.Value, ir.Value]:
    """Scores as one matrix, and labels as one vector."""
    build, scores, rest = parts.build, parts.scores, parts.build.ints(-1)
    last = build.op("Gather", [build.op("Shape", [scores]), rest], axis=0)
    rows = build.op("Reshape", [scores, build.op("Concat", [rest, last], axis=0)])
    labels = parts.labels
    if parts.loss.mask is not None:
        counts = build.op("Cast", [parts.value(parts.loss.mask)], to=ir.DataType.BOOL)
        ignored = build.constant(np.asarray(parts.loss.ignore_index, np.int64))
        labels = build.op("Where", [counts, labels, ignored])
    return rows, build.op("Reshape", [labels, rest])


def _by_class(parts: _Parts, op: str) -> ir.Value:
    """A mean by an operator of ONNX."""
    rows, labels = _rows(parts)
    weights = [] if parts.loss.weights is None else [parts.value(parts.loss.weights)]
    ignored = parts.loss.ignore_index
    if ignored is None:
        return parts.build.op(op, [rows, labels, *weights], reduction="mean")
    return parts.build.op(op, [rows, labels, *weights], reduction="mean", ignore_index=ignored)


def _mean(parts: _Parts, each: ir.Value) -> ir.Value:
    """The mean of elements, or of those that count."""
    build = parts.build
    if parts.loss.mask is None:
        return build.op("ReduceMean", [each], keepdims=0)
    kind = ir.DataType.from_numpy(wide(parts.dtype))
    factors = build.op("Cast", [parts.value(parts.loss.mask)], to=kind)
    factors = build.op("Expand", [factors, build.op("Shape", [each])])
    narrow = wide(parts.dtype) != parts.dtype
    each = build.op("Cast", [each], to=kind) if narrow else each
    total = build.op("ReduceSum", [build.op("Mul", [each, factors])], keepdims=0)
    mean = build.op("Div", [total, build.op("ReduceSum", [factors], keepdims=0)])
    return build.op("Cast", [mean], to=ir.DataType.from_numpy(parts.dtype)) if narrow else mean


def _squares(parts: _Parts) -> ir.Value:
    difference = parts.build.op("Sub", [parts.scores, parts.labels])
    return _mean(parts, parts.build.op("Mul", [difference, difference]))


def _chances(parts: _Parts) -> ir.Value:
    """-(t * log(p) + (1 - t) * log(1 - p)), logarithms not below -100, as PyTorch has it.

    Below, the logarithm of another number is taken, and not read: that of 0 has no derivative, and
    0 times it is NaN.
    """
    build, p, t = parts.build, parts.scores, parts.labels
    one, least = parts.number(1), parts.number(-100)

    def logarithm(x: ir.Value) -> ir.Value:
        is_less = build.op("Less", [build.op("Log", [x]), least])
        found = build.op("Log", [build.op("Where", [is_less, one, x])])
        return build.op("Where", [is_less, least, found])

    yes, no = logarithm(p), logarithm(build.op("Sub", [one, p]))
    sums = [build.op("Mul", [t, yes]), build.op("Mul", [build.op("Sub", [one, t]), no])]
    return _mean(parts, build.op("Neg", [build.op("Add", sums)]))


def _logits(parts: _Parts) -> ir.Value:
    """log(1 + exp(x)) - x * t: the kernel of Softplus overflows for no x, and has no corner."""
    build, x, t = parts.build, parts.scores, parts.labels
    each = build.op("Sub", [build.op("Softplus", [x]), build.op("Mul", [x, t])])
    return _mean(parts, each)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of loss.

    Args:
        make: Adds its nodes.
        by_class: Labels are classes; else they are numbers of the scores' type.
    """

    make: Callable[[_Parts], ir.Value]
    by_class: bool = False


KINDS: Mapping[str, Kind] = {
    "cross_entropy": Kind(partial(_by_class, op="SoftmaxCrossEntropyLoss"), by_class=True),
    "nll": Kind(partial(_by_class, op="NegativeLogLikelihoodLoss"), by_class=True),
    "mse": Kind(_squares),
    "bce": Kind(_chances),
    "bce_with_logits": Kind(_logits),
}
