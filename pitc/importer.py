"""Import: an ONNX file or proto as a checked `onnx_ir` model. The input file is only read.

Weights in external files are mapped, not loaded, so models over 2 GB work. Everything that can be
wrong with a file is one line of `ModelError` that names the file and, where there is one, the node.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from pitc.errors import ModelError

CHUNK = 1 << 20  # bytes hashed in one go
OVERRIDABLE_SINCE = 4  # IR version from which a caller may override initializers listed as inputs
_NODE = re.compile(r"Name: (\S+) OpType|node name: ([^\s)]+)|\(node[: ]+'?([^\s')]+)")


def load_model(source: str | os.PathLike[str] | onnx.ModelProto) -> ir.Model:
    """Read and check a model.

    Args:
        source: Path of an ONNX file, or a model in memory without external data.

    Returns:
        The model; big weights stay in their files.

    Raises:
        ModelError: It cannot be read, or is not a valid model.
    """
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return _checked(proto, None)
    path = Path(source)
    return _checked(_read(path), path)


def source_sha256(source: str | os.PathLike[str] | onnx.ModelProto) -> str:
    """Hexadecimal SHA-256 of a model: its file, then its external files in order of their names.

    Raises:
        ModelError: The model cannot be read.
    """
    digest = hashlib.sha256()
    if isinstance(source, onnx.ModelProto):
        digest.update(source.SerializeToString(deterministic=True))
        return digest.hexdigest()
    path = Path(source)
    proto = _read(path)
    files = sorted({_external(t).get("location", "") for t in _tensors(proto) if _is_external(t)})
    for part in (path, *(_contained(path, name, "") for name in files)):
        with part.open("rb") as f:
            while block := f.read(CHUNK):
                digest.update(block)
    return digest.hexdigest()


def _read(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ModelError("is a folder, expected an ONNX file", path=path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except OSError as why:
        raise ModelError(f"cannot be read: {why.strerror}", path=path) from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        hint = "a model over 2 GB keeps its weights in external files"
        raise ModelError(
            "is not an ONNX model, or is cut off", path=path, hint=hint * (len(content) > 1 << 31)
        ) from None
    return proto


def _checked(proto: onnx.ModelProto, path: Path | None) -> ir.Model:
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError("is not an ONNX model: it has no graph or IR version", path=path)
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"has IR version {proto.ir_version}, the newest supported one is {onnx.IR_VERSION}",
            path=path,
        )
    _check_external(proto, path)
    try:
        onnx.checker.check_model(proto if path is None else str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as why:
        raise _invalid(str(why), path) from None
    _densify(proto, path)
    try:
        model = ir.from_proto(proto)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as why:
        raise ModelError(f"cannot be represented: {_first_line(str(why))}", path=path) from None
    if path is not None:
        ir.external_data.set_base_dir(model.graph, path.resolve().parent)
    if model.ir_version < OVERRIDABLE_SINCE:  # there, being listed as an input means nothing
        kept = [v for v in model.graph.inputs if not v.is_initializer()]
        model.graph.inputs[:] = kept
    return model


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _invalid(text: str, path: Path | None) -> ModelError:
    """The checker's many lines as one, with the node it complains about."""
    found = _NODE.search(text)
    node = next((g for g in found.groups() if g), None) if found else None
    return ModelError(f"is not valid ONNX: {_first_line(text)}", path=path, node=node)


# --- external data -------------------------------------------------------------------------------


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _external(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All tensors of the model: initializers and attributes, of subgraphs and functions too."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attr in node.attribute:
        if attr.HasField("t"):
            yield attr.t
        yield from attr.tensors
        if attr.HasField("g"):
            yield from _graph_tensors(attr.g)
        for graph in attr.graphs:
            yield from _graph_tensors(graph)


def _check_external(proto: onnx.ModelProto, path: Path | None) -> None:
    """Every external tensor lies inside an existing file of the model's own folder."""
    for tensor in _tensors(proto):
        if not _is_external(tensor):
            continue
        if path is None:
            raise ModelError(
                f"weight '{tensor.name}' is external data, which a model in memory cannot have",
                hint="pass the path of the model file",
            )
        fields = _external(tensor)
        file = _contained(path, fields.get("location", ""), tensor.name)
        try:
            offset = int(fields.get("offset", "0"))
            length = int(fields.get("length", "-1"))
        except ValueError:
            raise ModelError(
                f"weight '{tensor.name}': offset or length is not a number", path=path
            ) from None
        size = file.stat().st_size
        needed = _bytes_of(tensor)
        if length < 0:
            length = size - offset if needed is None else needed
        if offset < 0 or offset + length > size:
            raise ModelError(
                f"weight '{tensor.name}' is at bytes {offset} to {offset + length} of "
                f"'{file.name}', which has {size}: the file is cut off or not the model's own",
                path=path,
            )
        if needed is not None and length != needed:
            raise ModelError(
                f"weight '{tensor.name}' has {length} bytes of external data, expected {needed}",
                path=path,
            )


def _contained(path: Path, location: str, tensor: str) -> Path:
    """The external file, when it exists and is inside the model's folder."""
    what = f"weight '{tensor}': " if tensor else ""
    folder = path.resolve().parent
    file = folder / location
    inside = bool(location) and not Path(location).is_absolute()
    if not inside or not file.resolve().is_relative_to(folder):
        raise ModelError(
            f"{what}external data '{location}' is outside the model's folder", path=path
        )
    if not file.is_file():
        raise ModelError(f"{what}external data '{location}' is missing", path=path)
    if file.stat().st_nlink > 1:
        raise ModelError(
            f"{what}external data '{location}' has several hard links",
            path=path,
            hint="copy the file",
        )
    return file


def _bytes_of(tensor: onnx.TensorProto) -> int | None:
    """Size of the tensor's data; None for element types without a whole number of bytes."""
    try:
        dtype = ir.DataType(tensor.data_type)
        bits = int(dtype.bitwidth) * int(np.prod(list(tensor.dims), dtype=np.int64))
    except (ValueError, TypeError):
        return None
    return -(-bits // 8)


# --- sparse weights ------------------------------------------------------------------------------


def _densify(proto: onnx.ModelProto, path: Path | None) -> None:
    """Sparse initializers become dense ones: zeros are found again as facts."""
    for sparse in proto.graph.sparse_initializer:
        name = sparse.values.name
        if _is_external(sparse.values) or _is_external(sparse.indices):
            raise ModelError(f"sparse weight '{name}' is external data", path=path)
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        at = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
        dense.reshape(-1)[at] = values
        proto.graph.initializer.append(numpy_helper.from_array(dense, name))
    del proto.graph.sparse_initializer[:]
