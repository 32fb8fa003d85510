"""Which values derivatives can come to."""

from collections.abc import Iterable

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import captures, input_names, output_names
from pitc.passes.rules.record import operator_of


def differentiable(graph: Graph, name: str) -> bool:
    """True for a value of floats."""
    dtype = graph[name].dtype
    return dtype is not None and (dtype.kind == "f" or dtype.name == "bfloat16")


def reached_from(graph: Graph, names: Iterable[str]) -> set[str]:
    """The values that some are computed with, by way of floats only.

    What is of no known type (a sequence of tensors, say) may hold floats: what it was made by must
    tell, or refuse.

    Args:
        graph: The graph, derived.
        names: The values to begin with, which are among those found if they may hold floats.
    """
    found = {name for name in names if _may_hold_floats(graph, name)}
    for node in graph.nodes:
        if found.intersection((*_read(node), *captures(node))):
            found.update(name for name in output_names(node) if _may_hold_floats(graph, name))
    return found


def _read(node: ir.Node) -> list[str]:
    """Operands whose elements a node looks at: not those that tell a type or sizes only."""
    record, names = operator_of(node), input_names(node)
    if record.reads_no_element:
        return []
    return names[:1] if record.converts else names


def _may_hold_floats(graph: Graph, name: str) -> bool:
    return graph[name].dtype is None or differentiable(graph, name)
