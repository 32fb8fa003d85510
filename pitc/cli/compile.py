"""`pitc compile`."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitc import api
from pitc.artifact.folder import check_file, check_output
from pitc.cli import command_line, show
from pitc.cli.models import settings_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.config import key_of
from pitc.errors import SuggestionWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pitc.cli.options import Compile
    from pitc.config import Settings
    from pitc.ir.report import Report
    from pitc.options import Kind


def compile_model(options: "Compile") -> None:
    """`pitc compile`."""
    settings = settings_of(options)
    if options.print_config:
        _print_config(settings, json=options.json)
    elif options.dry_run or options.stop_after is not None:
        _rehearse(options, settings)
    else:
        _compile(options, settings)


def _print_config(settings: "Settings", *, json: bool) -> None:
    """`--print-config`."""
    if json:
        print_json({"config": {key_of(n): asdict(v) for n, v in settings.by_name.items()}})
    else:
        print(settings.toml(), end="")


def _compile(options: "Compile", settings: "Settings") -> None:
    model, folder, report = _files(options.model, settings)
    with warnings_as_lines(), Steps(api.stages(), quiet=settings.quiet) as steps:
        warnings.filterwarnings("ignore", category=SuggestionWarning)  # they are shown below
        made = api.compile(
            model,
            **_asked(options, settings),
            output=folder,
            force=options.force,
            cache=not options.no_cache,
            progress=steps,
            kernel_progress=steps.kernels,
        )
    _write_report(report, made.reports)
    if options.json:
        print_json(made.manifest.to_dict() | {"path": str(folder)} | _told(made.reports))
    else:
        show.compiled(str(folder), made.manifest, list(made.reports.values()))


def _rehearse(options: "Compile", settings: "Settings") -> None:
    """`--dry-run` and `--stop-after`: all but kernels and the artifact."""
    model, folder, report = _files(options.model, settings)
    known = api.stages()
    last = options.stop_after or "lower"
    if report is not None and last != "lower":
        hint = "--dry-run goes through all of them"
        raise UsageError("--report tells what all stages decided", hint=hint)
    if options.stop_after is None:  # what stops before is about the graphs
        check_output(folder, force=options.force, source=model)
    ahead = known[: known.index(last) + 1] if last in known else known
    with warnings_as_lines(), Steps(ahead, quiet=settings.quiet) as steps:
        asked = _asked(options, settings)
        reports = api.explain(model, **asked, stop_after=last, progress=steps)
    _write_report(report, reports)
    if options.json:
        print_json({"stopped_after": last, "path": str(folder)} | _told(reports))
    else:
        show.rehearsed(folder, list(reports.values()), last, settings.path("dump_ir"))


def _asked(options: "Compile", settings: "Settings") -> dict[str, Any]:
    """What a compilation and its rehearsal are both told."""
    return {
        "target": settings.target,
        "padding": settings.text("padding"),
        "precision": settings.precision,
        "dump_ir": settings.path("dump_ir"),
        "check": options.check,
        "suggest": options.suggest,
        "tiles": settings.path("tiles"),
    }


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
