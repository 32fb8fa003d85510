"""The standard Attention operator is a function: its own body says what it consists of."""

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir

from pitc.ir.graph import NoRule
from pitc.passes.expand.body import Body

MASK, SCORES = 3, 3  # the input, and the output
MASKED = 2  # the mode in which that has the mask added


def standard_attention(body: Body) -> list[ir.Value | None]:
    """The schema's function body, made for the operands' types and shapes.

    Raises:
        NoRule: It has none, or ONNX Runtime's kernel answers otherwise.
    """
    view = body.view
    model, node = view.graph.model, view.node
    if body.wants(SCORES) and view.attr("qk_matmul_output_mode", 0) == MASKED:
        flags = view.has(MASK) and view.dtype(MASK) == np.bool_
        if flags or view.attr("is_causal", 0):
            raise NoRule("masked scores are -inf in the body, the lowest number in the kernel")
    inputs = [body.input(i) for i in range(view.n_inputs)]  # the body wants every operand's type
    typed = [
        onnx.helper.make_tensor_value_info(
            x.name or "", onnx.helper.np_dtype_to_tensor_dtype(view.dtype(i)), _dims(body, i)
        )
        for i, x in enumerate(inputs)
        if x not in inputs[:i]
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(o.name) for o in node.outputs if o.name]
    graph = onnx.helper.make_graph([ir.to_proto(node)], "call", typed, outputs)
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    proto = onnx.inliner.inline_selected_functions(
        proto, [(node.domain, node.op_type)], exclude=False, inline_schema_functions=True
    )
    if any(n.op_type == node.op_type for n in proto.graph.node):
        raise NoRule("the operator has no function body for these operands")
    return _adopt(body, ir.from_proto(proto).graph, {x.name or "": x for x in inputs})


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


def _adopt(body: Body, graph: ir.Graph, operands: dict[str, ir.Value]) -> list[ir.Value | None]:
    """Take over the nodes of another graph; the results, one for each output of the node."""
    for value in graph.inputs:
        value.replace_all_uses_with(operands[value.name or ""])
    results = {o.name: _computed(o) for o in graph.outputs}
    graph.outputs.clear()
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        value.name = body.names.unique(name)
        body.constants.append(value)
    nodes = list(graph)
    graph.remove(nodes)
    names = [o.name for o in body.view.node.outputs]
    for n in nodes:
        for value in n.outputs:
            if value.name:
                value.name = body.names.unique(value.name)
        n.name = None
    body.nodes += nodes
    return [results[name] if name else None for name in names]
