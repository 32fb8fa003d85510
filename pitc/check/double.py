"""A model in float64: how far ONNX Runtime's float32 answer is from one that hardly rounds.

Every float32 between inputs and outputs becomes a float64. ONNX Runtime's CPU provider has no
float64 kernel of some operators: those stay float32, between two Casts.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from pitc.errors import ModelError
from pitc.ir.inference import infer
from pitc.session import plain_session, run_session

SINGLE, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")

Kind = tuple[str, str]  # domain and type of an operator
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def run_in_double(model: ir.Model, sess_options: Callable[[], Any]) -> Run:
    """What runs a model in float64, as far as ONNX Runtime can.

    Args:
        model: The model; it is not changed.
        sess_options: Makes options of a session.

    Raises:
        ModelError: ONNX Runtime cannot load it so.
    """
    single: set[Kind] = set()
    while True:
        made = in_double(model, single)
        found = _session(made, sess_options)
        if not isinstance(found, ModelError):
            return lambda feeds: run_session(found, feeds)
        kinds = {n.name: (n.domain, n.op_type) for n in made.graph}
        kind = kinds.get(found.node or "") or _hidden(model, single, found, sess_options)
        if kind is None or kind in single:
            raise found
        single.add(kind)


def _session(model: ir.Model, sess_options: Callable[[], Any]) -> Any:
    """A session of the model, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "double.onnx")
        ir.save(model, path, external_data="double.bin")
        try:
            return plain_session(path, sess_options())
        except ModelError as error:
            return error


def _hidden(
    model: ir.Model, single: set[Kind], error: ModelError, sess_options: Callable[[], Any]
) -> Kind | None:
    """An operator that is a function, in whose body a node has no kernel; that has no name."""
    for kind in sorted({(n.domain, n.op_type) for n in model.graph} - single):
        domain, op_type = kind
        if not onnx.defs.has(op_type, domain):
            continue
        schema: Any = onnx.defs.get_schema(op_type, domain)
        if schema.has_function or schema.has_context_dependent_function:
            found = _session(in_double(model, {*single, kind}), sess_options)
            if not isinstance(found, ModelError) or found.message != error.message:
                return kind
    return None


def in_double(model: ir.Model, single: Collection[Kind]) -> ir.Model:
    """A copy whose float32 numbers are float64, but for inputs, and for some operators.

    Args:
        model: The model.
        single: Operators that stay, by domain and type.

    Raises:
        ModelError: One of them is in the body of another.
    """
    model = model.clone()
    if model.functions:
        common.InlinePass()(model)
    types = {name: found.dtype for name, found in infer(model).items()}
    for count, node in enumerate(model.graph.all_nodes()):
        node.name = f"n{count}"
    kept = [n for n in model.graph if (n.domain, n.op_type) in single]
    wide = [n for n in model.graph.all_nodes() if n not in kept]
    if any((n.domain, n.op_type) in single for n in wide):
        raise ModelError("an operator in a body has no kernel for float64")
    was_single = [
        v
        for graph in model.graphs()
        for v in _results(graph, body=graph is not model.graph)
        if types.get(v.name or "", v.dtype) == SINGLE
    ]
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype == SINGLE:
                value.const_value = ir.Tensor(tensor.numpy().astype(np.float64), name=value.name)
                was_single.append(value)
    for node in wide:
        _widen(node)
    for value in was_single:
        value.type = ir.TensorType(DOUBLE)
    for value in list(model.graph.inputs):
        if value.dtype == SINGLE and value.name not in model.graph.initializers:
            was_single.append(_cast_input(model.graph, value))
    numbers = set(map(id, was_single))
    for node in kept:
        _wrap(model.graph, node, numbers)
    model.opset_imports.setdefault("", 17)
    return model


def _results(graph: ir.Graph, *, body: bool) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs
    if body:
        yield from graph.inputs


def _widen(node: ir.Node) -> None:
    """Types and tensors in a node's attributes."""
    for name, attribute in list(node.attributes.items()):
        if name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT:
            if attribute.as_int() == SINGLE:
                node.attributes[name] = ir.AttrInt64(name, int(DOUBLE))
        elif attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype == SINGLE:
                node.attributes[name] = ir.AttrTensor(name, _double(tensor.numpy()))
    if (node.domain, node.op_type) == ("", "Constant"):
        for name in ("value_float", "value_floats"):
            found = node.attributes.pop(name, None)
            if found is not None:
                numbers = np.asarray(found.value, np.float64)
                node.attributes["value"] = ir.AttrTensor("value", _double(numbers))
    if (node.domain, node.op_type) == ("", "ConstantOfShape") and not node.attributes:
        node.attributes["value"] = ir.AttrTensor("value", _double(np.zeros(1)))


def _double(x: np.ndarray) -> ir.TensorProtocol:
    return ir.Tensor(x.astype(np.float64))


def _cast_input(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Every reader of an input gets it as float64."""
    result = ir.val(f"{value.name} as float64", DOUBLE)
    for reader, place in tuple(value.uses()):
        reader.replace_input_with(place, result)
    cast = ir.node("Cast", [value], {"to": int(DOUBLE)}, outputs=[result])
    cast.name = f"wide {value.name}"
    graph.insert_before(next(iter(graph)), cast)
    return result


def _wrap(graph: ir.Graph, node: ir.Node, numbers: set[int]) -> None:
    """Casts around a node that stays float32."""
    for place, value in enumerate(node.inputs):
        if value is not None and id(value) in numbers:
            cast = ir.node("Cast", [value], {"to": int(SINGLE)}, name=f"{node.name} in {place}")
            cast.outputs[0].name = f"{node.name} narrow {place}"
            graph.insert_before(node, cast)
            node.replace_input_with(place, cast.outputs[0])
    for output in node.outputs:
        if id(output) in numbers and output.name:
            result = ir.val(output.name, DOUBLE)
            output.replace_all_uses_with(result, replace_graph_outputs=True)
            output.name, output.type = f"{output.name} narrow", ir.TensorType(SINGLE)
            cast = ir.node("Cast", [output], {"to": int(DOUBLE)}, outputs=[result])
            cast.name = f"{node.name} {result.name}"
            graph.insert_after(node, cast)
