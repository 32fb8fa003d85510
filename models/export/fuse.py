"""Runs ONNX Runtime's own graph optimizers over exports: the fixtures with fused operators.

    pip install onnxruntime onnx sympy
    PYTHONPATH=. python models/export/fuse.py [NAME ...]

Two ways are common: the offline optimizer for transformers, which is told the kind of model and the
form of its mask, and the graph that a session saves after its extended optimizations.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime as ort
from onnxruntime.transformers.fusion_options import AttentionMaskFormat, FusionOptions
from onnxruntime.transformers.optimizer import optimize_model

SOURCES = Path(__file__).parent / "fixtures"
FOLDER = Path(__file__).parent / "fused"
MAX_BYTES = 300_000
MICROSOFT = "com.microsoft"
HEADS, HIDDEN = 4, 32  # of all exports

Fuse = Callable[[Path], onnx.ModelProto]


def offline(kind: str, mask: AttentionMaskFormat | None = None, split: bool = False) -> Fuse:
    """The optimizer for transformers.

    Args:
        kind: Its name for the architecture.
        mask: What becomes of the attention mask; its own choice by default.
        split: Attention on separate rows of queries, keys and values.
    """

    def fuse(source: Path) -> onnx.ModelProto:
        options = FusionOptions(kind)
        options.use_multi_head_attention = split
        if mask is not None:
            options.attention_mask_format = mask
        fused = optimize_model(
            str(source),
            kind,
            num_heads=HEADS,
            hidden_size=HIDDEN,
            optimization_options=options,
            opt_level=0,
        )
        fused.topological_sort()
        return fused.model

    return fuse


def session(source: Path) -> onnx.ModelProto:
    """The graph that a session saves after extended optimizations."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(FOLDER / "session.onnx")
    ort.InferenceSession(str(source), options, ["CPUExecutionProvider"])
    saved = Path(options.optimized_model_filepath)
    model = onnx.load(saved)
    saved.unlink()
    return model


MODELS: dict[str, tuple[str, Fuse]] = {
    "bert-lengths": ("bert-eager-traced", offline("bert", AttentionMaskFormat.MaskIndexEnd)),
    "bert-mask": ("bert-eager-traced", offline("bert", AttentionMaskFormat.AttentionMask)),
    "bert-no-mask": ("bert-eager-traced", offline("bert", AttentionMaskFormat.NoMask)),
    "bert-rows": (
        "bert-eager-traced",
        offline("bert", AttentionMaskFormat.AttentionMask, split=True),
    ),
    "bert-session": ("bert-eager-dynamo", session),
    "classifier-lengths": (
        "bert-classifier-eager-traced",
        offline("bert", AttentionMaskFormat.MaskIndexEnd),
    ),
    "gpt2": ("gpt2-eager-traced", offline("gpt2")),
    "gpt2-session": ("gpt2-sdpa-dynamo", session),
    "opt-session": ("opt-eager-traced", session),
    "t5-encoder": ("t5-encoder-eager-traced", offline("t5")),
}


def write(name: str) -> Path:
    """Write one fixture.

    Args:
        name: A key of `MODELS`.

    Returns:
        The file.
    """
    FOLDER.mkdir(exist_ok=True)
    source, fuse = MODELS[name]
    model = fuse(SOURCES / f"{source}.onnx")
    if not any(o.domain == MICROSOFT for o in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    del model.graph.value_info[:]
    del model.metadata_props[:]
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    model.producer_version = ""
    file = FOLDER / f"{name}.onnx"
    file.write_bytes(model.SerializeToString(deterministic=True))
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file}: {file.stat().st_size} bytes, the limit is {MAX_BYTES}")
    return file


def main() -> None:
    """Fuse the named models, or all."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args().names or list(MODELS):
        file = write(name)
        operators = sorted({n.op_type for n in onnx.load(file).graph.node if n.domain})
        print(f"{file.name}: {file.stat().st_size} bytes, {' '.join(operators)}")


if __name__ == "__main__":
    main()
