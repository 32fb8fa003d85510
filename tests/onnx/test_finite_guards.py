"""Where values are finite (passes/facts/finite.py): exact guards, and no run that refutes them."""

import numpy as np
import pytest

from pitc.ir.index import sym
from pitc.ir.region import EVERYWHERE, Region, describe, position
from pitc.passes.audit.points import sizes_of
from pitc.passes.audit.symbols import not_finite
from pitc.passes.facts.finite import all_finite
from tests.guard_worlds import graph_of, model_of, values_of

EVER, NO, OWN = "everywhere", "nowhere", "bias[d0, d1] > -1e4"
ROW, SOME_KEY = "all j: bias[d0, j] > -1e4", "s-1 >= 0"
FREE = True  # of infinities, if not of NaN
SEEN, HIDDEN = "some j: n[d0, j] != 0", "all j: mask[d0, j] != 0"
COUNT = "k = Cast <to = 7> (mask) n = ReduceSum (k) f = Cast <to = 1> (n)"
SOME = "some j: some k: mask[j, k] != 0"
MASKED = "some j: mask[d0, j] != 0"
TERMS = "u = Where (mask, x, low) r = Softmax (u)"
ALL = "e = Equal (u, low) i = Cast <to = 7> (e) all = ReduceMin (i, last) c = Cast <to = 9> (all)"
LOOP = """<body = g (int64 i, bool c, float[b, s] v) => (bool d, float[b, s] w RESULTS) {
    d = Identity (c) w = STEP (v) r = Log (v) q = Sin (v) }>"""
ONE = LOOP.replace("RESULTS", ", float[b, s] q")
BAD = LOOP.replace("RESULTS", ", float[b, s] r")
TWO = LOOP.replace("RESULTS", ", float[b, s] q, float[b, s] r")

GUARDS = {  # finite, clean
    "y = Identity (x)": (EVER, EVER, FREE),
    "y = Identity (bias)": (OWN, EVER, False),
    # constants
    "y = Add (x, pair)": (EVER, EVER, FREE),
    "y = Add (x, nan)": (NO, NO, False),
    "y = Add (x, high)": (NO, NO, False),
    "y = Add (x, low)": (NO, EVER, False),
    "y = Add (x, lows)": (NO, EVER, False),
    "y = Add (x, ends)": (NO, NO, False),
    "y = Sub (x, low)": (NO, NO, False),
    # operators
    "k = Cast <to = 7> (p) y = Cast <to = 1> (k)": (EVER, EVER, FREE),
    "y = Log (x)": (NO, NO, False),
    "a = Log (x) y = Tanh (a)": (NO, NO, FREE),
    "y = Neg (bias)": (OWN, OWN, False),
    "y = Relu (bias)": (OWN, EVER, False),
    "y = Add (p, bias)": (ROW, ROW, False),
    "y = Where (mask, x, low)": (NO, EVER, False),
    "y = Where (mask, x, bias)": (OWN, EVER, False),
    "y = Clip (x, , one)": (EVER, EVER, FREE),
    "y = Clip (bias, , one)": (OWN, OWN, False),
    "y = Clip (x, , high)": (NO, NO, False),
    "k = Log (x) r = ReduceMax <keepdims = 0> (k) y = Clip (x, r)": (NO, NO, False),
    "y = LayerNormalization (x, pair)": (EVER, EVER, FREE),
    "y = LayerNormalization (bias, pair)": (ROW, ROW, False),
    "y = LayerNormalization (x, lows)": (NO, NO, False),
    "a = Shape (x) y = ConstantOfShape <value = float[1] {2}> (a)": (EVER, EVER, FREE),
    "a = Shape (x) y = ConstantOfShape <value = float[1] {inf}> (a)": (NO, NO, False),
    "a = Shape (x) y = ConstantOfShape <value = float[1] {-inf}> (a)": (NO, NO, False),
    "a = Shape (x) y = ConstantOfShape <value = float[1] {nan}> (a)": (NO, NO, False),
    "y = Cast <to = 1> (said)": (NO, NO, False),
    "y = Cast <to = 1> (written)": (NO, NO, False),
    # of unknown rank, or of nothing known
    "y = Tanh (any)": (EVER, EVER, FREE),
    "y = Log (any)": (NO, NO, False),
    "a = Log (any) y = Tanh (a)": (NO, NO, False),
    "y = other.Op (x)": (NO, NO, False),
    "c = other.Op (x) y = Tanh (c)": (NO, NO, False),
    # places
    "y = Transpose (bias)": ("bias[d1, d0] > -1e4", EVER, False),
    "y = Gather <axis = 1> (x, places)": (EVER, EVER, FREE),
    "y = Gather <axis = 1> (bias, places)": (NO, EVER, False),
    "a = Transpose (x) y = Gather (a, places)": (EVER, EVER, FREE),
    "y = Concat <axis = 1> (bias, x)": (OWN, EVER, False),
    "a = Transpose (p) y = Tanh (a)": ("all j: bias[d1, j] > -1e4",) * 2 + (FREE,),
    # reductions
    "y = ReduceSum (x, last)": (EVER, EVER, FREE),
    "y = ReduceSum (bias, last)": (ROW, ROW, False),
    "y = ReduceMax (x, last)": (SOME_KEY, SOME_KEY, False),
    "y = ReduceMean (x, last)": (SOME_KEY, SOME_KEY, False),
    "y = ReduceMax (p, last)": (f"{ROW} and {SOME_KEY}",) * 2 + (False,),
    "a = Transpose (z) y = MatMul (bias, a)": (ROW, ROW, False),
    # a softmax
    "y = Identity (p)": (ROW, ROW, FREE),
    "y = Mul (p, x)": (ROW, ROW, FREE),
    "y = Softmax (x)": ("all j: x[d0, j] > -1e4",) * 2 + (FREE,),
    "a = Tanh (x) y = Softmax (a)": (EVER, EVER, FREE),
    "a = Log (x) y = Softmax (a)": (NO, NO, FREE),
    "a = Add (x, high) y = Softmax (a)": (NO, NO, FREE),
    "a = Where (mask, one, low) y = Softmax (a)": ("some j: mask[d0, j] != 0",) * 2 + (FREE,),
    "a = Where (mask, one, big) y = Softmax (a)": (EVER, EVER, FREE),
    """n = Greater (x, zero) t = Where (mask, zero, low) u = Where (n, zero, low)
       a = Add (t, u) y = Softmax (a)""": (f"{HIDDEN} and {SEEN}",) * 2 + (FREE,),
    # what overflows is -inf, and a row of nothing else is NaN
    "a = Where (mask, zero, big) c = Add (a, a) y = Softmax (c)": (
        *("some j: mask[d0, j] != 0",) * 2,
        FREE,
    ),
    # guards of NaN
    "n = IsNaN (p) y = Where (n, zero, p)": (EVER, EVER, FREE),
    "a = Mul (p, x) n = IsNaN (a) y = Where (n, zero, a)": (EVER, EVER, FREE),
    "n = IsNaN (p) y = Where (n, one, p)": (ROW, ROW, FREE),
    "n = IsNaN (p) y = Where (n, pair, p)": (ROW, ROW, FREE),
    "n = IsNaN (p) m = Where (mask, p, zero) y = Where (n, m, p)": (ROW, ROW, FREE),
    "n = IsNaN (p) y = Where (n, p, zero)": (ROW, ROW, FREE),
    "n = IsNaN (x) y = Where (n, zero, p)": (ROW, ROW, FREE),
    "n = IsInf (p) y = Where (n, zero, p)": (ROW, ROW, FREE),
    "y = Where (mask, zero, p)": (ROW, ROW, FREE),
    "n = Not (mask) y = Where (n, zero, p)": (ROW, ROW, FREE),
    "n = IsNaN (p) y = Add (p, p)": (ROW, ROW, FREE),
    "n = IsNaN (bias) y = Where (n, zero, bias)": (OWN, EVER, False),
    "a = Log (x) n = IsNaN (a) y = Where (n, zero, a)": (NO, NO, False),
    # an operand of a Where counts where it is taken
    "n = Less (bias, zero) y = Where (n, zero, bias)": (EVER, EVER, False),
    "n = Less (bias, zero) y = Where (n, bias, zero)": (OWN, EVER, False),
    "n = Less (bias, zero) y = Where (n, p, bias)": (ROW, ROW, False),
    "n = Greater (bias, zero) y = Where (n, bias, zero)": (EVER, EVER, False),
    "n = Less (bias, zero) m = And (n, mask) y = Where (m, zero, bias)": (OWN, EVER, False),
    "n = Less (bias, zero) m = Or (n, mask) y = Where (m, zero, bias)": (EVER, EVER, False),
    "a = Where (mask, one, low) q = Softmax (a) y = Where (mask, q, zero)": (EVER, EVER, FREE),
    "a = Where (mask, one, low) q = Softmax (a) y = Where (mask, zero, q)": (
        *("some j: mask[d0, j] != 0",) * 2,
        FREE,
    ),
    # the simplest guard of a row, and not one that no run satisfies
    """t = ReduceSum (x, last) c = Greater (t, zero) a = Where (c, zero, low)
       n = Greater (x, zero) o = Where (n, zero, a) y = Softmax (o)""": (
        *("c[d0, 0] != 0",) * 2,
        FREE,
    ),
    """t = ReduceSum (x, last) f = Cast <to = 1> (places) u = Mul (t, f) c = Greater (u, zero)
       r = Cast <to = 9> (places) e = Not (r) k = And (c, e) a = Where (k, zero, low)
       n = Greater (x, zero) o = Where (n, zero, a) y = Softmax (o)""": (
        *("some j: n[d0, j] != 0",) * 2,
        FREE,
    ),
    # divisors that count
    f"{COUNT} y = Div (x, f)": (SOME, SOME, False),
    f"{COUNT} q = Div (x, f) y = Where (mask, q, zero)": (EVER, EVER, False),
    f"{COUNT} q = Div (x, f) y = Where (mask, zero, q)": (SOME, SOME, False),
    f"{COUNT} y = Div (bias, f)": (f"{OWN} and {SOME}",) * 2 + (False,),
    f"{COUNT.replace('to = 7', 'to = 6')} y = Div (x, f)": (NO, NO, False),  # 32 bits wrap around
    "k = Cast <to = 7> (mask) o = Neg (k) n = ReduceSum (o) f = Cast <to = 1> (n) y = Div (x, f)": (
        *(NO, NO),
        False,
    ),
    "o = Where (mask, one, one) n = ReduceSum (o, last) y = Div (x, n)": (EVER, EVER, False),
    "o = Where (mask, one, one) n = ReduceSum <keepdims = 0> (o, last) y = Div (one, n)": (
        *(SOME_KEY,) * 2,
        False,
    ),
    "o = Where (mask, one, half) n = ReduceSum (o, last) y = Div (x, n)": (*(MASKED,) * 2, False),
    # guards on rows of a softmax
    f"{TERMS} {ALL} y = Where (c, zero, r)": (EVER, EVER, FREE),
    f"{TERMS} {ALL.replace('Min', 'Max')} y = Where (c, zero, r)": (EVER, EVER, FREE),
    f"{TERMS} {ALL} y = Where (c, r, zero)": (NO, NO, FREE),
    f"{TERMS} {ALL} y = Where (c, one, r)": (NO, NO, FREE),
    f"{TERMS} {ALL} n = Not (c) y = Where (n, r, zero)": (EVER, EVER, FREE),
    f"{TERMS} {ALL.replace('(u, low)', '(x, low)')} y = Where (c, zero, r)": (NO, NO, FREE),
    f"{TERMS} {ALL.replace('last', 'front')} y = Where (c, zero, r)": (NO, NO, FREE),
    f"{TERMS} most = ReduceMax (u, last) c = Equal (most, low) y = Where (c, zero, r)": (
        *(EVER, EVER),
        FREE,
    ),
    "v = Add (x, bias) u = Where (mask, v, high) r = Softmax (u) most = ReduceMax (u, last) "
    "c = Equal (most, low) y = Where (c, zero, r)": (NO, NO, FREE),
    # loops
    f"y = Loop {LOOP} (trips, again, x)": (EVER, EVER, FREE),
    f"y = Loop {LOOP.replace('STEP', 'Log')} (trips, again, x)": (NO, NO, False),
    f"y = Loop {LOOP} (trips, again, bias)": (NO, NO, False),
    f"h, y = Loop {ONE} (trips, again, x)": (EVER, EVER, FREE),
    f"h, y = Loop {BAD} (trips, again, x)": (NO, NO, False),
    f"h, y, g = Loop {TWO} (trips, again, x)": (EVER, EVER, FREE),
    f"h, g, y = Loop {TWO} (trips, again, x)": (NO, NO, False),
}
OVERFLOW = "c = Add (a, a)"  # a named assumption


def said(guard: Region | None) -> str:
    return NO if guard is None else describe(guard)


def text_of(body: str) -> str:
    return body.replace("RESULTS", "").replace("STEP", "Tanh")


@pytest.mark.parametrize("body", GUARDS)
def test_guards(body: str) -> None:
    y = graph_of(model_of(text_of(body)))["y"]
    assert (said(y.finite_if), said(y.clean_if), y.no_infinity) == GUARDS[body]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [b for b in GUARDS if "other" not in b])
def test_no_run_refutes_a_guard(body: str) -> None:
    model = model_of(text_of(body))
    graph, runs = graph_of(model), 0
    for values in values_of(model):
        runs += 1
        sizes, clashes = sizes_of(graph, values)
        names = [n for n in graph.values if n in values and not (OVERFLOW in body and n == "c")]
        assert [clashes, *not_finite(graph, names, values, sizes)] == [[]]
        free = [n for n in names if graph[n].no_infinity and values[n].dtype.kind == "f"]
        assert not any(np.isinf(values[n]).any() for n in free)
    assert runs


def test_a_guard_rests_on_the_condition() -> None:
    """What the lowering overwrites must not be what a guard is known by."""
    graph = graph_of(model_of("n = Less (bias, zero) y = Where (n, zero, bias)"))
    found = graph["y"].finite_if
    assert found is not None and not found.tests and found.via & graph["n"].bit


@pytest.mark.parametrize("known", [None, EVERYWHERE, Region([position(sym("s") - 1)])])
@pytest.mark.parametrize("kind", [None, "f4", "i8", "u1", "?"])
def test_all_finite(known: Region | None, kind: str | None) -> None:
    """Of a type that nobody knows, nothing is known."""
    graph = graph_of(model_of("y = Add (x, z)"))
    value = graph["other"]
    value.finite_if, value.dtype = known, None if kind is None else np.dtype(kind)
    whole = kind in ("i8", "u1", "?") or (kind is not None and known == EVERYWHERE)
    assert all_finite(graph, ["other"]) is whole
    assert all_finite(graph, ["x", "other", "y"]) is whole
    assert all_finite(graph, [])
