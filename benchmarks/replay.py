"""What more cores than there are would gain: the tasks of PIT nodes, replayed on as many.

A session on one core is told to cut its work for many threads, and tells what each task takes. A
node's critical path is then what it does alone, and for each of its loops the time at which the
last of so many threads ends, each of which takes the next task when it is free:

    tasks 5, 3, 3, 3 on two threads -> 0..5 | 0..3, 3..6, then 5..8 -> 8

Memory that many cores share, and what it takes to wake them, is left out.
"""

import heapq
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sessions import process

RUNS = 9

# Arguments: compiled folder, inputs (.npz), threads to cut for, runs, trace.
_RUN = """
import sys
import numpy as np
import onnxruntime
import pitc
from pathlib import Path

path, feeds, threads, runs, trace = sys.argv[1], dict(np.load(sys.argv[2])), *sys.argv[3:6]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
for name, value in (("threads", threads), ("task_trace", trace)):
    options.add_session_config_entry(f"ep.pitexecutionprovider.{name}", value)
session = pitc.load(path).session(options)
for run in range(2 + int(runs)):
    if run == 2:
        Path(trace).write_bytes(b"")
    session.run(None, feeds)
"""


@dataclass(frozen=True, slots=True)
class NodeTasks:
    """What one node took, medians of its runs in microseconds.

    Args:
        run_us: A run.
        alone_us: Of it, what is in no loop.
        loops_us: Of each loop, what its tasks took, in order.
    """

    run_us: float
    alone_us: float
    loops_us: tuple[tuple[float, ...], ...]

    def critical_us(self, threads: int) -> float:
        """How long a run takes on so many threads."""
        return self.alone_us + sum(makespan_us(tasks, threads) for tasks in self.loops_us)


def makespan_us(tasks_us: Iterable[float], threads: int) -> float:
    """When the last of some threads ends, each of which takes the next task when it is free.

    >>> makespan_us([5, 3, 3, 3], 2)
    8.0
    """
    ends = [0.0] * threads
    for took in tasks_us:
        heapq.heapreplace(ends, ends[0] + took)
    return max(ends)


def node_tasks(lines: Iterable[str]) -> list[NodeTasks]:
    """The nodes of a task trace; of runs that were cut in several ways, the most frequent one."""
    runs: dict[str, list[Any]] = defaultdict(list)
    for line in map(json.loads, lines):
        runs[line["node"]].append(line)
    return [_node(each) for each in runs.values()]


def _node(runs: Sequence[Any]) -> NodeTasks:
    def cut(run: Any) -> tuple[int, ...]:
        return tuple(len(loop["tasks_us"]) for loop in run["loops"])

    (often, _), *_ = Counter(map(cut, runs)).most_common(1)
    alike = [run for run in runs if cut(run) == often]
    loops = zip(*(run["loops"] for run in alike), strict=True)
    return NodeTasks(
        median(run["run_us"] for run in alike),
        median(run["run_us"] - sum(loop["loop_us"] for loop in run["loops"]) for run in alike),
        tuple(
            tuple(map(median, zip(*(loop["tasks_us"] for loop in same), strict=True)))
            for same in loops
        ),
    )


def replay(artifact: Path, feeds: Path, threads: Sequence[int], cores: set[int]) -> dict[str, Any]:
    """The gain of PIT nodes on machines with more cores.

    Args:
        artifact: A compiled folder.
        feeds: Inputs, a .npz file.
        threads: How many, of each machine.
        cores: One of them is used.

    Returns:
        For each number of threads `critical_us`, the sum over the nodes, and `gain` over the sum of
        what they take on one thread.
    """
    trace = artifact.with_suffix(".tasks")

    def nodes(count: int) -> list[NodeTasks]:
        arguments = [str(artifact), str(feeds), str(count), str(RUNS), str(trace)]
        process([sys.executable, "-c", _RUN, *arguments], {min(cores)})
        return node_tasks(trace.read_text().splitlines())

    one_us = sum(node.run_us for node in nodes(1))
    found = {count: sum(n.critical_us(count) for n in nodes(count)) for count in threads}
    return {
        str(count): {"critical_us": us, "gain": one_us / us} for count, us in found.items() if us
    }
