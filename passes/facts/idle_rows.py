"""Backward through lists: dead facts of rows in their dense form, and of what makes a list.

    places = NonZero(P)   rows = x[places]   y = f(rows)   z = base; z[places] += y

Where z[t] is dead, so are y and rows in their dense form, x[t] as far as the list reads it, and
P[t]: whether t is in the list shows in z[t] only.
"""

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import dim_index
from pitc.ir.lists import Sink
from pitc.ir.region import EVERYWHERE, Region, meet, prune, pull
from pitc.passes.facts.carry import carried
from pitc.passes.rules.record import operator_of


def idle_rows(view: NodeView, place: int) -> list[Region]:
    """Where an operand with a row per entry is idle, in its dense form."""
    lists = view.graph.lists
    if operator_of(view).reads_no_element:
        return [EVERYWHERE]
    rows = lists.rows[view.name(place)]
    sink = next((s for s in lists.sinks[rows.places] if s.out == view.out()), None)
    if sink is not None:
        return _at_sink(view.graph, sink) if place == 2 else []
    return _read(view, place)


def idle_by_lists(view: NodeView, place: int) -> list[Region]:
    """Where any other operand is idle, as far as the lists tell."""
    lists = view.graph.lists
    if view.out() in lists.sinks and operator_of(view).live_places:
        return _unlisted(view.graph, view.out(), view.name(place))
    return _read(view, place)


def _read(view: NodeView, place: int) -> list[Region]:
    """Where all reads of an operand by rows are idle; nowhere if something else reads it."""
    graph, lists, found = view.graph, view.graph.lists, list[list[Region]]()
    operand = view.name(place)
    shape = lists.rows[operand].shape if operand in lists.rows else graph[operand].shape
    for name in (view.out(k) for k in range(view.n_outputs) if view.out(k)):
        dense = lists.dense.get(name)
        reads = [r for r in dense.reads if r.operand == place] if dense is not None else []
        if dense is None or shape is None or not reads:
            return []
        found += [carried(dense, r, graph[name].dead_rows, shape) for r in reads]
    return meet(found)


def _at_sink(graph: Graph, sink: Sink) -> list[Region]:
    """Rows are dead where what they are written into is."""
    found = (pull(r, sink.at, graph[sink.out].shape) for r in graph[sink.out].dead)
    return prune(r for r in found if r is not None)


def _unlisted(graph: Graph, places: str, mask: str) -> list[Region]:
    """Where it does not matter whether a place is in a list: all that is written there is dead."""
    own, found = graph[mask].shape or (), list[list[Region]]()
    for sink in graph.lists.sinks[places]:
        rows = graph.lists.rows[sink.updates]
        coords = tuple(dim_index(rows.axis + c, e) for c, e in enumerate(own))
        every = TensorExpr(rows.shape, (Read(0, coords),))
        found.append(carried(every, every.reads[0], _at_sink(graph, sink), own))
    return meet(found)
