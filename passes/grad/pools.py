"""Adjoints of pooling and of the norm over channels.

largest    to the first largest element of the window, which the node itself names
mean       g / count, spread over the window
p-norm     g * y^(1 - p), spread over the window, times sign(x) * |x|^(p - 1)
channels   y = x * b^-beta, b = bias + alpha * mean of squares around:
           dx = g * b^-beta - 2 * alpha * beta * x * mean of g * y / b around
"""

from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer
from pitc.ir.graph import NoRule
from pitc.ir.index import UNDECLARED, poly
from pitc.ir.nodes import attribute
from pitc.passes.grad.blocks import folded
from pitc.passes.grad.moves import move
from pitc.passes.grad.reductions import reduced
from pitc.passes.grad.scatters import check_adds, on_a_line
from pitc.passes.grad.site import Site
from pitc.passes.grad.windows import IMAGE, Slide, slide_of, spread


def pooled(site: Site) -> dict[int, ir.Value]:
    """The gradient of the operand of a pool with a window."""
    site.only(0)
    unknown = any(UNDECLARED in str(e) for e in site.expr.shape[IMAGE:])
    apart = any(s > span for s, span in zip(_slide(site).strides, _spans(site), strict=True))
    if unknown and apart and site.view.attr("ceil_mode", 0):  # there kernels read anything
        raise NoRule("windows may lie behind the image")
    match site.expr.reducer:
        case Reducer.POOLED:
            return {0: _to_largest(site)}
        case Reducer.SQUARE:
            sums = _spread(site, site.widened(_per_length(site)), _window(site, 1.0))
            return {0: site.build.op("Mul", [_slope(site), sums])}
    return {0: _to_mean(site)}


def pooled_whole(site: Site) -> dict[int, ir.Value]:
    """The gradient of the operand of a pool of whole images."""
    site.only(0)
    if site.expr.combine is Combine.MOVE:
        return move(site)
    match site.expr.reducer:
        case Reducer.POOLED:
            return {0: _to_first(site)}
        case Reducer.SQUARE:
            return {0: site.build.op("Mul", [_slope(site), _per_length(site)])}
    return reduced(site)


def _kernel(site: Site) -> tuple[int, ...]:
    return tuple(site.view.attr("kernel_shape") or ())


def _slide(site: Site) -> Slide:
    return slide_of(site.view, site.view.shape(0)[IMAGE:], tuple(map(poly, _kernel(site))))


def _spans(site: Site) -> list[int]:
    """How many places the window spans in each dimension."""
    pairs = zip(_kernel(site), _slide(site).dilations, strict=True)
    return [(k - 1) * d + 1 for k, d in pairs]


def _window(site: Site, number: float) -> ir.Value:
    """A window of one number."""
    return site.build.constant(np.full((1, 1, *_kernel(site)), number, site.wide))


def _spread(site: Site, g: ir.Value, window: ir.Value) -> ir.Value:
    """The sum of windows, each times the gradient of its place, which is in the wide type."""
    build, slide = site.build, _slide(site)
    g = folded(site, g, site.y())
    if None in slide.over:  # where windows are too long there is no place: one of zeros is
        more = [0] * IMAGE + [int(n is None) for n in slide.over]
        g = build.op("Pad", [g, build.ints(*[0] * len(more), *more)])
    found = spread(build, g, window, slide, site.x())
    return site.narrowed(build.reshape_like(found, site.x()))


def _to_largest(site: Site) -> ir.Value:
    """To the places of the largest elements, of which the node itself tells the first."""
    build, slide = site.build, _slide(site)
    apart = all(s >= span for s, span in zip(slide.strides, _spans(site), strict=True))
    if not apart:
        check_adds(build, "windows overlap, and ")
    y, places = _largest(site)
    size = build.op("Size", [site.x()])
    end = size
    hidden = any(p and d > 1 for p, d in zip(slide.before, slide.dilations, strict=True))
    if hidden:  # a window of which the holes lie on the image has no largest element
        lowest = build.number(float(ir.DataType.from_numpy(site.dtype).min), site.dtype)
        places = build.op("Where", [build.op("Equal", [y, lowest]), size, places])
        end = build.op("Add", [size, build.constant(np.int64(1))])
    found = on_a_line(site, end, places, adds=not apart)
    found = build.op("Slice", [found, build.ints(0), build.ints(-1)]) if hidden else found
    return build.reshape_like(found, site.x())


def _largest(site: Site) -> tuple[ir.Value, ir.Value]:
    """The largest elements, and the places of the first ones, counted along rows."""
    view = site.view
    if view.attr("storage_order", 0):  # its own places count along columns
        attributes = {k: attribute(view.node, k) for k in view.node.attributes}
        attributes["storage_order"] = 0
        y, places = site.build.node("", view.op, [site.x()], attributes, ["largest", "places"])
        return y, places
    if view.n_outputs < 2:
        view.node.resize_outputs(2)
    return site.y(), site.y(1)


def _to_first(site: Site) -> ir.Value:
    """To the first largest element of each image."""
    build, x = site.build, site.x()
    planes = build.sizes(x, [0, 1])
    size = build.op("ReduceProd", [build.sizes(x, range(IMAGE, site.view.rank(0)))], keepdims=1)
    lines = build.reshape(x, build.joined([planes, size]))
    places = build.op("ArgMax", [lines], axis=2, keepdims=1)
    zeros = build.full(0, site.dtype, build.joined([planes, size]))
    g = build.reshape(site.g, build.joined([planes, build.ints(1)]))
    found = build.op("ScatterElements", [zeros, places, g], axis=2)
    return build.reshape_like(found, x)


def _to_mean(site: Site) -> ir.Value:
    """To all elements of each window, by their number."""
    view, build, slide, kernel = site.view, site.build, _slide(site), _kernel(site)
    padding = bool(view.attr("count_include_pad", 0))
    ends = zip(slide.over, slide.after, strict=True)
    inside = all(over is not None and over <= (after if padding else 0) for over, after in ends)
    if inside and (padding or not any(slide.before)):
        return _spread(site, site.widened(site.g), _window(site, 1 / prod(kernel)))
    g = site.widened(site.g)
    for d in range(len(kernel)):
        count = build.cast(_counts(site, slide, d, padding), site.wide)
        g = build.op("Div", [g, build.unsqueeze(count, *range(1, len(kernel) - d))])
    return _spread(site, g, _window(site, 1.0))


def _counts(site: Site, slide: Slide, d: int, padding: bool) -> ir.Value:
    """How many places of each window count along a dimension: those in the image, or padding too.

    5 places, kernel 3, padding 1   ->   2 3 3 3 2
    """
    build, axis = site.build, IMAGE + d
    step, dilation = slide.strides[d], build.constant(np.int64(slide.dilations[d]))
    before, after = (slide.before[d], slide.after[d]) if padding else (0, 0)
    zero, one = build.constant(np.int64(0)), build.constant(np.int64(1))
    number = build.scalar(build.sizes(site.y(), [axis]))
    steps = build.op(
        "Mul", [build.op("Range", [zero, number, one]), build.constant(np.int64(step))]
    )
    start = build.op("Sub", [steps, build.constant(np.int64(slide.before[d]))])
    end = build.op("Add", [build.sizes(site.x(), [axis]), build.ints(after - 1)])
    span = build.constant(np.int64((_kernel(site)[d] - 1) * slide.dilations[d]))
    last = build.op("Min", [build.op("Add", [start, span]), end])
    first = build.op("Max", [start, build.ints(-before)])
    gone = build.op("Add", [build.op("Sub", [first, start]), build.op("Sub", [dilation, one])])
    reached = build.op("Add", [build.op("Div", [build.op("Sub", [last, start]), dilation]), one])
    return build.op("Max", [build.op("Sub", [reached, build.op("Div", [gone, dilation])]), one])


def _power(site: Site) -> int:
    p = int(site.view.attr("p", 2))
    if p < 1:
        raise NoRule(f"a norm of power {p}")
    return p


def _raised(site: Site, x: ir.Value) -> ir.Value:
    """A length to the power p - 1, above 0."""
    p = _power(site) - 1
    return x if p == 1 else site.build.op("Pow", [x, site.build.number(p, site.dtype)])


def _slope(site: Site) -> ir.Value:
    """Of a sum of powers, over p."""
    build, x = site.build, site.x()
    if _power(site) == 2:
        return x
    sign = build.op("Sign", [x])
    if _power(site) == 1:
        return sign
    return build.op("Mul", [sign, _raised(site, build.op("Abs", [x]))])


def _per_length(site: Site) -> ir.Value:
    """The gradient by what the length is to the power p - 1; 0 for a length of 0."""
    build, g, y = site.build, site.g, site.y()
    if _power(site) == 1:
        return g
    zero = build.number(0, site.dtype)
    return build.op(
        "Where", [build.op("Equal", [y, zero]), zero, build.op("Div", [g, _raised(site, y)])]
    )


def local_norm(site: Site) -> dict[int, ir.Value]:
    """Of LRN, whose windows of channels are as long before a channel as behind it."""
    site.only(0)
    view, build, x, g = site.view, site.build, site.x(), site.g
    size, alpha = int(view.attr("size", 1)), float(view.attr("alpha", 1e-4))
    beta, bias = float(view.attr("beta", 0.75)), float(view.attr("bias", 1.0))
    if size % 2 == 0:
        raise NoRule(f"windows of {size} channels")

    def times(value: ir.Value, number: float) -> ir.Value:
        return build.op("Mul", [value, build.number(number, site.dtype)])

    def around(value: ir.Value) -> ir.Value:
        """Sums over windows of channels, by their size."""
        sizes = [build.sizes(x, [0]), build.ints(1), build.sizes(x, [1]), build.ints(-1)]
        pads, half = [0] * 4, (size - 1) // 2
        pads[0] = pads[2] = half
        found = build.op(
            "AveragePool",
            [build.reshape(value, build.joined(sizes))],
            kernel_shape=[size, 1],
            pads=pads,
            count_include_pad=1,
        )
        return build.reshape_like(found, x)

    squares = times(around(build.op("Mul", [x, x])), alpha)
    base = build.op("Add", [squares, build.number(bias, site.dtype)])
    own = build.op("Mul", [g, build.op("Pow", [base, build.number(-beta, site.dtype)])])
    part = build.op("Div", [build.op("Mul", [g, site.y()]), base])
    others = times(build.op("Mul", [x, around(part)]), 2 * alpha * beta)
    return {0: build.op("Sub", [own, others])}
