"""Attention under masks of pairs in plain float64 numpy, a few rows of queries at a time.

It is written apart from the builders: each checks the other.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from models.attention import AttentionConfig, StepConfig
from models.graph import Array
from models.longformer import EPSILON as LONG_EPSILON
from models.longformer import GLOBAL, LOCAL, LongformerConfig
from models.modern_bert import EPSILON, ModernBertConfig
from models.pair_masks import Everything, Flags, PairMask

Float = npt.NDArray[np.float64]
Seen = Callable[[int, Array], Flags]

ROWS = 256  # of queries whose scores are held at a time

_erf = np.vectorize(math.erf, otypes=[np.float64])


def seen_by(mask: PairMask, feeds: Mapping[str, Array], batch: int, length: int) -> Flags:
    """The mask of all pairs, bool [batch, 1, length, length]."""
    wide = np.empty((batch, 1, length, length), np.bool_)
    for row in range(batch):
        wide[row, 0] = mask.seen(feeds, row, np.arange(length), length)
    return wide


def live_pairs(
    mask: PairMask, feeds: Mapping[str, Array], batch: int, queries: Array, keys: int
) -> int:
    """How many pairs of queries at some places and of all keys are seen, over all sequences."""
    return sum(
        int(np.count_nonzero(mask.seen(feeds, row, queries[start : start + ROWS], keys)))
        for row in range(batch)
        for start in range(0, len(queries), ROWS)
    )


def attended(
    q: Array, k: Array, v: Array, seen: Seen, queries: Array, sinks: Sequence[float] = ()
) -> Float:
    """What some queries get.

    Args:
        q: Of all queries, [batch, heads, query, size].
        k: [batch, groups, key, size]; each group is for as many heads.
        v: [batch, groups, key, width].
        seen: Sequence and places of queries -> what they see, bool [queries, key].
        queries: Places of the queries whose answers are wanted.
        sinks: One more score of each head, that has no value.

    Returns:
        f64 [batch, heads, queries, width]. A query that sees no key gets the mean of all values:
        the least float was added to each of its scores, which makes them equal. Beside a sink it
        gets 0.
    """
    batch, heads, _, size = q.shape
    each = heads // k.shape[1]
    y = np.empty((batch, heads, len(queries), v.shape[-1]))
    for row in range(batch):
        for start in range(0, len(queries), ROWS):
            asked = queries[start : start + ROWS]
            hidden = ~seen(row, asked)
            blind = hidden.all(1)
            for head in range(heads):
                keys, values = (x[row, head // each].astype(np.float64) for x in (k, v))
                scores = q[row, head, asked].astype(np.float64) @ keys.T / math.sqrt(size)
                scores[hidden] = -np.inf
                if sinks:
                    scores = np.column_stack([scores, np.full(len(scores), sinks[head])])
                else:
                    scores[blind] = 0.0
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                weights = weights[:, : len(values)]
                y[row, head, start : start + ROWS] = weights @ values
    return y


def attention_reference(
    config: AttentionConfig | StepConfig, feeds: Mapping[str, Array], queries: Array | None = None
) -> Float:
    """The exact answer of `models.attention.attention` and `attention_step`.

    Args:
        config: Mask and sizes.
        feeds: Inputs.
        queries: Places in the sequence whose answers are wanted; None: all.

    Returns:
        `y` of these queries, f64: [batch, queries, heads * size], of a step [batch, heads, queries,
        size].
    """
    q, k, v = (feeds[name] for name in ("q", "k", "v"))
    past, sinks = 0, tuple[float, ...]()
    if isinstance(config, AttentionConfig):
        sinks = config.sinks
        q, k, v = (by_head(x, config.heads) for x in (q, k, v))
    if isinstance(config, StepConfig):
        past = feeds["past_key"].shape[2]
        k, v = (
            np.concatenate([feeds["past_key"], k], 2),
            np.concatenate([feeds["past_value"], v], 2),
        )

    def seen(row: int, asked: Array) -> Flags:
        return config.mask.seen(feeds, row, asked + past, k.shape[2])

    places = np.arange(q.shape[2]) if queries is None else queries
    y = attended(q, k, v, seen, places, sinks)
    if isinstance(config, StepConfig):
        return y
    return y.transpose(0, 2, 1, 3).reshape(len(y), -1, config.heads * config.size)


def by_head(rows: Array, heads: int) -> Array:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size], a view."""
    return rows.reshape(*rows.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def modern_bert_reference(
    config: ModernBertConfig, weights: Mapping[str, Array], feeds: Mapping[str, Array]
) -> Float:
    """The exact answer of `models.modern_bert.modern_bert`, f64 [batch, sequence, hidden].

    Angles of rotary positions are taken as float32 has them.
    """
    w = {name: x.astype(np.float64) for name, x in weights.items()}
    ids, live = feeds["input_ids"], feeds["attention_mask"] != 0
    batch, length = ids.shape
    at = np.arange(length)

    def norm(x: Float, name: str) -> Float:
        centred = x - x.mean(-1, keepdims=True)
        y: Float = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * w[name]
        return y

    def rotated(x: Float, base: float) -> Float:
        rates = (base ** (-np.arange(0, config.size, 2) / config.size)).astype(np.float32)
        turn = np.tile(at.astype(np.float32)[:, None] * rates, 2).astype(np.float64)
        low, high = np.split(x, 2, axis=-1)
        y: Float = x * np.cos(turn) + np.concatenate([-high, low], -1) * np.sin(turn)
        return y

    def attention(x: Float, layer: str, kind: PairMask) -> Float:
        rows = (x @ w[f"{layer}.Wqkv"]).reshape(batch, length, 3, config.heads, config.size)
        q, k, v = rows.transpose(2, 0, 3, 1, 4)
        base = 160_000.0 if isinstance(kind, Everything) else 10_000.0
        q, k = rotated(q, base), rotated(k, base)

        def seen(row: int, asked: Array) -> Flags:
            return kind.seen(feeds, row, asked, length) & live[row]

        y = attended(q, k, v, seen, at).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return np.asarray(y @ w[f"{layer}.Wo"])

    def gated(x: Float, layer: str) -> Float:
        value, gate = np.split(x @ w[f"{layer}.Wi"], 2, axis=-1)
        gelu = value * (0.5 + 0.5 * _erf(value / math.sqrt(2.0)))
        return np.asarray((gelu * gate) @ w[f"{layer}.Wo"])

    x = norm(w["embeddings.tok_embeddings"][ids], "embeddings.norm")
    for i, kind in enumerate(config.masks):
        layer = f"layers.{i}"
        x = x + attention(norm(x, f"{layer}.attn_norm") if i else x, f"{layer}.attn", kind)
        x = x + gated(norm(x, f"{layer}.mlp_norm"), f"{layer}.mlp")
    return norm(x, "final_norm")


def longformer_reference(
    config: LongformerConfig, weights: Mapping[str, Array], feeds: Mapping[str, Array]
) -> Float:
    """The exact answer of `models.longformer.longformer`, f64 [batch, sequence, hidden]."""
    ids, live = feeds["input_ids"], feeds["attention_mask"] != 0
    far = feeds["global_attention_mask"] != 0
    batch, length = ids.shape
    at = np.arange(length)

    def near(row: int, asked: Array) -> Flags:
        seen = np.abs(asked[:, None] - at) <= config.window.width // 2
        return (seen | far[row]) & live[row]

    def all_live(row: int, asked: Array) -> Flags:
        return np.tile(live[row], (len(asked), 1))

    def linear(x: Float, name: str) -> Float:
        weight, bias = (weights[f"{name}.{part}"].astype(np.float64) for part in ("weight", "bias"))
        return np.asarray(x @ weight.T + bias)

    def norm(x: Float, name: str) -> Float:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + LONG_EPSILON)
        return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    def heads(x: Float, name: str) -> Float:
        y = linear(x, name).reshape(batch, length, config.heads, config.size)
        return y.transpose(0, 2, 1, 3)

    def attention(x: Float, layer: str) -> Float:
        q, k, v = (heads(x, f"{layer}.{part}") for part in LOCAL)
        y = attended(q, k, v, near, at)
        asked = np.flatnonzero(far.any(0))
        if len(asked):
            q, k, v = (heads(x, f"{layer}.{part}") for part in GLOBAL)
            flags = far[:, None, asked, None]
            y[:, :, asked] = np.where(flags, attended(q, k, v, all_live, asked), y[:, :, asked])
        return y.transpose(0, 2, 1, 3).reshape(batch, length, -1)

    x = weights["embeddings.word_embeddings.weight"].astype(np.float64)[ids]
    x = norm(x + weights["embeddings.position_embeddings.weight"][:length], "embeddings.LayerNorm")
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        y = linear(attention(x, f"{layer}.attention.self"), f"{layer}.attention.output.dense")
        x = norm(x + y, f"{layer}.attention.output.LayerNorm")
        y = linear(x, f"{layer}.intermediate.dense")
        y = linear(y * (0.5 + 0.5 * _erf(y / math.sqrt(2.0))), f"{layer}.output.dense")
        x = norm(x + y, f"{layer}.output.LayerNorm")
    return x
