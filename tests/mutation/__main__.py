"""Runs the mutation campaign; run again, it goes on where it stopped.

    python -m tests.mutation [--module M ..] [--sample N --seed S] [--out FILE.jsonl]
    python -m tests.mutation --replay --sample 40

OUT gets a line for each mutant; `--note` adds part of it to `killers.txt`: who killed which.
What lives on is explained in `equivalent.toml`, or it is a gap in the tests. `--replay` asks for
each mutant only the check that killed it before: that is quick.
"""

import argparse
import fnmatch
import json
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from zlib import crc32

import pytest

from tests.mutation.campaign import ENDED, Campaign, Mutant, Verdict, learn
from tests.mutation.judge import Judges, Known
from tests.mutation.lists import PART, explained, killers, note_killers
from tests.mutation.source import changes
from tests.mutation.tables import entries
from tests.mutation.targets import MODULES, TESTS

LIVES = ("survived", "unseen", "unreached")


def main() -> int:
    """Judge the chosen mutants; returns 1 when one survives unexplained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", nargs="*", default=["*"], help="patterns")
    parser.add_argument("--key", default="", help="only mutants with this in their key")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=25, help="seconds of checks for each")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/mutation.jsonl"))
    parser.add_argument("--baseline", type=Path, help="keep what the right program does here")
    parser.add_argument("--again", type=Path, help="only mutants that live on in this file")
    parser.add_argument("--before", type=Path, nargs="*", default=[], help="files of earlier runs")
    parser.add_argument("--judges", nargs="*", default=[""], help="only checks with these names")
    parser.add_argument("--most", type=int, help="checks of each family, the others left out")
    parser.add_argument("--replay", action="store_true", help="ask known killers only")
    parser.add_argument("--note", action="store_true", help="add what OUT holds to killers.txt")
    parser.add_argument("--part", type=int, default=PART, help="one in so many is added; 1: all")
    parser.add_argument("--summary", action="store_true", help="only add up what is there")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("PYTHONHASHSEED") != "0":  # lowered graphs are compared between processes
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]])
    os.environ["CI"] = "1"
    if options.replay:
        options.out.unlink(missing_ok=True)
    if options.note:
        found = {v.key: v.by for v in read(options.out) if v.outcome == "killed"}
        note_killers(found, {c.key for c in mutants(["*"])}, options.part)
    if not options.summary and not options.note:
        plugin = InPlaceOfTests(options)
        files = [
            str(path) for name in plugin.files() for path in Path("tests").glob(f"*/{name}.py")
        ]
        quiet = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly"]
        code = pytest.main([*quiet, *files], plugins=[plugin])
        if code not in (0, 5):
            return int(code)
    return summary(read(options.out))


class InPlaceOfTests:
    """A plugin that judges mutants once tests are collected, and runs none itself."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        for module in MODULES:
            import_module(module)
        done = {v.key for v in read(options.out)}
        self.chosen = [c for c in self._chosen() if c.key not in done]

    def files(self) -> list[str]:
        """The files of tests that judge: for known killers these only."""
        found = [name for name in TESTS if any(Path("tests").glob(f"*/{name}.py"))]
        if self.options.replay:
            known = killers()
            asked = {known[c.key].partition(".py::")[0] for c in self.chosen}
            found = [name for name in found if f"test:{name}" in asked] or found
        return found

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        judges = Judges(session.items, self.options.most, self.options.judges)
        chosen = self.chosen
        if self.options.replay:
            judges.known = self._killing(judges, chosen)
        else:
            judges.known = self._known(judges)
        print(f"{len(judges.known)} checks, {len(chosen)} mutants", flush=True)
        options = self.options
        earlier = (v for path in options.before for v in read(path) if v.outcome == "killed")
        noticed = killers() | {v.key: v.by for v in earlier}
        campaign = Campaign(judges, options.budget, options.jobs, noticed, options.replay)
        with self.options.out.open("a", encoding="utf-8") as out:
            for number, verdict in enumerate(campaign.run(chosen), 1):
                out.write(json.dumps(asdict(verdict)) + "\n")
                out.flush()
                if verdict.outcome not in ("killed", "none"):
                    print(f"{number}: {verdict.outcome}: {verdict.key}", flush=True)
        return True

    def _known(self, judges: Judges) -> dict[str, Known]:
        path = self.options.baseline
        if path is not None and path.exists():
            known: dict[str, Known] = pickle.loads(path.read_bytes())
            return known
        start = time.perf_counter()
        known = learn(judges, self.options.jobs)
        print(f"{len(known)} checks learnt in {time.perf_counter() - start:.0f} s", flush=True)
        if path is not None:
            path.write_bytes(pickle.dumps(known))
        return known

    def _killing(self, judges: Judges, chosen: list[Mutant]) -> dict[str, Known]:
        found = {}
        wanted = killers()
        for name in {wanted[c.key] for c in chosen}:
            known = judges.learn(name, set())
            if known is not None:
                found[name] = known
        return found

    def _chosen(self) -> list[Mutant]:
        found = [c for c in mutants(self.options.module) if self.options.key in c.key]
        if self.options.replay:
            known = killers()
            print(f"{sum(c.key in known for c in found)} of {len(found)} have killers", flush=True)
            found = [c for c in found if c.key in known and known[c.key] != ENDED]
        if self.options.sample is not None:
            found = drawn(found, self.options.sample, self.options.seed)
        if not self.options.key:  # what is explained takes all checks, and says nothing new
            found = [c for c in found if c.key not in explained()]
        if self.options.again is not None:
            alive = {v.key for v in read(self.options.again) if v.outcome in LIVES}
            found = [c for c in found if c.key in alive]
        return found


def mutants(patterns: Sequence[str]) -> list[Mutant]:
    """All mutants of modules whose names end in one of the patterns."""

    def wanted(module: str) -> bool:
        return any(fnmatch.fnmatch(module, f"*{p}") for p in patterns)

    modules = [(m, skipped) for m, skipped in MODULES.items() if wanted(m)]
    found: list[Mutant] = [c for m, skipped in modules for c in changes(m, frozenset(skipped))]
    return [*found, *(e for e in entries() if wanted(e.module))]


def drawn(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Those whose keys have the least sums: a sample that stays where others come or go."""
    return sorted(found, key=lambda c: crc32(f"{seed} {c.key}".encode()))[:count]


def read(path: Path) -> list[Verdict]:
    """Verdicts of a campaign."""
    if not path.exists():
        return []
    return [Verdict(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def summary(verdicts: list[Verdict]) -> int:
    """Print counts by module; 1 when a mutant lives on unexplained."""
    counts: dict[str, Counter[str]] = {}
    known = explained()
    left = 0
    for v in verdicts:
        live = v.outcome in LIVES
        left += live and v.key not in known
        outcome = "explained" if live and v.key in known else v.outcome
        counts.setdefault(v.key.split(":")[0], Counter())[outcome] += 1
    for module, found in counts.items():
        print(f"{module}: {sum(found.values())} " + json.dumps(found))
    print("all:", json.dumps(sum(counts.values(), Counter())))
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
