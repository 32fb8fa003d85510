"""Counters of a profiler for five kernels: what limits each of them, memory, cache or sums?"""

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.answers import blocks_of_zeros, normal
from benchmarks.gpu.arrays import upload
from benchmarks.gpu.driver import Device
from benchmarks.gpu.journal import Case, Result, Telling
from benchmarks.gpu.layer_cases import BERT, attention
from benchmarks.gpu.library import CudaLibrary
from benchmarks.gpu.products import ListedProduct, Machine, Operands, Work, dense
from benchmarks.gpu.run import DTYPE
from pitc.check.feeds import draw_lengths
from pitc.ir.cuda_variants import dense_tiles

PROFILER = "ncu"
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "lts__t_bytes.sum",
    "dram__bytes.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "launch__registers_per_thread",
    "launch__occupancy_limit_shared_mem",
)
LIMIT_S = 18


@dataclass(frozen=True, slots=True)
class Profiled:
    """A kernel that is profiled.

    Args:
        pattern: A regular expression of its name.
        launches: Makes what launches it.
    """

    pattern: str
    launches: Callable[[Machine, int], Work]


def _product(kind: str, block: tuple[int, int]) -> Callable[[Machine, int], Work]:
    def make(machine: Machine, size: int) -> Work:
        w = normal(np.random.default_rng(1), size, size)
        a = blocks_of_zeros(np.random.default_rng(2), size, block, 0.9)
        return ListedProduct(machine, Operands.of(machine.device, a, w, DTYPE), kind)

    return make


def _dense(machine: Machine, size: int) -> Work:
    rng = np.random.default_rng(1)
    a, w = normal(rng, size, size), normal(rng, size, size)
    return dense(machine, Operands.of(machine.device, a, w, DTYPE), dense_tiles(DTYPE)[0])


def _attention(machine: Machine, size: int) -> Work:
    batch, longest, heads, hidden, _ = BERT
    lengths = draw_lengths(np.random.default_rng(0), batch, longest, 40)
    lengths = lengths if size > 1000 else lengths[:2]
    shape = sum(lengths), heads, hidden // heads
    q, k, v = (upload(machine.device, normal(np.random.default_rng(s), *shape)) for s in range(3))
    return attention(machine, q, k, v, lengths)[0]


KERNELS: Mapping[str, Profiled] = {
    "mma128x128": Profiled("gather_gemm.*mma128x128.*", _dense),
    "tile32": Profiled("contract_tile.*mma32x128.*", _product("tile", (32, 1))),
    "block64": Profiled("contract_block.*", _product("block", (1, 64))),
    "choose": Profiled("choose.*", _product("", (32, 1))),
    "attention": Profiled("attention.*", _attention),
}


def counter_cases(folder: Path, *, small: bool) -> Iterator[Case]:
    """A case for each kernel: a process of its own under the profiler."""
    for name in KERNELS:
        yield Case(f"counters-{name}", {}, partial(_counters, folder, name, small))


def _counters(folder: Path, name: str, small: bool, telling: Telling) -> Result:
    if not shutil.which(PROFILER):
        return {"left_out": {name: f"no {PROFILER} is here"}}
    command = [PROFILER, "--csv", "--page", "raw", "--clock-control", "none"]
    command += ["--metrics", ",".join(METRICS), "--launch-count", "1"]
    command += ["--kernel-name", f"regex:{KERNELS[name].pattern}"]
    command += [sys.executable, "-m", "benchmarks.gpu", "--pack", str(folder), "launch", name]
    command += ["--small"] if small else []
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, errors="replace"
    )
    found = counters(done.stdout)
    if not found:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(f"exit code {done.returncode}; " + " / ".join(lines[-3:]))
    return {"counters": found}


def counters(text: str) -> dict[str, float]:
    """Numbers of the first kernel in the profiler's raw page, by metric."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        return {}
    for row in csv.DictReader(lines[starts[0] :]):
        if row["ID"]:  # the row before it has units
            numbers = {name: (row.get(name) or "").replace(",", "") for name in METRICS}
            return {name: float(x) for name, x in numbers.items() if _is_number(x)}
    return {}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def launch(folder: Path, name: str, *, small: bool) -> None:
    """Launch one of the kernels, for the profiler."""
    device = Device()
    machine = Machine(device, CudaLibrary(device, folder / "kernels.so"))
    KERNELS[name].launches(machine, 128 if small else 4096)()
    device.wait()
