"""OPT-like decoders: causal attention under a padding mask, positions counted from the mask, ReLU.

The graph is what a tracing exporter writes for a prefill: no cache, last hidden state as output.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder
from models.layers import ACTIVATION, LINEAR, NORM

FLOAT_MIN = float(np.finfo(np.float32).min)
OFFSET = 2  # rows of the position table that no token uses


@dataclass(frozen=True, slots=True)
class OptConfig:
    """Sizes of the decoder.

    Args:
        layers: Decoder layers.
        hidden: Width of the hidden state; a multiple of `heads`.
        heads: Attention heads.
        ffn: Width of the feed-forward layer.
        vocab: Rows of the word table.
        positions: Longest sequence.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    ffn: int = 64
    vocab: int = 97
    positions: int = 64


OPT_125M = OptConfig(12, 768, 12, 3072, 50272, 2048)


def opt(config: OptConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the decoder with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden].
    """
    g, hidden = GraphBuilder("opt"), config.hidden
    ids = g.input("input_ids", np.int64, ("batch", "sequence"))
    mask = g.input("attention_mask", np.int64, ("batch", "sequence"))

    def table(name: str, rows: int) -> str:
        return g.weight(name, rng.normal(0, 0.05, (rows, hidden)).astype(np.float32))

    def linear(x: str, name: str, width_in: int, width_out: int, form: str = "matmul") -> str:
        scale = 1 / np.sqrt(width_in)
        weight = rng.normal(0, scale, (width_out, width_in)).astype(np.float32)
        return LINEAR[form](g, x, name, weight, _vector(rng, width_out, 0.0))

    def norm(x: str, name: str) -> str:
        gamma = g.weight(f"{name}.weight", _vector(rng, hidden, 1.0))
        return NORM["op"](g, x, gamma, g.weight(f"{name}.bias", _vector(rng, hidden, 0.0)), 1e-5)

    bias = _causal_bias(g, mask)
    x = g.op("Gather", table("embed_tokens", config.vocab), ids, axis=0)
    x = g.op("Add", x, _positions(g, mask, table("embed_positions", config.positions + OFFSET)))
    for i in range(config.layers):
        layer, y = f"layers.{i}", norm(x, f"layers.{i}.self_attn_layer_norm")
        q, k, v = (linear(y, f"{layer}.{n}_proj", hidden, hidden) for n in "qkv")
        size = hidden // config.heads
        q = g.op("Mul", q, g.const(size**-0.5))
        q, k, v = (
            g.op("Transpose", g.op("Reshape", a, g.ints(0, 0, config.heads, size)), perm=perm)
            for a, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
        )
        p = g.op("Softmax", g.op("Add", g.op("MatMul", q, k), bias), axis=-1)
        y = g.op("Transpose", g.op("MatMul", p, v), perm=[0, 2, 1, 3])
        y = g.op("Reshape", y, g.ints(0, 0, hidden))
        x = g.op("Add", x, linear(y, f"{layer}.out_proj", hidden, hidden))
        y = norm(x, f"{layer}.final_layer_norm")
        y = ACTIVATION["relu"](g, linear(y, f"{layer}.fc1", hidden, config.ffn, "gemm"))
        x = g.op("Add", x, linear(y, f"{layer}.fc2", config.ffn, hidden, "gemm"))
    g.output(
        norm(x, "final_layer_norm"),
        "last_hidden_state",
        np.float32,
        ("batch", "sequence", hidden),
    )
    return g.model()


def _vector(rng: np.random.Generator, size: int, mean: float) -> Array:
    return rng.normal(mean, 0.02, size).astype(np.float32)


def _positions(g: GraphBuilder, mask: str, table: str) -> str:
    """Rows of the position table: the number of tokens so far, one row for padding."""
    counted = g.op("Mul", g.op("CumSum", mask, g.const(1, np.int64)), mask)
    places = g.op("Add", g.op("Sub", counted, g.const(1, np.int64)), g.const(OFFSET, np.int64))
    return g.op("Gather", table, places, axis=0)


def _causal_bias(g: GraphBuilder, mask: str) -> str:
    """Added to the scores, [batch, 1, query, key]: 0 for earlier tokens, else the least number."""
    zero, one = g.const(0, np.int64), g.const(1, np.int64)
    place = g.op("Range", zero, g.size(mask, 1), one)
    key, query = (g.op("Unsqueeze", place, g.ints(a)) for a in (0, 1))
    earlier = g.op("LessOrEqual", key, query)
    token = g.op("Unsqueeze", g.op("Cast", mask, to=onnx.TensorProto.BOOL), g.ints(1, 2))
    keep = g.op("And", token, earlier)
    return g.op("Where", keep, g.const(0.0), g.const(FLOAT_MIN))
