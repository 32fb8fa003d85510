"""The command line: `python -m benchmarks.gpu pack`, here, and `.. run`, where the GPU is."""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import pack
from benchmarks.gpu.steps import STEPS, Report
from benchmarks.gpu.table import table

Result = dict[str, Any]

SCHEMA = 1
RESULTS = pack.ROOT / "benchmarks" / "results" / "gpu"
MINUTES = 9.5
ROUNDS = 15


def parser() -> argparse.ArgumentParser:
    """Commands and options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    made.add_argument("--pack", type=Path, default=pack.ROOT / "build" / "gpu", help="the folder")
    commands = made.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="build all that a machine with a GPU needs")
    packing.add_argument("--archs", default="sm_90", help="sm_90, or several with commas")
    packing.add_argument("--wheels", nargs="*", default=[], help="large ones to take along")
    packing.add_argument("--python", default="3.12", help="version of Python there")
    running = commands.add_parser("run", help="run all of it on this machine's GPU")
    running.add_argument("steps", nargs="*", help=f"of {', '.join(s.name for s in STEPS)}")
    running.add_argument("--minutes", type=float, default=MINUTES, help="for all steps")
    running.add_argument("--small", action="store_true", help="for an emulated device")
    one = commands.add_parser("step", help="one step of a run, in this process")
    one.add_argument("name")
    one.add_argument("told", type=Path)
    one.add_argument("--small", action="store_true")
    return made


def main() -> int:
    """Run a command; 0 if all went well."""
    given = parser().parse_args()
    if given.command == "pack":
        pack.make(given.pack, given.archs.split(","), given.wheels, given.python)
        return 0
    if given.command == "step":
        with given.told.open("a") as told:
            failed = False
            for result in results_of(given.name, given.pack, small=given.small):
                failed |= bool(result.get("failed") or result.get("complaints"))
                told.write(json.dumps(result) + "\n")
                told.flush()
        return int(failed)
    return run(given.pack, given.steps, given.minutes, small=given.small)


def run(folder: Path, names: list[str], minutes: float, *, small: bool) -> int:
    """Run steps; the result file says what came of them."""
    start = time.monotonic()
    if unknown := set(names) - {step.name for step in STEPS}:
        print(f"error: no step is called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if not (folder / pack.FACTS).is_file():
        print(f"error: {folder} is no pack; make it with `make gpu-pack`", file=sys.stderr)
        return 2
    made = json.loads((folder / pack.FACTS).read_text())
    if made["sources"] != pack.sources():
        print(f"error: {folder} is of other sources; run `make gpu-pack` again", file=sys.stderr)
        return 2
    pack.install_wheels(folder)
    environment = pack.environment(folder)
    os.environ.update(environment)
    sys.path.append(str(folder / pack.SITE))

    from benchmarks.gpu.driver import CudaError, Device
    from benchmarks.gpu.facts import gpu_facts

    try:
        machine = gpu_facts(Device())
    except CudaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    slug = re.sub(r"[^a-z0-9]+", "-", machine["gpu"]["name"].lower()).strip("-")
    results = Path(os.environ.get("PITC_RESULTS", RESULTS))
    head = {"schema": SCHEMA, "machine": machine, "pack": made}
    report = Report(results / f"{slug}.json", head)
    steps = [step for step in STEPS if not names or step.name in names]
    options = ["--small"] if small else []

    def command(step: str) -> list[str]:
        own = [sys.executable, "-m", "benchmarks.gpu", "--pack", str(folder)]
        return [*own, "step", *options, step]

    left = 60 * minutes - (time.monotonic() - start)
    whole = report.run(steps, left, {**os.environ, **environment}, command, print)
    print("\n".join(table(report.content["results"])))
    print(report.path)
    return 0 if whole else 1


def results_of(name: str, folder: Path, *, small: bool) -> Iterator[Result]:
    """What a step tells."""
    if name == "tests":
        from benchmarks.gpu.kernel_tests import test_results

        yield from test_results(folder, small=small)
    elif name in ("memcheck", "racecheck"):
        from benchmarks.gpu.kernel_tests import sanitized

        yield from sanitized(folder, name)
    else:
        yield from _timed(name, folder, small=small)


def _timed(name: str, folder: Path, *, small: bool) -> Iterator[Result]:
    """What a step tells that measures, each with the clocks meanwhile."""
    from benchmarks.gpu.cases import CASES, Run
    from benchmarks.gpu.driver import Device
    from benchmarks.gpu.facts import clocks
    from benchmarks.gpu.library import CudaLibrary
    from benchmarks.gpu.products import Machine
    from benchmarks.gpu.sessions import bert_case, session_cases

    archs = json.loads((folder / pack.FACTS).read_text())["archs"]
    rounds = 2 if small else ROUNDS
    if name == "sessions":
        found = session_cases(folder, archs, small=small)
    elif name == "bert":
        found = bert_case(folder, archs, small=small, rounds=rounds)
    else:
        device = Device()
        machine = Machine(device, CudaLibrary(device, folder / "kernels.so"))
        shared = Run(machine, rounds, small)
        shared.find_peers()
        found = CASES[name](shared)
    with clocks() as since_last:
        for result in found:
            yield {**result, "step": name, "clocks": since_last()}
