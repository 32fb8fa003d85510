"""`pitc compile`."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pitc import api
from pitc.artifact.folder import check_file
from pitc.cli import show
from pitc.cli.output import print_json
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
    with Steps(api.stages(), quiet=settings.quiet) as steps, warnings.catch_warnings():
        warnings.simplefilter("ignore", SuggestionWarning)  # they are shown below
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
            progress=steps,
            kernel_progress=steps.kernels,
        )
    if report is not None:
        from pitc.cli.page import write_report

        write_report(report, list(made.reports.values()))
    if json:
        body = made.manifest.model_dump(mode="json", exclude={"reports"})
        told = {kind: report.to_dict() for kind, report in made.reports.items()}
        print_json(body | {"path": str(folder), "report": made.report.to_dict(), "reports": told})
    else:
        show.compiled(str(folder), made.manifest, list(made.reports.values()))
