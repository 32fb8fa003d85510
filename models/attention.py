"""Dense attention under a mask of pairs, as exporters write it; its inputs and its exact answer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import Array, GraphBuilder
from models.layers import SCORES
from models.masks import FLOAT_MIN
from models.pair_masks import Causal, Feeds, PairMask, places

OPSET = 18
ROWS = 256  # of queries whose scores are held at a time


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention of all tokens among themselves.

    Args:
        mask: Which keys a query sees.
        heads: Heads, which share the mask.
        size: Width of a head.
    """

    mask: PairMask
    heads: int = 12
    size: int = 64


@dataclass(frozen=True, slots=True)
class StepConfig:
    """Attention of new tokens to a cache of keys and values, as decoders have it.

    Args:
        window: How many keys a query sees at most.
        heads: Heads of queries.
        groups: Heads of keys and values, each for as many heads of queries.
        size: Width of a head.
    """

    window: int
    heads: int = 32
    groups: int = 8
    size: int = 64

    @property
    def mask(self) -> Causal:
        """Which keys a query sees."""
        return Causal(self.window)


def _attended(g: GraphBuilder, q: str, k: str, v: str, seen: str | None, size: int) -> str:
    scores = SCORES["mul"](g, q, g.op("Transpose", k, perm=[0, 1, 3, 2]), size)
    if seen is not None:
        bias = g.op("Where", seen, g.const(0.0), g.const(FLOAT_MIN))
        scores = g.op("Add", scores, bias)
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), v)


def attention(config: AttentionConfig) -> onnx.ModelProto:
    """Build attention of queries, keys and values that are inputs.

    Args:
        config: Mask and sizes.

    Returns:
        A checked model: `q`, `k`, `v` f32 [batch, heads, sequence, size] and the inputs of the mask
        -> `y`, of the same shape.
    """
    g, shape = GraphBuilder("attention", OPSET), ("batch", config.heads, "sequence", config.size)
    q, k, v = (g.input(name, np.float32, shape) for name in ("q", "k", "v"))
    seen = config.mask.graph(g, places(g, g.size(q, 0), g.size(q, 2)))
    g.output(_attended(g, q, k, v, seen, config.size), "y", np.float32, shape)
    return g.model()


def attention_step(config: StepConfig) -> onnx.ModelProto:
    """Build attention behind a past, with grouped heads.

    Args:
        config: Window and sizes.

    Returns:
        A checked model: `q` f32 [batch, heads, sequence, size], `k` and `v` [batch, groups,
        sequence, size], `past_key` and `past_value` [batch, groups, past, size] -> `y`, like `q`,
        and the longer cache, `present_key` and `present_value`.
    """
    g, size = GraphBuilder("attention_step", OPSET), config.size
    shape = ("batch", config.heads, "sequence", size)
    q = g.input("q", np.float32, shape)
    caches: dict[str, str] = {}
    for name, part in (("k", "key"), ("v", "value")):
        new = g.input(name, np.float32, ("batch", config.groups, "sequence", size))
        past = g.input(f"past_{part}", np.float32, ("batch", config.groups, "past", size))
        caches[part] = g.op("Concat", past, new, axis=2)
    batch, total = g.size(q, 0), g.size(caches["key"], 2)
    at = places(g, batch, total, g.size("past_key", 2))
    each = config.heads // config.groups
    widened = []
    for cache in caches.values():
        apart = g.op("Unsqueeze", cache, g.ints(2))
        wide = g.op("Expand", apart, g.dims(batch, config.groups, each, total, size))
        widened.append(g.op("Reshape", wide, g.dims(batch, config.heads, total, size)))
    y = _attended(g, q, *widened, config.mask.graph(g, at), size)
    g.output(y, "y", np.float32, shape)
    for part, cache in caches.items():
        shape = ("batch", config.groups, "past + sequence", size)
        g.output(cache, f"present_{part}", np.float32, shape)
    return g.model()


def draw(config: AttentionConfig, rng: np.random.Generator, batch: int, length: int) -> Feeds:
    """Random inputs of `attention`."""
    shape = batch, config.heads, length, config.size
    feeds = {name: rng.standard_normal(shape, np.float32) for name in ("q", "k", "v")}
    return feeds | config.mask.draw(rng, batch, length)


def draw_step(
    config: StepConfig, rng: np.random.Generator, batch: int, length: int, past: int
) -> Feeds:
    """Random inputs of `attention_step`."""
    sizes = {"q": (config.heads, length)}
    sizes |= dict.fromkeys(("k", "v"), (config.groups, length))
    sizes |= dict.fromkeys(("past_key", "past_value"), (config.groups, past))
    return {
        name: rng.standard_normal((batch, heads, rows, config.size), np.float32)
        for name, (heads, rows) in sizes.items()
    }


def seen_by(mask: PairMask, feeds: Mapping[str, Array], batch: int, length: int) -> Array:
    """The mask of all pairs, bool [batch, 1, length, length]."""
    queries = np.arange(length)
    return np.stack([mask.seen(feeds, row, queries, length)[None] for row in range(batch)])


def live_pairs(mask: PairMask, feeds: Mapping[str, Array], queries: Array, keys: int) -> int:
    """How many pairs of queries at some places and of all keys are seen, over all sequences."""
    return sum(
        int(np.count_nonzero(mask.seen(feeds, row, queries[start : start + ROWS], keys)))
        for row in range(len(feeds["q"]))
        for start in range(0, len(queries), ROWS)
    )


def reference(
    config: AttentionConfig | StepConfig, feeds: Mapping[str, Array], queries: Array | None = None
) -> Array:
    """The exact answer, in float64.

    Args:
        config: Mask and sizes.
        feeds: Inputs of `attention` or `attention_step`.
        queries: Places in the sequence whose answers are wanted; None: all.

    Returns:
        `y` of these queries, f64 [batch, heads, queries, size]. A query that sees no key gets the
        mean of all values: the least float is added to each of its scores.
    """
    q, k, v = (feeds[name] for name in ("q", "k", "v"))
    if "past_key" in feeds:
        k, v = (
            np.concatenate([feeds[f"past_{part}"], x], 2) for part, x in (("key", k), ("value", v))
        )
    batch, heads, length = q.shape[:3]
    past, each = k.shape[2] - length, heads // max(k.shape[1], 1)
    queries = np.arange(length) if queries is None else queries
    y = np.empty((batch, heads, len(queries), v.shape[-1]))
    for row in range(batch):
        for start in range(0, len(queries), ROWS):
            asked = queries[start : start + ROWS]
            seen = config.mask.seen(feeds, row, asked + past, k.shape[2])
            blind = ~seen.any(1)
            for head in range(heads):
                keys, values = (x[row, head // each].astype(np.float64) for x in (k, v))
                scores = q[row, head, asked] @ keys.T * config.size**-0.5
                scores[~seen] = -np.inf
                scores[blind] = 0.0
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                y[row, head, start : start + ROWS] = weights @ values
    return y
