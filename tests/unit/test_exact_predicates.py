"""Tests of points: what implies what, opposites and texts, exactly; sizes may be 0."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, dim_index, poly
from pitc.ir.predicate import least_or_last
from pitc.ir.region import (
    EVERYWHERE,
    SOME,
    Predicate,
    Region,
    Test,
    describe,
    for_some,
    position,
    region,
    resolve,
    truth,
)
from pitc.passes.audit.points import holds
from tests.region_worlds import X, Y, Z, b, bound_digit, s

MORE, TWO = s + 1, poly(2)
EMPTY = {"b": 2, "s": 0}


def nz(name: str, *idx: Poly, yes: bool = True) -> Test:
    return Test(name, idx, "nz", yes)


def of_p(place: Poly, pred: Predicate = "nz", yes: bool = True) -> Test:
    return Test("P", (X, place), pred, yes)


def each(extent: Poly = s, d: int = -1, stride: Poly = ONE) -> Poly:
    return atom(Digit(d, stride, extent))


def any_of(extent: Poly = s, n: int = 1, stride: Poly = ONE) -> Poly:
    return each(extent, SOME - n, stride)


FAMILIES = {
    "predicates": {
        "zero": of_p(Y, yes=False),
        "not zero": of_p(Y),
        "masked": of_p(Y, "neg"),
        "not masked": of_p(Y, "neg", False),
        "small": of_p(Y, "small"),
        "not small": of_p(Y, "small", False),
        "zero elsewhere": of_p(Z, yes=False),
        "all masked": of_p(each(), "neg"),
        "all not zero": of_p(each()),
        "of another": nz("M", X, Y),
    },
    "vectors": {
        "at y": nz("Q", Y),
        "at 0": nz("Q", ZERO),
        "at 1": nz("Q", ONE),
        "at s": nz("Q", s),
        "at 2y": nz("Q", Y * 2),
        "at one of two": nz("Q", dim_index(3, TWO)),
        "all": nz("Q", each()),
        "all of two": nz("Q", each(TWO)),
        "all of more": nz("Q", each(MORE)),
        "all even": nz("Q", each() * 2),
        "all by s": nz("Q", each(b) * s),
        "all but the first": nz("Q", each() + 1),
        "some": nz("Q", any_of()),
        "some of two": nz("Q", any_of(TWO)),
        "some of more": nz("Q", any_of(s + 2)),
        "some of a stride": nz("Q", any_of(MORE, stride=TWO)),
        "some even": nz("Q", any_of() * 2),
    },
    "matrices": {
        "at": nz("M", Y, Z),
        "all all": nz("M", each(), each(d=-2)),
        "all turned": nz("M", each(d=-2), each()),
        "diagonal": nz("M", each(), each()),
        "row": nz("M", Y, each()),
        "column": nz("M", each(), Z),
        "some some": nz("M", any_of(), any_of(n=2)),
        "some of the diagonal": nz("M", any_of(), any_of()),
        "some of the row": nz("M", Y, any_of()),
        "each some": nz("M", each(), any_of()),
    },
    "digits": {
        "both": nz("T", each(s, stride=TWO), each(TWO)),
        "mixed up": nz("T", each(s, stride=MORE), each(TWO)),
        "turned": nz("T", each(TWO), each(s, stride=TWO)),
        "turned at": nz("T", dim_index(3, TWO), Y),
        "all at 0": nz("T", each(), ZERO),
        "at 0": nz("T", Y, ZERO),
        "even all": nz("T", each() * 2, each(d=-2)),
        "even at": nz("T", each() * 2, Y),
        "at": nz("T", Y, dim_index(3, TWO)),
        "some": nz("T", any_of(s, stride=TWO), any_of(TWO)),
        "same": nz("T", any_of(s), any_of(TWO)),
    },
    "lengths": {
        "y": Test("L", (X, Y), "below", True),
        "y-1": Test("L", (X, Y - 1), "below", True),
        "not y": Test("L", (X, Y), "below", False),
        "not y+1": Test("L", (X, Y + 1), "below", False),
        "of another": Test("L", (Z, Y - 1), "below", True),
        "all": Test("L", (each(b), Y), "below", True),
        "some": Test("L", (any_of(b), Y), "below", True),
        "all before": Test("L", (each(b), Y - 1), "below", True),
        "0": Test("L", (X, ZERO), "below", True),
        "all y of this": Test("L", (X, each()), "below", True),
        "some y of this": Test("L", (X, any_of() - s), "below", True),
        "some before": Test("L", (any_of(b), Y - 1), "below", True),
    },
    "positions": {
        "y": position(Y),
        "y-1": position(Y - 1),
        "y-z-1": position(Y - Z - 1),
        "y-z": position(Y - Z),
        "y+s-2": position(Y + s - 2),
        "x-1": position(X - 1),
        "some x-1": position(any_of() + X - 1),
        "all y": position(each()),
        "some y": position(any_of() - 1),
        "all y-1": position(each() - 1),
    },
}
IMPLIED = {
    "predicates": {
        "zero": "not masked, small",
        "masked": "not zero, not small",
        "small": "not masked",
        "not small": "not zero",
        "all masked": "masked, all not zero",
        "all not zero": "not zero",
    },
    "vectors": {
        "at y": "some, some of more, some of a stride",
        "at 0": "some of two, some of more, some of a stride",
        "at 1": "some of two, some of more",
        "at s": "some of more, some of a stride",
        "at one of two": "some of two, some of more",
        "all": "at y",
        "all of two": "at 0, at 1, at one of two, some of two, some of more",
        "all of more": "at y, at 0, at s, all, all but the first, some of more, some of a stride",
        "some": "some of more, some of a stride",
        "some of two": "some of more",
        "some of a stride": "some of more",
    },
    "matrices": {
        "at": "some some, some of the row",
        "all all": "at, all turned, diagonal, row, column",
        "all turned": "at, all all, diagonal, row, column",
        "row": "at",
        "column": "at, each some, some of the row",
        "some of the diagonal": "some some",
        "some of the row": "some some",
    },
    "digits": {
        "both": "at, at 0, all at 0, mixed up",
        "at": "some",
        "same": "some",
        "turned": "turned at",
        "at 0": "some",
        "all at 0": "at 0",
    },
    "lengths": {
        "y": "y-1, some, 0",
        "all y of this": "y, some",
        "not y": "not y+1",
        "y-1": "some before",
        "all": "y",
        "all before": "y-1",
        "of another": "",
    },
    "positions": {"y-1": "y", "y-z-1": "y-z, y, y-1", "y-z": "y", "some y": "y+s-2"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_implied(family: str) -> None:
    tests = FAMILIES[family]
    for name, t in tests.items():
        implied = {n for n, u in tests.items() if n != name and t.implies(u)}
        text = IMPLIED[family].get(name, "")
        assert implied == set(text.split(", ")) - {""}, name
        assert t.implies(Test(t.src, t.idx, t.pred, t.yes))


def test_of_nothing_all_is_true_and_some_is_false() -> None:
    for yes in (False, True):
        every, some = of_p(each(), yes=yes), of_p(any_of(), yes=yes)
        here = [holds(t, (2,), EMPTY, {"P": np.zeros((2, 0))}) for t in (every, some)]
        assert here[0].all() and not here[1].any()
        assert not every.implies(some) and region([every, of_p(each(), yes=not yes)]) is not None
    kept = resolve([Region([of_p(any_of())]), Region([of_p(any_of(), yes=False)])])
    assert EVERYWHERE not in kept


EACH, ANY = (
    [made(e, d) for e, d in zip((b, s, MORE), dims, strict=True)]
    for made, dims in ((each, (-1, -2, -3)), (any_of, (1, 2, 3)))
)  # a bound dimension has one extent
points = st.sampled_from([X, ZERO, ONE, *EACH, *ANY, EACH[0] + 1])
tests_of_rows = st.builds(
    lambda p, q, yes: nz("T", p, q, yes=yes), points, points | st.just(any_of(b, 4)), st.booleans()
)


@settings(max_examples=400, deadline=None)
@given(tests_of_rows, tests_of_rows, st.integers(0, 99))
def test_implications_hold_for_all_sizes(t: Test, u: Test, seed: int) -> None:
    rng = np.random.default_rng(seed)
    opposite = t.negate()
    for rows, more in product((0, 1, 2), (1, 2)):
        sizes = {"b": rows, "s": more - 1}
        values = {"T": rng.integers(0, 2, (5, 5))}
        here, there = (holds(x, (2,), sizes, values)[:rows] for x in (t, u))
        assert not t.implies(u) or not np.any(here & ~there)
        if opposite is not None:
            assert np.array_equal(holds(opposite, (2,), sizes, values)[:rows], ~here)
        else:
            assert t.alls and t.somes


@pytest.mark.parametrize(
    ("t", "opposite"),
    [
        (of_p(Y), "P[d0, d1] == 0"),
        (nz("M", each(), each(d=-2)), "some d-101: some d-102: M[d-101, d-102] == 0"),
        (nz("M", any_of(n=2), any_of(), yes=False), "all d-1: all d-2: M[d-2, d-1] != 0"),
        (nz("M", each(), any_of()), None),
        (position(Y - 2), "-d1+1 >= 0"),
        (position(each()), None),
        (position(any_of()), None),
        (Test("L", (X, Y), "below", True), "d1 >= L[d0]"),
        (Test("L", (X, Y), "below", False), "d1 < L[d0]"),
    ],
    ids=str,
)
def test_opposites(t: Test, opposite: str | None) -> None:
    found = t.negate()
    assert (found and str(found)) == opposite
    assert found is None or found.negate() == t != found


@pytest.mark.parametrize(
    ("t", "known"),
    [
        (position(Y), True),
        (position(Y - 1), None),
        (position(Y - s), False),
        (position(ZERO - Y), None),
        (position(ZERO - Y - 1), False),
        (position(Y - s + 1), None),
        (position(ZERO), True),
        (nz("Q", Y), None),
        (nz("Q", ZERO - 1), None),
    ],
    ids=str,
)
def test_truths_of_positions(t: Test, known: bool | None) -> None:
    assert truth(t) is known


def below(place: Poly, yes: bool = True, row: Poly = X) -> Test:
    return Test("L", (row, place), "below", yes)


@pytest.mark.parametrize(
    ("t", "dims", "every", "some"),
    [
        (below(Y), {1}, "s-1 < L[d0]", "0 < L[d0]"),
        (below(Y, False), {1, 2}, "0 >= L[d0]", "s-1 >= L[d0]"),
        (below(Y), {2}, None, "d1 < L[d0]"),
        (below(Y), {0}, None, "some d-101: d1 < L[d-101]"),
        (below(Y, row=Y), {1}, None, "some d-101: d-101 < L[d-101]"),
        (
            Test("K", (X, Y, Y), "below", True),
            {1},
            None,
            "some d-101: d-101 < K[d0, d-101]",
        ),
        (below(Y + 1), {1}, None, "some d-101: d-101+1 < L[d0]"),
        (below(Y * 2), {1}, None, "some d-101: 2*d-101 < L[d0]"),
        (below(Y * Z), {1}, None, "some d-101: d-101*d2 < L[d0]"),
        (below(s), {1}, None, "s < L[d0]"),
        (below(ONE), {1}, None, "1 < L[d0]"),
        (below(atom(Digit(1, TWO, s))), {1}, None, "some d-101: (d-101//2%s) < L[d0]"),
        (nz("M", Y, Z), {1, 2}, None, "some d-101: some d-102: M[d-101, d-102] != 0"),
        (nz("M", Z, any_of()), {2}, None, "some d-101: some d-102: M[d-102, d-101] != 0"),
        (
            nz("T", Z, any_of(n=2), any_of()),
            {0, 2},
            None,
            "some d-101: some d-102: some d-103: T[d-103, d-102, d-101] != 0",
        ),
        (nz("M", Y, Z), set(), None, "M[d1, d2] != 0"),
    ],
    ids=str,
)
def test_for_every_and_for_some_place(
    t: Test, dims: set[int], every: str | None, some: str
) -> None:
    found = least_or_last(t, dims, every=True)
    assert (found and str(found)) == every
    assert str(for_some(t, dims)) == some


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (nz("M", each(d=-2), each()), "all j: all k: M[k, j] != 0"),
        (nz("M", any_of(n=2), any_of()), "some j: some k: M[k, j] != 0"),
        (nz("M", any_of(), each()), "all j: some k: M[k, j] != 0"),
        (nz("M", Y, Z * s + 3), "M[q, d2*s+3] != 0"),
        (nz("M", atom(Digit(1, TWO, s)), Z), "M[(q//2%s), d2] != 0"),
        (nz("M", atom(Digit(1, TWO, s)), Y), "M[(q//2%s), (q%s)] != 0"),
        (nz("M", each(stride=TWO), Z), "all j: M[(j//2%s), d2] != 0"),
        (of_p(Y, "small"), "P[b, q] within 1e3"),
        (of_p(Y, "small", False), "P[b, q] not within 1e3"),
        (of_p(Y, "neg", False), "P[b, q] > -1e4"),
        (of_p(Y, "neg"), "P[b, q] <= -1e4"),
        (Test("L", (X, Y), "below", True), "q < L[b]"),
    ],
    ids=str,
)
def test_texts_for_people(t: Test, text: str) -> None:
    assert describe(Region([t]), {0: "b", 1: "q"}) == text


def test_tests_are_what_they_look_at() -> None:
    t = nz("M", Y * Z, each() + any_of() * 2)
    assert t.dims() == {1, 2, -1, SOME - 1} and t.alls == {-1} and t.somes == {SOME - 1}
    assert nz("M", bound_digit(-99, s), ZERO).alls == {-99}
    assert of_p(Y) != of_p(Z) and of_p(Y) != of_p(Y, "neg") and of_p(Y) != of_p(Y, yes=False)
    assert hash(of_p(Y)) == hash(of_p(Y)) and of_p(Y) != "P[d0, d1] != 0"
