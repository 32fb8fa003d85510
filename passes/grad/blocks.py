"""The adjoint of Col2Im, which adds blocks to an image: what each block of the gradient holds.

That is a convolution with one filter for each place of a block, 1 there and 0 elsewhere.
"""

from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.passes.grad.site import Site
from pitc.passes.grad.windows import IMAGE


def folded(site: Site, g: ir.Value, sized: ir.Value) -> ir.Value:
    """Every channel as an image of its own.

    Args:
        site: The node.
        g: Images of channels.
        sized: A value of the source graph with their size.
    """
    build = site.build
    planes = build.op("ReduceProd", [build.sizes(sized, [0, 1])], keepdims=1)
    rank = len(build.extents(sized) or ())
    sizes = build.sizes(sized, range(IMAGE, rank))
    return build.reshape(g, build.joined([planes, build.ints(1), sizes]))


def columns(site: Site) -> dict[int, ir.Value]:
    """Of Col2Im: the blocks of the gradient, one filter for each place of a block."""
    site.only(0)
    view, build = site.view, site.build
    block = view.int_list(2) or []
    size, n = prod(block), len(block)
    if not block:
        raise NoRule("a block without dimensions")
    filters = np.eye(size, dtype=site.dtype).reshape(size, 1, *block)
    found = build.op(
        "Conv",
        [folded(site, site.g, site.y()), build.constant(filters)],
        strides=list(view.attr("strides") or [1] * n),
        dilations=list(view.attr("dilations") or [1] * n),
        pads=list(view.attr("pads") or [0] * 2 * n),
    )
    return {0: build.reshape_like(found, site.x())}
