"""What a model expects of data: so many places, and no other number.

    places = NonZero(hit)                           as many as there are
    a, b, c = Split(places, [1, 1, 1])              three, or the run stops

Tracers write what they saw of their example. pitc computes the file as it is; a note says where.
"""

from collections.abc import Iterator

import onnx_ir as ir

from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Poly
from pitc.ir.nodes import node_name
from pitc.passes.rules.record import operator_of

NOTE = (
    "'{split}' takes exactly {count} of the places that '{list}' finds{more}: a run with another "
    "number stops, in ONNX Runtime too, and a tracer may have written what follows for its example "
    "only. Export a form that holds for all inputs: of experts in transformers 'batched_mm', as "
    "pitc export and pitc.from_pretrained do"
)


def count_notes(graph: Graph) -> list[str]:
    """A sentence about the lists of places of which a model expects a certain number.

    Args:
        graph: The derived graph.
    """
    found = list(_fixed(graph))
    if not found:
        return []
    split, count, places = found[0]
    more = f", and {len(found) - 1} more nodes do so" if len(found) > 1 else ""
    return [
        NOTE.format(split=node_name(split), count=count, list=node_name(places), more=more),
    ]


def _fixed(graph: Graph) -> Iterator[tuple[ir.Node, int, ir.Node]]:
    lists = dict[Poly, ir.Node]()  # by how many places each has
    for node in graph.nodes:
        view = NodeView(graph, node)
        if operator_of(node).live_places:
            places = graph[view.out()].shape
            if places is not None and places[1].as_int() is None:
                lists[places[1]] = node
        if node.op_identifier() != ("", "Split", ""):
            continue
        shape = graph[view.name(0)].shape
        if shape is None:
            continue
        axis = int(view.attr("axis", 0))
        parts = [graph[view.out(k)].shape or () for k in range(view.n_outputs)]
        if any(axis not in range(-len(x), len(x)) for x in (shape, *parts)):
            continue
        sizes = [part[axis].as_int() for part in parts]
        known = [size for size in sizes if size is not None]
        if shape[axis] in lists and len(known) == len(sizes):
            yield node, sum(known), lists[shape[axis]]
