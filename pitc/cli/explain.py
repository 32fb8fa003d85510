"""`pitc explain`."""

import fnmatch
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pitc import api
from pitc.artifact.check import check_artifact
from pitc.artifact.folder import check_file
from pitc.cli import command_line, show
from pitc.cli.models import no_options_of_an_artifact, settings_of
from pitc.cli.output import print_json
from pitc.cli.show_nodes import Shown, explained
from pitc.compiled import read_reports
from pitc.errors import UsageError
from pitc.ir.report import NodeRecord, Report
from pitc.ir.summary import summary_of, ways_of

if TYPE_CHECKING:
    from pitc.cli.options import Explain

NEAREST = 3  # names that are offered where nothing fits


def explain_model(options: "Explain") -> None:
    """`pitc explain`."""
    from pitc.cli.plot import check_plot, draw_decisions
    from pitc.measure.trace import contractions
    from pitc.measure.trace_channels import convolutions
    from pitc.measure.trace_groups import grouped_products
    from pitc.measure.trace_lines import Trace, read_lines
    from pitc.measure.trace_pairs import attentions
    from pitc.report.evidence import Evidence
    from pitc.report.write import body_of, write_report

    model, pattern = options.model, options.node
    if options.report is not None:
        check_file(options.report, (".json", ".html"), "report")
    if options.plot is not None:
        if options.trace is None:
            raise UsageError("--plot shows decisions", hint="name a trace by --trace")
        check_plot(options.plot)
    lines = Trace([], []) if options.trace is None else read_lines(options.trace)
    reports, versions = _reports(options)
    shown = reports
    if pattern is not None:
        shown = [replace(x, nodes=[r for r in x.nodes if _fits(r, pattern)]) for x in reports]
        if not any(x.nodes for x in shown):
            raise UsageError(
                f"no node matches {pattern!r}", path=model, hint=_nearest(reports, pattern)
            )
    if options.refused:
        shown = [replace(x, nodes=_refused(x.nodes)) for x in shown]
    kept = {r.node for x in shown for r in x.nodes}
    decisions = [d for d in lines.products if pattern is None or d.node in kept]
    gated = convolutions([d for d in lines.channels if pattern is None or d.node in kept])
    attended = attentions([d for d in lines.pairs if pattern is None or d.node in kept])
    grouped = grouped_products([d for d in lines.groups if pattern is None or d.node in kept])
    traced = None if options.trace is None else contractions(decisions)
    known = Evidence(
        command_line(),
        versions=versions,
        decisions=decisions,
        contractions=traced,
        convolutions=gated,
        attentions=attended,
        grouped=grouped,
    )
    if options.json:
        print_json(_of_all(body_of(shown, known), reports))
    else:
        asked = options.refused or pattern is not None
        what = Shown(asked=asked, whole=options.whole, facts=options.facts)
        for report, each in zip(reports, shown, strict=True):
            explained(report, each.nodes, what, titled=len(reports) > 1)
        if traced is not None:
            show.decided(known, reports[0].sparse)
    if options.report is not None:
        write_report(options.report, reports, known)
    if options.plot is not None:
        draw_decisions(options.plot, decisions, reports[0].model)


def _reports(options: "Explain") -> tuple[list[Report], Mapping[str, str]]:
    """The reports of a model or an artifact, one for each kind of machine; and the versions of what
    made the artifact.
    """
    if os.path.isdir(options.model):
        no_options_of_an_artifact(options)
        check = check_artifact(options.model, hashes=False)
        reports = read_reports(check)
        return list(reports.values()), check.manifest.versions if check.manifest else {}
    settings = settings_of(options)
    found = api.explain(
        options.model,
        settings.target,
        settings.text("padding"),
        precision=settings.precision,
        suggest=options.suggest,
        tiles=settings.path("tiles"),
    )
    return list(found.values()), {}


def _names(record: NodeRecord) -> tuple[str, ...]:
    """What a pattern may fit: the node, its operator with the domain and without."""
    return record.node, record.op_type, record.op_type.rpartition("::")[2]


def _fits(record: NodeRecord, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for text in _names(record))


def _nearest(reports: Iterable[Report], pattern: str) -> str:
    """Names that are like a pattern that fits none."""
    names = dict.fromkeys(n for x in reports for record in x.nodes for n in _names(record))
    by_case = {name.casefold(): name for name in names}
    plain = pattern.strip("*").casefold()
    inside = [name for folded, name in by_case.items() if plain and plain in folded]
    like = [by_case[x] for x in get_close_matches(plain, by_case, NEAREST, 0.4)]
    found = list(dict.fromkeys([*like, *inside]))[:NEAREST]
    return f"nearest names: {', '.join(found)}" if found else "`pitc explain` lists all nodes"


def _refused(records: Iterable[NodeRecord]) -> list[NodeRecord]:
    """The nodes that a refusal stands on, and not only that nothing was found."""
    known = list(records)
    return [r for r, way in zip(known, ways_of(known), strict=True) if way == "refused"]


def _of_all(body: dict[str, Any], reports: Sequence[Report]) -> dict[str, Any]:
    """The JSON form of some nodes, with the summaries of all."""
    body["summary"] = asdict(summary_of(reports[0]))
    for report in reports:
        if "reports" in body:
            body["reports"][report.kind]["summary"] = asdict(summary_of(report))
    return body
