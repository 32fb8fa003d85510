"""Softmax under masks of every type and value, in other types, over other axes, and as pooling."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import D, Net, Probe, normal, rng_of
from tests.probes.masks import HEAD, KEEP, LEAST, PATTERNS, merge, outer, soft, split
from tests.probes.softmax import SELF, SOFTMAX, WAYS, B, S, Score, before, self_attention


def _typed(dtype: Any, values: Sequence[float], score: Score) -> Probe:
    ways = [
        np.asarray([values[(int(i) + n) % len(values)] for i in w.reshape(-1)]).reshape(w.shape)
        for n, w in enumerate(WAYS * 2)
    ]
    ways += [np.asarray(rng_of(n).choice(values, (B, S))) for n in range(3)]
    return self_attention(score, (dtype, ("b", "s")), ways)


def _not_mask(g: Net, raw: str, m: str, x: str) -> str:
    del x
    return soft(g, g.Add(raw, g.Where(g.Not(g.cast(outer(g, m), np.bool_)), -1e4, 0.0)))


def _as_numbers(g: Net, raw: str, m: str, x: str) -> str:
    return SELF["padding"](g, raw, m, x)


VALUED = {
    "int64_2": (np.int64, (0, 2)),
    "int64_minus": (np.int64, (0, -1, 1)),
    "int64_3": (np.int64, (0, 1, 2, 3)),
    "int32_2": (np.int32, (0, 2)),
    "uint8_255": (np.uint8, (0, 255, 1)),
    "int8_minus": (np.int8, (0, -128, 1)),
    "bool": (np.bool_, (0, 1)),
    "float_half": (np.float32, (0.0, 0.5, 1.0)),
    "float_2": (np.float32, (0.0, 2.0)),
    "float_minus_zero": (np.float32, (-0.0, 1.0, 0.0)),
    "float_minus": (np.float32, (0.0, -1.0, 1.0)),
    "float_small": (np.float32, (0.0, 1e-30, 1.0)),
    "float16": (np.float16, (0.0, 1.0, 0.5, -0.0)),
    "float64": (np.float64, (0.0, 1.0, 1e-300)),
}
for _name, (_dtype, _values) in VALUED.items():
    SOFTMAX.add(f"mask_values.{_name}", lambda d=_dtype, v=_values: _typed(d, v, _as_numbers))
    SOFTMAX.add(f"mask_truth.{_name}", lambda d=_dtype, v=_values: _typed(d, v, _not_mask))


def _direct(values: Sequence[float], dtype: Any = np.float32) -> Probe:
    """The additive mask itself is the input."""

    def score(g: Net, raw: str, m: str, x: str) -> str:
        del x
        wide = outer(g, m)
        return soft(g, g.Add(raw, wide if dtype == np.float32 else g.cast(wide, np.float32)))

    rows = [np.asarray(rng_of(n).choice(values, (B, S))) for n in range(4)]
    rows.append(np.full((B, S), values[-1]))
    return self_attention(score, (dtype, ("b", "s")), rows)


DIRECT: dict[str, tuple[Sequence[float], Any]] = {
    "1e4": ((0, -1e4), np.float32),
    "9999": ((0, -1e4, -9999.0), np.float32),
    "around": ((-9999.0, -1e4, -10001.0), np.float32),
    "two_depths": ((-1e4, -2e4, -1e9), np.float32),
    "deep_only": ((-1e4, -1.01e4), np.float32),
    "least": ((0, LEAST), np.float32),
    "infinite": ((0, -np.inf), np.float32),
    "infinite_and_low": ((-1e4, -np.inf), np.float32),
    "positive": ((-1e4, 0, 1e4), np.float32),
    "plus_infinite": ((-1e4, 0, np.inf), np.float32),
    "nan": ((-1e4, 0, np.nan), np.float32),
    "half": ((0, -65504.0, -1e4), np.float16),
    "double": ((0, -1e4, -1e300), np.float64),
}
for _name, (_values, _dtype) in DIRECT.items():
    SOFTMAX.add(f"direct.{_name}", lambda v=_values, d=_dtype: _direct(v, d))


def _pooling(score: Callable[[Net, str, str], str], opset: int = 17) -> Probe:
    """Attention pooling: weights of the tokens by a small layer, softmax over tokens."""
    g = Net(opset)
    x, m = g.input("x", np.float32, ("b", "s", D)), g.input("mask", np.int64, ("b", "s"))
    h = g.mlp(x)
    weights = score(g, g.MatMul(g.Tanh(g.linear(x, D, D, 3)), g.matrix(D, 1)), m)  # [b, s, 1]
    g.out(g.ReduceSum(g.Mul(h, weights), [1], keepdims=0))
    feeds = [{"x": normal(B, S, D, seed=n), "mask": w.astype(np.int64)} for n, w in enumerate(WAYS)]
    return Probe(g.model(), feeds)


def _column(g: Net, m: str, value: float = -1e4) -> str:
    return g.Mul(g.Sub(1.0, g.cast(g.Unsqueeze(m, [2]), np.float32)), value)


POOLING: dict[str, Callable[[Net, str, str], str]] = {
    "add": lambda g, z, m: g.Softmax(g.Add(z, _column(g, m)), axis=1),
    "where": lambda g, z, m: g.Softmax(
        g.Where(g.cast(g.Unsqueeze(m, [2]), np.bool_), z, LEAST), axis=1
    ),
    "infinite": lambda g, z, m: g.Softmax(
        g.Where(g.cast(g.Unsqueeze(m, [2]), np.bool_), z, -float("inf")), axis=1
    ),
    "clipped": lambda g, z, m: g.Softmax(g.Clip(g.Add(z, _column(g, m)), -1e4, 1e4), axis=1),
    "multiplied": lambda g, z, m: g.Mul(
        g.Softmax(z, axis=1), g.cast(g.Unsqueeze(m, [2]), np.float32)
    ),
    "renormalised": lambda g, z, m: (lambda p: g.Div(p, g.Add(g.ReduceSum(p, [1]), 1e-9)))(
        g.Mul(g.Exp(z), g.cast(g.Unsqueeze(m, [2]), np.float32))
    ),
    "mean": lambda g, z, m: g.Div(
        g.cast(g.Unsqueeze(m, [2]), np.float32),
        g.Clip(g.ReduceSum(g.cast(g.Unsqueeze(m, [2]), np.float32), [1]), 1e-9),
    ),
    "mean_unclipped": lambda g, z, m: g.Div(
        g.cast(g.Unsqueeze(m, [2]), np.float32),
        g.ReduceSum(g.cast(g.Unsqueeze(m, [2]), np.float32), [1]),
    ),
    "log": lambda g, z, m: g.LogSoftmax(g.Add(z, _column(g, m)), axis=1),
    "wrong_axis": lambda g, z, m: g.Softmax(g.Add(z, _column(g, m)), axis=2),
    "over_batch": lambda g, z, m: g.Softmax(g.Add(z, _column(g, m)), axis=0),
    "two": lambda g, z, m: g.Softmax(
        g.Add(g.Add(z, _column(g, m)), g.Clip(g.Mul(z, 1e6), -1e4, 0.0)), axis=1
    ),
    "zeros": lambda g, z, m: g.Softmax(g.Mul(z, g.cast(g.Unsqueeze(m, [2]), np.float32)), axis=1),
}
for _name, _weights in POOLING.items():
    SOFTMAX.add(f"pool.{_name}", lambda s=_weights: _pooling(s))


def _old(axis: int, second: bool) -> Probe:
    """Opset 12: all dimensions from the axis on are one line."""
    g = Net(12)
    x, m = g.input("x", np.float32, ("b", "s", D)), g.input("mask", np.float32, ("b", "s"))
    g.input("more", np.float32, ("b", "s"))
    h = g.mlp(x)
    z = g.op("Squeeze", g.MatMul(g.Tanh(g.linear(x, D, D, 3)), g.matrix(D, 1)), axes=[2])
    z = g.Add(z, g.Mul(g.Sub(1.0, m), -1e4))
    if second:
        z = g.Add(z, g.Clip("more", -1e4, 0.0))
    p = g.op("Unsqueeze", g.Softmax(z, axis=axis), axes=[1])
    g.out(g.MatMul(p, h))
    feeds = [
        {
            "x": normal(B, S, D, seed=n),
            "mask": w.astype(np.float32),
            "more": np.where(v, 0, -1e4).astype(np.float32),
        }
        for n, (w, v) in enumerate(zip([KEEP] * 5, PATTERNS.values(), strict=True))
    ]
    return Probe(g.model(), feeds)


for _axis in (0, 1, -1):
    for _second in (False, True):
        SOFTMAX.add(f"opset12.axis{_axis}_{1 + _second}", lambda a=_axis, s=_second: _old(a, s))


def _halves(low_value: float, second: bool) -> Probe:
    """All in float16."""
    g = Net(17)
    x, m = g.input("x", np.float16, ("b", "s", D)), g.input("mask", np.float16, ("b", "s"))
    q, k, v = (split(g, g.MatMul(x, g.matrix(D, D, n, np.float16))) for n in range(3))
    z = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), np.float16(HEAD**-0.5))
    z = g.Add(z, g.Mul(g.Sub(np.float16(1), outer(g, m)), np.float16(low_value)))
    if second:
        z = g.Add(z, g.Where(before(g, x), np.float16(0), np.float16(low_value)))
    g.out(merge(g, g.MatMul(soft(g, z), v)), dtype=np.float16)
    feeds = [
        {"x": normal(B, S, D, seed=n).astype(np.float16), "mask": w.astype(np.float16)}
        for n, w in enumerate(WAYS)
    ]
    return Probe(g.model(), feeds)


for _low in (-1e4, -65504.0):
    for _second in (False, True):
        SOFTMAX.add(f"half.{_low:g}_{1 + _second}", lambda v=_low, s=_second: _halves(v, s))
