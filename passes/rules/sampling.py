"""Image sampling: places along the spatial dimensions are computed; images and channels are kept.

GridSample  y[n, c, p] reads x[n, c, ?] at the place that grid[n, p] names
RoiAlign    y[r, c, p] reads x[?, c, ?] in the box roi[r]
"""

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import dim_index, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, positional
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import rule


@rule("GridSample", assumes=(Assumes.FITTING_SIZES,), has=Operator(finite=always, items=Items.ANY))
def grid_sample(view: NodeView) -> list[TensorExpr]:
    """Each point of the grid samples every channel of its image."""
    x, grid = view.shape(0), view.shape(1)
    if len(x) != len(grid) or len(x) < 3:
        raise NoRule(f"ranks {len(x)} and {len(grid)} of image and grid")
    out = (*x[:2], *grid[1:-1])
    reads = (
        Read(0, (*bare(x[:2]), *(None for _ in x[2:])), computed=True),
        Read(1, (dim_index(0, x[0]), *bare(grid[1:-1], 2), dim_index(len(out), grid[-1]))),
    )
    return [positional(out, reads, grid[-1:], [])]


@rule("AffineGrid", assumes=(Assumes.FITTING_SIZES, Assumes.KNOWN_ARGUMENTS))
def affine_grid(view: NodeView) -> list[TensorExpr]:
    """Grid points of each image: its matrix times their own position."""
    theta = view.shape(0)
    size = tuple(view.ints(1).reshape(-1))
    if len(theta) != 3 or len(size) not in (4, 5):
        raise NoRule(f"matrices of rank {len(theta)} for an image of rank {len(size)}")
    out = (size[0], *size[2:], poly(len(size) - 2))
    read = Read(0, (dim_index(0, size[0]), *bare(theta[1:], len(out))))
    return [positional(out, [read], theta[1:], range(1, len(out)))]


@rule(
    "RoiAlign",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=always, items=Items.ANY),
)
def roi_align(view: NodeView) -> list[TensorExpr]:
    """Every box samples every channel of the image whose number is given beside it."""
    x, boxes = view.shape(0), view.shape(1)
    if len(x) != 4 or len(boxes) != 2:
        raise NoRule(f"ranks {len(x)} and {len(boxes)} of image and boxes")
    sizes = (int(view.attr(name, 1)) for name in ("output_height", "output_width"))
    out = (boxes[0], x[1], *map(poly, sizes))
    box = dim_index(0, boxes[0])
    reads = (
        Read(0, (None, dim_index(1, x[1]), None, None), computed=True),
        Read(1, (box, dim_index(len(out), boxes[1]))),
        Read(2, (box,)),
    )
    return [positional(out, reads, boxes[1:], [2, 3])]
