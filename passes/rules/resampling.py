"""Upsample and Resize: images and channels are kept, places along the other dimensions are not.

nearest, by a whole factor k    y[n, c, i] = x[n, c, i // k]
otherwise                       y[n, c, i] = some function of the line x[n, c, :]
"""

from collections.abc import Sequence

from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, digit, dim_index, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import dimension, move
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import rule

PLANES = 2  # leading dimensions (image, channel) that no mode mixes when they keep their size

# (coordinates, rounding) under which place i of a k-fold larger line comes from place i // k: with
# half pixels, i = q * k + r lies at q + (r + 0.5) / k - 0.5, less than half a place from q
WHOLE_FACTORS = frozenset(
    {
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    }
)
UPSAMPLE_SCALES_ARE_INPUT = 9
RESIZE_HAS_COORDINATES = 11  # before, scales only, and places are rounded down


@rule(
    "Upsample",
    assumes=(Assumes.KNOWN_ARGUMENTS, Assumes.STATED_SIZES),
    has=Operator(finite=always, items=Items.ANY),
)
def upsample(view: NodeView) -> list[TensorExpr]:
    """Scales as input or, in older operator sets, as attribute; places are rounded down."""
    if view.opset >= UPSAMPLE_SCALES_ARE_INPUT:
        scales = _constant_scales(view, 1)
    else:
        scales = [float(s) for s in view.attr("scales") or []]
    return [_resampled(view, _scaled(view, scales), view.attr("mode", "nearest") == "nearest")]


@rule(
    "Resize",
    assumes=(Assumes.KNOWN_ARGUMENTS, Assumes.STATED_SIZES),
    has=Operator(finite=always, items=Items.ANY),
)
def resize(view: NodeView) -> list[TensorExpr]:
    """Scales or sizes as constant inputs, for all dimensions or for those in `axes`."""
    nearest = view.attr("mode", "nearest") == "nearest"
    if view.opset < RESIZE_HAS_COORDINATES:
        return [_resampled(view, _scaled(view, _constant_scales(view, 1)), nearest)]
    coordinates = view.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):
        raise NoRule(f"coordinates {coordinates}")
    if view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NoRule("sizes that keep the aspect ratio")
    shape = view.shape(0)
    axes = [dimension(a, len(shape)) for a in view.attr("axes") or range(len(shape))]
    sizes = view.int_list(3)
    if sizes:
        target = list(shape)
        for d, n in zip(axes, sizes, strict=len(axes) == len(sizes)):
            target[d] = poly(n)
    else:
        given = dict(zip(axes, _constant_scales(view, 2), strict=False))
        target = _scaled(view, [given.get(d, 1.0) for d in range(len(shape))])
    rounding = view.attr("nearest_mode", "round_prefer_floor")
    whole = nearest and (coordinates, rounding) in WHOLE_FACTORS
    return [_resampled(view, target, whole)]


def _constant_scales(view: NodeView, i: int) -> list[float]:
    x = view.array(i) if view.has(i) else None
    if x is None or not x.size:
        raise NoRule("scales that are not constant")
    return [float(s) for s in x.reshape(-1)]


def _scaled(view: NodeView, scales: Sequence[float]) -> list[Poly]:
    """Output extents."""
    shape = view.shape(0)
    if len(scales) != len(shape):
        raise NoRule(f"{len(scales)} scales for rank {len(shape)}")
    return [
        e * int(s) if s >= 1 and s == int(s) else view.inferred(0, d)
        for d, (e, s) in enumerate(zip(shape, scales, strict=True))
    ]


def _resampled(view: NodeView, target: Sequence[Poly], nearest: bool) -> TensorExpr:
    """A move where every line grows by a whole factor, else a function of lines.

    Args:
        view: The node.
        target: Output extents.
        nearest: Place i of a k-fold larger line comes from place i // k.
    """
    shape = view.shape(0)
    index: list[Poly | None] = []
    for d, (e, n) in enumerate(zip(shape, target, strict=True)):
        factor = n.divide(e)
        if e == n:
            index.append(dim_index(d, e))
        elif factor is None or factor.as_int() is None:
            index.append(None)
        else:
            index.append(digit(dim_index(d, n), factor, e))
    if nearest and None not in index:
        return move(tuple(target), tuple(index))
    planes = min(PLANES, len(shape) - 1)
    read = Read(
        0, tuple(p if d < planes and shape[d] == target[d] else None for d, p in enumerate(index))
    )
    return TensorExpr(tuple(target), (read,), combine=Combine.OPAQUE)
