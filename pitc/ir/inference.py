"""Element types and shapes by ONNX's own shape inference, on a copy without the big weights.

What a file says about inner values is not read: exporters and hand-edited files disagree with
themselves there. Only the declared inputs and the weights count.
"""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

Dim = int | str | None
SMALL_BYTES = 8192  # initializers up to this size take part: shapes, axes, index vectors


@dataclass(frozen=True, slots=True)
class Inferred:
    """Type of one value.

    Args:
        dtype: Element type.
        dims: Each dimension's size, its symbol, or None; None as a whole when the rank is unknown.
    """

    dtype: ir.DataType
    dims: tuple[Dim, ...] | None

    @property
    def numpy_dtype(self) -> np.dtype | None:
        """The element type as numpy knows it; None for types that it has no name for."""
        try:
            return np.dtype(self.dtype.numpy())
        except (TypeError, ValueError):
            return None


def slim_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a proto without big weights: they become inputs of the same name and type."""
    copy = model.clone()
    graph = copy.graph
    listed = {id(v) for v in graph.inputs}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes <= SMALL_BYTES:
            continue
        if tensor is not None:
            value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
        value.const_value = None
        del graph.initializers[name]
        if id(value) not in listed:
            graph.inputs.append(value)
    return ir.to_proto(copy)


def infer(model: ir.Model) -> dict[str, Inferred]:
    """Types of the values of the main graph, by name. Empty when inference itself fails."""
    proto = slim_proto(model)
    del proto.graph.value_info[:]
    for value in proto.graph.input:  # a size without a name gets one, so that it can be followed
        for k, d in enumerate(value.type.tensor_type.shape.dim):
            if not d.dim_param and (not d.HasField("dim_value") or d.dim_value < 0):
                d.dim_param = f"{value.name}.shape[{k}]"
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        graph = proto.graph
    out = {}
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.HasField("tensor_type"):
            tensor = info.type.tensor_type
            dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
            out[info.name] = Inferred(ir.DataType(tensor.elem_type), dims)
    return out


def _dim(d: onnx.TensorShapeProto.Dimension) -> Dim:
    return d.dim_value if d.HasField("dim_value") else d.dim_param or None
