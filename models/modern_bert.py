"""A ModernBERT-like encoder: local and global layers, rotary positions, gated feed-forward layers.

It is written as the exporter through torch.export writes it: one product for queries, keys and
values, masks made once for all layers of a kind.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, Dim, GraphBuilder, element_type
from models.layers import ACTIVATION, SCORES
from models.masks import FLOAT_MIN
from models.pair_masks import Everything, Feeds, PairMask, Window, places

OPSET = 18
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class ModernBertConfig:
    """Sizes of the encoder.

    Args:
        masks: Which keys each layer sees, besides padding.
        hidden: Width of the hidden state.
        heads: Attention heads.
        ffn: Width of the feed-forward layer behind its gate.
        vocab: Rows of the word table.
    """

    masks: tuple[PairMask, ...] = (Everything(), Window(129), Window(129))
    hidden: int = 768
    heads: int = 12
    ffn: int = 1152
    vocab: int = 1000

    @property
    def size(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight, products as [in, out]."""
        hidden, ffn = self.hidden, self.ffn
        found: dict[str, tuple[int, ...]] = {
            "embeddings.tok_embeddings": (self.vocab, hidden),
            "embeddings.norm": (hidden,),
            "final_norm": (hidden,),
        }
        for i in range(len(self.masks)):
            found |= {
                f"layers.{i}.attn_norm": (hidden,),
                f"layers.{i}.attn.Wqkv": (hidden, 3 * hidden),
                f"layers.{i}.attn.Wo": (hidden, hidden),
                f"layers.{i}.mlp_norm": (hidden,),
                f"layers.{i}.mlp.Wi": (hidden, 2 * ffn),
                f"layers.{i}.mlp.Wo": (ffn, hidden),
            }
        return found


def draw_weights(config: ModernBertConfig, rng: np.random.Generator) -> dict[str, Array]:
    """Random weights: norms about 1, products that keep the size of what they get."""
    return {
        name: (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        if len(shape) == 1
        else rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        for name, shape in config.tensors.items()
    }


def draw_tokens(
    config: ModernBertConfig, rng: np.random.Generator, batch: int, length: int
) -> Feeds:
    """Random ids, no padding."""
    ids = rng.integers(1, config.vocab, (batch, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


class _Encoder:
    """Nodes of one graph."""

    def __init__(self, config: ModernBertConfig, weights: dict[str, Array]) -> None:
        self.config, self.weights = config, weights
        self.g = GraphBuilder("modern_bert", OPSET)

    def weight(self, name: str) -> str:
        return self.g.weight(f"{name}.weight", self.weights[name])

    def norm(self, x: str, name: str) -> str:
        return self.g.op("LayerNormalization", x, self.weight(name), axis=-1, epsilon=EPSILON)

    def linear(self, x: str, name: str) -> str:
        return self.g.op("MatMul", x, self.weight(name))

    def turns(self, at: str, base: float) -> tuple[str, str]:
        """Cosine and sine of the angles of positions, f32 [1, 1, sequence, size]."""
        g, size = self.g, self.config.size
        rates = base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        angles = g.op("Mul", g.op("Cast", at, to=element_type(np.float32)), g.const(rates))
        twice = g.op("Concat", angles, angles, axis=-1)
        return g.op("Cos", twice), g.op("Sin", twice)

    def rotated(self, x: str, turns: tuple[str, str]) -> str:
        """Each pair of values, half a head apart, turned by its angle."""
        g, half = self.g, self.config.size // 2
        low, high = (
            g.op("Slice", x, g.ints(start), g.ints(end), g.ints(3), g.ints(1))
            for start, end in ((0, half), (half, 2 * half))
        )
        swapped = g.op("Concat", g.op("Neg", high), low, axis=-1)
        return g.op("Add", g.op("Mul", x, turns[0]), g.op("Mul", swapped, turns[1]))

    def attention(self, x: str, layer: str, bias: str, turns: tuple[str, str]) -> str:
        g, c = self.g, self.config
        sizes = g.dims(g.size(x, 0), g.size(x, 1), 3, c.heads, c.size)
        all_three = g.op("Reshape", self.linear(x, f"{layer}.Wqkv"), sizes)
        parts = (g.op("Slice", all_three, g.ints(i), g.ints(i + 1), g.ints(2)) for i in range(3))
        rows = (g.op("Squeeze", part, g.ints(2)) for part in parts)
        q, k, v = (g.op("Transpose", part, perm=[0, 2, 1, 3]) for part in rows)
        q, k = self.rotated(q, turns), self.rotated(k, turns)
        scores = SCORES["split"](g, q, g.op("Transpose", k, perm=[0, 1, 3, 2]), c.size)
        weighed = g.op("MatMul", g.op("Softmax", g.op("Add", scores, bias), axis=-1), v)
        y = g.op("Transpose", weighed, perm=[0, 2, 1, 3])
        joined = g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), c.hidden))
        return self.linear(joined, f"{layer}.Wo")

    def gated(self, x: str, layer: str) -> str:
        value, gate = self.g.ops(2, "Split", self.linear(x, f"{layer}.Wi"), axis=-1, num_outputs=2)
        gated = self.g.op("Mul", ACTIVATION["gelu_erf"](self.g, value), gate)
        return self.linear(gated, f"{layer}.Wo")

    def model(self) -> onnx.ModelProto:
        g, shape = self.g, ("batch", "sequence")
        ids, mask = (g.input(name, np.int64, shape) for name in ("input_ids", "attention_mask"))
        at = places(g, g.size(ids, 0), g.size(ids, 1))
        live = g.op("Unsqueeze", g.op("Cast", mask, to=element_type(np.bool_)), g.ints(1, 2))
        made: dict[PairMask, tuple[str, tuple[str, str]]] = {}
        for kind in self.config.masks:
            if kind in made:
                continue
            seen = kind.graph(g, at)
            keep = live if seen is None else g.op("And", seen, live)
            bias = g.op("Where", keep, g.const(0.0), g.const(FLOAT_MIN))
            base = 160_000.0 if isinstance(kind, Everything) else 10_000.0
            made[kind] = bias, self.turns(at.queries, base)
        x = g.op("Gather", self.weight("embeddings.tok_embeddings"), ids)
        x = self.norm(x, "embeddings.norm")
        for i, kind in enumerate(self.config.masks):
            layer = f"layers.{i}"
            rows = self.norm(x, f"{layer}.attn_norm") if i else x
            x = g.op("Add", x, self.attention(rows, f"{layer}.attn", *made[kind]))
            x = g.op("Add", x, self.gated(self.norm(x, f"{layer}.mlp_norm"), f"{layer}.mlp"))
        out: tuple[Dim, ...] = (*shape, self.config.hidden)
        g.output(self.norm(x, "final_norm"), "last_hidden_state", np.float32, out)
        return g.model()


def modern_bert(config: ModernBertConfig, weights: dict[str, Array]) -> onnx.ModelProto:
    """Build the encoder.

    Args:
        config: Masks and sizes.
        weights: As of `draw_weights`.

    Returns:
        A checked model: `input_ids` and `attention_mask` int64 [batch, sequence] ->
        `last_hidden_state` f32 [batch, sequence, hidden].
    """
    return _Encoder(config, weights).model()
