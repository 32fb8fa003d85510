"""Values of a model by their names, as users give them."""

from difflib import get_close_matches

import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir.build import Names
from pitc.ir.graph import Graph

MADE = "pitc.made"  # key in `meta` of a constant that a loss has added: it is no weight


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


def take_name(names: Names, name: str, what: str, mend: str = "rename the value") -> str:
    """Take a name by which callers know an input or output that is new.

    Args:
        names: Those in use, which have this one from now on.
        name: The name.
        what: What gets it.
        mend: What can be done where it is in use.

    Returns:
        The name.

    Raises:
        UsageError: The model has it already.
    """
    if name in names.values:
        text = f"the model has a value '{name}' already"
        raise UsageError(text, hint=f"{what} would have this name: {mend}")
    names.values.add(name)
    return name


def near(graph: Graph, name: str) -> str:
    """A hint: names like one that nothing has."""
    known = [*graph.inputs, *graph.constants(), *graph.outputs]
    found = get_close_matches(name, known, 3, 0.5) or graph.outputs[:3]
    return f"there are {', '.join(found)}"
