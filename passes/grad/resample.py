"""Adjoint of Resize, which is linear and goes dimension by dimension.

nearest, by whole factors k   y[i] = x[i // k]       dx[j] = sum of g[j * k + r] over r
nearest                       the places of the elements, which the node moves itself
linear, cubic                 y = x @ M              dx = g @ M^T along every dimension

M is what the same operator makes of an identity matrix, so its weights are the node's own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import NoRule
from pitc.ir.nodes import attribute
from pitc.passes.grad.scatters import by_numbers
from pitc.passes.grad.site import Site
from pitc.passes.rules.build import dimension

SCALES, SIZES = 2, 3  # the operands
INT32 = np.dtype(np.int32)


def resized(site: Site) -> dict[int, ir.Value]:
    """The gradient of operand 0."""
    site.only(0)
    view = site.view
    if view.attr("mode", "nearest") == "nearest":
        factors = _factors(site)
        return {0: _moved(site) if factors is None else _summed(site, factors)}
    if view.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise NoRule("coordinates tf_crop_and_resize")
    if view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NoRule("sizes that keep the aspect ratio")
    return {0: _weighted(site)}


def _factors(site: Site) -> list[int] | None:
    """By how much each dimension grows, where the result repeats elements; None elsewhere."""
    expr = site.view.graph[site.view.out()].expr
    if expr is None or expr.combine is not Combine.MOVE:
        return None
    pairs = zip(expr.shape, site.view.shape(0), strict=True)
    found = [None if (f := large.divide(small)) is None else f.as_int() for large, small in pairs]
    known = [f for f in found if f is not None]
    return known if len(known) == len(found) else None


def _summed(site: Site, factors: Sequence[int]) -> ir.Value:
    """The sum over what an element was repeated to."""
    build, sizes, axes = site.build, list[ir.Value](), list[int]()
    for d, factor in enumerate(factors):
        sizes.append(build.sizes(site.x(), [d]))
        if factor != 1:
            axes.append(len(sizes))
            sizes.append(build.ints(factor))
    if not axes:
        return site.g
    return build.reduced(build.reshape(site.g, build.joined(sizes)), axes, keep=False)


def _moved(site: Site) -> ir.Value:
    """By the places of elements, in int32, the largest type that ONNX Runtime resizes.

    0 is what stands beside the image, where there is no extrapolation value.
    """
    others = site.view.node.inputs[1:]
    return by_numbers(site, INT32, others, _attributes(site, "extrapolation_value"))


def _attributes(site: Site, *without: str) -> dict[str, Any]:
    node = site.view.node
    return {k: attribute(node, k) for k in node.attributes if k not in without}


def _weighted(site: Site) -> ir.Value:
    """Times the transposed matrix of each dimension; half floats in single ones, as weights are."""
    view, build, g = site.view, site.build, site.widened(site.g)
    rank = view.rank(0)
    given = view.attr("axes") or range(rank)
    for k, axis in enumerate(given):
        d = dimension(axis, rank)
        matrix = _matrix(site, k, d)
        if matrix is not None and d == rank - 2:
            g = build.op("MatMul", [matrix, g])
        elif matrix is not None:
            order = list(range(rank))
            order[d], order[-1] = order[-1], order[d]
            turned = build.transpose(matrix, [1, 0])
            g = build.op("MatMul", [build.transpose(g, order), turned])
            g = build.transpose(g, order)
    return site.narrowed(g)


def _matrix(site: Site, k: int, d: int) -> ir.Value | None:
    """What the node does to dimension d, of which number k tells the size; None for nothing."""
    view, build = site.view, site.build
    size = build.sizes(site.x(), [d])
    target: list[ir.Value | None]
    if _has_sizes(site):
        sizes = view.ints(SIZES).reshape(-1)
        if sizes[k] == view.shape(0)[d]:
            return None
        number = sizes[k].as_int()
        wanted = build.ints(number) if number is not None else _picked(site, k)
        target = [None, None, build.joined([size, wanted])]
    else:
        scales = view.array(SCALES) if view.has(SCALES) else None
        if scales is None or not scales.size:
            raise NoRule("scales that are not constant")
        scale = float(scales.reshape(-1)[k])
        if scale == 1:
            return None
        target = [None, build.constant(np.asarray([1, scale], np.float32))]
    zeros = build.op("ConstantOfShape", [build.joined([size, size])])
    unit = build.op("EyeLike", [zeros], dtype=int(ir.DataType.from_numpy(site.wide)))
    return build.op("Resize", [unit, *target], **_attributes(site, "axes"))


def _has_sizes(site: Site) -> bool:
    view = site.view
    if not view.has(SIZES):
        return False
    known = view.array(SIZES)
    return known is None or known.size > 0


def _picked(site: Site, k: int) -> ir.Value:
    return site.build.op("Gather", [site.x(SIZES), site.build.ints(k)], axis=0)
