"""One fault costs one case of a GPU run: each kind of it in each step, on the emulated device."""

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.gpu.steps import STEPS
from tests.gpu_support import packed, results, run

STRUCK = {
    "smoke": "pack_b4",
    "tests-cuda_pack": "pack_b",
    "copy": "copy",
    "gemm": "mma64x128",
    "spmm": "gather_gemm",
    "layer": "attention",
    "attention": "attention",
    "masks": "sees_p0n",
    "elementwise": "elementwise",
    "gradients": "attention_grad",
    "detector": "detect",
    "sessions": "gather_gemm",
    "tiles": "64x64",
    "prices": "mma128x128",
}
"""A kernel of each step: its first launch in a run is struck."""
LIMITS_S = (1.5, 5.0)
"""Of a case; on a busy machine one that is well may take longer than the first of them."""
COMPILED_S = (5.0, 15.0)
"""Of a case that compiles a model."""


def measured(found: dict[str, Any]) -> set[str]:
    """What a run has found out: answers that are right, and times."""
    known: set[str] = set()
    for result in found["results"]:
        name = result["case"]["name"]
        known |= {f"{name}/{row['name']}" for row in result.get("contenders", []) if row["us"]}
        known |= {f"{name}/{mask}" for mask in result.get("errors", {})}
        known |= {f"{name}/passed-{number}" for number in range(result.get("passed", 0))}
        known |= {f"{name}/{fact}" for fact in ("right", "prices") if fact in result}
    return known


def failures(found: dict[str, Any]) -> list[str]:
    """What a run tells of failures."""
    told: list[str] = []
    for result in found["results"]:
        failed = result.get("failed", [])
        told += [failed] if isinstance(failed, str) else failed
        told += result.get("failed_parts", {}).values()
    return told


def holds(check: Callable[[Path, float], None], limits: Sequence[float], folder: Path) -> None:
    """Check something with the first limit; if that fails, with the next one.

    Args:
        check: Gets a folder of its own and a limit.
        limits: Ascending.
        folder: Where the folders are made.
    """
    for limit in limits:
        own = folder / f"{limit:g}"
        own.mkdir()
        try:
            check(own, limit)
        except AssertionError:
            if limit == limits[-1]:
                raise
        else:
            return


@cache
def whole(step: str) -> frozenset[str]:
    """What the step finds out without a fault."""
    with TemporaryDirectory() as folder:
        done = run(Path(folder), step)
        assert done.returncode == 0, done.stdout + done.stderr
        return frozenset(measured(results(Path(folder))))


#: The other steps share their code with these; `make test-all` has them all.
FEW = frozenset({"tests-cuda_pack", "gemm"})
EACH_STEP = [pytest.param(s, marks=() if s in FEW else pytest.mark.thorough) for s in STRUCK]


@pytest.mark.parametrize("kind", ["wrong", "lost", "endless"])
@pytest.mark.parametrize("step", EACH_STEP)
def test_a_fault_costs_one_case(step: str, kind: str, tmp_path: Path) -> None:
    packed()
    limits = LIMITS_S if step != "sessions" else COMPILED_S
    holds(partial(one_fault, step, kind), limits if kind == "endless" else limits[-1:], tmp_path)


def one_fault(step: str, kind: str, folder: Path, limit: float) -> None:
    """A fault of a kind in a step costs one thing that it would have found out."""
    faults = f"{kind}:{STRUCK[step]}:{folder / 'struck'}"
    start = time.monotonic()
    done = run(folder, step, "--case-seconds", str(limit), FAKE_CUDA_FAULTS=faults)
    assert (folder / "struck").exists(), "no launch was struck"
    assert done.returncode == 1, done.stdout + done.stderr
    assert time.monotonic() - start < STEPS[step].limit_s + 20
    found = results(folder)
    assert len(whole(step) - measured(found)) == 1
    assert measured(found) <= whole(step)
    text = {"wrong": "", "lost": "CUDA_ERROR_ILLEGAL_ADDRESS", "endless": "no end within"}[kind]
    assert any(text in line for line in failures(found)), failures(found)
    (state,) = found["calls"][0]["steps"]
    assert state["status"] == "failed" and state["starts"] <= 2


@pytest.mark.thorough
def test_a_kernel_that_always_faults_costs_its_contender(tmp_path: Path) -> None:
    run(tmp_path, "gemm", "attention", FAKE_CUDA_FAULTS="lost:mma64x128:")
    gone = (whole("gemm") | whole("attention")) - measured(results(tmp_path))
    assert gone == {"gemm-40x64x64/mma64x128"}


@pytest.mark.thorough
def test_a_process_that_dies_costs_what_it_was_doing(tmp_path: Path) -> None:
    done = run(tmp_path, "gemm", FAKE_CUDA_FAULTS="crash:mma64x128:")
    found = results(tmp_path)
    assert whole("gemm") - measured(found) == {"gemm-40x64x64/mma64x128"}
    assert any("the process ended: Aborted" in line for line in failures(found))
    assert "mma64x128: the process ended" in done.stdout


@pytest.mark.thorough
def test_a_hang_among_tests_leaves_the_other_files(tmp_path: Path) -> None:
    """Files run side by side: one that hangs for good in every test takes its time alone."""
    faults = "endless:plain:"
    run(tmp_path, "tests", "--case-seconds", "4", FAKE_CUDA_FAULTS=faults)
    named = {r["case"]["name"]: r for r in results(tmp_path)["results"]}
    assert named["tests-cuda_pack"]["passed"] == 4
    (failed,) = named["tests-cuda_contract"]["failed"]
    assert failed.startswith("test_leaves_when_not_chosen") and "no end within 4 s" in failed


def test_time_that_runs_out_leaves_what_is_known(tmp_path: Path) -> None:
    """The last step hangs, and the run ends in time with all that was found before."""
    holds(run_out, (6, 12), tmp_path)


def run_out(folder: Path, seconds: float) -> None:
    """A run with so much time that the last step has none left."""
    start = time.monotonic()
    done = run(
        folder, "copy", "gemm", "attention", "detector", "--minutes", str(seconds / 60),
        FAKE_CUDA_FAULTS="endless:attention:",
    )  # fmt: skip
    assert done.returncode == 1 and time.monotonic() - start < seconds + 18
    found = results(folder)
    assert measured(found) == whole("copy") | whole("gemm")
    state = {s["name"]: s["status"] for s in found["calls"][0]["steps"]}
    assert state == {"copy": "ok", "gemm": "ok", "attention": "no time", "detector": "no time"}
    assert any("no time was left" in line for line in failures(found))
