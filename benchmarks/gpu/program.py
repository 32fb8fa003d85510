"""The command line, `python -m benchmarks.gpu`: `pack` and `keep` here, `run` where the GPU is."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import pack
from benchmarks.gpu.report import merged
from benchmarks.gpu.steps import GROUPS, STEPS, VISITS, Step, chosen

Result = dict[str, Any]
RESULTS = pack.ROOT / "benchmarks" / "results" / "gpu"


def parser() -> argparse.ArgumentParser:
    """Commands and options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    made.add_argument("--pack", type=Path, default=pack.ROOT / "build" / "gpu", help="the folder")
    commands = made.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="build all that a machine with a GPU needs")
    packing.add_argument("--archs", default="sm_90", help="sm_90, or several with commas")
    packing.add_argument("--wheels", nargs="*", default=[], help="large ones to take along")
    packing.add_argument("--bare", action="store_true", help="for a machine without PyTorch")
    packing.add_argument("--python", default="3.12", help="version of Python there")
    running = commands.add_parser("run", help="run all of it on this machine's GPU")
    running.add_argument(
        "steps",
        nargs="*",
        help=f"in their order; visits {', '.join(VISITS)} (the first by default),"
        f" groups {', '.join(GROUPS)}, steps {', '.join(STEPS)}",
    )
    running.add_argument("--minutes", type=float, help="for all steps")
    running.add_argument("--small", action="store_true", help="for an emulated device")
    running.add_argument("--case-seconds", type=float, help="limit of a case, for all steps")
    one = commands.add_parser("work", help="steps of a run, in this process")
    one.add_argument("journal", type=Path)
    one.add_argument("steps", nargs="+")
    one.add_argument("--small", action="store_true")
    profiled = commands.add_parser("launch", help="launch one kernel, for a profiler")
    profiled.add_argument("name")
    profiled.add_argument("--small", action="store_true")
    keeping = commands.add_parser("keep", help="add result files that came back to those here")
    keeping.add_argument("files", type=Path, nargs="+")
    return made


def main() -> int:
    """Run a command; 0 if all went well."""
    given = parser().parse_args()
    if given.command == "pack":
        pack.make(given.pack, given.archs.split(","), given.wheels, given.python, bare=given.bare)
        return 0
    if given.command == "keep":
        for path in merged(given.files, _results()):
            print(path)
        return 0
    if given.command == "work":
        from benchmarks.gpu.worker import work

        work(given.pack, given.journal, given.steps, small=given.small)
        return 0
    if given.command == "launch":
        from benchmarks.gpu.counters import launch

        launch(given.pack, given.name, small=given.small)
        return 0
    return _run(given)


def _results() -> Path:
    return Path(os.environ.get("PITC_RESULTS", RESULTS))


def _refused(text: str, code: int = 2) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code


def _run(given: argparse.Namespace) -> int:
    """Run steps; the result file says what came of them."""
    began = time.time()
    try:
        steps, minutes = chosen(given.steps)
    except KeyError as error:
        return _refused(f"no step is called {error.args[0]}")
    folder: Path = given.pack
    if not (folder / pack.FACTS).is_file():
        return _refused(f"{folder} is no pack; make it with `make gpu-pack`")
    made = json.loads((folder / pack.FACTS).read_text())
    if made["sources"] != pack.sources():
        return _refused(f"{folder} is of other sources; run `make gpu-pack` again")
    pack.install_wheels(folder)
    os.environ.update(pack.environment(folder))
    sys.path.append(str(folder / pack.SITE))

    from benchmarks.gpu.driver import CudaError, Device
    from benchmarks.gpu.facts import gpu_facts
    from benchmarks.gpu.visit import Visit

    try:
        machine = gpu_facts(Device())
    except CudaError as error:
        return _refused(str(error), 3)
    call: Result = {"machine": machine, "pack": made, "arguments": sys.argv[1:]}
    call["began"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    steps = _fitting(steps, given.case_seconds)
    seconds = 60 * (given.minutes or minutes) - (time.time() - began)
    return Visit(folder, _results(), call, small=given.small).run(steps, seconds)


def _fitting(steps: Sequence[Step], case_seconds: float | None) -> list[Step]:
    return [replace(s, case_s=case_seconds) if case_seconds else s for s in steps]
