"""`pitc compile`."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitc import api
from pitc.artifact.folder import check_file, check_output
from pitc.cli import command_line, show
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.errors import SuggestionWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pitc.config import Settings
    from pitc.ir.report import Report
    from pitc.options import Kind


def print_config(settings: "Settings", *, json: bool) -> None:
    """`pitc compile --print-config`."""
    if json:
        from pitc.config import key_of

        print_json({"config": {key_of(n): asdict(v) for n, v in settings.by_name.items()}})
    else:
        print(settings.toml(), end="")


def compile_model(
    model: Path | None,
    settings: "Settings",
    *,
    force: bool,
    check: bool,
    cache: bool,
    json: bool,
    suggest: bool = True,
) -> None:
    """`pitc compile`."""
    model, folder, report = _files(model, settings)
    with warnings_as_lines(), Steps(api.stages(), quiet=settings.quiet) as steps:
        warnings.filterwarnings("ignore", category=SuggestionWarning)  # they are shown below
        made = api.compile(
            model,
            settings.target,
            settings.text("padding"),
            output=folder,
            force=force,
            dump_ir=settings.path("dump_ir"),
            check=check,
            suggest=suggest,
            tiles=settings.path("tiles"),
            cache=cache,
            progress=steps,
            kernel_progress=steps.kernels,
        )
    _write_report(report, made.reports)
    if json:
        print_json(made.manifest.to_dict() | {"path": str(folder)} | _told(made.reports))
    else:
        show.compiled(str(folder), made.manifest, list(made.reports.values()))


def rehearse(
    model: Path | None,
    settings: "Settings",
    stop_after: str | None,
    *,
    force: bool,
    check: bool,
    suggest: bool,
    json: bool,
) -> None:
    """`pitc compile --dry-run` and `--stop-after`: all but kernels and the artifact."""
    model, folder, report = _files(model, settings)
    known = api.stages()
    last = stop_after or "lower"
    if report is not None and last != "lower":
        hint = "--dry-run goes through all of them"
        raise UsageError("--report tells what all stages decided", hint=hint)
    if stop_after is None:  # what stops before is about the graphs
        check_output(folder, force=force, source=model)
    ahead = known[: known.index(last) + 1] if last in known else known
    dump_ir = settings.path("dump_ir")
    with warnings_as_lines(), Steps(ahead, quiet=settings.quiet) as steps:
        reports = api.explain(
            model,
            settings.target,
            settings.text("padding"),
            dump_ir=dump_ir,
            check=check,
            suggest=suggest,
            tiles=settings.path("tiles"),
            stop_after=last,
            progress=steps,
        )
    _write_report(report, reports)
    if json:
        print_json({"stopped_after": last, "path": str(folder)} | _told(reports))
    else:
        show.rehearsed(folder, list(reports.values()), last, dump_ir)


def _files(model: Path | None, settings: "Settings") -> tuple[Path, Path, Path | None]:
    """The model, the artifact to be made of it, and the report."""
    if model is None:
        raise UsageError("Missing argument 'MODEL.onnx'", hint="see pitc compile --help")
    report = settings.path("report")
    if report is not None:
        check_file(report, (".json", ".html"), "report")
    return model, settings.path("output") or Path(f"{model.stem}.pitc"), report


def _write_report(path: Path | None, reports: "Mapping[Kind, Report]") -> None:
    if path is not None:
        from pitc.report.evidence import Evidence
        from pitc.report.write import write_report

        write_report(path, list(reports.values()), Evidence(command_line()))


def _told(reports: "Mapping[Kind, Report]") -> dict[str, Any]:
    """The JSON form of reports; the first one stands by itself, too."""
    told = {kind: report.to_dict() for kind, report in reports.items()}
    return {"report": next(iter(told.values())), "reports": told}
