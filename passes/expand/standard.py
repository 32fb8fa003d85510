"""Standard operators that are functions: the body in their schema says what they consist of."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.ir.schemas import schema_of
from pitc.passes.expand.body import Body

MASK, LENGTHS = 3, 6  # inputs
SCORES = 3  # an output
MASKED = 2  # the mode in which that has the mask added


def standard_attention(body: Body) -> list[ir.Value | None]:
    """The function body of Attention.

    Raises:
        NoRule: It has none, or ONNX Runtime's kernel answers otherwise.
    """
    view = body.view
    if body.wants(SCORES) and view.attr("qk_matmul_output_mode", 0) == MASKED:
        flags = view.has(MASK) and view.dtype(MASK) == np.bool_
        if flags or view.attr("is_causal", 0) or view.has(LENGTHS):
            raise NoRule("masked scores are -inf in the body, the lowest number in the kernel")
    return function_body(body)


def is_function(node: ir.Node, opset: int) -> bool:
    """True for a standard operator whose schema has a body."""
    if node.domain or not onnx.defs.has(node.op_type):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)


def function_body(body: Body) -> list[ir.Value | None]:
    """The schema's function body, made for the operands' types and shapes.

    Raises:
        NoRule: It has none.
    """
    view, function = body.view, _function(body)
    given = {i: body.input(i) for i in range(view.n_inputs) if view.has(i)}
    results = [x for k, x in enumerate(function.output[: view.n_outputs]) if view.out(k)]
    graph = onnx.helper.make_graph(
        list(function.node),
        "call",
        [onnx.helper.make_value_info(function.input[i], _type(body, i)) for i in given],
        [onnx.helper.make_empty_tensor_value_info(x) for x in results],
    )
    proto = onnx.helper.make_model(graph, opset_imports=function.opset_import)
    return _adopt(body, ir.from_proto(proto).graph, list(given.values()))


def _function(body: Body) -> onnx.FunctionProto:
    """The schema's function, made for the operands' types and shapes.

    Raises:
        NoRule: There is none, or its operators are others in the model's operator set.
    """
    view = body.view
    schema: Any = onnx.defs.get_schema(view.op, view.opset, view.domain)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= view.opset]
    text = b""
    if versions:
        types = [_type(body, i).SerializeToString() for i in range(view.n_inputs)]
        call = ir.to_proto(view.node).SerializeToString()
        make = schema.get_context_dependent_function_with_opset_version
        text = make(max(versions), call, types)
    elif versions := [v for v in schema.function_opset_versions if v <= view.opset]:
        text = schema.get_function_with_opset_version(max(versions))
        text = text if isinstance(text, bytes) else text.SerializeToString()
    function: onnx.FunctionProto = onnx.FunctionProto.FromString(text)
    if not function.node:
        raise NoRule("the operator has no function body for these operands")
    for x in function.node:
        found = [schema_of(x.domain, x.op_type, v) for v in (max(versions), view.opset)]
        if not _are_same(*found):
            raise NoRule(f"{x.op_type} of its function is another one in set {view.opset}")
        _resolve(x, ir.to_proto(view.node), schema)
    return function


def _are_same(first: Any, second: Any) -> bool:
    """True for schemas of one meaning: the newer one has at most more types."""
    if first is None or second is None:
        return False
    if first.since_version == second.since_version:
        return True
    told = [
        (s.doc, sorted(s.attributes), [x.name for x in s.inputs], [x.name for x in s.outputs])
        for s in (first, second)
    ]
    return told[0] == told[1]


def _resolve(node: onnx.NodeProto, call: onnx.NodeProto, schema: Any) -> None:
    """Put the attributes of a call, or their defaults, where a function's node refers to them."""
    given = {a.name: a for a in call.attribute}
    for attribute in list(node.attribute):
        name = attribute.ref_attr_name
        if not name:
            continue
        default: onnx.AttributeProto = schema.attributes[name].default_value
        found, inner = given.get(name) or default, attribute.name
        node.attribute.remove(attribute)
        if found.name or found.type:
            kept = node.attribute.add()
            kept.CopyFrom(found)
            kept.name = inner


def _type(body: Body, i: int) -> onnx.TypeProto:
    """The type of an operand; an empty one where that is absent."""
    if not body.view.has(i):
        return onnx.TypeProto()
    dtype = onnx.helper.np_dtype_to_tensor_dtype(body.view.dtype(i))
    return onnx.helper.make_tensor_type_proto(dtype, _dims(body, i))


def _computed(result: ir.Value) -> ir.Value:
    """The value before the Identity nodes that a function body ends in, which later passes drop."""
    producer = result.producer()
    while (
        producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None
    ):
        result = producer.inputs[0]
        producer = result.producer()
    return result


def _dims(body: Body, i: int) -> list[int | str]:
    known = ((e.as_int(), str(e)) for e in body.view.shape(i))
    return [text if number is None else number for number, text in known]


def _adopt(body: Body, graph: ir.Graph, operands: list[ir.Value]) -> list[ir.Value | None]:
    """Take over the nodes of a graph of operands; the results, one for each output of the node."""
    for value, operand in zip(graph.inputs, operands, strict=True):
        value.replace_all_uses_with(operand)
    results = [_computed(o) for o in graph.outputs]
    graph.outputs.clear()
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        value.name = body.names.unique(name)
        body.constants.append(value)
    nodes = list(graph)
    graph.remove(nodes)
    for n in nodes:
        for value in n.outputs:
            if value.name:
                value.name = body.names.unique(value.name)
        n.name = None
    body.nodes += nodes
    found = iter(results)
    return [next(found) if o.name else None for o in body.view.node.outputs]
