"""Adjoints of sums of products: the result's labels exchanged for the operand's.

    y[b, s, n] = sum_k x[b, s, k] * w[k, n]
    dx[b, s, k] = sum_n g[b, s, n] * w[k, n]        dw[k, n] = sum_{b, s} x[b, s, k] * g[b, s, n]

A label is an axis of the tensor expression (`contract.py` writes the sums).
"""

import onnx_ir as ir

from pitc.ir.expr import Combine, Read, TensorExpr
from pitc.ir.graph import NoRule
from pitc.ir.index import ONE, ZERO
from pitc.passes.grad.contract import Factor, contracted, labelled
from pitc.passes.grad.maps import summed_like, summed_where_1
from pitc.passes.grad.moves import move
from pitc.passes.grad.site import Site, bare_axes


def product(site: Site) -> dict[int, ir.Value]:
    """The gradients of the factors and of a bias, by their places."""
    expr, view = site.expr, site.view
    if expr.combine is Combine.MOVE:  # an Einsum that only transposes
        return move(site)
    reads = {r.operand: r for r in expr.reads if not _is_bias(expr, r)}
    factors = {i: _factor(site, read) for i, read in reads.items()}
    axes = tuple(a if e != ONE else None for a, e in enumerate(expr.shape))
    found = {}
    for read in expr.reads:
        i = read.operand
        if i not in site.wanted:
            continue
        if _is_bias(expr, read):
            g = _times(site, site.g, float(view.attr("beta", 1.0)))
            found[i] = summed_like(site.build, g, expr, read, site.x(i))
            continue
        g = _times(site, site.g, float(view.attr("alpha", 1.0)))
        whole = labelled(site.build, g, axes, site.y())
        others = [f for k, f in factors.items() if k != i]
        found[i] = _gradient(site, read, whole, others)
    if missing := [i for i in site.wanted if i not in found]:
        raise NoRule(f"its input {missing[0]} has no derivative here")
    return found


def _is_bias(expr: TensorExpr, read: Read) -> bool:
    return expr.combine is Combine.BIASED_PRODUCT and read.operand > 1


def _times(site: Site, g: ir.Value, factor: float) -> ir.Value:
    return g if factor == 1.0 else site.build.op("Mul", [g, site.build.number(factor, site.dtype)])


def _axes(site: Site, read: Read) -> list[int | None]:
    """The axis of each dimension of a factor; where an extent may be 1 or not, the one that it
    broadcasts along.
    """
    axes = bare_axes(site.expr, read.index)
    for d, p in enumerate(read.index):
        if p is None:
            axes[d] = len(site.expr.shape) - len(axes) + d
            if min(site.view.rank(0), site.view.rank(1)) < 2 or site.view.attr("equation"):
                raise NoRule(f"dimension {d} of input {read.operand} may have the extent 1 or not")
        elif axes[d] is None and p != ZERO:
            raise NoRule(f"input {read.operand} is read at {p}")
    return axes


def _factor(site: Site, read: Read) -> Factor:
    """An operand as a factor, with all elements where it may broadcast."""
    x, build = site.x(read.operand), site.build
    axes = _axes(site, read)
    if None not in read.index:
        return labelled(build, x, axes, x)
    sizes = [
        build.sizes(site.y(), [axis]) if p is None and axis is not None else build.sizes(x, [d])
        for d, (p, axis) in enumerate(zip(read.index, axes, strict=True))
    ]
    whole = build.op("Expand", [x, build.joined(sizes)])
    return labelled(build, whole, axes, whole)


def _gradient(site: Site, read: Read, whole: Factor, others: list[Factor]) -> ir.Value:
    """The sum of products of the result's gradient and the other factors, as the operand lies."""
    build, x = site.build, site.x(read.operand)
    axes = _axes(site, read)
    wanted = tuple(a for a in axes if a is not None)
    known = {*whole.axes, *(a for f in others for a in f.axes)}
    out = tuple(a for a in wanted if a in known)
    found = whole
    for k, other in enumerate(others):
        later = {*out, *(a for f in others[k + 1 :] for a in f.axes)}
        kept = dict.fromkeys(a for a in (*found.axes, *other.axes) if a in later)
        found = contracted(build, found, other, tuple(kept) if others[k + 1 :] else out)
    g = found.value if others else contracted(build, whole, None, out).value
    # a dimension of extent 1 was dropped; an axis that only this operand has was summed over: each
    # place of it has the same gradient
    places = [k for k, a in enumerate(axes) if a is None or a not in known]
    g = build.unsqueeze(g, *places)
    if None in read.index:
        return summed_where_1(build, g, len(axes), x)
    return build.expand_like(g, x) if out != wanted else g
