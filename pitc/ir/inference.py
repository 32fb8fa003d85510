"""Element types and shapes by ONNX's own shape inference, on a copy without the big weights.

What a file says about inner values is not read: exporters and hand-edited files disagree with
themselves there. Only the declared inputs and the weights count, and in what shape a body takes the
number of a trip and a condition.
"""

import re
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from pitc.ir.nodes import FIXED
from pitc.ir.schemas import places_of_types

Dim = int | str | None
_PLAIN = re.compile(r"(?!pitc|d\d+$)[A-Za-z_]\w*", re.ASCII)
UNKNOWN_SHAPE = "pitc.unknown_shape"
SMALL_BYTES = 8192  # initializers up to this size take part: shapes, axes, index vectors


def symbol_text(name: str) -> str:
    """A name of a size as part of formulas: in quotes where it could be read as anything else, as a
    formula, a dimension's index or a name that pitc makes.
    """
    return name if _PLAIN.fullmatch(name) else "'" + name.replace("'", "''") + "'"


def numpy_type(dtype: ir.DataType | None) -> np.dtype | None:
    """A type as numpy knows it; None for types that it has no name for."""
    try:
        return None if dtype is None else np.dtype(dtype.numpy())
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Inferred:
    """Type of one value.

    Args:
        dtype: Element type.
        dims: Each dimension's size, its symbol (`symbol_text`), or None; None as a whole when the
            rank is unknown.
    """

    dtype: ir.DataType
    dims: tuple[Dim, ...] | None

    @property
    def numpy_dtype(self) -> np.dtype | None:
        """The element type as numpy knows it."""
        return numpy_type(self.dtype)


def slim_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a proto without big weights: they become inputs of the same name and type. What
    it says of the main graph's inner values is left out.
    """
    graph = model.graph
    weights = {id(v): v for v in graph.initializers.values() if not _is_small(v.const_value)}
    listed = {id(v) for v in graph.inputs}
    inputs = [*graph.inputs, *(v for k, v in weights.items() if k not in listed)]
    face = ir.GraphView(
        [_typed(v) if id(v) in weights else v for v in inputs],
        graph.outputs,
        nodes=(),
        initializers=[v for v in graph.initializers.values() if id(v) not in weights],
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    functions = list(model.functions.values())
    slim = ir.Model(face, ir_version=model.ir_version, functions=functions)  # type: ignore[arg-type]
    proto = ir.serde.serialize_model(slim)
    for node in graph:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    return proto


def _is_small(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.nbytes <= SMALL_BYTES


def _typed(value: ir.Value) -> ir.Value:
    """An input of the type that a weight has."""
    tensor = value.const_value
    if tensor is None:
        return ir.Value(name=value.name, shape=value.shape, type=value.type)
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=value.name, shape=shape, type=ir.TensorType(tensor.dtype))


def infer(model: ir.Model) -> dict[str, Inferred]:
    """Types of the main graph's values by name; only of inputs where inference itself fails."""
    proto = slim_proto(model)
    _forget_numbers(proto.graph)
    _forget(proto.graph)
    for value in proto.graph.input:  # of a sequence's elements ONNX Runtime asks the types only
        if not value.type.HasField("tensor_type"):
            _forget_shape(value.type)
    for value in proto.graph.input:  # a size without a name gets one, so that it can be followed
        for k, d in enumerate(value.type.tensor_type.shape.dim):
            if d.dim_param:
                d.dim_param = symbol_text(d.dim_param)
            elif not d.HasField("dim_value") or d.dim_value < 0:
                d.dim_param = f"{symbol_text(value.name)}.shape[{k}]"
    _stand_in(proto)
    try:
        small = not _counts_far(proto.graph)
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=small).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError):
        graph = proto.graph
    out = {}
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.HasField("tensor_type"):
            tensor = info.type.tensor_type
            dims = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
            out[info.name] = Inferred(ir.DataType(tensor.elem_type), dims)
    out.pop(UNKNOWN_SHAPE, None)
    return out


def _forget_numbers(graph: onnx.GraphProto) -> None:
    """Drop the weights that a caller may override: inference reads shapes off their numbers."""
    inputs = {value.name for value in graph.input}
    fixed = [tensor for tensor in graph.initializer if tensor.name not in inputs]
    if len(fixed) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(fixed)


def _forget(graph: onnx.GraphProto) -> None:
    """Drop the shapes that a graph and its bodies declare of what they compute, and carry."""
    del graph.value_info[:]
    for output in graph.output:
        _forget_shape(output.type)
    for node in graph.node:
        for body in (a.g for a in node.attribute if a.HasField("g")):
            for carried in body.input[FIXED if node.op_type == "Loop" else 0 :]:
                _forget_shape(carried.type)
            _forget(body)


def _forget_shape(declared: onnx.TypeProto) -> None:
    match declared.WhichOneof("value"):
        case "tensor_type":
            declared.tensor_type.ClearField("shape")
        case "sequence_type":
            _forget_shape(declared.sequence_type.elem_type)
        case "optional_type":
            _forget_shape(declared.optional_type.elem_type)


def _stand_in(proto: onnx.ModelProto) -> None:
    """Operators of ONNX Runtime become Reshapes to unknown shapes, which have the same types, as
    its own schemas say; so does a Squeeze of no axes, by which it means all of one place. Shapes
    are the rules' business.
    """
    versions = {i.domain: i.version for i in proto.opset_import}
    standard = versions.get("", 1)
    empty = {t.name for t in proto.graph.initializer if 0 in t.dims}

    def squeezes_all(node: onnx.NodeProto) -> bool:
        none = [a.name for a in node.attribute if a.name == "axes" and not a.ints]
        return node.op_type == "Squeeze" and bool(none or empty.intersection(node.input[1:]))

    def places(node: onnx.NodeProto) -> tuple[int | None, ...]:
        known = not node.domain and onnx.defs.has(node.op_type, standard)
        if known:
            return (0,) if squeezes_all(node) else ()
        return places_of_types(node.domain, node.op_type, versions.get(node.domain, 1))

    nodes = list(proto.graph.node)
    if not any(map(places, nodes)):
        return
    shape = onnx.helper.make_tensor_value_info(UNKNOWN_SHAPE, onnx.TensorProto.INT64, [None])
    proto.graph.input.append(shape)
    del proto.graph.node[:]
    for node in nodes:
        like = places(node)
        if not like:
            proto.graph.node.append(node)
        for output, place in zip(node.output, like, strict=False):
            if output and place is not None and "".join(node.input[place : place + 1]):
                inputs = [node.input[place], UNKNOWN_SHAPE]
                proto.graph.node.append(onnx.helper.make_node("Reshape", inputs, [output]))


def _counts_far(graph: onnx.GraphProto) -> bool:
    """Whether a Range over constants is longer than any shape: its values would fill the memory."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Range" and all(x in known for x in node.input):
            ends = [x for name in node.input for x in _numbers(known[name])]
            if len(ends) != len(node.input):  # it fails when it runs
                continue
            if abs(ends[1] - ends[0]) > SMALL_BYTES * abs(ends[2]):
                return True
    return False


def _numbers(tensor: onnx.TensorProto) -> list[float]:
    """The elements of a tensor of numbers; none of a tensor of texts."""
    x = onnx.numpy_helper.to_array(tensor)
    return [float(n) for n in x.reshape(-1)] if x.dtype.kind in "iuf" else []


def _dim(d: onnx.TensorShapeProto.Dimension) -> Dim:
    return d.dim_value if d.HasField("dim_value") else d.dim_param or None
