"""A Mixtral-like decoder: rotary positions, RMS norms, a mixture of experts in every layer."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx

from models.experts import ExpertsConfig, of_rows
from models.graph import GraphBuilder, element_type
from models.layers import attention, biased_softmax, causal_bias, keys_and_queries

EPSILON, BASE = 1e-5, 10_000.0


@dataclass(frozen=True, slots=True)
class MixtralConfig:
    """Sizes of the decoder.

    Args:
        experts: Of each layer; its width is that of the hidden state.
        layers: Decoder layers.
        heads: Attention heads.
        vocab: Rows of the table of tokens.
    """

    experts: ExpertsConfig = field(
        default_factory=lambda: ExpertsConfig("looked_up", 8, 512, 1536, 2, gated=True)
    )
    layers: int = 4
    heads: int = 8
    vocab: int = 1000

    @property
    def hidden(self) -> int:
        """Width of the hidden state."""
        return self.experts.hidden


def mixtral(config: MixtralConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the decoder with random weights.

    Args:
        config: Sizes, and how experts are written.
        rng: Source of the weights.

    Returns:
        A checked model: `input_ids`, `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden].
    """
    g, shape = GraphBuilder("mixtral", config.experts.opset), ("batch", "sequence")
    ids, mask = (g.input(name, np.int64, shape) for name in ("input_ids", "attention_mask"))
    decoder = _Decoder(g, config, rng)
    bias, turns = causal_bias(g, mask), decoder.turns(ids)
    table = rng.normal(0, 1, (config.vocab, config.hidden)).astype(np.float32)
    x = g.op("Gather", g.weight("embed_tokens", table), ids)
    for i in range(config.layers):
        x = decoder.attend(x, f"layers.{i}", bias, turns)
        x = decoder.feed_forward(x, f"layers.{i}")
    g.output(decoder.norm(x, "norm"), "last_hidden_state", np.float32, (*shape, config.hidden))
    return g.model()


@dataclass(frozen=True)
class _Decoder:
    """Nodes of one graph."""

    g: GraphBuilder
    config: MixtralConfig
    rng: np.random.Generator

    def norm(self, x: str, name: str) -> str:
        """Rows over the root of the mean of their squares, times a weight."""
        g, hidden = self.g, self.config.hidden
        gamma = g.weight(name, self.rng.normal(1, 0.02, hidden).astype(np.float32))
        mean = g.reduce("ReduceMean", g.op("Pow", x, g.const(2.0)), -1)
        root = g.op("Sqrt", g.op("Add", mean, g.const(EPSILON)))
        return g.op("Mul", g.op("Div", x, root), gamma)

    def linear(self, x: str, name: str) -> str:
        """A product by a square matrix."""
        hidden = self.config.hidden
        drawn = self.rng.normal(0, hidden**-0.5, (hidden, hidden)).astype(np.float32)
        return self.g.op("MatMul", x, self.g.weight(name, drawn))

    def turns(self, ids: str) -> tuple[str, str]:
        """Cosine and sine of the angles of positions, f32 [sequence, 1, size]."""
        g, size = self.g, self.config.hidden // self.config.heads
        rates = BASE ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        _, place = keys_and_queries(g, ids)
        angles = g.op("Mul", g.op("Cast", place, to=element_type(np.float32)), g.const(rates))
        twice = g.op("Unsqueeze", g.op("Concat", angles, angles, axis=-1), g.ints(1))
        return g.op("Cos", twice), g.op("Sin", twice)

    def rotated(self, x: str, turns: tuple[str, str]) -> str:
        """Rows [batch, sequence, hidden] whose pairs of values, half a head apart, are turned."""
        g, c = self.g, self.config
        size = c.hidden // c.heads
        heads = g.op("Reshape", x, g.ints(0, 0, c.heads, size))
        low, high = g.ops(2, "Split", heads, g.ints(size // 2, size // 2), axis=-1)
        swapped = g.op("Concat", g.op("Neg", high), low, axis=-1)
        turned = g.op("Add", g.op("Mul", heads, turns[0]), g.op("Mul", swapped, turns[1]))
        return g.op("Reshape", turned, g.ints(0, 0, c.hidden))

    def attend(self, x: str, layer: str, bias: str, turns: tuple[str, str]) -> str:
        """The attention block of one layer, with its residual."""
        g, c = self.g, self.config
        size = c.hidden // c.heads
        y = self.norm(x, f"{layer}.input_norm")

        def project(name: str) -> str:
            z = self.linear(y, f"{layer}.{name[0]}_proj")
            z = z if name == "value" else self.rotated(z, turns)
            return g.op("Mul", z, g.const(size**-0.5)) if name == "query" else z

        weigh = partial(biased_softmax, g, bias=bias)
        y = attention(g, project, (c.heads, size), weigh)
        return g.op("Add", x, self.linear(y, f"{layer}.o_proj"))

    def feed_forward(self, x: str, layer: str) -> str:
        """The experts of one layer, with the residual."""
        g, hidden = self.g, self.config.hidden
        rows = g.op("Reshape", self.norm(x, f"{layer}.post_norm"), g.ints(-1, hidden))
        y = of_rows(g, self.config.experts, self.rng, rows, f"{layer}.")
        y = g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), hidden))
        return g.op("Add", x, y)
