"""Softmax under two and more masks, where an operator stands between a mask and its use.

The first mask is one that every rule sees through. The second one hides, in some sequences, exactly
what the first one keeps: then all keys count again, and nothing may be left out.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import onnx

from tests.probes.build import HEADS, D, Feed, Net, Probe, Table, normal, tensor

MASKS = Table("masks")
FP16, BF16 = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
HEAD = D // HEADS
LEAST = float(np.finfo(np.float32).min)
Array = Any

KEEP = np.array([[1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]])
PATTERNS: dict[str, Array] = {
    "opposite": np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]]),
    "none": np.zeros_like(KEEP),
    "same": KEEP,
    "all": np.ones_like(KEEP),
    "crossed": np.array([[0, 1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 1, 1]]),
}


def bias_of(keep: Array, low: float, dtype: Any = np.float32) -> Array:
    """0 where a key is kept, else the number."""
    return np.where(keep != 0, 0, low).astype(dtype)


def split(g: Net, x: str) -> str:
    """[b, s, D] to heads: [b, h, s, d]."""
    return g.Transpose(g.Reshape(x, [0, 0, HEADS, HEAD]), perm=[0, 2, 1, 3])


def merge(g: Net, x: str) -> str:
    """Heads back to [b, s, D]."""
    return g.Reshape(g.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, D])


def soft(g: Net, x: str) -> str:
    """Softmax over the last axis."""
    return g.Softmax(x, axis=-1)


Score = Callable[[Net, str], str]


def attention(g: Net, x: str, memory: str, score: Score, seed: int = 0) -> str:
    """Attention of x to memory; `score` makes probabilities of the raw scores [b, h, q, k]."""
    memory = g.mlp(memory, 20 + seed)
    q, k, v = (g.linear(s, D, D, 30 + n + seed) for n, s in enumerate((x, memory, memory)))
    q, k, v = split(g, q), split(g, k), split(g, v)
    raw = g.Div(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), sqrt(HEAD))
    return g.linear(merge(g, g.MatMul(score(g, raw), v)), D, D, 40 + seed)


def outer(g: Net, mask: str) -> str:
    """[b, k] as [b, 1, 1, k]."""
    return g.Unsqueeze(mask, [1, 2])


def additive(g: Net, mask: str, low: float = -1e4) -> str:
    """A 1/0 mask as 0/low, as exporters have it."""
    return g.Mul(g.Sub(1.0, g.cast(outer(g, mask), np.float32)), low)


def cross(
    score: Callable[[Net, str, str], str],
    feeds: Callable[[int], Feed] | None = None,
    second: tuple[Any, tuple[Any, ...]] | None = (np.float32, ("b", "k")),
    seconds: list[Array] | None = None,
    opset: int = 17,
    assumes: str = "",
    own: bool = False,
    keep: Array = KEEP,
) -> Probe:
    """Attention to a memory under the known mask `mask` and a second input `more`.

    Args:
        score: From the raw scores to probabilities; it gets `mask` made additive.
        feeds: Not used where `seconds` is given.
        second: Type and shape of the second mask.
        seconds: Its values, a run each.
        opset: Version of the operator set.
        assumes: As of Probe.
        own: Self attention: queries are the memory.
        keep: The first mask.
    """
    g = Net(opset)
    x = g.input("x", np.float32, ("b", "k" if own else "q", D))
    memory = x if own else g.input("memory", np.float32, ("b", "k", D))
    mask = g.input("mask", np.int64, ("b", "k"))
    if second is not None:
        g.input("more", *second)
    g.out(attention(g, x, memory, lambda g, raw: score(g, raw, additive(g, mask))))
    del feeds
    lows = [bias_of(m, -1e4) for m in PATTERNS.values()] if seconds is None else seconds
    if seconds is None:
        lows.append(bias_of(PATTERNS["opposite"], -10240))  # a number of bfloat16
    runs = []
    for n, more in enumerate(lows if second is not None else [None]):
        b, k = keep.shape
        feed = {"x": normal(b, k if own else 5, D, seed=n), "mask": keep.astype(np.int64)}
        if not own:
            feed["memory"] = normal(b, k, D, seed=n + 50)
        if second is not None:
            feed["more"] = more
        runs.append(feed)
    return Probe(g.model(), runs, assumes=assumes)


def through(op: Callable[[Net, str], str], **rest: Any) -> Callable[[], Probe]:
    """The second mask goes through an operator, [b, k] -> broadcastable to [b, 1, 1, k]."""

    def score(g: Net, raw: str, first: str) -> str:
        return g.Softmax(g.Add(g.Add(raw, first), op(g, "more")), axis=-1)

    return lambda: cross(score, **rest)


def scattered(g: Net, m: str) -> str:
    """Written into zeros by ScatterElements."""
    zeros = g.Mul(m, 0.0)
    places = g.Add(
        g.cast(zeros, np.int64), g.Range(g.const(0, np.int64), g.size(m, 1), g.const(1, np.int64))
    )
    return outer(g, g.ScatterElements(zeros, places, m, axis=1))


def scatter_nd(g: Net, m: str) -> str:
    """Rows written back by ScatterND."""
    rows = g.Unsqueeze(g.Range(g.const(0, np.int64), g.size(m, 0), g.const(1, np.int64)), [1])
    return outer(g, g.ScatterND(g.Mul(m, 0.0), rows, m))


def eye(g: Net, m: str) -> str:
    """Multiplied by an identity matrix of its own size."""
    n = g.size(m, 1)
    square = g.ConstantOfShape(g.dims(n, n), value=tensor(np.zeros(1, np.float32)))
    return outer(g, g.MatMul(m, g.EyeLike(square)))


def loop(g: Net, m: str) -> str:
    """Carried twice through a loop whose trip count is data."""

    def make(b: Net, i: str, going: str, state: str) -> list[str]:
        del i
        return [b.Identity(going), b.Min(state, m)]

    inputs = [("i", np.int64, ()), ("going", np.bool_, ()), ("state", np.float32, ("b", "k"))]
    body = g.body(make, inputs, [np.bool_, np.float32])
    trips = g.Add(g.Min(g.size(m, 0), g.const(2, np.int64)), g.const(0, np.int64))
    return outer(g, g.Loop(trips, g.const(True, np.bool_), g.Mul(m, 0.0), body=body))


def scan(g: Net, m: str) -> str:
    """Row by row through a Scan."""
    body = g.body(lambda b, row: [b.Min(row, 0.0)], [("row", np.float32, ("k",))])
    return outer(g, g.Scan(m, body=body, num_scan_inputs=1))


def branch(g: Net, m: str) -> str:
    """One of two branches that differ in spelling."""
    here = g.body(lambda b: [b.Abs(m)])
    other = g.body(lambda b: [b.Neg(m)])
    picked = g.If(g.Less(g.size(m, 0), g.const(100, np.int64)), then_branch=here, else_branch=other)
    return outer(g, g.Neg(picked))


def top_values(g: Net, m: str) -> str:
    """All values sorted by position: TopK of the places, then the mask gathered by them."""
    places = g.Range(g.const(0, np.int64), g.size(m, 1), g.const(1, np.int64))
    first = g.several("TopK", 2, g.Neg(g.cast(places, np.float32)), g.Unsqueeze(g.size(m, 1), [0]))[
        1
    ]
    return outer(g, g.Gather(m, first, axis=1))


def sequence(g: Net, m: str) -> str:
    """Through a sequence."""
    return outer(
        g, g.ConcatFromSequence(g.SplitToSequence(m, g.const(1, np.int64), axis=0), axis=0)
    )


def no_axes(g: Net, m: str, op: str) -> str:
    return g.op(op, g.Unsqueeze(m, [1, 2, 4]), axes=[4], keepdims=0)


THROUGH: dict[str, Callable[[Net, str], str]] = {
    "nothing": outer,
    "clip": lambda g, m: outer(g, g.Clip(m, -1e4, 1e4)),
    "clip_least": lambda g, m: outer(g, g.Clip(m, float(np.finfo(np.float32).min), 0.0)),
    "max": lambda g, m: outer(g, g.Max(m, -1e5)),
    "max_of_two": lambda g, m: outer(g, g.Max(m, g.Mul(m, 2.0))),
    "min_of_two": lambda g, m: outer(g, g.Min(m, g.Mul(m, 0.5))),
    "cast_fp16": lambda g, m: outer(g, g.cast(g.cast(m, FP16), np.float32)),
    "cast_bf16": lambda g, m: outer(g, g.cast(g.cast(m, BF16), np.float32)),
    "cast_fp64": lambda g, m: outer(g, g.cast(g.cast(m, np.float64), np.float32)),
    "cast_int": lambda g, m: outer(g, g.cast(g.cast(m, np.int32), np.float32)),
    "cast_int16": lambda g, m: outer(g, g.cast(g.cast(m, np.int16), np.float32)),
    "reduce_sum": lambda g, m: g.ReduceSum(g.Unsqueeze(m, [1, 2, 4]), [4], keepdims=0),
    "reduce_max": lambda g, m: no_axes(g, m, "ReduceMax"),
    "reduce_min": lambda g, m: no_axes(g, m, "ReduceMin"),
    "reduce_mean": lambda g, m: no_axes(g, m, "ReduceMean"),
    "reduce_prod": lambda g, m: no_axes(g, m, "ReduceProd"),
    "reduce_lse": lambda g, m: no_axes(g, m, "ReduceLogSumExp"),
    "reduce_l1": lambda g, m: g.Neg(no_axes(g, m, "ReduceL1")),
    "sum_of_parts": lambda g, m: g.ReduceSum(
        g.Concat(
            g.Mul(g.Unsqueeze(m, [1, 2, 4]), 0.5), g.Mul(g.Unsqueeze(m, [1, 2, 4]), 0.5), axis=4
        ),
        [4],
        keepdims=0,
    ),
    "einsum": lambda g, m: outer(g, g.Einsum(m, equation="bk->bk")),
    "einsum_ones": lambda g, m: outer(g, g.Einsum(m, g.const([1.0]), equation="bk,h->bk")),
    "einsum_turned": lambda g, m: outer(g, g.Transpose(g.Einsum(m, equation="bk->kb"))),
    "matmul_one": lambda g, m: g.Squeeze(
        g.MatMul(g.Unsqueeze(m, [1, 2, 4]), g.const([[1.0]])), [4]
    ),
    "gemm_one": lambda g, m: outer(
        g, g.Reshape(g.Gemm(g.Reshape(m, [-1, 1]), g.const([[1.0]])), g.Shape(m))
    ),
    "matmul_eye": eye,
    "conv_one": lambda g, m: g.Unsqueeze(g.Conv(g.Unsqueeze(m, [1]), g.const([[[1.0]]])), [2]),
    "conv_depth": lambda g, m: g.Unsqueeze(
        g.Conv(g.Unsqueeze(m, [1]), g.const([[[0.0, 1.0, 0.0]]]), pads=[1, 1]), [2]
    ),
    "max_pool": lambda g, m: g.Unsqueeze(g.MaxPool(g.Unsqueeze(m, [1]), kernel_shape=[1]), [2]),
    "average_pool": lambda g, m: g.Unsqueeze(
        g.AveragePool(g.Unsqueeze(m, [1]), kernel_shape=[1]), [2]
    ),
    "scatter_elements": scattered,
    "scatter_nd": scatter_nd,
    "pad": lambda g, m: outer(g, g.Slice(g.Pad(m, [0, 1, 0, 1]), [1], [-1], [1])),
    "pad_edge": lambda g, m: outer(g, g.Slice(g.Pad(m, [0, 1, 0, 0], mode="edge"), [1], [99], [1])),
    "pad_low": lambda g, m: outer(
        g, g.Slice(g.Pad(g.Slice(m, [0], [-1], [1]), [0, 0, 0, 1], g.const(-1e4)), [0], [7], [1])
    ),
    "cumsum": lambda g, m: outer(g, g.CumSum(m, g.const(1, np.int64))),
    "cumsum_reverse": lambda g, m: outer(g, g.CumSum(m, g.const(1, np.int64), reverse=1)),
    "cumsum_none": lambda g, m: g.Unsqueeze(
        g.CumSum(g.Unsqueeze(m, [1]), g.const(1, np.int64)), [2]
    ),
    "trilu": lambda g, m: g.Unsqueeze(
        g.Trilu(g.Unsqueeze(m, [1]), g.const(-9, np.int64), upper=1), [2]
    ),
    "gather": lambda g, m: outer(
        g, g.Gather(m, g.Range(g.const(0, np.int64), g.size(m, 1), g.const(1, np.int64)), axis=1)
    ),
    "gather_elements": lambda g, m: outer(
        g,
        g.GatherElements(
            m,
            g.Expand(g.Range(g.const(0, np.int64), g.size(m, 1), g.const(1, np.int64)), g.Shape(m)),
            axis=1,
        ),
    ),
    "gather_data": lambda g, m: outer(
        g, g.GatherElements(m, g.cast(g.Mul(m, -1e-4), np.int64), axis=1)
    ),
    "topk": top_values,
    "topk_values": lambda g, m: outer(
        g, g.several("TopK", 2, m, g.Unsqueeze(g.size(m, 1), [0]))[0]
    ),
    "where_chain": lambda g, m: outer(
        g, g.Where(g.Less(m, -1.0), g.Where(g.Less(m, -2.0), m, 0.0), 0.0)
    ),
    "where_equal": lambda g, m: outer(g, g.Where(g.Equal(m, 0.0), 0.0, -1e4)),
    "where_not": lambda g, m: outer(g, g.Where(g.Not(g.cast(m, np.bool_)), 0.0, -1e4)),
    "concat_slice": lambda g, m: outer(
        g, g.Slice(g.Concat(m, m, axis=1), [0], g.Unsqueeze(g.size(m, 1), [0]), [1])
    ),
    "concat_halves": lambda g, m: outer(
        g, g.Concat(g.Slice(m, [0], [3], [1]), g.Slice(m, [3], [99], [1]), axis=1)
    ),
    "tile": lambda g, m: g.Tile(outer(g, m), [1, HEADS, 1, 1]),
    "expand": lambda g, m: g.Expand(outer(g, m), [1, HEADS, 1, 1]),
    "slice_reversed": lambda g, m: outer(g, g.Slice(m, [-1], [-99], [1], [-1])),
    "split": lambda g, m: (
        outer(g, g.Concat(*g.several("Split", 2, g.Concat(m, m, axis=0), axis=0), axis=0))
        and outer(g, g.several("Split", 2, g.Concat(m, m, axis=0), axis=0)[1])
    ),
    "pow": lambda g, m: outer(g, g.Neg(g.Pow(m, 2.0))),
    "pow_one": lambda g, m: outer(g, g.Pow(m, 1.0)),
    "log_exp": lambda g, m: outer(g, g.Log(g.Add(g.Exp(m), 1e-30))),
    "log_keep": lambda g, m: outer(g, g.Mul(g.Log(g.Add(g.Exp(m), 1e-30)), 200.0)),
    "log_zero": lambda g, m: outer(g, g.Log(g.Exp(m))),
    "sqrt": lambda g, m: outer(g, g.Neg(g.Sqrt(g.Mul(m, m)))),
    "reciprocal": lambda g, m: outer(g, g.Neg(g.Sub(g.Reciprocal(g.Add(g.Exp(m), 1e-5)), 1.0))),
    "sign": lambda g, m: outer(g, g.Mul(g.Sign(m), 1e4)),
    "floor": lambda g, m: outer(g, g.Floor(m)),
    "round": lambda g, m: outer(g, g.Round(m)),
    "mod": lambda g, m: outer(g, g.Mod(m, 20000.0, fmod=1)),
    "tanh": lambda g, m: outer(g, g.Mul(g.Tanh(m), 1e4)),
    "relu_of_negative": lambda g, m: outer(g, g.Neg(g.Relu(g.Neg(m)))),
    "leaky_relu": lambda g, m: outer(g, g.LeakyRelu(m, alpha=1.0)),
    "elu": lambda g, m: outer(g, g.Mul(g.Elu(m), 1e4)),
    "softplus": lambda g, m: outer(g, g.Neg(g.Softplus(g.Neg(m)))),
    "prelu": lambda g, m: outer(g, g.PRelu(m, g.const([1.0]))),
    "mean": lambda g, m: outer(g, g.Mean(m, m)),
    "sum_three": lambda g, m: outer(g, g.Sum(g.Mul(m, 0.25), g.Mul(m, 0.25), g.Mul(m, 0.5))),
    "neg_neg": lambda g, m: outer(g, g.Neg(g.Neg(m))),
    "abs": lambda g, m: outer(g, g.Neg(g.Abs(m))),
    "div": lambda g, m: outer(g, g.Div(m, 0.5)),
    "mul_outside": lambda g, m: g.Mul(
        g.Sqrt(g.Abs(outer(g, m))), g.Neg(g.Sqrt(g.Abs(outer(g, m))))
    ),
    "sub": lambda g, m: outer(g, g.Sub(0.0, g.Neg(m))),
    "loop": loop,
    "scan": scan,
    "if": branch,
    "sequence": sequence,
    "dequantise": lambda g, m: outer(
        g,
        g.DequantizeLinear(
            g.QuantizeLinear(m, g.const(100.0), g.const(0, np.int8)),
            g.const(100.0),
            g.const(0, np.int8),
        ),
    ),
    "hardmax_free": lambda g, m: outer(g, g.Mul(g.HardSigmoid(m, alpha=-1.0, beta=0.0), -1e4)),
    "one_hot": lambda g, m: outer(
        g,
        g.Gather(
            g.const([0.0, -1e4]),
            g.cast(g.Less(m, -1.0), np.int64),
        ),
    ),
    "is_inf": lambda g, m: outer(g, g.Where(g.IsInf(g.Mul(m, 1e38)), -1e4, 0.0)),
    "lp_norm": lambda g, m: outer(g, g.Mul(g.LpNormalization(m, axis=1), 1e6)),
    "reverse_sequence": lambda g, m: outer(
        g,
        g.ReverseSequence(
            m,
            g.Expand(g.const([1], np.int64), g.Unsqueeze(g.size(m, 0), [0])),
            batch_axis=0,
            time_axis=1,
        ),
    ),
    "space": lambda g, m: g.Reshape(
        outer(g, m), g.Concat(g.Unsqueeze(g.size(m, 0), [0]), [1, 1, -1], axis=0)
    ),
    "flatten": lambda g, m: g.Unsqueeze(
        g.Reshape(g.Reshape(m, [-1]), g.Shape(g.Unsqueeze(m, [1]))), [2]
    ),
    "resize": lambda g, m: g.Resize(outer(g, m), "", g.const([1.0, 1.0, 1.0, 1.0]), mode="nearest"),
    "and_bool": lambda g, m: outer(g, g.Where(g.And(g.Less(m, -1.0), g.Less(m, -2.0)), -1e4, 0.0)),
    "xor_bool": lambda g, m: outer(
        g, g.Where(g.Xor(g.Less(m, -1.0), g.const(False, np.bool_)), -1e4, 0.0)
    ),
    "bitwise": lambda g, m: outer(
        g, g.Mul(g.cast(g.cast(g.Less(m, -1.0), np.uint8), np.float32), -1e4)
    ),
}
for _name, _op in THROUGH.items():
    MASKS.add(f"through.{_name}", through(_op))

BIT: dict[str, Callable[[Net, str], str]] = {
    "bitwise_and": lambda g, m: outer(
        g, g.cast(g.BitwiseAnd(g.cast(m, np.int32), g.const(-1, np.int32)), np.float32)
    ),
    "bitwise_not": lambda g, m: outer(
        g, g.cast(g.BitwiseNot(g.BitwiseNot(g.cast(m, np.int32))), np.float32)
    ),
    "center_crop": lambda g, m: outer(g, g.CenterCropPad(m, g.Shape(m))),
}
for _name, _op in BIT.items():
    MASKS.add(f"through.{_name}", through(_op, opset=18))
