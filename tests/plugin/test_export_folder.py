"""`pitc export`, and other libraries kept quiet, without the libraries."""

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pitc
from pitc.artifact import onnx_file
from pitc.frontends import pretrained
from pitc.frontends.quiet import quiet

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checkpoint(mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that says it holds a checkpoint; what stands for torch exports `mlp_path`."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Mlp"]}')
    (folder / "model.safetensors").write_bytes(b"")

    def exported(source: Path, *, stage: Callable[[str], None]) -> ir.Model:
        assert source == folder
        stage("load")
        stage("export")
        return ir.load(mlp_path)

    monkeypatch.setattr(pretrained, "export_checkpoint", exported)
    monkeypatch.chdir(tmp_path)
    return folder


def answers(path: Path) -> np.ndarray:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    return np.asarray(pitc.compile(path).run({"x": x})["y"])


def test_export(run: Run, checkpoint: Path, mlp_path: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    code, out, err = run("export", checkpoint)
    assert code == 0
    assert [line.split(" ...")[0] for line in err.splitlines()] == [
        "[1/3] load",
        "[2/3] export",
        "[3/3] write",
    ]
    assert out.splitlines()[-1] == "next: pitc compile my-model.onnx"
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "my-model.onnx"])
    onnx.checker.check_model(tmp_path / "my-model.onnx")
    np.testing.assert_array_equal(answers(tmp_path / "my-model.onnx"), answers(mlp_path))

    code, _, err = run("export", checkpoint, "-q")
    assert code == 2 and "my-model.onnx: the output exists (--force replaces it)" in err
    (tmp_path / "my-model.onnx").write_text("old")
    code, out, err = run("export", checkpoint, "--force", "-q", "--json")
    assert (code, err) == (0, "")
    size = (tmp_path / "my-model.onnx").stat().st_size
    assert json.loads(out)["files"] == {"my-model.onnx": size} and size > 100


def test_weights_that_do_not_fit_into_the_file(
    run: Run, checkpoint: Path, mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "INLINE_BYTES", 1000)
    code, out, _ = run("export", checkpoint, "-o", "m.onnx", "-q")
    assert code == 0 and "m.onnx.data" in out
    assert (tmp_path / "m.onnx.data").stat().st_size >= 16 * 32 * 4
    np.testing.assert_array_equal(answers(tmp_path / "m.onnx"), answers(mlp_path))
    (tmp_path / "m.onnx").unlink()
    code, _, err = run("export", checkpoint, "-o", "m.onnx", "-q", "--force")
    assert code == 2 and "m.onnx.data: the output exists (move it away)" in err


@pytest.mark.parametrize("inline", [1000, 10**9])
def test_nothing_is_half_written(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    def full(*_: object, **__: object) -> None:
        (tmp_path / "m.onnx.data").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "m.onnx").write_text("old")
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(onnx_file, "INLINE_BYTES", inline)
    monkeypatch.setattr(ir, "save", full)
    monkeypatch.setattr(ir, "to_proto", full)
    code, _, err = run("export", checkpoint, "-o", "m.onnx", "-q", "--force")
    assert code == 6 and "No space left on device" in err
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "m.onnx").read_text() == "old"


def test_what_cannot_be_exported(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ready = tmp_path / "ready"
    shutil.copytree(checkpoint, ready)
    (ready / "onnx").mkdir()
    (ready / "onnx" / "model.onnx").write_bytes(b"")
    for words, message in (
        (("sentence-transformers/all-MiniLM-L6-v2",), "download it first, with the hub's own"),
        ((tmp_path / "empty",), "neither model.onnx nor config.json with weights"),
        ((ready,), f"it is an export already (pitc compile {ready}/onnx/model.onnx)"),
        ((checkpoint, "-o", "m.pitc"), "model 'm.pitc' does not end in .onnx"),
        ((checkpoint, "-o", "no/m.onnx"), "does not exist"),
    ):
        code, out, err = run("export", *words)
        assert (code, out) == (2, "") and message in err, words
    assert sorted(os.listdir(tmp_path)) == ["empty", "mlp.onnx", "my-model", "ready"]


def test_without_torch(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(checkpoint.parent)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run("export", checkpoint, "-q")
    assert code == 6 and "torch is not installed (pip install torch onnxscript" in err
    assert not list(checkpoint.parent.glob("*my-model.onnx*"))


def noise(handler: logging.Handler) -> None:
    """What an exporter does to its user."""
    print("printed")
    print("50 %\r100 %", file=sys.stderr)
    warnings.warn("of no use", FutureWarning, stacklevel=1)
    for name in ("torch.onnx._internal", "transformers.modeling"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.warning("%s is not installed", name)
        logger.removeHandler(handler)


def test_exporters_are_quiet(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    usual = logging.getLogger("torch").level
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with caplog.at_level(logging.DEBUG, "pitc.frontends"), quiet():
            noise(handler)
            held: Any = sys.stderr
    assert (capsys.readouterr(), caught, records) == (("", ""), [], [])
    for text in ("stdout: printed", "stderr: 100 %", "FutureWarning: of no use"):
        assert text in caplog.text
    assert logging.getLogger("torch").level == usual
    # a handler that was made meanwhile holds on to the stream
    held.write("later\n")
    held.flush()
    assert capsys.readouterr().err == "later\n"


def test_verbose_shows_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    with pytest.warns(FutureWarning), quiet(verbose=True):
        noise(handler)
    shown = capsys.readouterr()
    assert "printed" in shown.out and "100 %" in shown.err and len(records) == 2


def test_streams_are_put_back_when_an_export_fails() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError, match="no"), quiet():
        raise ValueError("no")
    assert (sys.stdout, sys.stderr) == before
