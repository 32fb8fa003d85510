"""Values of a model by their names, as users give them."""

from difflib import get_close_matches

import onnx_ir as ir

from pitc.ir.graph import Graph


def value_of(model: ir.Model, name: str) -> ir.Value:
    """The value of that name in the main graph.

    Raises:
        KeyError: There is none.
    """
    graph = model.graph
    given = {v.name: v for v in graph.inputs} | dict(graph.initializers)
    for node in graph:
        given.update((o.name, o) for o in node.outputs if o.name)
    return given[name]


def near(graph: Graph, name: str) -> str:
    """A hint: names like one that nothing has."""
    known = [*graph.inputs, *graph.constants(), *graph.outputs]
    found = get_close_matches(name, known, 3, 0.5) or graph.outputs[:3]
    return f"there are {', '.join(found)}"
