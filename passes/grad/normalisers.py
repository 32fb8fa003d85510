"""Adjoints of normalisers, in closed form.

softmax       dx = y * (g - sum(y * g))             log-softmax   dx = g - exp(y) * sum(g)
norm          n = (x - mean) / deviation, y = n * scale + bias, h = g * scale:
              dx = (h - mean(h) - n * mean(h * n)) / deviation
              dscale = sum(g * n), dbias = sum(g)   over what they broadcast along
y = x / |x|   dx = (g - slope * sum(g * y)) / |x|   slope: of |x|
"""

from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.since import Since
from pitc.passes.grad.maps import elementwise, summed_where_1
from pitc.passes.grad.site import Site
from pitc.passes.rules.build import dimensions, one_axis
from pitc.passes.rules.record import operator_of


def _dims(site: Site, default: int) -> list[int]:
    """The dimensions that a softmax normalises."""
    view = site.view
    if view.opset >= Since.SOFTMAX_OF_AXIS:
        return [one_axis(view, view.rank(0), -1)]
    return list(range(one_axis(view, view.rank(0), default), view.rank(0)))


def softmax(site: Site) -> dict[int, ir.Value]:
    """The gradient of the operand."""
    build, y, dims = site.build, site.y(), _dims(site, 1)
    weighted = build.op("Mul", [site.g, y])
    total = build.reduced(weighted, dims, keep=True)
    return {0: build.op("Sub", [weighted, build.op("Mul", [y, total])])}


def log_softmax(site: Site) -> dict[int, ir.Value]:
    """The gradient of the operand."""
    build = site.build
    total = build.reduced(site.g, _dims(site, 1), keep=True)
    return {0: build.op("Sub", [site.g, build.op("Mul", [build.op("Exp", [site.y()]), total])])}


@dataclass(frozen=True, slots=True)
class Norm:
    """What a norm does.

    Args:
        axes: The dimensions of a line.
        centres: It subtracts means.
        epsilon: Is added to the mean of squares.
        channel: Scale and bias are of this dimension; None: they broadcast.
    """

    axes: tuple[int, ...]
    centres: bool
    epsilon: float
    channel: int | None = None


def row_norm(site: Site) -> dict[int, ir.Value]:
    """Of LayerNormalization and RMSNormalization: lines are all dimensions from an axis on."""
    view = site.view
    axes = tuple(range(one_axis(view, view.rank(0), -1), view.rank(0)))
    centres = bool(operator_of(view).centres)
    return _norm(site, Norm(axes, centres, float(view.attr("epsilon", 1e-5))))


def instance_norm(site: Site) -> dict[int, ir.Value]:
    """Of InstanceNormalization: a line is a channel of an image."""
    axes = tuple(range(2, site.view.rank(0)))
    return _norm(site, Norm(axes, True, float(site.view.attr("epsilon", 1e-5)), 1))


def channel_norm(site: Site) -> dict[int, ir.Value]:
    """Of BatchNormalization: in training a line is a channel of all images; else it is a function
    of the point and of four numbers per channel.
    """
    if not site.view.attr("training_mode", 0):
        return elementwise(site)
    axes = (0, *range(2, site.view.rank(0)))
    return _norm(site, Norm(axes, True, float(site.view.attr("epsilon", 1e-5)), 1))


def _norm(site: Site, norm: Norm) -> dict[int, ir.Value]:
    site.only(0, 1, 2)
    build, axes = site.build, norm.axes
    x, g = site.widened(site.x()), site.widened(site.g)

    def mean(value: ir.Value) -> ir.Value:
        return build.reduced(value, axes, keep=True, op="ReduceMean")

    centred = build.op("Sub", [x, mean(x)]) if norm.centres else x
    square = mean(build.op("Mul", [centred, centred]))
    deviation = build.op("Sqrt", [build.op("Add", [square, build.number(norm.epsilon, site.wide)])])
    # a factor, so that rows of gradient 0 stay 0: 0 / x is NaN where x is 0
    inverse = build.op("Reciprocal", [deviation])
    normal = build.op("Mul", [centred, inverse])
    found = {}
    if 0 in site.wanted:
        h = build.op("Mul", [g, _scale(site, norm)])
        rest = build.op("Sub", [h, mean(h)]) if norm.centres else h
        along = build.op("Mul", [normal, mean(build.op("Mul", [h, normal]))])
        found[0] = build.op("Mul", [build.op("Sub", [rest, along]), inverse])
    if 1 in site.wanted:
        found[1] = _gathered(site, norm, build.op("Mul", [g, normal]), 1)
    if 2 in site.wanted:
        found[2] = _gathered(site, norm, g, 2)
    return {i: _typed(site, g, i) for i, g in found.items()}


def _typed(site: Site, g: ir.Value, i: int) -> ir.Value:
    """A gradient in the type of operand i."""
    return g if site.view.dtype(i) == site.wide else site.build.cast(g, site.view.dtype(i))


def _scale(site: Site, norm: Norm) -> ir.Value:
    """The scale as it broadcasts with operand 0."""
    build = site.build
    scale = build.cast(site.x(1), site.wide)
    if norm.channel is None:
        return scale
    return build.unsqueeze(scale, *range(1, site.view.rank(0) - norm.channel))


def _gathered(site: Site, norm: Norm, g: ir.Value, i: int) -> ir.Value:
    """The gradient of scale or bias: summed over what it broadcasts along."""
    build, rank = site.build, site.view.rank(0)
    if norm.channel is not None:
        return build.reduced(g, [d for d in range(rank) if d != norm.channel], keep=False)
    extents = site.view.shape(i)
    front = rank - len(extents)
    ones = [front + d for d, e in enumerate(extents) if e.as_int() == 1]
    same = zip(extents, site.view.shape(0)[front:], strict=True)
    if any(e.as_int() is None and e != other for e, other in same):
        return summed_where_1(build, g, rank, site.x(i))
    g = build.reduced(g, ones, keep=True)
    return build.reduced(g, range(front), keep=False)


def lp_norm(site: Site) -> dict[int, ir.Value]:
    """Of LpNormalization; of a line of zeros it is 0, as PyTorch has it."""
    view, build, x, y, g = site.view, site.build, site.x(), site.y(), site.g
    axes = dimensions([int(view.attr("axis", -1))], view.rank(0))
    first = int(view.attr("p", 2)) == 1
    length = build.reduced(x, axes, keep=True, op="ReduceL1" if first else "ReduceL2")
    slope = build.op("Sign", [x]) if first else y
    along = build.reduced(build.op("Mul", [g, y]), axes, keep=True)
    rest = build.op("Sub", [g, build.op("Mul", [slope, along])])
    zero = build.number(0, site.dtype)
    is_zero = build.op("Equal", [length, zero])
    safe = build.op("Where", [is_zero, build.number(1, site.dtype), length])
    return {0: build.op("Where", [is_zero, zero, build.op("Div", [rest, safe])])}
