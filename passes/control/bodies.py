"""Bodies of loops as models of their own: what they capture and carry become inputs.

A carried value, the condition too, is taken to have, in every trip, the shape that it has at the
start. Where the body gives one of that shape again, that is so by induction; else nothing is said
of its shape.
"""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Poly
from pitc.ir.nodes import FIXED

BODY = "pitc.body"  # mark of a model that is a body: the loops in it stay as they are


def is_loop(graph: Graph, node: ir.Node) -> bool:
    """True for a Loop node all of whose values are given, and whose body computes its results."""
    if node.op_type != "Loop" or node.domain:
        return False
    body = node.attributes["body"].as_graph()
    own = all(x.graph is body and x.producer() is not None for x in body.outputs)
    return own and None not in (*node.inputs[FIXED:], *first_shapes(graph, node))


def first_shapes(graph: Graph, node: ir.Node) -> list[Shape | None]:
    """Shapes in which the first trip of a loop gets its number and condition.

    ONNX Runtime makes both scalars or of shape [1], as the body declares them; a condition that is
    not declared is as the loop gets it. It takes other declarations too, but not consistently:
    those are None.
    """
    number, condition = node.attributes["body"].as_graph().inputs[:FIXED]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    shapes = [number.shape, condition.shape]
    if condition.shape is None and given is not None:
        shapes[1] = declared(graph[given.name or ""].shape)
    return [(ONE,) * len(s) if s is not None and _small(s) else None for s in shapes]


def _small(shape: ir.Shape) -> bool:
    """True for no dimension, or one that is not known to be anything but 1."""
    return len(shape) < 2 and all(d == 1 or not isinstance(d, int) for d in shape)


def states_of(node: ir.Node) -> list[ir.Value]:
    """What the first trip of a loop reads."""
    return [x for x in node.inputs[FIXED:] if x is not None]


def body_model(graph: Graph, node: ir.Node, shapes: Sequence[Shape | None]) -> ir.Model:
    """A copy of a loop's body.

    Args:
        graph: The graph around it; what the loop reads has its shape there.
        node: The loop.
        shapes: Shapes of its condition and of its carried values.

    Returns:
        A model whose inputs are those of the body, then what it captures, by the same names.
        Captured constants are initializers.
    """
    main = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
    number, _ = first_shapes(graph, node)
    for value, shape in zip(main.inputs, (number, *shapes), strict=True):
        value.shape = declared(shape)
    return model_of(graph, main)[0]


def model_of(graph: Graph, main: ir.Graph) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """A body as a model of its own.

    Args:
        graph: The graph around it; what the body captures has its shape there.
        main: A copy of the body, which is changed in place.

    Returns:
        The model, and what stands in it for each value that is captured: an input behind those of
        the body, or an initializer.
    """
    copies: dict[ir.Value, ir.Value] = {}
    for inner, place, value in list(captured(main)):
        if value not in copies:
            copies[value] = _copy(graph, main, value)
        inner.replace_input_with(place, copies[value])
    imports = graph.model.opset_imports
    main.opset_imports.update(imports)
    model = ir.Model(main, ir_version=graph.model.ir_version)
    model.meta[BODY] = True
    return model, copies


def captured(main: ir.Graph) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """Every place in a graph, and in the bodies inside it, that reads a value from outside."""
    nodes = list(ir.traversal.RecursiveGraphIterator(main))
    graphs = {id(n.graph) for n in nodes} | {id(main)}
    for node in nodes:
        for place, value in enumerate(node.inputs):
            if value is not None and id(value.graph) not in graphs:
                yield node, place, value


def _copy(graph: Graph, main: ir.Graph, value: ir.Value) -> ir.Value:
    name = value.name or ""
    copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    if graph.is_constant(name) and value.const_value is not None:
        main.register_initializer(copy)
        return copy
    dtype = graph[name].dtype
    copy.const_value = None
    if dtype is not None:
        copy.type = ir.TensorType(ir.DataType.from_numpy(dtype))
    copy.shape = declared(graph[name].shape)
    main.inputs.append(copy)
    return copy


def declared(shape: Shape | None) -> ir.Shape | None:
    """Extents as numbers and names: their formulas; None for none."""
    return None if shape is None else ir.Shape([_dimension(e) for e in shape])


def _dimension(extent: Poly) -> int | str:
    number = extent.as_int()
    return str(extent) if number is None else number
