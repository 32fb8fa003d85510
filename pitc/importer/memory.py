"""Models that come in memory: as a proto, as bytes, or as a graph of `onnx_ir`.

What fits into one proto is imported from it. What does not, or keeps weights elsewhere, is first
written to a folder, one tensor after the other: no proto holds more than 2 GB.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from pitc.errors import ModelError, UsageError
from pitc.importer.load import parsed
from pitc.importer.proto import PROTO_BYTES, copy_but, tensors

#: What is compiled: a file, or a model in memory.
AnyModel = str | Path | bytes | onnx.ModelProto | ir.Model

#: Everything in a proto but its tensors.
_REST = 1 << 26
_WEIGHTS = "weights.bin"
#: Smaller tensors stay in the model file.
_INLINE_BYTES = 1024
_ALIGNMENT = 4096


@contextmanager
def imported_from(model: object) -> Iterator[Path | onnx.ModelProto]:
    """What the importer reads: a file, or a proto that fits into one.

    Args:
        model: `AnyModel`; it is not changed.

    Yields:
        The file or proto; of a large model, a file in a temporary folder that vanishes at the end.

    Raises:
        ModelError: The bytes are no ONNX model, or more than weights is over 2 GB.
        UsageError: It is something else.
    """
    if isinstance(model, str | Path):
        yield Path(model)
    elif isinstance(model, bytes):
        yield parsed(model)
    elif isinstance(model, onnx.ModelProto) and _tensor_bytes(model) <= PROTO_BYTES - _REST:
        yield model
    elif isinstance(model, onnx.ModelProto | ir.Model):
        with tempfile.TemporaryDirectory(prefix="pitc-") as folder:
            file = Path(folder, f"{_file_name(model.graph.name)}.onnx")
            try:
                if isinstance(model, ir.Model):
                    copy = model.clone()
                    ir.save(copy, file, external_data=_WEIGHTS, size_threshold_bytes=_INLINE_BYTES)
                else:
                    _save(model, file)
            except (EncodeError, RuntimeError, ValueError) as why:
                hint = "besides the weights of its main graph it has to fit into 2 GB"
                raise ModelError(f"the model cannot be written: {why}", hint=hint) from why
            try:
                yield file
            except ModelError as error:  # nobody knows the file
                if error.path is None or Path(str(error.path)) != file:
                    raise
                raise ModelError(error.message, node=error.node, hint=error.hint) from error
    else:
        kind = type(model).__qualname__
        hint = "it takes a path, bytes, an onnx.ModelProto or an onnx_ir.Model"
        if hasattr(model, "state_dict"):
            hint = "pitc.from_torch exports a torch module and compiles it"
        raise UsageError(f"{kind} is not an ONNX model", hint=hint)


def _file_name(graph: str | None) -> str:
    """The graph's name, as far as it may be that of a file."""
    return re.sub(r"[^\w-]", "_", graph or "")[:100] or "model"


def _tensor_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of the model's tensors, about: those of large ones, not of their fields."""
    return sum(len(t.raw_data) or _entry_bytes(t) for t in tensors(proto))


def _entry_bytes(tensor: onnx.TensorProto) -> int:
    entries = len(tensor.float_data) + len(tensor.int32_data)
    return 4 * entries + 8 * (
        len(tensor.double_data) + len(tensor.int64_data) + len(tensor.uint64_data)
    )


def _save(proto: onnx.ModelProto, file: Path) -> None:
    """Write a model whose large initializers lie in a file beside it."""
    slim = onnx.ModelProto()
    copy_but(proto, slim, "graph")
    copy_but(proto.graph, slim.graph, "initializer")
    with file.with_name(_WEIGHTS).open("xb") as weights:
        for tensor in proto.graph.initializer:
            kept = slim.graph.initializer.add()
            content = _content(tensor)
            if content is None:
                kept.CopyFrom(tensor)
                continue
            weights.write(bytes(-weights.tell() % _ALIGNMENT))
            for name in ("name", "data_type", "doc_string"):
                setattr(kept, name, getattr(tensor, name))
            kept.dims.extend(tensor.dims)
            kept.metadata_props.extend(tensor.metadata_props)
            kept.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": _WEIGHTS, "offset": weights.tell(), "length": len(content)}
            for key, value in place.items():
                kept.external_data.add(key=key, value=str(value))
            weights.write(content)
    file.write_bytes(slim.SerializeToString())


def _content(tensor: onnx.TensorProto) -> bytes | None:
    """The bytes of a large tensor; None: it stays where it is."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None  # which a model in memory cannot have: the importer says so
    if tensor.HasField("raw_data"):
        raw: bytes = tensor.raw_data  # a copy each time that it is asked for
        return raw if len(raw) >= _INLINE_BYTES else None
    if tensor.data_type == onnx.TensorProto.STRING or _entry_bytes(tensor) < _INLINE_BYTES:
        return None
    array: Any = numpy_helper.to_array(tensor)
    if array.dtype.itemsize * 8 != ir.DataType(tensor.data_type).bitwidth:
        return None  # several to a byte
    return np.ascontiguousarray(array).tobytes()
