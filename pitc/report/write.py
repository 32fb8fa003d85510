"""Reports as a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pitc.artifact.folder import new_file
from pitc.ir.report import Report
from pitc.report.evidence import Evidence


def write_report(path: Path, reports: Sequence[Report], evidence: Evidence | None = None) -> None:
    """Write reports of one model to a `.json` or `.html` file.

    Args:
        path: The file.
        reports: What was compiled, for each kind of machine.
        evidence: What is known beside them.

    Raises:
        UsageError: The file cannot be written.
        MachineError: The disk is full.
    """
    if path.suffix == ".json":
        text = json.dumps(body_of(reports, evidence), indent=1) + "\n"
    else:
        from pitc.report.page import page

        text = page(reports, evidence)
    with new_file(path) as scratch:
        scratch.write_text(text, "utf-8")


def body_of(reports: Sequence[Report], evidence: Evidence | None = None) -> dict[str, Any]:
    """The JSON form of reports: the first one's fields; `reports` by kind of machine where there
    are several; what is known beside them, as far as it is.
    """
    known = evidence or Evidence()
    body = reports[0].to_dict()
    if len(reports) > 1:
        body["reports"] = {report.kind: report.to_dict() for report in reports}
    if known.contractions is not None:
        body["contractions"] = [asdict(c) for c in known.contractions]
        body["convolutions"] = [asdict(c) for c in known.convolutions]
        body["attentions"] = [asdict(a) for a in known.attentions]
        body["grouped"] = [asdict(g) for g in known.grouped]
    if known.race is not None:
        body["race"] = known.race.to_dict()
    if known.profiles is not None:
        before, after = map(asdict, known.profiles)
        body["profiles"] = {"before": before, "after": after}
    return body | ({"peak_bytes": dict(known.memory)} if known.memory else {})
