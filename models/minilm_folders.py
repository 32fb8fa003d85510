"""MiniLM in the folders that libraries load: as an export to ONNX, and as a checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import onnx

from models import minilm
from models.bert import bert_graph
from pitc.frontends.pretrained import CONFIG, keep_settings


def write_export(folder: Path, layers: int | None = None) -> Path:
    """Its export as sentence-transformers keeps one: hidden states out, pooling in the library.

    Args:
        folder: The folder to make.
        layers: Keep only the first layers, or all.
    """
    model = minilm.load(layers)
    (folder / "onnx").mkdir(parents=True)
    keep_settings(minilm.model_dir(), folder)
    _write_config(folder, model.config.layers)
    graph = bert_graph(replace(model.config, head="none"), model.weights, "minilm")
    onnx.save(graph, folder / "onnx" / "model.onnx")
    return folder


def write_checkpoint(folder: Path, layers: int) -> Path:
    """Its checkpoint of transformers, which loads the first layers only."""
    folder.mkdir()
    keep_settings(minilm.model_dir(), folder)
    shutil.copyfile(minilm.model_dir() / "model.safetensors", folder / "model.safetensors")
    _write_config(folder, layers)
    return folder


def _write_config(folder: Path, layers: int) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"num_hidden_layers": layers}))
