"""`make gpu` without a GPU: a small pack, and runs of it on the emulated device."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.gpu.pack import sources
from tests.cuda_emulator import ARCH, build
from tests.device_support import fake_folder
from tests.runtime_support import ROOT, built

PACKING = """
import sys
from pathlib import Path
import tests.on_gpu.emulated
from benchmarks.gpu import pack
pack.make(Path(sys.argv[1]), [sys.argv[2]], [], "3.12", small=True)
"""


def environment(folder: Path) -> dict[str, str]:
    """Variables of processes that see the emulated device and leave results in a folder."""
    libraries = os.pathsep.join([str(fake_folder()), os.environ.get("LD_LIBRARY_PATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PITC_EP_LIBRARY": str(built() / "libpitc_ort_ep.so"),
        "PITC_RESULTS": str(folder / "results"),
        "PITC_GPU_KERNELS": str(_pack() / "tests"),
        "LD_LIBRARY_PATH": libraries,
        "FAKE_CUDA_EMULATOR": str(build.run_time()),
        "FAKE_CUDA_ARCH": ARCH.removeprefix("sm_"),
    }


@functools.cache
def _pack() -> Path:
    return Path(os.environ["PITC_CACHE_DIR"]) / "gpu" / sources()[:16] / "pack"


@functools.cache
def packed() -> Path:
    """The small pack, which the first process that wants it makes for all."""
    folder = _pack().parent
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (_pack() / "pack.json").is_file():
            command = [sys.executable, "-c", PACKING, str(_pack()), ARCH]
            given = environment(folder) | {"PYTEST_ADDOPTS": "-p tests.on_gpu.emulated"}
            subprocess.run(command, check=True, env=given, cwd=ROOT, stdout=sys.stderr)
    return _pack()


def call(folder: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """Python, in which TVM cannot be imported."""
    absent = folder / "absent"
    absent.mkdir(exist_ok=True)
    (absent / "tvm.py").write_text("raise ImportError('TVM was imported')\n")
    given = environment(folder) | {"PYTHONPATH": f"{absent}:{ROOT}"} | changed
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given, cwd=ROOT)


def run(
    folder: Path, *words: str, pack: Path | None = None, **changed: str
) -> subprocess.CompletedProcess[str]:
    """Steps of a run."""
    given = ["--pack", str(pack or packed()), "run", "--small", *words]
    return call(folder, "-m", "benchmarks.gpu", *given, **changed)


def results(folder: Path) -> dict[str, Any]:
    """The one result file."""
    (path,) = (folder / "results").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found
