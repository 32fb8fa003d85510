"""Other shapes of attention: self, causal, pooled; types and axes; masks of every type and value."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import HEADS, D, Feed, Net, Probe, Table, normal, rng_of, tensor
from tests.probes.masks import BF16, FP16, HEAD, KEEP, LEAST, PATTERNS, attention, merge, outer, soft, split

SOFTMAX = Table("softmax")
Array = Any
B, S = KEEP.shape
LEFT = np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]])
HOLES = np.array([[0, 1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 1, 0]])
NOTHING = np.array([[0] * 7, [1] * 7, [0, 0, 1, 0, 0, 0, 0]])
WAYS = (KEEP, LEFT, HOLES, NOTHING)


def positions(g: Net, x: str, axis: int = 1, dtype: Any = np.int64) -> str:
    """0, 1, .. along a dimension."""
    size = g.size(x, axis)
    size = size if dtype == np.int64 else g.cast(size, dtype)
    return g.Range(g.const(0, dtype), size, g.const(1, dtype))


def before(g: Net, x: str, dtype: Any = np.int64) -> str:
    """Keys that come no later than the query, [q, k] bool."""
    p = positions(g, x, dtype=dtype)
    return g.LessOrEqual(g.Unsqueeze(p, [0]), g.Unsqueeze(p, [1]))


Score = Callable[[Net, str, str, str], str]


def self_attention(
    score: Score,
    mask: tuple[Any, tuple[Any, ...]] = (np.int64, ("b", "s")),
    ways: Sequence[Array] = WAYS,
    opset: int = 17,
    assumes: str = "",
    pool: bool = False,
    padding: bool = False,
) -> Probe:
    """Attention of x to itself under `mask`; score(g, raw, mask, x)."""
    g = Net(opset)
    x = g.input("x", np.float32, ("b", "s", D))
    g.input("mask", *mask)
    y = attention(g, x, x, lambda g, raw: score(g, raw, "mask", x))
    g.out(g.Slice(y, [0], [1], [1]) if pool else y)
    feeds = [
        {"x": normal(B, S, D, seed=n), "mask": np.asarray(w).astype(mask[0])}
        for n, w in enumerate(ways)
    ]
    model = g.model()
    if not padding:
        return Probe(model, feeds, assumes=assumes)
    shaped = () if pool else (model.graph.output[0].name,)
    return Probe(model, feeds, "mask", shaped, assumes)


def low(g: Net, m: str, value: float = -1e4) -> str:
    """[b, s] of 1 and 0 as 0 and low, [b, 1, 1, s]."""
    return g.Mul(g.Sub(1.0, g.cast(outer(g, m), np.float32)), value)


def hidden(g: Net, keep: str, value: float = -1e4) -> str:
    """A bool as 0 and low."""
    return g.Where(keep, 0.0, value)


SELF: dict[str, Score] = {
    "padding": lambda g, raw, m, x: soft(g, g.Add(raw, low(g, m))),
    "causal_padding": lambda g, raw, m, x: soft(g, g.Add(g.Add(raw, hidden(g, before(g, x))), low(g, m))),
    "causal_padding_least": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, hidden(g, before(g, x), LEAST)), low(g, m, LEAST))
    ),
    "causal_least_padding": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, hidden(g, before(g, x), LEAST)), low(g, m))
    ),
    "causal_clipped": lambda g, raw, m, x: soft(
        g, g.Add(raw, g.Clip(g.Add(hidden(g, before(g, x)), low(g, m)), -1e4, 0.0))
    ),
    "causal_max": lambda g, raw, m, x: soft(
        g, g.Add(raw, g.Max(g.Add(hidden(g, before(g, x), LEAST), low(g, m, LEAST)), LEAST))
    ),
    "causal_and": lambda g, raw, m, x: soft(
        g, g.Where(g.And(before(g, x), g.cast(outer(g, m), np.bool_)), raw, LEAST)
    ),
    "causal_and_infinite": lambda g, raw, m, x: soft(
        g, g.Where(g.And(before(g, x), g.cast(outer(g, m), np.bool_)), raw, -float("inf"))
    ),
    "causal_trilu": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, g.Trilu(g.Expand(g.const(-1e4), g.dims(g.size(x, 1), g.size(x, 1))), g.const(1, np.int64), upper=1)),
            low(g, m),
        ),
    ),
    "anti_causal_trilu": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, g.Trilu(g.Expand(g.const(-1e4), g.dims(g.size(x, 1), g.size(x, 1))), g.const(0, np.int64), upper=0)),
            low(g, m),
        ),
    ),
    "window": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(
                g,
                g.Less(
                    g.Abs(g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1]))),
                    g.const(2, np.int64),
                ),
            ),
        ),
    ),
    "not_self": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            g.Mul(g.EyeLike(g.ConstantOfShape(g.dims(g.size(x, 1), g.size(x, 1)))), -1e4),
        ),
    ),
    "only_self": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            g.Mul(g.Sub(1.0, g.EyeLike(g.ConstantOfShape(g.dims(g.size(x, 1), g.size(x, 1))))), -1e4),
        ),
    ),
    "alibi": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(
                raw,
                g.Mul(
                    g.const(np.array([0.5, 0.25, 100.0, 3000.0]).reshape(1, 4, 1, 1)),
                    g.cast(g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1])), np.float32),
                ),
            ),
            low(g, m),
        ),
    ),
    "relative_table": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(
                raw,
                g.Gather(
                    g.weight("table", np.where(np.arange(32) % 3 == 0, -1e4, 0.5).astype(np.float32)),
                    g.Add(g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1])), g.const(15, np.int64)),
                ),
            ),
            low(g, m),
        ),
    ),
    "huge_bias": lambda g, raw, m, x: soft(g, g.Add(g.Add(raw, low(g, m)), 1e4)),
    "huge_row_bias": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            g.Mul(g.Unsqueeze(g.cast(positions(g, x), np.float32), [1]), 5e3),
        ),
    ),
    "huge_key_bias": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, low(g, m)), g.Mul(g.cast(positions(g, x), np.float32), 5e3))
    ),
    "key_bias_undoes": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, low(g, m)), g.Mul(g.Sub(1.0, g.cast(outer(g, m), np.float32)), 9.998e3))
    ),
    "doubled_minus": lambda g, raw, m, x: soft(g, g.Sub(g.Add(raw, g.Mul(low(g, m), 2.0)), low(g, m))),
    "twice_undone": lambda g, raw, m, x: soft(g, g.Sub(g.Add(raw, low(g, m)), low(g, m))),
    "mask_by_query_too": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, low(g, m)), g.Unsqueeze(low(g, m), [4]) and g.Transpose(low(g, m), perm=[0, 1, 3, 2]))
    ),
    "pairs": lambda g, raw, m, x: soft(
        g,
        g.Add(
            raw,
            g.Mul(
                g.Sub(1.0, g.cast(g.Mul(outer(g, m), g.Unsqueeze(m, [1, 3])), np.float32)), -1e4
            ),
        ),
    ),
    "same_segment": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.Unsqueeze(m, [1, 3])), raw, -1e4)
    ),
    "other_segment": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.Unsqueeze(m, [1, 3])), -1e4, raw)
    ),
    "equal_zero": lambda g, raw, m, x: soft(g, g.Where(g.Equal(outer(g, m), g.const(0, np.int64)), -1e4, raw)),
    "equal_one": lambda g, raw, m, x: soft(g, g.Where(g.Equal(outer(g, m), g.const(1, np.int64)), raw, -1e4)),
    "turned": lambda g, raw, m, x: soft(g, g.Add(raw, g.Mul(g.cast(outer(g, m), np.float32), -1e4))),
    "nan_guard": lambda g, raw, m, x: (lambda p: g.Where(g.IsNaN(p), 0.0, p))(
        soft(g, g.Where(g.cast(outer(g, m), np.bool_), raw, -float("inf")))
    ),
    "nan_guard_causal": lambda g, raw, m, x: (lambda p: g.Where(g.IsNaN(p), 0.0, p))(
        soft(
            g,
            g.Add(
                g.Where(g.cast(outer(g, m), np.bool_), raw, -float("inf")),
                hidden(g, before(g, x), -float("inf")),
            ),
        )
    ),
    "log": lambda g, raw, m, x: g.LogSoftmax(g.Add(raw, low(g, m)), axis=-1),
    "exp_log": lambda g, raw, m, x: g.Exp(g.LogSoftmax(g.Add(raw, low(g, m)), axis=-1)),
    "hardmax": lambda g, raw, m, x: g.Hardmax(g.Add(raw, low(g, m)), axis=-1),
    "plus_one": lambda g, raw, m, x: g.Slice(
        soft(g, g.Concat(g.Add(raw, low(g, m)), g.Mul(g.Slice(raw, [0], [1], [3]), 0.0), axis=3)), [0], [-1], [3]
    ),
    "sink_high": lambda g, raw, m, x: g.Slice(
        soft(g, g.Concat(g.Add(raw, low(g, m)), g.Sub(g.Mul(g.Slice(raw, [0], [1], [3]), 0.0), 2e4), axis=3)), [0], [-1], [3]
    ),
    "dropped_diagonal": lambda g, raw, m, x: g.Mul(soft(g, g.Add(raw, low(g, m))), g.cast(before(g, x), np.float32)),
    "fp16": lambda g, raw, m, x: g.cast(soft(g, g.Add(g.cast(raw, FP16), g.cast(low(g, m), FP16))), np.float32),
    "fp16_least": lambda g, raw, m, x: g.cast(
        soft(g, g.Add(g.cast(raw, FP16), g.cast(low(g, m, -65504.0), FP16))), np.float32
    ),
    "fp16_two": lambda g, raw, m, x: g.cast(
        soft(
            g,
            g.Add(
                g.Add(g.cast(raw, FP16), g.cast(low(g, m, -65504.0), FP16)),
                g.cast(hidden(g, before(g, x), -65504.0), FP16),
            ),
        ),
        np.float32,
    ),
    "fp16_scores": lambda g, raw, m, x: g.cast(soft(g, g.cast(g.Add(raw, low(g, m, -1e5)), FP16)), np.float32),
    "fp64": lambda g, raw, m, x: g.cast(
        soft(g, g.Add(g.cast(raw, np.float64), g.cast(low(g, m), np.float64))), np.float32
    ),
    "fp64_shallow": lambda g, raw, m, x: g.cast(
        soft(g, g.Add(g.cast(raw, np.float64), g.cast(low(g, m, -120.0), np.float64))), np.float32
    ),
    "shallow_100": lambda g, raw, m, x: soft(g, g.Add(raw, low(g, m, -100.0))),
    "shallow_5": lambda g, raw, m, x: soft(g, g.Add(raw, low(g, m, -5.0))),
    "scaled_after": lambda g, raw, m, x: soft(g, g.Mul(g.Add(raw, low(g, m)), 0.125)),
    "scaled_tiny": lambda g, raw, m, x: soft(g, g.Mul(g.Add(raw, low(g, m)), 1e-4)),
    "divided": lambda g, raw, m, x: soft(g, g.Div(g.Add(raw, low(g, m)), 1e4)),
    "temperature": lambda g, raw, m, x: soft(
        g, g.Mul(g.Add(raw, low(g, m)), g.Exp(g.ReduceMean(g.Mul(x, 50.0), keepdims=0)))
    ),
    "scores_huge": lambda g, raw, m, x: soft(g, g.Add(g.Mul(raw, 50.0), low(g, m))),
    "least_scores_huge": lambda g, raw, m, x: soft(g, g.Add(g.Mul(raw, 1e3), low(g, m, LEAST))),
    "multiplied": lambda g, raw, m, x: soft(g, g.Mul(raw, g.cast(outer(g, m), np.float32))),
    "multiplied_out": lambda g, raw, m, x: g.Mul(soft(g, raw), g.cast(outer(g, m), np.float32)),
    "power": lambda g, raw, m, x: soft(g, g.Add(raw, g.Neg(g.Pow(g.Mul(g.Sub(1.0, g.cast(outer(g, m), np.float32)), 100.0), 2.0)))),
    "log_mask": lambda g, raw, m, x: soft(g, g.Add(raw, g.Log(g.cast(outer(g, m), np.float32)))),
    "log_mask_small": lambda g, raw, m, x: soft(g, g.Add(raw, g.Log(g.Add(g.cast(outer(g, m), np.float32), 1e-9)))),
    "reciprocal_mask": lambda g, raw, m, x: soft(g, g.Sub(raw, g.Sub(g.Reciprocal(g.cast(outer(g, m), np.float32)), 1.0))),
    "nan_masked": lambda g, raw, m, x: soft(
        g, g.Where(g.cast(outer(g, m), np.bool_), raw, g.Sqrt(g.Sub(g.Mul(raw, 0.0), 1.0)))
    ),
    "nan_masked_value": lambda g, raw, m, x: g.Where(
        g.cast(outer(g, m), np.bool_), soft(g, g.Add(raw, low(g, m))), g.Mul(raw, 0.0)
    ),
    "argmax_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            raw,
            hidden(
                g,
                g.LessOrEqual(
                    g.Unsqueeze(positions(g, x), [0]),
                    g.Unsqueeze(g.ArgMax(m, axis=1, keepdims=1), [1, 2]),
                ),
            ),
        ),
    ),
    "lengths": lambda g, raw, m, x: soft(
        g,
        g.Add(
            raw,
            hidden(g, g.Less(positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]))),
        ),
    ),
    "lengths_minus_one": lambda g, raw, m, x: soft(
        g,
        g.Add(
            raw,
            hidden(
                g,
                g.Less(
                    positions(g, x),
                    g.Sub(g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]), g.const(1, np.int64)),
                ),
            ),
        ),
    ),
    "lengths_and_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(g, g.Less(positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]))),
        ),
    ),
    "after_lengths_and_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(g, g.GreaterOrEqual(positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]))),
        ),
    ),
    "five_addends": lambda g, raw, m, x: soft(
        g,
        g.Add(g.Add(g.Add(g.Add(low(g, m, -2500.0), raw), low(g, m, -2500.0)), low(g, m, -2500.0)), low(g, m, -2500.0)),
    ),
    "data_bias": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, low(g, m)), g.Mul(g.Unsqueeze(g.ReduceSum(x, [2], keepdims=0), [1, 2]), 1e4))
    ),
    "data_mask": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, low(g, m)), hidden(g, g.Less(0.0, g.Unsqueeze(g.ReduceSum(x, [2], keepdims=0), [1, 2]))))
    ),
    "data_mask_clipped": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            g.Clip(g.Mul(g.Unsqueeze(g.ReduceSum(x, [2], keepdims=0), [1, 2]), 1e6), -1e4, 0.0),
        ),
    ),
}
for _name, _score in SELF.items():
    SOFTMAX.add(
        f"self.{_name}",
        lambda s=_score, n=_name: self_attention(s, assumes="scores" if n in ("scores_huge", "temperature") else ""),
    )
for _name, _score in SELF.items():
    SOFTMAX.add(f"padded.{_name}", lambda s=_score: self_attention(s, padding=True))
for _name in ("padding", "causal_padding", "causal_and", "lengths_and_mask", "huge_key_bias"):
    SOFTMAX.add(f"first_row.{_name}", lambda s=SELF[_name]: self_attention(s, pool=True))


def _typed(dtype: Any, values: Sequence[float], score: Score) -> Probe:
    ways = [np.asarray([values[(int(i) + n) % len(values)] for i in w.reshape(-1)]).reshape(w.shape) for n, w in enumerate(WAYS * 2)]
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
    "where": lambda g, z, m: g.Softmax(g.Where(g.cast(g.Unsqueeze(m, [2]), np.bool_), z, LEAST), axis=1),
    "infinite": lambda g, z, m: g.Softmax(
        g.Where(g.cast(g.Unsqueeze(m, [2]), np.bool_), z, -float("inf")), axis=1
    ),
    "clipped": lambda g, z, m: g.Softmax(g.Clip(g.Add(z, _column(g, m)), -1e4, 1e4), axis=1),
    "multiplied": lambda g, z, m: g.Mul(g.Softmax(z, axis=1), g.cast(g.Unsqueeze(m, [2]), np.float32)),
    "renormalised": lambda g, z, m: (
        lambda p: g.Div(p, g.Add(g.ReduceSum(p, [1]), 1e-9))
    )(g.Mul(g.Exp(z), g.cast(g.Unsqueeze(m, [2]), np.float32))),
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

