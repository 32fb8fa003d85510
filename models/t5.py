"""T5-like encoders and decoders: relative positions, RMS norm, unscaled scores, no biases, ReLU."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from models.graph import Array, GraphBuilder
from models.layers import LINEAR, Sizes, attention, biased_softmax, causal_bias, keys_and_queries
from models.masks import MASKS, MaskInput
from models.sparsity import Sparsity, live_energy

MASK = MASKS["one_minus_min"]
GROWTH = 0.01  # what a block of a sparse encoder adds to the energy of the hidden state, at most


@dataclass(frozen=True, slots=True)
class T5Config(Sizes):
    """Sizes of an encoder or decoder.

    Args:
        head_size: Width of one head.
        buckets: Rows of the table of relative positions.
        far: Distance from which all positions share a bucket.
        sparsity: Zeros behind ReLU; None: what random weights give, a half. There is no bias to
            make them with: the first channel of the hidden state is the same for every token, as
            in trained models, and its weights are the thresholds.
    """

    head_size: int = 8
    buckets: int = 32
    far: int = 128
    sparsity: Sparsity | None = None


T5_BASE = T5Config(12, 768, 12, 3072, 32128, head_size=64)


@dataclass(slots=True)
class _Stack:
    """The parts of an encoder or decoder, each with weights drawn as it is added to the graph.

    Args:
        g: The graph.
        config: Sizes.
        rng: Source of the weights.
        energy: Sum of squares of a token's hidden state so far, without the first channel.
    """

    g: GraphBuilder
    config: T5Config
    rng: np.random.Generator
    energy: float

    @property
    def normal_energy(self) -> float:
        """That part of a token behind a norm that is not the first channel."""
        return self.config.hidden * self.energy / (self.energy + self.config.hidden)

    def weight(self, size_out: int, size_in: int) -> Array:
        """Weights of a linear layer, [out, in]."""
        drawn = self.rng.normal(0, 0.5 / np.sqrt(size_in), (size_out, size_in))
        return drawn.astype(np.float32)

    def embed(self, ids: str) -> str:
        """The hidden state before the first layer."""
        words = hidden_states(self.config, self.rng, (self.config.vocab,))
        return self.g.op("Gather", self.g.weight("shared.weight", words), ids, axis=0)

    def norm(self, x: str, name: str) -> str:
        mean = self.g.reduce("ReduceMean", self.g.op("Pow", x, self.g.const(2.0)), -1)
        root = self.g.op("Sqrt", self.g.op("Add", mean, self.g.const(1e-6)))
        scaled = self.g.op("Mul", x, self.g.op("Div", self.g.const(1.0), root))
        weight = self.rng.normal(1, 0.02, self.config.hidden).astype(np.float32)
        return self.g.op("Mul", self.g.weight(f"{name}.weight", weight), scaled)

    def linear(self, x: str, name: str, weight: Array) -> str:
        return LINEAR["matmul"](self.g, x, name, weight, None)

    def leave(self, x: str, y: str, name: str, weight: Array, energy: float, share: float) -> str:
        """The end of a block: back to the hidden state, and its residual.

        Args:
            x: The hidden state before the block.
            y: The block's result.
            name: Name of the linear layer.
            weight: Its weight [hidden, in].
            energy: Expected sum of squares of `y`, at most.
            share: The part of it that is really expected.
        """
        if self.config.sparsity is not None:
            weight[0] = 0.0
            gain = float((weight.astype(np.float64) ** 2).mean()) * self.config.hidden * energy
            wanted = GROWTH * self.energy
            weight *= np.float32(math.sqrt(wanted / max(gain, 1e-4 * wanted)))  # 0 live: 0 energy
            self.energy *= 1.0 + GROWTH * share
        return self.g.op("Add", x, self.linear(y, name, weight))

    def attend(self, x: str, block: str, bias: str, memory: str | None = None) -> str:
        """An attention block: over the tokens themselves, or over an encoder's hidden state."""
        hidden, inner = self.config.hidden, self.config.heads * self.config.head_size
        y = self.norm(x, f"{block}.attention_norm")

        def project(name: str) -> str:
            weight = self.weight(inner, hidden)
            if self.config.sparsity is not None:
                weight[:, 0] = 0.0
            source = y if memory is None or name == "query" else memory
            return self.linear(source, f"{block}.{name[0]}", weight)

        heads = self.config.heads, self.config.head_size
        y = attention(self.g, project, heads, partial(biased_softmax, self.g, bias=bias))
        energy = self.normal_energy if memory is None else hidden
        values = inner * energy * 0.25 / hidden
        # values are averaged over the keys, which takes away all of their energy or nothing
        return self.leave(x, y, f"{block}.o", self.weight(hidden, inner), values, share=0.5)

    def feed_forward(self, x: str, block: str) -> str:
        """The feed-forward block of one layer."""
        hidden, ffn = self.config.hidden, self.config.ffn
        y, weight, energy = self.norm(x, f"{block}.ffn_norm"), self.weight(ffn, hidden), 1.0
        if self.config.sparsity is not None:
            thresholds = self.config.sparsity.thresholds(ffn, self.rng)
            deviation = 0.5 / math.sqrt(hidden)
            weight[:, 0] = -thresholds * np.float32(deviation * math.sqrt(self.energy / hidden))
            energy = live_energy(thresholds) * self.normal_energy * deviation**2
        y = self.g.op("Relu", self.linear(y, f"{block}.wi", weight))
        return self.leave(x, y, f"{block}.wo", self.weight(hidden, ffn), energy, share=1.0)


def hidden_states(config: T5Config, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal tokens f32 [*shape, hidden], the first channel as large as all others together."""
    states = rng.normal(0, 1, (*shape, config.hidden)).astype(np.float32)
    if config.sparsity is not None:
        states[..., 0] = math.sqrt(config.hidden)
    return states


def t5_encoder(config: T5Config, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the encoder with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden].
    """
    g, shape = GraphBuilder("t5"), ("batch", "sequence", config.hidden)
    parts = _Stack(g, config, rng, config.hidden - 1.0)
    ids, mask = (g.input(name, np.int64, shape[:2]) for name in ("input_ids", "attention_mask"))
    x = parts.embed(ids)
    masked = MASK.prepare(g, MaskInput(mask, np.dtype(np.int64)))
    bias = g.op("Add", _position_bias(g, config, ids, rng), masked)
    for i in range(config.layers):
        x = parts.attend(x, f"block.{i}", bias)
        x = parts.feed_forward(x, f"block.{i}")
    g.output(parts.norm(x, "final_norm"), "last_hidden_state", np.float32, shape)
    return g.model()


def t5_decoder(config: T5Config, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the decoder of a prefill with random weights.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, target],
        `encoder_hidden_states` f32 [batch, sequence, hidden], `encoder_attention_mask` int64
        [batch, sequence] -> `last_hidden_state` f32 [batch, target, hidden].
    """
    g, shape = GraphBuilder("t5_decoder"), ("batch", "target", config.hidden)
    parts = _Stack(g, config, rng, config.hidden - 1.0)
    ids, mask = (g.input(name, np.int64, shape[:2]) for name in ("input_ids", "attention_mask"))
    source = ("batch", "sequence", config.hidden)
    memory = g.input("encoder_hidden_states", np.float32, source)
    kept = g.input("encoder_attention_mask", np.int64, source[:2])
    x = parts.embed(ids)
    bias = g.op("Add", _position_bias(g, config, ids, rng, causal=True), causal_bias(g, mask))
    masked = MASK.prepare(g, MaskInput(kept, np.dtype(np.int64)))
    for i in range(config.layers):
        x = parts.attend(x, f"block.{i}.self", bias)
        x = parts.attend(x, f"block.{i}.cross", masked, memory)
        x = parts.feed_forward(x, f"block.{i}")
    g.output(parts.norm(x, "final_norm"), "last_hidden_state", np.float32, shape)
    return g.model()


def t5_ffn(config: T5Config, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the feed-forward blocks of the encoder alone, one behind the other.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `hidden_state` f32 [batch, sequence, hidden], such as `hidden_states`
        draws, -> `last_hidden_state` of the same shape.
    """
    g, shape = GraphBuilder("t5_ffn"), ("batch", "sequence", config.hidden)
    parts = _Stack(g, config, rng, config.hidden - 1.0)
    x = g.input("hidden_state", np.float32, shape)
    for i in range(config.layers):
        x = parts.feed_forward(x, f"block.{i}")
    g.output(x, "last_hidden_state", np.float32, shape)
    return g.model()


def _position_bias(
    g: GraphBuilder, config: T5Config, ids: str, rng: np.random.Generator, causal: bool = False
) -> str:
    """[1, heads, query, key] from a table of buckets of relative positions: of earlier keys only,
    or one half of the buckets for earlier and one half for later keys.
    """
    relative = g.op("Sub", *keys_and_queries(g, ids))
    half = config.buckets if causal else config.buckets // 2
    exact, zero = half // 2, g.const(0, np.int64)
    distance = g.op("Max", g.op("Neg", relative), zero) if causal else g.op("Abs", relative)
    real = g.op("Cast", distance, to=onnx.TensorProto.FLOAT)
    logarithm = g.op("Log", g.op("Div", real, g.const(float(exact))))
    scale = (half - exact) / math.log(config.far / exact)
    steps = g.op("Mul", logarithm, g.const(scale))
    coarse = g.op("Add", g.op("Cast", steps, to=onnx.TensorProto.INT64), g.const(exact, np.int64))
    coarse = g.op("Min", coarse, g.const(half - 1, np.int64))
    near = g.op("Less", distance, g.const(exact, np.int64))
    bucket = g.op("Where", near, distance, coarse)
    if not causal:
        later = g.op("Cast", g.op("Greater", relative, zero), to=onnx.TensorProto.INT64)
        bucket = g.op("Add", bucket, g.op("Mul", later, g.const(half, np.int64)))
    table = rng.normal(0, 0.3, (config.buckets, config.heads)).astype(np.float32)
    rows = g.op("Gather", g.weight("relative_attention_bias", table), bucket, axis=0)
    return g.op("Unsqueeze", g.op("Transpose", rows, perm=[2, 0, 1]), g.ints(0))
