"""`pitc inspect` and `pitc doctor`: what is there, and does it run?"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pitc.artifact.check import check_artifact
from pitc.cli import show
from pitc.cli.output import print_json, warnings_as_lines
from pitc.compiled import load
from pitc.errors import MachineError, PitcError, UsageError

if TYPE_CHECKING:
    pass


def inspect_artifact(artifact: Path | None, *, ep: bool, json: bool) -> None:
    """`pitc inspect`."""
    if artifact is None:
        raise UsageError("Missing argument 'ARTIFACT'", hint="see pitc inspect --help")
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


def doctor(*, json: bool) -> None:
    """`pitc doctor`."""
    from pitc.host.doctor import examine

    found = examine()
    if json:
        print_json({"findings": [asdict(f) for f in found]})
    else:
        show.findings(found)
    failed = [f.name for f in found if f.status == "fail"]
    if failed:
        raise MachineError(f"not usable: {', '.join(failed)}")
