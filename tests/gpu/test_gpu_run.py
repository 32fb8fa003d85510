"""`make gpu` without a GPU: all steps on the emulated device, and its result file."""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import facts, report, steps
from benchmarks.gpu.kernel_tests import FEW, complaints
from benchmarks.gpu.sessions import timed_calls
from benchmarks.gpu.table import line_of
from tests.cuda_emulator import ARCH
from tests.gpu_support import call, packed, results, run

BESIDE = """
from tests.on_gpu import replay
memory = replay.Memory((4,), "float32")
memory.check()
replay._device().fill(memory.address + 16, 0, 1)
memory.check()
"""

TIMING = """
import json
import sys
from pathlib import Path
from benchmarks.gpu.driver import Device
from benchmarks.gpu.journal import Journal, Record, Telling
from benchmarks.gpu.timing import Contender, operand_sets, time_contenders

def refuses(work):
    raise ValueError("no graph today")

def fails():
    raise ValueError("not today")

def lines(path):
    return [Record(**json.loads(line)) for line in path.read_text().splitlines()]

device = Device()
memory = [device.take(64) for _ in range(3)]
fills = [lambda m=m: device.fill(m, 1, 64) for m in memory]
makers = {
    "ours": lambda: Contender(fills[:1], device.captured),
    "plain": lambda: Contender(fills[:1], refuses),
    "waits": lambda: Contender(fills[:1], None, {"more": 1}),
    "turns": lambda: Contender(fills, None),
    "none": fails,
}
journal = Journal(Path(sys.argv[1]))
telling = Telling(journal, Record("step", "case"), device.is_lost)
result = time_contenders(device, makers, "ours", 3, telling)
rows = {row["name"]: row for row in result["contenders"]}
assert list(rows) == ["ours", "plain", "waits", "turns"]
assert telling.failed == {"none": "not today"}
assert [row["graph"] for row in rows.values()] == [True, False, False, False]
assert rows["plain"]["no_graph"] == "no graph today" and rows["waits"]["more"] == 1
# A millisecond for each call of the fake driver: ten calls of a graph are one.
assert [row["us"] for row in rows.values()] == [100, 1000, 1000, 1000], rows
assert all(len(row["rounds_us"]) == 3 for row in rows.values())
assert result["speedup"] == {"plain": 10, "waits": 10, "turns": 10}
# What was known after each contender stands in the journal.
told = [r for r in lines(Path(sys.argv[1])) if "contenders" in r.result]
assert len({len(r.result["contenders"]) for r in told}) == 4
assert [operand_sets(device, x) for x in (1, 1 << 20, 1 << 21, 1 << 30)] == [8, 3, 2, 1]
"""


def test_all_steps_run_through(tmp_path: Path) -> None:
    done = run(tmp_path, "first", "tiles", "prices", "bert", "--minutes", "5", FAKE_CUDA_L2="65536")
    found = results(tmp_path)
    (call_,) = found["calls"]
    state = {step["name"]: step["status"] for step in call_["steps"]}
    names = [*steps.FIRST, "tiles", "prices", "bert"]
    assert list(state) == names
    few = {f"tests-{file.removeprefix('test_').removesuffix('.py')}" for file in FEW}
    left_out = {name for name in steps.TESTS if name not in few}
    assert {name for name, status in state.items() if status == "left out"} == left_out
    assert {name for name, status in state.items() if status == "failed"} == {"wgmma"}
    assert set(state.values()) == {"ok", "failed", "left out"}, done.stdout + done.stderr
    gpu = call_["machine"]["gpu"]
    assert (gpu["name"], gpu["arch"], gpu["cuda"]) == ("Fake GPU 0", ARCH, "13.0")
    named = {result["case"]["name"]: result for result in found["results"]}
    assert named["smoke"]["right"]
    assert (named["tests-cuda_pack"]["passed"], named["tests-cuda_contract"]["passed"]) == (4, 1)
    for block in ("32x1", "1x64", "32x32"):
        product = named[f"spmm-128-{block}-90"]
        rows = {row["name"]: row for row in product["contenders"]}
        assert list(rows) == ["pitc", *(f"pitc-{k}" for k in ("dense", "tile", "block", "square"))]
        assert all(row["us"] > 0 and row["graph"] for row in rows.values())
        assert all(row["error"] < 1e-3 for row in rows.values())
        assert "torch" in product["left_out"] and 0.5 < product["zeros"] < 1
        assert product["operands"]["sets"] == 2 and not product["operands"]["warm"]
        assert rows["pitc-tile"]["chosen"] == "tile32_mma32x128"
    assert named["detector-128-90"]["of_copy"] > 0
    errors = named["layer-4x16-m5"]["contenders"][0]["errors"]
    assert set(errors) == {*(f"product-{i}" for i in range(1, 7)), "attention"}
    masks = [result for result in found["results"] if result["step"] == "masks"]
    assert [result["case"]["sees"] for result in masks] == [
        *("p0n", "p0p1on", "p0p1ok0aq0an", "e0p0a", "f0n", "")
    ]
    for result in masks:
        (row,) = result["contenders"]
        assert row["error"] < 1e-3 and row["tflops"] > 0 and row["graph"]
        assert "torch" in result["left_out"] and 0 < result["case"]["live_share"] <= 1
    assert named["masks-96-causal"]["case"]["live_pairs"] == 96 * 97 // 2
    (row,) = named["experts-e4-64x128-40"]["contenders"]
    assert row["name"] == "pitc" and row["error"] < 1e-3 and row["graph"]
    for name in ("gelu-grad-6x96", "norm-grad-5x66"):
        result = named[f"elementwise-{name}"]
        rows = {row["name"]: row for row in result["contenders"]}
        assert list(rows) == ["pitc", "step-by-step"] and result["gbytes_per_s"] > 0
        assert all(row["error"] < 1e-6 and row["graph"] for row in rows.values())
    for name in ("4x16-m5", "96-causal"):
        (row,) = named[f"gradients-{name}"]["contenders"]
        assert row["name"] == "pitc" and row["error"] < 1e-5 and row["tflops"] > 0 and row["graph"]
    assert named["session-bert-f16"]["errors"].keys() == {
        *("full", "right", "left", "one", "1x1", "2x40")
    }
    assert "ort-cuda" in named["bert-32x128-m40-f16"]["left_out"]
    assert {row["name"] for row in named["tiles-40x64x64"]["contenders"]} == {
        "pitc",
        "64x64-k64-4blocks",
    }
    for kind in ("dense", "tile32", "block64", "square32"):
        (price,) = (r for n, r in named.items() if n.startswith(f"price-{kind}"))
        ((name, numbers),) = price["prices"].items()
        assert name.startswith(f"price_{kind}_mma") and name.endswith(f"_{ARCH}")
        assert len(numbers) == 4 and min(numbers) >= 0 and max(numbers) > 0
    # The trial's code is no module of the emulated device: every tile is told, and cuBLAS' absence.
    assert set(named["wgmma-40x64x64"]["failed_parts"]) == {"wgmma128x128", "wgmma128x256"}
    assert "spmm-128-32x1-90" in done.stdout and done.returncode == 1


SANITIZER = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
while [ "${1#--}" != "$1" ]; do echo "$1" >> "$TOLD"; shift; done
"$@"
echo "========= Invalid __global__ read of size 16 bytes"
exit 9
"""
PROFILER = """#!/bin/sh
while [ "${1%python}" = "$1" ]; do echo "$1" >> "$TOLD"; shift; done
"$@" || exit 1
echo '"ID","Kernel Name","lts__t_bytes.sum"'
echo '"","","byte"'
echo '"0","kernel","2,147,483,648"'
"""


def test_sanitizer_and_profiler_are_asked_and_heard(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("compute-sanitizer", SANITIZER), ("ncu", PROFILER)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    done = run(tmp_path, "memcheck", "counters", PATH=path, TOLD=str(tmp_path / "told"))
    assert done.returncode == 1
    named = {result["case"]["name"]: result for result in results(tmp_path)["results"]}
    packs = named["memcheck-cuda_pack"]
    assert packs["passed"] == 4 and not packs["failed"]
    assert packs["complaints"] == ["Invalid __global__ read of size 16 bytes"]
    told = (tmp_path / "told").read_text().splitlines()
    assert "--tool=memcheck" in told and "--error-exitcode=9" in told
    for kernel in ("mma128x128", "tile32", "block64", "choose", "attention"):
        assert named[f"counters-{kernel}"]["counters"] == {"lts__t_bytes.sum": 1 << 31}
    assert "regex:contract_tile.*mma32x128.*" in told and "--clock-control" in told


def test_what_is_missing_there_is_left_out(tmp_path: Path) -> None:
    path = str(Path(sys.executable).parent)
    done = run(tmp_path, "racecheck", "counters", PATH=path)
    assert done.returncode == 1, done.stdout
    found = results(tmp_path)
    assert {s["why"] for s in found["calls"][0]["steps"] if s["status"] == "left out"} == {
        "an emulated device runs few tests",
        "no compute-sanitizer is here",
    }
    assert all("no ncu is here" in str(r["left_out"]) for r in found["results"])


def test_no_code_for_the_device(tmp_path: Path) -> None:
    done = run(tmp_path, "gemm", FAKE_CUDA_ARCH="75")
    assert done.returncode == 1
    assert "no code of gather_gemm_none_f16_mma128x128_cuda for sm_75" in done.stdout


def test_a_driver_that_refuses_the_code_ends_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, FAKE_CUDA_REFUSAL="222")
    assert done.returncode == 3
    (line,) = re.findall(r"^error: .*", done.stdout, re.MULTILINE)
    assert "was compiled by a newer toolkit than the driver is for" in line
    assert "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in line
    state = {s["name"]: s["status"] for s in results(tmp_path)["calls"][0]["steps"]}
    assert state.pop("smoke") == "failed" and set(state.values()) == {"not begun"}


def test_steps_have_the_order_of_the_command_line(tmp_path: Path) -> None:
    done = run(tmp_path, "detector", "copy", "attention")
    assert done.returncode == 0, done.stdout
    found = results(tmp_path)
    assert [s["name"] for s in found["calls"][0]["steps"]] == ["detector", "copy", "attention"]
    assert found["calls"][0]["steps"][0]["starts"] == 1  # one process for all
    log = next((tmp_path / "results").glob("*.log")).read_text()
    assert log.strip() == done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "changed", "code", "text"),
    [
        (["gem"], {}, 2, "error: no step is called gem"),
        (["copy"], {"FAKE_CUDA_DEVICES": "0"}, 3, "error: cuInit: CUDA_ERROR_NO_DEVICE"),
    ],
    ids=str,
)
def test_errors_are_a_line(
    tmp_path: Path, words: list[str], changed: dict[str, str], code: int, text: str
) -> None:
    done = run(tmp_path, *words, pack=None, **changed)
    assert (done.returncode, done.stderr.strip()) == (code, text)


def test_a_folder_that_is_no_pack(tmp_path: Path) -> None:
    done = run(tmp_path, "copy", pack=tmp_path)
    assert done.returncode == 2 and "is no pack; make it with `make gpu-pack`" in done.stderr


def test_a_pack_of_other_sources(tmp_path: Path) -> None:
    made = json.loads((packed() / "pack.json").read_text())
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(made | {"sources": "0"}))
    done = run(tmp_path, "copy", pack=tmp_path / "pack")
    assert done.returncode == 2 and "is of other sources" in done.stderr


def test_writing_beside_memory_is_seen(tmp_path: Path) -> None:
    packed()
    done = call(tmp_path, "-c", BESIDE)
    assert done.returncode == 1 and "written beside float32[4]" in done.stderr


def test_contenders_are_timed_each_in_its_way(tmp_path: Path) -> None:
    done = call(tmp_path, "-c", TIMING, str(tmp_path / "journal"), FAKE_CUDA_L2=str(1 << 20))
    assert done.returncode == 0, done.stderr


# ---- result files


def _came(folder: Path, number: int, sources: str = "0123456789") -> Path:
    call_ = {"machine": {"gpu": {"name": "GPU X"}}, "pack": {"sources": sources}, "began": number}
    made = report.Report(folder / "came", call_)
    made.write([{"name": "copy"}], [{"case": {"name": "copy"}, "us": number}])
    return made.path


def test_no_result_is_written_over(tmp_path: Path) -> None:
    paths = [_came(tmp_path, 1), _came(tmp_path, 2), _came(tmp_path, 3, "987654321")]
    assert [p.name for p in paths] == [
        "gpu-x-01234567-1.json",
        "gpu-x-01234567-2.json",
        "gpu-x-98765432-1.json",
    ]
    kept = tmp_path / "kept"
    for _ in range(2):  # the second time nothing is new
        report.merged(paths, kept)
    assert sorted(p.name for p in kept.iterdir()) == ["gpu-x-01234567.json", "gpu-x-98765432.json"]
    both = json.loads((kept / "gpu-x-01234567.json").read_text())
    assert [c["began"] for c in both["calls"]] == [1, 2]
    assert [(r["call"], r["us"]) for r in both["results"]] == [(0, 1), (1, 2)]


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
        "contenders": [{"name": "pitc", "us": 2.0, "tflops": 1.5}, {"name": "cublas", "us": 9.0}],
        "speedup": {"cublas": 4.5},
        "of_copy": 0.7,
    }
    line = line_of(result)
    assert "pitc 2.0 us, 1.5 TFLOP/s, cublas 4.50x" in line and "target cublas 5.0: missed" in line
    assert "target of_copy 0.6: met" in line and "target other 1: not measured" in line


def test_calls_take_turns() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    taken = timed_calls(works, rounds=3, calls=2, warm_up=1)
    assert order == [*"aabb", *"bbaa", *"aabb", *"bbaa"]
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3}
