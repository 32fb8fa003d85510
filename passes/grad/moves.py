"""Adjoints of movements: the gradient of each result goes back to the element that it was.

The common maps have an inverse that is a movement, too:

    Reshape -> Reshape      Transpose -> Transpose      Expand -> ReduceSum      Concat -> Split
    Slice, Split -> Pad or Concat with zeros            Gather -> zeros, and a ScatterND that adds

For any other map the node itself is run on the numbers of the elements: that tells which element
each result is, so a scatter that adds brings its gradient back.

    y = ReverseSequence(x, lengths)   ->   places = ReverseSequence([[1, 2, 3], ..], lengths)
                                           dx = ScatterElements(zeros, places, g, reduction="add")
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NoRule
from pitc.ir.index import ONE, ZERO, Poly, dim_index
from pitc.ir.nodes import attribute
from pitc.passes.grad.site import Backward, Site, bare_axes
from pitc.passes.rules.build import one_axis
from pitc.passes.rules.record import PackRule, operator_of

SCATTERS = 16  # the first operator set whose scatters add


def move(site: Site) -> dict[int, ir.Value]:
    """The gradients of the operands whose elements the results are."""
    packs = operator_of(site.view).packs
    if packs is PackRule.RESHAPED:
        site.only(0)
        return {0: site.build.reshape_like(site.g, site.x())}
    expr = site.view.graph[site.view.out()].expr
    if expr is None:
        return by_places(site)
    read = {r.operand for r in expr.reads}  # what has no elements is not
    site = replace(site, wanted=tuple(i for i in site.wanted if i in read))
    if site.view.n_outputs > 1:
        return _parts(site)
    if packs is PackRule.LOOK_UP:
        site.only(0)
        return {0: _look_up(site)}
    if packs is PackRule.LOOK_UP_VECTORS and not site.view.attr("batch_dims", 0):
        site.only(0)
        return {0: added(site, site.build.zeros_like(site.x(), site.dtype), site.x(1), site.g)}
    if packs is PackRule.ALONG_AXIS and all(r.within for r in expr.reads):
        return _pieces(site)
    if len(expr.reads) == 1 and None not in expr.reads[0].index:
        site.only(0)
        index = expr.reads[0].index
        axes = bare_axes(expr, index)
        if all(map(partial(_is_whole, expr), site.view.shape(0), axes)):
            return {0: _permuted(site, axes)}
        lines = [_line(site, d) for d in range(len(index))]
        known = [line for line in lines if line is not None]
        if packs is PackRule.ALONG_AXIS and len(known) == len(lines):
            return {0: _among_zeros(site, known)}
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


@dataclass(frozen=True, slots=True)
class Line:
    """How a slice goes along a dimension: every `step`th place, `before` or `after` is a number."""

    step: int
    before: int | None
    after: int | None


def _line(site: Site, d: int) -> Line | None:
    """How a result of a slice lies along dimension d; None where that is not known."""
    p, extent = site.expr.reads[0].index[d], site.expr.shape[d]
    size = site.view.shape(0)[d]
    if p is None:
        return None
    first = p.by_digits().get((), ZERO)
    steps = [1] if extent == ONE else [c.as_int() for k, c in p.by_digits().items() if k]
    step = steps[0] if len(steps) == 1 else None
    if step is None or step < 1 or p != dim_index(d, extent) * step + first:
        return None
    before, after = first.as_int(), (size - first - extent * step).as_int()
    return None if before is None and after is None else Line(step, before, after)


def _among_zeros(site: Site, lines: Sequence[Line]) -> ir.Value:
    """Of a slice: the gradient with zeros where nothing was taken.

    x[1::2] of 6 places   ->   g0 0, g1 0, g2 0 behind one 0, without the last 0
    """
    build, g, x, rank = site.build, site.g, site.x(), len(lines)
    sizes = build.sizes(site.y(), range(rank))
    for d, line in enumerate(lines):
        if line.step > 1:
            wide = build.unsqueeze(g, d + 1)
            pads = [0] * (rank + 1) * 2
            pads[rank + 1 + d + 1] = line.step - 1
            wide = build.op("Pad", [wide, build.ints(*pads)])
            steps = [line.step if k == d else 1 for k in range(rank)]
            sizes = _product(build, sizes, steps)
            g = build.reshape(wide, sizes)
    rest = _difference(build, build.sizes(x, range(rank)), sizes)
    known = [n for line in lines for n in (line.before, line.after)]
    if known == [0] * len(known):
        return g
    before = _completed(
        build, rest, [line.before for line in lines], [line.after for line in lines]
    )
    after = _difference(build, rest, before)
    return build.op("Pad", [g, build.joined([before, after])])


def _product(build: Backward, sizes: ir.Value, factors: Sequence[int]) -> ir.Value:
    if sizes.const_value is not None:
        return build.constant(sizes.const_value.numpy() * np.asarray(factors, np.int64))
    return build.op("Mul", [sizes, build.ints(*factors)])


def _difference(build: Backward, x: ir.Value, y: ir.Value) -> ir.Value:
    if x.const_value is not None and y.const_value is not None:
        return build.constant(x.const_value.numpy() - y.const_value.numpy())
    return build.op("Sub", [x, y])


def _completed(
    build: Backward, rest: ir.Value, before: Sequence[int | None], after: Sequence[int | None]
) -> ir.Value:
    """The zeros before each line, which are what remains where only those behind it are known."""
    if None not in before:
        return build.ints(*(n or 0 for n in before))
    known = build.constant(np.asarray([n is not None for n in before]))
    remain = _difference(build, rest, build.ints(*(n or 0 for n in after)))
    return build.op("Where", [known, build.ints(*(n or 0 for n in before)), remain])


def _look_up(site: Site) -> ir.Value:
    """Of Gather: zeros, to which the gradients of the results are added where they were read."""
    view, build, x, places = site.view, site.build, site.x(), site.x(1)
    rank, width = view.rank(0), view.rank(1)
    axis = one_axis(view, rank, 0)
    at = site.expr.reads[0].index[axis]
    if at is not None and not at.digits():
        g = build.unsqueeze(site.g, axis) if width == 0 else site.g
        size = view.shape(0)[axis]
        before, after = at.as_int(), (size - at - 1).as_int()
        if (before is not None or after is not None) and width < 2:
            return _one_place(site, g, axis, before, after)
    rest = [d for d in range(rank) if d != axis]
    order = [axis, *rest]
    moved = [*range(axis, axis + width), *range(axis), *range(axis + width, rank + width - 1)]
    g = build.transpose(site.g, moved)
    zeros = build.op("Expand", [build.number(0, site.dtype), build.sizes(x, order)])
    found = added(site, zeros, build.unsqueeze(places, width), g)
    return build.transpose(found, [order.index(d) for d in range(rank)])


def _one_place(
    site: Site, g: ir.Value, axis: int, before: int | None, after: int | None
) -> ir.Value:
    """One place along a dimension, put back among zeros."""
    build, rank = site.build, site.view.rank(0)
    rest = _difference(build, build.sizes(site.x(), [axis]), build.ints(1))
    first = (
        build.ints(before)
        if before is not None
        else _difference(build, rest, build.ints(after or 0))
    )
    last = _difference(build, rest, first)
    front, back = build.ints(*[0] * axis), build.ints(*[0] * (rank - axis - 1))
    return build.op("Pad", [g, build.joined([front, first, back, front, last, back])])


def added(site: Site, zeros: ir.Value, places: ir.Value, g: ir.Value) -> ir.Value:
    """Gradients of slices added to zeros at index vectors.

    Raises:
        NoRule: The operator set has no such scatter.
    """
    _check_scatters(site)
    if places.name and site.view.graph[places.name].dtype != np.int64:
        places = site.build.cast(places, np.dtype(np.int64))
    return site.build.op("ScatterND", [zeros, places, g], reduction="add")


def _check_scatters(site: Site) -> None:
    if site.build.opset < SCATTERS:
        raise NoRule(f"no scatter of operator set {site.build.opset} adds; {SCATTERS} has one")


def by_places(site: Site) -> dict[int, ir.Value]:
    """Of any node that moves elements of operand 0: it tells itself where they went.

    Numbers of elements are exact in float64, which all such operators of ONNX Runtime move. 0 is
    what stands for a number beside the elements (Pad, Trilu).
    """
    site.only(0)
    _check_scatters(site)
    view, build, x = site.view, site.build, site.x()
    size = build.op("Size", [x])
    one = build.constant(np.int64(1))
    end = build.op("Add", [size, one])
    numbers = build.reshape_like(build.op("Range", [one, end, one]), x)
    inputs = list(view.node.inputs)
    inputs[0] = build.cast(numbers, np.dtype(np.float64))
    attributes = {k: attribute(view.node, k) for k in view.node.attributes}
    if operator_of(view).elsewhere is not None:
        inputs, attributes = inputs[:2] + [None] * bool(inputs[3:]) + inputs[3:], attributes
        attributes.pop("value", None)
    moved = build.node(view.domain, view.op, inputs, attributes, ["places"])[0]
    places = build.cast(build.reshape(moved, build.ints(-1)), np.dtype(np.int64))
    zeros = build.op("Expand", [build.number(0, site.dtype), build.reshape(end, build.ints(1))])
    g = build.reshape(site.g, build.ints(-1))
    found = build.op("ScatterElements", [zeros, places, g], axis=0, reduction="add")
    found = build.op("Slice", [found, build.ints(1), build.ints((1 << 63) - 1)])
    return {0: build.reshape_like(found, x)}


def by_elements(site: Site) -> dict[int, ir.Value]:
    """Of GatherElements, and of the largest elements of lines: each result tells its place."""
    site.only(0)
    _check_scatters(site)
    view, build = site.view, site.build
    axis = one_axis(view, view.rank(0), 0 if view.n_outputs == 1 else -1)
    places = site.x(1) if view.n_outputs == 1 else site.y(1)
    zeros = build.zeros_like(site.x(), site.dtype)
    found = build.op("ScatterElements", [zeros, places, site.g], axis=axis, reduction="add")
    return {0: found}


def cumulated(site: Site) -> dict[int, ir.Value]:
    """Of CumSum: the sum of the gradients behind each place."""
    site.only(0)
    view = site.view
    flags: dict[str, Any] = {
        "exclusive": int(view.attr("exclusive", 0)),
        "reverse": 1 - int(view.attr("reverse", 0)),
    }
    return {0: site.build.op("CumSum", [site.g, site.x(1)], **flags)}


def scattered(site: Site, look: str) -> dict[int, ir.Value]:
    """Of scatters that overwrite or add: gradients go to the operand, or to the update, that a
    result is. Of several updates of one place the node itself tells which one stayed.

    Args:
        site: The node.
        look: The operator that reads where it writes.
    """
    site.only(0, 2)
    view, build, g = site.view, site.build, site.g
    mode = str(view.attr("reduction", "none"))
    places, updates = site.x(1), site.x(2)
    axis: dict[str, Any] = {}
    if look == "GatherElements":
        axis["axis"] = one_axis(view, view.rank(0), 0)
    taken = build.op(look, [g, places], **axis)
    if mode == "add":
        return {i: v for i, v in ((0, g), (2, taken)) if i in site.wanted}
    if mode != "none":
        raise NoRule(f"reduction '{mode}' has no derivative here")
    none = build.op("Expand", [build.constant(np.int64(0)), build.shape(site.x())])
    one, size = build.constant(np.int64(1)), build.op("Size", [updates])
    numbers = build.op("Range", [one, build.op("Add", [size, one]), one])
    numbers = build.reshape_like(numbers, updates)
    stayed = build.node("", view.op, [none, places, numbers], axis, ["stayed"])[0]
    zero = build.number(0, site.dtype)
    kept = build.op("Equal", [stayed, build.constant(np.int64(0))])
    mine = build.op("Equal", [build.op(look, [stayed, places], **axis), numbers])
    found = {
        0: build.op("Where", [kept, g, zero]),
        2: build.op("Where", [mine, taken, zero]),
    }
    return {i: v for i, v in found.items() if i in site.wanted}
