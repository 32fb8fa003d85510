"""What a run has done, in a file that outlives the processes that do it.

A process that works through cases appends a line whenever something of a case is known: the whole
record of it, so that the last line of a case counts. A process may end in the middle of a line, of
a part, of a case; the next one reads what was done, and goes on behind it.

    gemm-4096  doing mma128x128                       it has begun
    gemm-4096  doing -           error of mma128x128  it was right, and is timed later
    gemm-4096  doing mma64x128                        the process dies here
    gemm-4096  doing -           failed mma64x128     who watches it writes so, and starts another
    gemm-4096  done              times of all others
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

Result = dict[str, Any]
T = TypeVar("T")

LOST = 75
"""Exit code of a process whose device works again only in a new process."""
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a case.

    Args:
        step: The step that it is of.
        name: Its name, unlike others of the step.
        doing: The part that has begun and has not ended; empty between parts.
        done: Nothing more will be known of it.
        result: What was found until now.
        failed: Why parts failed, by their names; of the case itself by the empty name.
    """

    step: str
    name: str
    doing: str = ""
    done: bool = False
    result: Result = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def after(self, failure: str) -> "Record":
        """The record when the process ended in the middle: the part has failed, or the case."""
        failed = {**self.failed, self.doing: failure}
        return replace(self, doing="", done=not self.doing, failed=failed)


class Lost(Exception):
    """The device works again only in a new process."""


class Journal:
    """The file.

    Args:
        path: It need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self.lines = 0
        """How many were read."""
        self.last: Record | None = None
        """The last one."""
        self._records: dict[tuple[str, str], Record] = {}

    def write(self, record: Record) -> None:
        """Append what is known of a case."""
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def read(self) -> None:
        """Read what was appended, whole lines only."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            self.last = record = Record(**json.loads(line))
            self._records[record.step, record.name] = record
            self.lines += 1

    def records(self) -> list[Record]:
        """The last record of each case, in the order in which they began."""
        self.read()
        return list(self._records.values())

    def of(self, step: str, name: str) -> Record:
        """What is known of a case."""
        self.read()
        return self._records.get((step, name), Record(step, name))

    def repaired(self) -> None:
        """Cut off what a process that was killed has written of a line."""
        if self.path.is_file():
            text = self.path.read_bytes()
            self.path.write_bytes(text[: text.rfind(b"\n") + 1])


class Telling:
    """Tells of one case while it runs.

    Args:
        journal: Where to.
        record: What is known of the case.
        is_lost: Whether the device works again only in a new process.
    """

    def __init__(self, journal: Journal, record: Record, is_lost: Callable[[], bool]) -> None:
        self._journal, self.is_lost = journal, is_lost
        self._record = replace(record, doing="")

    @property
    def failed(self) -> dict[str, str]:
        """Why parts failed."""
        return self._record.failed

    def tell(self, **facts: Any) -> None:
        """Something is known."""
        self._write(result={**self._record.result, **facts})

    def attempt(self, part: str, work: Callable[[], T]) -> T | None:
        """Do a part of the case. What fails is told; one that failed before is not tried.

        Args:
            part: Its name; empty for the case itself.
            work: Does it.

        Returns:
            What `work` returns; None if it fails.

        Raises:
            Lost: The device was lost with it.
        """
        if part in self.failed:
            return None
        self._write(doing=part)
        try:
            made = work()
        except Lost:
            raise
        except Exception as error:
            self.fail(part, brief(error))
            if self.is_lost():
                raise Lost from error
            return None
        self._write(doing="")
        return made

    def fail(self, part: str, why: str) -> None:
        """A part has failed."""
        self._write(doing="", failed={**self.failed, part: why})

    def end(self) -> None:
        """Nothing more will be known of the case."""
        self._write(doing="", done=True)

    def _write(self, **changed: Any) -> None:
        self._record = replace(self._record, **changed)
        self._journal.write(self._record)


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a step.

    Args:
        name: Its name.
        facts: What is known of it before it runs, JSON.
        run: Runs it, and returns what is known in the end besides what it told.
    """

    name: str
    facts: Result
    run: Callable[[Telling], Result]


def run_cases(
    step: str, cases: Iterator[Case], journal: Journal, is_lost: Callable[[], bool]
) -> None:
    """Run cases that are not done yet, each caught by itself.

    Raises:
        Lost: The device works again only in a new process; the journal says who lost it.
    """
    for case in cases:
        record = journal.of(step, case.name)
        if record.done:
            continue
        telling = Telling(journal, record, is_lost)
        telling.tell(case={"name": case.name, **case.facts})
        try:
            found = telling.attempt("", lambda case=case, telling=telling: case.run(telling))
        except Lost:
            if "" in telling.failed:  # no part is to blame, so the case is not tried again
                telling.end()
            raise
        telling.tell(**(found or {}))
        telling.end()


def brief(error: BaseException) -> str:
    """An error as a line."""
    return " ".join(str(error).split())[:_LONGEST] or type(error).__name__
