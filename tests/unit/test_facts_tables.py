"""What is proven of small models that are written down: fill facts and dead regions, exactly.

Each is audited in ONNX Runtime as well.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from pitc.ir.constant import FINITE, NEG, NZ, TOP, ZN, Constant, Range
from pitc.ir.expr import Reducer
from pitc.passes.facts.fill import _survives
from tests.exhaustive_values import stands_for
from tests.fact_check import proven
from tests.fact_texts import analysed_text, dead_of, fills_of, text_model

OFF, ON = "flag[d0, d1, d2] == 0", "flag[d0, d1, d2] != 0"
COLUMN, NO_COLUMN = "all d-1: flag[d0, d-1, d1] == 0", "all d-1: flag[d0, d-1, d1] != 0"
HIDE = "t = Tanh (mask) s = Where (flag, t, nought)"  # s is 0 where the flag is off
ONES = "c = Cast <to = 1> (flag)"

FILLS: dict[str, dict[str, list[str]]] = {
    # products: of inputs nothing is known but what is tested
    "p = MatMul (mask, other)": {"p": []},
    f"{ONES} t = Tanh (mask) p = MatMul (c, t)": {
        "p": ["0.0 where all d-1: flag[d0, d1, d-1] == 0"]
    },
    f"{ONES} t = Tanh (mask) p = MatMul (t, c)": {
        "p": ["0.0 where all d-1: flag[d0, d-1, d2] == 0"]
    },
    f"{ONES} t = Tanh (mask) l = Log (t) p = MatMul (c, l)": {"p": []},
    f"{ONES} p = MatMul (c, c)": {
        "p": [
            "0.0 where all d-1: flag[d0, d-1, d2] == 0",
            "0.0 where all d-1: flag[d0, d1, d-1] == 0",
        ]
    },
    f'{ONES} t = Tanh (mask) p = Einsum <equation = "abc,abc->abc"> (c, t)': {
        "p": [f"0.0 where {OFF}"]
    },
    f"{ONES} t = Tanh (mask) p = Mul (c, t)": {"p": [f"0 where {OFF}"]},
    f"{ONES} l = Log (mask) p = Mul (c, l)": {"p": []},
    # quotients: 0 by what is known not to be 0
    f"{HIDE} p = Div (s, other)": {"p": [f"Special.ZN where {OFF}"]},
    f"{HIDE} p = Div (s, two)": {"p": [f"0.0 where {OFF}"]},
    f"{HIDE} m = Mul (other, other) e = Add (m, two) p = Div (s, e)": {"p": [f"0 where {OFF}"]},
    # sums, extremes and means over an axis that has elements
    f"{ONES} p = ReduceSum <keepdims = 0> (c, axis)": {
        "p": [f"0.0 where {COLUMN}", "Special.NZ where some d-101: flag[d0, d-101, d1] != 0"]
    },
    f"{ONES} p = ReduceMax <keepdims = 0> (c, axis)": {
        "p": [f"0.0 where {COLUMN}", "1.0 where some d-101: flag[d0, d-101, d1] != 0"]
    },
    f"{ONES} p = ReduceMean <keepdims = 0> (c, axis)": {"p": [f"0.0 where {COLUMN}"]},
    f"{ONES} p = ReduceProd <keepdims = 0> (c, axis)": {"p": []},
    "c = Where (flag, low, mask) p = ReduceMin <keepdims = 0> (c, axis)": {
        "p": [f"-10000.0 where {NO_COLUMN}"]
    },
    f"{ONES} p = ReduceSum <keepdims = 0> (c, nothing)": {
        "p": [
            "0.0 where all d-1: all d-2: all d-3: flag[d-1, d-2, d-3] == 0",
            "Special.NZ where some d-101: some d-102: some d-103: flag[d-101, d-102, d-103] != 0",
        ]
    },
    # of zeros that come one by one nothing is said of whole lines
    "t = Tanh (mask) r = Relu (t) c = Mul (r, other) p = ReduceSum (r, axis)": {"p": []},
    # bools are 0 or 1, tested themselves where nothing else tells
    "p = Not (flag)": {"p": [f"1 where {OFF}", f"0 where {ON}"]},
    "c = Cast <to = 9> (mask) p = And (c, flag)": {
        "c": ["0 where c[d0, d1, d2] == 0", "1 where c[d0, d1, d2] != 0"],
        "p": [
            "0 where c[d0, d1, d2] == 0",
            f"0 where {OFF}",
            f"1 where c[d0, d1, d2] != 0 and {ON}",
        ],
    },
    "c = Cast <to = 9> (mask) p = Or (c, flag)": {
        "p": [
            f"0 where c[d0, d1, d2] == 0 and {OFF}",
            "1 where c[d0, d1, d2] != 0",
            f"1 where {ON}",
        ],
    },
    "p = IsNaN (mask)": {"p": ["0 where p[d0, d1, d2] == 0", "1 where p[d0, d1, d2] != 0"]},
    # choices: what is not chosen does not matter, infinite or not
    HIDE + " p = Neg (s)": {"s": [f"0.0 where {OFF}"], "p": [f"-0.0 where {OFF}"]},
    "l = Log (mask) p = Where (flag, l, nought)": {"p": [f"0.0 where {OFF}"]},
    # a NaN guard leaves what is 0, or 0 or NaN, and says nothing of other numbers
    "u = Where (flag, two, mask) i = IsNaN (u) p = Where (i, nought, u)": {"p": []},
    "u = Where (flag, nought, mask) i = IsNaN (u) p = Where (i, nought, u)": {
        "p": [f"0 where {ON}"]
    },
    # movement
    HIDE + " a, b = Split <axis = 1, num_outputs = 2> (s) p = Neg (b)": {
        "a": [f"0.0 where {OFF}"],
        "b": ["0.0 where flag[d0, d1+2, d2] == 0"],
    },
    HIDE + " p = Transpose <perm = [2, 0, 1]> (s)": {"p": ["0.0 where flag[d1, d2, d0] == 0"]},
    HIDE + " p = Concat <axis = 1> (s, t)": {"p": [f"0.0 where -d1+3 >= 0 and {OFF}"]},
    HIDE + " p = Concat <axis = 1> (t, s)": {
        "p": ["0.0 where d1-4 >= 0 and flag[d0, d1-4, d2] == 0"]
    },
    HIDE + " p = Gather <axis = 1> (s, some)": {"p": []},
    HIDE + " p = Gather <axis = 1> (s, axis)": {"p": ["0.0 where flag[d0, 1, d2] == 0"]},
    # further results are others
    HIDE + " p, o = MaxPool <kernel_shape = [2]> (s)": {"o": []},
}

DEAD: dict[str, dict[str, list[str]]] = {
    "p = Neg (mask)": {"mask": [], "other": ["everywhere"]},
    HIDE + " p = Neg (s)": {"t": [OFF], "mask": [OFF], "flag": []},
    "p = Where (flag, mask, other)": {"mask": [OFF], "other": [ON]},
    # a divisor of 0 may be any positive number, and what gives it its sign any that does
    f"{HIDE} m = Mul (other, other) e = Add (m, two) r = Sqrt (e) p = Div (s, r)": {
        **{"other": [OFF], "m": [], "e": [], "r": [], "s": []}
    },
    f"{HIDE} m = Mul (other, other) n = ReduceMean (m, axis) e = Add (n, two) p = Div (s, e)": {
        "other": ["all d-1: flag[d0, d-1, d2] == 0"],
        "n": [],
    },
    f"{HIDE} e = Exp (other) p = Div (s, e)": {"other": []},  # perhaps infinite, or 0
    f"{HIDE} a = Abs (other) e = Add (a, two) q = Neg (e) n = Neg (q) p = Div (s, n)": {
        "other": []
    },
    f"{HIDE} e = Add (other, two) p = Div (s, e)": {"other": []},
    f"{HIDE} m = Mul (other, other) p = Div (s, m)": {"other": []},
    f"{HIDE} m = Mul (other, other) e = Add (m, two) p = Div (e, s)": {"other": []},
    f"{HIDE} m = Mul (other, other) e = Add (m, two) p = Div (s, e) o = Log (e)": {"other": []},
    f"{HIDE} a = Abs (other) b = Add (a, two) m = Add (a, b) p = Div (s, m)": {"other": [OFF]},
    # a second reader needs it
    HIDE + " p = Add (s, t)": {"t": []},
    HIDE + " l = Shape (t) o = Cast <to = 1> (l) p = Neg (s)": {"t": [OFF]},
    # a factor where the other one is 0, unless it may be infinite, or the sign of the 0 is seen
    f"{ONES} t = Tanh (mask) p = MatMul (c, t)": {"t": ["all d-1: flag[d0, d-1, d1] == 0"]},
    f"{ONES} t = Tanh (mask) p = MatMul (t, c)": {"t": ["all d-1: flag[d0, d2, d-1] == 0"]},
    f"{ONES} l = Log (mask) p = MatMul (c, l)": {"l": []},
    f"{ONES} t = Tanh (mask) m = Mul (c, t) p = ReduceSum (m, axis)": {"t": [OFF], "c": []},
    f"{ONES} t = Tanh (mask) p = Mul (c, t)": {"t": [OFF]},
    f"{ONES} t = Tanh (mask) m = Mul (c, t) p = Reciprocal (m)": {"t": []},
    f"{ONES} p = MatMul (c, c)": {"c": []},
    # of two that annihilate each other each is read where the other is 0: one may be left out
    "c = Cast <to = 9> (mask) p = And (c, flag)": {
        "c": [OFF],
        "flag": ["c[d0, d1, d2] == 0"],
        "mask": [OFF],
    },
    # movement, pieces
    HIDE + " a, b = Split <axis = 1, num_outputs = 2> (s) p = Neg (b)": {
        "a": ["everywhere"],
        "b": [],
        "t": [OFF],
    },
    "p = Transpose <perm = [2, 0, 1]> (mask)": {"mask": []},
    "t = Tanh (mask) p = Gather <axis = 1> (t, axis)": {"t": ["-d1 >= 0", "d1-2 >= 0"]},
    "t = Tanh (mask) p = Gather <axis = 1> (t, ids)": {"t": []},
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", FILLS)
def test_fill_facts(body: str) -> None:
    graph = proven(text_model(body))
    assert {name: fills_of(graph, name) for name in FILLS[body]} == FILLS[body]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", DEAD)
def test_dead_regions(body: str) -> None:
    graph = proven(text_model(body))
    assert {name: dead_of(graph, name) for name in DEAD[body]} == DEAD[body]


# whose own facts a fact rests on: those of s, where it is 0, are no reason to overwrite s
RESTS: dict[str, dict[str, list[str]]] = {
    HIDE + " p = Neg (s)": {"s": ["flag s"], "p": ["flag p s"]},
    f"{ONES} t = Tanh (mask) m = Mul (c, t) p = ReduceSum (m, axis)": {
        "m": ["c flag m"],
        "p": ["c flag m p"],
    },
    # a bounded score is one when it is overwritten, too
    "a = MatMul (x, w) s = Add (a, mask) p = Softmax (s)": {
        "a": [""],
        "s": ["mask s", "mask"],
        "p": ["mask p s"],
    },
}


@pytest.mark.parametrize("body", RESTS)
def test_what_facts_rest_on(body: str) -> None:
    graph = analysed_text(body)
    for name, rests in RESTS[body].items():
        vias = [f.region.via for f in graph[name].fills]
        found = [" ".join(sorted(n for n, v in graph.values.items() if v.bit & x)) for x in vias]
        assert found == rests


REDUCE: dict[Reducer, Callable[[Any], Any]] = {
    Reducer.SUM: np.sum,
    Reducer.MAX: np.max,
    Reducer.MIN: np.min,
    Reducer.POOLED: lambda x: np.max(x, initial=np.finfo(np.float32).min),
    Reducer.PROD: np.prod,
    Reducer.MEAN: np.mean,
    Reducer.SQUARE: lambda x: np.sum(x * x),
}
FAR = Range(-np.inf, -1e39)
LEAST = float(np.finfo(np.float32).min)
BELOW = Range(-np.inf, LEAST)
STANDS_FOR: dict[Constant, list[float]] = {
    0: [0.0, -0.0],
    1: [1.0],
    -2.5: [-2.5],
    -np.inf: [-np.inf],
    ZN: [0.0, np.nan],
    Range(-1, 3): [-1.0, 0.0, 3.0],
    NEG: [-1e4, -2e4, -np.inf],
    FAR: [-1e39, -np.inf],
    BELOW: [LEAST, -np.inf],
    NZ: [1.0, -2.0, np.nan],
    TOP: [1.0, np.nan, 0.0],
}
SURVIVES: dict[Reducer, list[Constant]] = {
    Reducer.SUM: [0, ZN],
    Reducer.MAX: [0, 1, -2.5, -np.inf, Range(-1, 3), NEG, FAR, BELOW],
    Reducer.MIN: [0, 1, -2.5, -np.inf, Range(-1, 3), NEG, FAR, BELOW],
    Reducer.POOLED: [0, 1, -2.5, Range(-1, 3), NEG, BELOW],
    Reducer.PROD: [],
    Reducer.MEAN: [0, -np.inf, ZN],
    Reducer.SQUARE: [0, ZN],
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("reducer", REDUCE)
def test_what_reducing_copies_keeps(reducer: Reducer) -> None:
    assert [c for c in STANDS_FOR if _survives(c, reducer)] == SURVIVES[reducer]
    for c in SURVIVES[reducer]:
        for count in (1, 2, 3):
            for copies in product(STANDS_FOR[c], repeat=count):
                assert stands_for(c, np.array([REDUCE[reducer](np.array(copies))])).all()


@pytest.mark.parametrize(
    ("body", "assumed"),
    [
        (f"{ONES} t = Tanh (mask) p = MatMul (c, t)", True),
        (f"{ONES} t = Tanh (mask) m = Mul (c, t) p = ReduceSum (m, axis)", True),
        (HIDE + " p = Neg (s)", False),
        ("p = Not (flag)", False),
        ("p = MatMul (mask, other)", False),
    ],
)
def test_zero_times_a_value_assumes_that_it_is_finite(body: str, assumed: bool) -> None:
    assert (FINITE in proven(text_model(body)).assumptions) == assumed
