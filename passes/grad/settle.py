"""Makes bodies of control flow simple before gradients are taken.

No name hides another one, each result is that of a node and comes once, and weights stand in the
main graph, where they can be named.
"""

from collections import Counter

import onnx_ir as ir

from pitc.ir.build import Names, names_of
from pitc.passes.control.scopes import distinct_names


def settle(model: ir.Model) -> None:
    """Make the bodies of a model simple.

    Args:
        model: The model; it is changed in place.
    """
    inner = list(model.graph.subgraphs())
    if not inner:
        return
    distinct_names(model)
    names = names_of(model.graph)
    times = Counter(v.name for graph in (model.graph, *inner) for v in _values(graph))
    for body in inner:
        _settle_results(body, names)
        _lift_weights(model.graph, body, names, times)


def _values(graph: ir.Graph) -> list[ir.Value]:
    made = [o for node in graph for o in node.outputs]
    own = [v for v in graph.initializers.values() if not v.is_graph_input()]
    return [*graph.inputs, *own, *made]


def _settle_results(body: ir.Graph, names: Names) -> None:
    """Results that are inputs or weights, or come twice, become those of an Identity."""
    given = [*body.inputs, *body.initializers.values()]
    seen: list[ir.Value] = []
    for k, value in enumerate(body.outputs):
        if any(value is v for v in given) or any(value is v for v in seen):
            name = names.unique(f"{value.name}.result")
            made = ir.Value(name=name, type=value.type, shape=value.shape)
            body.append(ir.node("Identity", [value], outputs=[made], name=name))
            body.outputs[k] = made
        seen.append(value)


def _lift_weights(main: ir.Graph, body: ir.Graph, names: Names, times: Counter[str | None]) -> None:
    """Floats, of which no shapes and no places are made: a body is inferred as it was."""
    for name, value in list(body.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or not tensor.dtype.is_floating_point():
            continue
        del body.initializers[name]
        if times[name] > 1:
            # a tensor has a name of its own, and copies of a body share it
            value.const_value = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
            value.name = names.value(name)
        main.register_initializer(value)
