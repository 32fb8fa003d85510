"""Judges mutants, a forked child for each: the parent has everything imported and collected."""

import os
import pickle
import random
import resource
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation.judge import Judges, Known, quiet
from tests.mutation.patching import (
    NoMutant,
    forget,
    mark_lines,
    mark_operators,
    put_in_force,
    ready_to_fork,
    statements,
)
from tests.mutation.source import Change
from tests.mutation.tables import ALL, COLUMNS, Entry, Mark
from tests.mutation.targets import MODULES, RELATED

ENDED = "the process ended"
CPU_SECONDS = 90
SLOWER = 20  # times as slow as it was, and SLACK seconds: a check of a mutant goes on no longer
SLACK = 2.0
AGAIN = 0.2  # seconds until what caught the interruption is interrupted once more
MEMORY = 12 << 30  # bytes that a child may map beside what it starts with
Mutant = Change | Entry
FIRST = 30  # the most focused checks; then all others, in random order
CLAIMS = ("test_record_claims", "test_records", "test_operators_page")  # of all operators
RECENT = 6  # killers of the same function's other mutants


@dataclass(slots=True)
class Verdict:
    """What became of one mutant.

    Args:
        key: Of the mutant.
        outcome: One of

            * `killed`: a check fails;
            * `coverage`: fewer facts or other lowerings, and all answers right;
            * `survived`: new facts, which hold wherever they were audited;
            * `unseen`: the changed statement runs, and nothing is different;
            * `unreached`: no check runs the statement;
            * `none`: it is the same program.
        by: The check that killed it.
        why: What that said.
        checks: How many looked.
        seconds: How long that took.
    """

    key: str
    outcome: str
    by: str = ""
    why: str = ""
    checks: int = 0
    seconds: float = 0


class Campaign:
    """Judges mutants by the checks that reach them.

    Args:
        judges: The checks.
        budget: Seconds of checks for a mutant that lives on.
        jobs: Children at a time.
        noticed: The check that killed a mutant before, by the mutant's key: it looks first.
        replay: Of a mutant that was killed before, no other check is asked.
    """

    def __init__(
        self,
        judges: Judges,
        budget: float,
        jobs: int,
        noticed: Mapping[str, str],
        replay: bool = False,
    ) -> None:
        self.judges, self.budget, self.jobs = judges, budget, jobs
        self.noticed, self.replay = noticed, replay
        self.lines = {module: statements(module) for module in MODULES}
        self.reach: dict[Mark, list[str]] = defaultdict(list)
        for name, known in judges.known.items():
            for mark in known.lines:
                self.reach[mark].append(name)
        self.killers: dict[str, list[str]] = defaultdict(list)  # of a function's mutants, by key
        self.kills: Counter[str] = Counter()

    def run(self, changes: Sequence[Mutant]) -> Iterator[Verdict]:
        """Verdicts as they come."""
        with ready_to_fork():
            yield from self._verdicts(changes)

    def _verdicts(self, changes: Sequence[Mutant]) -> Iterator[Verdict]:
        running: dict[int, tuple[Mutant, int, float]] = {}
        waiting = list(reversed(changes))
        while waiting or running:
            while waiting and len(running) < self.jobs:
                change = waiting.pop()
                order = self._order(change)
                if not order:
                    yield self._unreached(change)
                    continue
                pid, pipe = forked(lambda c=change, o=order: asdict(self.judge(c, o)))
                running[pid] = change, pipe, time.perf_counter()
            if not running:
                return
            pid = os.waitpid(-1, 0)[0]
            if pid not in running:
                continue
            change, pipe, start = running.pop(pid)
            found = received(pipe)
            if found is None:
                took = time.perf_counter() - start
                verdict = Verdict(change.key, "killed", ENDED, seconds=took)
            else:
                verdict = Verdict(**found)
            self.kills[verdict.by] += 1
            if verdict.by in self.judges.known:
                recent = self.killers[_function(change)]
                self.killers[_function(change)] = [verdict.by, *recent][:RECENT]
            yield verdict

    def _order(self, change: Mutant) -> list[str]:
        """The checks for a mutant, those most likely to notice first."""
        known = self.judges.known
        before = [n for n in (self.noticed.get(change.key, ""),) if n in known]
        if self.replay and change.key in self.noticed:
            return before
        names = self._reaching(change)
        names.sort(key=lambda n: known[n].seconds * len(known[n].lines))
        related = RELATED.get(change.module.removeprefix("pitc.passes.").removeprefix("pitc."), ())
        if isinstance(change, Entry):
            related = (*CLAIMS, change.operator) if change.module == COLUMNS else (change.operator,)
        first = [n for n in names if any(part in n for part in related)] or names[:FIRST]
        drawn = random.Random(change.key)
        worth = {n: (1 + self.kills[n]) / known[n].seconds * drawn.random() for n in names}
        rest = sorted(set(names) - set(first), key=lambda n: (-worth[n], n))
        recent = [n for n in dict.fromkeys(self.killers[_function(change)]) if n in worth]
        out, left = [], self.budget
        for name in dict.fromkeys([*before, *recent, *first, *rest]):
            left -= known[name].seconds
            if left < 0:
                break
            out.append(name)
        return out

    def _reaching(self, change: Mutant) -> list[str]:
        """The checks that run what is changed."""
        if isinstance(change, Entry):
            every = self.reach[COLUMNS, ALL] if change.module == COLUMNS else ()
            return list({*self.reach[change.mark], *every})
        if change.constant:
            return list(self.judges.known)
        line = self.lines[change.module].get(change.line, change.line)
        return list(self.reach[change.module, line])

    def _unreached(self, change: Mutant) -> Verdict:
        operator = change.key.split(":", 1)[1].split(" | ")[0]
        if isinstance(change, Entry) and self.reach[COLUMNS, operator]:
            return Verdict(change.key, "none", why="it changes no expression that any check makes")
        return Verdict(change.key, "unreached")

    def judge(self, change: Mutant, order: Sequence[str]) -> Verdict:
        """Put a mutant in force, for good, and look until a check fails."""
        start = time.perf_counter()
        try:
            put_in_force(change)
        except NoMutant as why:
            return Verdict(change.key, "none", why=str(why))
        gained = lost = moved = 0
        took = 0.0
        for number, name in enumerate(order, 1):
            with limited(SLOWER * self.judges.known[name].seconds + SLACK):
                seen = self.judges.look(name)
            took = round(time.perf_counter() - start, 2)
            if seen.failure:
                return Verdict(change.key, "killed", name, seen.failure[:200], number, took)
            gained, lost, moved = gained + seen.gained, lost + seen.lost, moved + seen.moved
        outcome = "survived" if gained else "coverage" if lost or moved else "unseen"
        why = f"{gained} facts more, {lost} fewer, {moved} graphs lowered otherwise"
        return Verdict(change.key, outcome, "", why, len(order), took)


class TooSlow(Exception):
    """A check goes on and on: the mutant does not end."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes more CPU time than that."""

    def interrupt(*_: object) -> None:
        raise TooSlow(f"more than {seconds:.1f} s")

    signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _function(change: Mutant) -> str:
    return change.key.split(" | ")[0]


def learn(judges: Judges, jobs: int) -> dict[str, Known]:
    """What every check shows of the right program."""
    names = list(judges.names())

    def share(k: int) -> dict[str, Known]:
        lines: set[Mark] = set()
        for module in MODULES:
            mark_lines(module, lines)
        mark_operators(lines)
        out = {}
        for name in names[k::jobs]:
            forget()
            found = judges.learn(name, lines)
            if found is not None:
                out[name] = found
        return out

    parts = [forked(lambda k=k: share(k), limited=False) for k in range(jobs)]
    found: dict[str, Known] = {}
    for pid, pipe in parts:
        found |= received(pipe) or {}
        os.waitpid(pid, 0)
    return {name: found[name] for name in names if name in found}


def forked(work: Any, limited: bool = True) -> tuple[int, int]:
    """Start a child that sends what a function returns; its process and the pipe's end."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    try:
        os.close(out)
        quiet()
        if limited:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            most = MEMORY + mapped()
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with os.fdopen(into, "wb") as pipe:
            pickle.dump(work(), pipe)
    except BaseException:  # whatever it is, the child must not go on as the parent
        os._exit(1)
    os._exit(0)


def mapped() -> int:
    """Bytes of address space of this process: a worker of a long run may have mapped many."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def received(pipe: int) -> Any:
    """What a child sent; None where it ended before."""
    with os.fdopen(pipe, "rb") as data:
        try:
            return pickle.load(data)
        except (EOFError, pickle.UnpicklingError):
            return None
