"""Laws of elementwise operators on constants: exactly what they say, and that it holds in numpy."""

from collections.abc import Callable
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from pitc.ir.constant import NEG, NZ, TAME, TOP, ZN, Constant, Range, is_number
from pitc.passes.rules import laws
from pitc.passes.rules.laws import UNSETTLED, Constants, Unsettled
from pitc.passes.rules.record import OPERATORS
from tests.exhaustive_laws import allowed
from tests.exhaustive_values import stands_for

POOL: dict[str, Constant] = {
    **{"0": 0.0, "2": 2.0, "-inf": -inf, "inf": inf, "NEG": NEG, "TAME": TAME},
    **{"up": Range(1.0, inf), "low": Range(-inf, -inf), "ZN": ZN, "NZ": NZ, "TOP": TOP},
}
RESULTS = {".": UNSETTLED, **POOL}
Law = Callable[[Constants], Any]

# rows: the first operand, columns: the second one, in the order of POOL; a dot: arithmetic decides
QUOTIENT = """
   .    .    .    .    0   ZN    0    0   ZN    0   ZN
   .    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
   .    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
   .    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP   ZN   ZN   ZN  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
"""
TOTAL = """
   .    .    .    .    .    .  TOP -inf   ZN   NZ    .
   .    .    .    .    .    .  TOP -inf  TOP    .    .
   .    .    .    . -inf -inf  TOP -inf  TOP -inf -inf
   .    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
   .    . -inf  TOP    .    .  TOP -inf  TOP    .    .
   .    . -inf  TOP    .    .  TOP -inf  TOP    .    .
 TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP
-inf -inf -inf  TOP -inf -inf  TOP -inf  TOP -inf -inf
  ZN  TOP  TOP  TOP  TOP  TOP  TOP  TOP   ZN  TOP  TOP
  NZ    . -inf  TOP    .    .  TOP -inf  TOP    .    .
   .    . -inf  TOP    .    .  TOP -inf  TOP    .    .
"""
DIFFERENCE = """
   .    .    .    .  TOP    .    .  TOP   ZN   NZ    .
   .    .    .    .  TOP    .    .  TOP  TOP    .    .
   .    .    .    .  TOP -inf -inf  TOP  TOP -inf -inf
   .    .    .    .  TOP  TOP  TOP  TOP  TOP  TOP  TOP
   .    .  TOP -inf  TOP    .    .  TOP  TOP    .    .
   .    .  TOP -inf  TOP    .    .  TOP  TOP    .    .
 TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP
-inf -inf  TOP -inf  TOP -inf -inf  TOP  TOP -inf -inf
  ZN  TOP  TOP  TOP  TOP  TOP  TOP  TOP   ZN  TOP  TOP
  NZ    .  TOP -inf  TOP    .    .  TOP  TOP    .    .
   .    .  TOP -inf  TOP    .    .  TOP  TOP    .    .
"""
UNEQUAL = """
   .    0    0    0    0  TOP    0    0  TOP    0  TOP
   0    .    0    0    0  TOP  TOP    0  TOP  TOP  TOP
   0    0    .    0  TOP    0    0  TOP  TOP  TOP  TOP
   0    0    0    .    0    0  TOP    0  TOP  TOP  TOP
   0    0  TOP    0  TOP    0    0  TOP  TOP  TOP  TOP
 TOP  TOP    0    0    0  TOP  TOP    0  TOP  TOP  TOP
   0  TOP    0  TOP    0  TOP  TOP    0  TOP  TOP  TOP
   0    0  TOP    0  TOP    0    0  TOP  TOP  TOP  TOP
 TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP
   0  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP
 TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP  TOP
"""


@pytest.mark.parametrize(
    ("law", "table"),
    [
        (laws.quotient, QUOTIENT),
        (laws.total, TOTAL),
        (laws.difference, DIFFERENCE),
        (laws.unequal, UNEQUAL),
    ],
)
def test_laws_of_two(law: Law, table: str) -> None:
    rows = [line.split() for line in table.strip().splitlines()]
    for (a, row), (k, b) in product(zip(POOL, rows, strict=True), enumerate(POOL)):
        assert law((POOL[a], POOL[b])) == RESULTS[row[k]], (a, b)


def test_a_product_is_0_by_one_factor() -> None:
    zeros = (0.0, -0.0, 0)
    for a, b in product([*POOL.values(), -0.0, 0], repeat=2):
        if is_number(a) and is_number(b):
            known: Any = UNSETTLED
        elif a is ZN or b is ZN:
            known = ZN
        else:
            known = 0 if a in zeros or b in zeros else UNSETTLED
        assert laws.product((a, b)) is known or (laws.product((a, b)) == known == 0)


def test_of_0_or_nan_only_odd_functions_keep_something() -> None:
    for c in POOL.values():
        assert laws.odd((c,)) is (ZN if c is ZN else UNSETTLED)
        for d in POOL.values():
            assert laws.extreme((c, d)) is (TOP if ZN in (c, d) else UNSETTLED)


@pytest.mark.parametrize(
    ("terms", "known"),
    [
        ((0.0, ZN, 0.0), ZN),
        ((0.0, ZN, 1.0), TOP),
        ((0.0, NZ, 0.0), NZ),
        ((0.0, NZ, NZ), UNSETTLED),
        ((NZ, 0.0, TOP), UNSETTLED),
        ((0.0, -inf, TOP), -inf),
        ((inf, -inf, TOP), TOP),
        ((Range(-1.0, inf), -inf, TOP), TOP),
        ((-inf, 1.0, 2.0), UNSETTLED),
    ],
)
def test_sums_of_three(terms: Constants, known: Any) -> None:
    assert laws.total(terms) == known


# --- conditions ---

TRUTHS: dict[Any, set[bool]] = {0: {False}, 1: {True}, NZ: {True}, TOP: {True, False}}


@pytest.mark.parametrize(
    ("c", "truth"),
    [
        *((c, True) for c in (Range(0.5, 2.0), Range(-2.0, -0.5), NEG, NZ, 2, -inf)),
        *((c, None) for c in (TAME, Range(0.0, 1.0), Range(-1.0, 0.0), ZN, TOP)),
        *((c, False) for c in (0, -0.0)),
    ],
)
def test_ranges_beside_0_are_true(c: Constant, truth: bool | None) -> None:
    assert laws.truth_of(c) is truth


def decided(possible: set[bool]) -> Constant:
    return int(*possible) if len(possible) == 1 else TOP


def test_what_is_true() -> None:
    for c, mine in TRUTHS.items():
        assert laws.opposite((c,)) is decided({not t for t in mine})
    for cs in (cs for n in (1, 2, 3) for cs in product(TRUTHS, repeat=n)):
        cases = list(product(*(TRUTHS[c] for c in cs)))
        assert laws.both(cs) is decided({all(ts) for ts in cases})
        assert laws.either(cs) is decided({any(ts) for ts in cases})


def test_a_known_condition_chooses() -> None:
    a, b = Range(0.0, 1.0), Range(1.0, 2.0)
    assert laws.where((1, a, b)) is laws.where((NZ, a, b)) is a
    assert laws.where((0, a, b)) is b


@pytest.mark.parametrize(
    ("a", "b", "known"),
    [
        *((c, c, c) for c in (0.0, 3, -inf, ZN, NZ, TOP)),
        *((a, b, ZN) for a, b in ((ZN, 0.0), (0, ZN), (-0.0, ZN))),
        *((a, b, UNSETTLED) for a, b in ((1.0, 2.0), (0.0, NZ), (ZN, NZ), (ZN, 1.0), (1.0, ZN))),
        *((a, b, UNSETTLED) for a, b in ((NEG, NEG), (NEG, 0.0), (TOP, 0.0), (TOP, NZ))),
    ],
)
def test_one_of_two_that_agree(a: Constant, b: Constant, known: Any) -> None:
    assert laws.where((TOP, a, b)) == known
    assert laws.where((TOP, 0.0, -0.0)) == 0


# --- against numpy ---

VALUES = np.array([-inf, -3e4, -1e4, -1e3, -1.0, -0.0, 0.0, 0.5, 1, 2, 1e3, inf, nan])
CHECKED = ("Mul", "Div", "Add", "Sub", "Max", "Min", "Equal")


@pytest.mark.parametrize("op", CHECKED)
def test_laws_hold_in_numpy(op: str) -> None:
    row = OPERATORS["", op]
    assert row.law is not None
    assert row.function is not None
    assert row.function.evaluate is not None
    for constants in product(POOL.values(), repeat=2):
        claim = row.law(constants)
        if isinstance(claim, Unsettled):
            continue
        xs = [
            VALUES[stands_for(c, VALUES) & allowed(row, k, c, VALUES)]
            for k, c in enumerate(constants)
        ]
        with np.errstate(all="ignore"):
            got = np.asarray(row.function.evaluate(*np.meshgrid(*xs)))
        assert stands_for(claim, got).all(), (constants, claim)
