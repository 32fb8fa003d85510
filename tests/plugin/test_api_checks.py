"""`pitc.verify` and `pitc.bench`: results in Python, the same as those of the command line."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from pitc.measure import throughput
from pitc.measure.bench import BASE, OURS
from tests.wrong_pass import replace_operator

Run = Callable[..., tuple[int, str, str]]


def test_verify_says_what_the_command_line_says(
    run: Run, bert_path: Path, bert_artifact: Path
) -> None:
    found = pitc.verify(bert_artifact, shapes={"batch": 2})
    assert found.ok and found.cases == 15 and found.failed == ()
    assert [(o.output, o.rows, o.ok) for o in found.outputs] == [
        ("last_hidden_state", "live", True)
    ]
    told = run("verify", bert_artifact, "--shape", "batch=2", "--json")[1]
    assert json.loads(told) == json.loads(found.to_json()) == {"schema": 1} | found.to_dict()
    assert pitc.verify(pitc.load(bert_artifact), against=bert_path).ok
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.facts = None  # type: ignore[misc]


def test_verify_compiles_a_model(bert_path: Path) -> None:
    found = pitc.verify(bert_path, padding="attention_mask", facts=True, seed=3)
    assert found.ok and found.facts is not None
    assert found.facts.dead_checks > 0 and found.to_dict()["facts"]["failures"] == []
    in_memory = pitc.verify(onnx.load(bert_path), shapes={"input_ids": (2, 5)})
    assert in_memory.ok and in_memory.facts is None


def test_a_difference_is_no_exception(
    run: Run, mlp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_operator(monkeypatch, "Add", "Sub")
    x = np.ones((3, 16), np.float32)
    found = pitc.verify(mlp_path, inputs={"x": x})
    assert not found.ok and found.failed == ("given",) and found.cases == 1
    assert found.first_difference and found.to_dict()["ok"] is False
    with pytest.raises(pitc.VerificationError, match=r"mlp\.onnx: .* nothing was timed"):
        pitc.bench(mlp_path, inputs={"x": x}, against=[BASE])


def test_facts_that_fail_are_not_ok(
    run: Run, bert_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JSON as well: before, only the exit code said it."""
    from pitc.check import verification
    from pitc.passes.audit.engine import AuditResult

    wrong = AuditResult(feeds=3, failures=["x is not 0"])
    monkeypatch.setattr(verification, "audit_facts", lambda *_: wrong)
    code, out, _ = run("verify", bert_path, "-q", "--facts", "--json")
    assert code == 4 and json.loads(out)["ok"] is False
    monkeypatch.setattr(verification, "audit_facts", lambda *_: AuditResult())
    assert not pitc.verify(bert_path, facts=True).ok  # nothing was looked at


def test_bench_says_what_the_command_line_says(run: Run, bert_artifact: Path) -> None:
    found = pitc.bench(
        bert_artifact, lengths=[3, 9], shapes={"sequence": 16}, rounds=3, against=[BASE]
    )
    assert [t.name for t in found.timings] == [OURS, BASE] and found.rates == ()
    assert found.live == (12, 32) and found.inputs["attention_mask"] == (2, 16)
    assert all(t.latency is not None and t.latency.calls >= 3 for t in found.timings)
    words = ("--lengths", "3,9", "--shape", "sequence=16", "--rounds", 3, "--against", BASE)
    told = json.loads(run("bench", bert_artifact, *words, "-q", "--json")[1])
    here = json.loads(found.to_json())
    # there it is named by what is given, here by what was compiled
    assert (told.pop("model"), here.pop("model")) == ("model.pitc", "model.onnx")
    assert _shape(told) == _shape(here)


def _shape(body: Any) -> Any:
    """What is in it, without the times."""
    if isinstance(body, dict):
        return {key: _shape(value) for key, value in body.items()}
    if isinstance(body, list):
        return [_shape(value) for value in body]
    return type(body) if isinstance(body, float | int) else body and type(body)


def test_streams_in_python(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "ROUND_SECONDS", 0.01)
    model = pitc.load(bert_artifact)
    found = pitc.bench(model, mean=5, shapes={"batch": 2, "sequence": 8}, rounds=2, streams=2)
    assert found.timings == () and found.rates[0].name == OURS
    assert found.race.streams == 2 and found.to_dict()["contenders"][0]["requests"] > 0


def test_options_that_do_not_fit(bert_path: Path, bert_artifact: Path) -> None:
    model: Any
    for model in (bert_artifact, pitc.load(bert_artifact)):
        with pytest.raises(pitc.UsageError, match=r"has its padding already \(omit padding\)"):
            pitc.verify(model, padding="attention_mask")
        with pytest.raises(pitc.UsageError, match=r"has its target already \(omit target\)"):
            pitc.bench(model, "cpu")
    with pytest.raises(pitc.UsageError, match="a model is compared with itself"):
        pitc.verify(bert_path, against=bert_path)
    for wrong in (0, "2"):
        with pytest.raises(pitc.UsageError, match="expected a number of threads of 1 or more"):
            pitc.bench(bert_path, threads=wrong)  # type: ignore[arg-type]
    with pytest.raises(pitc.UsageError, match="names no size of the model"):
        pitc.verify(bert_path, shapes={"height": 2})


@pytest.mark.parametrize("name", ["verify", "bench", "compile", "explain", "from_torch"])
def test_where_the_runtime_alone_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, pitc._ROOMS[name], None)
    text = rf"pitc\.{name} needs the compiler, but only pitc-runtime .*install the wheel of pitc"
    with pytest.raises(pitc.MachineError, match=text):
        getattr(pitc, name)("model.onnx")
