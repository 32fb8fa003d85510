"""Watching the processes of a GPU run: whatever ends one of them, the others' results are kept."""

import contextlib
import gc
import json
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks.gpu import prices, steps, supervise
from benchmarks.gpu.counters import METRICS, counters
from benchmarks.gpu.journal import LOST, Case, Journal, Lost, Record, Telling, run_cases
from benchmarks.gpu.peers import Torch
from benchmarks.gpu.report import NOT_ENDED, result_of, results_of
from benchmarks.gpu.steps import STEPS, Step, batches, chosen
from benchmarks.gpu.supervise import Job, Watched
from benchmarks.gpu.visit import Visit
from benchmarks.gpu.worker import with_goal

WORK = """
import json, os, subprocess, sys, time
path, *steps = sys.argv[1:]
lines = [json.loads(x) for x in open(path)] if os.path.exists(path) else []
done = {x["name"] for x in lines if x["done"]}
def tell(step, name, done):
    empty = {"doing": "", "result": {}, "failed": {}}
    with open(path, "a") as file:
        file.write(json.dumps({"step": step, "name": name, "done": done, **empty}) + "\\n")
"""


def watched(
    tmp_path: Path, names: Sequence[str], code: str, limit_s: float = 60, case_s: float = 30
) -> Watched:
    """A process for steps, whose code is run with the journal and the steps that are left."""
    journal = tmp_path / "journal"

    def command(left: Sequence[Step]) -> list[str]:
        return [sys.executable, "-c", WORK + code, str(journal), *(s.name for s in left)]

    job = Job(command, os.environ)
    return Watched([Step(name, limit_s, case_s) for name in names], job, tmp_path)


def wait(process: Watched, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while process.look():
        assert time.monotonic() < end, "it does not end"
        time.sleep(0.02)


def test_a_hang_costs_one_case_and_its_children_end(tmp_path: Path) -> None:
    code = """
for name in "abc":
    if name not in done:
        tell("one", name, False)
        if name == "b":
            child = subprocess.Popen(["sleep", "60"])
            open(path + ".child", "w").write(str(child.pid))
            open(path, "a").write('{"torn')
            time.sleep(60)
        tell("one", name, True)
"""
    process = watched(tmp_path, ["one"], code, case_s=1.0)
    wait(process)
    records = {r.name: r for r in process.journal.records()}
    assert {name: r.failed for name, r in records.items()} == {
        "a": {},
        "b": {"": "no end within 1 s"},
        "c": {},
    }
    assert all(r.done for r in records.values())
    assert process.starts == 2 and not process.stopped
    child = Path(f"/proc/{(tmp_path / 'journal.child').read_text()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_step_that_takes_too_long_leaves_the_next_one(tmp_path: Path) -> None:
    code = """
for step in steps:
    for number in range(100 if step == "slow" else 1):
        tell(step, f"{step}-{number}", False)
        time.sleep(0.2)
        tell(step, f"{step}-{number}", True)
"""
    code = "time.sleep(0.5)" + code  # a process does not begin at once
    process = watched(tmp_path, ["slow", "next"], code, limit_s=1.5)
    wait(process)
    assert process.stopped == {"slow": "timeout"} and process.starts == 2
    known = process.journal.records()
    assert [r.name for r in known if r.step == "next" and r.done] == ["next-0"]
    assert sum(r.step == "slow" for r in known) >= 2


def test_a_process_that_cannot_start_is_not_started_for_ever(tmp_path: Path) -> None:
    process = watched(tmp_path, ["one", "two"], "sys.exit('no torch')")
    wait(process)
    assert process.starts == 1 and process.stopped == {"one": "failed", "two": "failed"}
    assert process.tail() == ["no torch"]


def test_a_process_that_tells_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "START_S", 0.5)
    process = watched(tmp_path, ["one"], "time.sleep(60)")
    wait(process)
    assert process.stopped == {"one": "failed"}


def test_time_that_is_over_is_told(tmp_path: Path) -> None:
    code = """
tell("one", "a", True); tell("one", "b", False); time.sleep(60)
"""
    process = watched(tmp_path, ["one", "two"], code)
    while process.journal.lines < 2:
        process.look()
    process.end()
    assert not process.look() and process.stopped == {"one": "no time", "two": "no time"}
    assert result_of(process.journal.of("one", "b"))["failed"] == "no time was left"


# ---- cases and their parts


def _told(tmp_path: Path) -> list[Record]:
    text = (tmp_path / "journal").read_text()
    return [Record(**json.loads(line)) for line in text.splitlines()]


def test_a_part_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def fail() -> int:
        raise ValueError("why")

    def run(telling: Telling) -> dict[str, object]:
        found = [telling.attempt(name, work) for name, work in (("a", fail), ("b", lambda: 2))]
        return {"found": found}

    cases = [Case("one", {"size": 3}, run), Case("two", {}, lambda _: {"right": fail()})]
    journal = Journal(tmp_path / "journal")
    run_cases("step", iter(cases), journal, lambda: False)
    one, two = results_of(journal.records(), [])
    assert one["case"] == {"name": "one", "size": 3} and one["found"] == [None, 2]
    assert one["failed_parts"] == {"a": "why"} and "failed" not in one
    assert two["failed"] == "why"


def test_a_lost_device_is_told_before_the_process_ends(tmp_path: Path) -> None:
    """The next process does the case again without the part that lost it."""
    tries: list[str] = []

    def lose() -> int:
        tries.append("a")
        raise ValueError("illegal address")

    def run(telling: Telling) -> dict[str, object]:
        return {"found": [telling.attempt("a", lose), telling.attempt("b", lambda: 2)]}

    cases = [Case("one", {}, run)]
    with pytest.raises(Lost):
        run_cases("step", iter(cases), Journal(tmp_path / "journal"), lambda: True)
    assert not _told(tmp_path)[-1].done and _told(tmp_path)[-1].failed == {"a": "illegal address"}
    run_cases("step", iter(cases), Journal(tmp_path / "journal"), lambda: True)
    last = _told(tmp_path)[-1]
    assert last.done and last.result["found"] == [None, 2] and tries == ["a"]


def test_a_case_that_loses_the_device_outside_of_parts_is_not_tried_again(tmp_path: Path) -> None:
    def run(_: Telling) -> dict[str, object]:
        raise ValueError("illegal address")

    cases = [Case("one", {}, run), Case("two", {}, lambda _: {"right": True})]
    with pytest.raises(Lost):
        run_cases("step", iter(cases), Journal(tmp_path / "journal"), lambda: True)
    journal = Journal(tmp_path / "journal")
    run_cases("step", iter(cases), journal, lambda: True)
    one, two = results_of(journal.records(), [])
    assert one["failed"] == "illegal address" and two["right"]
    assert LOST not in (0, 1, 5)  # what pytest and Python end with


def test_what_has_not_ended_is_no_success(tmp_path: Path) -> None:
    assert result_of(Record("step", "name"))["failed"] == NOT_ENDED
    journal = Journal(tmp_path / "journal")
    journal.write(Record("tests-a", "test_x", done=True, result={"outcome": "passed"}))
    journal.write(Record("tests-a", "test_y"))
    (found,) = results_of(journal.records(), ["tests-a"])
    assert found["passed"] == 1 and found["failed"] == [f"test_y: {NOT_ENDED}"]


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    line = json.dumps(asdict(Record("step", "name", done=True)))
    path.write_text(line[:20])
    journal = Journal(path)
    assert journal.records() == [] and journal.last is None
    path.write_text(line + "\n")
    assert [r.done for r in journal.records()] == [True] and journal.lines == 1


# ---- steps, prices, counters


def test_batches_are_processes_side_by_side_and_behind_one_another() -> None:
    found, minutes = chosen(["first"])
    assert minutes == 4
    named = [[[step.name for step in process] for process in batch] for batch in batches(found)]
    assert named[0] == [["smoke"]]
    assert named[1] == [[name] for name in steps.TESTS]
    assert named[2] == [
        [
            *("copy", "gemm", "spmm", "layer", "attention", "masks", "experts", "elementwise"),
            *("gradients", "detector"),
        ]
    ]
    assert named[3:] == [[["sessions"]], [["wgmma"]]]


def test_words_name_steps_groups_and_visits_in_their_order() -> None:
    assert [s.name for s in chosen(["gemm", "copy", "gemm"])[0]] == ["gemm", "copy"]
    assert [s.name for s in chosen(["tests"])[0]] == list(steps.TESTS)
    assert {s.name for s in chosen(["memcheck"])[0]} < set(steps.SANITIZED)
    assert chosen(["second"])[1] == 5 and chosen(["copy"])[1] == 4
    with pytest.raises(KeyError):
        chosen(["gem"])
    for visit in steps.VISITS.values():
        assert set(visit.steps) <= set(STEPS)


def test_results_stand_beside_the_floor_of_their_device(tmp_path: Path) -> None:
    rows = {"contenders": [{"name": "mma128x128", "us": 9.0}, {"name": "pitc", "us": 400.0}]}
    plain = Case("gemm-4096x4096x4096", {"dtype": "float16"}, lambda _: dict(rows))
    telling = Telling(Journal(tmp_path / "journal"), Record("gemm", "x"), lambda: False)
    for name, limit in (("NVIDIA H100 80GB HBM3", "compute"), ("NVIDIA A100-SXM4-80GB", "compute")):
        case = with_goal(plain, name)
        floor = case.facts["floor_us"]
        assert case.facts["floor_of"] == limit and case.facts["dtype"] == "float16"
        assert case.run(telling)["share"] == floor / 400 and 0 < case.facts["targets"]["share"] < 1
    assert with_goal(plain, "Fake GPU 0") is plain
    assert with_goal(Case("copy", {}, plain.run), "NVIDIA H200").facts == {}


def test_prices_are_those_that_times_were_made_of() -> None:
    rng = np.random.default_rng(0)
    features = rng.uniform(1, 100, (12, 4))
    features[:, 0] = 1
    want = [3.0, 0.0, 0.25, 2.0]
    found, error = prices.fitted(features, features @ want)
    assert np.allclose(found, want, atol=1e-9) and error < 1e-9


def test_prices_are_never_below_zero() -> None:
    features = np.array([[1.0, 1.0, 0, 0], [1, 2, 0, 0], [1, 3, 0, 0]])
    found, error = prices.fitted(features, np.array([10.0, 9.0, 8.0]))
    assert min(found) >= 0 and 0 < error < 0.2


def test_counters_are_read_from_the_raw_page() -> None:
    head = ["ID", "Kernel Name", *METRICS[:3], "other"]
    lines = [
        "==PROF== Connected to process 1",
        ",".join(f'"{name}"' for name in head),
        '"","","nsecond","cycle","byte",""',
        '"0","gather_gemm","310,432","550000.5","n/a","x"',
        "==PROF== Disconnected",
    ]
    found = counters("\n".join(lines))
    assert found == {METRICS[0]: 310432.0, METRICS[1]: 550000.5}
    assert counters("==ERROR== no counters") == {}


def test_a_case_that_ends_meanwhile_is_told_as_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process writes while its journal is read: what is done is asked for first."""
    case = {"case": {"name": "one"}}
    states = [Record("gemm", "one", result=case), Record("gemm", "one", "", True, case)]
    call = {"machine": {"gpu": {"name": "some"}}, "pack": {"sources": "0" * 8}}
    made = Visit(tmp_path, tmp_path / "results", call, small=True)

    class Seen:
        steps: ClassVar[list[Step]] = []

        @property
        def journal(self) -> "Seen":
            return self

        def records(self) -> list[Record]:
            return [states.pop(0) if len(states) > 1 else states[0]]

    made._watched.append(Seen())  # type: ignore[arg-type]
    made._write()
    assert capsys.readouterr().out == ""  # nothing that was under way is told
    made._write()
    assert "did not end" not in capsys.readouterr().out
    made._log.close()


def test_a_graph_keeps_its_operands() -> None:
    """PyTorch gives what is not in use back to the driver, and the graph would read it."""

    class Operand:
        pass

    class Graphs:
        class CUDAGraph:
            def replay(self) -> None:
                pass

        class cuda:
            CUDAGraph = None
            graph = staticmethod(contextlib.nullcontext)

    Graphs.cuda.CUDAGraph = Graphs.CUDAGraph  # type: ignore[assignment]
    torch = Torch.__new__(Torch)
    torch.torch, torch._device = Graphs, SimpleNamespace(enter=lambda: None)  # type: ignore[assignment]

    def make() -> tuple[Any, Any]:
        operand = Operand()

        def work() -> None:
            repr(operand)

        return torch.captured(work), weakref.ref(operand)

    replay, operand = make()
    gc.collect()
    assert operand() is not None
    del replay
    gc.collect()
    assert operand() is None
