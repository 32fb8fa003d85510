"""Weights in files beside the model: each lies inside a file of the model's own folder."""

import math
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from pitc.errors import ModelError
from pitc.importer.proto import tensors


def external_files(proto: onnx.ModelProto) -> list[str]:
    """Names of the files that hold weights, sorted, as the model gives them."""
    return sorted({_fields(t).get("location", "") for t in tensors(proto) if _is_external(t)})


def check_external(proto: onnx.ModelProto, path: Path | None) -> None:
    """Check every external tensor.

    Args:
        proto: The model.
        path: Its file; None for a model in memory, which cannot have external tensors.

    Raises:
        ModelError: A file is missing, elsewhere, or too short.
    """
    for tensor in tensors(proto):
        if not _is_external(tensor):
            continue
        if path is None:
            raise ModelError(
                f"weight '{tensor.name}' is external data, which a model in memory cannot have",
                hint="pass the path of the model file",
            )
        fields = _fields(tensor)
        file = contained(path, fields.get("location", ""), tensor.name)
        _check_place(tensor, fields, file)


def contained(path: Path, location: str, tensor: str = "") -> Path:
    """The external file, when it exists and is inside the model's folder.

    Args:
        path: The model's file.
        location: Where the model says that the data is.
        tensor: The weight, for the message.

    Raises:
        ModelError: It is missing, elsewhere, or reachable by another name.
    """
    what = f"weight '{tensor}': " if tensor else ""
    folder = path.resolve().parent
    file = folder / location
    inside = bool(location) and not Path(location).is_absolute()
    try:
        inside = inside and file.resolve().is_relative_to(folder)
    except (OSError, ValueError, RuntimeError) as error:  # no name at all; links in a circle
        text = f"{what}external data '{location}' cannot be found: {error}"
        raise ModelError(text, path=path) from None
    if not inside:
        raise ModelError(
            f"{what}external data '{location}' is outside the model's folder", path=path
        )
    if not os.path.isfile(file):
        raise ModelError(f"{what}external data '{location}' is missing", path=path)
    if not os.access(file, os.R_OK):
        raise ModelError(f"{what}external data '{location}' must not be read", path=path)
    if file.stat().st_nlink > 1:
        raise ModelError(
            f"{what}external data '{location}' has several hard links",
            path=path,
            hint="copy the file",
        )
    return file


def _check_place(tensor: onnx.TensorProto, fields: dict[str, str], file: Path) -> None:
    """The tensor's bytes lie inside the file, and are as many as its shape needs."""
    try:
        offset = int(fields.get("offset", "0"))
        length = int(fields.get("length", "-1"))
    except ValueError:
        raise ModelError(f"weight '{tensor.name}': offset or length is not a number") from None
    size = file.stat().st_size
    needed = _bytes_of(tensor)
    if length < 0:
        length = size - offset if needed is None else needed
    if offset < 0 or offset + length > size:
        raise ModelError(
            f"weight '{tensor.name}' is at bytes {offset} to {offset + length} of "
            f"'{file.name}', which has {size}: the file is cut off or not the model's own"
        )
    if needed is not None and length != needed:
        raise ModelError(
            f"weight '{tensor.name}' has {length} bytes of external data, expected {needed}"
        )


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _fields(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _bytes_of(tensor: onnx.TensorProto) -> int | None:
    """Size of the tensor's data; None for element types without a whole number of bytes."""
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims)
    except (ValueError, TypeError):
        return None
    return -(-bits // 8)
