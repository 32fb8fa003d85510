"""What nothing reads is removed: nodes all of whose results are unread, then weights."""

import onnx_ir as ir

from pitc.ir.nodes import bodies


def remove_unused(model: ir.Model) -> None:
    """Remove nodes and weights that nothing reads; the nodes are in topological order.

    A node that stays keeps the names of all its outputs: which of them it has is something that
    kernels look at (Attention with past keys, BatchNormalization that trains).
    """
    graph = model.graph
    _remove_from(graph)
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]


def _remove_from(graph: ir.Graph) -> None:
    """Nodes of a graph and of its bodies, the last ones first."""
    for node in reversed(graph):
        if any(o.uses() or o.is_graph_output() for o in node.outputs):
            for body in bodies(node):
                _remove_from(body)
        else:
            graph.remove(node, safe=True)
