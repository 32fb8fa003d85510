"""One trip of a loop backwards: what Loop and Scan have in common.

s', y = f(s, x, w)   ->   gs, gx and gw + that of w, from gs', gy and gw
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Graph, NoRule
from pitc.ir.nodes import attribute
from pitc.passes.grad.inner import Inner, known_type
from pitc.passes.grad.reach import reached_from
from pitc.passes.grad.signatures import Signature, Slicing
from pitc.passes.grad.site import Site, Wrt


@dataclass(frozen=True, slots=True)
class Trip:
    """A trip of the backward way.

    Args:
        inner: Its nodes.
        signature: What the forward body takes and gives.
        sums: What the values that it carries are the gradients of: states by the places of the
            loop's operands, then what it captures.
        taken: Those values as the trip takes them.
        given: The same as it gives them.
        written: What stands for the gradient of each slice that was written, the gradient of all of
            them, and how they lie in it.
        slices: The gradients of slices that were read, by the loop's operands.
    """

    inner: Inner
    signature: Signature
    sums: tuple[Wrt, ...]
    taken: tuple[ir.Value, ...]
    given: tuple[ir.Value, ...]
    written: tuple[tuple[ir.Value, ir.Value, Slicing], ...]
    slices: dict[int, ir.Value]

    def used(self) -> list[int]:
        """Places of what the forward body takes that the trip, pruned, reads."""
        return [p for p, x in enumerate(self.inner.inputs) if x.uses()]

    def start(self) -> list[ir.Value]:
        """What it carries before the first trip: gradients of the last states, and 0."""
        site, found = self.inner.site, []
        for place, taken in zip(self.sums, self.taken, strict=True):
            if isinstance(place, int):
                k = place - self.signature.before
                g = site.gradients[k]
                found.append(_zeros(site, site.y(k), taken) if g is None else g)
            else:
                found.append(_zeros(site, site.outer(place), taken))
        return found

    def asked(self, results: Collection[ir.Value]) -> dict[Wrt, ir.Value]:
        """The gradients of what is asked for, of those of all that is carried."""
        site = self.inner.site
        pairs = zip(self.sums, results, strict=False)
        return {p: g for p, g in pairs if p in site.wanted or p in site.captured}


def _zeros(site: Site, x: ir.Value, like: ir.Value) -> ir.Value:
    assert like.dtype is not None
    return site.build.zeros_like(x, np.dtype(like.dtype.numpy()))


def backwards(inner: Inner, signature: Signature) -> Trip:
    """Add the backward way to a copy of a body.

    Args:
        inner: The copy.
        signature: What the body takes and gives.

    Raises:
        NoRule: The type of a value is unknown, or results and node do not fit.
    """
    site, graph, build = inner.site, inner.graph, inner.build
    if len(site.gradients) != len(graph.outputs) - signature.behind:
        raise NoRule("it has more, or fewer, results than its body")
    names = [x.name or "" for x in inner.inputs]
    starts = names[signature.before : signature.before + signature.states]
    results = graph.outputs[signature.behind :]
    ends = results[: signature.states]
    sources = {*(names[p] for p in site.wanted), *site.captured}
    goals = {y for y, g in zip(results, site.gradients, strict=True) if g is not None}
    active = _active(graph, dict(zip(starts, ends, strict=True)), sources, goals)

    def stand_in(name: str) -> ir.Value:
        return inner.like(ir.Value(name=build.unique(f"{name}.carried")), name)

    taken = {ends[starts.index(start)]: stand_in(start) for start in active}
    behind = signature.states
    slices = zip(results[behind:], site.gradients[behind:], signature.written, strict=True)
    written = {y: (stand_in(y), g, slicing) for y, g, slicing in slices if g is not None}
    read = [p for p in site.wanted if p >= signature.before + signature.states]
    wrt = [*active, *(names[p] for p in read), *site.captured]
    found = inner.gradients(taken | {y: g for y, (g, _, _) in written.items()}, wrt)
    carried = zip(active, taken.values(), strict=True)
    given = []
    for start, after in carried:
        g = found.get(start)
        g = build.zeros_like(after, known_type(graph, start)) if g is None else g
        given.append(inner.like(inner.result(g), start))
    inside = [name for name in site.captured if name in found]
    sums = [stand_in(name) for name in inside]
    for name, before in zip(inside, sums, strict=True):
        given.append(inner.like(build.op("Add", [before, found[name]]), name))
    return Trip(
        inner,
        signature,
        (*(names.index(start) for start in active), *inside),
        (*taken.values(), *sums),
        tuple(given),
        tuple(written.values()),
        {p: inner.like(inner.result(found[names[p]]), names[p]) for p in read if names[p] in found},
    )


def _active(
    graph: Graph, states: dict[str, str], sources: Collection[str], goals: Collection[str]
) -> list[str]:
    """The states through which gradients go: made from what is asked for, and read by the loss.

    Args:
        graph: The body.
        states: How each state is called at the end, by how it is at the start.
        sources: What gradients are asked for of.
        goals: What the loss depends on outside of the body.
    """
    made, read = set(sources), set(goals)
    while more := {s for s, e in states.items() if e in reached_from(graph, made)} - made:
        made |= more
    while more := {e for s, e in states.items() if reached_from(graph, [s]) & read} - read:
        read |= more
    return [s for s, e in states.items() if s in made and e in read]


def record(site: Site, places: Collection[int]) -> list[ir.Value]:
    """Let the forward loop give some of what its body takes in each trip, as further outputs.

    Args:
        site: The loop.
        places: Of what its body takes.

    Returns:
        The outputs: the values of all trips.
    """
    node, build, found = site.view.node, site.build, []
    body = node.attributes["body"].as_graph()
    for place in places:
        x = body.inputs[place]
        name = build.unique(f"{x.name}.trips")
        y = ir.Value(name=name, type=x.type, shape=x.shape)
        body.append(ir.node("Identity", [x], outputs=[y], name=name))
        body.outputs.append(y)
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].name = build.unique(name)
        found.append(node.outputs[-1])
    for key in ("scan_output_axes", "scan_output_directions"):
        if key in node.attributes:
            numbers = [*attribute(node, key), *[0] * len(places)]
            node.attributes[key] = ir.AttrInt64s(key, numbers)
    return found
