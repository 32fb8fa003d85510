"""Convolutions and pooling: windows that slide over the spatial dimensions.

    place p of the output and place i of the window read  p * stride + i * dilation - pad

so a spatial axis is derived and never PIT; images, channels and filters are.
"""

from dataclasses import dataclass, replace
from math import prod

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, ZERO, Poly, digit, dim_index, nonneg, poly
from pitc.ir.region import Region, union
from pitc.passes.rules import conditions
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, inside, over_lines, positional, static
from pitc.passes.rules.record import Adjoint, Items, Operator, Zeros, always
from pitc.passes.rules.registry import MICROSOFT, rule

EXACT = 1 << 24  # up to here floats count without gaps


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window, one number per spatial dimension.

    Args:
        kernel: Extents of the window.
        strides: Steps of the output.
        dilations: Steps of the window.
        pads: Places before the first one.
        after: Places behind the last one.
        shape: Spatial extents of the output.
    """

    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    after: tuple[int, ...]
    shape: Shape


def window_of(view: NodeView, image: Shape, kernel: Shape) -> Window:
    """The window of a convolution or pooling node.

    Args:
        view: The node.
        image: Spatial extents of the operand.
        kernel: Extents of the window.
    """
    n = len(image)
    strides = tuple(view.attr("strides") or [1] * n)
    dilations = tuple(view.attr("dilations") or [1] * n)
    pads = list(view.attr("pads") or [0] * (2 * n))
    if len(kernel) != n or len(strides) != n or len(dilations) != n or len(pads) != 2 * n:
        raise NoRule(f"strides, dilations or pads do not fit {n} spatial dimensions")
    mode = view.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        pads = [0] * (2 * n)
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = static((*image, *kernel), "a window with auto_pad")
        for d, (size, k) in enumerate(zip(sizes[:n], sizes[n:], strict=True)):
            last = (-(-size // strides[d]) - 1) * strides[d]
            both = last + k - size  # with dilations only pools run, and pad as without
            if both < 0:  # operators and versions differ in what they leave out
                raise NoRule(f"windows of {k} at every {strides[d]}th place, padded by {both}")
            pads[d] = both // 2 if mode == "SAME_UPPER" else both - both // 2
            pads[n + d] = both - pads[d]
    elif mode != "NOTSET":
        raise NoRule(f"auto_pad {mode} is not known")
    spans = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    padded = [size + pads[d] + pads[n + d] for d, size in enumerate(image)]
    shape = tuple(
        _count(view, size - span, stride, most + before)
        for size, span, stride, most, before in zip(
            padded, spans, strides, image, pads, strict=False
        )
    )
    return Window(kernel, strides, dilations, tuple(pads[:n]), tuple(pads[n:]), shape)


def _count(view: NodeView, room: Poly, stride: int, end: Poly) -> Poly:
    """How many places a window has; a new size where it does not fit in once.

    Args:
        view: The node.
        room: By how much the padded image is longer than the window.
        stride: Between two places.
        end: Where the padding behind the image begins.
    """
    n, ceil = room.as_int(), bool(view.attr("ceil_mode", 0))
    if n is not None and n >= 0:
        count = poly((-(-n // stride) if ceil else n // stride) + 1)
    elif stride == 1 and nonneg(room + 1):
        count = room + 1
    else:
        return view.fresh()
    # rounded up, and from more places than a float counts: versions of ONNX Runtime differ
    starts = end - 1 - (count - 1) * stride
    far = n is not None and n >= EXACT
    return view.fresh() if ceil and (far or not nonneg(starts)) else count


def places(window: Window, image: Shape, first: int) -> tuple[tuple[Poly, ...], Region]:
    """Where the window reads, and the tests that the places lie in the image.

    Args:
        window: The window.
        image: Spatial extents of the operand.
        first: Number of the window's first reduced axis; the output's spatial axes start at 2.
    """
    index, tests = [], []
    for d, size in enumerate(image):
        at = dim_index(2 + d, window.shape[d]) * window.strides[d]
        at = at + dim_index(first + d, window.kernel[d]) * window.dilations[d] - window.pads[d]
        index.append(at)
        tests.append(inside(at, size))
    return tuple(index), union(tests)


def _cuts_off(view: NodeView) -> bool:
    """A contraction with a function of its own that is 0 on an interval."""
    low = next(iter(view.attr("activation_params", ())), 0.0)
    return view.attr("activation") == "Relu" or (view.attr("activation") == "Clip" and low == 0)


@rule(
    "Conv",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(items=Items.ANY, adjoint=Adjoint.CONVOLVED),
)
@rule(
    "FusedConv",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(zeros=Zeros(_cuts_off, scattered=True), items=Items.ANY),
)
def conv(view: NodeView) -> list[TensorExpr]:
    """Convolution; with groups a filter reads the channels of its group."""
    if view.has(3):
        raise NoRule("a fused residual operand")
    return [_convolution(view, 1, 2 if view.has(2) else None, _activated(view))]


def _activated(view: NodeView) -> Combine:
    fused = view.op == "FusedConv" or view.has(2)
    return Combine.BIASED_PRODUCT if fused else Combine.PRODUCT


@rule(
    "ConvInteger",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, items=Items.ANY),
)
def conv_integer(view: NodeView) -> list[TensorExpr]:
    """Convolution of integers with zero points; padding counts as the zero point."""
    if view.has(3) and view.rank(3):
        raise NoRule("a zero point per filter")
    points = view.has(2) or view.has(3)
    return [_convolution(view, 1, None, Combine.OPAQUE if points else Combine.PRODUCT)]


@rule(
    "QLinearConv",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, items=Items.ANY),
)
def qlinear_conv(view: NodeView) -> list[TensorExpr]:
    """Quantised convolution: x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias."""
    expr = _convolution(view, 3, 8 if view.has(8) else None, Combine.OPAQUE)
    filters = dim_index(1, expr.shape[1])
    reads = list(expr.reads)
    for i in (1, 2, 4, 5, 6, 7):
        own = view.shape(i)
        if own and own != (ONE,) and (i not in (4, 5) or own != expr.shape[1:2]):
            raise NoRule(f"input {i} of shape {own} is neither per tensor nor per filter")
        reads.append(Read(i, tuple(ZERO if e == ONE else filters for e in own)))
    return [replace(expr, reads=tuple(reads))]


@rule(
    "LRN",
    assumes=(),
    has=Operator(finite=conditions.local_norm, items=Items.ANY, adjoint=Adjoint.LOCAL_NORM),
)
def local_response(view: NodeView) -> list[TensorExpr]:
    """A point is divided by a function of the squares of the channels around its own."""
    shape = view.shape(0)
    size = int(view.attr("size", 1))
    if len(shape) < 2 or size % 2 == 0:
        raise NoRule(f"windows of {size} channels at rank {len(shape)}")
    window = poly(size)
    near = dim_index(1, shape[1]) + dim_index(len(shape), window) - (size - 1) // 2
    own = bare(shape)
    reads = (
        Read(0, own),
        Read(0, (own[0], near, *own[2:]), within=inside(near, shape[1])),
    )
    return [TensorExpr(shape, reads, (window,), Combine.OPAQUE, Reducer.SUM)]


def _convolution(view: NodeView, w: int, bias: int | None, combine: Combine) -> TensorExpr:
    x, f = view.shape(0), view.shape(w)
    if len(x) != len(f) or len(x) < 3:
        raise NoRule(f"ranks {len(x)} and {len(f)} of image and filter")
    window = window_of(view, x[2:], f[2:])
    out = (x[0], f[0], *window.shape)
    first = len(out)
    spatial, tests = places(window, x[2:], first + 1)
    channel: Poly | None = dim_index(first, f[1])
    groups = int(view.attr("group", 1))
    if groups != 1:
        size = f[0].divide(poly(groups))
        group = size and digit(dim_index(1, f[0]), size, poly(groups))
        channel = None if group is None else group * f[1] + dim_index(first, f[1])
    kernel = tuple(dim_index(first + 1 + d, e) for d, e in enumerate(f[2:]))
    reads = [
        Read(0, (dim_index(0, x[0]), channel, *spatial), within=tests),
        Read(w, (dim_index(1, f[0]), dim_index(first, f[1]), *kernel)),
    ]
    if bias is not None:
        reads.append(Read(bias, (dim_index(1, f[0]),)))
    return TensorExpr(out, tuple(reads), f[1:], combine, Reducer.SUM)


@rule(
    "ConvTranspose",
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.CONVOLVED_BACK),
)
def conv_transpose(view: NodeView) -> list[TensorExpr]:
    """Transposed convolution: every place of an image channel counts as read, with its position."""
    x, f, groups = view.shape(0), view.shape(1), poly(int(view.attr("group", 1)))
    n = len(x) - 2
    out = (x[0], f[1] * groups, *_spread(view, x[2:], f[2:]))
    size, group = f[0].divide(groups), digit(dim_index(1, out[1]), f[1], groups)
    if size is None or group is None:
        raise NoRule(f"{f[0]} channels in {groups} groups")
    first = len(out) + 1
    kernel = bare(f[2:], first)
    channel = group * size + dim_index(len(out), size)  # one of the group's
    reads = [
        Read(0, (dim_index(0, x[0]), channel, *bare(x[2:], first + n))),
        Read(1, (channel, digit(dim_index(1, out[1]), ONE, f[1]), *kernel)),
    ]
    if view.has(2):
        reads.append(Read(2, (dim_index(1, out[1]),)))
    places = frozenset((*range(2, len(out)), *range(first, first + 2 * n)))
    reduced = (size, *f[2:], *x[2:])
    return [TensorExpr(out, tuple(reads), reduced, Combine.OPAQUE, Reducer.SUM, ordered=places)]


def _spread(view: NodeView, image: Shape, kernel: Shape) -> Shape:
    """Extents of a transposed convolution.

    5 places, kernel 3, stride 2   ->   4 * 2 + 3 = 11

    Source: ONNX operator spec, ConvTranspose, where pads are given.
    """
    n = len(image)
    if len(kernel) != n:
        raise NoRule(f"an image of rank {n}, a kernel of rank {len(kernel)}")
    given = view.attr("auto_pad", "NOTSET") == "NOTSET" and not view.attr("output_shape")
    pads = list(view.attr("pads") or [0] * 2 * n)
    more = list(view.attr("output_padding") or [0] * n)
    strides, dilations = (list(view.attr(a) or [1] * n) for a in ("strides", "dilations"))
    out = []
    for d, (size, k) in enumerate(zip(image, kernel, strict=True)):
        whole = (size - 1) * strides[d] + (k - 1) * dilations[d] + 1 + more[d]
        extent = whole - (pads[d] + pads[n + d])
        known = given and nonneg(size - 1) and nonneg(k - 1) and nonneg(extent)
        out.append(extent if known else view.fresh())
    return tuple(out)


POOLS = {
    "GlobalAveragePool": (Combine.REDUCE, Reducer.MEAN),
    "GlobalMaxPool": (Combine.REDUCE, Reducer.POOLED),
    "GlobalLpPool": (Combine.REDUCE, Reducer.SQUARE),
    "AveragePool": (Combine.REDUCE, Reducer.SUM),
    "LpPool": (Combine.REDUCE, Reducer.SQUARE),
    "MaxPool": (Combine.REDUCE, Reducer.POOLED),
}


@rule(
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GlobalLpPool",
    assumes=(),
    has=Operator(items=Items.ANY, adjoint=Adjoint.POOLED_WHOLE),
)
def global_pool(view: NodeView) -> list[TensorExpr]:
    """One number per image and channel."""
    shape = view.shape(0)
    return [over_lines(shape, list(range(2, len(shape))), *POOLS[view.op])]


@rule(
    "AveragePool",
    "LpPool",
    "MaxPool",
    assumes=(),
    has=Operator(items=Items.ANY, adjoint=Adjoint.POOLED),
)
def pool(view: NodeView) -> list[TensorExpr]:
    """A window without weights; MaxPool's second output holds positions in the whole tensor."""
    x = view.shape(0)
    kernel = tuple(map(poly, view.attr("kernel_shape") or []))
    window = window_of(view, x[2:], kernel)
    out = (*x[:2], *window.shape)
    spatial, tests = places(window, x[2:], len(out))
    read = Read(0, (dim_index(0, x[0]), dim_index(1, x[1]), *spatial), within=tests)
    combine, reducer = POOLS[view.op]
    values = TensorExpr(out, (read,), kernel, combine, reducer)
    if view.n_outputs == 1:
        return [values]
    return [values, positional(out, [read], kernel, range(len(out)))]


@rule(
    "Col2Im",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.COLUMNS),
)
def columns_to_image(view: NodeView) -> list[TensorExpr]:
    """Sums of overlapping blocks: a channel reads the columns of its own channel."""
    x = view.shape(0)
    image, block = view.int_list(1), view.int_list(2)
    size = poly(prod(block or ()))
    channels = x[1].divide(size) if len(x) == 3 else None
    if not image or not block or channels is None:
        raise NoRule(f"columns of shape {x} for an image {image} in blocks {block}")
    out = (x[0], channels, *map(poly, image))
    first = len(out)
    column = dim_index(1, channels) * size + dim_index(first, size)
    read = Read(0, (dim_index(0, x[0]), column, dim_index(first + 1, x[2])))
    return [positional(out, [read], (size, x[2]), range(2, first))]
