"""Checks many random graphs and writes what it finds; run again, it goes on where it stopped.

    python -m tests.random_campaign OUT.jsonl --seeds 0 100000

OUT gets one line per chunk of seeds, with counts, and one per graph that failed. Graphs are checked
in a child process, so that one which ends the process is a line, too.
"""

import argparse
import gc
import json
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.random_check import check_seed, lowering_everything

CHUNK = 250  # sessions of single nodes are kept within one
YOUNG = 20_000  # objects that may be made before a collection: graphs are small and many
SHOWN = 5  # failures of one graph that are written down


def main() -> int:
    parser = argparse.ArgumentParser(description="Check many random graphs.")
    parser.add_argument("out", type=Path, help="JSON lines; continued when it exists")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 100_000), metavar=("FROM", "TO"))
    parser.add_argument("--summary", action="store_true", help="only add up what is there")
    options = parser.parse_args()
    first, last = options.seeds
    done = _lines(options.out)
    if not options.summary:
        at = max((line["to"] for line in done if "to" in line), default=first)
        with options.out.open("a", encoding="utf-8") as out:
            for line in campaign(at, last):
                out.write(json.dumps(line) + "\n")
                out.flush()
                done.append(line)
    return summary(done)


def campaign(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Lines for the seeds first..last-1."""
    for start in range(first, last, CHUNK):
        end, began = min(start + CHUNK, last), time.monotonic()
        totals: Counter[str] = Counter()
        at = start
        while at < end:
            for seed, counts, failures in _checked(at, end):
                totals.update(counts, graphs=1)
                at = seed + 1
                if failures:
                    yield {"seed": seed, "failures": failures[:SHOWN]}
            if at < end:
                yield {"seed": at, "failures": ["the process ended"]}
                totals.update(graphs=1)
                at += 1
        totals["seconds"] = round(time.monotonic() - began)
        yield {"from": start, "to": end, "counts": dict(totals)}


def _checked(first: int, last: int) -> Iterator[tuple[int, dict[str, int], list[str]]]:
    """What one child process finds; fewer seeds than asked for when it ends early."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_work, args=(theirs, first, last))
    child.start()
    theirs.close()
    while True:
        try:
            yield ours.recv()
        except EOFError:
            break
    child.join()


def _work(pipe: Connection, first: int, last: int) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    gc.freeze()
    gc.set_threshold(YOUNG)
    with lowering_everything():
        for seed in range(first, last):
            try:
                outcome = check_seed(seed)
            except Exception as error:  # a bug is a finding
                where = traceback.extract_tb(error.__traceback__)[-1]
                pipe.send((seed, {}, [f"{error!r} at {where.filename}:{where.lineno}"]))
                continue
            pipe.send((seed, outcome.counts, outcome.failures))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def summary(lines: list[dict[str, Any]]) -> int:
    """Print the sums; 1 when a graph failed."""
    totals: Counter[str] = Counter()
    for line in lines:
        totals.update(line.get("counts", {}))
    failed = sorted({line["seed"] for line in lines if "failures" in line})
    print(json.dumps({"failed": failed, **totals}, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
