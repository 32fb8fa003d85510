"""The result file of a run: written again whenever something is known, and never written over.

A file holds calls, each with the machine and the pack that it ran on, and the results of all of
them. What another call has found, on a machine like it, is added (`merged`); results of another
pack go to a file of their own.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Record, Result
from benchmarks.gpu.kernel_tests import summary

SCHEMA = 2
NOT_ENDED = "it did not end"


class Report:
    """The file of one call.

    Args:
        folder: Where it is.
        call: The machine, the pack and the words of the command line.
    """

    def __init__(self, folder: Path, call: Result) -> None:
        self.path = free_path(folder, call)
        self.content: Result = {"schema": SCHEMA, "calls": [call], "results": []}
        self.write([], [])

    def write(self, steps: Sequence[Result], results: Sequence[Result]) -> None:
        """Write it whole or not at all."""
        self.content["calls"][0]["steps"] = list(steps)
        self.content["results"] = [{**result, "call": 0} for result in results]
        _write(self.path, self.content)


def _write(path: Path, content: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    fresh.replace(path)


def slug(call: Result) -> str:
    """Of a file: the device's name, and the beginning of the digest of the pack's sources."""
    name = re.sub(r"[^a-z0-9]+", "-", call["machine"]["gpu"]["name"].lower()).strip("-")
    return f"{name}-{call['pack']['sources'][:8]}"


def free_path(folder: Path, call: Result) -> Path:
    """A name that no file has yet."""
    name, number = slug(call), 1
    while (path := folder / f"{name}-{number}.json").exists():
        number += 1
    return path


def result_of(record: Record) -> Result:
    """What the file says of a case: what was found of it, and what failed."""
    result = {"case": {"name": record.name}, **record.result, "step": record.step}
    failed = dict(record.failed)
    if not record.done and "" not in failed:
        failed[""] = NOT_ENDED
    if "" in failed:
        result["failed"] = failed.pop("")
    if failed:
        result["failed_parts"] = failed
    return result


def results_of(records: Iterable[Record], tests: Iterable[str]) -> list[Result]:
    """Results of cases, and one for all tests of a step.

    Args:
        records: Of a journal.
        tests: The steps that are tests.
    """
    tests, records = set(tests), list(records)
    found = []
    for step in dict.fromkeys(record.step for record in records):
        of = [record for record in records if record.step == step]
        found += [{**summary(step, of), "step": step}] if step in tests else map(result_of, of)
    return found


def has_failed(result: Result) -> bool:
    """Whether anything of it did."""
    return bool(result.get("failed") or result.get("failed_parts") or result.get("complaints"))


def merged(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Add files that came back to those that are kept, one for each device and pack.

    Args:
        paths: Files of runs.
        folder: Where they are kept, as `DEVICE-PACK.json`. A call that is there already is not
            added twice.

    Returns:
        The files that were written.
    """
    written = []
    for path in paths:
        came: dict[str, Any] = json.loads(path.read_text())
        target = folder / f"{slug(came['calls'][0])}.json"
        kept = {"schema": SCHEMA, "calls": [], "results": []}
        if target.exists():
            kept = json.loads(target.read_text())
        for number, call in enumerate(came["calls"]):
            if call in kept["calls"]:
                continue
            of = [r for r in came["results"] if r["call"] == number]
            kept["results"] += [{**r, "call": len(kept["calls"])} for r in of]
            kept["calls"].append(call)
        _write(target, kept)
        written.append(target)
    return written
