"""Times the compiler: each compilation in a process of its own, on all cores."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks.cases import CompileCase, TallCase
from benchmarks.one_thread import THREAD_LIMITS
from benchmarks.workload import build
from models.tall import TALL
from pitc.errors import MachineError

Say = Callable[[str], None]

_COMPILE = """
import sys, pitc
pitc.compile(sys.argv[1], padding=sys.argv[3] or None, output=sys.argv[2])
print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def time_compile(
    case: CompileCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Time the compilation of a model: the first one, and that of a sibling.

    A sibling has half the layers and other weights: its kernels are those of the model.

    Returns:
        Seconds of wall and of CPU time, median and every round, of the first compilation; the same
        of the other, `sibling`.
    """
    say(f"{case.name}: build the model")
    model = build(case.config, np.random.default_rng(case.seed))
    half = replace(case.config, layers=max(case.config.layers // 2, 1))
    sibling = build(half, np.random.default_rng(case.seed + 1))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, graph in (("first", model), ("sibling", sibling)):
            known = None if name == "first" else Path(cache)
            about = f"{case.name}, {name}: "
            times = _rounds(
                graph,
                case.padding,
                rounds,
                cores,
                lambda k, about=about: say(about + k),
                known,
            )
            found[name] = {
                "wall_s": median(times["wall_s"]),
                "cpu_s": median(times["cpu_s"]),
                "rounds_wall_s": times["wall_s"],
                "rounds_cpu_s": times["cpu_s"],
            }
    return found.pop("first") | found


def time_tall(case: TallCase, rounds: int, cores: set[int], say: Say = print) -> dict[str, Any]:
    """Time the compilation of a graph of several sizes.

    Returns:
        For each size the nodes, seconds of wall and of CPU time (the least of all rounds: what
        else runs on the machine only adds to it, and every round), and the most memory.
    """
    sizes = []
    for nodes in case.sizes:
        say(f"{case.name}: build {nodes} nodes")
        model = TALL[case.kind](nodes)
        about = f"{case.name}: {nodes} nodes, "
        found = _rounds(model, case.padding, rounds, cores, lambda k, about=about: say(about + k))
        row = {"nodes": nodes, "wall_s": min(found["wall_s"]), "cpu_s": min(found["cpu_s"])}
        row |= {"rounds_wall_s": found["wall_s"], "rounds_cpu_s": found["cpu_s"]}
        sizes.append(row | {"peak_bytes": max(found["peak_bytes"])})
    return {"sizes": sizes}


def _rounds(
    model: onnx.ModelProto,
    padding: str | None,
    rounds: int,
    cores: set[int],
    say: Say,
    cache: Path | None = None,
) -> dict[str, list[float]]:
    """Compile a model some times, start of the interpreter included.

    Args:
        model: The model.
        padding: The mask input that pitc is told about, or None.
        rounds: How often.
        cores: Where.
        say: Told what comes next.
        cache: A cache folder with its kernels; None: each round begins with an empty one.
    """
    found: dict[str, list[float]] = {"wall_s": [], "cpu_s": [], "peak_bytes": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model.onnx")
        onnx.save(model, source)
        for i in range(max(rounds, 1)):
            say(f"round {i + 1} of {rounds}")
            out = Path(folder, f"round{i}.pitc")
            command = [sys.executable, "-c", _COMPILE, str(source), str(out), padding or ""]
            kept = cache or Path(folder, f"cache{i}")
            spent = _spent(command, cores, kept)
            shutil.rmtree(out)
            for name, value in spent.items():
                found[name].append(value)
    return found


def _spent(command: list[str], cores: set[int], cache: Path) -> dict[str, float]:
    """What one compilation takes."""
    unlimited = {name: x for name, x in os.environ.items() if name not in THREAD_LIMITS}
    unlimited["PITC_CACHE_DIR"] = str(cache)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=unlimited
    )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    printed, errors = process.communicate()
    if process.returncode:
        last = (errors.strip() or f"exit code {process.returncode}").splitlines()[-1]
        raise MachineError(f"the compiler failed: {last}")
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": wall,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_bytes": 1024.0 * int(printed.split()[-2]),
    }
