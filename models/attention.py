"""Dense attention under a mask of pairs, as exporters write it, and its inputs."""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import GraphBuilder
from models.layers import SCORES
from models.masks import FLOAT_MIN
from models.pair_masks import Causal, Feeds, PairMask, places

OPSET = 18


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Attention of all tokens among themselves.

    Args:
        mask: Which keys a query sees.
        heads: Heads, which share the mask.
        size: Width of a head.
        sinks: A number of each head stands beside the scores and takes weight, as GPT-OSS has it.
    """

    mask: PairMask
    heads: int = 12
    size: int = 64
    sinks: tuple[float, ...] = ()


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


def _with_sinks(g: GraphBuilder, scores: str, sinks: tuple[float, ...]) -> str:
    """Weights beside sinks: each row's largest score is subtracted first."""
    lead = g.op("Slice", g.op("Shape", scores), g.ints(0), g.ints(3))
    number = g.const(np.array(sinks, np.float32).reshape(1, -1, 1, 1))
    column = g.op("Expand", number, g.op("Concat", lead, g.ints(1), axis=0))
    both = g.op("Concat", scores, column, axis=3)
    top = g.op("ReduceMax", both, g.ints(-1), keepdims=1)
    weights = g.op("Softmax", g.op("Sub", both, top), axis=-1)
    return g.op("Slice", weights, g.ints(0), g.ints(-1), g.ints(3))


def _attended(
    g: GraphBuilder,
    q: str,
    k: str,
    v: str,
    seen: str | None,
    size: int,
    sinks: tuple[float, ...] = (),
) -> str:
    scores = SCORES["mul"](g, q, g.op("Transpose", k, perm=[0, 1, 3, 2]), size)
    if seen is not None:
        bias = g.op("Where", seen, g.const(0.0), g.const(FLOAT_MIN))
        scores = g.op("Add", scores, bias)
    if sinks:
        return g.op("MatMul", _with_sinks(g, scores, sinks), v)
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), v)


def _by_head(g: GraphBuilder, rows: str, config: AttentionConfig) -> str:
    """[batch, sequence, heads * size] -> [batch, heads, sequence, size]."""
    apart = g.op("Reshape", rows, g.ints(0, 0, config.heads, config.size))
    return g.op("Transpose", apart, perm=[0, 2, 1, 3])


def _joined(g: GraphBuilder, y: str, width: int) -> str:
    """Back."""
    return g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, width))


def attention(config: AttentionConfig) -> onnx.ModelProto:
    """Build attention of queries, keys and values that are inputs, rows as projections leave them.

    Args:
        config: Mask and sizes.

    Returns:
        A checked model: `q`, `k`, `v` f32 [batch, sequence, heads * size] and what the mask takes
        -> `y`, of the same shape.
    """
    g, width = GraphBuilder("attention", OPSET), config.heads * config.size
    shape = ("batch", "sequence", width)
    rows = [g.input(name, np.float32, shape) for name in ("q", "k", "v")]
    q, k, v = (_by_head(g, x, config) for x in rows)
    seen = config.mask.graph(g, places(g, g.size(rows[0], 0), g.size(rows[0], 1)))
    y = _attended(g, q, k, v, seen, config.size, config.sinks)
    g.output(_joined(g, y, width), "y", np.float32, shape)
    return g.model()


def attention_layer(config: AttentionConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the same between projections, as a layer of a model has it.

    Args:
        config: Mask and sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [batch, sequence, heads * size] and the inputs of the mask -> `y`,
        like `x`.
    """
    g, width = GraphBuilder("attention_layer", OPSET), config.heads * config.size
    x = g.input("x", np.float32, ("batch", "sequence", width))

    def linear(name: str, rows: str) -> str:
        weight = rng.normal(0, width**-0.5, (width, width)).astype(np.float32)
        return g.op("MatMul", rows, g.weight(name, weight))

    q, k, v = (_by_head(g, linear(name, x), config) for name in ("query", "key", "value"))
    seen = config.mask.graph(g, places(g, g.size(x, 0), g.size(x, 1)))
    y = _attended(g, q, k, v, seen, config.size, config.sinks)
    y = linear("out", _joined(g, y, width))
    g.output(y, "y", np.float32, ("batch", "sequence", width))
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

    def widened(cache: str) -> str:
        """Each group for its heads, side by side."""
        apart = g.op("Unsqueeze", cache, g.ints(2))
        wide = g.op("Expand", apart, g.dims(batch, config.groups, each, total, size))
        return g.op("Reshape", wide, g.dims(batch, config.heads, total, size))

    keys, values = map(widened, caches.values())
    y = _attended(g, q, keys, values, config.mask.graph(g, at), size)
    g.output(y, "y", np.float32, shape)
    for part, cache in caches.items():
        shape = ("batch", config.groups, "past + sequence", size)
        g.output(cache, f"present_{part}", np.float32, shape)
    return g.model()


def draw(config: AttentionConfig, rng: np.random.Generator, batch: int, length: int) -> Feeds:
    """Random inputs of `attention`."""
    shape = batch, length, config.heads * config.size
    feeds = {name: rng.standard_normal(shape, np.float32) for name in ("q", "k", "v")}
    return feeds | config.mask.draw(rng, batch, length)


def draw_layer(config: AttentionConfig, rng: np.random.Generator, batch: int, length: int) -> Feeds:
    """Random inputs of `attention_layer`."""
    x = rng.standard_normal((batch, length, config.heads * config.size), np.float32)
    return {"x": x, **config.mask.draw(rng, batch, length)}


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
