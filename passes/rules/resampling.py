"""Upsample and Resize: images and channels are kept, places along the other dimensions are not.

nearest, by a whole factor k    y[n, c, i] = x[n, c, i // k]
otherwise                       y[n, c, i] = some function of the line x[n, c, :]
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from pitc.ir.expr import Combine, Read, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, digit, dim_index, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import dimension, move
from pitc.passes.rules.record import Adjoint, Items, Operator, always
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


@rule(
    "Upsample",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY),
)
def upsample(view: NodeView) -> list[TensorExpr]:
    """Scales as input or, in older operator sets, as attribute; places are rounded down."""
    scales = _constant_scales(view, 1) if view.has(1) else view.attr("scales") or []
    lines = _all_scaled(view, scales)
    return [_resampled(view.shape(0), lines, view.attr("mode", "nearest") == "nearest")]


@rule(
    "Resize",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.RESAMPLED),
)
def resize(view: NodeView) -> list[TensorExpr]:
    """Scales or sizes as constant inputs, for all dimensions or for those in `axes`."""
    nearest = view.attr("mode", "nearest") == "nearest"
    if view.n_inputs == 2:  # of operator set 10: scales, and places are rounded down
        lines = _all_scaled(view, _constant_scales(view, 1))
        return [_resampled(view.shape(0), lines, nearest)]
    coordinates = view.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):
        raise NoRule(f"coordinates {coordinates}")
    if view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NoRule("sizes that keep the aspect ratio")
    shape = view.shape(0)
    axes = [dimension(a, len(shape)) for a in view.attr("axes") or range(len(shape))]
    rounding = view.attr("nearest_mode", "round_prefer_floor")
    sizes = view.int_list(3)
    if sizes:
        found = [_sized(shape[d], n) for d, n in zip(axes, sizes, strict=False)]
    else:
        scales = _constant_scales(view, 2)
        found = [_scaled(view, shape[d], s) for d, s in zip(axes, scales, strict=False)]
    if len(found) < len(axes):
        raise NoRule(f"sizes of {len(found)} of {len(axes)} dimensions")
    named = dict(zip(axes, found, strict=True))
    lines = [named.get(d, (e, 1)) for d, e in enumerate(shape)]
    return [_resampled(shape, lines, nearest and (coordinates, rounding) in WHOLE_FACTORS)]


def _constant_scales(view: NodeView, i: int) -> list[float]:
    x = view.array(i) if view.has(i) else None
    if x is None or not x.size:
        raise NoRule("scales that are not constant")
    return [float(s) for s in x.reshape(-1)]


Line = tuple[Poly, int | None]  # output extent, and the whole factor by which it grows


def _all_scaled(view: NodeView, scales: Sequence[float]) -> list[Line]:
    shape = view.shape(0)
    if len(scales) != len(shape):
        raise NoRule(f"{len(scales)} scales for rank {len(shape)}")
    return [_scaled(view, e, s) for e, s in zip(shape, scales, strict=True)]


def _scaled(view: NodeView, extent: Poly, scale: float) -> Line:
    """A line that grows by a scale: to as many places as the product of two floats is at least."""
    if not isfinite(scale):
        raise NoRule(f"a scale of {scale}")
    if scale >= 1 and scale == int(scale):
        return extent * int(scale), int(scale)
    n = extent.as_int()
    return view.fresh() if n is None else poly(int(np.float32(n) * np.float32(scale))), None


def _sized(extent: Poly, size: int) -> Line:
    """A line that grows to a size."""
    factor = poly(size).divide(extent)
    return poly(size), None if factor is None else factor.as_int()


def _resampled(shape: Shape, lines: Sequence[Line], nearest: bool) -> TensorExpr:
    """A move where every line grows by a whole factor, else a function of lines.

    Args:
        shape: The operand's extents.
        lines: Output extents and factors.
        nearest: Place i of a k-fold larger line comes from place i // k.
    """
    index: list[Poly | None] = []
    for d, (e, (n, factor)) in enumerate(zip(shape, lines, strict=True)):
        index.append(digit(dim_index(d, n), poly(factor), e) if factor else None)
    target = tuple(n for n, _ in lines)
    if nearest and None not in index:
        return move(target, tuple(index))
    planes = min(PLANES, len(shape) - 1)
    kept = [d < planes and factor == 1 for d, (_, factor) in enumerate(lines)]
    read = Read(0, tuple(p if keep else None for p, keep in zip(index, kept, strict=True)))
    return TensorExpr(target, (read,), combine=Combine.OPAQUE)
