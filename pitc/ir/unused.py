"""What nothing reads is removed: nodes all of whose results are unread, then weights."""

import onnx_ir as ir

from pitc.ir.nodes import bodies


def remove_unused(model: ir.Model) -> int:
    """Remove nodes and weights that nothing reads; the nodes are in topological order.

    A node that stays keeps the names of all its outputs: which of them it has is something that
    kernels look at (Attention with past keys, BatchNormalization that trains).

    Returns:
        How many nodes.
    """
    count = _remove_from(model.graph)
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]
    return count


def _remove_from(graph: ir.Graph) -> int:
    """Nodes of a graph and of its bodies, the last ones first."""
    count = 0
    for node in reversed(graph):
        if any(o.uses() or o.is_graph_output() for o in node.outputs):
            count += sum(map(_remove_from, bodies(node)))
        else:
            graph.remove(node, safe=True)
            count += 1
    return count
