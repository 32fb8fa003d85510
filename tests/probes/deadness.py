"""Dead and constant parts outside a softmax: gates, experts, reductions, values read twice."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.probes.build import D, Feed, Net, Probe, Table, normal, rng_of
from tests.probes.softmax import LEAST

DEADNESS = Table("deadness")
F, INT, B = np.float32, np.int64, np.bool_
Array = Any
INF = float("inf")


def gate(g: Net, m: str) -> str:
    """The mask as numbers [b, s, 1]."""
    return g.cast(g.Unsqueeze(m, [2]), F)


def kept(g: Net, m: str) -> str:
    """The mask as bools [b, s, 1]."""
    return g.cast(g.Unsqueeze(m, [2]), B)


def hidden(g: Net, m: str, low: float = -1e4) -> str:
    """0, or low where the mask is 0."""
    return g.Where(kept(g, m), 0.0, low)


Make = Callable[[Net, str, str, str], str]


def _probe(
    make: Make, scale: float = 1.0, assumes: str = "", values: Sequence[float] = ()
) -> Probe:
    """make(g, x, mask, a): x [b, s, D] goes through work, a [b, s, D] is anything."""
    g = Net(17)
    x, a = g.input("x", F, ("b", "s", D)), g.input("a", F, ("b", "s", D))
    m = g.input("mask", INT, ("b", "s"))
    g.out(make(g, x, m, a))
    feeds: list[Feed] = []
    for n, (b, s) in enumerate(((2, 7), (1, 1), (3, 4), (2, 7))):
        rng = rng_of(n, 77)
        other = normal(b, s, D, seed=n + 5) * F(scale)
        if values:
            other = rng.choice(np.asarray(values, F), (b, s, D))
        feeds.append(
            {
                "x": normal(b, s, D, seed=n),
                "a": other,
                "mask": (rng.random((b, s)) < 0.5).astype(INT),
            }
        )
    return Probe(g.model(), feeds, assumes=assumes)


NEGATIVE: dict[str, Make] = {
    "relu": lambda g, x, m, a: g.Mul(g.Relu(g.Add(a, hidden(g, m))), g.mlp(x)),
    "relu_sub": lambda g, x, m, a: g.Mul(g.Relu(g.Sub(a, g.Neg(hidden(g, m)))), g.mlp(x)),
    "relu_sum": lambda g, x, m, a: g.Mul(g.Relu(g.Sum(a, hidden(g, m), a)), g.mlp(x)),
    "less": lambda g, x, m, a: g.Where(g.Less(g.Add(a, hidden(g, m)), 0.0), a, g.mlp(x)),
    "greater": lambda g, x, m, a: g.Where(g.Greater(g.Add(a, hidden(g, m)), 0.0), g.mlp(x), a),
    "greater_equal": lambda g, x, m, a: g.Mul(
        g.cast(g.GreaterOrEqual(g.Add(a, hidden(g, m)), 0.0), F), g.mlp(x)
    ),
    "truth": lambda g, x, m, a: g.Where(g.cast(g.Add(a, hidden(g, m)), B), a, g.mlp(x)),
    "equal": lambda g, x, m, a: g.Where(g.Equal(g.Add(a, hidden(g, m)), 0.0), g.mlp(x), a),
    "clip": lambda g, x, m, a: g.Mul(g.Clip(g.Add(a, hidden(g, m)), 0.0, 1e9), g.mlp(x)),
    "max": lambda g, x, m, a: g.Mul(g.Max(g.Add(a, hidden(g, m)), 0.0), g.mlp(x)),
    "min": lambda g, x, m, a: g.Mul(g.Relu(g.Min(a, g.Add(a, hidden(g, m)))), g.mlp(x)),
    "sigmoid": lambda g, x, m, a: g.Mul(g.Sigmoid(g.Add(a, hidden(g, m))), g.mlp(x)),
    "exp": lambda g, x, m, a: g.Mul(g.Exp(g.Min(g.Add(a, hidden(g, m)), 5.0)), g.mlp(x)),
    "tanh": lambda g, x, m, a: g.Mul(g.Add(g.Tanh(g.Add(a, hidden(g, m))), 1.0), g.mlp(x)),
    "mul": lambda g, x, m, a: g.Mul(g.Relu(g.Mul(g.Add(a, hidden(g, m)), 2.0)), g.mlp(x)),
    "div": lambda g, x, m, a: g.Mul(g.Relu(g.Div(g.Add(a, hidden(g, m)), 0.5)), g.mlp(x)),
    "least": lambda g, x, m, a: g.Mul(g.Relu(g.Add(a, hidden(g, m, LEAST))), g.mlp(x)),
    "infinite": lambda g, x, m, a: g.Mul(g.Relu(g.Add(a, hidden(g, m, -INF))), g.mlp(x)),
    "integers": lambda g, x, m, a: g.Mul(
        g.cast(g.Relu(g.Add(g.cast(a, np.int32), g.cast(hidden(g, m), np.int32))), F), g.mlp(x)
    ),
    "reduce_max": lambda g, x, m, a: g.Mul(
        g.Relu(g.ReduceMax(g.Add(a, hidden(g, m)), axes=[2])), g.mlp(x)
    ),
    "reduce_mean": lambda g, x, m, a: g.Mul(
        g.Relu(g.ReduceMean(g.Add(a, hidden(g, m)), axes=[2])), g.mlp(x)
    ),
    "select_low": lambda g, x, m, a: g.Mul(g.Relu(g.Where(kept(g, m), a, -1e4)), g.mlp(x)),
    "select_low_plus": lambda g, x, m, a: g.Mul(
        g.Relu(g.Add(g.Where(kept(g, m), a, -1e4), 1e4)), g.mlp(x)
    ),
    "select_low_minus_data": lambda g, x, m, a: g.Mul(
        g.Relu(g.Sub(g.Where(kept(g, m), a, -1e4), a)), g.mlp(x)
    ),
    "input_low": lambda g, x, m, a: g.Mul(
        g.Relu(g.Add(g.Softmax(a, axis=-1), g.Mul(hidden(g, m), 1.0))), g.mlp(x)
    ),
}
for _name, _make in NEGATIVE.items():
    DEADNESS.add(f"low.{_name}", lambda f=_make: _probe(f, 2e4, "scores"))
    DEADNESS.add(
        f"low_near.{_name}",
        lambda f=_make: _probe(f, assumes="scores", values=(9999.0, 1e4, 10001.0, -3.0)),
    )
    DEADNESS.add(f"low_small.{_name}", lambda f=_make: _probe(f))


def sharp(g: Net, x: str, m: str) -> str:
    """Work wanted at live tokens."""
    return g.Mul(g.mlp(x), gate(g, m))


def top(g: Net, a: str, k: int, axis: int = 2) -> list[str]:
    """Values and places."""
    return g.several("TopK", 2, a, [k], axis=axis)


MASKED: dict[str, Make] = {
    "square": lambda g, x, m, a: (lambda h: g.Mul(h, h))(sharp(g, x, m)),
    "square_unmasked": lambda g, x, m, a: (lambda h: g.Mul(g.Mul(h, h), gate(g, m)))(g.mlp(x)),
    "square_by_self": lambda g, x, m, a: (lambda h: g.MatMul(h, g.Transpose(h, perm=[0, 2, 1])))(
        sharp(g, x, m)
    ),
    "sub_self": lambda g, x, m, a: (lambda h: g.Sub(h, g.Mul(h, gate(g, m))))(g.mlp(x)),
    "add_masked_self": lambda g, x, m, a: (lambda h: g.Add(h, g.Mul(h, gate(g, m))))(g.mlp(x)),
    "where_self": lambda g, x, m, a: (lambda h: g.Where(kept(g, m), h, h))(g.mlp(x)),
    "where_sign": lambda g, x, m, a: (lambda h: g.Where(kept(g, m), h, g.Neg(h)))(g.mlp(x)),
    "where_condition": lambda g, x, m, a: (
        lambda h: g.Where(g.Less(h, 0.0), g.Mul(h, gate(g, m)), a)
    )(g.mlp(x)),
    "gate_of_own": lambda g, x, m, a: (lambda h: g.Mul(h, g.Relu(h)))(g.Mul(g.mlp(x), gate(g, m))),
    "gate_of_own_sum": lambda g, x, m, a: (
        lambda h: g.Mul(h, g.cast(g.Less(0.0, g.ReduceSum(h, [2])), F))
    )(g.mlp(x)),
    "gated": lambda g, x, m, a: g.Mul(g.mlp(x), g.Relu(a)),
    "gated_row": lambda g, x, m, a: g.Mul(g.mlp(x), g.Relu(g.ReduceSum(a, [2]))),
    "gated_row_cap": lambda g, x, m, a: g.Mul(g.mlp(x), g.Clip(g.ReduceSum(a, [2]), 0.0, 1.0)),
    "gated_row_leaky": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.LeakyRelu(g.ReduceSum(a, [2]), alpha=1e-3)
    ),
    "gated_row_threshold": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.ThresholdedRelu(g.ReduceSum(a, [2]), alpha=0.5)
    ),
    "gated_row_hard": lambda g, x, m, a: g.Mul(g.mlp(x), g.HardSigmoid(g.ReduceSum(a, [2]))),
    "gated_row_swish": lambda g, x, m, a: g.Mul(g.mlp(x), g.HardSwish(g.ReduceSum(a, [2]))),
    "gated_row_shrink": lambda g, x, m, a: g.Mul(g.mlp(x), g.Shrink(g.ReduceSum(a, [2]))),
    "gated_row_sign": lambda g, x, m, a: g.Mul(g.mlp(x), g.Add(g.Sign(g.ReduceSum(a, [2])), 1.0)),
    "gated_row_floor": lambda g, x, m, a: g.Mul(g.mlp(x), g.Floor(g.Sigmoid(g.ReduceSum(a, [2])))),
    "gated_row_round": lambda g, x, m, a: g.Mul(g.mlp(x), g.Round(g.Sigmoid(g.ReduceSum(a, [2])))),
    "gated_row_max": lambda g, x, m, a: g.Mul(g.mlp(x), g.Max(g.ReduceSum(a, [2]), 0.0)),
    "gated_row_min": lambda g, x, m, a: g.Mul(g.mlp(x), g.Min(g.ReduceSum(a, [2]), 0.0)),
    "gated_row_where": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Where(g.Less(g.ReduceSum(a, [2]), 0.3), 0.0, 2.0)
    ),
    "two_gates": lambda g, x, m, a: g.Mul(g.Mul(g.mlp(x), g.Relu(g.ReduceSum(a, [2]))), gate(g, m)),
    "two_gates_or": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Add(g.Relu(g.ReduceSum(a, [2])), gate(g, m))
    ),
    "max_gates": lambda g, x, m, a: g.Mul(g.mlp(x), g.Max(g.Relu(g.ReduceSum(a, [2])), gate(g, m))),
    "min_gates": lambda g, x, m, a: g.Mul(g.mlp(x), g.Min(g.Relu(g.ReduceSum(a, [2])), gate(g, m))),
    "sum_of_gates": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Sub(gate(g, m), g.Relu(g.ReduceSum(a, [2])))
    ),
    "joint": lambda g, x, m, a: g.Add(
        g.Mul(g.mlp(x), gate(g, m)), g.Mul(g.mlp(x, 2), g.Sub(1.0, gate(g, m)))
    ),
    "joint_same": lambda g, x, m, a: (
        lambda h: g.Add(g.Mul(h, gate(g, m)), g.Mul(h, g.Sub(1.0, gate(g, m))))
    )(g.mlp(x)),
    "joint_products": lambda g, x, m, a: g.Mul(sharp(g, x, m), g.Mul(g.mlp(a, 2), gate(g, m))),
    "product_of_sharp": lambda g, x, m, a: g.Mul(sharp(g, x, m), g.mlp(a, 2)),
    "mask_of_mask": lambda g, x, m, a: g.Mul(
        g.Mul(g.mlp(x), gate(g, m)), g.cast(g.Less(g.Mul(g.ReduceSum(a, [2]), gate(g, m)), 0.0), F)
    ),
    "reduce_max": lambda g, x, m, a: g.ReduceMax(sharp(g, x, m), axes=[1]),
    "reduce_min": lambda g, x, m, a: g.ReduceMin(sharp(g, x, m), axes=[1]),
    "reduce_prod": lambda g, x, m, a: g.ReduceProd(sharp(g, x, m), axes=[1]),
    "reduce_max_low": lambda g, x, m, a: g.ReduceMax(g.Where(kept(g, m), g.mlp(x), -1e4), axes=[1]),
    "reduce_max_infinite": lambda g, x, m, a: g.ReduceMax(
        g.Where(kept(g, m), g.mlp(x), -INF), axes=[1]
    ),
    "reduce_min_high": lambda g, x, m, a: g.ReduceMin(g.Where(kept(g, m), g.mlp(x), 1e4), axes=[1]),
    "reduce_max_added": lambda g, x, m, a: g.ReduceMax(g.Add(g.mlp(x), hidden(g, m)), axes=[1]),
    "reduce_lse": lambda g, x, m, a: g.ReduceLogSumExp(g.Add(g.mlp(x), hidden(g, m)), axes=[1]),
    "reduce_log_sum": lambda g, x, m, a: g.ReduceLogSum(g.Abs(sharp(g, x, m)), axes=[1]),
    "reduce_mean": lambda g, x, m, a: g.ReduceMean(sharp(g, x, m), axes=[1]),
    "reduce_l1": lambda g, x, m, a: g.ReduceL1(sharp(g, x, m), axes=[1]),
    "reduce_square": lambda g, x, m, a: g.ReduceSumSquare(sharp(g, x, m), axes=[1]),
    "prod_of_gates": lambda g, x, m, a: g.Mul(g.mlp(x), g.ReduceProd(gate(g, m), axes=[1])),
    "arg_max": lambda g, x, m, a: g.cast(g.ArgMax(sharp(g, x, m), axis=1), F),
    "arg_max_last": lambda g, x, m, a: g.cast(
        g.ArgMax(sharp(g, x, m), axis=1, select_last_index=1), F
    ),
    "arg_min": lambda g, x, m, a: g.cast(g.ArgMin(g.Relu(sharp(g, x, m)), axis=1), F),
    "arg_max_rows": lambda g, x, m, a: g.cast(g.ArgMax(sharp(g, x, m), axis=2), F),
    "hardmax": lambda g, x, m, a: g.Hardmax(sharp(g, x, m), axis=1),
    "top_rows": lambda g, x, m, a: top(g, sharp(g, x, m), 1, 1)[0],
    "top_columns": lambda g, x, m, a: g.cast(top(g, sharp(g, x, m), 3)[1], F),
    "cumsum": lambda g, x, m, a: g.CumSum(sharp(g, x, m), g.const(1, INT)),
    "cumulative_gate": lambda g, x, m, a: g.Mul(g.mlp(x), g.CumSum(gate(g, m), g.const(1, INT))),
    "layer_norm": lambda g, x, m, a: g.LayerNormalization(
        sharp(g, x, m), g.const(np.ones(D)), g.const(np.ones(D)), axis=-1
    ),
    "layer_norm_no_epsilon": lambda g, x, m, a: g.LayerNormalization(
        sharp(g, x, m), g.const(np.ones(D)), axis=-1, epsilon=0.0
    ),
    "norm_by_parts": lambda g, x, m, a: (
        lambda h: g.Div(h, g.Sqrt(g.ReduceMean(g.Mul(h, h), axes=[2])))
    )(sharp(g, x, m)),
    "norm_by_max": lambda g, x, m, a: (lambda h: g.Div(h, g.ReduceMax(g.Abs(h), axes=[2])))(
        sharp(g, x, m)
    ),
    "batch_norm_over_tokens": lambda g, x, m, a: (lambda h: g.Sub(h, g.ReduceMean(h, axes=[1])))(
        sharp(g, x, m)
    ),
    "instance_norm": lambda g, x, m, a: (
        g.InstanceNormalization(sharp(g, x, m), g.const(np.ones(7)), g.const(np.zeros(7)))
        if False
        else g.LpNormalization(sharp(g, x, m), axis=1)
    ),
    "log": lambda g, x, m, a: g.Log(g.Abs(sharp(g, x, m))),
    "reciprocal": lambda g, x, m, a: g.Mul(g.Reciprocal(g.mlp(x)), gate(g, m)),
    "divide_gate": lambda g, x, m, a: g.Mul(g.Div(a, g.mlp(x)), gate(g, m)),
    "sqrt": lambda g, x, m, a: g.Mul(g.Sqrt(g.mlp(x)), gate(g, m)),
    "pow": lambda g, x, m, a: g.Mul(g.Pow(g.Abs(g.mlp(x)), -2.0), gate(g, m)),
    "exp_over": lambda g, x, m, a: g.Mul(g.Exp(g.Mul(g.mlp(x), 200.0)), gate(g, m)),
    "mod": lambda g, x, m, a: g.Mul(g.Mod(a, g.mlp(x), fmod=1), gate(g, m)),
    "gather_by_result": lambda g, x, m, a: g.Gather(
        g.weight("t", normal(9, 5)),
        g.Clip(
            g.cast(g.Mul(g.ReduceSum(sharp(g, x, m), [2], keepdims=0), 3.0), INT),
            g.const(0, INT),
            g.const(8, INT),
        ),
    ),
    "gather_of_dead": lambda g, x, m, a: g.Mul(
        g.Gather(
            g.weight("t", normal(9, D)),
            g.Clip(
                g.cast(g.ReduceSum(g.mlp(x), [2], keepdims=0), INT),
                g.const(0, INT),
                g.const(8, INT),
            ),
        ),
        gate(g, m),
    ),
    "gather_unclipped": lambda g, x, m, a: g.Mul(
        g.Gather(
            g.weight("t", normal(9, D)), g.ArgMax(g.linear(g.mlp(x), D, 9), axis=2, keepdims=0)
        ),
        gate(g, m),
    ),
    "matmul_of_masked": lambda g, x, m, a: g.MatMul(g.Transpose(sharp(g, x, m), perm=[0, 2, 1]), a),
    "matmul_both": lambda g, x, m, a: g.MatMul(
        g.Transpose(sharp(g, x, m), perm=[0, 2, 1]), g.Mul(g.mlp(a, 2), gate(g, m))
    ),
    "matmul_opposite": lambda g, x, m, a: g.MatMul(
        g.Transpose(sharp(g, x, m), perm=[0, 2, 1]), g.Mul(g.mlp(a, 2), g.Sub(1.0, gate(g, m)))
    ),
    "matmul_either": lambda g, x, m, a: g.MatMul(
        g.Transpose(sharp(g, x, m), perm=[0, 2, 1]), g.mlp(a, 2)
    ),
    "einsum_three": lambda g, x, m, a: g.Einsum(
        g.mlp(x), g.Squeeze(gate(g, m), [2]), a, equation="bsd,bs,bsd->bd"
    ),
    "einsum_twice": lambda g, x, m, a: (lambda h: g.Einsum(h, h, equation="bsd,bsd->bs"))(
        sharp(g, x, m)
    ),
    "einsum_same_unmasked": lambda g, x, m, a: (
        lambda h: g.Einsum(h, h, g.Squeeze(gate(g, m), [2]), equation="bsd,btd,bs->bst")
    )(g.mlp(x)),
    "concat_masked": lambda g, x, m, a: g.linear(g.Concat(sharp(g, x, m), a, axis=2), 2 * D, D),
    "concat_tokens": lambda g, x, m, a: g.ReduceMean(
        g.Concat(sharp(g, x, m), g.mlp(a, 2), axis=1), axes=[1]
    ),
    "rolled": lambda g, x, m, a: g.Mul(
        g.Concat(
            g.Slice(g.mlp(x), [-1], [1 << 40], [1]), g.Slice(g.mlp(x), [0], [-1], [1]), axis=1
        ),
        gate(g, m),
    ),
    "shifted_gate": lambda g, x, m, a: g.Mul(
        g.mlp(x),
        g.Concat(
            g.Slice(gate(g, m), [-1], [1 << 40], [1]), g.Slice(gate(g, m), [0], [-1], [1]), axis=1
        ),
    ),
    "reversed_gate": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Slice(gate(g, m), [-1], [-(1 << 40)], [1], [-1])
    ),
    "any_gate": lambda g, x, m, a: g.Mul(g.mlp(x), g.ReduceMax(gate(g, m), axes=[1])),
    "all_gate": lambda g, x, m, a: g.Mul(g.mlp(x), g.ReduceMin(gate(g, m), axes=[1])),
    "gate_of_other_batch": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Gather(gate(g, m), g.const([0], INT), axis=0)
    ),
    "gate_sorted": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.several("TopK", 2, gate(g, m), g.Unsqueeze(g.size(m, 1), [0]), axis=1)[0]
    ),
    "gate_cast_bool": lambda g, x, m, a: g.Mul(g.mlp(x), g.cast(g.cast(g.ReduceSum(a, [2]), B), F)),
    "gate_of_integers": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.cast(g.cast(g.ReduceSum(a, [2]), np.int32), F)
    ),
    "gate_small_cast": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.cast(g.cast(g.Mul(g.ReduceSum(a, [2]), 1e-8), np.float16), F)
    ),
    "dropout": lambda g, x, m, a: g.Mul(g.Dropout(g.mlp(x)), gate(g, m)),
    "nan_made": lambda g, x, m, a: g.Mul(g.mlp(g.Log(x)), gate(g, m)),
    "nan_beside": lambda g, x, m, a: g.Mul(g.mlp(x), g.Mul(gate(g, m), g.Log(g.ReduceSum(a, [2])))),
    "infinite_beside": lambda g, x, m, a: g.Mul(
        g.mlp(x), g.Mul(gate(g, m), g.Reciprocal(g.Mul(a, 0.0)))
    ),
    "not_nan": lambda g, x, m, a: (lambda h: g.Where(g.IsNaN(h), 0.0, h))(
        g.Mul(g.Log(g.mlp(x)), gate(g, m))
    ),
    "exit_twice": lambda g, x, m, a: (lambda h: g.Add(g.ReduceSum(h, [1]), g.Mul(h, 2.0)))(
        sharp(g, x, m)
    ),
}
for _name, _make in MASKED.items():
    DEADNESS.add(f"masked.{_name}", lambda f=_make: _probe(f))


def _experts(kind: str, count: int = 4, k: int = 2) -> Probe:
    """Every expert runs on every token, its gate is 0 for most."""
    g = Net(17)
    x = g.input("x", F, ("t", D))
    scores = g.input("scores", F, ("t", count))
    values, places = g.several("TopK", 2, scores, [k], axis=1)
    p = g.Softmax(values, axis=1)
    base = g.Mul(scores, 0.0)
    if kind == "scatter":
        gates = g.ScatterElements(base, places, p, axis=1)
    elif kind == "scatter_add":
        twice = g.Concat(places, g.Slice(places, [0], [1], [1]), axis=1)
        gates = g.ScatterElements(
            base,
            twice,
            g.Concat(p, g.Neg(g.Slice(p, [0], [1], [1])), axis=1),
            axis=1,
            reduction="add",
        )
    elif kind == "scatter_max":
        gates = g.ScatterElements(base, places, g.Sub(p, 0.5), axis=1, reduction="max")
    elif kind == "scatter_mul":
        gates = g.ScatterElements(g.Add(base, 1.0), places, p, axis=1, reduction="mul")
    elif kind == "one_hot":
        gates = g.ReduceSum(
            g.Mul(
                g.OneHot(places, g.const([count], INT), g.const([0.0, 1.0]), axis=-1),
                g.Unsqueeze(p, [2]),
            ),
            [1],
            keepdims=0,
        )
    elif kind == "one_hot_minus":
        gates = g.ReduceSum(
            g.Mul(
                g.OneHot(places, g.const([count], INT), g.const([-0.0, 1.0]), axis=-1),
                g.Unsqueeze(p, [2]),
            ),
            [1],
            keepdims=0,
        )
    elif kind == "one_hot_other":
        gates = g.ReduceSum(
            g.Mul(
                g.OneHot(
                    g.Sub(places, g.const(2, INT)),
                    g.const([count], INT),
                    g.const([0.0, 1.0]),
                    axis=-1,
                ),
                g.Unsqueeze(p, [2]),
            ),
            [1],
            keepdims=0,
        )
    elif kind == "threshold":
        gates = g.Where(
            g.GreaterOrEqual(scores, g.Slice(values, [k - 1], [k], [1])),
            g.Softmax(scores, axis=1),
            0.0,
        )
    elif kind == "softmax_low":
        low = g.Where(g.GreaterOrEqual(scores, g.Slice(values, [k - 1], [k], [1])), scores, -1e4)
        gates = g.Softmax(low, axis=1)
    elif kind == "softmax_infinite":
        low = g.Where(g.GreaterOrEqual(scores, g.Slice(values, [k - 1], [k], [1])), scores, -INF)
        gates = g.Softmax(low, axis=1)
    else:
        gates = g.Relu(scores)
    total = None
    for e in range(count):
        y = g.Mul(g.mlp(x, 10 * e), g.Slice(gates, [e], [e + 1], [1]))
        total = y if total is None else g.Add(total, y)
    g.out(str(total))
    feeds: list[Feed] = []
    for n, t in enumerate((9, 1, 0, 6)):
        drawn = rng_of(n).choice(
            np.asarray([0, 1, -1, 2, -INF if n == 3 and kind == "threshold" else 0.5], F),
            (t, count),
        )
        feeds.append({"x": normal(t, D, seed=n), "scores": drawn})
    return Probe(g.model(), feeds)


for _kind in (
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_mul",
    "one_hot",
    "one_hot_minus",
    "one_hot_other",
    "threshold",
    "softmax_low",
    "softmax_infinite",
    "relu",
):
    DEADNESS.add(f"experts.{_kind}", lambda k=_kind: _experts(k))


def _indexed(kind: str) -> Probe:
    """Tokens picked by NonZero, worked on, and put back."""
    g = Net(17)
    x, m = g.input("x", F, ("t", D)), g.input("mask", F if kind == "float" else INT, ("t",))
    places = g.Transpose(g.NonZero(m))
    h = g.mlp(x)
    updates = g.GatherND(h, places)
    if kind == "duplicates":
        y = g.ScatterND(
            g.Mul(x, 0.0),
            g.Concat(places, places, axis=0),
            g.Concat(updates, g.Mul(updates, 2.0), axis=0),
            reduction="add",
        )
    elif kind == "moved":
        y = g.ScatterND(g.Mul(x, 0.0), g.Mod(g.Add(places, g.const(1, INT)), g.size(x, 0)), updates)
    elif kind == "onto":
        y = g.ScatterND(h, places, g.Mul(updates, 2.0))
    elif kind == "negative":
        y = g.ScatterND(g.Mul(x, 0.0), g.Sub(places, g.size(x, 0)), updates)
    elif kind == "onto_input":
        y = g.ScatterND(x, places, updates)
    elif kind == "narrow":
        y = g.ScatterND(
            g.Mul(x, 0.0), g.cast(g.cast(g.Add(places, g.const(256, INT)), np.uint8), INT), updates
        )
    else:
        y = g.ScatterND(g.Mul(x, 0.0), places, updates)
    g.out(y)
    feeds: list[Feed] = []
    for n, t in enumerate((9, 1, 5, 7)):
        choices = (0, 1, -1, 2) if kind != "float" else (0.0, -0.0, 1.0, 1e-40, np.nan)
        feeds.append(
            {
                "x": normal(t, D, seed=n),
                "mask": rng_of(n).choice(np.asarray(choices, F if kind == "float" else INT), (t,)),
            }
        )
    return Probe(g.model(), feeds)


for _kind in ("plain", "duplicates", "moved", "onto", "negative", "onto_input", "float", "narrow"):
    DEADNESS.add(f"indexed.{_kind}", lambda k=_kind: _indexed(k))
