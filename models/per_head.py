"""Encoders whose attention has a mask or a bias of its own for each head, known when they run."""

from dataclasses import dataclass

import numpy as np
import onnx

from models.graph import GraphBuilder

LOWEST = float(np.finfo(np.float32).min)
PAIR_FEATURES = 8


@dataclass(frozen=True, slots=True)
class PerHeadConfig:
    """Sizes of the encoder.

    Args:
        layers: How many.
        hidden: Width of a token.
        heads: Heads of attention.
    """

    layers: int = 2
    hidden: int = 256
    heads: int = 4


def mask_per_head(config: PerHeadConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build an encoder with a mask per head, of which the first token is the result.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [b, n, hidden] and `keep` bool [b, heads, n, n] -> `y` f32
        [b, hidden]; scores get the lowest number added where `keep` is false.
    """
    g = GraphBuilder("mask_per_head")
    x = g.input("x", np.float32, ("b", "n", config.hidden))
    keep = g.input("keep", np.bool_, ("b", config.heads, "n", "n"))
    y = _encoder(g, config, rng, x, g.op("Where", keep, g.const(0.0), g.const(LOWEST)))
    first = g.op("Gather", y, g.const(0, np.int64), axis=1)
    g.output(first, "y", np.float32, ("b", config.hidden))
    return g.model()


def pair_bias(config: PerHeadConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build an encoder with a bias per head from features of pairs, as of atoms, and a mask.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [b, n, hidden], `pair` f32 [b, n, n, 8] and `mask` i64 [b, n] ->
        `y` f32 [b, n, hidden]; scores get -1e9 added at keys whose mask is 0.
    """
    g = GraphBuilder("pair_bias")
    x = g.input("x", np.float32, ("b", "n", config.hidden))
    pair = g.input("pair", np.float32, ("b", "n", "n", PAIR_FEATURES))
    mask = g.input("mask", np.int64, ("b", "n"))
    bias = g.op("MatMul", pair, _weight(g, rng, "pairs", PAIR_FEATURES, config.heads))
    bias = g.op("Transpose", bias, perm=[0, 3, 1, 2])
    keep = g.op("Cast", g.op("Unsqueeze", mask, g.ints(1, 2)), to=onnx.TensorProto.FLOAT)
    hidden = g.op("Mul", g.op("Sub", g.const(1.0), keep), g.const(-1e9))
    y = _encoder(g, config, rng, x, g.op("Add", bias, hidden))
    g.output(y, "y", np.float32, ("b", "n", config.hidden))
    return g.model()


def _weight(g: GraphBuilder, rng: np.random.Generator, name: str, k: int, n: int) -> str:
    return g.weight(name, rng.normal(0, k**-0.5, (k, n)).astype(np.float32))


def _encoder(
    g: GraphBuilder, config: PerHeadConfig, rng: np.random.Generator, x: str, bias: str
) -> str:
    """Layers of attention and a feed-forward network, without norms; all have the same bias."""
    width, size = config.hidden, config.hidden // config.heads
    split, joined = g.ints(0, 0, config.heads, size), g.ints(0, 0, width)
    for layer in range(config.layers):

        def product(value: str, name: str, k: int, n: int, layer: int = layer) -> str:
            return g.op("MatMul", value, _weight(g, rng, f"layers.{layer}.{name}", k, n))

        turned = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        q, k, v = (
            g.op("Transpose", g.op("Reshape", product(x, name, width, width), split), perm=perm)
            for name, perm in turned.items()
        )
        scores = g.op("Div", g.op("MatMul", q, k), g.const(size**0.5))
        shares = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
        y = g.op("Transpose", g.op("MatMul", shares, v), perm=[0, 2, 1, 3])
        x = g.op("Add", x, product(g.op("Reshape", y, joined), "o", width, width))
        h = g.op("Relu", product(x, "up", width, 4 * width))
        x = g.op("Add", x, product(h, "down", 4 * width, width))
    return x
