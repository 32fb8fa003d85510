"""What a second thread gains: wall time of a session with one thread, and of one with two.

What more would gain is replayed from the tasks of one core (`benchmarks/replay.py`).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import ThreadsCase
from benchmarks.replay import replay
from benchmarks.sessions import COMPILED, measure_sessions, source_and_compiled
from benchmarks.workload import make_workload
from pitc.errors import MachineError

MANY = (16, 64)
TURNS = 6  # in each process and round: of short runs one turn says little

Say = Callable[[str], None]


def measure_threads(
    case: ThreadsCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Measure the gain of a second thread, of the source and of the compiled model.

    Args:
        case: The model and its batch.
        rounds: Processes of each kind.
        cores: Cores of the machine.
        say: Called with one line per step.

    Returns:
        `threads`: per contender `one_ms` and `two_ms`, medians of the wall time of a batch, and
        `gain`, the median of the turns' ratios. `replayed`: see `replay`.

    Raises:
        MachineError: There is one core only.
    """
    two = set(sorted(cores)[:2])
    if len(two) < 2:
        raise MachineError("there is one core only", hint="run it where there are two")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"{case.name}: build and compile the model")
        paths, feeds = source_and_compiled(make_workload(case.batch, folder), folder)
        taken: dict[str, list[tuple[float, float]]] = {who: [] for who in paths}
        for turn in range(rounds):
            say(f"{case.name}: round {turn + 1} of {rounds}")
            for who, path in paths.items():
                found = measure_sessions(path, feeds, [1, 2], TURNS + 1, two)
                taken[who] += map(tuple, found["rounds_s"])
        return {
            "threads": {who: _row(runs) for who, runs in taken.items()},
            "replayed": replay(paths[COMPILED], feeds, MANY, cores),
        }


def _row(runs: list[tuple[float, float]]) -> dict[str, float]:
    ones, twos = zip(*runs, strict=True)
    gain = median(a / b for a, b in runs)
    return {"one_ms": median(ones) * 1e3, "two_ms": median(twos) * 1e3, "gain": gain}
