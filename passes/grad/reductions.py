"""Adjoints of reductions: the gradient of each result, spread over the elements it was made of.

sum      g                       max, min   g, shared by the elements that are equal to it
mean     g / count               product    g times the product of the other elements
others   g times the derivative in the record
"""

import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer
from pitc.ir.graph import NoRule
from pitc.ir.metadata import ONCE
from pitc.passes.grad.moves import move
from pitc.passes.grad.site import Site, bare_axes
from pitc.passes.grad.terms import TermWriter, mentions
from pitc.passes.rules.record import operator_of
from pitc.passes.rules.term import X


def reduced(site: Site) -> dict[int, ir.Value]:
    """The gradient of operand 0."""
    site.only(0)
    view = site.view
    if view.graph[view.out()].expr is None and view.op == "ReduceSum" and view.attr("keepdims", 1):
        # over dimensions that a run tells: they are 1 in the result
        return {0: site.build.expand_like(site.g, site.x())}
    x, expr, build = site.x(), site.expr, site.build
    if expr.combine is Combine.MOVE:  # over no axes
        return move(site)
    axes = bare_axes(expr, expr.reads[0].index)
    # a dimension of extent 1 has no axis, and is reduced whether it stays or not
    kept = len(expr.shape) == len(axes)
    rank = len(expr.shape)
    dims = [d for d, a in enumerate(axes) if a is not None and a >= rank]
    gone = [] if kept else _dropped(site, axes)
    g, y = (build.unsqueeze(v, *gone) for v in (site.g, site.y()))
    terms = operator_of(site.view).derivative
    match expr.reducer:
        case Reducer.SUM if terms is None:
            return {0: build.expand_like(g, x)}
        case Reducer.MEAN:
            g = _divided(site, g, build.count(x, dims, site.wide)) if dims else g
            return {0: build.expand_like(g, x)}
        case Reducer.MAX | Reducer.MIN | Reducer.POOLED:
            return {0: _shared(site, g, y, dims)}
        case Reducer.PROD:
            return {0: _others(site, g, dims)}
    if terms is None:
        raise NoRule("it has no derivative here")
    writer = TermWriter(build, site.dtype, site.x, lambda: y)
    (term,) = terms(site.view)
    found = writer.times(g, term)
    if found is None:
        return {}
    return {0: found if mentions(term, X) else build.expand_like(found, x)}


def _dropped(site: Site, axes: list[int | None]) -> list[int]:
    """The dimensions of operand 0 that the result does not have."""
    rank, shape = len(site.expr.shape), site.view.shape(0)
    kept = [d for d, a in enumerate(axes) if a is not None and a < rank]
    missing = rank - len(kept)
    if missing == 0:
        return [d for d in range(len(shape)) if d not in kept]
    given = site.view.int_list(1, "axes")
    if given is None:
        return list(range(len(shape)))
    return sorted(d % len(shape) for d in given)


def _divided(site: Site, g: ir.Value, count: ir.Value) -> ir.Value:
    """Divided by a count in the wide type."""
    return site.narrowed(site.build.op("Div", [site.widened(g), count]))


def _shared(site: Site, g: ir.Value, y: ir.Value, dims: list[int]) -> ir.Value:
    """Shared by the largest elements along those dimensions."""
    build, x = site.build, site.x()
    hits = build.op("Equal", [x, y])
    count = build.reduced(build.cast(hits, site.wide), dims, keep=True)
    return build.op("Mul", [build.cast(hits, site.dtype), _divided(site, g, count)])


def _others(site: Site, g: ir.Value, dims: list[int]) -> ir.Value:
    """Times the product of the other elements of the line, of which some may be 0.

    2 3 0   ->   0 0 6        2 0 0   ->   0 0 0        2 3 4   ->   12 8 6
    """
    build, x = site.build, site.x()
    zero, one = (build.number(n, site.dtype) for n in (0, 1))
    is_zero = build.op("Equal", [x, zero])
    zeros = build.reduced(build.cast(is_zero, site.dtype), dims, keep=True)
    filled = build.op("Where", [is_zero, one, x])
    whole = build.op("Mul", [g, build.reduced(filled, dims, keep=True, op="ReduceProd")])
    alone = build.op("And", [is_zero, build.op("Equal", [zeros, one])])
    none = build.op("Equal", [zeros, zero])
    found = build.op("Where", [none, build.op("Div", [whole, filled]), zero])
    result = build.op("Where", [alone, whole, found])
    if (node := result.producer()) is not None:
        node.metadata_props[ONCE] = "it is the gradient of a product, of which elements may be 0"
    return result
