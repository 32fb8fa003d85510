"""Nodes of a convolution on live channels.

    live = some image: channel is live          rows = places of live channels
    y = If(few are live) { scatter(conv(x[:, rows], w[kept][:, rows])) } { conv(x, w) }

Channel 0 always counts as live: so no operand is ever empty, and what is computed for it is right.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH, CHOOSE, DOMAIN, GROUP, NAME, numbers_in
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, dim_index
from pitc.ir.region import Region, Test, describe
from pitc.passes.control.graft import take_over
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import can_compute, live_points
from pitc.passes.regions.domain import Domain

CHANNELS = 1  # the dimension of images and results


@dataclass(frozen=True, slots=True)
class ChannelSkip:
    """A convolution that runs on its live channels.

    Args:
        steps: The convolution, and steps behind it that each are the only reader of the one before
            and treat every channel by itself.
        zero: Regions of the image, over images and channels, in which it is 0.
        idle: The same of the last step, where it is 0, or where nobody reads it.
        unread: The idle regions are of the latter kind.
        most: Live channels, filters, or pairs of them, up to which the others are left out.
    """

    steps: tuple[ir.Node, ...]
    zero: tuple[Region, ...]
    idle: tuple[Region, ...]
    unread: bool
    most: int = 0

    @property
    def end(self) -> ir.Value:
        """What the last step gives."""
        return self.steps[-1].outputs[0]

    def sources(self) -> set[str]:
        """Names of the values that the tests look at."""
        return {t.src for r in (*self.zero, *self.idle) for t in r if t.src}

    def __str__(self) -> str:
        end = f"'{self.end.name}' is {'unread' if self.unread else '0'}"
        said = (("operand 0 is 0", self.zero), (end, self.idle))
        return "; ".join(f"{x} where {' or '.join(map(describe, rs))}" for x, rs in said if rs)


def skip_channels(graph: Graph, build: Builder, skips: Iterable[ChannelSkip]) -> None:
    """Let convolutions choose, each time they run, between their live channels and all.

    The choices become If nodes when branches are closed (`pitc.passes.control.branches`).

    Args:
        graph: The analysed graph; its model is changed.
        build: Where nodes go.
        skips: The convolutions.
    """
    todo = list(skips)
    if not todo:
        return
    first = 1 + max((n for node in graph.model.graph for n in numbers_in(node)), default=-1)
    for node in graph.nodes:
        node.metadata_props.setdefault(BRANCH, "")
    for number, skip in enumerate(todo, first):
        _skip(graph, build, skip, str(number))


def _skip(graph: Graph, build: Builder, skip: ChannelSkip, group: str) -> None:
    node, end = skip.steps[0], skip.end
    image, weight = node.inputs[0], node.inputs[1]
    assert image is not None and weight is not None
    zero = _alive(graph, build, image.name or "", skip.zero) if skip.zero else None
    idle = _alive(graph, build, end.name or "", skip.idle) if skip.idle else None
    alive = [x for x in (zero, idle) if x is not None]
    counts = [build.op("Size", [build.op("NonZero", [x])]) for x in alive]
    limit = build.constant(np.asarray(skip.most + 1, np.int64))
    few = build.op("Less", [reduce(lambda a, b: build.op("Mul", [a, b]), counts), limit])

    inner = _Branch(build)
    channels = None if zero is None else inner.live(zero, _extent(graph, image))
    filters = None if idle is None else inner.live(idle, _extent(graph, end))
    inputs = [image, *(inner.cut(x, filters, 0) for x in node.inputs[1:])]
    inputs[:2] = [inner.cut(x, channels, CHANNELS) for x in inputs[:2]]
    result = inner.again(node, inputs)
    for before, step in zip(skip.steps, skip.steps[1:], strict=False):
        old = before.outputs[0]
        shape = graph.shapes[old.name or ""] or ()
        result = inner.again(
            step,
            [
                result
                if x is old
                else x and inner.cut(x, filters, channel_axis(graph, step, x, shape))
                for x in step.inputs
            ],
        )
    if filters is not None:
        result = inner.spread(result, filters, len(graph.shapes[end.name or ""] or ()))
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), end.shape
    # ONNX Runtime has its fastest layout for constants of the branch itself, not for those outside
    for place, x in enumerate(node.inputs[1:], 1):
        if x is not None:
            node.replace_input_with(place, inner.op("Max", [x]))
    _choose(build, skip, few, result, group)


def _extent(graph: Graph, value: ir.Value) -> int:
    shape = graph.shapes[value.name or ""]
    return 0 if shape is None else shape[CHANNELS].as_int() or 0


@dataclass(frozen=True, slots=True)
class _Live:
    """Live channels at run time.

    Args:
        flags: int64 [channels], 1 for live ones.
        rows: Their numbers, int64.
    """

    flags: ir.Value
    rows: ir.Value


@dataclass(frozen=True, slots=True)
class _Branch:
    """Emits nodes of one branch. Two branches never share one: it would run whether or not they do.

    Args:
        build: Where nodes go.
    """

    build: Builder

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """An ordinary node with one output."""
        return self.build.node("", op_type, inputs, attributes, [op_type.lower()])[0]

    def live(self, alive: ir.Value, channels: int) -> _Live:
        """The live channels; the first one always is, so that there are some."""
        flags = self.op("Cast", [alive], to=ir.DataType.BOOL)
        flags = self.op("Cast", [flags], to=ir.DataType.INT64)
        first = (np.arange(channels) == 0).astype(np.int64)
        flags = self.op("Max", [flags, self.build.constant(first)])
        line = self.build.constant(np.asarray([-1], np.int64))
        return _Live(flags, self.op("Reshape", [self.op("NonZero", [flags]), line]))

    def cut(self, x: ir.Value | None, kept: _Live | None, axis: int | None) -> ir.Value | None:
        """The live part along an axis; the value itself where nothing is cut off."""
        if x is None or kept is None or axis is None or axis < 0:
            return x
        return self.op("Gather", [x, kept.rows], axis=axis)

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """The same step on other operands."""
        stem = f"{node.outputs[0].name}.live"
        return self.build.node(node.domain, node.op_type, inputs, dict(node.attributes), [stem])[0]

    def spread(self, x: ir.Value, kept: _Live, rank: int) -> ir.Value:
        """The live channels at their places, zeros at the others."""
        pads = np.zeros(2 * rank, np.int64)
        pads[rank + CHANNELS] = 1  # behind the last channel, where -1 finds it
        zero, one = (self.build.constant(np.asarray(n, np.int64)) for n in (0, 1))
        number = self.op("CumSum", [kept.flags, zero])
        places = self.op("Sub", [self.op("Mul", [number, kept.flags]), one])
        return self.op(
            "Gather", [self.op("Pad", [x, self.build.constant(pads)]), places], axis=CHANNELS
        )


def _choose(build: Builder, skip: ChannelSkip, few: ir.Value, result: ir.Value, group: str) -> None:
    """Put the choice between the result and the old one in its place."""
    end, name = skip.end, skip.end.name or ""
    here = skip.steps[-1].metadata_props[BRANCH]
    (chosen,) = build.node(DOMAIN, CHOOSE, [few, result, result], {}, [f"{name}.channels"])
    choice = chosen.producer()
    assert choice is not None
    choice.metadata_props.update({BRANCH: here, GROUP: group, NAME: choice.name or ""})
    for step in skip.steps:
        step.metadata_props.pop(BRANCH, None)  # its only reader is the choice, on one side
    take_over(end, chosen)
    end.name = build.unique(f"{name}.whole")
    choice.replace_input_with(2, end)
    build.rebind(name, chosen)


def channel_axis(graph: Graph, node: ir.Node, operand: ir.Value, shape: Shape) -> int | None:
    """The dimension of a step's other operand that goes along channels.

    Args:
        graph: The analysed graph.
        node: The step: BatchNormalization or an elementwise operator.
        operand: The operand.
        shape: Extents of the value that the step is applied to.

    Returns:
        -1 where it is the same for all channels; None where it tells places apart.
    """
    own = graph.shapes.get(operand.name or "")
    if own is None or len(own) > len(shape):
        return None
    if (node.domain, node.op_type) == ("", "BatchNormalization"):
        return 0
    first = len(shape) - len(own)
    if any(e != ONE for d, e in enumerate(own, first) if d > CHANNELS):
        return None
    axis = CHANNELS - first
    return axis if axis >= 0 and own[axis] != ONE else -1


def _alive(graph: Graph, build: Builder, name: str, regions: Sequence[Region]) -> ir.Value:
    """Not 0 where a channel lives in some image, outside of every region: f32 [channels]."""
    shape = graph.shapes[name] or ()
    found = (_outside(graph, build, shape, r) for r in regions)
    alive = reduce(lambda a, b: build.op("Min", [a, b]), found)
    return alive


def _outside(graph: Graph, build: Builder, shape: Shape, r: Region) -> ir.Value:
    """The same for one region; a scalar where none of its tests tells channels apart."""
    if is_plain(graph, [r], shape):
        found = [_fails(graph, build, t, shape) for t in r]
        return reduce(lambda a, b: build.op("Max", [a, b]), found)
    live = live_points(build, graph, Domain(shape[:2], frozenset(r)))
    return build.reduce("ReduceMax", build.op("Cast", [live], to=ir.DataType.FLOAT), [0])


def _fails(graph: Graph, build: Builder, t: Test, shape: Shape) -> ir.Value:
    """Not 0 where a test does not hold in some image; NaN is not 0."""
    value = build.value(t.src)
    if t.yes or graph.dtypes.get(t.src) != np.float32:
        value = build.op("Cast", [value], to=ir.DataType.BOOL)
        value = build.op("Not", [value]) if t.yes else value
        value = build.op("Cast", [value], to=ir.DataType.FLOAT)
    channel = dim_index(CHANNELS, shape[CHANNELS])
    axes = [d for d, p in enumerate(t.idx) if p != channel]
    return build.reduce("ReduceL1", value, axes) if axes else value


def is_plain(graph: Graph, regions: Iterable[Region], shape: Shape) -> bool:
    """True for tests for zeros of values that have images and channels as their dimensions."""
    return all(_is_plain(graph, t, shape) for r in regions for t in r)


def _is_plain(graph: Graph, t: Test, shape: Shape) -> bool:
    own = graph.shapes.get(t.src)
    if t.pred != "nz" or own is None:
        return False
    bare = [(dim_index(d, e), e) for d, e in enumerate(shape[:2]) if e != ONE]
    places = [(p, e) for p, e in zip(t.idx, own, strict=True) if (p, e) != (ZERO, ONE)]
    return all(p in bare for p in places) and len(set(places)) == len(places)


def can_find(graph: Graph, r: Region, name: str) -> bool:
    """True where live channels of a value can be computed from a region's tests."""
    shape = graph.shapes.get(name) or ()
    if len(shape) < 3 or shape[CHANNELS].as_int() is None:
        return False
    if is_plain(graph, [r], shape):
        return True
    return can_compute(graph, Domain(shape[:2], frozenset(r)))
