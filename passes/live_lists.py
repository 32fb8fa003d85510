"""Lists of places hold no padded tokens: where what is written at a place is dead, it is left out.

    r = NonZero(P)   ->   r = NonZero(And(P, live))

P does not matter at such a place (`facts/lists.py`): an entry less is a row less of all that
follows. What P is computed of may say otherwise there, since a router of rows that are left out
chooses the first expert for them. The new node says so in the graph: facts see zeros.

The change is a dead fact put to use: sound for one list. For several of them, no fact that is used
rests on fill facts of what another one changes (`docs/theory.md`, section 8).
"""

import onnx_ir as ir

from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Coords
from pitc.ir.nodes import node_name
from pitc.ir.region import Region, covers
from pitc.ir.unused import remove_unused
from pitc.passes.facts.idle_rows import idle_by_lists
from pitc.passes.facts.total import reader_upset_by_zeros
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.domain import Domain, domain_of
from pitc.passes.regions.form import zero_regions
from pitc.passes.regions.live_tests import can_compute
from pitc.passes.rules.record import operator_of
from pitc.passes.spread import spread

PREFIX = "live_places"


def keep_live_places(model: ir.Model, graph: Graph) -> int:
    """Leave out places of lists of the main graph where inputs say that nothing of them is read.

    Args:
        model: The model; it is changed in place.
        graph: Its graph, with dead facts.

    Returns:
        How many lists there were: facts of the graph are then those of another one.
    """
    found, changed, used = list[tuple[ir.Node, Domain, Coords]](), 0, 0
    for node in graph.nodes:
        view = NodeView(graph, node)
        if node.graph is not model.graph or not operator_of(node).live_places:
            continue
        for where in _regions(view) if view.out() in graph.lists.sinks else ():
            known = domain_of(where)
            bits = _bits(view)
            if where.via & (changed | bits) or used & bits:
                continue
            if known is None or not can_compute(graph, known[0]):
                continue
            if not known[0].rarely_dead and not _is_upset(view):
                found.append((node, *known))
                changed, used = changed | bits, used | where.via
                break
    build = Builder(graph, PREFIX) if found else None
    count = sum(_leave_out(build, graph, *each) for each in found) if build is not None else 0
    if found:
        remove_unused(model)  # what was made for a list that stays
        model.graph.sort()
    return count


def _regions(view: NodeView) -> list[Region]:
    """Where places may be left out that are not anyhow, by inputs of the graph alone."""
    zeros = zero_regions(view.graph, view.name(0))
    inputs = view.graph.inputs
    return [
        where
        for where in idle_by_lists(view, 0)
        if where.sources and all(s in inputs for s in where.sources)
        if not any(covers(zero, where) for zero in zeros)
    ]


def _bits(view: NodeView) -> int:
    """Provenance bits of all that has a row per entry of a list, and of what these are added to."""
    graph, places = view.graph, view.out()
    names = [n for n, rows in graph.lists.rows.items() if rows.places == places]
    names += [view.name(0), *(sink.out for sink in graph.lists.sinks[places])]
    bits = 0
    for name in names:
        bits |= graph[name].bit
    return bits


def _is_upset(view: NodeView) -> bool:
    graph, flags = view.graph, view.name(0)

    def readers(name: str) -> list[ir.Node]:
        return [view.node] if name == flags else graph[name].uses

    return reader_upset_by_zeros(graph, flags, readers) is not None


def _leave_out(build: Builder, graph: Graph, node: ir.Node, domain: Domain, coords: Coords) -> bool:
    """Let a list read flags that are false where points are dead."""
    flags, shape = node.inputs[0], NodeView(graph, node).shape(0)
    live = spread(build, live_points(build, graph, domain), domain.extents, shape, coords)
    if flags is None or live is None:
        return False
    if flags.dtype != ir.DataType.BOOL:
        flags = build.op("Cast", [flags], to=ir.DataType.BOOL)
    kept = build.op("And", [flags, live])
    producer = kept.producer()
    if producer is not None:
        producer.name = build.names.node(f"{node_name(node)}.{PREFIX}")
    node.replace_input_with(0, kept)
    return True
