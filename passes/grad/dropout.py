"""The adjoint of Dropout in training."""

import numpy as np
import onnx_ir as ir

from pitc.passes.grad.site import Site


def dropout(site: Site) -> dict[int, ir.Value]:
    """Of Dropout in training: what the node kept, by its second result, scaled as it does."""
    site.only(0)
    view, build, g = site.view, site.build, site.g
    if view.n_outputs < 2:
        view.node.resize_outputs(2)
    one = build.number(1, site.dtype)
    ratio = site.x(1) if view.has(1) else build.number(0.5, np.dtype(np.float32))
    scale = build.op("Div", [one, build.op("Sub", [one, _as(site, ratio)])])
    if view.has(2) and view.graph.splat(view.name(2)) is None:
        scale = build.op("Where", [site.x(2), scale, one])
    elif not view.has(2) or not view.graph.splat(view.name(2)):
        return {0: g}
    kept = site.y(1)
    return {0: build.op("Where", [kept, build.op("Mul", [g, scale]), build.number(0, site.dtype)])}


def _as(site: Site, x: ir.Value) -> ir.Value:
    return x if x.dtype == ir.DataType.from_numpy(site.dtype) else site.build.cast(x, site.dtype)
