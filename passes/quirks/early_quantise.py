"""A quantisation that ONNX Runtime would move to the result of a PIT node stands there already.

ONNX Runtime moves elements in 8 bits where it can: in front of a Reshape whose result is quantised
it puts that quantisation and its inverse, and the node before gets a result of a new name, whose
type is asked of its schema. That of PIT nodes (EPContext) tells none: the graph would not load.

    p = PIT(..)                                p = PIT(..)
                                         ->    d = DequantizeLinear(QuantizeLinear(p))
    q = QuantizeLinear(Transpose(Reshape(p)))  q = QuantizeLinear(Transpose(Reshape(d)))

What is left is what ONNX Runtime makes of any other node, and exact: to move elements, or to clamp
them, before or after they are rounded to the same grid is the same.
"""

import onnx_ir as ir

from pitc.ir.build import Names, NodeMaker, names_of
from pitc.ir.graph import Graph
from pitc.ir.nodes import attribute, is_pit_node

#: What ONNX Runtime moves a quantisation over, or takes away first; each reads its first input so.
PASSED = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "MaxPool"),
        *("Identity", "Dropout", "Cast", "Relu", "Clip"),
    }
)
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DOMAINS = ("", "com.microsoft")  # of both
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
OF_THE_INVERSE = ("axis", "block_size")  # attributes of a quantisation that its inverse has, too


def quantise_early(model: ir.Model, graph: Graph | None = None) -> int:
    """Put quantisations, and their inverses, behind PIT nodes, in place.

    Args:
        model: A lowered model.
        graph: What is known of its values; a scale may be computed, and then is one number only
            where that is known.

    Returns:
        How many.
    """
    names = names_of(model.graph)
    found = [
        (node, first)
        for scope in model.graphs()
        for node in scope
        if node.op_type == QUANTIZE and node.domain in DOMAINS
        if all(x is None or is_one_number(x, graph) for x in node.inputs[1:])
        if (first := _first_passed(node)) is not None
    ]
    for node, first in found:
        _insert(node, first, names)
    for scope in {id(first.graph): first.graph for _, first in found}.values():
        if scope is not None:
            scope.sort()  # a scale may be computed behind what is moved
    return len(found)


def is_one_number(value: ir.Value, graph: Graph | None) -> bool:
    """Whether a scale or zero point is that of all elements."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return tensor.size == 1
    if graph is not None and (known := graph.values.get(value.name or "")) is not None:
        return known.shape is not None and all(size.as_int() == 1 for size in known.shape)
    return value.shape is not None and all(size == 1 for size in value.shape)


def _first_passed(quantise: ir.Node) -> ir.Node | None:
    """The node between a PIT node and a quantisation that stands first, where others are passed."""
    first, (value, scale, *_) = None, quantise.inputs
    casts: set[int] = set()
    while value is not None and (node := value.producer()) is not None:
        if is_pit_node(node):
            same = (
                scale is not None and scale.dtype in (None, value.dtype) and value.dtype in FLOATS
            )
            return first if same and casts <= {value.dtype} else None
        once = len(value.uses()) == 1 and not value.is_graph_output()
        if node.op_type not in PASSED or node.domain or not once or value is not node.outputs[0]:
            return None
        if node.op_type == "Cast":
            casts.add(attribute(node, "to"))
        first, value = node, node.inputs[0]
    return None


def _insert(quantise: ir.Node, first: ir.Node, names: Names) -> None:
    """Round what a node reads to the grid of a quantisation."""
    x, graph = first.inputs[0], first.graph
    assert x is not None and isinstance(graph, ir.Graph)
    build = NodeMaker(graph, names, before=first)
    grid = dict(quantise.attributes)
    inverse = {name: grid[name] for name in OF_THE_INVERSE if name in grid}
    value = x
    for op_type, attributes, stem, kind in (
        (QUANTIZE, grid, "rounded", _rounded_type(quantise)),
        (DEQUANTIZE, inverse, "back", x.type),
    ):
        label, name = names.node(f"{quantise.name}.{stem}"), names.value(f"{x.name}.{stem}")
        operands = [value, *quantise.inputs[1:]]
        (value,) = build.add(op_type, operands, attributes, [name], label, quantise.domain)
        value.type, value.shape = kind, x.shape
    first.replace_input_with(0, value)


def _rounded_type(quantise: ir.Node) -> ir.TensorType:
    """Of its results: that of its zero point, the one that it says, or uint8."""
    zero = quantise.inputs[2] if len(quantise.inputs) > 2 else None
    dtype = zero.dtype if zero is not None else None
    if dtype is None:
        dtype = ir.DataType(attribute(quantise, "output_dtype", 0)) or ir.DataType.UINT8
    return ir.TensorType(dtype)
