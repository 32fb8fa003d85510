"""Watches a process that works through steps, and starts another behind a case that ends it.

One fault costs one case, or one part of it: a process that dies, loses its device or does not go on
is ended; its journal says what it was doing, and the next process goes on behind that.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.journal import LOST, Journal, Record
from benchmarks.gpu.steps import Step

START_S = 40.0
"""Seconds from the start of a process to the first thing that it tells."""
_KILLED_S = 10.0
_LINES = 12


@dataclass(frozen=True, slots=True)
class Job:
    """How a process for steps is started.

    Args:
        command: Of a process for some of the steps.
        environment: Its variables.
        finished: Exit codes of a process that has nothing more to do.
    """

    command: Callable[[Sequence[Step]], list[str]]
    environment: Mapping[str, str]
    finished: frozenset[int] = frozenset({0})


class Watched:
    """A process for steps, and those that take its place.

    Args:
        steps: In their order.
        job: How it is started.
        folder: For its journal and what it prints.
    """

    def __init__(self, steps: Sequence[Step], job: Job, folder: Path) -> None:
        self._job, self.steps = job, list(steps)
        self.journal = Journal(folder / "journal")
        self.log = folder / "log"
        self.starts = 0
        self.stopped: dict[str, str] = {}
        """Why steps ended before all of their cases were done."""
        self.seconds = dict.fromkeys((step.name for step in steps), 0.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = 0
        self._step, self._known, self._told, self._seen = self.steps[0], False, 0.0, 0.0
        self._start()

    def _left(self) -> list[Step]:
        return [step for step in self.steps if step.name not in self.stopped]

    def _start(self) -> None:
        self._process, self._known = None, False
        steps = self._left()
        if not steps:
            return
        self.starts += 1
        self._step = steps[0]
        self._told = self._seen = time.monotonic()
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._job.command(steps),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(self._job.environment),
                start_new_session=True,  # so that its children end with it
            )

    def look(self) -> bool:
        """Look after the process.

        Returns:
            Whether there is anything more to wait for.
        """
        if self._process is None:
            return False
        code = self._process.poll()
        self._read()
        now = time.monotonic()
        self.seconds[self._step.name] += now - self._seen
        self._seen = now
        if code is not None:
            self._ended(code)
        elif self.seconds[self._step.name] > self._step.limit_s:
            self._kill(f"the step's {self._step.limit_s:g} s were used up")
            self.stopped[self._step.name] = "timeout"
            self._start()
        elif now - self._told > (limit := self._step.case_s if self._known else START_S):
            self._kill(f"no end within {limit:g} s")
            if self._known:
                self._start()
            else:  # it does not even begin
                self._stop("failed")
        return self._process is not None

    def end(self) -> None:
        """No time is left."""
        if self._process is not None:
            self._kill("no time was left")
            self._stop("no time")

    def tail(self) -> list[str]:
        """The last lines of what was printed."""
        return self.log.read_text(errors="replace").splitlines()[-_LINES:]

    def _read(self) -> None:
        self.journal.read()
        if self.journal.last is None or self.journal.lines == self._lines:
            return
        self._lines, self._known, self._told = self.journal.lines, True, time.monotonic()
        self._step = next(s for s in self.steps if s.name == self.journal.last.step)

    def _open(self) -> list[Record]:
        return [r for r in self.journal.records() if not r.done and r.step not in self.stopped]

    def _ended(self, code: int) -> None:
        open_records = self._open()
        if code in self._job.finished and not open_records:
            self._process = None
            return
        progress = self._known
        if code != LOST:  # else the journal has it
            self._blame("; ".join([f"the process ended: {_told(code)}", *self._said()]))
        if progress or open_records:
            self._start()
        else:
            self._stop("failed")

    def _said(self) -> list[str]:
        return [line for line in self.tail() if line.strip()][-1:]

    def _stop(self, why: str) -> None:
        for step in self._left():
            done = [r.done for r in self.journal.records() if r.step == step.name]
            if not done or not all(done) or step == self._step:
                self.stopped[step.name] = why
        self._process = None

    def _kill(self, why: str) -> None:
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILLED_S)
        except subprocess.TimeoutExpired:  # the driver holds it; a new one may work beside it
            why = f"{why}, and it cannot be killed"
        self._blame(why)

    def _blame(self, why: str) -> None:
        """The case that was under way, or its part, has failed."""
        self.journal.repaired()
        for record in self._open():
            self.journal.write(record.after(why))
        self.journal.read()
        self._lines = self.journal.lines


def _told(code: int) -> str:
    return signal.strsignal(-code) or f"signal {-code}" if code < 0 else f"exit code {code}"
