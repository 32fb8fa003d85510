"""A compile report as one JSON file or one HTML page without any other file."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pitc.artifact.folder import new_file
from pitc.cli.show import contraction_table, convolution_table
from pitc.ir.report import Report
from pitc.measure.trace import Contraction
from pitc.measure.trace_channels import Convolution

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { border-bottom: 1px solid #8884; padding: .25rem .6rem .25rem 0; text-align: left; vertical-
align: top } td { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
"""


def write_report(
    path: Path,
    reports: Sequence[Report],
    traced: Sequence[Contraction] | None = None,
    convolutions: Sequence[Convolution] = (),
) -> None:
    """Write reports of one model to a `.json` or `.html` file.

    Args:
        path: The file.
        reports: What was compiled, for each kind of machine.
        traced: What its sparse contractions decided, where a trace is known.
        convolutions: What its gated convolutions decided.

    Raises:
        UsageError: The file cannot be written.
        MachineError: The disk is full.
    """
    if path.suffix == ".json":
        text = json.dumps(body_of(reports, traced, convolutions), indent=1) + "\n"
    else:
        text = page(reports, traced, convolutions)
    with new_file(path) as scratch:
        scratch.write_text(text, "utf-8")


def body_of(
    reports: Sequence[Report],
    traced: Sequence[Contraction] | None = None,
    convolutions: Sequence[Convolution] = (),
) -> dict[str, Any]:
    """The JSON form of reports: the first one's fields; `reports` by kind of machine where there
    are several; `contractions` and `convolutions` where a trace is known.
    """
    body = reports[0].to_dict()
    if len(reports) > 1:
        body["reports"] = {report.kind: report.to_dict() for report in reports}
    if traced is not None:
        body["contractions"] = [c.to_dict() for c in traced]
        body["convolutions"] = [c.to_dict() for c in convolutions]
    return body


def page(
    reports: Sequence[Report],
    traced: Sequence[Contraction] | None = None,
    convolutions: Sequence[Convolution] = (),
) -> str:
    """The HTML page of reports of one model."""
    first = reports[0]
    decided: list[str] = []
    if traced is not None:
        columns, rows = contraction_table(traced, first.sparse)
        decided = ["<h2>Sparse contractions</h2>", _table(list(columns), rows)]
    if convolutions:
        columns, rows = convolution_table(convolutions, first.sparse)
        decided += ["<h2>Gated convolutions</h2>", _table(list(columns), rows)]
    facts = [["padding", first.padding or "none"], ["target", first.target]]
    parts = [
        f"<h1>{escape(first.model or 'model')}</h1>",
        _table(["option", "value"], facts),
        *decided,
    ]
    for report in reports:
        parts += [f"<h1>{report.kind}</h1>"] if len(reports) > 1 else []
        parts += _sections(report)
    head = f"<meta charset=utf-8><title>pitc report</title><style>{_STYLE}</style>"
    return f"<!doctype html>\n<html lang=en>{head}\n" + "\n".join(parts) + "\n</html>\n"


def _sections(report: Report) -> list[str]:
    """What was done for one kind of machine."""
    body = report.to_dict()
    nodes = [
        [
            n["node"],
            n["op_type"],
            " ".join(n["pit_axes"]),
            "\n".join(record.facts),
            record.outcome,
            record.runs,
            "{code}: {reason} ({hint})".format(**n["refusal"]) if n["refusal"] else "",
        ]
        for n, record in zip(body["nodes"], report.nodes, strict=True)
    ]
    regions = [
        [g.name, g.domain, g.nodes, g.flops_per_row, g.bytes_per_row, g.host_copies]
        for g in report.regions
    ]
    stages = [[name, f"{ms:.1f}"] for name, ms in body["stages_ms"].items()]
    columns = ["region", "domain", "nodes", "flop per row", "bytes per row", "copies to host"]
    return [
        "<h2>Regions</h2>",
        _table(columns, regions),
        "<h2>Assumptions</h2>",
        _table(["assumption"], [[a] for a in body["assumptions"]]),
        "<h2>Notes</h2>",
        _table(["note"], [[n] for n in body["notes"]]),
        "<h2>Nodes</h2>",
        _table(
            ["node", "op", "PIT axes", "facts", "lowering", "engine and tiles", "refusal"], nodes
        ),
        "<h2>Kernels</h2>",
        _table(["symbol"], [[k] for k in body["kernels"]]),
        "<h2>Compile time</h2>",
        _table(["stage", "ms"], stages),
    ]


def _table(columns: list[str], rows: list[list[Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(c)}" for c in columns)
    lines = (
        "<tr>" + "".join(f"<td>{escape(str(cell)).replace(chr(10), '<br>')}" for cell in row)
        for row in rows
    )
    return f"<table><tr>{head}\n" + "\n".join(lines) + "\n</table>"
