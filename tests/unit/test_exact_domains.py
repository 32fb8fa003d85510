"""Domains: exact results of worked examples, and dead points against brute force."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import ONE, ZERO, Atom, Digit, Poly, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.passes.audit.points import where
from pitc.passes.regions.domain import (
    Coords,
    Domain,
    covering,
    domain_of,
    exchange,
    named_coords,
)
from tests.region_worlds import regions, shape_of, worlds

b, s, h = sym("b"), sym("s"), sym("h")
TWO = poly(2)
D0, D1, D2, D3 = (Digit(d, ONE, e) for d, e in enumerate((b, s, s, h)))
X0, X1, X2, X3 = map(atom, (D0, D1, D2, D3))
EVERY, ANY = Digit(-1, ONE, s), Digit(SOME - 1, ONE, s)


def nz(name: str, *idx: Poly, yes: bool = False) -> Test:
    return Test(name, idx, "nz", yes)


def dead_of(domain: Domain) -> set[str]:
    return {str(t) for t in domain.dead}


@pytest.mark.parametrize(
    ("tests", "coords", "extents", "dead"),
    [
        # in the order in which a test names them
        ([nz("m", X2, X0)], [D2, D0], (s, b), {"m[d0, d1] == 0"}),
        ([nz("m", X0 * s + X2)], [D0, D2], (b, s), {"m[d0*s+d1] == 0"}),
        ([nz("m", X2 * h + X3 * 2 + 5)], [D2, D3], (s, h), {"m[d0*h+2*d1+5] == 0"}),
        # the longer test first, then by name, predicate and answer
        ([nz("a", X0), nz("m", X2, X3)], [D2, D3, D0], None, None),
        ([nz("a", X0), nz("m", X2)], [D0, D2], (b, s), {"a[d0] == 0", "m[d1] == 0"}),
        ([nz("n", X0), nz("m", X2)], [D2, D0], (s, b), {"m[d0] == 0", "n[d1] == 0"}),
        ([Test("m", (X0,), "nz", False), Test("m", (X2,), "neg", False)], [D2, D0], None, None),
        ([nz("m", X0, yes=True), nz("m", X2)], [D2, D0], None, None),
        # positions last, and bound tests after the others
        ([position(X0 - 1), nz("m", X2)], [D2, D0], (s, b), {"m[d0] == 0", "d1-1 >= 0"}),
        ([position(X0 - 1)], [D0], (b,), {"d0-1 >= 0"}),
        ([nz("a", X0, atom(EVERY)), nz("m", X2)], [D2, D0], None, None),
        ([nz("a", X0, atom(ANY)), nz("m", X2)], [D2, D0], None, None),
        ([nz("a", atom(EVERY), X0)], [D0], (b,), {"all d-1: a[d-1, d0] == 0"}),
        ([nz("a", X0), nz("m", ZERO, X2)], [D2, D0], None, None),
        # digits of one dimension
        (
            [nz("m", atom(Digit(0, s, b)), atom(Digit(0, ONE, s)))],
            [Digit(0, s, b), Digit(0, ONE, s)],
            (b, s),
            {"m[d0, d1] == 0"},
        ),
        # no more than three, and one place of a mask
        ([nz("m", X0, X1, X2)], [D0, D1, D2], (b, s, s), {"m[d0, d1, d2] == 0"}),
        ([nz("m", ZERO, ZERO)], [], (), {"m[0, 0] == 0"}),
        ([nz("m", ZERO), position(poly(3))], [], (), {"m[0] == 0", "3 >= 0"}),
        ([nz("m", ZERO), nz("c")], [], (), {"m[0] == 0", "c[] == 0"}),
    ],
)
def test_coordinates_are_the_digits_in_order(
    tests: list[Test],
    coords: Sequence[Digit],
    extents: tuple[Poly, ...] | None,
    dead: set[str] | None,
) -> None:
    found = domain_of(Region(tests))
    assert found is not None
    domain, names = found
    assert names == tuple(coords)
    assert domain.extents == (extents or tuple(c.extent for c in coords))
    assert dead is None or dead_of(domain) == dead
    assert domain.rank == len(coords)
    assert domain.at(names) == Region(tests)


@pytest.mark.parametrize(
    "tests",
    [
        [],
        [position(poly(3))],
        [nz("c")],
        [nz("a", atom(EVERY))],
        [nz("m", X0, X1, X2, X3, atom(Digit(4, ONE, s)))],
        [nz("m", atom(Digit(0, ONE, b * s)), atom(Digit(0, s, b)))],
        [nz("m", X0, atom(Digit(0, TWO, TWO)))],
    ],
)
def test_no_domain(tests: list[Test]) -> None:
    assert domain_of(Region(tests)) is None


@settings(max_examples=150, deadline=None)
@given(regions(quantified=True), st.integers(0, 99))
def test_a_domain_says_what_its_region_says(dead: Region, seed: int) -> None:
    """Its points, put at the coordinates, are dead where the region holds; else a case holds."""
    found = domain_of(dead)
    if found is None:
        return
    domain, coords = found
    cases = domain.live_cases(coords)
    assert (cases is None) == any(t.negate() is None for t in dead)
    for sizes, values in worlds(seed):
        shape = shape_of(sizes)
        want = where(dead, shape, sizes, values)
        np.testing.assert_array_equal(where(domain.at(coords), shape, sizes, values), want)
        if cases is not None:
            live = [where(Region([c]), shape, sizes, values) for c in cases]
            np.testing.assert_array_equal(np.any(live, axis=0), ~want)
    assert coords in list(named_coords(domain, [dead]))


MASK = Domain((b, s), frozenset([nz("m", dim_index(0, b), dim_index(1, s))]))
GUARDED = Domain((b, s), MASK.dead | {nz("g", dim_index(0, b), atom(EVERY), yes=True)})
TWICE = Domain((s, s), frozenset([nz("m", dim_index(0, s)), nz("m", dim_index(1, s))]))
LATE = Domain((s,), frozenset([position(dim_index(0, s) - 1)]))


@pytest.mark.parametrize(
    ("domain", "dead", "found"),
    [
        (MASK, [[nz("m", X0, X2)], [nz("m", X0, X1)]], [(D0, D2), (D0, D1)]),
        (MASK, [[nz("m", atom(Digit(3, s, b)), X1)]], [(Digit(3, s, b), D1)]),
        # another value, predicate, answer, number of indices or of digits
        (MASK, [[nz("n", X0, X2)]], []),
        (MASK, [[Test("m", (X0, X2), "neg", False)]], []),
        (MASK, [[nz("m", X0, X2, yes=True)]], []),
        (MASK, [[nz("m", X0, X2, ZERO)]], []),
        (MASK, [[nz("m", X0, ZERO)]], []),
        (MASK, [[nz("m", X0, X2 + 1)]], []),
        (MASK, [[nz("m", X0 * 2, X2)]], []),
        # of other extents, swapped, the same twice
        (MASK, [[nz("m", X0, X3)]], []),
        (MASK, [[nz("m", X2, X0)]], []),
        (MASK, [[nz("m", X0, atom(Digit(2, TWO, s)))]], [(D0, Digit(2, TWO, s))]),
        (TWICE, [[nz("m", X2)]], []),
        (TWICE, [[nz("m", X1), nz("m", X2)]], [(D1, D2), (D2, D1)]),
        # all tests belong to the domain; not all of its coordinates need to be named
        (MASK, [[nz("m", X0, X2), nz("n", X0)]], []),
        (GUARDED, [[nz("g", X0, atom(EVERY), yes=True)]], []),
        (GUARDED, [[nz("m", X0, X1), nz("g", X0, atom(EVERY), yes=True)]], [(D0, D1)]),
        (GUARDED, [[nz("m", X0, X1), nz("g", X3, atom(EVERY), yes=True)]], []),
        (GUARDED, [[nz("m", X0, X1)]], [(D0, D1)]),
        (MASK, [[]], []),
        (LATE, [[position(X2 - 1)]], [(D2,)]),
        (LATE, [[position(X2 - 2)]], []),
        (LATE, [[position(X0 - 1)]], []),
    ],
)
def test_coordinates_that_dead_regions_name(
    domain: Domain, dead: list[list[Test]], found: list[Coords]
) -> None:
    named = list(named_coords(domain, map(Region, dead)))
    assert sorted(named, key=str) == sorted(found, key=str)


def test_a_dead_region_covers_the_dead_points_of_a_domain() -> None:
    at = (D0, D2)
    mask, guard = nz("m", X0, X2), nz("g", X0, atom(EVERY), yes=True)
    wide, other, both = Region([mask]), Region([nz("m", X0, X1)]), Region([mask, guard])
    assert covering(MASK, at, [other, wide]) == wide
    assert covering(MASK, at, [other, both]) is None
    assert covering(GUARDED, at, [both, wide]) == both
    assert covering(GUARDED, at, [other]) is None
    assert covering(MASK, at, []) is None
    instance = Region([nz("g", X0, X1, yes=True)])  # of what holds for all
    assert covering(GUARDED, at, [instance]) == instance
    never = Domain((b, s), MASK.dead | {position(dim_index(1, s) * -1 - 1)})
    assert covering(never, at, [wide]) is None  # it has no dead point


def test_what_a_domain_looks_at() -> None:
    assert GUARDED.sources() == {"m", "g"} and LATE.sources() == set()
    assert Domain((b,), LATE.dead | MASK.dead).sources() == {"m"}
    some = Domain((b, s), frozenset([nz("g", dim_index(0, b), atom(ANY))]))
    one = Domain((), frozenset([nz("m", ZERO)]))
    assert [d.rarely_dead for d in (MASK, LATE, some, GUARDED, one)] == [False] * 3 + [True] * 2
    mixed = nz("g", atom(EVERY), atom(ANY))
    assert Domain((b, s), MASK.dead | {mixed}).live_cases((D0, D1)) is None
    assert Domain((b, s), frozenset([mixed])).live_cases((D0, D1)) is None
    assert MASK.live_cases((D0, D2)) == [nz("m", X0, X2, yes=True)]
    assert Domain((), frozenset()).live_cases(()) == []


@pytest.mark.parametrize(
    ("extents", "tests", "share"),
    [
        ((b, s), [nz("m", X0, X1)], 1.0),
        ((b, poly(4)), [nz("m", X0), position(-X1)], 0.25),  # one place of four
        ((b, poly(4)), [nz("m", X0), position(X1 - 1)], 0.75),
        ((b, poly(4)), [position(X1 - 1), position(poly(2) - X1)], 0.5),
        ((poly(2), poly(4)), [position(-X0), position(X1 - 3)], 0.125),
        ((b, s), [position(X1 - 1)], 1.0),  # of an extent that is not known
        ((b, poly(4)), [position(X1 - s)], 1.0),
        ((b, poly(4)), [position(X1 - X0)], 1.0),  # of two coordinates
        ((poly(0), poly(4)), [position(X0), position(-X1)], 0.25),
        ((poly(1 << 30),), [position(-X0)], 1.0),  # too many to look at
        ((poly(4),), [position(X0 - 9)], 0.0),
    ],
)
def test_share_that_is_dead_at_most(
    extents: tuple[Poly, ...], tests: Sequence[Test], share: float
) -> None:
    """Every coordinate is one dimension, D0, D1: the digits' extents are those of the domain."""
    digits: dict[Atom, Poly] = {
        d: atom(Digit(k, ONE, e)) for k, (d, e) in enumerate(zip((D0, D1), extents, strict=False))
    }
    dead = frozenset(exchange(t, digits) for t in tests)
    assert Domain(extents, dead).most_dead == share
