"""A Longformer-like encoder as dense attention: windows and global tokens, which the run names.

A global token has projections of its own and sees all tokens. Every token gets both answers, and a
Where keeps one of them: the form that runs for any length and any global tokens. Rows of padding
are computed as others are.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder, element_type
from models.layers import ACTIVATION, LINEAR, NORM, attention, biased_softmax
from models.masks import FLOAT_MIN
from models.pair_masks import Feeds, Window, places

OPSET = 18
EPSILON = 1e-5
BASE_WINDOW = Window(513, globals=1)
LOCAL, GLOBAL = ("query", "key", "value"), ("query_global", "key_global", "value_global")


@dataclass(frozen=True, slots=True)
class LongformerConfig:
    """Sizes of the encoder.

    Args:
        layers: Encoder layers.
        window: Which keys a token sees besides global ones, and how many global tokens are drawn.
        hidden: Width of the hidden state.
        heads: Attention heads.
        ffn: Width of the feed-forward layer.
        vocab: Rows of the word table.
        positions: Longest sequence.
    """

    layers: int = 12
    window: Window = BASE_WINDOW
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    vocab: int = 1000
    positions: int = 4096

    @property
    def size(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight, products as [out, in]."""
        hidden, ffn = self.hidden, self.ffn
        linears = {f"attention.self.{name}": (hidden, hidden) for name in (*LOCAL, *GLOBAL)}
        linears["attention.output.dense"] = hidden, hidden
        linears["intermediate.dense"] = ffn, hidden
        linears["output.dense"] = hidden, ffn
        found: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (self.vocab, hidden),
            "embeddings.position_embeddings.weight": (self.positions, hidden),
        }
        norms = ["embeddings.LayerNorm"]
        for i in range(self.layers):
            layer = f"encoder.layer.{i}"
            norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
            for name, shape in linears.items():
                found |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in norms:
            found |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
        return found


def draw_longformer(config: LongformerConfig, rng: np.random.Generator) -> dict[str, Array]:
    """Random weights: norms about 1, products that keep the size of what they get."""
    found = {}
    for name, shape in config.tensors.items():
        drawn = rng.normal(0, 0.1 if len(shape) == 1 else shape[1] ** -0.5, shape)
        is_scale = name.endswith("LayerNorm.weight")
        found[name] = (1 + drawn if is_scale else drawn).astype(np.float32)
    return found


def draw_long_tokens(
    config: LongformerConfig, rng: np.random.Generator, batch: int, length: int
) -> Feeds:
    """Random ids, no padding; the first tokens are global."""
    ids = rng.integers(1, config.vocab, (batch, length))
    flags = np.broadcast_to(np.arange(length) < config.window.globals, ids.shape)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "global_attention_mask": flags.astype(np.int64),
    }


def longformer(config: LongformerConfig, weights: dict[str, Array]) -> onnx.ModelProto:
    """Build the encoder.

    Args:
        config: Windows and sizes.
        weights: As of `draw_longformer`.

    Returns:
        A checked model: `input_ids`, `attention_mask` and `global_attention_mask` int64 [batch,
        sequence] -> `last_hidden_state` f32 [batch, sequence, hidden].
    """
    g, shape = GraphBuilder("longformer", OPSET), ("batch", "sequence")
    names = "input_ids", "attention_mask", "global_attention_mask"
    ids, mask, flags = (g.input(name, np.int64, shape) for name in names)
    at = places(g, g.size(ids, 0), g.size(ids, 1))
    live, far = (g.op("Cast", x, to=element_type(np.bool_)) for x in (mask, flags))
    live_key, far_key = (g.op("Unsqueeze", x, g.ints(1, 2)) for x in (live, far))
    far_row = g.op("Unsqueeze", far, g.ints(2))
    near = Window(config.window.width).graph(g, at)
    seen = g.op("And", g.op("Or", near, far_key), live_key)
    bias, all_bias = (
        g.op("Where", keep, g.const(0.0), g.const(FLOAT_MIN)) for keep in (seen, live_key)
    )

    def linear(x: str, name: str) -> str:
        weight, extra = (weights[f"{name}.{part}"] for part in ("weight", "bias"))
        return LINEAR["matmul"](g, x, name, weight, extra)

    def norm(x: str, name: str) -> str:
        gamma, beta = (
            g.weight(f"{name}.{part}", weights[f"{name}.{part}"]) for part in ("weight", "bias")
        )
        return NORM["op"](g, x, gamma, beta, EPSILON)

    def attended(x: str, layer: str, kinds: tuple[str, str, str], masked: str) -> str:
        projections = dict(zip(LOCAL, kinds, strict=True))

        def project(part: str) -> str:
            rows = linear(x, f"{layer}.attention.self.{projections[part]}")
            return g.op("Div", rows, g.const(config.size**0.5)) if part == "query" else rows

        def weigh(q: str, k_t: str) -> str:
            return biased_softmax(g, q, k_t, masked)

        return attention(g, project, (config.heads, config.size), weigh)

    def table(name: str) -> str:
        name = f"embeddings.{name}_embeddings.weight"
        return g.weight(name, weights[name])

    counted = g.op("Squeeze", at.keys, g.ints(0, 1))
    x = g.op("Gather", table("word"), ids)
    x = norm(g.op("Add", x, g.op("Gather", table("position"), counted)), "embeddings.LayerNorm")
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        local = attended(x, layer, LOCAL, bias)
        y = g.op("Where", far_row, attended(x, layer, GLOBAL, all_bias), local)
        y = linear(y, f"{layer}.attention.output.dense")
        x = norm(g.op("Add", y, x), f"{layer}.attention.output.LayerNorm")
        y = ACTIVATION["gelu_erf"](g, linear(x, f"{layer}.intermediate.dense"))
        y = linear(y, f"{layer}.output.dense")
        x = norm(g.op("Add", y, x), f"{layer}.output.LayerNorm")
    g.output(x, "last_hidden_state", np.float32, (*shape, config.hidden))
    return g.model()
