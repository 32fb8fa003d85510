"""Exports small real models with torch and transformers, by both exporters: the test fixtures.

    pip install torch==2.13.0 transformers onnx onnxscript
    python models/export/export.py [NAME ...]

Weights are random and tiny; what is real is the graph. Each file stays under 300 KB. The tests read
the files only; nothing in pitc imports torch.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as hf

FOLDER = Path(__file__).parent / "fixtures"
MAX_BYTES = 300_000
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BATCH, SEQUENCE = 2, 7


@dataclass(frozen=True)
class Export:
    """One model to export.

    Args:
        make: Makes the model, given the attention implementation.
        attention: Attention implementations: `eager`, `sdpa`.
        inputs: Names of its inputs.
        output: The output that is kept.
    """

    make: Callable[[str], Any]
    attention: tuple[str, ...] = ("eager", "sdpa")
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    output: str = "last_hidden_state"


def _bert(attention: str) -> Any:
    config = hf.BertConfig(
        vocab_size=100, intermediate_size=64, max_position_embeddings=64, **SMALL
    )
    config._attn_implementation = attention
    return hf.BertModel(config, add_pooling_layer=False)


def _classifier(attention: str) -> Any:
    config = hf.BertConfig(
        vocab_size=100, intermediate_size=64, max_position_embeddings=64, **SMALL
    )
    config._attn_implementation = attention
    return hf.BertForSequenceClassification(config)


def _distilbert(attention: str) -> Any:
    config = hf.DistilBertConfig(
        vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64
    )
    config._attn_implementation = attention
    return hf.DistilBertModel(config)


def _roberta(attention: str) -> Any:
    config = hf.RobertaConfig(
        vocab_size=100, intermediate_size=64, max_position_embeddings=70, pad_token_id=1, **SMALL
    )
    config._attn_implementation = attention
    return hf.RobertaModel(config, add_pooling_layer=False)


def _t5(attention: str) -> Any:
    config = hf.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    config._attn_implementation = attention
    return hf.T5EncoderModel(config)


def _opt(attention: str) -> Any:
    config = hf.OPTConfig(
        vocab_size=100,
        ffn_dim=64,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
        use_cache=False,
        **SMALL,
    )
    config._attn_implementation = attention
    return hf.OPTModel(config)


def _gpt2(attention: str) -> Any:
    config = hf.GPT2Config(
        vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False
    )
    config._attn_implementation = attention
    return hf.GPT2Model(config)


def _vit(attention: str) -> Any:
    config = hf.ViTConfig(intermediate_size=64, image_size=16, patch_size=4, **SMALL)
    config._attn_implementation = attention
    return hf.ViTModel(config, add_pooling_layer=False)


def _resnet(_: str) -> Any:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"
    )
    return hf.ResNetModel(config)


MODELS: dict[str, Export] = {
    "bert": Export(_bert),
    "bert-classifier": Export(_classifier, output="logits"),
    "distilbert": Export(_distilbert),
    "roberta": Export(_roberta),
    "t5-encoder": Export(_t5, attention=("eager",)),
    "opt": Export(_opt),
    "gpt2": Export(_gpt2),
    "vit": Export(_vit, inputs=("pixel_values",)),
    "resnet": Export(_resnet, attention=("relu",), inputs=("pixel_values",)),
}


class OneOutput(torch.nn.Module):
    """The model with positional inputs and one tensor as its result."""

    def __init__(self, model: Any, export: Export) -> None:
        super().__init__()
        self.model, self.export = model, export

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        named = dict(zip(self.export.inputs, inputs, strict=True))
        return self.model(**named)[self.export.output]


def _argument(name: str) -> torch.Tensor:
    """An example input."""
    if name == "pixel_values":
        return torch.randn(BATCH, 3, 16, 16)
    if name == "attention_mask":
        mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
        mask[1, 4:] = 0
        return mask
    return torch.randint(2, 90, (BATCH, SEQUENCE))


def export(name: str, attention: str, exporter: str) -> Path:
    """Write one fixture.

    Args:
        name: A key of `MODELS`.
        attention: The attention implementation.
        exporter: `traced` (TorchScript) or `dynamo`.

    Returns:
        The file.
    """
    torch.manual_seed(0)
    row = MODELS[name]
    model = OneOutput(row.make(attention).eval(), row)
    arguments = tuple(_argument(n) for n in row.inputs)
    text = "pixel_values" not in row.inputs
    file = FOLDER / f"{name}-{attention}-{exporter}.onnx"
    FOLDER.mkdir(exist_ok=True)
    names = {"input_names": list(row.inputs), "output_names": [row.output]}
    if exporter == "dynamo":
        b, s = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("sequence", min=2, max=60)
        program = torch.onnx.export(
            model,
            arguments,
            dynamo=True,
            dynamic_shapes=[tuple({0: b, 1: s} if text else {0: b} for _ in arguments)],
            opset_version=20,
            **names,
        )
        program.save(str(file), external_data=False)
    else:
        free = {0: "batch", 1: "sequence"} if text else {0: "batch"}
        axes = {n: free for n in row.inputs}
        axes[row.output] = free if row.output == "last_hidden_state" else {0: "batch"}
        torch.onnx.export(
            model, arguments, str(file), dynamo=False, opset_version=17, dynamic_axes=axes, **names
        )
    proto = onnx.load(file)
    for node in proto.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    del proto.metadata_props[:]
    onnx.checker.check_model(proto)
    file.write_bytes(proto.SerializeToString(deterministic=True))
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file}: {file.stat().st_size} bytes, the limit is {MAX_BYTES}")
    return file


def main() -> int:
    """Export the named models, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(MODELS)
    failed = 0
    for name in names:
        for attention in MODELS[name].attention:
            for exporter in ("traced", "dynamo"):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        file = export(name, attention, exporter)
                    print(f"{file.name}: {file.stat().st_size} bytes")
                except Exception as error:
                    failed += 1
                    print(f"{name}-{attention}-{exporter}: {error}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
