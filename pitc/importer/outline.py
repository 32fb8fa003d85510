"""What an ONNX file declares. Nothing of it is checked; weights are counted by their sizes."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from pitc.errors import ModelError
from pitc.importer.load import content_of, parsed
from pitc.importer.proto import STANDARD, nodes, tensors

_KINDS = {kind.value: kind for kind in ir.DataType}


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or an output.

    Args:
        name: Its name.
        type: Of a tensor its element type; `sequence(float32)` and the like of others.
        shape: Sizes, names of sizes, or `?` where neither is told; None where the rank is unknown.
    """

    name: str
    type: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True)
class Weights:
    """The constant tensors of a model: initializers, and those in attributes of nodes.

    Args:
        tensors: How many there are.
        elements: Of all of them.
        bytes: Of all of them; of texts, what they take without their lengths.
        by_type: The bytes by element type, the most first.
        files: By name of a file beside the model that holds weights its size, None where there is
            no such file.
    """

    tensors: int
    elements: int
    bytes: int
    by_type: Mapping[str, int]
    files: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Outline:
    """What an ONNX file declares.

    Args:
        bytes: Size of the file.
        ir_version: The version of its format.
        producer: What has written it, with a version.
        graph: The graph's name.
        opsets: Versions of operator sets by domain, `ai.onnx` for the standard one.
        inputs: What a caller has to give.
        outputs: What it gives.
        sizes: Names of sizes, and the inputs and outputs that have them.
        nodes: How many nodes there are, those of bodies and functions too.
        operators: How many of each operator, the most first; with its domain, if that is not the
            standard one.
        functions: Names of the model's own functions.
        weights: Its weights.
        metadata: Texts that the model carries.
    """

    bytes: int
    ir_version: int
    producer: str
    graph: str
    opsets: Mapping[str, int]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    sizes: Mapping[str, tuple[str, ...]]
    nodes: int
    operators: Mapping[str, int]
    functions: tuple[str, ...]
    weights: Weights
    metadata: Mapping[str, str]


def outline(path: Path) -> Outline:
    """Read what an ONNX file declares.

    Raises:
        ModelError: It cannot be read, or is no ONNX model.
    """
    content = content_of(path)
    proto = parsed(content, path)
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError("is not an ONNX model: it has no graph or IR version", path=path)
    graph = proto.graph
    own = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = tuple(_declared(v) for v in graph.input if v.name not in own)
    outputs = tuple(map(_declared, graph.output))
    sizes: dict[str, dict[str, None]] = {}
    for value in (*inputs, *outputs):
        for dim in value.shape or ():
            if isinstance(dim, str) and dim != "?":
                sizes.setdefault(dim, {})[value.name] = None
    every = [_operator(node) for node in nodes(proto)]
    return Outline(
        bytes=len(content),
        ir_version=proto.ir_version,
        producer=" ".join(x for x in (proto.producer_name, proto.producer_version) if x),
        graph=graph.name,
        opsets={o.domain or STANDARD[1]: o.version for o in proto.opset_import},
        inputs=inputs,
        outputs=outputs,
        sizes={name: tuple(found) for name, found in sizes.items()},
        nodes=len(every),
        operators=_most_first(Counter(every)),
        functions=tuple(f"{f.domain}::{f.name}" for f in proto.functions),
        weights=_weights(proto, path),
        metadata={p.key: p.value for p in proto.metadata_props},
    )


def _declared(value: onnx.ValueInfoProto) -> Declared:
    kind, shape = _type(value.type)
    return Declared(value.name, kind, shape)


def _type(proto: onnx.TypeProto) -> tuple[str, tuple[int | str, ...] | None]:
    """The words for a type, and the shape of its tensors."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        name = _element(tensor.elem_type)
        shape = _shape(tensor.shape) if tensor.HasField("shape") else None
        return name if kind == "tensor_type" else f"sparse({name})", shape
    if kind in ("sequence_type", "optional_type"):
        name, shape = _type(getattr(proto, kind).elem_type)
        return f"{kind.removesuffix('_type')}({name})", shape
    if kind == "map_type":
        name, shape = _type(proto.map_type.value_type)
        return f"map({_element(proto.map_type.key_type)}, {name})", shape
    return "?", None


def _element(number: int) -> str:
    name = _KINDS[number].name.lower() if number in _KINDS else f"type {number}"
    return {"float": "float32", "double": "float64"}.get(name, name)


def _shape(proto: onnx.TensorShapeProto) -> tuple[int | str, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in proto.dim)


def _operator(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"


def _weights(proto: onnx.ModelProto, path: Path) -> Weights:
    by_type: Counter[str] = Counter()
    count, elements = 0, 0
    files: dict[str, int | None] = {}
    for tensor in _all_tensors(proto):
        count += 1
        numbers = math.prod(tensor.dims)
        elements += numbers
        by_type[_element(tensor.data_type)] += _bytes(tensor, numbers)
        for entry in tensor.external_data:
            if entry.key == "location":
                file = path.parent / entry.value
                files[entry.value] = file.stat().st_size if file.is_file() else None
    return Weights(count, elements, by_type.total(), _most_first(by_type), files)


def _all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from tensors(proto)
    yield from (sparse.values for sparse in proto.graph.sparse_initializer)


def _bytes(tensor: onnx.TensorProto, numbers: int) -> int:
    """What a tensor takes, by its type and shape."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    kind = _KINDS.get(tensor.data_type)
    if kind is None or kind == ir.DataType.UNDEFINED:
        return len(tensor.raw_data)
    return math.ceil(numbers * kind.bitwidth / 8)


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
