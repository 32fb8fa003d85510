"""Polynomials: exact results of worked examples, and bounds against all sizes, 0 included."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.nodes import Array
from pitc.ir.poly import (
    LARGEST_COUNT,
    LARGEST_SIZE,
    ONE,
    ZERO,
    Atom,
    Digit,
    Poly,
    atom,
    bound,
    dim_index,
    fits,
    nonneg,
    poly,
    sym,
    total_of,
    within,
)

a, b, s = sym("a"), sym("b"), sym("s")
D0, D1, D2 = dim_index(0, b), dim_index(1, s), dim_index(2, poly(3))
SLOW = atom(Digit(3, s, b))
SYMBOL, TERM = st.sampled_from([a, b, s]), st.sampled_from([a, b, s, D0, D1, D2, SLOW])
MANY = settings(max_examples=120, deadline=None)


def polys(of: st.SearchStrategy[Poly]) -> st.SearchStrategy[Poly]:
    """Sums of up to three products of up to two."""
    term = st.tuples(st.integers(-3, 3), st.lists(of, max_size=2))
    made = term.map(lambda t: total_of(t[1]) * t[0])
    return st.lists(made, max_size=3).map(lambda terms: sum(terms, ZERO))


def values(p: Poly, rows: int, columns: int) -> Array:
    """Its numbers at all indices, for b = rows, s = columns, a = 2."""
    shape = rows, columns, 3, rows * columns
    index = dict(enumerate(np.indices(shape)))
    return np.broadcast_to(p.evaluate({"a": 2, "b": rows, "s": columns}, index), shape)


@MANY
@given(polys(TERM), polys(TERM), polys(TERM))
def test_arithmetic_is_that_of_numbers(p: Poly, q: Poly, r: Poly) -> None:
    assert p * (q + r) == p * q + p * r and p + q == q + p and p * q == q * p
    assert p - q == -(q - p) and p - p == ZERO and (p == q) == (not (p - q).terms)
    assert hash(p * q) == hash(q * p) and str(p + q) == str(q + p)
    for rows, columns in product((0, 1, 3), repeat=2):
        x, y, z = (values(t, rows, columns) for t in (p, q, r))
        assert np.array_equal(values(p * q - r, rows, columns), x * y - z)


@MANY
@given(polys(TERM))
def test_bounds_hold_for_all_sizes(p: Poly) -> None:
    low, high = bound(p, False), bound(p, True)
    assert not low.digits() and not high.digits()
    for rows, columns in product(range(4), repeat=2):
        found, *ends = (values(x, rows, columns) for x in (p, low, high))
        assert np.all(ends[0] <= found) and np.all(found <= ends[1])
        assert not nonneg(low) or np.all(found >= 0)
        assert not within(p, s + 1) or np.all((found >= 0) & (found <= columns))
        assert not fits(p, -9, 9) or np.all((found >= -9) & (found <= 9))


@MANY
@given(polys(SYMBOL), polys(SYMBOL))
def test_quotients_are_exact(p: Poly, q: Poly) -> None:
    found = p.divide(q)
    assert found is None or found * q == p
    assert (p * q).divide(q) == (p if q.terms else None)


@pytest.mark.parametrize(
    ("p", "low", "high"),
    [
        (D0, "0", "b-1"),
        (D0 + 3, "3", "b+2"),
        (D0 * -2, "-2*b+2", "0"),
        (D0 * s - D1, "-s+1", "b*s-s"),
        (D0 * (s - 2), "-2*b+2", "b*s-s"),
        (D0 * D1 - 1, "-1", "b*s-b-s"),
        (SLOW * s, "0", "b*s-s"),
        (a - b, "a-b", "a-b"),
        (D0 * D0 * -1, "-b*b+2*b-1", "0"),
        (ZERO, "0", "0"),
    ],
    ids=str,
)
def test_bounds(p: Poly, low: str, high: str) -> None:
    assert (str(bound(p, False)), str(bound(p, True))) == (low, high)


@pytest.mark.parametrize(
    ("p", "holds"),
    [
        (ZERO, True),
        (b * s + 1, True),
        (b - 1, False),
        (poly(-1), False),
        (D0, False),
        (D0 * b, False),
    ],
    ids=str,
)
def test_nonneg(p: Poly, holds: bool) -> None:
    assert nonneg(p) is holds


@pytest.mark.parametrize(
    ("p", "n", "holds"),
    [
        (D0, b, True),
        (D0, b + 1, True),
        (D0 + 1, b, False),
        (D0 - 1, b, False),
        (D0 * s + D1, b * s, True),
        (poly(2), poly(3), True),
        (poly(3), poly(3), False),
        (poly(-1), poly(3), False),
        (ZERO, b, False),
        (ZERO, b + 1, True),
    ],
    ids=str,
)
def test_within(p: Poly, n: Poly, holds: bool) -> None:
    assert within(p, n) is holds


SIZE, COUNT = 1 << LARGEST_SIZE, 1 << LARGEST_COUNT


@pytest.mark.parametrize(
    ("p", "least", "most"),
    [
        (ZERO, 0, 0),
        (poly(7), 0, 7),
        (poly(-7), -7, 0),
        (b, 0, SIZE),
        (b * 3 + 4, 0, 3 * SIZE + 4),
        (b * -3 - 4, -3 * SIZE - 4, 0),
        (b - s, -SIZE, SIZE),
        (b * s, 0, COUNT),
        (a * b * s, 0, COUNT),
        (b * s * -2 + b, -2 * COUNT, SIZE),
        (D0, 0, SIZE),
        (D2 * 5 - 1, -1, 9),
        (D2 * -5 + 1, -9, 1),
        (D0 * s, 0, COUNT),
    ],
    ids=str,
)
def test_a_value_fits_between_its_least_and_most(p: Poly, least: int, most: int) -> None:
    assert fits(p, least, most)
    assert not fits(p, least + 1, most) and not fits(p, least, most - 1)


def test_machines_have_sizes_of_31_bits() -> None:
    assert fits(3 * s, -(2**63), 2**63 - 1) and not fits(3 * s, -(2**31), 2**31 - 1)
    assert (LARGEST_SIZE, LARGEST_COUNT) == (31, 46)


def star(x: Atom) -> str:
    return "*" if isinstance(x, str) else f"<{x.dim}>"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (ZERO, "0"),
        (ONE, "1"),
        (poly(-1), "-1"),
        (poly(12), "12"),
        (s, "s"),
        (-s, "-s"),
        (s * 2, "2*s"),
        (s - 1, "s-1"),
        (1 - s, "-s+1"),
        (2 - s * 3, "-3*s+2"),
        (1 + b + s, "b+s+1"),
        (s * b + s * s * s + a, "s*s*s+b*s+a"),
        (D1 + s + D0, "d0+d1+s"),
        (s * D1 * 2 - D0 * b, "-d0*b+2*d1*s"),
        (SLOW + 1, "(d3//s%b)+1"),
        (atom(Digit(0, s + 1, b * 2)), "(d0//(s+1)%2*b)"),
        (atom(Digit(3, poly(2), s - 1)), "(d3//2%(s-1))"),
        (atom(Digit(-1, ONE, s)), "d-1"),
    ],
    ids=str,
)
def test_texts(p: Poly, text: str) -> None:
    assert str(p) == repr(p) == text == str(p)


def test_texts_of_atoms_may_be_others() -> None:
    assert (D0 * s - D1).format(star) == "<0>**-<1>"
    assert str(sym("#n") * D0) == "d0*#n"  # digits come first, whatever the symbol is called
    digits = [Digit(1, ONE, s), Digit(1, s, b * 2 + 1)]
    assert [x.format("row") for x in digits] == ["(row%s)", "(row//s%(2*b+1))"]


@pytest.mark.parametrize(
    ("p", "q", "found"),
    [
        (ZERO, s, "0"),
        (s, ZERO, "None"),
        (s, s, "1"),
        (b * s * 6, s * 2, "3*b"),
        (b * s, s * 2, "None"),
        (s * 3, poly(2), "None"),
        (s, b, "None"),
        (s * s - 1, s + 1, "s-1"),
        (s * s + 1, s + 1, "None"),
        (b * s + b - s - 1, b - 1, "s+1"),
        (D0 * s, s, "d0"),
        (s * s, s * s * s, "None"),
        (-s * 4, poly(-2), "2*s"),
    ],
    ids=str,
)
def test_quotients(p: Poly, q: Poly, found: str) -> None:
    assert str(p.divide(q)) == found


def test_parts_of_polynomials() -> None:
    p = D0 * D1 * s * 2 + D0 * D1 + D0 * b - s + 4
    x, y = Digit(0, ONE, b), Digit(1, ONE, s)
    assert p.digits() == {x, y} and p.symbols() == {"b", "s"}
    assert p.by_digits() == {(x, y): s * 2 + 1, (x,): b, (): 4 - s}
    p.by_digits().clear()
    assert len(p.by_digits()) == 3 and SLOW.symbols() == set() == ONE.symbols()
    assert s.digits() == frozenset() == ZERO.digits()
    assert [poly(n).as_int() for n in (0, 1, -3)] == [0, 1, -3]
    assert s.as_int() is None and (s + 1).as_int() is None and (s * 0).as_int() == 0


def test_equal_is_what_has_the_same_terms() -> None:
    fresh: list[Callable[[], object]] = [
        lambda: Poly({("s",): 2, (): 1}),
        lambda: Digit(0, Poly({("s",): 1}), Poly({(): 3})),
    ]
    for made in fresh:
        assert made() == made() and hash(made()) == hash(made())
    assert Poly({("s",): 0}) == ZERO == poly(0) and poly(s) is s
    assert s != b and s != "s" and s + 1 != s and ONE != 1
    x = same = Digit(0, ONE, s)
    assert x == same and repr(x) == str(x) == "d0"
    assert x not in (Digit(1, ONE, s), Digit(0, s, s), Digit(0, ONE, b), "d0")
    assert s * 1 == s == ONE * s and s * 0 == ZERO == ZERO * s and s + 0 == s == ZERO + s
    assert total_of([]) == ONE and total_of([s, b, s]) == b * s * s
    assert dim_index(0, ONE) == ZERO and dim_index(4, s) == atom(Digit(4, ONE, s))


def test_places_of_empty_dimensions_have_numbers() -> None:
    assert SLOW.evaluate({"s": 0, "b": 0}, {3: 5}) == 0
    assert SLOW.evaluate({"s": 2, "b": 3}, {3: 13}) == 0 and D1.evaluate({"s": 4}, {1: 6}) == 2
    assert (SLOW * 2 + s * b - 1).evaluate({"s": 2, "b": 3}, {3: 11}) == 9
