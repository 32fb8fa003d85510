"""`pitc inspect` and `pitc doctor`: what is there, and does it run?"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pitc.cli.output import print_json, warnings_as_lines
from pitc.errors import MachineError, PitcError, UsageError

if TYPE_CHECKING:
    from pitc.cli.options import Doctor, Inspect


def inspect_file(options: "Inspect") -> None:
    """`pitc inspect`."""
    file, json = options.file, options.json
    if options.tiles:
        from pitc.cli.tiles import inspect_tiles

        inspect_tiles(file, json=json)
    elif file is None:
        raise UsageError("Missing argument 'FILE'", hint="see pitc inspect --help")
    elif os.path.isdir(file) or not (os.path.lexists(file) or file.suffix == ".onnx"):
        inspect_artifact(file, ep=options.ep, json=json)
    elif options.ep:
        text = "--ep shows how an artifact runs, and it is a model"
        raise UsageError(text, path=file, hint="pitc compile makes an artifact of it")
    else:
        inspect_model(file, json=json)


def inspect_model(file: Path, *, json: bool) -> None:
    """`pitc inspect MODEL.onnx`."""
    from pitc.cli.show_model import outlined
    from pitc.importer.outline import outline

    found = outline(file)
    if json:
        print_json({"model": str(file), **asdict(found)})
    else:
        outlined(file, found)


def inspect_artifact(artifact: Path, *, ep: bool, json: bool) -> None:
    """`pitc inspect ARTIFACT`."""
    from pitc.artifact.check import check_artifact
    from pitc.cli import show
    from pitc.compiled import load
    from pitc.host.placement import Placement, pit_nodes, placement

    check = check_artifact(artifact)
    nodes = pit_nodes(check) if check.runs else {}
    placed: list[Placement] | None = None
    problem: PitcError | None = None
    if ep and check.runs:
        try:
            with warnings_as_lines():
                placed = placement(load(artifact, hashes=False))
        except MachineError as error:  # what is in it can be shown all the same
            problem = error
    if json:
        manifest = check.manifest.to_dict() if check.manifest else None
        words = {name: getattr(check, name) for name in ("problem", "expected", "found", "mend")}
        body = {"state": check.verdict.value, "graph": check.graph, **words, "manifest": manifest}
        body |= {"pit_nodes": nodes}
        if placed is not None:
            body["placement"] = [asdict(p) for p in placed]
        print_json(body)
    else:
        show.inspected(check, nodes)
        if placed is not None:
            show.placed(placed)
    if not check.runs:
        raise check.error()
    if problem is not None:
        raise problem


def doctor(options: "Doctor") -> None:
    """`pitc doctor`."""
    from pitc.cli import show
    from pitc.host.doctor import examine

    found = examine()
    if options.json:
        print_json({"findings": [asdict(f) for f in found]})
    else:
        show.findings(found)
    failed = [f.name for f in found if f.status == "fail"]
    if failed:
        raise MachineError(f"not usable: {', '.join(failed)}")
