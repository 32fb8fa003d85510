"""Runs one case: answers are checked, then timed; the result is a plain dictionary."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.cases import Case, CompileCase, EncoderCase, TextCase
from benchmarks.contenders import (
    BASE,
    CONTENDERS,
    OURS,
    Contender,
    Engine,
    Infer,
    Run,
    live_rows,
    relative_error,
)
from benchmarks.cost import flops, weight_bytes
from benchmarks.workload import Workload, build, make_workload
from pitc.errors import MachineError
from pitc.timing import THREAD_LIMITS, interleave, ratio

TOLERANCE = 1e-5  # norm-wise relative error of f32 answers, per sequence
SCHEMA = 1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A contender that is ready, and what it answered.

    Args:
        run: Runs one padded batch.
        answers: One per sequence, live rows only.
    """

    run: Run
    answers: list[npt.NDArray[Any]]


def _physical_limit_ms(workload: Workload, limits: dict[str, float]) -> float | None:
    """The time per batch of the useful arithmetic, or of reading the weights once."""
    if not limits:
        return None
    useful = flops(workload.config, workload.lengths) / len(workload.batches)
    reading = weight_bytes(workload.config) / limits["read_gbytes_per_s"]
    return max(useful / limits["fma_gflops"], reading) / 1e6


def _load(
    contender: Contender, workload: Workload, engines: dict[Engine, Infer], say: Say
) -> Loaded | None:
    """Load a contender and run it once; None, with the reason said, when a peer fails."""
    say(f"{contender.name}: load and check")
    try:
        if contender.engine not in engines:
            engines[contender.engine] = contender.engine(workload)
        run = contender.over(engines[contender.engine])
        answers = [x for feeds in workload.batches for x in live_rows(run(feeds), feeds)]
    except Exception as error:
        if contender.name in (BASE, OURS):
            raise
        say(f"{contender.name}: left out, it failed: {' '.join(str(error).split())[:200]}")
        return None
    return Loaded(run, answers)


def _on_all(run: Run, workload: Workload) -> Callable[[], None]:
    def work() -> None:
        for feeds in workload.batches:
            run(feeds)

    return work


def time_case(
    case: EncoderCase | TextCase,
    rounds: int,
    limits: dict[str, float],
    contenders: Sequence[Contender] = CONTENDERS,
    say: Say = print,
) -> dict[str, Any]:
    """Time every contender that is installed and answers right.

    Args:
        case: The case.
        rounds: Rounds that count.
        limits: Of `benchmarks.machine.measure_limits`, or empty.
        contenders: Who competes; the first is the reference for the answers.
        say: Called with one line per step.

    Returns:
        Times in ms per batch: medians, every round, ratios of the same rounds. A contender whose
        answer is wrong has its error and no times.
    """
    with tempfile.TemporaryDirectory() as folder:
        say(f"{case.name}: build the model")
        workload = make_workload(case, Path(folder))
        engines: dict[Engine, Infer] = {}
        present = [c for c in contenders if c.available]
        loaded = {c.name: x for c in present if (x := _load(c, workload, engines, say))}
        want = loaded[present[0].name].answers
        errors = {name: relative_error(x.answers, want) for name, x in loaded.items()}
        right = [name for name in loaded if errors[name] <= TOLERANCE]
        say(f"{case.name}: {rounds} rounds of {', '.join(right)}")
        taken = interleave({name: _on_all(loaded[name].run, workload) for name in right}, rounds)
        per_batch = 1e3 / len(workload.batches)
        rows = [
            {
                "name": name,
                "error": error if np.isfinite(error) else None,
                "ms": median(taken[name]) * per_batch if name in taken else None,
                "rounds_ms": [t * per_batch for t in taken.get(name, [])],
            }
            for name, error in errors.items()
        ]
        peers = [name for name in right if name != OURS]
        gains = {p: ratio(taken[p], taken[OURS]) for p in peers if OURS in taken}
        return {
            "workload": workload.facts(),
            "contenders": rows,
            "best_peer": min(peers, key=lambda name: gains.get(name, median(taken[name]))),
            "limit_ms": _physical_limit_ms(workload, limits),
            "speedup": gains,
        }


_COMPILE = """
import sys, pitc
compiled = pitc.compile(sys.argv[1], padding=sys.argv[3] or None)
compiled.save(sys.argv[2])
"""


def time_compile(
    case: CompileCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Time the compiler in processes of their own, on all cores.

    Returns:
        Seconds of wall and of CPU time, median and every round.
    """
    wall, cpu = [], []
    unlimited = {name: x for name, x in os.environ.items() if name not in THREAD_LIMITS}
    with tempfile.TemporaryDirectory() as folder:
        say(f"{case.name}: build the model")
        model = Path(folder, "model.onnx")
        onnx.save(build(case.config, np.random.default_rng(case.seed)), model)
        for i in range(max(rounds, 1)):
            say(f"{case.name}: round {i + 1} of {rounds}")
            out = Path(folder, f"round{i}.pitc")
            command = [sys.executable, "-c", _COMPILE, str(model), str(out), case.padding or ""]
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=unlimited
            )
            if cores:
                os.sched_setaffinity(process.pid, cores)
            _, errors = process.communicate()
            if process.returncode:
                last = (errors.strip() or f"exit code {process.returncode}").splitlines()[-1]
                raise MachineError(f"the compiler failed: {last}")
            wall.append(time.monotonic() - start)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            cpu.append(spent)
    return {
        "wall_s": median(wall),
        "cpu_s": median(cpu),
        "rounds_wall_s": wall,
        "rounds_cpu_s": cpu,
    }


def describe(case: Case) -> dict[str, Any]:
    """The case as it goes into its result file."""
    return {"kind": type(case).__name__, "name": case.name, **asdict(case)}
