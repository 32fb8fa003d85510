"""The padding contract for dynamic quantisation: tokens that do not exist have no part in a scale.

    q, s, z = DynamicQuantizeLinear(x)   ->   DynamicQuantizeLinear(Where(mask, x, 0))

ONNX takes the extremes of all elements and 0, those of padding too. Which elements are of tokens is
found by following the axes of the mask, and of outputs that are of tokens (`padding.py`). The
rewrite says in the graph what the contract means, so that facts and packed forms need to know
nothing of it.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from pitc.ir.build import NodeBuilder
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit
from pitc.ir.mask import PaddingMask
from pitc.passes.exprs.coordinates import follow
from pitc.passes.exprs.derive import derive
from pitc.passes.masks import padding_masks
from pitc.passes.normalise import normalise
from pitc.passes.padding import token_outputs
from pitc.passes.rules.record import operator_of
from pitc.passes.spread import spread

NOTE = (
    "dynamic scales are computed from real tokens only, at {nodes} nodes from {first} on; ONNX "
    "Runtime's include padding, so its results differ from these by rounding to 8 bits"
)


def scale_by_live_tokens(model: ir.Model, padding: str | None) -> list[str]:
    """Let every dynamic scale of tokens be one of those that exist.

    Args:
        model: A model as imported; it is changed in place. Bodies of loops and branches stay.
        padding: The padding masks (`masks.py`), or None.

    Returns:
        The nodes that were changed, by name.

    Raises:
        UsageError: A padding mask is no value that can be one.
    """
    nodes = [n for n in model.graph if operator_of(n).extremes_of is not None]
    masks = padding_masks(model, padding)
    if not nodes or not masks:
        return []
    twin = model.clone()
    normalise(twin)
    graph = Graph(twin)
    derive(graph)
    changed = [name for mask in masks for name in _scaled(model, nodes, graph, mask)]
    if changed:
        model.graph.sort()
    return list(dict.fromkeys(changed))


def _scaled(
    model: ir.Model, nodes: Sequence[ir.Node], graph: Graph, mask: PaddingMask
) -> list[str]:
    """Let scales of one mask's tokens be of those that exist; the names of their nodes."""
    values = (v for node in model.graph for v in node.outputs)
    value_of_mask = next((v for v in (*model.graph.inputs, *values) if v.name == mask.name), None)
    shape = graph[mask.name].shape
    if shape is None or value_of_mask is None or len(shape) != 2:
        return []
    start = tuple(Digit(d, ONE, e) for d, e in enumerate(shape) if e != ONE)
    places = token_outputs(graph, [mask])
    found = follow(graph, {name: [start] for name in (mask.name, *places)}) if start else {}
    made, changed = dict[str, ir.Value](), list[str]()
    build = _Builder(model, value_of_mask, live=mask.live)
    before = _in_front(value_of_mask)  # these cannot read it
    for node in nodes:
        if node in before:
            continue
        place = operator_of(node).extremes_of or 0
        value = node.inputs[place]
        name = "" if value is None else value.name or ""
        extents = graph[name].shape if name in found else None
        if value is None or extents is None or graph[name].dtype is None:
            continue
        dtype = graph.dtype(name)
        for coords in found[name] if name not in made else ():
            flags = build.flags(shape, extents, coords)
            if flags is not None:
                made[name] = build.chosen(flags, made.get(name, value), dtype)
        if name in made:
            node.replace_input_with(place, made[name])
            changed.append(node.name or node.outputs[0].name or "")
    return changed


def _in_front(value: ir.Value) -> set[ir.Node]:
    """The nodes that a value is computed by."""
    found: set[ir.Node] = set()
    todo = [value.producer()]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += node.predecessors()
    return found


def scale_notes(nodes: Sequence[str]) -> list[str]:
    """What to tell of the nodes that were changed."""
    return [NOTE.format(nodes=len(nodes), first=nodes[0])] if nodes else []


class _Builder(NodeBuilder):
    """Appends nodes that read the mask."""

    def __init__(self, model: ir.Model, mask: ir.Value, *, live: bool) -> None:
        super().__init__(model.graph, "live_scale")
        self.mask, self.live = mask, live

    def flags(self, mask: Shape, shape: Shape, coords: Coords) -> ir.Value | None:
        """True for the elements of tokens that exist, broadcast to a value; None where the mask's
        axes are no whole dimensions of it, nor one dimension together.

        Args:
            mask: Extents of the mask.
            shape: Extents of the value.
            coords: The mask's axes longer than 1, as digits of the value's dimensions.
        """
        live = self.mask
        if live.dtype != ir.DataType.BOOL:
            live = self.op("Cast", [live], to=ir.DataType.BOOL)
        if not self.live:
            live = self.op("Not", [live])
        return spread(self, live, mask, shape, coords)

    def chosen(self, flags: ir.Value, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """A value with 0 at tokens that do not exist."""
        return self.op("Where", [flags, x, self.constant(np.zeros((), dtype))])
