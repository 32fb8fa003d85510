"""Tokens that a router sends to experts: each feed-forward block is wanted for some of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from models.graph import GraphBuilder, element_type


@dataclass(frozen=True, slots=True)
class RoutedConfig:
    """Sizes of layers of experts, of which each token has the best one.

    Args:
        experts: How many in a layer.
        hidden: Width of a token.
        ffn: Neurons of an expert.
        activation: `relu` or `gelu`.
        dtype: Of the experts' numbers; the router computes in float32.
        layers: How many in a row: a router looks at what the layer before gives.
    """

    experts: int = 4
    hidden: int = 64
    ffn: int = 128
    activation: str = "relu"
    dtype: npt.DTypeLike = np.float32
    layers: int = 1


def routed(config: RoutedConfig, rng: np.random.Generator) -> onnx.ModelProto:
    """Build the layers with random weights; expert e likes feature e of a token.

    Args:
        config: Sizes.
        rng: Source of the weights.

    Returns:
        A checked model: `x` f32 [batch, sequence, hidden] -> `y` of the same shape and of `dtype`,
        the result of each token's expert times its probability, and so on for each layer.
    """
    g = GraphBuilder("routed")
    shape = ("batch", "sequence", config.hidden)
    x, single = g.input("x", np.float32, shape), element_type(np.float32)
    for layer in range(config.layers):
        if layer and element_type(config.dtype) != single:
            x = g.op("Cast", x, to=single)
        x = _layer(g, config, rng, f"layer{layer}." if layer else "", x)
    g.output(x, "y", config.dtype, shape)
    return g.model()


def _layer(
    g: GraphBuilder, config: RoutedConfig, rng: np.random.Generator, layer: str, x: str
) -> str:
    """A router, and its experts."""
    likes = np.eye(config.hidden, config.experts, dtype=np.float32)
    likes += rng.normal(0, 0.01, likes.shape).astype(np.float32)
    logits = g.op("MatMul", x, g.weight(f"{layer}router", likes))
    shares = g.op("Softmax", logits, axis=-1)
    best = g.op("ArgMax", logits, axis=-1, keepdims=0)
    kind = element_type(config.dtype)
    tokens, shares = (
        v if kind == element_type(np.float32) else g.op("Cast", v, to=kind) for v in (x, shares)
    )
    total = ""
    for expert in range(config.experts):
        mine = g.op("Equal", best, g.const(expert, np.int64))
        share = g.op("Gather", shares, g.const(expert, np.int64), axis=2)
        share = g.op("Where", mine, share, g.const(0, config.dtype))
        y = _expert(g, config, rng, (layer, expert), tokens)
        y = g.op("Mul", y, g.op("Unsqueeze", share, g.ints(-1)))
        total = g.op("Add", total, y) if total else y
    return total


def _expert(
    g: GraphBuilder,
    config: RoutedConfig,
    rng: np.random.Generator,
    place: tuple[str, int],
    x: str,
) -> str:
    """Two products with a bias each, the activation between them."""
    layer, expert = place

    def product(value: str, name: str, k: int, n: int) -> str:
        weight = rng.normal(0, k**-0.5, (k, n)).astype(config.dtype)
        bias = rng.normal(0, 0.1, n).astype(config.dtype)
        value = g.op("MatMul", value, g.weight(f"{layer}{name}{expert}.weight", weight))
        return g.op("Add", value, g.weight(f"{layer}{name}{expert}.bias", bias))

    h = product(x, "up", config.hidden, config.ffn)
    if config.activation == "relu":
        h = g.op("Relu", h)
    else:
        root, one, half = (g.const(c, config.dtype) for c in (np.sqrt(2), 1, 0.5))
        erf = g.op("Add", g.op("Erf", g.op("Div", h, root)), one)
        h = g.op("Mul", g.op("Mul", h, erf), half)
    return product(h, "down", config.ffn, config.hidden)
