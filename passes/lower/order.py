"""The order of nodes in a lowered graph, which decides when ONNX Runtime takes memory.

ONNX Runtime runs what a node reads in the order of the node numbers in the file, largest first. So
of two operands, the one that is computed further down is computed first. A bias of [batch, heads,
queries, keys] that is added up right in front of its layer would be computed, and kept, before all
layers below it:

    file: layer0, layer1, bias, attention(layer1, bias)    runs: bias, layer0, layer1, attention
    file: bias, layer0, layer1, attention(layer1, bias)    runs: layer0, layer1, bias, attention
"""

from collections.abc import Collection

import onnx_ir as ir

from pitc.ir.nodes import bodies, is_pit_node


def place_early(graph: ir.Graph, made: Collection[ir.Node]) -> None:
    """Move ordinary nodes of the lowering right behind what they read, so that they run late.

    Args:
        graph: Sorted; its nodes are moved.
        made: Nodes that the lowering has added. PIT nodes, and nodes with bodies, which
            read more than their operands, stay where they are.
    """
    nodes, place = list(graph), dict[ir.Node, int]()
    for index, node in enumerate(nodes):
        read = [x.producer() for x in node.inputs if x is not None]
        behind = max((place.get(n, -1) for n in read if n is not None), default=-1)
        moves = node in made and not is_pit_node(node) and not any(bodies(node))
        place[node] = behind if moves else index
    for node in sorted(nodes, key=lambda n: place[n]):  # stable: what is read stays in front
        graph.append(node)
