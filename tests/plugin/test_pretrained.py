"""Folders of pretrained models, without the libraries that wrote them."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import pitc

PADDING = "attention_mask"


@pytest.fixture
def export(mlp_path: Path, tmp_path: Path) -> Path:
    """As optimum writes one, of a model that needs no kernels."""
    folder = tmp_path / "export"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / ".cache").mkdir()
    for name in ("config.json", "tokenizer.json", "vocab.txt", "1_Pooling/config.json"):
        (folder / name).write_text(json.dumps({"name": name}))
    for name in ("model.safetensors", "model.safetensors.index.json", ".cache/x.json", "code.py"):
        (folder / name).write_text("{}")
    shutil.copyfile(mlp_path, folder / "model.onnx")
    return folder


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


SETTINGS = {"config.json", "tokenizer.json", "vocab.txt", "1_Pooling/config.json"}


def test_an_export_keeps_its_settings(
    export: Path, bert_path: Path, bert_artifact: Path, tmp_path: Path
) -> None:
    shutil.copyfile(bert_path, export / "model.onnx")
    before = files(export)
    model = pitc.from_pretrained(export, output=tmp_path / "out", padding=PADDING)
    assert model.path == tmp_path / "out" / "onnx" and model.manifest.pit_nodes
    artifact = {f"onnx/{path.name}" for path in bert_artifact.iterdir()}
    assert files(tmp_path / "out") == SETTINGS | artifact
    assert files(export) == before
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(pitc.UsageError, match="the output exists"):
        pitc.from_pretrained(export, output=tmp_path / "out")


@pytest.mark.parametrize("settings", ["outside", "inside"])
def test_an_export_in_a_folder_of_its_own(export: Path, tmp_path: Path, settings: str) -> None:
    (export / "onnx").mkdir()
    (export / "model.onnx").rename(export / "onnx" / "model.onnx")
    shutil.copyfile(export / "config.json", export / "onnx" / "config.json")
    if settings == "inside":
        (export / "config.json").unlink()
    pitc.from_pretrained(export, output=tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()
    assert not (tmp_path / "out" / "onnx" / "config.json").exists()
    assert pitc.load(tmp_path / "out" / "onnx").run([np.ones((1, 16), np.float32)])


def test_padding_is_not_guessed_and_the_output_is_optional(export: Path) -> None:
    model = pitc.from_pretrained(export)
    assert model.manifest.options.padding is None
    assert model.path.exists() and export.parent not in model.path.parents


def test_other_names(export: Path) -> None:
    (export / "model.onnx").rename(export / "decoder.onnx")
    shutil.copyfile(export / "decoder.onnx", export / "encoder.onnx")
    with pytest.raises(pitc.UsageError, match=r"decoder\.onnx, encoder\.onnx \(name one"):
        pitc.from_pretrained(export)
    assert pitc.from_pretrained(export, file_name="encoder.onnx").manifest


def test_what_is_no_such_folder(export: Path, tmp_path: Path) -> None:
    with pytest.raises(pitc.UsageError, match=r"there is no such folder .*local folders only"):
        pitc.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(pitc.UsageError, match=r"neither model\.onnx nor config\.json"):
        pitc.from_pretrained(tmp_path / "empty")
    (export / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(pitc.ModelError, match="is not an ONNX model"):
        pitc.from_pretrained(export, output=tmp_path / "out")
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()


def test_without_torch(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (export / "model.onnx").unlink()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(pitc.MachineError, match=r"torch is not installed .*pip install torch"):
        pitc.from_pretrained(export)
    with pytest.raises(pitc.MachineError, match=r"torch is not installed .*pip install torch"):
        pitc.from_torch(None)
