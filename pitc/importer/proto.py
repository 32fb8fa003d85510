"""Questions about ONNX protos, and the few repairs that the importer makes on its own copy."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from pitc.errors import ModelError
from pitc.ir.nodes import OVERRIDABLE_SINCE

#: A dense tensor above this cannot be part of a model file.
PROTO_BYTES = (1 << 31) - 1
MOST_OPSET = (1 << 31) - 1
UNCHECKED = "pitc.unchecked"
#: ONNX Runtime has these in the standard set, at every version.
RUNTIME_STANDARD = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})

STANDARD = ("", "ai.onnx")  # names of the standard domain; behind the importer it has the first

# --- walks ---------------------------------------------------------------------------------------


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every body inside it and inside functions."""
    yield from _with_bodies(model.graph)
    for function in model.functions:
        yield from _bodies(function.node)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of bodies and functions too."""
    for graph in graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All dense tensors: initializers and attributes, of bodies and functions too."""
    for graph in graphs(model):
        yield from graph.initializer
    for node in nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its bodies capture too."""
    yield from (name for name in node.input if name)
    for body in _own_bodies(node):
        inner = {o for n in body.node for o in n.output}
        inner |= {v.name for v in (*body.input, *body.initializer)}
        names = [*(o.name for o in body.output), *(x for n in body.node for x in reads(n))]
        yield from (name for name in names if name not in inner)


def label(node: onnx.NodeProto) -> str:
    """The node's name, or that of its first output, or its operator."""
    return node.name or next((o for o in node.output if o), node.op_type)


def _own_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _bodies(found: Sequence[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in found:
        for body in _own_bodies(node):
            yield from _with_bodies(body)


def _with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    yield from _bodies(graph.node)


# --- text ----------------------------------------------------------------------------------------


def undecodable(message: Any) -> bytes | None:
    """The first text of a message, or of one inside it, that is not UTF-8; None when all are."""
    large = message.DESCRIPTOR.name == "TensorProto"  # only its name, never its data
    for field, value in message.ListFields() if not large else ():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        for item in [value] if single else value:
            found = item if isinstance(item, bytes) else None
            if hasattr(item, "ListFields"):
                found = undecodable(item)
            if found is not None:
                return found
    return message.name if large and isinstance(message.name, bytes) else None


# --- data ----------------------------------------------------------------------------------------


def check_data(model: onnx.ModelProto) -> None:
    """Every tensor that lies in the model has as many bytes or elements as its shape needs.

    Raises:
        ModelError: One has not, or is of no known type.
    """
    for tensor in _stored(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        name = f"weight '{tensor.name}'" if tensor.name else "a constant"
        try:
            bits = ir.DataType(tensor.data_type).bitwidth
            field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        except (KeyError, TypeError, ValueError):  # TypeError: texts have no width
            if tensor.data_type != onnx.TensorProto.STRING:
                text = f"{name} has the unknown element type {tensor.data_type}"
                raise ModelError(text) from None
            bits, field = 8, "string_data"
        count = math.prod(tensor.dims)
        if min(tensor.dims, default=0) < 0:
            raise ModelError(f"{name} has a negative dimension: {list(tensor.dims)}")
        if tensor.HasField("raw_data"):
            found, needed, unit = len(tensor.raw_data), -(-count * bits // 8), "bytes"
        else:  # complex numbers are two entries, several small ones share one
            each = 2 if field in ("float_data", "double_data") and bits > _WIDTH[field] else 1
            found, unit = len(getattr(tensor, field)), "entries"
            needed = -(-count * each // max(1, 8 // bits))
        if found != needed:
            raise ModelError(f"{name} has {found} {unit} of data, expected {needed}")


_WIDTH = {"float_data": 32, "double_data": 64}


def _stored(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors, the parts of sparse ones too."""
    yield from tensors(model)
    sparse = [s for graph in graphs(model) for s in graph.sparse_initializer]
    for node in nodes(model):
        for attribute in node.attribute:
            sparse += [attribute.sparse_tensor] * attribute.HasField("sparse_tensor")
            sparse += attribute.sparse_tensors
    for one in sparse:
        yield from (one.values, one.indices)


# --- repairs -------------------------------------------------------------------------------------


def name_standard_domain(model: onnx.ModelProto) -> bool:
    """Give the standard domain its short name, the only one that ONNX's checker knows.

    Returns:
        Whether anything changed.
    """
    named = [
        *nodes(model),
        *model.opset_import,
        *(o for f in model.functions for o in f.opset_import),
    ]
    long = [x for x in named if x.domain == STANDARD[1]]
    for x in long:
        x.domain = STANDARD[0]
    for owner in (model, *model.functions) if long else ():
        imports = {(o.domain, o.version): o for o in owner.opset_import}
        kept = list(imports.values())
        del owner.opset_import[:]
        owner.opset_import.extend(kept)
    return bool(long)


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Put the nodes behind those whose results they read, as ONNX demands; others stay in place.

    Returns:
        Whether their order was another one.

    Raises:
        ModelError: They depend on each other.
    """
    maker = {o: i for i, node in enumerate(graph.node) for o in node.output if o}
    needs = [{maker[x] for x in reads(node) if x in maker} for node in graph.node]
    if all(max(need, default=-1) < i for i, need in enumerate(needs)):
        return False
    import networkx as nx  # seldom needed

    links: nx.DiGraph[int] = nx.DiGraph()
    links.add_nodes_from(range(len(needs)))
    links.add_edges_from((j, i) for i, need in enumerate(needs) for j in need)
    try:
        order = list(nx.lexicographical_topological_sort(links))
    except nx.NetworkXUnfeasible:
        back = nx.find_cycle(links.reverse())
        raise _cycle(graph, [i for i, _ in reversed(back)]) from None
    ordered = [graph.node[i] for i in order]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)
    return True


def _cycle(graph: onnx.GraphProto, places: Sequence[int]) -> ModelError:
    """The nodes of one cycle, in the order in which results pass."""
    names = [label(graph.node[i]) for i in places]
    around = " -> ".join(f"'{name}'" for name in (*names[:8], names[0]))
    return ModelError(f"the graph has a cycle: {around}", node=names[0])


def name_results(model: onnx.ModelProto) -> None:
    """Give a name to every result of a call of a function of the model: the function may compute
    with one that its caller does not want.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    if not functions:
        return
    taken = {name for node in nodes(model) for name in (*node.input, *node.output)}
    taken |= {v.name for g in graphs(model) for v in (*g.input, *g.initializer)}
    numbers = itertools.count()
    for node in nodes(model):
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            continue
        node.output.extend([""] * (len(function.output) - len(node.output)))
        for k, name in enumerate(node.output):
            if not name:
                names = (f"{node.op_type}.unwanted{n}" for n in numbers)
                node.output[k] = next(name for name in names if name not in taken)


def leave_types_out(graph: onnx.GraphProto) -> list[str]:
    """Leave out types of maps, which `onnx_ir` does not know: ONNX Runtime knows by itself what a
    node computes.

    Returns:
        Outputs without a type.
    """
    for value in (*graph.output, *graph.value_info):
        if _has_map(value.type):
            value.ClearField("type")
    for value in [v for v in graph.value_info if v.type.WhichOneof("value") is None]:
        graph.value_info.remove(value)
    return [v.name for v in graph.output if v.type.WhichOneof("value") is None]


def _has_map(kind: onnx.TypeProto) -> bool:
    match kind.WhichOneof("value"):
        case "map_type":
            return True
        case "sequence_type":
            return _has_map(kind.sequence_type.elem_type)
        case "optional_type":
            return _has_map(kind.optional_type.elem_type)
    return False


def list_inputs(model: onnx.ModelProto) -> None:
    """Let the inputs of each graph be what it is handed, without constants that are listed too.

    Only a caller of the main graph may override those, and only since IR version 4; older models
    have to list them, so the model becomes one of that version.
    """
    for number, graph in enumerate(graphs(model)):
        if number or model.ir_version < OVERRIDABLE_SINCE:
            constants = {tensor.name for tensor in graph.initializer}
            for k in reversed(range(len(graph.input))):
                if graph.input[k].name in constants:
                    del graph.input[k]
    model.ir_version = max(model.ir_version, OVERRIDABLE_SINCE)


def densify(model: onnx.ModelProto) -> None:
    """Sparse initializers and constants become dense ones: zeros are found again as facts.

    Raises:
        ModelError: One is external data, or too large when it is dense.
    """
    for graph in graphs(model):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, sparse.values.name))
        del graph.sparse_initializer[:]
    for node in nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") and node.op_type == "Constant":
                value = _dense(attribute.sparse_tensor, label(node))
                attribute.CopyFrom(onnx.helper.make_attribute("value", value))


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ModelError(f"sparse weight '{name}' is external data")
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    size = math.prod(sparse.dims) * values.itemsize
    if size > PROTO_BYTES:
        raise ModelError(f"sparse weight '{name}' would take {size} bytes when it is dense")
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    at = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[at] = values
    return numpy_helper.from_array(dense, name)


def runtime_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the main graph whose operator ONNX Runtime has in the standard set and ONNX has not
    (there, or yet): its own optimizer writes them.
    """
    version = next((o.version for o in model.opset_import if o.domain in STANDARD), 1)
    version = min(max(version, 0), MOST_OPSET)  # of a damaged file it may be any number
    return [
        node
        for node in model.graph.node
        if node.op_type in RUNTIME_STANDARD
        and node.domain in STANDARD
        and not onnx.defs.has(node.op_type, version)
    ]


_LARGE = 1024
_NUMBERS = frozenset(onnx.TensorProto.DataType.values()) - {
    onnx.TensorProto.UNDEFINED,
    onnx.TensorProto.STRING,
}
_ENTRIES = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_OTHER_DATA = (*_ENTRIES, "external_data")


def light(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large initializers are empty: a checker that copies them learns nothing.

    Only numbers that are nothing but bytes lose them; the importer checks how many those are.
    """
    copy = onnx.ModelProto()
    copy_but(model, copy, "graph")
    copy_but(model.graph, copy.graph, "initializer")
    for tensor in model.graph.initializer:
        kept = copy.graph.initializer.add()
        if not _is_bytes(tensor) or math.prod(tensor.dims) < _LARGE:
            kept.CopyFrom(tensor)
            continue
        kept.name, kept.data_type, kept.dims[:] = tensor.name, tensor.data_type, [0]
    return copy


def _is_bytes(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is numbers, and its raw bytes are all that it holds."""
    numbers = tensor.data_type in _NUMBERS and tensor.HasField("raw_data")
    others = tensor.HasField("segment") or any(getattr(tensor, name) for name in _OTHER_DATA)
    return numbers and not others


def copy_but(source: Any, target: Any, left_out: str) -> None:
    """Copy all fields of a message but one."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        part = getattr(target, field.name)
        if hasattr(value, "SetInParent"):
            part.SetInParent()
        if hasattr(value, "MergeFrom"):
            part.MergeFrom(value)
        else:
            setattr(target, field.name, value)


def for_checker(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that ONNX's checker takes although ONNX Runtime's rules are wider than its own.

    The graph has a name, inputs and outputs have a type and a rank, operators that only ONNX
    Runtime has in the standard set are in a set that the checker does not know, and external
    tensors, which the importer checks itself, are empty.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.name = copy.graph.name or "graph"
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    for node in runtime_nodes(copy):
        node.domain = UNCHECKED
    copy.opset_import.add(domain=UNCHECKED, version=1)
    for tensor in tensors(copy):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("data_location")
            del tensor.external_data[:]
            tensor.dims[:] = [0]
    return copy
