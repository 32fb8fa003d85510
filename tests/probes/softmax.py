"""Attention of tokens to themselves, under padding, positions, biases and more masks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import D, Net, Probe, Table, normal
from tests.probes.masks import (
    FP16,
    KEEP,
    LEAST,
    attention,
    outer,
    soft,
)

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
    "causal_padding": lambda g, raw, m, x: soft(
        g, g.Add(g.Add(raw, hidden(g, before(g, x))), low(g, m))
    ),
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
            g.Add(
                raw,
                g.Trilu(
                    g.Expand(g.const(-1e4), g.dims(g.size(x, 1), g.size(x, 1))),
                    g.const(1, np.int64),
                    upper=1,
                ),
            ),
            low(g, m),
        ),
    ),
    "anti_causal_trilu": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(
                raw,
                g.Trilu(
                    g.Expand(g.const(-1e4), g.dims(g.size(x, 1), g.size(x, 1))),
                    g.const(0, np.int64),
                    upper=0,
                ),
            ),
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
                    g.Abs(
                        g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1]))
                    ),
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
            g.Mul(
                g.Sub(1.0, g.EyeLike(g.ConstantOfShape(g.dims(g.size(x, 1), g.size(x, 1))))), -1e4
            ),
        ),
    ),
    "alibi": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(
                raw,
                g.Mul(
                    g.const(np.array([0.5, 0.25, 100.0, 3000.0]).reshape(1, 4, 1, 1)),
                    g.cast(
                        g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1])),
                        np.float32,
                    ),
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
                    g.weight(
                        "table", np.where(np.arange(32) % 3 == 0, -1e4, 0.5).astype(np.float32)
                    ),
                    g.Add(
                        g.Sub(g.Unsqueeze(positions(g, x), [0]), g.Unsqueeze(positions(g, x), [1])),
                        g.const(15, np.int64),
                    ),
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
    "doubled_minus": lambda g, raw, m, x: soft(
        g, g.Sub(g.Add(raw, g.Mul(low(g, m), 2.0)), low(g, m))
    ),
    "twice_undone": lambda g, raw, m, x: soft(g, g.Sub(g.Add(raw, low(g, m)), low(g, m))),
    "mask_by_query_too": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            g.Unsqueeze(low(g, m), [4]) and g.Transpose(low(g, m), perm=[0, 1, 3, 2]),
        ),
    ),
    "pairs": lambda g, raw, m, x: soft(
        g,
        g.Add(
            raw,
            g.Mul(g.Sub(1.0, g.cast(g.Mul(outer(g, m), g.Unsqueeze(m, [1, 3])), np.float32)), -1e4),
        ),
    ),
    "same_segment": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.Unsqueeze(m, [1, 3])), raw, -1e4)
    ),
    "other_segment": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.Unsqueeze(m, [1, 3])), -1e4, raw)
    ),
    "equal_zero": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.const(0, np.int64)), -1e4, raw)
    ),
    "equal_one": lambda g, raw, m, x: soft(
        g, g.Where(g.Equal(outer(g, m), g.const(1, np.int64)), raw, -1e4)
    ),
    "turned": lambda g, raw, m, x: soft(
        g, g.Add(raw, g.Mul(g.cast(outer(g, m), np.float32), -1e4))
    ),
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
        soft(g, g.Concat(g.Add(raw, low(g, m)), g.Mul(g.Slice(raw, [0], [1], [3]), 0.0), axis=3)),
        [0],
        [-1],
        [3],
    ),
    "sink_high": lambda g, raw, m, x: g.Slice(
        soft(
            g,
            g.Concat(
                g.Add(raw, low(g, m)), g.Sub(g.Mul(g.Slice(raw, [0], [1], [3]), 0.0), 2e4), axis=3
            ),
        ),
        [0],
        [-1],
        [3],
    ),
    "dropped_diagonal": lambda g, raw, m, x: g.Mul(
        soft(g, g.Add(raw, low(g, m))), g.cast(before(g, x), np.float32)
    ),
    "fp16": lambda g, raw, m, x: g.cast(
        soft(g, g.Add(g.cast(raw, FP16), g.cast(low(g, m), FP16))), np.float32
    ),
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
    "fp16_scores": lambda g, raw, m, x: g.cast(
        soft(g, g.cast(g.Add(raw, low(g, m, -1e5)), FP16)), np.float32
    ),
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
    "power": lambda g, raw, m, x: soft(
        g, g.Add(raw, g.Neg(g.Pow(g.Mul(g.Sub(1.0, g.cast(outer(g, m), np.float32)), 100.0), 2.0)))
    ),
    "log_mask": lambda g, raw, m, x: soft(g, g.Add(raw, g.Log(g.cast(outer(g, m), np.float32)))),
    "log_mask_small": lambda g, raw, m, x: soft(
        g, g.Add(raw, g.Log(g.Add(g.cast(outer(g, m), np.float32), 1e-9)))
    ),
    "reciprocal_mask": lambda g, raw, m, x: soft(
        g, g.Sub(raw, g.Sub(g.Reciprocal(g.cast(outer(g, m), np.float32)), 1.0))
    ),
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
            hidden(
                g, g.Less(positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]))
            ),
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
                    g.Sub(
                        g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]), g.const(1, np.int64)
                    ),
                ),
            ),
        ),
    ),
    "lengths_and_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(
                g, g.Less(positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2]))
            ),
        ),
    ),
    "after_lengths_and_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(
                g,
                g.GreaterOrEqual(
                    positions(g, x), g.Unsqueeze(g.ReduceSum(m, [1], keepdims=1), [1, 2])
                ),
            ),
        ),
    ),
    "five_addends": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(g.Add(g.Add(low(g, m, -2500.0), raw), low(g, m, -2500.0)), low(g, m, -2500.0)),
            low(g, m, -2500.0),
        ),
    ),
    "data_bias": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)), g.Mul(g.Unsqueeze(g.ReduceSum(x, [2], keepdims=0), [1, 2]), 1e4)
        ),
    ),
    "data_mask": lambda g, raw, m, x: soft(
        g,
        g.Add(
            g.Add(raw, low(g, m)),
            hidden(g, g.Less(0.0, g.Unsqueeze(g.ReduceSum(x, [2], keepdims=0), [1, 2]))),
        ),
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
        lambda s=_score, n=_name: self_attention(
            s, assumes="scores" if n in ("scores_huge", "temperature") else ""
        ),
    )
for _name, _score in SELF.items():
    if _name != "turned":  # its zeros are real: refused
        SOFTMAX.add(f"padded.{_name}", lambda s=_score: self_attention(s, padding=True))
for _name in ("padding", "causal_padding", "causal_and", "lengths_and_mask", "huge_key_bias"):
    SOFTMAX.add(f"first_row.{_name}", lambda s=SELF[_name]: self_attention(s, pool=True))
