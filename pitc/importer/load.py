"""Import: an ONNX file or proto as a checked `onnx_ir` model. The input file is only read.

Weights in external files are mapped, not loaded, so models over 2 GB work. Everything that can be
wrong with a file is one line of `ModelError` that names the file and, where there is one, the node.
"""

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from pitc.errors import ModelError, origin_of
from pitc.importer.external_data import check_external, contained, external_files
from pitc.importer.proto import (
    PROTO_BYTES,
    STANDARD,
    check_data,
    densify,
    for_checker,
    leave_types_out,
    light,
    list_inputs,
    name_results,
    name_standard_domain,
    runtime_nodes,
    sort_nodes,
    undecodable,
)
from pitc.ir.digest import file_sha256, of_files, sha256
from pitc.ir.inference import infer, symbol_text

MANIFEST = "manifest.json"  # in an artifact
_NODE = re.compile(r"Name: (.*?) OpType|node name: ([^\s)]+)|\(node[: ]+'?([^\s')]+)", re.DOTALL)


def load_model(source: str | os.PathLike[str] | onnx.ModelProto) -> ir.Model:
    """Read and check a model.

    Args:
        source: Path of an ONNX file, or a model in memory without external data.

    Returns:
        The model; big weights stay in their files. Nodes are in order, sparse weights are dense.

    Raises:
        ModelError: It cannot be read, or is not a valid model.
    """
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return _checked(proto, None)
    path = Path(source)
    return _of_file(parsed(content_of(path), path), path)


def load_source(
    source: str | os.PathLike[str] | onnx.ModelProto,
) -> tuple[ir.Model, str]:
    """`load_model`, and the hexadecimal SHA-256 of what is read for it: of a model's file, or, with
    external files in order of their names, that of theirs.

    Raises:
        ModelError: It cannot be read, or is not a valid model.
    """
    if isinstance(source, onnx.ModelProto):
        return load_model(source), sha256(source.SerializeToString(deterministic=True))
    path = Path(source)
    content = content_of(path)
    with ThreadPoolExecutor(1) as beside:  # hashing lets go of the interpreter
        digest = beside.submit(sha256, content)
        proto = parsed(content, path)
    names = external_files(proto)
    model = _of_file(proto, path)
    digests = [digest.result(), *(file_sha256(contained(path, name)) for name in names)]
    return model, of_files(digests)


def _of_file(proto: onnx.ModelProto, path: Path) -> ir.Model:
    try:
        return _checked(proto, path)
    except ModelError as error:
        if error.path is not None:
            raise
        raise ModelError(error.message, path=path, node=error.node, hint=error.hint) from error


def content_of(path: Path) -> bytes:
    """The bytes of a model's file.

    Raises:
        ModelError: It cannot be read, or is no regular file.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            if (path / MANIFEST).is_file():
                hint = "compile the model that it was made of; pitc inspect names it"
                raise ModelError("is compiled already: an artifact", path=path, hint=hint)
            what = "folder" if stat.S_ISDIR(mode) else "device or pipe"
            raise ModelError(f"is a {what}, expected an ONNX file", path=path)
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except (OSError, ValueError) as why:  # ValueError: a null character in the name
        reason = getattr(why, "strerror", None) or why
        raise ModelError(f"cannot be read: {reason}", path=path) from None


def parsed(content: bytes, path: Path | None = None) -> onnx.ModelProto:
    """The model that bytes hold, those of a file where it has a path.

    Raises:
        ModelError: They hold none.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        text = "is not an ONNX model, or is cut off"
        hint = "a model over 2 GB keeps its weights in external files"
        if path is None:
            text = f"these {len(content)} bytes are not an ONNX model, or cut off"
            hint += ": pass its path"
        large = len(content) > PROTO_BYTES
        raise ModelError(text, path=path, hint=hint if large else None) from None
    return proto


def _checked(proto: onnx.ModelProto, path: Path | None) -> ir.Model:
    _check_text(proto, path)
    _check_versions(proto)
    _check_outside(proto.graph)
    changed = name_standard_domain(proto) | sort_nodes(proto.graph)
    check_external(proto, path)
    untyped = leave_types_out(proto.graph)
    wider = changed or bool(untyped) or not proto.graph.name or not _ranked(proto.graph)
    wider = wider or bool(runtime_nodes(proto))
    # Where files are beside the model, the checker looks for them.
    beside = path is not None and bool(external_files(proto))
    small = light(proto)
    try:
        onnx.checker.check_model(for_checker(small) if wider else str(path) if beside else small)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as why:
        raise _invalid(str(why)) from None
    check_data(proto)
    densify(proto)
    name_results(proto)
    list_inputs(proto)
    try:
        model = ir.from_proto(proto)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as why:
        raise ModelError(f"cannot be represented: {origin_of(why)}") from None
    _detach(model)
    if untyped:
        _declare(model)
    if path is not None:
        ir.external_data.set_base_dir(model.graph, path.resolve().parent)
    return model


def _declare(model: ir.Model) -> None:
    """Say the types and shapes of outputs that are declared by their names only, where ONNX can
    tell them: a kernel's result has to have them.
    """
    known = infer(model)
    dims = (d for v in model.graph.inputs if v.shape is not None for d in v.shape)
    symbols = (d.value for d in dims if isinstance(d, ir.SymbolicDim))
    names: dict[int | str | None, str] = {symbol_text(s): s for s in symbols if s is not None}
    for value in model.graph.outputs:
        found = known.get(value.name or "") if value.type is None else None
        if found is not None and found.dtype != ir.DataType.UNDEFINED:
            value.type = ir.TensorType(found.dtype)
            if found.dims is not None:
                value.shape = ir.Shape([names.get(d, d) for d in found.dims])


def _detach(model: ir.Model) -> None:
    """Take weights out of their proto, which copies them at each look."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            weight = value.const_value
            whole = isinstance(weight, ir.TensorProtoTensor) and weight.dtype.bitwidth % 8 == 0
            if whole and weight is not None and weight.dtype != ir.DataType.STRING:
                value.const_value = ir.Tensor(
                    weight.numpy(),
                    dtype=weight.dtype,
                    name=weight.name,
                    doc_string=weight.doc_string,
                    metadata_props=dict(weight.metadata_props),
                )


def _check_text(proto: onnx.ModelProto, path: Path | None) -> None:
    """Names are UTF-8: ONNX and ONNX Runtime take no other."""
    try:
        str(path.absolute() if path else "").encode()
    except UnicodeEncodeError:
        raise ModelError(
            "the file's name is not UTF-8, which ONNX Runtime cannot open", hint="rename it"
        ) from None
    found = undecodable(proto)
    if found is not None:
        raise ModelError(f"a name in it is not UTF-8: {found[:80]!r}")


def _check_versions(proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError("is not an ONNX model: it has no graph or IR version")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"has IR version {proto.ir_version}, the newest supported one is {onnx.IR_VERSION}",
            hint="pip install -U onnx onnxruntime, or export it again",
        )
    seen: dict[str, int] = {}
    for opset in proto.opset_import:
        domain = "" if opset.domain in STANDARD else opset.domain
        if seen.setdefault(domain, opset.version) != opset.version:
            name = domain or STANDARD[1]
            raise ModelError(f"imports two opsets of {name}: {seen[domain]} and {opset.version}")
    newest = onnx.defs.onnx_opset_version()
    if seen.get("", 0) > newest:
        raise ModelError(
            f"has opset {seen['']}, the newest supported one is {newest}",
            hint="pip install -U onnx onnxruntime, or export it with an older opset",
        )


def _check_outside(graph: onnx.GraphProto) -> None:
    """What a caller hands to the graph has types, and something comes back."""
    if not graph.output:
        raise ModelError("the graph has no outputs, so there is nothing to compute")
    for value in graph.input:
        if value.type.WhichOneof("value") is None:
            raise ModelError(f"input '{value.name}' has no type")


def _ranked(graph: onnx.GraphProto) -> bool:
    types = [v.type for v in (*graph.input, *graph.output)]
    return all(t.tensor_type.HasField("shape") for t in types if t.HasField("tensor_type"))


def _invalid(text: str) -> ModelError:
    """The checker's many lines as one, with the node it complains about."""
    found = _NODE.search(text)
    node = next((g for g in found.groups() if g), None) if found else None
    said = text.partition("==> Context")[0]
    return ModelError(f"is not valid ONNX: {said}", node=node)
