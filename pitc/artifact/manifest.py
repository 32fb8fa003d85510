"""manifest.json: what was built, from what, by what, and the checksum of every file."""

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pitc.artifact.record import read_record
from pitc.ir.digest import file_sha256, sha256
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import (
    KernelRecord,
    NodeRecord,
    RegionRecord,
    Report,
    Suggestion,
    TokenPlace,
    WholeReader,
)
from pitc.options import Kind, Level

SCHEMA = 3

MANIFEST = "manifest.json"
MODEL = "model.onnx"
CUDA_MODEL = "model.cuda.onnx"
FALLBACK = "fallback.onnx"
WEIGHTS = "weights.bin"
KERNELS = "kernels.so"

#: The compiled graph of each kind of machine.
GRAPHS: dict[Kind, str] = {"cpu": MODEL, "cuda": CUDA_MODEL}

#: Every file that an artifact may have: graphs of the machines that it was compiled for, and
#: `kernels.so` where a PIT node needs one.
FILES = (MANIFEST, *GRAPHS.values(), FALLBACK, WEIGHTS, KERNELS)

#: What a report tells of one run of the compiler, or what follows from the rest.
OF_THE_RUN = ("stages_ms", "cache_hits", "cache_misses", "summary")

_SHA256 = re.compile("[0-9a-f]{64}")


def _check_sha256(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"sha256: expected 64 hexadecimal digits, found {text[:64]!r}")


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of one file."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _check_sha256(self.sha256)
        if self.bytes < 0:
            raise ValueError(f"bytes: expected at least 0, found {self.bytes}")


@dataclass(frozen=True)
class Source:
    """The model that was compiled."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        _check_sha256(self.sha256)


@dataclass(frozen=True)
class Options:
    """The user's options that change the result."""

    target: str
    padding: str | None
    precision: str = "float32"


@dataclass(frozen=True)
class Kernels:
    """What `kernels.so` needs from a machine."""

    system: str
    machine: str
    levels: list[Level]
    archs: list[str]
    symbols: list[str]


_END = "\n}"


@dataclass(frozen=True)
class Manifest:
    """Everything that is known about an artifact without opening its other files.

    No field depends on time, place or user: the same inputs and versions give the same bytes. The
    plan version is that of the PIT nodes, None without any. There is a report for each kind of
    machine.
    """

    schema_version: int
    versions: dict[str, str]
    source: Source
    options: Options
    pit_nodes: int
    plan_version: int | None
    kernels: Kernels | None
    files: dict[str, FileRecord]
    reports: dict[Kind, dict[str, Any]]

    def __post_init__(self) -> None:
        if min(self.pit_nodes, self.plan_version or 0) < 0:
            raise ValueError("pit_nodes, plan_version: expected at least 0")

    def text(self) -> str:
        """The one spelling of this manifest, with its own checksum as last field."""
        return _sealed(vars(self))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def _sealed(body: dict[str, Any]) -> str:
    """The text of a body with the checksum of that text as one more field.

    The field is put in front of the closing brace: a long report is spelled once only.
    """
    text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False, default=vars)
    digest = sha256(f"{text}\n")
    return f'{text.removesuffix(_END)},\n "sha256": "{digest}"{_END}\n'


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest and prove that no byte of it was changed.

    Raises:
        ValueError: The bytes are not exactly what `Manifest.text` writes.
    """
    body = json.loads(data.decode())
    if not isinstance(body, dict) or "sha256" not in body:
        raise ValueError("it has no checksum")
    del body["sha256"]
    manifest = read_record(Manifest, body)
    if manifest.text().encode() != data:
        raise ValueError("its checksum does not fit its text")
    return manifest


def schema_of(data: bytes) -> int | None:
    """The schema version that a manifest of any schema claims; None when there is none."""
    try:
        found = json.loads(data.decode())["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file, read once."""
    return FileRecord(bytes=path.stat().st_size, sha256=file_sha256(path))


def report_to_dict(report: Report) -> dict[str, Any]:
    """The part of a report that a manifest has."""
    out = json.loads(json.dumps(report.to_dict()))
    return {name: value for name, value in out.items() if name not in OF_THE_RUN}


def report_from_dict(body: dict[str, Any]) -> Report:
    """Inverse of `report_to_dict`.

    Raises:
        ValueError: The dictionary has other fields than this version of pitc writes.
    """
    try:
        known = {f.name for f in fields(Report)}
        nodes = [_node(record) for record in body.get("nodes", ())]
        regions = [RegionRecord(**record) for record in body.get("regions", ())]
        said = [Suggestion(**record) for record in body.get("suggestions", ())]
        tokens = {name: TokenPlace(**place) for name, place in body["tokens"].items()}
        reader = body.get("whole_reader")
        rest = {key: value for key, value in body.items() if key in known}
        made = {"nodes": nodes, "regions": regions, "suggestions": said, "tokens": tokens}
        made["whole_reader"] = None if reader is None else WholeReader(**_frozen(reader))
        return Report(**(rest | made))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the report is not of this version of pitc: {error}") from error


def _node(record: dict[str, Any]) -> NodeRecord:
    values = _frozen(record)
    values["reads"] = tuple(map(int, record["reads"].split()))
    if record.get("refusal") is not None:
        values["refusal"] = _refusal(record["node"], record["refusal"])
    kernel = record.get("kernel")
    if kernel is not None:
        values["kernel"] = KernelRecord(**_frozen(kernel))
    return NodeRecord(**values)


def _refusal(node: str, body: dict[str, Any]) -> Refusal:
    code = next((code for code in Code if code.id == body["code"]), None)
    if code is None:
        raise KeyError(body["code"])
    also = _refusal(node, body["also"]) if "also" in body else None
    return Refusal(code, node, body["reason"], body["value"], also)


def _frozen(record: dict[str, Any]) -> dict[str, Any]:
    """Fields of a record, lists as tuples."""
    return {key: tuple(x) if isinstance(x, list) else x for key, x in record.items()}
