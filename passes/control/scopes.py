"""Names of bodies that hide no name of the graphs around them.

A body may call an input or a constant of its own like a value outside. Nodes hold values, not
names, so a rewrite may let a node in the body read the outer value: written to a file, it would
read the inner one.
"""

import onnx_ir as ir

from pitc.ir.build import Names, names_of
from pitc.ir.nodes import bodies


def distinct_names(model: ir.Model) -> int:
    """Rename values of bodies that are called like a value of a graph around them.

    Returns:
        How many there were.
    """
    return _rename(model.graph, frozenset(), names_of(model.graph))


def _rename(graph: ir.Graph, outer: frozenset[str], taken: Names) -> int:
    count = 0
    for name, value in list(graph.initializers.items()):
        if name in outer:
            del graph.initializers[name]
            value.name = taken.value(name)
            graph.register_initializer(value)
            count += 1
    for value in (*graph.inputs, *(o for node in graph for o in node.outputs)):
        if value.name and value.name in outer:
            value.name = taken.value(value.name)
            count += 1
    own = (*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs))
    inner = outer | {value.name for value in own if value.name}
    return count + sum(_rename(body, inner, taken) for node in graph for body in bodies(node))
