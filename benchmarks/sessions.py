"""Sessions of a model in a process of their own, where no limit on threads is left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.one_thread import THREAD_LIMITS
from benchmarks.workload import Workload
from pitc.errors import MachineError

# Arguments: model file or folder, inputs (.npz), threads of each session, rounds.
_MEASURE = """
import json, sys, time
import numpy as np
import onnxruntime
import pitc

path, feeds, threads = sys.argv[1], dict(np.load(sys.argv[2])), json.loads(sys.argv[3])

def status(field):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(field)]
    return int(line.split()[1]) * 1024

def session(count):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = count, 3
    if path.endswith(".pitc"):
        return pitc.load(path).session(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

empty, start = status("VmRSS"), time.perf_counter()
sessions = [session(threads[0])]
load_s = time.perf_counter() - start
sessions[0].run(None, feeds)
used = status("VmHWM") - empty
sessions += [session(count) for count in threads[1:]]
rounds = []
for turn in range(int(sys.argv[4])):
    rounds.append([])
    for one in sessions:
        one.run(None, feeds)  # the other one's threads were awake, and its weights near
        start = time.perf_counter()
        one.run(None, feeds)
        rounds[-1].append(time.perf_counter() - start)
print(json.dumps({"load_s": load_s, "peak_bytes": used, "rounds_s": rounds[1:]}))
"""
SOURCE, COMPILED = "onnxruntime", "pitc"


def process(command: list[str], cores: set[int]) -> str:
    """What a command prints; it runs on these cores, without the limits on threads."""
    unlimited = {name: x for name, x in os.environ.items() if name not in THREAD_LIMITS}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=unlimited,
        preexec_fn=lambda: os.sched_setaffinity(0, cores) if cores else None,
    )
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise MachineError(f"{' '.join(command[:3])[:60]} failed: {last}")
    return done.stdout


def source_and_compiled(workload: Workload, folder: Path) -> tuple[dict[str, Path], Path]:
    """The source and the compiled model of a workload, and the file of its first batch."""
    import pitc

    artifact, feeds = folder / "model.pitc", folder / "feeds.npz"
    pitc.compile(workload.model, padding=workload.padding).save(artifact)
    np.savez(feeds, allow_pickle=False, **workload.batches[0])
    return {SOURCE: workload.model, COMPILED: artifact}, feeds


def measure_sessions(
    path: Path, feeds: Path, threads: list[int], turns: int, cores: set[int]
) -> Any:
    """Time the sessions of a model side by side, each in its second run of a turn.

    Args:
        path: An ONNX file, or a compiled folder.
        feeds: Inputs, a .npz file.
        threads: Of each session.
        turns: Runs of each session; the first does not count.
        cores: Where the process runs.

    Returns:
        `load_s` and `peak_bytes` of the first session, and for each turn `rounds_s`, seconds of
        wall time of each session.
    """
    arguments = [str(path), str(feeds), json.dumps(threads), str(turns)]
    return json.loads(process([sys.executable, "-c", _MEASURE, *arguments], cores))
