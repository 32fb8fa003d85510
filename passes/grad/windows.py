"""Adjoints of convolutions: the window slides the other way, or over the other operand.

    y[o] = sum_i x[o * stride + i * dilation - pad] * w[i]

    dx: a transposed convolution of g with w, cut to the image
    dw: x convolved with g, strides and dilations exchanged, cut to the kernel

Of a transposed convolution the image and the places change parts.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, nonneg
from pitc.passes.grad.backward import Backward
from pitc.passes.grad.site import Site
from pitc.passes.rules.convolution import window_of

IMAGE = 2  # the first spatial dimension


@dataclass(frozen=True, slots=True)
class Slide:
    """How a window slides over an image, one number per spatial dimension.

    Args:
        strides: Steps of the places.
        dilations: Steps of the window.
        before: Padding before the image.
        after: Padding behind it.
        over: By how many places the last window goes past the image; below 0: so many places it
            does not reach; None where that is only known when the model runs.
        groups: Of channels.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    over: tuple[int | None, ...]
    groups: int = 1

    @property
    def axes(self) -> range:
        """The spatial dimensions."""
        return range(IMAGE, IMAGE + len(self.strides))


def slide_of(view: NodeView, image: Shape, kernel: Shape) -> Slide:
    """How the window of a convolution or pooling node slides.

    Args:
        view: The node.
        image: Spatial extents of the operand.
        kernel: Extents of the window.

    Raises:
        NoRule: Padding is not known or below 0.
    """
    window = window_of(view, image, kernel)
    if min((*window.pads, *window.after), default=0) < 0:
        raise NoRule("padding below 0")
    over = []
    for d, size in enumerate(image):
        last: Poly = (window.shape[d] - 1) * window.strides[d]
        reached = last + (kernel[d] - 1) * window.dilations[d] + 1 - window.pads[d]
        over.append((reached - size).as_int())
    return Slide(
        window.strides,
        window.dilations,
        window.pads,
        window.after,
        tuple(over),
        int(view.attr("group", 1)),
    )


def convolved(site: Site) -> dict[int, ir.Value]:
    """The gradients of image, filters and bias of a convolution."""
    site.only(0, 1, 2)
    view, build, g = site.view, site.build, site.g
    slide = slide_of(view, view.shape(0)[IMAGE:], view.shape(1)[IMAGE:])
    found = {}
    if 0 in site.wanted:
        found[0] = spread(build, g, site.x(1), slide, site.x())
    if 1 in site.wanted:
        found[1] = _filters(site, slide, site.x(), site.x(), g)
    if 2 in site.wanted:
        found[2] = _bias(site)
    return found


def convolved_back(site: Site) -> dict[int, ir.Value]:
    """The gradients of places, filters and bias of a transposed convolution.

    Where there may be no place, one of zeros is added: a convolution has at least one, and ONNX
    Runtime never returns from one with an empty kernel.
    """
    site.only(0, 1, 2)
    build, g, x, slide = site.build, site.g, site.x(), _back_slide(site.view)
    more = [int(not nonneg(size - 1)) for size in site.view.shape(0)[IMAGE:]]
    if any(more):
        steps = [m * s for m, s in zip(more, slide.strides, strict=True)]
        after = tuple(n + s for n, s in zip(slide.after, steps, strict=True))
        over = tuple(None if n is None else n + s for n, s in zip(slide.over, steps, strict=True))
        slide = replace(slide, after=after, over=over)
    found = {}
    if 0 in site.wanted:
        places = build.op(
            "Conv",
            [g, site.x(1)],
            strides=list(slide.strides),
            dilations=list(slide.dilations),
            pads=[*slide.before, *slide.after],
            group=slide.groups,
        )
        ends = [build.ints(*[0] * len(more)), build.sizes(x, slide.axes), build.ints(*slide.axes)]
        found[0] = build.op("Slice", [places, *ends]) if any(more) else places
    if 1 in site.wanted:
        pads = build.ints(*[0] * (2 * IMAGE + len(more)), *more)
        places = build.op("Pad", [x, pads]) if any(more) else x
        found[1] = _filters(site, slide, g, site.y(), places)
    if 2 in site.wanted:
        found[2] = _bias(site)
    return found


def spread(build: Backward, g: ir.Value, w: ir.Value, slide: Slide, image: ir.Value) -> ir.Value:
    """The sum of windows, each times the gradient of its place, in the size of an image.

    Args:
        build: Takes the nodes.
        g: Of each place.
        w: The window, per channels of `g` and of the image.
        slide: How it slides.
        image: A value of the source graph with the image's size.
    """
    over = [n for n in slide.over if n is not None]
    fits = len(over) == len(slide.over)
    # padding cuts, and more at the end adds what no window reaches: less than a stride
    after = [max(n, 0) for n in over] if fits else [0] * len(slide.strides)
    more = [max(-n, 0) for n in over] if fits else [s - 1 for s in slide.strides]
    before = list(slide.before) if fits else [0] * len(slide.strides)
    whole = build.op(
        "ConvTranspose",
        [g, w],
        strides=list(slide.strides),
        dilations=list(slide.dilations),
        pads=before + after,
        output_padding=more,
        group=slide.groups,
    )
    if fits:
        return whole
    first = build.ints(*slide.before)
    end = build.op("Add", [build.sizes(image, slide.axes), first])
    return build.op("Slice", [whole, first, end, build.ints(*slide.axes)])


def _filters(
    site: Site, slide: Slide, image: ir.Value, sized: ir.Value, places: ir.Value
) -> ir.Value:
    """The gradient of the filters: the image convolved with what there is at the places.

    Args:
        site: The node; its filters are operand 1.
        slide: How they slide over the image.
        image: What they slide over.
        sized: A value of the source graph with the image's size.
        places: What they meet at each place.
    """
    build, filters, axes = site.build, site.x(1), slide.axes
    turned = [1, 0, *axes]
    if slide.groups == 1:
        image = build.transpose(image, turned)
    else:  # every group is an image of its own: its channels go before, its number to the images
        sizes, channels = build.sizes(sized, axes), build.sizes(filters, [1])
        batch, groups = build.sizes(sized, [0]), build.ints(slide.groups)
        image = build.reshape(image, build.joined([batch, groups, channels, sizes]))
        image = build.transpose(image, [2, 1, 0, *(a + 1 for a in axes)])
        image = build.reshape(image, build.joined([channels, build.ints(-1), sizes]))
    after = [
        n if over is None else max(over, 0) for n, over in zip(slide.after, slide.over, strict=True)
    ]
    found = build.op(
        "Conv",
        [image, build.transpose(places, turned)],
        strides=list(slide.dilations),
        dilations=list(slide.strides),
        pads=[*slide.before, *after],
        group=slide.groups,
    )
    left = [s - 1 if n is None else -n for s, n in zip(slide.strides, slide.over, strict=True)]
    if any(n >= step for n, step in zip(left, slide.dilations, strict=True)):
        first = build.ints(*[0] * len(axes))
        found = build.op("Slice", [found, first, build.sizes(filters, axes), build.ints(*axes)])
    return build.transpose(found, turned)


def _bias(site: Site) -> ir.Value:
    axes = [d for d in range(site.view.rank(0)) if d != 1]
    return site.build.reduced(site.g, axes, keep=False)


def _back_slide(view: NodeView) -> Slide:
    """How the window of a transposed convolution slides over its result.

    Source: ONNX operator spec, ConvTranspose.
    """
    x, kernel = view.shape(0)[IMAGE:], view.shape(1)[IMAGE:]
    n = len(x)
    strides, dilations = (tuple(view.attr(a) or [1] * n) for a in ("strides", "dilations"))
    more = list(view.attr("output_padding") or [0] * n)
    pads = list(view.attr("pads") or [0] * 2 * n)
    mode, shape = view.attr("auto_pad", "NOTSET"), list(view.attr("output_shape") or [])
    if {len(a) for a in (kernel, strides, dilations, more, pads[n:], shape or x)} != {n}:
        raise NoRule(f"attributes that do not fit {n} spatial dimensions")
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        raise NoRule("an output_padding of a stride or more")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise NoRule(f"auto_pad {mode} is not known")
    if shape or mode.startswith("SAME"):
        for d, (size, k) in enumerate(zip(x, kernel, strict=True)):
            whole = (size - 1) * strides[d] + (k - 1) * dilations[d] + 1 + more[d]
            both = (whole - (shape[d] if shape else size * strides[d])).as_int()
            if both is None or both < 0 or (shape and mode == "VALID"):
                raise NoRule("padding by auto_pad or output_shape that is below 0 or not known")
            pads[d] = both // 2 if mode == "SAME_UPPER" else both - both // 2
            pads[n + d] = both - pads[d]
    if min(pads) < 0:
        raise NoRule("padding below 0")
    after = tuple(pads[n:])
    over = tuple(p - m for p, m in zip(after, more, strict=True))
    groups = int(view.attr("group", 1))
    return Slide(strides, dilations, tuple(pads[:n]), after, over, groups)
