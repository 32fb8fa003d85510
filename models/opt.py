"""OPT-like decoders: causal attention under a padding mask, positions counted from the mask, ReLU.

The graphs are what a tracing exporter writes: a prefill without a cache, or any call of one with a
cache of keys and values; the last hidden state is an output.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from models.graph import Array, Dim, GraphBuilder
from models.layers import (
    ACTIVATION,
    LINEAR,
    NORM,
    Sizes,
    attention,
    biased_softmax,
    causal_bias,
    last_places,
)
from models.sparsity import Sparsity

OFFSET = 2  # rows of the position table that no token uses
PAST, NEW = "past_sequence_length", "sequence"
TOTAL = f"{PAST} + {NEW}"


@dataclass(frozen=True, slots=True)
class OptConfig(Sizes):
    """Sizes of the decoder; `hidden` is a multiple of `heads`.

    Args:
        positions: Longest sequence.
        sparsity: Zeros behind ReLU, by the biases of the first feed-forward layers; None: what
            random weights give, about a half.
    """

    positions: int = 64
    sparsity: Sparsity | None = None


# every layer in the pre-norm form, that of 350M too
OPT_125M = OptConfig(12, 768, 12, 3072, 50272, 2048)
OPT_350M = OptConfig(24, 1024, 16, 4096, 50272, 2048)
OPT_1_3B = OptConfig(24, 2048, 32, 8192, 50272, 2048)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """The parts of a decoder, each with weights drawn as it is added to the graph.

    Args:
        g: The graph.
        config: Sizes.
        rng: Source of the weights.
        present: Keys and values that are handed on, by `{layer}.{key or value}`; None: no cache.
    """

    g: GraphBuilder
    config: OptConfig
    rng: np.random.Generator
    present: dict[str, str] | None = None

    def vector(self, size: int, mean: float) -> Array:
        return self.rng.normal(mean, 0.02, size).astype(np.float32)

    def table(self, name: str, rows: int) -> str:
        values = self.rng.normal(0, 0.05, (rows, self.config.hidden))
        return self.g.weight(name, values.astype(np.float32))

    def norm(self, x: str, name: str) -> str:
        hidden = self.config.hidden
        gamma = self.g.weight(f"{name}.weight", self.vector(hidden, 1.0))
        beta = self.g.weight(f"{name}.bias", self.vector(hidden, 0.0))
        return NORM["op"](self.g, x, gamma, beta, 1e-5)

    def linear(self, x: str, name: str, sizes: tuple[int, int], form: str = "matmul") -> str:
        """A linear layer; sizes are [out, in]."""
        weight = self.rng.normal(0, 1 / np.sqrt(sizes[1]), sizes).astype(np.float32)
        return LINEAR[form](self.g, x, name, weight, self.vector(sizes[0], 0.0))

    def attend(self, x: str, layer: str, bias: str) -> str:
        """The attention block of one layer, with its residual."""
        hidden, heads = self.config.hidden, self.config.heads
        size = hidden // heads
        y = self.norm(x, f"{layer}.self_attn_layer_norm")

        def project(name: str) -> str:
            z = self.linear(y, f"{layer}.{name[0]}_proj", (hidden, hidden))
            return self.g.op("Mul", z, self.g.const(size**-0.5)) if name == "query" else z

        weigh = partial(biased_softmax, self.g, bias=bias)
        extend = None if self.present is None else partial(self.extend, layer, self.present)
        y = attention(self.g, project, (heads, size), weigh, extend=extend)
        return self.g.op("Add", x, self.linear(y, f"{layer}.out_proj", (hidden, hidden)))

    def extend(self, layer: str, present: dict[str, str], name: str, new: str) -> str:
        """Keys or values behind those of the past, an input."""
        entry = f"{layer.removeprefix('layers.')}.{name}"
        past = self.g.input(f"past_key_values.{entry}", np.float32, cache_shape(self.config, PAST))
        present[entry] = self.g.op("Concat", past, new, axis=2)
        return present[entry]

    def feed_forward(self, x: str, layer: str) -> str:
        """The feed-forward block of one layer, with its residual."""
        hidden, ffn = self.config.hidden, self.config.ffn
        y = self.norm(x, f"{layer}.final_layer_norm")
        y = ACTIVATION["relu"](self.g, self.sparse_linear(y, f"{layer}.fc1", (ffn, hidden)))
        return self.g.op("Add", x, self.linear(y, f"{layer}.fc2", (hidden, ffn), "gemm"))

    def sparse_linear(self, x: str, name: str, sizes: tuple[int, int]) -> str:
        """A linear layer behind a norm: pre-activations of variance 1, shifted by the biases."""
        if self.config.sparsity is None:
            return self.linear(x, name, sizes, "gemm")
        weight = self.rng.normal(0, 1 / np.sqrt(sizes[1]), sizes).astype(np.float32)
        bias = -self.config.sparsity.thresholds(sizes[0], self.rng)
        return LINEAR["gemm"](self.g, x, name, weight, bias)


def opt(
    config: OptConfig, rng: np.random.Generator, cached: bool = False, head: bool = False
) -> onnx.ModelProto:
    """Build the decoder with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.
        cached: With a cache: the mask is [batch, past + sequence], and the model has inputs
            `past_key_values.{layer}.{key,value}` f32 [batch, heads, past, size] and outputs
            `present.{layer}.{key,value}` [batch, heads, past + sequence, size].
        head: With scores of the next token, by the table of tokens.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden], or `logits` [batch, sequence, vocab].
    """
    g = GraphBuilder("opt")
    parts = _Decoder(g, config, rng, {} if cached else None)
    ids = g.input("input_ids", np.int64, ("batch", NEW))
    mask = g.input("attention_mask", np.int64, ("batch", TOTAL if cached else NEW))
    bias = causal_bias(g, mask, ids if cached else None)
    table = parts.table("embed_tokens", config.vocab)
    x = g.op("Gather", table, ids, axis=0)
    places = parts.table("embed_positions", config.positions + OFFSET)
    x = g.op("Add", x, _positions(g, mask, ids if cached else None, places))
    for i in range(config.layers):
        x = parts.attend(x, f"layers.{i}", bias)
        x = parts.feed_forward(x, f"layers.{i}")
    x = parts.norm(x, "final_layer_norm")
    if head:
        scores = g.op("MatMul", x, g.op("Transpose", table, perm=[1, 0]))
        g.output(scores, "logits", np.float32, ("batch", "sequence", config.vocab))
    else:
        shape = ("batch", "sequence", config.hidden)
        g.output(x, "last_hidden_state", np.float32, shape)
    for entry, value in (parts.present or {}).items():
        g.output(value, f"present.{entry}", np.float32, cache_shape(config, TOTAL))
    return g.model()


def cache_shape(config: OptConfig, length: Dim, batch: Dim = "batch") -> tuple[Any, ...]:
    """Keys or values of a layer: [batch, heads, length, size]."""
    return batch, config.heads, length, config.hidden // config.heads


def opt_ffn(config: OptConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the feed-forward blocks of the decoder alone, one behind the other.

    Args:
        config: Sizes; `heads`, `vocab` and `positions` are of no use here.
        rng: Source of the weights.

    Returns:
        A checked model: `hidden_state` f32 [batch, sequence, hidden] -> `last_hidden_state` of the
        same shape.
    """
    g, shape = GraphBuilder("opt_ffn"), ("batch", "sequence", config.hidden)
    parts = _Decoder(g, config, rng)
    x = g.input("hidden_state", np.float32, shape)
    for i in range(config.layers):
        x = parts.feed_forward(x, f"layers.{i}")
    g.output(x, "last_hidden_state", np.float32, shape)
    return g.model()


def _positions(g: GraphBuilder, mask: str, new: str | None, table: str) -> str:
    """Rows of the position table: the number of tokens so far, one row for padding; of the last
    tokens of the mask, where only some are new.
    """
    counted = g.op("Mul", g.op("CumSum", mask, g.const(1, np.int64)), mask)
    if new is not None:
        counted = last_places(g, counted, new, 1)
    places = g.op("Add", g.op("Sub", counted, g.const(1, np.int64)), g.const(OFFSET, np.int64))
    return g.op("Gather", table, places, axis=0)
