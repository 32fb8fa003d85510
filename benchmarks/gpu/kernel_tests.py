"""The tests of CUDA kernels on the device, and under NVIDIA's sanitizer."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]

FILES = (
    "test_cuda_attention.py",
    "test_cuda_contract.py",
    "test_cuda_listed.py",
    "test_cuda_pack.py",
    "test_detect_cuda.py",
)
FEW = ("test_cuda_pack.py", "test_cuda_contract.py")
"""For an emulated device, with `FEW_TESTS`."""
FEW_TESTS = "(test_rows_move and 3) or test_leaves_when_not_chosen"
SANITIZER = "compute-sanitizer"
SANITIZED = (
    "test_rows_move or test_variants or test_attends or test_from_zeros_to_the_product"
    " or test_blocks_of_k or test_detects_and_lists or (test_multiplies and 130)"
)
"""Few, but every family: it slows kernels down by far."""
_TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
_ERROR = "========= "


def _command(file: str, report: Path, chosen: str) -> list[str]:
    options = ["-q", "-p", "tests.on_gpu.replay", "-p", "no:cacheprovider", "--tb=short"]
    options += ["-W", "ignore"]  # packages there have other versions
    options += ["-k", chosen] if chosen else []
    return [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", str(_TESTS / file)]


def test_results(pack: Path, *, small: bool) -> Iterator[Result]:
    """Run all tests, a process for each file, and tell what failed."""
    files, chosen = (FEW, FEW_TESTS) if small else (FILES, "")
    environment = {**os.environ, "PITC_GPU_KERNELS": str(pack / "tests")}
    with tempfile.TemporaryDirectory() as folder:
        reports = {file: Path(folder, f"{file}.xml") for file in files}
        running = {
            file: subprocess.Popen(
                _command(file, report, chosen),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
            for file, report in reports.items()
        }
        for file, process in running.items():
            printed, _ = process.communicate()
            yield result(file, reports[file], printed, process.returncode)


def result(file: str, report: Path, printed: str, code: int) -> Result:
    """What a file's report says; a test that ended because it asked for counts has passed."""
    found: Result = {"case": {"name": f"tests-{file.removesuffix('.py')}"}, "passed": 0}
    found |= {"skipped": 0, "failed": []}
    if not report.is_file():
        return {**found, "failed": ["all"], "log": printed.splitlines()[-20:]}
    for case in xml.parse(report).iter("testcase"):
        trouble = [x for x in case if x.tag in ("failure", "error")]
        skips = [x.get("message", "") for x in case if x.tag == "skipped"]
        if trouble:
            message = " ".join((trouble[0].get("message") or "").split())[:300]
            found["failed"].append(f"{case.get('name')}: {message}")
        elif skips and not skips[0].startswith("the answer is right"):
            found["skipped"] += 1
        else:
            found["passed"] += 1
    if code and not found["failed"]:
        found["failed"] = [f"exit code {code}"]
    return found


def sanitized(pack: Path, tool: str) -> Iterator[Result]:
    """The same under the sanitizer, a part of the tests."""
    case = {"name": f"sanitizer-{tool}"}
    if not shutil.which(SANITIZER):
        yield {"case": case, "left_out": {tool: f"there is no {SANITIZER}"}}
        return
    environment = {
        **os.environ,
        "PITC_GPU_KERNELS": str(pack / "tests"),
        "PITC_GPU_GUARDS": "0",  # it has its own eyes for accesses out of bounds
    }
    with tempfile.TemporaryDirectory() as folder:
        processes: dict[str, subprocess.Popen[str]] = {}
        for file in FILES:
            command = _command(file, Path(folder, f"{file}.xml"), SANITIZED)
            own = [SANITIZER, f"--tool={tool}", "--error-exitcode=9", *command]
            processes[file] = subprocess.Popen(
                own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
        for file, process in processes.items():
            printed, _ = process.communicate()
            errors = complaints(printed.splitlines())
            tested = result(file, Path(folder, f"{file}.xml"), printed, process.returncode)
            yield {**tested, "case": {**case, "file": file}, "complaints": errors}


def complaints(lines: Sequence[str]) -> list[str]:
    """What the sanitizer has to say, without its frame; the first of them."""
    told = [line.removeprefix(_ERROR).strip() for line in lines if line.startswith(_ERROR)]
    noise = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY: 0|RACECHECK SUMMARY: 0|^$")
    return [line for line in told if not noise.search(line)][:40]
