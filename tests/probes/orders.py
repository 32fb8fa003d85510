"""The same two masks: their numbers, and the ways in which they meet the scores."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.probes.build import Net, Probe
from tests.probes.masks import LEAST, MASKS, PATTERNS, additive, bias_of, cross, outer, soft


def values(first: float, low: float, **rest: Any) -> Callable[[], Probe]:
    """Two masks of chosen numbers, the second one an input."""

    def score(g: Net, raw: str, _: str) -> str:
        return g.Softmax(g.Add(g.Add(raw, additive(g, "mask", first)), outer(g, "more")), axis=-1)

    lows = [bias_of(m, low) for m in PATTERNS.values()]
    return lambda: cross(score, seconds=lows, **rest)


NUMBERS = (-1e3, -6e3, -9999.0, -1e4, -10001.0, -65504.0, LEAST, -float("inf"), 1e4)
for _first in NUMBERS[1:-1]:
    for _low in NUMBERS:
        MASKS.add(f"values.{_first:g}_{_low:g}", values(_first, _low))


def added(score: Callable[[Net, str, str], str], **rest: Any) -> Callable[[], Probe]:
    return lambda: cross(score, **rest)


ORDERS: dict[str, Callable[[Net, str, str], str]] = {
    "bias_first": lambda g, raw, m: soft(g, g.Add(g.Add(m, outer(g, "more")), raw)),
    "score_last": lambda g, raw, m: soft(
        g, g.Add(g.Add(g.Clip(outer(g, "more"), -1e4, 0.0), m), raw)
    ),
    "score_middle": lambda g, raw, m: soft(
        g, g.Add(m, g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0)))
    ),
    "sum_all": lambda g, raw, m: soft(g, g.Sum(raw, m, g.Clip(outer(g, "more"), -1e4, 0.0))),
    "sum_front": lambda g, raw, m: soft(g, g.Sum(g.Max(outer(g, "more"), -1e4), m, raw)),
    "sub": lambda g, raw, m: soft(
        g, g.Sub(g.Add(raw, m), g.Clip(g.Neg(outer(g, "more")), 0.0, 1e4))
    ),
    "sub_mask": lambda g, raw, m: soft(
        g, g.Sub(g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0)), g.Neg(m))
    ),
    "clip_joint": lambda g, raw, m: soft(
        g, g.Add(raw, g.Clip(g.Add(m, outer(g, "more")), -1e4, 0.0))
    ),
    "clip_scores": lambda g, raw, m: soft(
        g, g.Clip(g.Add(g.Add(raw, m), outer(g, "more")), -1e4, 1e4)
    ),
    "max_scores": lambda g, raw, m: soft(
        g, g.Max(g.Add(g.Add(raw, m), outer(g, "more")), -10005.0)
    ),
    "min_joint": lambda g, raw, m: soft(g, g.Add(raw, g.Min(m, outer(g, "more")))),
    "max_joint": lambda g, raw, m: soft(g, g.Add(raw, g.Max(m, outer(g, "more")))),
    "mul_joint": lambda g, raw, m: soft(g, g.Add(raw, g.Neg(g.Mul(m, outer(g, "more"))))),
    "where_on_more": lambda g, raw, m: soft(
        g, g.Where(g.Less(outer(g, "more"), -1.0), -1e4, g.Add(raw, m))
    ),
    "where_scores": lambda g, raw, m: soft(
        g, g.Where(g.Less(m, -1.0), -1e4, g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0)))
    ),
    "where_least": lambda g, raw, m: soft(
        g, g.Where(g.Less(m, -1.0), LEAST, g.Where(g.Less(outer(g, "more"), -1.0), LEAST, raw))
    ),
    "where_mixed_low": lambda g, raw, m: soft(
        g, g.Where(g.Less(m, -1.0), -1e4, g.Where(g.Less(outer(g, "more"), -1.0), -1e9, raw))
    ),
    "where_small_over_low": lambda g, raw, m: soft(
        g, g.Where(g.Less(outer(g, "more"), -1.0), -12000.0, g.Add(raw, m))
    ),
    "infinite": lambda g, raw, m: soft(
        g,
        g.Where(g.Less(m, -1.0), -float("inf"), g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0))),
    ),
    "scores_scaled_after": lambda g, raw, m: soft(
        g, g.Mul(g.Add(g.Add(raw, m), outer(g, "more")), 0.125)
    ),
    "scores_shrunk": lambda g, raw, m: soft(g, g.Mul(g.Add(raw, m), 1e-4)),
    "scores_divided": lambda g, raw, m: soft(g, g.Div(g.Add(raw, m), 2e4)),
    "softcap_inside": lambda g, raw, m: soft(
        g,
        g.Add(g.Mul(g.Tanh(g.Div(g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0)), 30.0)), 30.0), m),
    ),
    "softcap_outside": lambda g, raw, m: soft(
        g, g.Mul(g.Tanh(g.Div(g.Add(g.Add(raw, m), outer(g, "more")), 30.0)), 30.0)
    ),
    "normalised_scores": lambda g, raw, m: soft(
        g, g.LayerNormalization(g.Add(raw, m), g.const(np.ones(7)), axis=-1)
    ),
    "twice": lambda g, raw, m: soft(g, g.Add(g.Add(raw, m), m)),
    "softmax_twice": lambda g, raw, m: soft(g, g.Add(soft(g, g.Add(raw, m)), outer(g, "more"))),
    "probabilities_masked": lambda g, raw, m: g.Mul(
        soft(g, g.Add(raw, m)), g.cast(g.Less(outer(g, "more"), 0.0), np.float32)
    ),
    "renormalised": lambda g, raw, m: (lambda p: g.Div(p, g.Add(g.ReduceSum(p, [3]), 1e-9)))(
        g.Mul(
            soft(g, g.Add(raw, g.Clip(outer(g, "more"), -1e4, 0.0))),
            g.cast(outer(g, "mask"), np.float32),
        )
    ),
    "exp_sum": lambda g, raw, m: (lambda e: g.Div(e, g.ReduceSum(e, [3])))(
        g.Exp(
            g.Sub(
                g.Add(g.Add(raw, m), outer(g, "more")),
                g.ReduceMax(g.Add(g.Add(raw, m), outer(g, "more")), axes=[3]),
            )
        )
    ),
    "exp_of_log": lambda g, raw, m: g.Exp(
        g.LogSoftmax(g.Add(g.Add(raw, m), outer(g, "more")), axis=-1)
    ),
    "multiplied_in": lambda g, raw, m: soft(
        g,
        g.Sub(
            g.Mul(raw, g.cast(outer(g, "mask"), np.float32)),
            g.Mul(g.Sub(1.0, g.cast(outer(g, "mask"), np.float32)), g.Neg(outer(g, "more"))),
        ),
    ),
    "multiplied_only": lambda g, raw, m: soft(g, g.Mul(raw, g.cast(outer(g, "mask"), np.float32))),
    "reversed_low": lambda g, raw, m: soft(
        g, g.Neg(g.Add(g.Add(raw, m), g.Clip(outer(g, "more"), -1e4, 0.0)))
    ),
    "axis_heads": lambda g, raw, m: g.Softmax(g.Add(g.Add(raw, m), outer(g, "more")), axis=1),
    "axis_queries": lambda g, raw, m: g.Softmax(g.Add(g.Add(raw, m), outer(g, "more")), axis=2),
    "axis_turned": lambda g, raw, m: g.Transpose(
        g.Softmax(
            g.Transpose(
                g.Add(g.Add(raw, m), g.Clip(outer(g, "more"), -1e4, 0.0)), perm=[0, 1, 3, 2]
            ),
            axis=2,
        ),
        perm=[0, 1, 3, 2],
    ),
    "rows_shifted": lambda g, raw, m: soft(
        g,
        (lambda z: g.Sub(z, g.ReduceMax(z, axes=[3])))(
            g.Add(g.Add(raw, m), g.Clip(outer(g, "more"), -1e4, 0.0))
        ),
    ),
    "row_bias": lambda g, raw, m: soft(
        g, g.Add(g.Add(raw, m), g.Unsqueeze(g.ReduceMin("more", axes=[1]), [1, 2]))
    ),
    "ratio": lambda g, raw, m: soft(g, g.Div(g.Add(raw, m), g.Exp(g.Neg(outer(g, "more"))))),
    "hidden_in_scores": lambda g, raw, m: soft(
        g,
        g.Add(
            g.MatMul(
                g.Concat(raw, g.Clip(g.Expand(outer(g, "more"), g.Shape(raw)), -1e4, 0.0), axis=3),
                g.Concat(
                    *[g.EyeLike(g.ConstantOfShape(g.dims(g.size(raw, 3), g.size(raw, 3))))] * 2,
                    axis=0,
                ),
            ),
            m,
        ),
    ),
}
for _name, _score in ORDERS.items():
    MASKS.add(f"order.{_name}", added(_score))
