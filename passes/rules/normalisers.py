"""Normalisers: every output point reads its whole line, and the result is spread back over it.

    Softmax              y[i] = exp(x[i]) / sum_j exp(x[j])
    LayerNormalization   y[i] = (x[i] - mean_j x[j]) / sqrt(var_j x[j] + eps) * scale[i] + bias[i]

The normalised dimensions are never PIT; all others are.
"""

from collections.abc import Sequence

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, digit, dim_index, poly
from pitc.ir.since import Since
from pitc.passes.rules import conditions, derivatives
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import (
    bare,
    broadcast_read,
    dimensions,
    line_index,
    one_axis,
    over_lines,
    row_normal,
)
from pitc.passes.rules.record import Adjoint, Items, Operator, PackRule, always
from pitc.passes.rules.registry import MICROSOFT, rule


@rule(
    "Softmax",
    assumes=(),
    has=Operator(
        packs=PackRule.NORMALISER,
        items=Items.ANY,
        kernels=("attention",),
        adjoint=Adjoint.SOFTMAX,
    ),
)
@rule(
    "LogSoftmax",
    assumes=(),
    has=Operator(
        finite=always,
        not_positive=always,
        packs=PackRule.NORMALISER,
        items=Items.ANY,
        adjoint=Adjoint.LOG_SOFTMAX,
    ),
)
@rule(
    "Hardmax",
    assumes=(),
    has=Operator(finite=always, items=Items.ANY, derivative=derivatives.step),
)
def softmax(view: NodeView) -> list[TensorExpr]:
    """Softmax along one axis; in old operator sets over all dimensions from the axis on."""
    shape = view.shape(0)
    if view.opset >= Since.SOFTMAX_OF_AXIS:
        axes = [one_axis(view, len(shape), -1)]
    else:
        axes = list(range(one_axis(view, len(shape), 1), len(shape)))
    combine = Combine.SOFTMAX if view.op == "Softmax" else Combine.NORMALISE
    return [row_normal(shape, axes, combine)]


def _statistic(shape: Shape, axes: Sequence[int], mean: bool) -> TensorExpr:
    """Mean or inverse deviation of each line, kept with extent 1."""
    combine = Combine.REDUCE if mean else Combine.OPAQUE
    return over_lines(shape, axes, combine, Reducer.MEAN if mean else Reducer.SUM)


def _norm(*, centres: bool) -> Operator:
    return Operator(
        finite=conditions.norm,
        centres=centres,
        packs=PackRule.NORMALISER,
        items=Items.ANY,
        kernels=("norm",),
        adjoint=Adjoint.ROW_NORM,
    )


@rule("LayerNormalization", assumes=(Assumes.FITTING_SIZES,), has=_norm(centres=True))
@rule(
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    assumes=(Assumes.FITTING_SIZES,),
    has=_norm(centres=False),
)
@rule(
    "SimplifiedLayerNormalization",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=conditions.norm, items=Items.ANY, adjoint=Adjoint.ROW_NORM),
)
def layer_norm(view: NodeView) -> list[TensorExpr]:
    """Normalisation over all dimensions from the axis on, scaled and shifted."""
    shape = view.shape(0)
    axes = list(range(one_axis(view, len(shape), -1), len(shape)))
    affine = tuple(broadcast_read(i, view.shape(i), shape) for i in (1, 2) if view.has(i))
    outputs = [row_normal(shape, axes, Combine.NORMALISE, affine)]
    means = [view.op == "LayerNormalization", False]
    return outputs + [_statistic(shape, axes, mean) for mean in means[: view.n_outputs - 1]]


@rule(
    "InstanceNormalization",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=conditions.norm, items=Items.ANY, adjoint=Adjoint.INSTANCE_NORM),
)
def instance_norm(view: NodeView) -> list[TensorExpr]:
    """Normalisation of each channel of each image, scaled and shifted per channel."""
    shape = view.shape(0)
    channel = tuple(Read(i, (dim_index(1, shape[1]),)) for i in (1, 2))
    return [row_normal(shape, list(range(2, len(shape))), Combine.NORMALISE, channel)]


@rule(
    "LpNormalization",
    assumes=(),
    has=Operator(packs=PackRule.NORMALISER, items=Items.ANY, adjoint=Adjoint.LP_NORM),
)
def lp_norm(view: NodeView) -> list[TensorExpr]:
    """Division by the norm along one axis."""
    shape = view.shape(0)
    return [row_normal(shape, [one_axis(view, len(shape), -1)], Combine.NORMALISE)]


@rule("MeanVarianceNormalization", assumes=(), has=Operator(items=Items.ANY))
def mean_variance_norm(view: NodeView) -> list[TensorExpr]:
    """Normalisation over the given axes."""
    shape = view.shape(0)
    axes = dimensions(view.int_list(None, "axes") or [0, 2, 3], len(shape))
    return [row_normal(shape, axes, Combine.NORMALISE)]


@rule("GroupNormalization", assumes=(Assumes.FITTING_SIZES,), has=Operator(finite=conditions.norm))
def group_norm(view: NodeView) -> list[TensorExpr]:
    """Normalisation of groups of channels: a channel reads all channels of its group."""
    shape = view.shape(0)
    groups = poly(int(view.attr("num_groups", 0)))
    if len(shape) < 3:
        raise NoRule(f"rank {len(shape)}")
    size = shape[1].divide(groups)
    if size is None:
        raise NoRule(f"{shape[1]} channels in {groups} groups")
    channel = dim_index(1, shape[1])
    group = digit(channel, size, groups)
    if group is None:
        raise NoRule(f"the group of channel {channel} is not an index expression")
    first = len(shape)
    lines = tuple(dim_index(first + 1 + d, e) for d, e in enumerate(shape[2:]))
    reads = [
        Read(0, (dim_index(0, shape[0]), group * size + dim_index(first, size), *lines)),
        *(Read(i, (channel if view.shape(i) == shape[1:2] else group,)) for i in (1, 2)),
    ]
    normal = tuple(d for d in range(1, len(shape)) if shape[d] != ONE)
    reduced = (size, *shape[2:])
    return [TensorExpr(shape, tuple(reads), reduced, Combine.NORMALISE, Reducer.NORMALISE, normal)]


@rule(
    "BatchNormalization",
    assumes=(Assumes.FITTING_SIZES, Assumes.INFERENCE),
    has=Operator(
        finite=conditions.scaling,
        packs=PackRule.PER_CHANNEL,
        items=Items.ANY,
        derivative=derivatives.per_channel,
        adjoint=Adjoint.CHANNEL_NORM,
    ),
)
def batch_norm(view: NodeView) -> list[TensorExpr]:
    """Inference form: an elementwise function of the point and of four numbers per channel."""
    if view.n_outputs != 1 or view.attr("training_mode", 0):
        raise NoRule("training form")
    shape = view.shape(0)
    if len(shape) < 2 or view.attr("spatial", 1) != 1:
        raise NoRule("no channel dimension of its own")
    channel = tuple(Read(i, (dim_index(1, shape[1]),)) for i in range(1, 5))
    return [TensorExpr(shape, (Read(0, bare(shape)), *channel), combine=Combine.MAP)]


@rule(
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=conditions.norm, items=Items.ANY),
)
def skip_layer_norm(view: NodeView) -> list[TensorExpr]:
    """Layer normalisation of input + skip (+ bias) over the last dimension; output 3 is the sum.

    The skip operand may lack the batch dimension, or have it with extent 1.
    """
    shape = view.shape(0)
    axis, rank = len(shape) - 1, len(shape)
    places: list[int | None] = list(range(rank))
    bias = 4 if view.op == "SkipLayerNormalization" else 3
    own = broadcast_read(1, view.shape(1), shape)
    if own.index[-1] != dim_index(axis, shape[-1]):
        raise NoRule("the skip operand's rows differ in length")
    rows = [
        Read(0, line_index(shape, [axis], places, rank)),
        Read(1, (*own.index[:-1], dim_index(rank, shape[-1]))),
    ]
    points = [Read(0, bare(shape)), own]
    if view.has(bias):
        rows.append(Read(bias, (dim_index(rank, shape[-1]),)))
        points.append(Read(bias, (dim_index(axis, shape[-1]),)))
    reduced, normal = (shape[-1],), (axis,) if shape[-1] != ONE else ()
    scales = [Read(i, (dim_index(axis, shape[-1]),)) for i in range(2, bias) if view.has(i)]
    kind = Combine.NORMALISE, Reducer.NORMALISE, normal
    outputs: list[TensorExpr] = [TensorExpr(shape, (*rows, *scales), reduced, *kind)]
    statistic = TensorExpr((*shape[:-1], ONE), tuple(rows), reduced, Combine.OPAQUE, Reducer.SUM)
    outputs += [statistic] * min(view.n_outputs - 1, 2)
    if view.n_outputs > 3:
        outputs.append(TensorExpr(shape, tuple(points), combine=Combine.MAP))
    return outputs
