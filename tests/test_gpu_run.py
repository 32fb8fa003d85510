"""`make gpu` without a GPU: the pack, the run and its result, on the emulated device."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import steps
from tests.cuda_emulator import build
from tests.device_kernels import ARCH
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
    libraries = os.pathsep.join([str(fake_folder()), os.environ.get("LD_LIBRARY_PATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PITC_CACHE_DIR": str(folder / "cache"),
        "PITC_EP_LIBRARY": str(built() / "libpitc_ort_ep.so"),
        "PITC_RESULTS": str(folder / "results"),
        "PYTEST_ADDOPTS": "-p tests.on_gpu.emulated",
        "LD_LIBRARY_PATH": libraries,
        "FAKE_CUDA_EMULATOR": str(build.run_time()),
        "FAKE_CUDA_ARCH": ARCH.removeprefix("sm_"),
    }


def run(folder: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--pack", str(folder / "pack"), *words]
    given = {**environment(folder), "PYTEST_ADDOPTS": "", **changed}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given, cwd=ROOT)


@pytest.fixture(name="packed", scope="module")
def _packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, "-c", PACKING, str(folder / "pack"), ARCH]
    subprocess.run(command, check=True, env=environment(folder), cwd=ROOT, stdout=sys.stderr)
    return folder


def results(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "results").glob("*.json")
    assert path.name == "fake-gpu-0.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_all_steps_run_through(packed: Path) -> None:
    done = run(packed, "run", "--small")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(packed)
    assert {step["status"] for step in found["steps"]} == {"ok"}
    assert [step["name"] for step in found["steps"]] == [step.name for step in steps.STEPS]
