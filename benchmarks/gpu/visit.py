"""Runs steps on a device within a time, tells what is known as it is, and writes it down."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.gpu import kernel_tests
from benchmarks.gpu.journal import Result
from benchmarks.gpu.report import Report, has_failed, results_of
from benchmarks.gpu.steps import SANITIZED, TESTS, Step, batches
from benchmarks.gpu.supervise import Job, Watched
from benchmarks.gpu.table import line_of

_EACH_S = 0.05
_LEAST_S = 3.0
"""With less time left no step begins."""
_NOTHING_TO_TEST = 5
"""Exit code of pytest: all tests were done by processes before."""
WARMED = "import torch; torch.zeros(1).cuda()"


class Visit:
    """A run of steps.

    Args:
        pack: The folder of kernels.
        results: The folder of the result file and the log.
        call: What the result file says of it.
        small: For an emulated device.
    """

    def __init__(self, pack: Path, results: Path, call: Result, *, small: bool) -> None:
        self._pack, self._small = pack, small
        self._report = Report(results, call)
        self._watched: list[Watched] = []
        self._steps: dict[str, Result] = {}
        self._said: set[str] = set()
        self._before: tuple[list[Result], list[Result]] | None = None
        self._log: TextIO = self._report.path.with_suffix(".log").open("w")

    def run(self, steps: Sequence[Step], seconds: float) -> int:
        """Run steps.

        Args:
            steps: In their order.
            seconds: For all of them.

        Returns:
            0 where all went well, 3 where the driver takes none of the code, else 1.
        """
        end = time.monotonic() + seconds
        refused = ""
        self._steps = {s.name: {"name": s.name, "status": "not begun"} for s in steps}
        with (
            _warming(any(step.has_peers for step in steps)),
            tempfile.TemporaryDirectory() as folder,
        ):
            for number, batch in enumerate(batches(steps)):
                self._batch(batch, Path(folder, str(number)), end)
                refused = next((r["refused"] for r in self._results() if "refused" in r), "")
                if refused:
                    self._say(f"error: {refused}")
                    break
            self._write()
        self._say(str(self._report.path))
        self._log.close()
        whole = all(step["status"] == "ok" for step in self._steps.values())
        return 3 if refused else 0 if whole else 1

    def _batch(self, batch: Sequence[Sequence[Step]], folder: Path, end: float) -> None:
        """Processes side by side, until all of them are done or no time is left."""
        together: list[Watched] = []
        for number, steps in enumerate(batch):
            if end - time.monotonic() < _LEAST_S:
                continue
            if why := self._missing(steps):
                for step in steps:
                    self._steps[step.name] |= {"status": "left out", "why": why}
                continue
            own = folder / str(number)
            own.mkdir(parents=True)
            together.append(Watched(steps, self._job(steps[0], own), own))
        self._watched += together
        waiting = list(together)
        while waiting:
            if time.monotonic() > end:
                for watched in waiting:
                    watched.end()
            ended = [watched for watched in waiting if not watched.look()]
            self._write()
            for watched in ended:
                waiting.remove(watched)
                for step in watched.steps:
                    self._say(self._told(step, watched))
            time.sleep(_EACH_S)

    def _missing(self, steps: Sequence[Step]) -> str:
        tool, file = _tested(steps[0])
        if self._small and file and file not in kernel_tests.FEW:
            return "an emulated device runs few tests"
        return kernel_tests.missing(tool)

    def _job(self, step: Step, folder: Path) -> Job:
        environment = dict(os.environ)
        journal = folder / "journal"
        if step.process == "tests":
            tool, file = _tested(step)
            words = kernel_tests.command(file, tool, small=self._small)
            environment |= kernel_tests.environment(
                self._pack, journal, step.name, sanitized=bool(tool)
            )
            finished = {0, 1, _NOTHING_TO_TEST, *([kernel_tests.COMPLAINED] if tool else [])}
            return Job(lambda _: words, environment, frozenset(finished))
        own = [sys.executable, "-m", "benchmarks.gpu", "--pack", str(self._pack), "work"]
        own += ["--small"] if self._small else []

        def command(steps: Sequence[Step]) -> list[str]:
            return [*own, str(journal), *(step.name for step in steps)]

        return Job(command, environment)

    def _results(self) -> list[Result]:
        found = []
        for watched in self._watched:
            for result in results_of(watched.journal.records(), [*TESTS, *SANITIZED]):
                if result["step"] in SANITIZED:
                    printed = watched.log.read_text(errors="replace").splitlines()
                    result["complaints"] = kernel_tests.complaints(printed)
                found.append(result)
        return found

    def _write(self) -> None:
        """Write down what is known, and tell what is new of it."""
        done = {(r.step, r.name) for w in self._watched for r in w.journal.records() if r.done}
        results = self._results()  # behind `done`: a process writes meanwhile
        for watched in self._watched:
            for step in watched.steps:
                self._steps[step.name] = _state(step, watched, results)
        if (now := (list(self._steps.values()), results)) != self._before:
            self._before = now
            self._report.write(*now)
        for result in results:
            name = result["case"]["name"]
            if (result["step"], name) in done and name not in self._said:
                self._said.add(name)
                self._say(line_of(result))

    def _told(self, step: Step, watched: Watched) -> str:
        state = self._steps[step.name]
        lines = [f"{step.name}: {state['status']}, {state['seconds']:.1f} s"]
        if step.process == "tests":  # told as one
            lines += [line_of(r) for r in self._results() if r["step"] == step.name]
        if state["status"] == "failed" and not state["cases"]:
            lines += [f"  {line}" for line in watched.tail()]
        return "\n".join(lines)

    def _say(self, text: str) -> None:
        print(text, flush=True)
        print(text, file=self._log, flush=True)


def _tested(step: Step) -> tuple[str, str]:
    """The sanitizer's tool and the file of tests; empty where a step has none."""
    return SANITIZED.get(step.name, ("", TESTS.get(step.name, "")))


def _state(step: Step, watched: Watched, results: Sequence[Result]) -> Result:
    of = [result for result in results if result["step"] == step.name]
    failed = sum(map(has_failed, of))
    status = watched.stopped.get(step.name) or ("failed" if failed else "ok")
    state: Result = {"name": step.name, "status": status, "cases": len(of), "failed": failed}
    state |= {"seconds": round(watched.seconds[step.name], 2), "starts": watched.starts}
    return state


@contextmanager
def _warming(wanted: bool) -> Iterator[None]:
    """Read PyTorch's files into the page cache meanwhile: a first import takes half a minute."""
    if not wanted:
        yield
        return
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", WARMED], stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.kill()
        process.wait()
