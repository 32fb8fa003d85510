"""The pieces of a transformer layer in the forms that exporters write: form name -> builder."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.graph import Array, GraphBuilder, element_type
from models.masks import FLOAT_MIN


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every transformer of the zoo has.

    Args:
        layers: Encoder or decoder layers.
        hidden: Width of the hidden state.
        heads: Attention heads.
        ffn: Width of the feed-forward layer.
        vocab: Rows of the word table.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    ffn: int = 64
    vocab: int = 97


Linear = Callable[[GraphBuilder, str, str, Array, Array | None], str]


def _matmul(g: GraphBuilder, x: str, name: str, weight: Array, bias: Array | None) -> str:
    """The weight transposed by the exporter: MatMul by [in, out], then Add."""
    y = g.op("MatMul", x, g.weight(f"{name}.weight_t", weight.T))
    return y if bias is None else g.op("Add", g.weight(f"{name}.bias", bias), y)


def _transpose_matmul(g: GraphBuilder, x: str, name: str, weight: Array, bias: Array | None) -> str:
    """The weight kept as [out, in] and transposed in the graph."""
    turned = g.op("Transpose", g.weight(f"{name}.weight", weight), perm=[1, 0])
    y = g.op("MatMul", x, turned)
    return y if bias is None else g.op("Add", y, g.weight(f"{name}.bias", bias))


def _gemm(g: GraphBuilder, x: str, name: str, weight: Array, bias: Array | None) -> str:
    """[.., in] flattened to rows, Gemm with transB, and back."""
    features_out, features_in = weight.shape
    rows = g.op("Reshape", x, g.ints(-1, features_in))
    operands = [rows, g.weight(f"{name}.weight", weight)]
    if bias is not None:
        operands.append(g.weight(f"{name}.bias", bias))
    y = g.op("Gemm", *operands, transB=1)
    return g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), features_out))


LINEAR: dict[str, Linear] = {"matmul": _matmul, "transpose": _transpose_matmul, "gemm": _gemm}


def _norm_op(g: GraphBuilder, x: str, gamma: str, beta: str, epsilon: float) -> str:
    return g.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)


def _norm_decomposed(g: GraphBuilder, x: str, gamma: str, beta: str, epsilon: float) -> str:
    """Older than opset 17: mean, Sub, Pow, mean, Sqrt, Div."""
    centred = g.op("Sub", x, g.reduce("ReduceMean", x, -1))
    variance = g.reduce("ReduceMean", g.op("Pow", centred, g.const(2.0)), -1)
    deviation = g.op("Sqrt", g.op("Add", variance, g.const(epsilon)))
    scaled = g.op("Mul", g.op("Div", centred, deviation), gamma)
    return g.op("Add", scaled, beta)


NORM: dict[str, Callable[[GraphBuilder, str, str, str, float], str]] = {
    "op": _norm_op,
    "decomposed": _norm_decomposed,
}


def _gelu_erf(g: GraphBuilder, x: str) -> str:
    """X * (1 + erf(x / sqrt 2)) * 0.5."""
    error = g.op("Erf", g.op("Div", x, g.const(math.sqrt(2.0))))
    return g.op("Mul", g.op("Mul", x, g.op("Add", error, g.const(1.0))), g.const(0.5))


def _gelu_tanh(g: GraphBuilder, x: str) -> str:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""
    cube = g.op("Mul", g.op("Pow", x, g.const(3.0)), g.const(0.044715))
    inner = g.op("Mul", g.op("Add", x, cube), g.const(math.sqrt(2.0 / math.pi)))
    half = g.op("Mul", x, g.const(0.5))
    return g.op("Mul", half, g.op("Add", g.op("Tanh", inner), g.const(1.0)))


ACTIVATION: dict[str, Callable[[GraphBuilder, str], str]] = {
    "gelu_erf": _gelu_erf,
    "gelu_op": lambda g, x: g.op("Gelu", x),
    "gelu_op_tanh": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "gelu_tanh": _gelu_tanh,
    "relu": lambda g, x: g.op("Relu", x),
}


def _scaled_after(op_type: str) -> Callable[[GraphBuilder, str, str, int], str]:
    def scores(g: GraphBuilder, q: str, k_t: str, size: int) -> str:
        factor = math.sqrt(size) if op_type == "Div" else 1.0 / math.sqrt(size)
        return g.op(op_type, g.op("MatMul", q, k_t), g.const(factor))

    return scores


def _scaled_query(g: GraphBuilder, q: str, k_t: str, size: int) -> str:
    return g.op("MatMul", g.op("Div", q, g.const(math.sqrt(size))), k_t)


def _scaled_both(g: GraphBuilder, q: str, k_t: str, size: int) -> str:
    """Q and K^T each by size^-1/4, as scaled-dot-product attention exports."""
    root = g.const(float(np.float32(size) ** -0.25))
    return g.op("MatMul", g.op("Mul", q, root), g.op("Mul", k_t, root))


# q [b, h, s, d] and k_t [b, h, d, s] -> scores [b, h, s, s]
SCORES: dict[str, Callable[[GraphBuilder, str, str, int], str]] = {
    "div": _scaled_after("Div"),
    "mul": _scaled_after("Mul"),
    "query": _scaled_query,
    "split": _scaled_both,
}


def _heads_concat(g: GraphBuilder, x: str, sizes: tuple[int, ...]) -> str:
    return g.op("Reshape", x, g.dims(g.size(x, 0), g.size(x, 1), *sizes))


def _heads_infer(g: GraphBuilder, x: str, sizes: tuple[int, ...]) -> str:
    return g.op("Reshape", x, g.dims(g.size(x, 0), -1, *sizes))


def _heads_zeros(g: GraphBuilder, x: str, sizes: tuple[int, ...]) -> str:
    """Two zeros: both leading sizes are copied from the input."""
    return g.op("Reshape", x, g.ints(0, 0, *sizes))


# x [b, s, ..] -> [b, s, *sizes]: how the leading sizes of a Reshape are written
RESHAPE: dict[str, Callable[[GraphBuilder, str, tuple[int, ...]], str]] = {
    "concat": _heads_concat,
    "infer": _heads_infer,
    "zeros": _heads_zeros,
}

_HEADS_FIRST = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
_HEADS, _LAST_TWO = [0, 2, 1, 3], [0, 1, 3, 2]


def attention(
    g: GraphBuilder,
    project: Callable[[str], str],
    heads: tuple[int, int],
    weigh: Callable[[str, str], str],
    reshape: str = "zeros",
    extend: Callable[[str, str], str] | None = None,
) -> str:
    """Attention of every head, without the output projection.

    Args:
        g: The graph.
        project: `query`, `key` or `value` -> [b, s, heads * size].
        heads: Number of heads, and their size.
        weigh: q [b, h, s, size] and k_t [b, h, size, s] -> probabilities [b, h, s, s].
        reshape: A key of `RESHAPE`.
        extend: `key` or `value`, and [b, h, s, size] -> the same with those of the past in front.

    Returns:
        [b, s, heads * size].
    """

    def turned(name: str) -> str:
        rows = RESHAPE[reshape](g, project(name), heads)
        if extend is None or name == "query":
            return g.op("Transpose", rows, perm=_HEADS_FIRST[name])
        extended = extend(name, g.op("Transpose", rows, perm=_HEADS))
        return g.op("Transpose", extended, perm=_LAST_TWO) if name == "key" else extended

    q, k_t, v = map(turned, _HEADS_FIRST)
    y = g.op("Transpose", g.op("MatMul", weigh(q, k_t), v), perm=[0, 2, 1, 3])
    return RESHAPE[reshape](g, y, (math.prod(heads),))


def biased_softmax(g: GraphBuilder, q: str, k_t: str, bias: str) -> str:
    """Probabilities of unscaled scores to which masks and position biases are added."""
    return g.op("Softmax", g.op("Add", g.op("MatMul", q, k_t), bias), axis=-1)


def keys_and_queries(g: GraphBuilder, tokens: str) -> tuple[str, str]:
    """Positions of keys [1, s] and of queries [s, 1] for a value [b, s], int64."""
    place = g.op("Range", g.const(0, np.int64), g.size(tokens, 1), g.const(1, np.int64))
    return g.op("Unsqueeze", place, g.ints(0)), g.op("Unsqueeze", place, g.ints(1))


def last_places(g: GraphBuilder, x: str, new: str, axis: int) -> str:
    """The end of a value along an axis, as long as `new` [batch, sequence] is."""
    total = g.size(x, axis)
    past = g.op("Sub", total, g.size(new, 1))
    return g.op("Slice", x, g.dims(past), g.dims(total), g.ints(axis))


def causal_bias(g: GraphBuilder, mask: str, new: str | None = None) -> str:
    """Added to the scores, [batch, 1, query, key]: 0 for earlier tokens, else the least number.

    Args:
        g: The graph.
        mask: Of the keys, int64 [batch, past + sequence].
        new: Of the queries, where only the last tokens of the mask ask: a value [batch, sequence].
    """
    keys, queries = keys_and_queries(g, mask)
    if new is not None:
        queries = last_places(g, queries, new, 0)
    earlier = g.op("LessOrEqual", keys, queries)
    token = g.op("Unsqueeze", g.op("Cast", mask, to=element_type(np.bool_)), g.ints(1, 2))
    keep = g.op("And", token, earlier)
    return g.op("Where", keep, g.const(0.0), g.const(FLOAT_MIN))
