"""What a compiled model costs besides its time: loading, memory, disk; and the second core.

Every figure is taken in processes of their own, of the source and the compiled model in turn.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import FootprintCase
from benchmarks.sessions import (
    COMPILED,
    SOURCE,
    measure_sessions,
    process,
    source_and_compiled,
)
from benchmarks.workload import make_workload
from pitc.measure.timing import ratio

Say = Callable[[str], None]


def _size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*")) if path.is_dir() else path.stat().st_size


def _help_s(cores: set[int]) -> float:
    start = time.perf_counter()
    process([sys.executable, "-m", "pitc", "--help"], cores)
    return time.perf_counter() - start


def measure_footprint(
    case: FootprintCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Measure load time, peak memory, size on disk, `--help`, and the gain of a second thread.

    Args:
        case: The model and its batch.
        rounds: Processes of each kind that count.
        cores: Cores of the machine; the gain of a second thread needs two.
        say: Called with one line per step.

    Returns:
        Per contender the medians `load_s` and `peak_bytes` (growth of the resident set from before
        loading to after one batch), `disk_bytes`, and `two_threads`, the gain in wall time; the
        ratios of the compiled model's to the source's; `help_s`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"{case.name}: build and compile the model")
        paths, feeds = source_and_compiled(make_workload(case.batch, folder), folder)
        one, two = set(sorted(cores)[:1]), set(sorted(cores)[:2])
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in paths}
        for turn in range(rounds + 1):  # the first fills the file cache
            say(f"{case.name}: loading, round {turn} of {rounds}")
            for who, path in paths.items():
                found = measure_sessions(path, feeds, [1], 0, one)
                if turn:
                    taken[who].append(found)
        results: dict[str, dict[str, Any]] = {}
        for who, path in paths.items():
            say(f"{case.name}: {who}, one and two threads")
            runs = []
            if len(two) > 1:
                runs = measure_sessions(path, feeds, [1, 2], rounds + 1, two)["rounds_s"]
            results[who] = {
                "load_s": median(x["load_s"] for x in taken[who]),
                "peak_bytes": median(x["peak_bytes"] for x in taken[who]),
                "disk_bytes": _size(path),
                "two_threads": median(a / b for a, b in runs) if runs else None,
                "rounds_load_s": [x["load_s"] for x in taken[who]],
            }
        load = ratio(*([x["load_s"] for x in taken[who]] for who in (COMPILED, SOURCE)))
        ratios = {
            key: results[COMPILED][key] / results[SOURCE][key]
            for key in ("peak_bytes", "disk_bytes")
        }
        return {
            "footprint": results,
            "ratios": {"load_s": load, **ratios},
            "help_s": median(_help_s(one) for _ in range(max(rounds, 1))),
        }
