"""`pitc export`."""

from pathlib import Path
from typing import TYPE_CHECKING

from pitc.cli.models import settings_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.show import console, size
from pitc.cli.steps import Steps
from pitc.frontends.pretrained import write_onnx

if TYPE_CHECKING:
    from pitc.cli.options import Export

STAGES = ("load", "export", "write")


def export_folder(options: "Export") -> None:
    """`pitc export`."""
    file = options.output or Path(f"{options.folder.absolute().name}.onnx")
    with warnings_as_lines(), Steps(STAGES, quiet=settings_of(options).quiet) as steps:
        beside = write_onnx(options.folder, file, force=options.force, stage=steps)
    made = [file] if beside is None else [file, beside]
    if options.json:
        body = {str(path): path.stat().st_size for path in made}
        print_json({"model": str(file), "files": body})
        return
    out = console()
    for path in made:
        out.print(f"{path}  {size(path.stat().st_size)}", markup=False, soft_wrap=True)
    out.print(f"next: pitc compile {file}", markup=False, soft_wrap=True)
