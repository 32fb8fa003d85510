"""A model in half precision, as converters write it: every float32 becomes float16."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_LARGEST = float(np.finfo(np.float16).max)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model that computes in float16; numbers that are too large become the largest.

    Args:
        model: A model without functions.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _convert_graph(made.graph)
    return made


def _convert_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _convert(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _convert_graph(attribute.g)
            elif attribute.type == onnx.AttributeProto.TENSOR:
                _convert(attribute.t)
            elif (
                (node.op_type, attribute.name) == ("Cast", "to")  # not `saturate`, which is 1, too
                and attribute.i == TensorProto.FLOAT
            ):
                attribute.i = TensorProto.FLOAT16


def _convert(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = np.clip(numpy_helper.to_array(tensor), -_LARGEST, _LARGEST)
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))
