"""Adjoints of movements: the gradient of each result goes back to the element that it was.

The common maps have an inverse that is a movement, too:

    Reshape -> Reshape      Transpose -> Transpose      Expand -> ReduceSum      Concat -> Split
    Slice, Split -> Pad or Concat with zeros            Gather -> sums of slices on zeros

For any other map the node itself tells which element each result is (`scatters.py`).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import onnx_ir as ir

from pitc.ir.expr import TensorExpr
from pitc.ir.index import ONE, Poly
from pitc.passes.grad.scatters import added_slices, by_places
from pitc.passes.grad.site import Site, bare_axes
from pitc.passes.grad.slices import Cut, among_zeros, cut_of, one_place
from pitc.passes.rules.build import one_axis
from pitc.passes.rules.record import PackRule, operator_of


def move(site: Site) -> dict[int, ir.Value]:
    """The gradients of the operands whose elements the results are."""
    packs = operator_of(site.view).packs
    if packs is PackRule.RESHAPED:
        site.only(0)
        return {0: site.build.reshape_like(site.g, site.x())}
    expr = site.view.graph[site.view.out()].expr
    if expr is None:
        return by_places(site)
    read = {r.operand for r in expr.reads}  # an operand without elements is not read
    site = replace(site, wanted=tuple(i for i in site.wanted if i in read))
    if site.view.n_outputs > 1:
        return _parts(site)
    if packs is PackRule.LOOK_UP:
        site.only(0)
        return {0: _look_up(site)}
    if packs is PackRule.LOOK_UP_VECTORS and not site.view.attr("batch_dims", 0):
        site.only(0)
        dims = site.view.shape(1)[-1].as_int()
        if dims is not None:
            return {0: added_slices(site, site.build.shape(site.x()), site.x(1), site.g, dims)}
    if packs is PackRule.ALONG_AXIS and all(r.within for r in expr.reads):
        return _pieces(site)
    if len(expr.reads) == 1 and None not in expr.reads[0].index:
        site.only(0)
        index = expr.reads[0].index
        axes = bare_axes(expr, index)
        if all(map(partial(_is_whole, expr), site.view.shape(0), axes)):
            return {0: _permuted(site, axes)}
        cuts = [cut_of(site, d) for d in range(len(index))]
        known = [cut for cut in cuts if cut is not None]
        if packs is PackRule.ALONG_AXIS and len(known) == len(cuts):
            return {0: among_zeros(site, known)}
    return by_places(site)


def _is_whole(expr: TensorExpr, extent: Poly, axis: int | None) -> bool:
    """True for a dimension of which no place is left out: it has one, or is a whole axis."""
    return extent == ONE if axis is None else extent == expr.extents[axis]


def _parts(site: Site) -> dict[int, ir.Value]:
    """Of Split: the gradients of its parts, 0 for those that have none, joined."""
    site.only(0)
    build = site.build
    parts = [
        build.zeros_like(site.y(k), site.dtype) if g is None else g
        for k, g in enumerate(site.gradients)
    ]
    axis = one_axis(site.view, site.view.rank(0), 0)
    return {0: build.op("Concat", parts, axis=axis)}


def _pieces(site: Site) -> dict[int, ir.Value]:
    """Of Concat: the gradient of its result, split as the operands lie."""
    view, build = site.view, site.build
    axis = one_axis(view, len(site.expr.shape), 1)
    places = [i for i in range(view.n_inputs) if view.has(i)]
    sizes = build.joined([build.sizes(site.x(i), [axis]) for i in places])
    stems = [f"split.{k}" for k in range(len(places))]
    pieces = build.node("", "Split", [site.g, sizes], {"axis": axis}, stems)
    return {i: g for i, g in zip(places, pieces, strict=True) if i in site.wanted}


def _permuted(site: Site, axes: list[int | None]) -> ir.Value:
    """Of dimensions in another order, repeated, or of extent 1."""
    build, shape = site.build, site.expr.shape
    unused = [a for a in range(len(shape)) if a not in axes]
    g = build.reduced(site.g, [a for a in unused if shape[a] != ONE], keep=True)
    g = build.along("Squeeze", g, unused) if unused else g
    kept = [a for a in range(len(shape)) if a in axes]
    g = build.transpose(g, [kept.index(a) for a in axes if a is not None])
    return build.unsqueeze(g, *(d for d, a in enumerate(axes) if a is None))


def _look_up(site: Site) -> ir.Value:
    """Of Gather: zeros, to which the gradients of the results are added where they were read."""
    view, build, x, places = site.view, site.build, site.x(), site.x(1)
    rank, width = view.rank(0), view.rank(1)
    axis = one_axis(view, rank, 0)
    at = site.expr.reads[0].index[axis]
    if at is not None and not at.digits():
        cut = Cut(1, at.as_int(), (view.shape(0)[axis] - at - 1).as_int())
        if not (cut.before is None and cut.after is None) and width < 2:
            return one_place(site, axis, cut)
    rest = [d for d in range(rank) if d != axis]
    order = [axis, *rest]
    moved = [*range(axis, axis + width), *range(axis), *range(axis + width, rank + width - 1)]
    g = build.transpose(site.g, moved)
    found = added_slices(site, build.sizes(x, order), places, g, 1)
    return build.transpose(found, [order.index(d) for d in range(rank)])


def cumulated(site: Site) -> dict[int, ir.Value]:
    """Of CumSum: the sum of the gradients behind each place."""
    site.only(0)
    view = site.view
    flags: dict[str, Any] = {
        "exclusive": int(view.attr("exclusive", 0)),
        "reverse": 1 - int(view.attr("reverse", 0)),
    }
    return {0: site.build.op("CumSum", [site.g, site.x(1)], **flags)}
