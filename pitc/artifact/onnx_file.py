"""A model as an ONNX file, and weights that do not fit into it as a file beside it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pitc.artifact.folder import check_file, new_file
from pitc.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

#: More than this does not fit into one ONNX file with its graph: protobuf ends at 2 GB.
INLINE_BYTES = 1_900_000_000


def check_onnx_file(file: Path, *, force: bool) -> None:
    """Refuse a file that cannot or must not be written, before any work is done.

    Args:
        file: The file to make; `NAME.onnx.data` beside it may hold its weights.
        force: Replace a model of that name.

    Raises:
        UsageError: It exists, has another ending, or cannot be written.
    """
    check_file(file, (".onnx",), "model")
    for path in (file, _beside(file)):
        if os.path.lexists(path) and not (force and path == file):
            hint = "--force replaces it" if path == file else "move it away"
            raise UsageError("the output exists", path=path, hint=hint)


def write_onnx_file(model: "ir.Model", file: Path) -> Path | None:
    """Write a model, whole or not at all.

    Args:
        model: The model.
        file: A file that `check_onnx_file` has let pass.

    Returns:
        The file with the weights, where there are more than `INLINE_BYTES` of them.
    """
    import onnx_ir as ir

    beside = _beside(file)
    large = _weight_bytes(model) > INLINE_BYTES
    try:
        with new_file(file) as scratch:
            if large:
                ir.save(model, scratch, external_data=beside.name)
            else:
                proto = ir.to_proto(model)
                scratch.write_bytes(proto.SerializeToString(deterministic=True))
    except BaseException:
        beside.unlink(missing_ok=True)  # there was none before
        raise
    return beside if large else None


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.data")


def _weight_bytes(model: "ir.Model") -> int:
    values = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(tensor.nbytes for tensor in values if tensor is not None)
