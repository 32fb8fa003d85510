"""What the command line says, and its log: help, usage, messages on the way."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pitc
from pitc.cli.command import options_first
from pitc.errors import UsageError
from pitc.tiles import tune
from pitc.version import __version__

Run = Callable[..., tuple[int, str, str]]


def test_the_name_of_a_table_is_no_markup(run: Run) -> None:
    assert "or [tool.pitc] of pyproject.toml" in " ".join(run("compile", "--help")[1].split())


def test_a_bare_call_shows_help_and_no_error(run: Run) -> None:
    code, out, err = run()
    assert code == 2 and "Usage: pitc" in out and err == ""


def test_usage_has_no_brackets_around_the_model(run: Run) -> None:
    assert "Usage: pitc compile [OPTIONS] MODEL.onnx" in run("compile", "-h")[1]
    assert "Usage: pitc inspect [OPTIONS] FILE" in run("inspect", "-h")[1]


@pytest.mark.parametrize("words", [["--version"], ["version"], ["-v", "version"]])
def test_version(run: Run, words: list[str]) -> None:
    assert run(*words) == (0, f"pitc {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "m.onnx", "-v"], ["-v", "run", "m.onnx"]),
        (["run", "--log-file", "a.log", "m.onnx"], ["--log-file", "a.log", "run", "m.onnx"]),
        (["run", "--log-file=a.log", "-vv"], ["--log-file=a.log", "-vv", "run"]),
        (["run", "m.onnx", "--log-file"], ["--log-file", "run", "m.onnx"]),
        (["run", "--", "-v"], ["run", "--", "-v"]),
        (["-h"], ["-h"]),
    ],
)
def test_options_of_every_command(words: list[str], expected: list[str]) -> None:
    assert options_first(words) == expected


def test_the_log(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "pitc.log"
    code, out, err = run("verify", mlp_path, "-q", "-v", "--log-file", log)
    assert code == 0 and "PASSED" in out
    assert "INFO    pitc.api: facts took " in err
    assert "INFO    pitc.check: full batch=3: compared" in err
    assert "DEBUG" not in err
    text = log.read_text()
    assert "DEBUG   pitc.check: full batch=3: y is off by " in text and "INFO" in text
    run("run", mlp_path, "--input", "nothing.npz", "--log-file", log)
    assert "exit code 2: nothing.npz: inputs cannot be read" in log.read_text()
    before = log.read_text()
    assert run("run", mlp_path, "-q")[2] == ""  # closed again, and silent
    assert log.read_text() == before and not logging.getLogger("pitc").handlers
    assert "DEBUG" in run("run", mlp_path, "-vv")[2]


def test_a_log_that_cannot_be_written(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    code, _, err = run("run", mlp_path, "--log-file", tmp_path / "no" / "a.log")
    assert code == 2 and "the log cannot be written: No such file" in err and err.count("\n") == 1


def test_run_says_that_inputs_are_random(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    out = run("run", mlp_path, "--seed", 7)[1]
    assert "random inputs (seed 7): x; --input gives real ones" in out
    np.savez(tmp_path / "in.npz", x=np.ones((2, 16), np.float32))
    assert "random" not in run("run", mlp_path, "--input", tmp_path / "in.npz")[1]


def test_an_artifact_is_no_model(run: Run, bert_artifact: Path, tmp_path: Path) -> None:
    code, _, err = run("compile", bert_artifact, "-q", "-o", tmp_path / "x.pitc")
    assert code == 3
    assert "is compiled already: an artifact (compile the model that it was made of" in err


def test_a_misspelt_mask_is_told_at_once(bert_path: Path) -> None:
    stages: list[str] = []
    with pytest.raises(UsageError, match="'attention_maks' is not an input") as caught:
        pitc.compile(bert_path, padding="attention_maks", progress=stages.append)
    assert stages == ["import"]
    assert "inputs that can be a mask: 'attention_mask'" in str(caught.value)


def test_an_interrupted_tuning_says_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "tune", stop)
    code, _, err = run("tune", "--quick", "--level", "v3", "--tiles", tmp_path / "t.json", "-q")
    assert code == 130
    assert "measurements are kept: the same command continues from there" in err
