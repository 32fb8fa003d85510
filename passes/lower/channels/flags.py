"""Which channels live: nodes that evaluate the tests of regions, when a model runs."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import dim_index
from pitc.ir.region import Region, Test
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.channels import CHANNELS, is_plain
from pitc.passes.regions.domain import Domain

End = tuple[ir.Value, Sequence[Region]]


def channel_flags(
    graph: Graph, build: Builder, ends: Sequence[End], extents: Sequence[int]
) -> tuple[ir.Value, list[slice | None]]:
    """Channels of several values in one vector, and the place of each; None: all of them live.

    Tests that are alike are made in one piece: each node takes time, however few its numbers are.

    Args:
        graph: The analysed graph.
        build: Where nodes go.
        ends: The values, each with regions over images and channels where it does not live.
        extents: How many channels each has.

    Returns:
        f32 [all channels], above 0 where a channel lives in some image.
    """
    alike: dict[object, list[int]] = {}
    for k, (x, regions) in enumerate(ends):
        if regions:
            alike.setdefault(_likeness(graph, x, regions) or k, []).append(k)
    parts, at = list[ir.Value](), 0
    places: list[slice | None] = [None] * len(ends)
    for members in alike.values():
        parts.append(_alive(graph, build, [ends[k] for k in members]))
        for k in members:
            places[k] = slice(at, at := at + extents[k])
    flags = parts[0] if len(parts) == 1 else build.op("Concat", parts, axis=0)
    return flags, places


def _alive(graph: Graph, build: Builder, ends: Sequence[End]) -> ir.Value:
    """Above 0 where a channel lives in some image, outside of every region: f32 [channels].

    Several values are one behind the other; they have a region each, and a test that is alike.
    """
    (value, regions), *others = ends
    shape = graph[value.name or ""].shape or ()
    if others:
        return _fails(graph, build, [t for _, (r,) in ends for t in r], shape)
    found = (_outside(graph, build, shape, r) for r in regions)
    return reduce(lambda a, b: build.op("Min", [a, b]), found)


def _outside(graph: Graph, build: Builder, shape: Shape, r: Region) -> ir.Value:
    """The same for one region; a scalar where none of its tests tells channels apart."""
    if is_plain(graph, [r], shape):
        found = [_fails(graph, build, [t], shape) for t in r]
        return reduce(lambda a, b: build.op("Max", [a, b]), found)
    live = live_points(build, graph, Domain(shape[:2], frozenset(r)))
    return build.reduce("ReduceMax", build.op("Cast", [live], to=ir.DataType.FLOAT), [0])


def _fails(graph: Graph, build: Builder, tests: Sequence[Test], shape: Shape) -> ir.Value:
    """Above 0, or NaN, where a test does not hold in some image; else 0.

    Several tests are one behind the other, and alike but for what they look at.
    """
    values = [build.value(t.src) for t in tests]
    first = tests[0]
    channel = [d for d, p in enumerate(first.idx) if p == dim_index(CHANNELS, shape[CHANNELS])]
    value = values[0] if not values[1:] else build.op("Concat", values, axis=channel[0])
    if first.yes or graph[first.src].dtype != np.float32:
        value = build.op("Cast", [value], to=ir.DataType.BOOL)
        value = build.op("Not", [value]) if first.yes else value
        value = build.op("Cast", [value], to=ir.DataType.FLOAT)
    axes = [d for d in range(len(first.idx)) if d not in channel]
    return build.reduce("ReduceL1", value, axes) if axes else build.op("Abs", [value])


def _likeness(graph: Graph, value: ir.Value, regions: Sequence[Region]) -> object:
    """Equal for values whose live channels one node finds for all; None: it is not known how."""
    shape = graph[value.name or ""].shape or ()
    first, *others = [t for r in regions for t in r]
    if others or not is_plain(graph, regions, shape):
        return None
    channel = shape and dim_index(CHANNELS, shape[CHANNELS])
    own = zip(first.idx, graph[first.src].shape or (), strict=True)
    extents = tuple(None if p == channel else e for p, e in own)
    return first.yes, graph[first.src].dtype, extents
