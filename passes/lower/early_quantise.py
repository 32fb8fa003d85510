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

from pitc.ir.nodes import is_pit_node
from pitc.passes.control.graft import Names, names_of

#: What ONNX Runtime moves a quantisation over, or takes away first; each reads its first input so.
PASSED = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "MaxPool"),
        *("Identity", "Dropout", "Cast", "Relu", "Clip"),
    }
)
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DOMAINS = ("", "com.microsoft")  # of both
OF_THE_INVERSE = ("axis", "block_size")  # attributes of a quantisation that its inverse has, too


def quantise_early(model: ir.Model) -> int:
    """Put quantisations, and their inverses, behind PIT nodes, in place.

    Args:
        model: A lowered model.

    Returns:
        How many.
    """
    names = names_of(model.graph)
    found = [
        (node, first)
        for graph in model.graphs()
        for node in graph
        if node.op_type == QUANTIZE and node.domain in DOMAINS and _is_scalar(node)
        if (first := _first_passed(node)) is not None
    ]
    for node, first in found:
        _insert(node, first, names)
    return len(found)


def _is_scalar(quantise: ir.Node) -> bool:
    """Whether all elements are rounded to one grid, which is known beforehand."""
    constants = [x for x in quantise.inputs[1:] if x is not None]
    tensors = [ir.convenience.get_const_tensor(x) for x in constants]
    return all(tensor is not None and tensor.size == 1 for tensor in tensors)


def _first_passed(quantise: ir.Node) -> ir.Node | None:
    """The node between a PIT node and a quantisation that stands first, where others are passed."""
    first, (value, scale, *_) = None, quantise.inputs
    casts: set[int] = set()
    while value is not None and (node := value.producer()) is not None:
        if is_pit_node(node):
            same = scale is not None and value.dtype is not None and value.dtype == scale.dtype
            return first if same and casts <= {value.dtype} else None
        once = len(value.uses()) == 1 and not value.is_graph_output()
        if node.op_type not in PASSED or node.domain or not once or value is not node.outputs[0]:
            return None
        if node.op_type == "Cast":
            casts.add(node.attributes["to"].as_int())
        first, value = node, node.inputs[0]
    return None


def _insert(quantise: ir.Node, first: ir.Node, names: Names) -> None:
    """Round what a node reads to the grid of a quantisation."""
    x, graph = first.inputs[0], first.graph
    assert x is not None and graph is not None
    grid = list(quantise.attributes.values())
    inverse = [a for a in grid if a.name in OF_THE_INVERSE]
    value = x
    for op_type, attributes, stem, kind in (
        (QUANTIZE, grid, "rounded", _rounded_type(quantise)),
        (DEQUANTIZE, inverse, "back", x.type),
    ):
        node = ir.Node(
            quantise.domain,
            op_type,
            [value, *quantise.inputs[1:]],
            [ir.Attr(a.name, a.type, a.value) for a in attributes],
            name=names.node(f"{quantise.name}.{stem}"),
        )
        (value,) = node.outputs
        value.name, value.type, value.shape = names.value(f"{x.name}.{stem}"), kind, x.shape
        graph.insert_before(first, node)
    first.replace_input_with(0, value)


def _rounded_type(quantise: ir.Node) -> ir.TensorType:
    """Of its results: that of its zero point, the one that it says, or uint8."""
    zero = quantise.inputs[2] if len(quantise.inputs) > 2 else None
    said = quantise.attributes.get("output_dtype")
    dtype = zero.dtype if zero is not None else None
    if dtype is None:
        dtype = ir.DataType(said.as_int() if said is not None else 0) or ir.DataType.UINT8
    return ir.TensorType(dtype)
