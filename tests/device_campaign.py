"""Runs whole models on the GPU that is not there, and writes what it finds; run again, it goes on.

    python -m tests.device_campaign OUT.jsonl                      # everything
    python -m tests.device_campaign OUT.jsonl --source exports     # of one source
    python -m tests.device_campaign OUT.jsonl --summary            # only add up what is there

OUT gets one line per model. Models run in a child process, so that one which ends the process is a
line, too.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tests.device_kernels import emulated_process
from tests.device_models import Outcome, names_of, run_case
from tests.device_sources import SOURCES

Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run whole models on an emulated GPU.")
    parser.add_argument("out", type=Path, help="JSON lines; continued when it exists")
    parser.add_argument("--source", action="append", choices=SOURCES, help="default: all")
    parser.add_argument("--summary", action="store_true", help="only add up what is there")
    options = parser.parse_args()
    done = [json.loads(line) for line in _texts(options.out)]
    if not options.summary:
        known = {(line["source"], line["name"]) for line in done}
        sources = options.source or list(SOURCES)
        cases = [(s, n) for s in sources for n in names_of(s) if (s, n) not in known]
        with options.out.open("a", encoding="utf-8") as out:
            for line in campaign(cases):
                out.write(json.dumps(line) + "\n")
                out.flush()
                done.append(line)
    return summary(done)


def _texts(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def campaign(cases: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """A line for each case, given by source and name."""
    waiting = list(cases)
    while waiting:
        with tempfile.TemporaryDirectory() as folder, emulated_process() as call:
            while waiting:
                (source, name), began = waiting.pop(0), time.monotonic()
                place = Path(folder) / str(len(waiting))
                try:
                    outcome = call(run_case, place, source, name)
                except BrokenProcessPool:
                    outcome = Outcome(["the process ended"], Counter(models=1))
                yield {
                    "source": source,
                    "name": name,
                    "counts": dict(outcome.counts),
                    "failures": outcome.failures,
                    "seconds": round(time.monotonic() - began, 2),
                }
                if outcome.failures:  # a device's errors stay
                    break


def summary(lines: Sequence[Line]) -> int:
    """Print sums and failures; 1 when a model failed."""
    totals: dict[str, Counter[str]] = {}
    for line in lines:
        total = totals.setdefault(line["source"], Counter())
        total.update(line["counts"], failed=bool(line["failures"]))
    failed = {f"{x['source']} {x['name']}": x["failures"] for x in lines if x["failures"]}
    print(json.dumps({"failed": failed, **totals}, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
