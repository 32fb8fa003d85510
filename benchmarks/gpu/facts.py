"""What a run was measured on: the GPU, its driver, and the clocks while it worked."""

import csv
import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.driver import L2_BYTES, MULTIPROCESSORS, Device
from benchmarks.machine import machine_facts

_TOOL = "nvidia-smi"
_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_UNITS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
_FIXED = ("driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem", "power.limit")
_EACH_MS = 100


def gpu_facts(device: Device) -> dict[str, Any]:
    """The GPU, its driver and the machine around it; nothing that names the machine."""
    version = device.cuda_version
    facts: dict[str, Any] = {
        "name": device.name,
        "arch": f"sm_{device.arch}",
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "multiprocessors": device.attribute(MULTIPROCESSORS),
        "l2_bytes": device.attribute(L2_BYTES),
    }
    if shutil.which(_TOOL):
        query = [_TOOL, f"--query-gpu={','.join(_FIXED)}", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
        values = done.stdout.strip().split(", ")
        if len(values) == len(_FIXED):
            facts |= dict(zip(_FIXED, values, strict=True))
    return {**machine_facts(), "gpu": facts}


@contextmanager
def clocks() -> Iterator[Callable[[], dict[str, Any]]]:
    """Watch clocks, power and temperature, several times a second.

    Calling the context value gives the least, median and largest of each since it was called last;
    nothing where no tool tells.
    """
    if not shutil.which(_TOOL):
        yield dict
        return
    command = [_TOOL, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    command += [f"--loop-ms={_EACH_MS}", "--id=0"]
    with tempfile.NamedTemporaryFile() as file, Path(file.name).open() as reader:
        tool = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        rest = ""

        def since_last() -> dict[str, Any]:
            nonlocal rest
            text, _, rest = (rest + reader.read()).rpartition("\n")
            return summary(text)

        try:
            yield since_last
        finally:
            tool.terminate()
            tool.wait()


def summary(text: str) -> dict[str, Any]:
    """Least, median and largest of each column of the tool's lines."""
    columns: dict[str, list[float]] = {unit: [] for unit in _UNITS}
    for line in csv.reader(io.StringIO(text), skipinitialspace=True):
        for unit, cell in zip(_UNITS, line, strict=False):
            try:
                columns[unit].append(float(cell))
            except ValueError:  # not told of this device
                continue
    return {u: [min(x), median(x), max(x)] for u, x in columns.items() if x}
