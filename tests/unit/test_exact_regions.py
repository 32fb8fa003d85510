"""Regions: lists of them against truth tables, and exact results of worked examples."""

from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import ONE, ZERO, Digit, Poly, atom, dim_index, poly
from pitc.ir.region import (
    EVERYWHERE,
    MAX_TESTS,
    SOME,
    Region,
    Test,
    all_hold,
    covered,
    for_all,
    intersection,
    meet,
    position,
    prune,
    pull,
    region,
    resolve,
    union,
)
from tests.region_worlds import SPACE, X, Y, Z, b, bound_digit, s

NAMES = "pqrw"
WORLDS = [dict(zip(NAMES, flags, strict=True)) for flags in product((False, True), repeat=4)]
MANY = settings(max_examples=200, deadline=None)


def flag(name: str, yes: bool = True, *idx: Poly) -> Test:
    return Test(name, idx, "nz", yes)


P, Q, R, W = map(flag, NAMES)
NO_P, NO_Q, NO_R, NO_W = (flag(name, False) for name in NAMES)
EVERY, SOMEWHERE = bound_digit(-1, s), bound_digit(SOME - 1, s)
LIVE = flag("P", True, X, Y)
DEAD = flag("P", False, X, Y)
ALL_DEAD, SOME_LIVE = flag("P", False, X, EVERY), flag("P", True, X, SOMEWHERE)
MIXED = flag("M", True, EVERY, SOMEWHERE)  # its opposite cannot be said

literals = st.builds(flag, st.sampled_from(NAMES), st.booleans())
cubes = st.lists(literals, max_size=3)
lists = st.lists(st.builds(Region, cubes), max_size=3)


def true_in(world: Mapping[str, bool], regions: Sequence[Sequence[Test] | Region]) -> bool:
    return any(all(world[t.src] == t.yes for t in r) for r in regions)


@MANY
@given(st.lists(cubes, max_size=6))
def test_covered_is_a_tautology(regions: list[list[Test]]) -> None:
    assert covered(regions, len(NAMES)) == all(true_in(w, regions) for w in WORLDS)


@pytest.mark.parametrize(
    ("regions", "splits"),
    [
        ([[]], 0),
        ([[P], [NO_P]], 1),
        ([[P, Q], [NO_P], [P, NO_Q]], 2),
        # the first test of the shortest region is looked at first
        ([[Q, R, W], [P], [NO_P]], 1),
        ([[P, Q], [P, NO_Q], [NO_P, R], [NO_P, NO_R]], 2),
        # what a test excludes is not looked at again
        ([[NO_P], [P, Q], [P, NO_Q]], 2),
        (
            [
                *([NO_P, W], [NO_P, NO_W], [P, Q, R], [P, Q, NO_R]),
                *([P, NO_Q, R], [P, NO_Q, NO_R]),
            ],
            3,
        ),
        # a test of all keys and one of some key
        ([[ALL_DEAD], [SOME_LIVE]], 1),
        ([[ALL_DEAD], [DEAD, SOME_LIVE], [LIVE]], 2),
    ],
    ids=str,
)
def test_all_cases_are_covered_by_that_many_splits(regions: list[list[Test]], splits: int) -> None:
    assert covered(regions, splits)
    assert not splits or not covered(regions, splits - 1)


def test_what_has_no_opposite_is_not_split() -> None:
    assert not covered([], 2) and not covered([[MIXED]], 2)
    assert not covered([[P], [NO_P, MIXED]], 2)
    assert covered([[P], [NO_P], [Q, MIXED]], 1)


@MANY
@given(lists, lists)
def test_lists_hold_where_their_regions_do(first: list[Region], second: list[Region]) -> None:
    both = intersection(first, second)
    for world in WORLDS:
        wanted = true_in(world, first) and true_in(world, second)
        assert true_in(world, both) == wanted
        assert true_in(world, meet([first, second])) == wanted
        assert true_in(world, all_hold([first, second])) == wanted
        assert true_in(world, prune(first)) == true_in(world, first)
        assert true_in(world, resolve(first)) == true_in(world, first)


@MANY
@given(st.builds(Region, cubes), st.builds(Region, cubes))
def test_regions_are_cubes(one: Region, other: Region) -> None:
    normal = region(one)
    assert list(one) == sorted(one, key=lambda t: t.text)
    for world in WORLDS:
        both = true_in(world, [one]) and true_in(world, [other])
        assert true_in(world, [one | other]) == true_in(world, [union([one, other])]) == both
        assert true_in(world, [one]) == (normal is not None and true_in(world, [normal]))


def test_lists_say_nothing_twice() -> None:
    a, c, d = Region([P]), Region([Q]), Region([R])
    assert intersection([a, c], [a, d]) == [a, c | d]
    assert set(intersection([a, c], [a | c])) == {a | c} == set(intersection([a | c], [a, c]))
    assert intersection([a], []) == [] == intersection([], [a])
    assert intersection([EVERYWHERE], [a, c]) == [a, c] == intersection([a, c], [EVERYWHERE])
    assert intersection([a], [Region([NO_P]), c]) == [a | c]
    assert all_hold([]) == [EVERYWHERE] == meet([]) and meet([[a], [], [c]]) == []
    assert meet([[c, a, a | c]]) == [a, c] and meet([[a, c], [c, a]]) == [a, c]


def test_of_regions_the_widest_are_left() -> None:
    a, c = Region([P]), Region([Q])
    live, some = Region([LIVE]), Region([SOME_LIVE])
    assert prune([live, some]) == [some] == prune([some, live])
    assert prune([live, c, some, a]) == prune([a, some, c]) == [a, c, some]
    assert prune([a, EVERYWHERE]) == [EVERYWHERE]
    assert prune([EVERYWHERE, Region(via=2)]) == [EVERYWHERE]
    assert prune([Region(via=2), a]) == [Region(via=2), a]
    assert prune([Region([P], 3), Region([P, Q], 3), Region([P, R], 1)]) == [
        Region([P], 3),
        Region([P, R], 1),
    ]
    many = [flag(f"x{k}") for k in range(MAX_TESTS + 1)]
    for others in ([], [a]):
        assert prune([*others, Region(many)]) == others
        assert prune([*others, Region(many[1:])]) == [*others, Region(many[1:])]


def test_two_cases_are_one() -> None:
    assert resolve([Region([P, Q]), Region([NO_P, Q])]) == [Region([Q])]
    assert resolve([Region([P]), Region([NO_P])]) == [EVERYWHERE]
    assert resolve([]) == [] and resolve([Region([P])]) == [Region([P])]
    # in two steps, and not in three
    steps = [Region([P, Q]), Region([P, NO_Q]), Region([NO_P, R]), Region([NO_P, NO_R])]
    assert resolve(steps) == [EVERYWHERE]
    assert resolve([Region([MIXED]), Region([MIXED, Q])]) == [Region([MIXED])]
    assert resolve([Region([P, R]), Region([NO_P, NO_R])]) == [
        Region([P, R]),
        Region([NO_P, NO_R]),
    ]
    many = [flag(f"x{k}") for k in range(MAX_TESTS - 1)]
    assert Region(many) in resolve([Region([P, *many]), Region([NO_P, *many])])


def test_joined_regions_rest_on_both() -> None:
    nothing, four = Region(), Region(via=4)
    assert (nothing | four).via == (four | nothing).via == 4
    assert (Region([P], 1) | Region([Q], 2)).via == 3 == (Region([P], 3) | Region([P], 1)).via
    assert (Region([P]) | four) == (four | Region([P])) == Region([P], 4)
    assert nothing != "everywhere" and nothing.text == "everywhere" == str(Region(via=1))
    assert Region([P]) != Region([Q]) and Region([P], 1) != Region([P], 2) != Region([P, Q], 2)
    assert Region([P, Q]).text == "p[] != 0 and q[] != 0"
    assert union([]) == EVERYWHERE and union([Region([P], 1), four]) == Region([P], 5)


def test_what_is_decided_is_dropped() -> None:
    assert region([P, Q, NO_P]) is None and region([LIVE, flag("Q"), ALL_DEAD]) is None
    assert region([ALL_DEAD, DEAD, P]) == Region([ALL_DEAD, P])
    assert region([position(Y), ALL_DEAD, DEAD]) == Region([ALL_DEAD])
    assert region([position(Y), LIVE, DEAD]) is None
    both = Region([MIXED, flag("M", True, Y, Z), flag("M", False, Z, Y)])
    assert region(both) == both
    assert region([position(ZERO - 1), P]) is None


BATCH = dim_index(1, b)
PART = atom(Digit(1, ONE, poly(2)))  # of an extent that two may not divide


@pytest.mark.parametrize(
    ("t", "maps", "found"),
    [
        (flag("Q", True, PART), (Y, X, Z), None),
        (flag("Q", True, Y), (None, Z, None), "Q[d2] != 0"),
        (flag("Q", True, Y), (X, None, Z), None),
        (flag("P", True, X, EVERY), (BATCH, None, None), "all d-1: P[d1, d-1] != 0"),
        (flag("Q", True, EVERY), {}, "all d-1: Q[d-1] != 0"),
        (flag("C"), {}, "C[] != 0"),
        (flag("P", True, X, Y), {0: X, 1: Y}, "P[d0, d1] != 0"),
        (position(Y), (X, ZERO - 1, Z), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [SPACE, None])
def test_pulled_regions(
    t: Test,
    maps: Mapping[int, Poly | None],
    found: str | None,
    shape: tuple[Poly, ...] | None,
) -> None:
    pulled = pull(Region([t], 8), maps, shape)
    assert (None if pulled is None else (str(pulled), pulled.via)) == (found and (found, 8))


def test_pulled_within_its_own_space() -> None:
    """A place that is in range by its shape, and a digit that no arithmetic finds."""
    first = {0: BATCH, 1: ZERO}
    assert str(pull(Region([LIVE]), first, SPACE)) == "P[d1, 0] != 0"
    assert pull(Region([LIVE]), first) is None
    odd = Region([flag("Q", True, PART)])
    assert pull(odd, (X, Y, Z), SPACE) == odd and pull(odd, (X, Y, Z)) is None
    assert pull(odd, (X, Z, Y), SPACE) is None


def test_pulled_nowhere_is_everywhere() -> None:
    assert pull(EVERYWHERE, (X, Y, Z), SPACE) == EVERYWHERE == pull(EVERYWHERE, (None,))


PAIR = flag("M", True, Y, Z)
NAMED = [bound_digit(d, s) for d in (-1, -2, -97, -98, -99)]
ROWS = dim_index(1, s) * s * 2 - dim_index(0, b) * s + Z - 3


@pytest.mark.parametrize(
    ("tests", "dims", "found"),
    [
        ([PAIR], {0}, "M[d1, d2] != 0"),
        ([PAIR], set(), "M[d1, d2] != 0"),
        ([PAIR], {1}, "all d-1: M[d-1, d2] != 0"),
        ([PAIR], {1, 2}, "all d-1: all d-2: M[d-1, d-2] != 0"),
        ([PAIR, P], {2}, "all d-1: M[d1, d-1] != 0 and p[] != 0"),
        ([flag("M", True, Z, NAMED[0])], {2}, "all d-1: all d-2: M[d-2, d-1] != 0"),
        ([flag("T", True, Z, *NAMED[:2])], {2}, "all d-1: all d-2: all d-3: T[d-3, d-1, d-2] != 0"),
        # names of bound dimensions run out
        ([flag("M", True, Z, NAMED[3])], {2}, "all d-98: all d-99: M[d-99, d-98] != 0"),
        ([flag("M", True, Z, NAMED[4])], {2}, None),
        (
            [flag("T", True, Y, Z, NAMED[2])],
            {1, 2},
            "all d-97: all d-98: all d-99: T[d-98, d-99, d-97] != 0",
        ),
        ([flag("T", True, Y, Z, NAMED[3])], {1, 2}, None),
        # the first or the last place decides
        ([Test("L", (X, Y), "below", True)], {1}, "s-1 < L[d0]"),
        ([Test("L", (X, Y), "below", False)], {1}, "0 >= L[d0]"),
        # the least value of a position
        ([position(Y - Z)], {1}, "-d2 >= 0"),
        ([position(Y - Z)], {2}, "d1-s+1 >= 0"),
        ([position(Y - Z)], {1, 2}, "-s+1 >= 0"),
        ([position(ROWS)], {1}, "-d0*s+d2-3 >= 0"),
        ([position(ROWS)], {0}, "2*d1*s-b*s+d2+s-3 >= 0"),
        ([position(ROWS)], {2}, "-d0*s+2*d1*s-3 >= 0"),
        ([position(Y - Z)], {0}, "d1-d2 >= 0"),
        ([position(Y + b)], {1}, "everywhere"),
        ([position(Y - 1), PAIR], {1}, None),
    ],
    ids=str,
)
def test_for_all_says(tests: list[Test], dims: set[int], found: str | None) -> None:
    every = for_all(Region(tests, 2), dims)
    assert (None if every is None else (str(every), every.via)) == (found and (found, 2))
