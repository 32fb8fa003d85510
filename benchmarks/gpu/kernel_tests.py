"""The tests of CUDA kernels on the device, plain and under NVIDIA's sanitizer."""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Record, Result

FILES = (
    "test_cuda_pack.py",
    "test_cuda_elementwise.py",
    "test_detect_cuda.py",
    "test_cuda_listed.py",
    "test_cuda_contract.py",
    "test_cuda_grouped.py",
    "test_cuda_attention.py",
    "test_cuda_seen.py",
    "test_cuda_attention_grad.py",
)
"""What others stand on comes first."""
FEW = ("test_cuda_pack.py", "test_cuda_contract.py")
"""For an emulated device, with `FEW_TESTS`."""
FEW_TESTS = "(test_rows_move and 3) or test_leaves_when_not_chosen"
SANITIZER, COMPLAINED = "compute-sanitizer", 9
"""And its exit code where it finds something."""
SANITIZED_TESTS = (
    "test_rows_move or test_rows_of_any_length or test_variants or test_attends"
    " or (test_widths and attention_grad) or test_from_zeros_to_the_product or test_blocks_of_k"
    " or test_detects_and_lists or (test_multiplies and 130) or (test_each_tile and 33)"
)
"""Few, but every family: it slows kernels down by far."""
JOURNAL, STEP = "PITC_GPU_JOURNAL", "PITC_GPU_STEP"
"""Variables that tell `tests/on_gpu/replay.py` where and under which name to tell of its tests."""
_TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
_ERROR = "========= "


def command(file: str, tool: str = "", *, small: bool = False) -> list[str]:
    """What runs the tests of a file; with a tool of the sanitizer a part of them under it."""
    options = ["-q", "-p", "tests.on_gpu.replay", "-p", "no:cacheprovider", "--tb=short"]
    options += ["-W", "ignore"]  # packages there have other versions
    chosen = FEW_TESTS if small else SANITIZED_TESTS if tool else ""
    options += ["-k", chosen] if chosen else []
    under = [SANITIZER, f"--tool={tool}", f"--error-exitcode={COMPLAINED}"] if tool else []
    return [*under, sys.executable, "-m", "pytest", *options, str(_TESTS / "gpu" / file)]


def environment(pack: Path, journal: Path, step: str, *, sanitized: bool) -> Mapping[str, str]:
    """Variables of such a process; plug-ins of pytest that the machine has are not loaded."""
    return {
        "PITC_GPU_KERNELS": str(pack / "tests"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        JOURNAL: str(journal),
        STEP: step,
        # The sanitizer finds accesses out of bounds itself, if nothing lies there.
        **({"PITC_GPU_GUARDS": "0"} if sanitized else {}),
    }


def missing(tool: str) -> str:
    """Why a tool of the sanitizer cannot be run; empty where it can."""
    return f"no {SANITIZER} is here" if tool and not shutil.which(SANITIZER) else ""


def summary(step: str, records: Sequence[Record]) -> Result:
    """What the tests of a file came to, as one result.

    A test that ended because it asked for counts has passed: its answer was right before.
    """
    found: dict[str, Any] = {"case": {"name": step}, "passed": 0, "skipped": 0, "failed": []}
    for record in records:
        outcome = record.result.get("outcome")
        if record.failed:
            found["failed"] += [f"{record.name}: {why}" for why in record.failed.values()]
        elif outcome in ("passed", "skipped"):
            found[outcome] += 1
        else:
            found["failed"].append(f"{record.name}: it did not end")
    return found


def complaints(lines: Sequence[str]) -> list[str]:
    """What the sanitizer has to say, without its frame; the first of them."""
    told = [line.removeprefix(_ERROR).strip() for line in lines if line.startswith(_ERROR)]
    noise = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY: 0|RACECHECK SUMMARY: 0|^$")
    return [line for line in told if not noise.search(line)][:40]
