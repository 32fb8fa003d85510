"""T5-like encoders: relative position bias, RMS norm, no scaling of the scores, ReLU, no biases."""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import GraphBuilder
from models.layers import LINEAR

FLOAT_MIN = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class T5Config:
    """Sizes of the encoder.

    Args:
        layers: Encoder layers.
        hidden: Width of the hidden state.
        heads: Attention heads.
        head_size: Width of one head.
        ffn: Width of the feed-forward layer.
        vocab: Rows of the word table.
        buckets: Rows of the table of relative positions.
        far: Distance from which all positions share a bucket.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    head_size: int = 8
    ffn: int = 64
    vocab: int = 97
    buckets: int = 32
    far: int = 128


T5_BASE = T5Config(12, 768, 12, 64, 3072, 32128)


def t5_encoder(config: T5Config, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the encoder with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden].
    """
    g, hidden, inner = GraphBuilder("t5"), config.hidden, config.heads * config.head_size
    ids = g.input("input_ids", np.int64, ("batch", "sequence"))
    mask = g.input("attention_mask", np.int64, ("batch", "sequence"))

    def linear(x: str, name: str, width_in: int, width_out: int) -> str:
        scale = 0.5 / np.sqrt(width_in)
        weight = rng.normal(0, scale, (width_out, width_in)).astype(np.float32)
        return LINEAR["matmul"](g, x, name, weight, None)

    def norm(x: str, name: str) -> str:
        mean = g.reduce("ReduceMean", g.op("Pow", x, g.const(2.0)), -1)
        root = g.op("Sqrt", g.op("Add", mean, g.const(1e-6)))
        scaled = g.op("Mul", x, g.op("Div", g.const(1.0), root))
        weight = rng.normal(1, 0.02, hidden).astype(np.float32)
        return g.op("Mul", g.weight(f"{name}.weight", weight), scaled)

    words = rng.normal(0, 1, (config.vocab, hidden)).astype(np.float32)
    x = g.op("Gather", g.weight("shared.weight", words), ids, axis=0)
    bias = g.op("Add", _position_bias(g, config, ids, rng), _mask_bias(g, mask))
    for i in range(config.layers):
        y = norm(x, f"block.{i}.attention_norm")
        q, k, v = (linear(y, f"block.{i}.{n}", hidden, inner) for n in "qkv")
        q, k, v = (
            g.op(
                "Transpose",
                g.op("Reshape", a, g.ints(0, 0, config.heads, config.head_size)),
                perm=perm,
            )
            for a, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
        )
        p = g.op("Softmax", g.op("Add", g.op("MatMul", q, k), bias), axis=-1)
        y = g.op("Transpose", g.op("MatMul", p, v), perm=[0, 2, 1, 3])
        y = g.op("Reshape", y, g.ints(0, 0, inner))
        x = g.op("Add", x, linear(y, f"block.{i}.o", inner, hidden))
        y = norm(x, f"block.{i}.ffn_norm")
        y = g.op("Relu", linear(y, f"block.{i}.wi", hidden, config.ffn))
        x = g.op("Add", x, linear(y, f"block.{i}.wo", config.ffn, hidden))
    g.output(norm(x, "final_norm"), "last_hidden_state", np.float32, ("batch", "sequence", hidden))
    return g.model()


def _mask_bias(g: GraphBuilder, mask: str) -> str:
    """[batch, 1, 1, key]: 0 for tokens, the least number for padding."""
    wide = g.op("Unsqueeze", g.op("Cast", mask, to=onnx.TensorProto.FLOAT), g.ints(1, 2))
    return g.op("Mul", g.op("Sub", g.const(1.0), wide), g.const(FLOAT_MIN))


def _position_bias(g: GraphBuilder, config: T5Config, ids: str, rng: np.random.Generator) -> str:
    """[1, heads, query, key] from a table of buckets of relative positions."""
    place = g.op("Range", g.const(0, np.int64), g.size(ids, 1), g.const(1, np.int64))
    key, query = (g.op("Unsqueeze", place, g.ints(a)) for a in (0, 1))
    relative = g.op("Sub", key, query)
    half, exact = config.buckets // 2, config.buckets // 4
    later = g.op("Cast", g.op("Greater", relative, g.const(0, np.int64)), to=onnx.TensorProto.INT64)
    distance = g.op("Abs", relative)
    real = g.op("Cast", distance, to=onnx.TensorProto.FLOAT)
    logarithm = g.op("Log", g.op("Div", real, g.const(float(exact))))
    scale = (half - exact) / math.log(config.far / exact)
    steps = g.op("Mul", logarithm, g.const(scale))
    coarse = g.op("Add", g.op("Cast", steps, to=onnx.TensorProto.INT64), g.const(exact, np.int64))
    coarse = g.op("Min", coarse, g.const(half - 1, np.int64))
    near = g.op("Less", distance, g.const(exact, np.int64))
    bucket = g.op("Where", near, distance, coarse)
    bucket = g.op("Add", bucket, g.op("Mul", later, g.const(half, np.int64)))
    table = rng.normal(0, 0.3, (config.buckets, config.heads)).astype(np.float32)
    rows = g.op("Gather", g.weight("relative_attention_bias", table), bucket, axis=0)
    return g.op("Unsqueeze", g.op("Transpose", rows, perm=[2, 0, 1]), g.ints(0))
