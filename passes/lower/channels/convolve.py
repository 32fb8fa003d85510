"""Nodes of a convolution on live channels.

    live = some image: channel is live          rows = places of live channels
    y = If(few are live) { scatter(conv(x[:, rows], w[kept][:, rows])) } { conv(x, w) }

Several, one behind the other, have one If: what is kept of the one's filters are the rows of the
next one, so nothing is put back or gathered between them.

Channel 0 always counts as live: so no operand is ever empty, and what is computed for it is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH, CHOOSE, DOMAIN, GROUP, NAME, numbers_in
from pitc.ir.build import take_over
from pitc.ir.graph import Graph
from pitc.ir.metadata import SOURCE
from pitc.ir.nodes import attribute, node_name
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.channels.choice import choose_channels
from pitc.passes.lower.channels.flags import channel_flags
from pitc.passes.lower.packed import Packed
from pitc.passes.regions.channels import CHANNELS, ChannelSkip, channel_axis
from pitc.passes.regions.form import Skip
from pitc.passes.regions.matrix import is_float32

EPSILON = 1e-5  # of a BatchNormalization that names none

Chain = Sequence[ChannelSkip]


def skip_channels(packed: Packed, skips: Mapping[ir.Node, Skip]) -> None:
    """Let convolutions choose, each time they run, between their live channels and all.

    The choices become If nodes when branches are closed (`pitc.passes.control.branches`).

    Args:
        packed: Where they stand.
        skips: What nodes leave out, in the order of the graph.
    """
    graph, chains = packed.graph, dict[ir.Value, list[ChannelSkip]]()
    for skip in (s for s in skips.values() if isinstance(s, ChannelSkip)):
        chains[skip.end] = [*(chains.pop(skip.image) if skip.joined else ()), skip]
    if not chains:
        return
    first = 1 + max((n for node in graph.model.graph for n in numbers_in(node)), default=-1)
    for node in graph.nodes:
        node.metadata_props.setdefault(BRANCH, "")
    for number, chain in enumerate(chains.values(), first):
        _skip(graph, packed.build, chain, str(number))


def _skip(graph: Graph, build: Builder, chain: Chain, group: str) -> None:
    ends = [(chain[0].image, chain[0].zero), *((skip.end, skip.idle) for skip in chain)]
    extents = [chain[0].channels, *(skip.filters for skip in chain)]
    flags, places = channel_flags(graph, build, ends, extents)
    few = choose_channels(
        build,
        [node_name(skip.steps[0]) for skip in chain],
        list(zip(extents, places, strict=True)),
        [(skip.weight, skip.budget) for skip in chain],
        flags,
    )
    inner = _Branch(build)
    live = [place and inner.live(flags, place) for place in places]
    result = inner.cut(chain[0].image, live[0], CHANNELS)
    for skip, channels, filters in zip(chain, live, live[1:], strict=False):
        result = _again(graph, inner, skip, result, channels, filters)
    end = chain[-1].end
    if live[-1] is not None:
        result = inner.spread(result, live[-1], len(graph[end.name or ""].shape or ()))
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), end.shape
    # ONNX Runtime has its fastest layout for constants of the branch itself, not for those outside
    for node in (skip.steps[0] for skip in chain):
        for place, x in enumerate(node.inputs[1:], 1):
            if x is not None:
                node.replace_input_with(place, inner.op("Max", [x]))
    _choose(build, chain, few, result, group)


def _again(
    graph: Graph,
    inner: "_Branch",
    skip: ChannelSkip,
    image: ir.Value,
    channels: "_Live | None",
    filters: "_Live | None",
) -> ir.Value:
    """The convolution and its steps on live channels, of which there is an image."""
    node, *steps = skip.steps
    operands, old = node.inputs[1:], node.outputs[0]
    if steps and _is_norm(graph, steps[0]):
        norm = steps.pop(0)
        rank = len(graph[old.name or ""].shape or ())
        operands, old = inner.normed(norm, operands, rank), norm.outputs[0]
    weight, *bias = (x and inner.cut(x, filters, 0) for x in operands)
    assert weight is not None
    result = inner.again(node, [image, inner.cut(weight, channels, CHANNELS), *bias])
    for step in steps:
        others = [
            result if x is old else x and inner.cut(x, filters, channel_axis(graph, step, x))
            for x in step.inputs
        ]
        result, old = inner.again(step, others), step.outputs[0]
    return result


def _is_norm(graph: Graph, node: ir.Node) -> bool:
    """True for a BatchNormalization by constants."""
    if (node.domain, node.op_type) != ("", "BatchNormalization"):
        return False
    parts = [x for x in node.inputs[1:] if x is not None]
    return all(graph.is_constant(x.name or "") and is_float32(graph, x) for x in parts)


@dataclass(frozen=True, slots=True)
class _Live:
    """Live channels at run time.

    Args:
        flags: f32 [channels], not 0 for live ones.
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

    def live(self, alive: ir.Value, place: slice) -> _Live:
        """The live channels at a place; the first one always is, so that there are some."""
        first = self.build.constant((np.arange(place.stop - place.start) == 0).astype(np.float32))
        ends = (self.build.constant(np.asarray([n], np.int64)) for n in (place.start, place.stop))
        flags = self.op("Max", [self.op("Slice", [alive, *ends]), first])
        line = self.build.constant(np.asarray([-1], np.int64))
        return _Live(flags, self.op("Reshape", [self.op("NonZero", [flags]), line]))

    def cut(self, x: ir.Value, kept: _Live | None, axis: int | None) -> ir.Value:
        """The live part along an axis; the value itself where nothing is cut off."""
        if kept is None or axis is None or axis < 0:
            return x
        return self.op("Gather", [x, kept.rows], axis=axis)

    def normed(
        self, norm: ir.Node, operands: Sequence[ir.Value | None], rank: int
    ) -> list[ir.Value | None]:
        """Weights and bias of a convolution with the norm behind it; ONNX Runtime computes them
        once, as all of them are constant.
        """
        weight, bias = operands[0], operands[1] if len(operands) > 1 else None
        scale, shift, mean, variance = norm.inputs[1:]
        least = np.asarray(attribute(norm, "epsilon", EPSILON), np.float32)
        spread = self.op("Sqrt", [self.op("Add", [variance, self.build.constant(least)])])
        factor = self.op("Div", [scale, spread])
        line = self.build.constant(np.asarray([-1] + [1] * (rank - 1), np.int64))
        weight = self.op("Mul", [weight, self.op("Reshape", [factor, line])])
        centre = mean if bias is None else self.op("Sub", [mean, bias])
        return [weight, self.op("Sub", [shift, self.op("Mul", [centre, factor])])]

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """The same step on other operands."""
        stem, name = f"{node.outputs[0].name}.live", node_name(node)
        label = self.build.label(name, "live channels")
        attributes = dict(node.attributes)
        (out,) = self.build.node(node.domain, node.op_type, inputs, attributes, [stem], label)
        made = out.producer()
        assert made is not None
        made.metadata_props[SOURCE] = name
        return out

    def spread(self, x: ir.Value, kept: _Live, rank: int) -> ir.Value:
        """The live channels at their places, zeros at the others."""
        pads = np.zeros(2 * rank, np.int64)
        pads[rank + CHANNELS] = 1  # behind the last channel, where -1 finds it
        # by bool: an integer has no place for numbers between 0 and 1, nor for NaN
        flags = self.op("Cast", [kept.flags], to=ir.DataType.BOOL)
        flags = self.op("Cast", [flags], to=ir.DataType.INT64)
        zero, one = (self.build.constant(np.asarray(n, np.int64)) for n in (0, 1))
        number = self.op("CumSum", [flags, zero])
        places = self.op("Sub", [self.op("Mul", [number, flags]), one])
        return self.op(
            "Gather", [self.op("Pad", [x, self.build.constant(pads)]), places], axis=CHANNELS
        )


def _choose(build: Builder, chain: Chain, few: ir.Value, result: ir.Value, group: str) -> None:
    """Put the choice between the result and the old one in its place."""
    last = chain[-1]
    end, name = last.end, last.end.name or ""
    here = last.steps[-1].metadata_props[BRANCH]
    (chosen,) = build.node(DOMAIN, CHOOSE, [few, result, result], {}, [f"{name}.channels"])
    choice = chosen.producer()
    assert choice is not None
    choice.metadata_props.update({BRANCH: here, GROUP: group, NAME: choice.name or ""})
    for step in (step for skip in chain for step in skip.steps):
        step.metadata_props.pop(BRANCH, None)  # its only reader is the choice, on one side
    take_over(end, chosen)
    end.name = build.unique(f"{name}.whole")
    choice.replace_input_with(2, end)
    build.rebind(name, chosen)
