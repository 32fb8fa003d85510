"""What follows the encoder: one builder per head, each declares the graph's outputs."""

from collections.abc import Callable

import numpy as np

from models.graph import Array, Dim, GraphBuilder
from models.masks import MaskInput

Shape = tuple[Dim, Dim]
Head = Callable[[GraphBuilder, str, MaskInput, Shape, dict[str, Array]], None]


def _hidden(weights: dict[str, Array]) -> int:
    return int(weights["embeddings.LayerNorm.weight"].shape[0])


def last_hidden_state(
    g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]
) -> None:
    """The hidden state itself: `last_hidden_state` [batch, sequence, hidden]."""
    g.output(x, "last_hidden_state", np.float32, (*shape, _hidden(weights)))


def _mean(g: GraphBuilder, x: str, mask: MaskInput) -> str:
    """Sum of the rows under the mask over the sum of the mask, both of shape [batch, hidden]."""
    wide = g.op("Expand", g.op("Unsqueeze", mask.name, g.ints(-1)), g.op("Shape", x))
    flags = MaskInput(wide, mask.dtype).cast(g, np.float32)
    total = g.reduce("ReduceSum", g.op("Mul", x, flags), 1, keepdims=0)
    count = g.op("Clip", g.reduce("ReduceSum", flags, 1, keepdims=0), g.const(1e-9))
    return g.op("Div", total, count)


def mean(g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]) -> None:
    """Mean over the tokens of the mask: `sentence_embedding` [batch, hidden]."""
    out = _mean(g, x, mask)
    g.output(out, "sentence_embedding", np.float32, (shape[0], _hidden(weights)))


def mean_normalised(
    g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]
) -> None:
    """Masked mean divided by its L2 norm: `sentence_embedding` [batch, hidden]."""
    pooled = _mean(g, x, mask)
    norm = g.op("Clip", g.reduce("ReduceL2", pooled, 1), g.const(1e-12))
    out = g.op("Div", pooled, g.op("Expand", norm, g.op("Shape", pooled)))
    g.output(out, "sentence_embedding", np.float32, (shape[0], _hidden(weights)))


def _gemm(g: GraphBuilder, x: str, name: str, weights: dict[str, Array]) -> str:
    parts = (g.weight(f"{name}.{p}", weights[f"{name}.{p}"]) for p in ("weight", "bias"))
    return g.op("Gemm", x, *parts, transB=1)


def _first_token(g: GraphBuilder, x: str) -> str:
    return g.op("Gather", x, g.const(0, np.int64), axis=1)


def _pooled(g: GraphBuilder, x: str, weights: dict[str, Array]) -> str:
    return g.op("Tanh", _gemm(g, _first_token(g, x), "pooler.dense", weights))


def cls(g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]) -> None:
    """The first token's row: `cls` [batch, hidden]."""
    g.output(_first_token(g, x), "cls", np.float32, (shape[0], _hidden(weights)))


def pooler(
    g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]
) -> None:
    """The first token through a dense layer and tanh: `pooler_output` [batch, hidden]."""
    g.output(_pooled(g, x, weights), "pooler_output", np.float32, (shape[0], _hidden(weights)))


def both(g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]) -> None:
    """The hidden state and the pooler's output, as the plain encoder exports them."""
    pooler(g, x, mask, shape, weights)
    last_hidden_state(g, x, mask, shape, weights)


def sequence(
    g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]
) -> None:
    """Classification of the sequence: `logits` [batch, labels]."""
    out = _gemm(g, _pooled(g, x, weights), "classifier", weights)
    g.output(out, "logits", np.float32, (shape[0], len(weights["classifier.bias"])))


def tokens(
    g: GraphBuilder, x: str, mask: MaskInput, shape: Shape, weights: dict[str, Array]
) -> None:
    """Classification of every token: `logits` [batch, sequence, labels]."""
    weight = g.weight("classifier.weight_t", weights["classifier.weight"].T)
    bias = g.weight("classifier.bias", weights["classifier.bias"])
    out = g.op("Add", g.op("MatMul", x, weight), bias)
    g.output(out, "logits", np.float32, (*shape, len(weights["classifier.bias"])))


HEADS: dict[str, Head] = {
    "none": last_hidden_state,
    "mean": mean,
    "mean_normalised": mean_normalised,
    "cls": cls,
    "pooler": pooler,
    "both": both,
    "sequence": sequence,
    "tokens": tokens,
}
