"""Adjoints by scatters: each gradient is added to the zeros at the element that it is of.

    y = GatherElements(x, places)      ->   dx = ScatterElements(zeros, places, g, reduction="add")

Of any other movement the node itself is run on the numbers of the elements: that tells which
element each result is.

    y = ReverseSequence(x, lengths)   ->   places = ReverseSequence([[1, 2, 3], ..], lengths)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.ir.nodes import attribute
from pitc.ir.since import Since
from pitc.passes.grad.backward import INT64, Backward
from pitc.passes.grad.site import Site
from pitc.passes.rules.build import one_axis
from pitc.passes.rules.record import operator_of

END = np.iinfo(np.int64).max


def check_adds(build: Backward, why: str = "") -> None:
    """Refuse operator sets whose scatters do not add.

    Args:
        build: Takes the nodes.
        why: What asks for one.

    Raises:
        NoRule: This is one.
    """
    if build.opset < Since.SCATTERED_SUMS:
        text = f"{why}no scatter of operator set {build.opset} adds"
        raise NoRule(f"{text}; {int(Since.SCATTERED_SUMS)} has one")


def _added(
    site: Site, op: str, shape: ir.Value, places: ir.Value, g: ir.Value, **attributes: Any
) -> ir.Value:
    """Gradients added to zeros."""
    build = site.build
    check_adds(build)
    zeros = build.full(0, site.wide, shape)
    return site.narrowed(
        build.op(op, [zeros, places, site.widened(g)], reduction="add", **attributes)
    )


def added_slices(site: Site, shape: ir.Value, places: ir.Value, g: ir.Value, dims: int) -> ir.Value:
    """Gradients of slices, added where they were read.

    They are added as rows, element by element: where several are added at one place, ONNX Runtime's
    ScatterND loses some of them on more than one thread.

    Args:
        site: The node.
        shape: Of the sum.
        places: Places along its first dimension; of several, vectors along the last dimension.
        g: The gradients, whose first dimensions are those of the places.
        dims: How many dimensions the places are of.

    Returns:
        The sum, in the type of the node's result.

    Raises:
        NoRule: The operator set has no such scatter.
    """
    build = site.build
    places = build.cast(places, INT64)
    if dims > 1:
        places = _numbers_of(build, [_part(build, shape, d, d + 1) for d in range(dims)], places)
    places = build.reshape(places, build.ints(-1))
    size = _product(build, _part(build, shape, dims, END))
    rows = build.joined([build.op("Shape", [places]), size])
    found = _added(
        site,
        "ScatterElements",
        build.joined([_product(build, _part(build, shape, 0, dims)), size]),
        build.op("Tile", [build.unsqueeze(places, 1), build.joined([build.ints(1), size])]),
        build.reshape(g, rows),
        axis=0,
    )
    is_matrix = dims == 1 and site.view.rank(0) == 2
    return found if is_matrix else build.reshape(found, shape)


def _part(build: Backward, shape: ir.Value, begin: int, end: int) -> ir.Value:
    """Some sizes of a shape."""
    known = shape.const_value
    if known is not None:
        return build.constant(known.numpy()[begin:end])
    return build.op("Slice", [shape, build.ints(begin), build.ints(end)])


def _product(build: Backward, sizes: ir.Value) -> ir.Value:
    """The product of sizes, as a vector; of none it is 1."""
    known = sizes.const_value
    if known is not None:
        return build.constant(np.atleast_1d(known.numpy().prod(dtype=np.int64)))
    return build.op("ReduceProd", [sizes], keepdims=1)


def _numbers_of(build: Backward, sizes: Sequence[ir.Value], vectors: ir.Value) -> ir.Value:
    """Numbers of places that vectors name, those from the end by numbers below 0."""
    strides = [build.ints(1)]
    for size in reversed(sizes[1:]):
        strides.insert(0, build.arithmetic("Mul", strides[0], size))
    wrapped = build.op("Mod", [vectors, build.joined(sizes)])
    steps = build.op("Mul", [wrapped, build.joined(strides)])
    return build.op("ReduceSum", [steps, build.ints(-1)], keepdims=0)


def by_elements(site: Site) -> dict[int, ir.Value]:
    """Of GatherElements, and of the largest elements of lines: each result tells its place."""
    site.only(0)
    view = site.view
    axis = one_axis(view, view.rank(0), 0 if view.n_outputs == 1 else -1)
    places = site.x(1) if view.n_outputs == 1 else site.y(1)
    shape = site.build.shape(site.x())
    return {0: _added(site, "ScatterElements", shape, places, site.g, axis=axis)}


def on_a_line(site: Site, size: ir.Value, places: ir.Value, *, adds: bool) -> ir.Value:
    """The gradients of the first result on a line of zeros.

    Args:
        site: The node.
        size: How long the line is.
        places: One for each gradient.
        adds: Several may have the same place.

    Returns:
        The line.

    Raises:
        NoRule: The operator set has no such scatter.
    """
    build = site.build
    shape = build.reshape(size, build.ints(1))
    places, g = (build.reshape(v, build.ints(-1)) for v in (places, site.g))
    if adds:
        return _added(site, "ScatterElements", shape, places, g, axis=0)
    return build.op("ScatterElements", [build.full(0, site.dtype, shape), places, g], axis=0)


def by_numbers(
    site: Site,
    dtype: np.dtype,
    others: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
) -> ir.Value:
    """The gradient of operand 0 of a node that moves its elements: it tells itself where they went.

    Args:
        site: The node. Where its result is no element of operand 0, it is 0 if that is of numbers.
        dtype: A type that the node moves, for numbers of elements.
        others: The other operands.
        attributes: The attributes.

    Raises:
        NoRule: The operator set has no scatter that adds.
    """
    view, build, x = site.view, site.build, site.x()
    numbers, end = build.numbered(x)
    inputs = [build.cast(numbers, dtype), *others]
    moved = build.node(view.domain, view.op, inputs, attributes, ["places"])[0]
    found = on_a_line(site, end, build.cast(moved, INT64), adds=True)
    return build.reshape_like(build.op("Slice", [found, build.ints(1), build.ints(END)]), x)


def by_places(site: Site) -> dict[int, ir.Value]:
    """Of any node that moves elements of operand 0.

    Numbers of elements are exact in float64, which all such operators of ONNX Runtime move. Where
    the node has a number for what is beside the elements (Pad, Trilu), that is left out: it is 0.
    """
    site.only(0)
    node = site.view.node
    others, attributes = list(node.inputs[1:]), {k: attribute(node, k) for k in node.attributes}
    if operator_of(node).elsewhere is not None:
        others[1:2] = [None] * bool(others[2:])
        attributes.pop("value", None)
    return {0: by_numbers(site, np.dtype(np.float64), others, attributes)}


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
    none = build.zeros_like(site.x(), INT64)
    numbers, _ = build.numbered(updates)
    stayed = build.node("", view.op, [none, places, numbers], axis, ["stayed"])[0]
    zero = build.number(0, site.dtype)
    kept = build.op("Equal", [stayed, build.number(0, INT64)])
    mine = build.op("Equal", [build.op(look, [stayed, places], **axis), numbers])
    found = {
        0: build.op("Where", [kept, g, zero]),
        2: build.op("Where", [mine, taken, zero]),
    }
    return {i: v for i, v in found.items() if i in site.wanted}
