"""`pitc compile`."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pitc import api
from pitc.artifact.folder import check_file
from pitc.cli import command_line, show
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.steps import Steps
from pitc.errors import SuggestionWarning, UsageError

if TYPE_CHECKING:
    from pitc.config import Settings


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
    if model is None:
        raise UsageError("Missing argument 'MODEL.onnx'", hint="see pitc compile --help")
    folder = settings.path("output") or Path(f"{model.stem}.pitc")
    report = settings.path("report")
    if report is not None:
        check_file(report, (".json", ".html"), "report")
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
    if report is not None:
        from pitc.report.evidence import Evidence
        from pitc.report.write import write_report

        write_report(report, list(made.reports.values()), Evidence(command_line()))
    if json:
        body = made.manifest.to_dict()
        told = {kind: report.to_dict() for kind, report in made.reports.items()}
        print_json(body | {"path": str(folder), "report": made.report.to_dict(), "reports": told})
    else:
        show.compiled(str(folder), made.manifest, list(made.reports.values()))
