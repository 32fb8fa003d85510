"""What `pitc inspect` shows of an ONNX file."""

from pathlib import Path
from typing import TYPE_CHECKING

from pitc.cli.show import console, print_table, size
from pitc.errors import one_line

if TYPE_CHECKING:
    from pitc.importer.outline import Declared, Outline

METADATA_CHARS = 200


def outlined(file: Path, found: "Outline") -> None:
    """What an ONNX file declares: a line for each input, output, operator and file."""
    table: list[tuple[str, str]] = []

    def rows(title: str, texts: list[str]) -> None:
        table.extend(("" if i else title, text) for i, text in enumerate(texts))

    rows("model", [f"{file}  {size(found.bytes)}"])
    made_by = f" by {found.producer}" if found.producer else ""
    sets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    rows("format", [f"IR version {found.ir_version}{made_by}; opsets: {sets or 'none'}"])
    rows("graph", [one_line(found.graph)] if found.graph else [])
    rows("inputs", [_declared(value) for value in found.inputs] or ["none"])
    rows("outputs", [_declared(value) for value in found.outputs] or ["none"])
    rows(
        "sizes",
        [one_line(f"{name}: of {', '.join(values)}") for name, values in found.sizes.items()],
    )
    several = f"{found.nodes} node{'s' * (found.nodes != 1)}, {len(found.operators)} operators"
    counts = [f"{count:>6} {one_line(name)}" for name, count in found.operators.items()]
    rows("operators", [several, *counts])
    rows("functions", list(found.functions))
    weights = found.weights
    kinds = ", ".join(f"{name} {size(count)}" for name, count in weights.by_type.items())
    told = f"{weights.tensors} tensors, {weights.elements:,} elements, {size(weights.bytes)}"
    rows("weights", [f"{told}: {kinds}" if kinds else told])
    rows("in files", [_file(name, count) for name, count in weights.files.items()])
    rows("metadata", [one_line(f"{k}: {v}")[:METADATA_CHARS] for k, v in found.metadata.items()])
    print_table(console(), ("", ""), table)


def _declared(value: "Declared") -> str:
    shape = "" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"
    return f"{one_line(value.name)}  {value.type}{shape or ' of unknown rank'}"


def _file(name: str, count: int | None) -> str:
    return f"{name}  {'missing' if count is None else size(count)}"
