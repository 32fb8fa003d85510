"""ONNX's losses by labels, as their parts.

    SoftmaxCrossEntropyLoss(x, labels)  ->  NegativeLogLikelihoodLoss(LogSoftmax(x), labels)
    NegativeLogLikelihoodLoss(p, t, w)  ->  sum_n(w[t[n]] * -p[n, t[n]]) / sum_n(w[t[n]])

A label that is ignored is looked up as 0, and a Where leaves out what that gives: so nothing of its
row is read, and the gradient of its row is 0.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pitc.passes.expand.body import Body


def negative_log_likelihood(body: Body) -> Sequence[ir.Value | None]:
    """From log-probabilities, classes along dimension 1."""
    body.only_outputs(0)
    return [_loss(body, body.input(0))]


def softmax_cross_entropy(body: Body) -> Sequence[ir.Value | None]:
    """From scores; the second result are the log-probabilities."""
    chances = body.op("LogSoftmax", body.input(0), axis=1)
    return [_loss(body, chances) if body.wants(0) else None, chances if body.wants(1) else None]


def _loss(body: Body, chances: ir.Value) -> ir.Value:
    view, labels = body.view, body.input(1)
    dtype, ignored = view.dtype(0), view.attr("ignore_index")
    zero, one = (body.constant(np.asarray(n, dtype)) for n in (0, 1))
    hidden = None
    if ignored is not None:
        number, first = (body.constant(np.asarray(n, view.dtype(1))) for n in (ignored, 0))
        hidden = body.op("Equal", labels, number)
        labels = body.op("Where", hidden, first, labels)
    picked = body.op("GatherElements", chances, body.unsqueeze(labels, 1), axis=1)
    loss = body.op("Neg", body.along("Squeeze", picked, [1]))
    weight = body.op("Gather", body.input(2), labels, axis=0) if view.has(2) else None
    if weight is not None:
        loss = body.op("Mul", loss, weight)
    if hidden is not None:
        loss = body.op("Where", hidden, zero, loss)
        weight = body.op("Where", hidden, zero, one if weight is None else weight)
    mode = str(view.attr("reduction", "mean"))
    if mode == "none":
        return loss
    if mode == "sum":
        return body.op("ReduceSum", loss, keepdims=0)
    return _mean(body, loss, weight, body.op("Size", labels))


def _mean(body: Body, loss: ir.Value, weight: ir.Value | None, count: ir.Value) -> ir.Value:
    """The sum over that of the weights; half floats in single ones, as both sums may be large."""
    dtype = body.view.dtype(0)
    wide = np.promote_types(dtype, np.float32)
    kind = ir.DataType.from_numpy(wide)
    if wide != dtype:
        loss = body.op("Cast", loss, to=kind)
        weight = None if weight is None else body.op("Cast", weight, to=kind)
    total = body.op("ReduceSum", loss, keepdims=0)
    if weight is None:
        whole = body.op("Cast", count, to=kind)
    else:
        whole = body.op("ReduceSum", weight, keepdims=0)
    if body.view.has(2):  # any numbers, so their sum may be 0 in other ways, too
        mean = body.op("Div", total, whole)
    else:  # the gradient is finite by construction: of no label it is 0, and the mean NaN
        zero, one, nan = (body.constant(np.asarray(n, wide)) for n in (0, 1, np.nan))
        mean = body.op("Div", total, body.op("Max", whole, one))
        mean = body.op("Where", body.op("Equal", whole, zero), nan, mean)
    return body.op("Cast", mean, to=ir.DataType.from_numpy(dtype)) if wide != dtype else mean
