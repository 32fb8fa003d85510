"""`pitc export`."""

from pathlib import Path

from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.show import console, size
from pitc.cli.steps import Steps
from pitc.config import resolve
from pitc.frontends.pretrained import write_onnx

STAGES = ("load", "export", "write")


def export_folder(
    folder: Path, output: Path | None, *, force: bool, quiet: bool | None, json: bool
) -> None:
    """`pitc export`."""
    file = output or Path(f"{folder.absolute().name}.onnx")
    settings = resolve({"quiet": quiet})
    with warnings_as_lines(), Steps(STAGES, quiet=settings.quiet) as steps:
        beside = write_onnx(folder, file, force=force, stage=steps)
    made = [file] if beside is None else [file, beside]
    if json:
        body = {str(path): path.stat().st_size for path in made}
        print_json({"model": str(file), "files": body})
        return
    out = console()
    for path in made:
        out.print(f"{path}  {size(path.stat().st_size)}", markup=False, soft_wrap=True)
    out.print(f"next: pitc compile {file}", markup=False, soft_wrap=True)
