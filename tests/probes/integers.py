"""Integers that wrap around or lose bits, in positions and in masks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.probes.build import D, Feed, Net, Probe, Table, normal, rng_of
from tests.probes.masks import attention, outer, soft
from tests.probes.softmax import positions

INTEGERS = Table("integers")
SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
SIZES = ((2, 7), (1, 1), (2, 23))


def _placed(condition: Callable[[Net, str, str], str], opset: int = 17, far: int = 0) -> Probe:
    """Work that positions alone say is wanted: Where(condition(positions), x, mlp(x)).

    Args:
        condition: Bool [s] from int64 positions [s] and x.
        opset: Version of the operator set.
        far: A longer sequence besides.
    """
    g = Net(opset)
    x = g.input("x", np.float32, ("b", "s", D))
    holds = condition(g, positions(g, x), x)
    z = g.input("z", np.float32, ("b", "s", D))
    g.out(g.Where(g.Unsqueeze(holds, [1]), x, g.mlp(z)))
    sizes = [*SIZES, *([(1, far)] if far else [])]
    feeds = [{"x": normal(b, s, D, seed=s), "z": normal(b, s, D, seed=s + 1)} for b, s in sizes]
    return Probe(g.model(), feeds)


def c(g: Net, n: Any, dtype: Any = np.int64) -> str:
    """A scalar of a type."""
    return g.const(np.asarray(n).astype(dtype), dtype)


def as_int(g: Net, p: str, dtype: Any) -> str:
    """Positions in another type."""
    return g.cast(p, dtype)


def limit(dtype: Any) -> tuple[int, int]:
    """The least and the greatest number of a type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


for _t in SIGNED:
    _name, _least, _most = np.dtype(_t).name, *limit(_t)
    _step = _most // 4 + 1
    _add = {
        f"{_name}.mul": lambda g, p, x, t=_t, n=_step: g.Greater(
            g.Mul(as_int(g, p, t), c(g, n, t)), c(g, 5, t)
        ),
        f"{_name}.add_most": lambda g, p, x, t=_t, n=_most: g.Greater(
            g.Add(as_int(g, p, t), c(g, n - 2, t)), c(g, 0, t)
        ),
        f"{_name}.sub_least": lambda g, p, x, t=_t, n=_least: g.Less(
            g.Sub(c(g, n + 2, t), as_int(g, p, t)), c(g, 0, t)
        ),
        f"{_name}.neg_least": lambda g, p, x, t=_t, n=_least: g.Greater(
            g.Neg(g.Add(as_int(g, p, t), c(g, n, t))), c(g, 0, t)
        ),
        f"{_name}.abs_least": lambda g, p, x, t=_t, n=_least: g.Less(
            g.Abs(g.Add(as_int(g, p, t), c(g, n, t))), c(g, 5, t)
        ),
        f"{_name}.range": lambda g, p, x, t=_t, n=_most: g.Greater(
            g.Add(g.Mul(as_int(g, p, t), c(g, n // 8, t)), c(g, n // 2, t)), c(g, 0, t)
        ),
        f"{_name}.difference": lambda g, p, x, t=_t, n=_most: g.Greater(
            g.Sub(g.Mul(as_int(g, p, t), c(g, n // 4, t)), c(g, n // 2, t)), c(g, 7, t)
        ),
        f"{_name}.equal": lambda g, p, x, t=_t, n=_step: g.Equal(
            g.Mul(g.Mul(as_int(g, p, t), c(g, n, t)), c(g, 2, t)), c(g, 0, t)
        ),
        f"{_name}.max": lambda g, p, x, t=_t, n=_step: g.Greater(
            g.Max(g.Mul(as_int(g, p, t), c(g, n, t)), c(g, 1, t)), c(g, 3, t)
        ),
        f"{_name}.square": lambda g, p, x, t=_t: g.Greater(
            g.Mul(g.Mul(as_int(g, p, t), as_int(g, p, t)), c(g, limit(t)[1] // 30, t)), c(g, 3, t)
        ),
        f"{_name}.double_many": lambda g, p, x, t=_t: g.GreaterOrEqual(
            _doubled(g, as_int(g, p, t), np.dtype(t).itemsize * 8 - 2), c(g, 0, t)
        ),
    }
    for _key, _condition in _add.items():
        if _t in (np.int32, np.int64) or not any(w in _key for w in ("max", "neg", "abs")):
            INTEGERS.add(f"positions.{_key}", lambda f=_condition: _placed(f))


def _doubled(g: Net, x: str, times: int) -> str:
    for _ in range(times):
        x = g.Add(x, x)
    return x


def cond(g: Net, x: str) -> str:
    """A number as a condition."""
    return g.cast(x, np.bool_)


POSITIONS: dict[str, Callable[[Net, str, str], str]] = {
    "cast_int8": lambda g, p, x: g.Less(g.cast(g.Mul(p, c(g, 40)), np.int8), c(g, 50, np.int8)),
    "cast_int16": lambda g, p, x: g.Less(g.cast(g.Mul(p, c(g, 9000)), np.int16), c(g, 5, np.int16)),
    "cast_int32": lambda g, p, x: g.Less(
        g.cast(g.Mul(p, c(g, 1 << 30)), np.int32), c(g, 5, np.int32)
    ),
    "cast_int8_back": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Mul(p, c(g, 40)), np.int8), np.int64), c(g, 50)
    ),
    "cast_int32_back": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Mul(p, c(g, 1 << 30)), np.int32), np.int64), c(g, 50)
    ),
    "cast_uint8": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Sub(p, c(g, 3)), np.uint8), np.int64), c(g, 50)
    ),
    "cast_uint32": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Sub(p, c(g, 3)), np.uint32), np.int64), c(g, 50)
    ),
    "cast_uint64": lambda g, p, x: g.Less(
        g.cast(g.Sub(p, c(g, 3)), np.uint64), c(g, 50, np.uint64)
    ),
    "cast_uint64_back": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Sub(p, c(g, 3)), np.uint64), np.int64), c(g, 0)
    ),
    "uint8_sub": lambda g, p, x: g.Less(
        g.cast(g.Sub(g.cast(p, np.uint8), c(g, 3, np.uint8)), np.int32), c(g, 50, np.int32)
    ),
    "uint32_sub": lambda g, p, x: g.Less(
        g.Sub(g.cast(p, np.uint32), c(g, 3, np.uint32)), c(g, 5, np.uint32)
    ),
    "uint64_sub": lambda g, p, x: g.Greater(
        g.Sub(g.cast(p, np.uint64), c(g, 3, np.uint64)), c(g, 5, np.uint64)
    ),
    "uint8_mul": lambda g, p, x: g.Less(
        g.cast(g.Mul(g.cast(p, np.int32), c(g, 100, np.int32)), np.uint8), c(g, 90, np.uint8)
    ),
    "float_far": lambda g, p, x: g.Equal(
        g.Add(g.cast(p, np.float32), c(g, 1 << 24, np.float32)), c(g, 1 << 24, np.float32)
    ),
    "float_far_less": lambda g, p, x: g.Less(
        g.Add(g.cast(p, np.float32), c(g, 1 << 24, np.float32)), c(g, (1 << 24) + 2, np.float32)
    ),
    "float_far_cast": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Add(p, c(g, 1 << 24)), np.float32), np.int64), c(g, (1 << 24) + 2)
    ),
    "float_very_far": lambda g, p, x: g.Greater(
        g.cast(g.Add(p, c(g, 1 << 40)), np.float32), c(g, 1 << 40, np.float32)
    ),
    "float_back": lambda g, p, x: g.Greater(
        g.Sub(g.cast(g.cast(g.Add(p, c(g, 1 << 30)), np.float32), np.int64), c(g, 1 << 30)), c(g, 2)
    ),
    "float_int32_over": lambda g, p, x: g.Less(
        g.cast(g.Mul(g.cast(p, np.float32), c(g, 1e9, np.float32)), np.int64), c(g, 2500000000)
    ),
    "half_far": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Add(p, c(g, 2048)), np.float16), np.int64), c(g, 2050)
    ),
    "half_over": lambda g, p, x: g.Less(
        g.cast(g.cast(g.Mul(p, c(g, 20000)), np.float16), np.float32), c(g, 70000, np.float32)
    ),
    "double_far": lambda g, p, x: g.Greater(
        g.cast(g.Add(p, c(g, 1 << 53)), np.float64), c(g, 1 << 53, np.float64)
    ),
    "divide": lambda g, p, x: g.Equal(g.Div(g.Sub(p, c(g, 3)), c(g, 2)), c(g, 0)),
    "divide_minus": lambda g, p, x: g.Equal(g.Div(g.Sub(p, c(g, 3)), c(g, -2)), c(g, 0)),
    "divide_less": lambda g, p, x: g.Less(g.Div(g.Sub(p, c(g, 5)), c(g, 4)), c(g, 0)),
    "divide_multiply": lambda g, p, x: g.Equal(g.Mul(g.Div(p, c(g, 3)), c(g, 3)), p),
    "mod": lambda g, p, x: g.Equal(g.Mod(g.Sub(p, c(g, 4)), c(g, 3)), c(g, 1)),
    "mod_minus": lambda g, p, x: g.Less(g.Mod(p, c(g, -3)), c(g, 0)),
    "fmod": lambda g, p, x: g.Less(g.Mod(g.Sub(p, c(g, 4)), c(g, 3), fmod=1), c(g, 0)),
    "shift_left": lambda g, p, x: g.Less(
        g.BitShift(g.cast(p, np.uint8), c(g, 6, np.uint8), direction="LEFT"), c(g, 65, np.uint8)
    ),
    "shift_right": lambda g, p, x: g.Equal(
        g.BitShift(g.cast(p, np.uint32), c(g, 1, np.uint32), direction="RIGHT"), c(g, 1, np.uint32)
    ),
    "shift_over": lambda g, p, x: g.Less(
        g.BitShift(g.cast(p, np.uint32), c(g, 30, np.uint32), direction="LEFT"), c(g, 5, np.uint32)
    ),
    "abs_window": lambda g, p, x: g.Less(g.Abs(g.Sub(p, c(g, 3))), c(g, 2)),
    "abs_window_far": lambda g, p, x: g.LessOrEqual(
        g.Abs(g.Add(g.cast(p, np.int32), c(g, -(1 << 31), np.int32))), c(g, 2, np.int32)
    ),
    "range_far": lambda g, p, x: g.Greater(
        g.cast(
            g.Range(c(g, (1 << 31) - 3), g.Add(c(g, (1 << 31) - 3), g.size(x, 1)), c(g, 1)),
            np.int32,
        ),
        c(g, 0, np.int32),
    ),
    "range_int32": lambda g, p, x: g.Greater(
        g.Mul(positions(g, x, dtype=np.int32), c(g, 1 << 30, np.int32)), c(g, -1, np.int32)
    ),
    "range_step": lambda g, p, x: g.Greater(
        g.Range(c(g, 0), g.Mul(g.size(x, 1), c(g, 3)), c(g, 3)), c(g, 7)
    ),
    "range_down": lambda g, p, x: g.Greater(g.Range(g.size(x, 1), c(g, 0), c(g, -1)), c(g, 2)),
    "range_float": lambda g, p, x: g.Less(
        g.Slice(
            g.Range(
                c(g, 0, np.float32),
                g.Add(g.cast(g.size(x, 1), np.float32), 1.0),
                c(g, 1, np.float32),
            ),
            [1],
            [1 << 30],
        ),
        c(g, 3, np.float32),
    ),
    "range_from_size": lambda g, p, x: g.Less(
        g.Range(g.Neg(g.size(x, 1)), c(g, 0), c(g, 1)), c(g, -2)
    ),
    "cumulative": lambda g, p, x: g.Less(g.CumSum(p, c(g, 0)), c(g, 7)),
    "cumulative_wrap": lambda g, p, x: g.Less(
        g.CumSum(g.Mul(g.cast(p, np.int32), c(g, 1 << 29, np.int32)), c(g, 0)), c(g, 7, np.int32)
    ),
    "product": lambda g, p, x: g.Less(g.Mul(p, p), c(g, 10)),
    "by_size": lambda g, p, x: g.Less(g.Mul(p, c(g, 2)), g.size(x, 1)),
    "by_size_far": lambda g, p, x: g.Less(
        g.Mul(p, c(g, 1 << 62)), g.Mul(g.size(x, 1), c(g, 1 << 60))
    ),
    "table": lambda g, p, x: g.Less(
        g.Slice(g.const(np.arange(200), np.uint8), [0], g.Unsqueeze(g.size(x, 1), [0])),
        c(g, 3, np.uint8),
    ),
    "table_int8": lambda g, p, x: g.Less(
        g.Mul(
            g.cast(
                g.Slice(g.const(np.arange(100), np.int8), [0], g.Unsqueeze(g.size(x, 1), [0])),
                np.int16,
            ),
            c(g, 9000, np.int16),
        ),
        c(g, 3, np.int16),
    ),
    "table_wraps": lambda g, p, x: g.Greater(
        g.Slice(
            g.const(((np.arange(40) * 100 + 128) % 256 - 128).astype(np.int8), np.int8),
            [0],
            g.Unsqueeze(g.size(x, 1), [0]),
        ),
        c(g, 0, np.int8),
    ),
    "neg_bool": lambda g, p, x: cond(g, g.Sub(p, c(g, 3))),
    "not_bool": lambda g, p, x: g.Not(cond(g, g.Sub(p, c(g, 3)))),
    "bool_wraps": lambda g, p, x: cond(g, g.Mul(g.cast(p, np.int32), c(g, 1 << 31, np.int32))),
    "bool_narrow": lambda g, p, x: cond(g, g.cast(g.Mul(p, c(g, 128)), np.uint8)),
    "min": lambda g, p, x: g.Greater(g.Min(g.Mul(p, c(g, 1 << 62)), c(g, 5)), c(g, 3)),
    "clip": lambda g, p, x: g.Greater(g.Clip(g.Mul(p, c(g, 1 << 62)), c(g, 0), c(g, 5)), c(g, 3)),
    "float_sub": lambda g, p, x: g.Less(g.Sub(g.cast(p, np.float32), 2.5), 0.0),
    "float_product": lambda g, p, x: g.Less(
        g.Mul(g.cast(p, np.float32), c(g, 0.1, np.float32)), c(g, 0.3, np.float32)
    ),
    "relative": lambda g, p, x: g.Squeeze(
        g.Slice(
            g.Less(
                g.Sub(
                    g.Unsqueeze(g.cast(g.Mul(p, c(g, 1 << 28)), np.int32), [0]),
                    g.Unsqueeze(g.cast(g.Mul(p, c(g, 1 << 30)), np.int32), [1]),
                ),
                c(g, 1, np.int32),
            ),
            [0],
            [1],
            [0],
        ),
        [0],
    ),
}
for _name, _condition in POSITIONS.items():
    INTEGERS.add(f"positions.{_name}", lambda f=_condition: _placed(f))


def _masked(condition: Callable[[Net, str], str], dtype: Any, choices: tuple[int, ...]) -> Probe:
    """A factor of work, computed from integers [b, s] of some type."""
    g = Net(18)
    x, m = g.input("x", np.float32, ("b", "s", D)), g.input("mask", dtype, ("b", "s"))
    factor = condition(g, m)
    g.out(g.Mul(g.mlp(x), g.Unsqueeze(g.cast(factor, np.float32), [2])))
    feeds: list[Feed] = []
    for n in range(3):
        drawn = rng_of(n).choice(np.asarray(choices, dtype), (3, 9))
        feeds.append({"x": normal(3, 9, D, seed=n), "mask": drawn})
    return Probe(g.model(), feeds)


I32, I64, I8, U8, U64 = np.int32, np.int64, np.int8, np.uint8, np.uint64
FACTORS: dict[str, tuple[Callable[[Net, str], str], Any, tuple[int, ...]]] = {
    "int32_times": (lambda g, m: g.Mul(m, c(g, 1 << 31, I32)), I32, (0, 1, 2, 3)),
    "int32_times_even": (lambda g, m: g.Mul(m, c(g, 1 << 16, I32)), I32, (0, 1, 65536)),
    "int64_times": (lambda g, m: g.Mul(m, c(g, 1 << 62)), I64, (0, 1, 2, 4)),
    "int64_square": (lambda g, m: g.Mul(m, m), I64, (0, 1, 1 << 32)),
    "int8_add": (lambda g, m: g.Add(m, c(g, -128, I8)), I8, (0, 1, -128, 127)),
    "int32_add_self": (lambda g, m: g.Add(m, m), I32, (0, 1, -(1 << 31))),
    "uint8_sub": (lambda g, m: g.Sub(m, c(g, 1, U8)), U8, (0, 1, 2, 255)),
    "uint8_cast": (lambda g, m: g.cast(m, U8), I64, (0, 1, 256, 512)),
    "int8_cast": (lambda g, m: g.cast(m, I8), I32, (0, 1, 256, 128)),
    "int32_cast": (lambda g, m: g.cast(m, I32), I64, (0, 1, 1 << 32, 1 << 31)),
    "bool_of_narrow": (lambda g, m: cond(g, g.cast(m, U8)), I64, (0, 1, 256, 255)),
    "bool": (lambda g, m: cond(g, m), I64, (0, 1, 2, -1)),
    "equal_1": (lambda g, m: g.Equal(m, c(g, 1)), I64, (0, 1, 2, -1)),
    "greater_0": (lambda g, m: g.Greater(m, c(g, 0)), I64, (0, 1, 2, -1)),
    "less_1": (lambda g, m: g.Less(m, c(g, 1)), I64, (0, 1, 2, -1)),
    "abs": (lambda g, m: g.Greater(g.Abs(m), c(g, 0, I32)), I32, (0, 1, -(1 << 31), -1)),
    "neg": (lambda g, m: g.Less(g.Neg(m), c(g, 0, I32)), I32, (0, 1, -(1 << 31), -1)),
    "shift": (lambda g, m: g.BitShift(m, c(g, 7, U8), direction="LEFT"), U8, (0, 1, 2, 3)),
    "shift_right": (lambda g, m: g.BitShift(m, c(g, 1, U8), direction="RIGHT"), U8, (0, 1, 2, 3)),
    "div": (lambda g, m: g.Div(m, c(g, 2)), I64, (0, 1, 2, -1, -2)),
    "div_minus": (lambda g, m: g.Div(m, c(g, -2)), I64, (0, 1, 2, -1, -2)),
    "mod": (lambda g, m: g.Mod(m, c(g, 2)), I64, (0, 1, 2, -1, -2)),
    "fmod": (lambda g, m: g.Mod(m, c(g, 2), fmod=1), I64, (0, 1, 2, -1, -2)),
    "bit_and": (lambda g, m: g.BitwiseAnd(m, c(g, 2, I32)), I32, (0, 1, 2, 3)),
    "bit_or": (lambda g, m: g.BitwiseOr(m, c(g, 0, I32)), I32, (0, 1, 2, 3)),
    "bit_xor": (lambda g, m: g.BitwiseXor(m, c(g, 1, I32)), I32, (0, 1, 2, 3)),
    "bit_not": (lambda g, m: g.BitwiseNot(m), I32, (0, 1, -1, 3)),
    "one_minus": (lambda g, m: g.Sub(c(g, 1), m), I64, (0, 1, 2, -1)),
    "min_1": (lambda g, m: g.Min(m, c(g, 1)), I64, (0, 1, 2, -1)),
    "clip": (lambda g, m: g.Clip(m, c(g, 0), c(g, 1)), I64, (0, 1, 2, -1)),
    "float_big": (
        lambda g, m: g.Sub(g.cast(m, np.float32), c(g, 1 << 24, np.float32)),
        I64,
        (0, 1 << 24, (1 << 24) + 1),
    ),
    "float_equal": (
        lambda g, m: g.Equal(g.cast(m, np.float32), c(g, 1 << 24, np.float32)),
        I64,
        (1 << 24, (1 << 24) + 1, 0),
    ),
    "float_half": (lambda g, m: g.cast(g.Mul(g.cast(m, np.float32), 0.5), I64), I64, (0, 1, 2, 3)),
    "half_tiny": (
        lambda g, m: g.cast(g.Mul(g.cast(m, np.float32), 1e-8), np.float16),
        I64,
        (0, 1, 2, 3),
    ),
    "uint64_large": (lambda g, m: g.Greater(m, c(g, 0, U64)), U64, (0, 1, (1 << 64) - 1)),
    "uint64_cast": (lambda g, m: g.Greater(g.cast(m, I64), c(g, 0)), U64, (0, 1, (1 << 64) - 1)),
    "sum_cancels": (lambda g, m: g.Add(m, g.Neg(m)), I64, (0, 1, 2)),
    "cumulative": (lambda g, m: g.Mul(g.CumSum(m, c(g, 1)), m), I64, (0, 1)),
    "cumulative_less": (lambda g, m: g.Less(g.CumSum(m, c(g, 1)), c(g, 3)), I64, (0, 1)),
    "cumulative_positions": (
        lambda g, m: g.Add(g.Mul(g.CumSum(m, c(g, 1)), m), c(g, 0)),
        I64,
        (0, 1, 0, 0),
    ),
    "position_ids": (
        lambda g, m: g.Where(g.Equal(m, c(g, 0)), c(g, 1), g.Sub(g.CumSum(m, c(g, 1)), c(g, 1))),
        I64,
        (0, 1),
    ),
    "sum_row": (lambda g, m: g.Mul(g.ReduceSum(m, [1]), m), I64, (0, 1, -1)),
    "sum_row_wraps": (
        lambda g, m: g.Greater(g.ReduceSum(g.Mul(m, c(g, 1 << 29, I32)), [1]), c(g, 0, I32)),
        I32,
        (0, 1),
    ),
    "max_row": (lambda g, m: g.Mul(g.ReduceMax(m, [1]), m), I64, (0, 1, -1)),
    "product_row": (lambda g, m: g.ReduceProd(m, [1]), I64, (1, 1, 1, 1, 1, 0, 2)),
}
for _name, (_f, _dtype, _choices) in FACTORS.items():
    INTEGERS.add(f"factor.{_name}", lambda f=_f, d=_dtype, n=_choices: _masked(f, d, n))


def _attended(condition: Callable[[Net, str, str], str]) -> Probe:
    """A causal mask [s, s] made from rows [s, 1] and columns [1, s] of positions, under a mask."""
    g = Net(17)
    x = g.input("x", np.float32, ("b", "s", D))
    memory, m = g.input("memory", np.float32, ("b", "s", D)), g.input("mask", np.int64, ("b", "s"))
    rows, columns = g.Unsqueeze(positions(g, x), [1]), g.Unsqueeze(positions(g, memory), [0])
    seen = condition(g, rows, columns)

    def score(g: Net, raw: str) -> str:
        hidden = g.Where(seen, 0.0, -1e4)
        return soft(
            g, g.Add(g.Add(raw, hidden), g.Mul(g.Sub(1.0, g.cast(outer(g, m), np.float32)), -1e4))
        )

    g.out(attention(g, x, memory, score))
    feeds = [
        {
            "x": normal(2, q, D),
            "memory": normal(2, k, D),
            "mask": (rng_of(q, k).random((2, k)) < 0.5).astype(np.int64),
        }
        for q, k in ((5, 5), (7, 7), (13, 13), (1, 1))
    ]
    return Probe(g.model(), feeds)


CAUSAL: dict[str, Callable[[Net, str, str], str]] = {
    "plain": lambda g, r, k: g.LessOrEqual(k, r),
    "int32_far": lambda g, r, k: g.LessOrEqual(
        g.Mul(g.cast(k, I32), c(g, 1 << 29, I32)), g.Mul(g.cast(r, I32), c(g, 1 << 29, I32))
    ),
    "int32_sub": lambda g, r, k: g.GreaterOrEqual(
        g.Mul(g.Sub(g.cast(r, I32), g.cast(k, I32)), c(g, 1 << 29, I32)), c(g, 0, I32)
    ),
    "uint_sub": lambda g, r, k: g.Less(
        g.Sub(g.cast(r, np.uint32), g.cast(k, np.uint32)), c(g, 1 << 20, np.uint32)
    ),
    "float_far": lambda g, r, k: g.LessOrEqual(
        g.Add(g.cast(k, np.float32), c(g, 1 << 25, np.float32)),
        g.Add(g.cast(r, np.float32), c(g, 1 << 25, np.float32)),
    ),
    "half": lambda g, r, k: g.LessOrEqual(
        g.cast(g.cast(g.Add(k, c(g, 4096)), np.float16), np.float32),
        g.cast(g.cast(g.Add(r, c(g, 4096)), np.float16), np.float32),
    ),
    "blocks": lambda g, r, k: g.LessOrEqual(g.Div(k, c(g, 3)), g.Div(r, c(g, 3))),
    "blocks_before": lambda g, r, k: g.LessOrEqual(
        g.Div(g.Sub(k, c(g, 4)), c(g, 3)), g.Div(g.Sub(r, c(g, 4)), c(g, 3))
    ),
    "strided": lambda g, r, k: g.Equal(g.Mod(g.Sub(r, k), c(g, 2)), c(g, 0)),
    "strictly": lambda g, r, k: g.Less(k, r),
    "after": lambda g, r, k: g.Greater(k, r),
    "int8": lambda g, r, k: g.LessOrEqual(
        g.cast(g.Mul(k, c(g, 30)), I8), g.cast(g.Mul(r, c(g, 30)), I8)
    ),
}
for _name, _seen in CAUSAL.items():
    INTEGERS.add(f"causal.{_name}", lambda f=_seen: _attended(f))
