"""`make gpu` without a GPU: the pack, the run and its result file, on the emulated device."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import facts, steps
from benchmarks.gpu.kernel_tests import complaints
from benchmarks.gpu.sessions import timed_calls
from benchmarks.gpu.table import table
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
BESIDE = """
from tests.on_gpu import replay
memory = replay.Memory((4,), "float32")
memory.check()
replay._device().fill(memory.address + 16, 0, 1)
memory.check()
"""

TIMING = """
from benchmarks.gpu.driver import Device
from benchmarks.gpu.timing import Contender, time_contenders

def refuses(work):
    raise ValueError("no graph today")

def fails():
    raise ValueError("not today")

device = Device()
memory = device.take(64)
fill = lambda: device.fill(memory, 1, 64)
several = [Contender("ours", fill, device.captured), Contender("plain", fill, refuses)]
several += [Contender("waits", fill, None, {"more": 1}), Contender("none", fails, None)]
left_out = {}
result = time_contenders(device, several, "ours", 3, left_out)
rows = {row["name"]: row for row in result["contenders"]}
assert list(rows) == ["ours", "plain", "waits"] and left_out == {"none": "not today"}
assert [row["graph"] for row in rows.values()] == [True, False, False]
assert rows["plain"]["no_graph"] == "no graph today" and rows["waits"]["more"] == 1
# A millisecond for each call of the fake driver: ten calls of a graph are one.
assert [row["us"] for row in rows.values()] == [100, 1000, 1000], rows
assert all(len(row["rounds_us"]) == 3 for row in rows.values())
assert result["speedup"] == {"plain": 10, "waits": 10}
"""


def environment(folder: Path) -> dict[str, str]:
    libraries = os.pathsep.join([str(fake_folder()), os.environ.get("LD_LIBRARY_PATH", "")])
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PITC_CACHE_DIR": str(folder / "cache"),
        "PITC_EP_LIBRARY": str(built() / "libpitc_ort_ep.so"),
        "PITC_RESULTS": str(folder / "results"),
        "PITC_GPU_KERNELS": str(folder / "pack" / "tests"),
        "LD_LIBRARY_PATH": libraries,
        "FAKE_CUDA_EMULATOR": str(build.run_time()),
        "FAKE_CUDA_ARCH": ARCH.removeprefix("sm_"),
    }


def call(folder: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """Python, in which TVM cannot be imported."""
    absent = folder / "absent"
    absent.mkdir(exist_ok=True)
    (absent / "tvm.py").write_text("raise ImportError('TVM was imported')\n")
    given = environment(folder) | {"PYTHONPATH": f"{absent}:{ROOT}"} | changed
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=given, cwd=ROOT)


def run(folder: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
    given = ["--pack", str(folder / "pack"), "run", "--small", *words]
    return call(folder, "-m", "benchmarks.gpu", *given, **changed)


@pytest.fixture(name="packed", scope="module")
def _packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, "-c", PACKING, str(folder / "pack"), ARCH]
    given = environment(folder) | {"PYTEST_ADDOPTS": "-p tests.on_gpu.emulated"}
    subprocess.run(command, check=True, env=given, cwd=ROOT, stdout=sys.stderr)
    return folder


def results(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "results").glob("*.json")
    assert path.name == "fake-gpu-0.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_all_steps_run_through(packed: Path) -> None:
    done = run(packed)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(packed)
    assert [step["name"] for step in found["steps"]] == [step.name for step in steps.STEPS]
    assert {step["status"] for step in found["steps"]} == {"ok"}
    gpu = found["machine"]["gpu"]
    assert (gpu["name"], gpu["arch"], gpu["cuda"]) == ("Fake GPU 0", ARCH, "13.0")
    named = {result["case"]["name"]: result for result in found["results"]}
    assert named["tests-test_cuda_pack"]["passed"] == 4
    assert named["tests-test_cuda_contract"]["passed"] == 1
    assert 0 < named["session-bert-f16"]["error"] < 2e-2
    for block in ("32x1", "1x64", "32x32"):
        product = named[f"spmm-128-{block}-90"]
        names = ["pitc", *(f"pitc-{kind}" for kind in ("dense", "tile", "block", "square"))]
        assert [row["name"] for row in product["contenders"]] == names
        assert set(product["errors"]) == set(names) and max(product["errors"].values()) < 1e-3
        assert all(row["us"] > 0 and row["graph"] for row in product["contenders"])
        assert "torch" in product["left_out"] and 0.5 < product["zeros"] < 1
    assert named["detector-128-90"]["of_copy"] > 0
    assert set(named["layer-4x16-m5"]["errors"]) == {
        *(f"product-{i}" for i in range(1, 7)),
        "attention",
    }
    assert "ort-cuda" in named["bert-32x128-m40-f16"]["left_out"]
    assert "spmm-128-32x1-90" in done.stdout and "target cublas 5: not measured" in done.stdout


def test_a_kernel_that_fails_is_told(packed: Path) -> None:
    done = run(packed, "tests", FAKE_CUDA_FAILING_LAUNCH="2")
    assert done.returncode == 1
    failed = [line for result in results(packed)["results"] for line in result["failed"]]
    assert any("CUDA_ERROR_ILLEGAL_ADDRESS" in line for line in failed)
    assert results(packed)["steps"][0]["status"] == "failed"


def test_no_code_for_the_device(packed: Path) -> None:
    done = run(packed, "gemm", FAKE_CUDA_ARCH="75")
    assert done.returncode == 1
    assert "no code of gather_gemm_none_f16_mma128x128_cuda for sm_75" in done.stdout


@pytest.mark.parametrize(
    ("words", "changed", "code", "text"),
    [
        (["gem"], {}, 2, "error: no step is called gem"),
        (["copy"], {"FAKE_CUDA_DEVICES": "0"}, 3, "error: cuInit: CUDA_ERROR_NO_DEVICE"),
    ],
    ids=str,
)
def test_errors_are_a_line(
    packed: Path, words: list[str], changed: dict[str, str], code: int, text: str
) -> None:
    done = run(packed, *words, **changed)
    assert (done.returncode, done.stderr.strip()) == (code, text)


def test_a_folder_that_is_no_pack(tmp_path: Path) -> None:
    done = run(tmp_path, "copy")
    assert done.returncode == 2 and "is no pack; make it with `make gpu-pack`" in done.stderr


def test_a_pack_of_other_sources(packed: Path, tmp_path: Path) -> None:
    made = json.loads((packed / "pack" / "pack.json").read_text())
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(made | {"sources": "0"}))
    done = run(tmp_path, "copy")
    assert done.returncode == 2 and "is of other sources" in done.stderr


def test_writing_beside_memory_is_seen(packed: Path) -> None:
    done = call(packed, "-c", BESIDE)
    assert done.returncode == 1 and "written beside float32[4]" in done.stderr


def test_who_cannot_be_captured_is_timed_all_the_same(packed: Path) -> None:
    done = call(packed, "-c", TIMING)
    assert done.returncode == 0, done.stderr


# ---- steps

HANGING = """
import sys, time, subprocess
told = open(sys.argv[1], "a")
print('{"number": 1}', file=told, flush=True)
print("started", flush=True)
child = subprocess.Popen(["sleep", "60"])
print(f'{{"child": {child.pid}}}', file=told, flush=True)
told.write('{"numb')
told.flush()
time.sleep(60)
"""


def test_a_step_that_hangs_keeps_what_it_told(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.json"
    report = steps.Report(path, {"schema": 1})
    kinds = [steps.Step("hangs", 2.0), steps.Step("fails", 60), steps.Step("late", 60)]
    codes = {"hangs": HANGING, "fails": "print('why'); raise SystemExit(4)", "late": "pass"}
    said: list[str] = []
    start = time.monotonic()
    command = lambda name: [sys.executable, "-c", codes[name]]  # noqa: E731
    assert not report.run(kinds, 30, os.environ, command, said.append)
    assert time.monotonic() - start < 20
    found = json.loads(path.read_text())
    assert found["results"][0] == {"number": 1}
    ended = found["steps"]
    assert [(s["name"], s["status"]) for s in ended] == [
        ("hangs", "timeout"),
        ("fails", "failed"),
        ("late", "ok"),
    ]
    assert ended[0]["log"] == ["started"] and ended[1]["log"] == ["why"]
    child = Path(f"/proc/{found['results'][1]['child']}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_steps_without_time_are_named(tmp_path: Path) -> None:
    report = steps.Report(tmp_path / "a.json", {})
    one = [steps.Step("one", 60)]
    assert not report.run(one, 1, os.environ, lambda _: ["true"], print)
    assert report.content["steps"] == [{"name": "one", "status": "no time"}]


# ---- what is told of clocks, sanitizers and targets


def test_clocks_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = "1200, 2619, 300.5, 40\\n1980, 2619, [N/A], 44\\n1500, 2619, 310.5, 41"
    tool.write_text(f"#!/bin/sh\nprintf '{lines}\\n17'\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found: dict[str, Any] = {}
    with facts.clocks() as since_last:
        for _ in range(200):
            if found := since_last():
                break
            time.sleep(0.05)
        assert since_last() == {}
    assert found == {
        "sm_mhz": [1200, 1500, 1980],
        "memory_mhz": [2619, 2619, 2619],
        "power_w": [300.5, 305.5, 310.5],
        "temperature_c": [40, 41, 44],
    }


def test_complaints_are_what_a_sanitizer_finds() -> None:
    lines = [
        "========= COMPUTE-SANITIZER",
        "1 passed",
        "========= ERROR SUMMARY: 0 errors",
        "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    ]
    assert complaints(lines) == []
    found = ["========= Invalid __global__ read of size 16 bytes", "=========     at k+0x10"]
    found.append("========= ERROR SUMMARY: 10 errors")
    want = ["Invalid __global__ read of size 16 bytes", "at k+0x10", "ERROR SUMMARY: 10 errors"]
    assert complaints([*lines, *found]) == want


def test_targets_stand_beside_what_was_reached() -> None:
    case = {"name": "x", "targets": {"cublas": 5.0, "of_copy": 0.6, "other": 1}}
    result = {
        "case": case,
        "contenders": [{"name": "pitc", "us": 2.0}, {"name": "cublas", "us": 9.0}],
        "speedup": {"cublas": 4.5},
        "of_copy": 0.7,
    }
    (line,) = table([result])
    assert "cublas 4.50x" in line and "target cublas 5.0: missed" in line
    assert "target of_copy 0.6: met" in line and "target other 1: not measured" in line


def test_calls_take_turns() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    taken = timed_calls(works, rounds=3, calls=2, warm_up=1)
    assert order == [*"aabb", *"bbaa", *"aabb", *"bbaa"]
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3}
