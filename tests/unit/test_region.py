"""Tests and regions against brute force on small random tensors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import ZERO, Poly, dim_index, poly, reshape_map
from pitc.ir.nodes import Array
from pitc.ir.region import (
    EVERYWHERE,
    SOME,
    Region,
    Test,
    describe,
    for_all,
    for_some,
    inside,
    meet,
    position,
    prune,
    pull,
    region,
    resolve,
    truth,
)
from pitc.passes.audit.points import holds, where
from tests.region_worlds import (
    SPACE,
    X,
    Y,
    Z,
    b,
    bound_digit,
    regions,
    s,
    shape_of,
    some_tests,
    worlds,
)

MANY = settings(max_examples=150, deadline=None)
seeds = st.integers(0, 99)


@MANY
@given(some_tests(), some_tests(), seeds)
def test_implication_is_never_wrong(t: Test, u: Test, seed: int) -> None:
    if not t.implies(u):
        return
    for sizes, values in worlds(seed):
        here, there = (holds(x, shape_of(sizes), sizes, values) for x in (t, u))
        assert not np.any(here & ~there)


def test_implication_finds_instances_and_witnesses() -> None:
    key, every, some = Z, bound_digit(-1, s), bound_digit(SOME - 1, s)
    live = Test("P", (X, key), "nz", True)
    assert Test("P", (X, every), "nz", True).implies(live)
    assert live.implies(Test("P", (X, some), "nz", True))
    assert not live.implies(Test("P", (X, every), "nz", True))
    assert not Test("P", (X, some), "nz", True).implies(live)
    assert position(Y - 2).implies(position(Y - 1)) and not position(Y).implies(position(Y - 1))
    # the same bound index twice says less than two
    diagonal = Test("M", (every, every), "nz", True)
    assert not diagonal.implies(Test("M", (Y, Z), "nz", True))
    assert Test("M", (every, bound_digit(-2, s)), "nz", True).implies(Test("M", (Y, Z), "nz", True))
    # a digit that does not cover the dimension has no instance beyond it
    part = Test("Q", (bound_digit(-1, poly(2)),), "nz", True)
    assert not part.implies(Test("Q", (Y,), "nz", True))


@MANY
@given(some_tests(), seeds)
def test_negation_is_the_complement(t: Test, seed: int) -> None:
    n = t.negate()
    assert n is not None  # one kind of quantifier only
    assert n.negate() == t
    for sizes, values in worlds(seed):
        here, there = (holds(x, shape_of(sizes), sizes, values) for x in (t, n))
        assert np.array_equal(here, ~there)


@MANY
@given(some_tests(), seeds)
def test_truth_is_never_wrong(t: Test, seed: int) -> None:
    known = truth(t)
    for sizes, values in worlds(seed):
        if known is not None:
            assert np.all(holds(t, shape_of(sizes), sizes, values) == known)


@MANY
@given(regions(quantified=True), seeds)
def test_a_normal_region_is_the_same_or_empty(r: Region, seed: int) -> None:
    normal = region(r)
    for sizes, values in worlds(seed):
        here = where(r, shape_of(sizes), sizes, values)
        if normal is None:
            assert not here.any()
        else:
            assert np.array_equal(here, where(normal, shape_of(sizes), sizes, values))


def test_contradictions_are_empty() -> None:
    live = Test("P", (X, Y), "nz", True)
    dead = Test("P", (X, Y), "nz", False)
    every = Test("P", (X, bound_digit(-1, s)), "nz", False)
    assert region([live, dead]) is None
    assert region([live, every]) is None
    assert region([position(Y - 3), position(1 - Y)]) is None
    assert region([position(Y)]) == EVERYWHERE


@MANY
@given(regions(), st.sets(st.integers(0, 2)), seeds)
def test_for_all_is_a_conjunction_over_the_dimensions(r: Region, dims: set[int], seed: int) -> None:
    every = for_all(r, dims)
    exact = not any(t.pred == "pos" and t.dims() & dims for t in r)
    for sizes, values in worlds(seed):
        here = where(r, shape_of(sizes), sizes, values)
        expected = np.broadcast_to(here.all(axis=tuple(dims), keepdims=True), here.shape)
        if every is None:
            assert not expected.any() or not exact
            continue
        found = where(every, shape_of(sizes), sizes, values)
        assert not np.any(found & ~expected)
        if exact:
            assert np.array_equal(found, expected)


@MANY
@given(some_tests(), st.sets(st.integers(0, 2)), seeds)
def test_for_some_is_a_disjunction_over_the_dimensions(t: Test, dims: set[int], seed: int) -> None:
    if t.pred == "pos" or t.alls:
        return
    some = for_some(t, dims)
    for sizes, values in worlds(seed):
        here = holds(t, shape_of(sizes), sizes, values)
        expected = np.broadcast_to(here.any(axis=tuple(dims), keepdims=True), here.shape)
        assert np.array_equal(holds(some, shape_of(sizes), sizes, values), expected)


NEW_SPACES: list[tuple[tuple[Poly, ...], tuple[Poly, ...]]] = [
    ((s, b, s), (dim_index(1, b), dim_index(0, s), dim_index(2, s))),  # Transpose
    ((b, s), (dim_index(0, b), dim_index(1, s), ZERO)),  # a broadcast operand
    ((b, s), (dim_index(0, b), dim_index(1, s), dim_index(1, s))),  # a diagonal
    ((b * s, s), ()),  # Reshape
    ((b, s * s), ()),
]


@MANY
@given(regions(quantified=True), st.sampled_from(NEW_SPACES), seeds)
def test_pull_is_indexing(
    r: Region, case: tuple[tuple[Poly, ...], tuple[Poly, ...]], seed: int
) -> None:
    space, maps = case
    full = maps or reshape_map(space, SPACE)
    new = pull(r, full, SPACE)
    for sizes, values in worlds(seed):
        old = where(r, shape_of(sizes), sizes, values)
        shape = shape_of(sizes, space)
        at = dict(enumerate(np.indices(shape)))
        places = tuple(np.broadcast_to(p.evaluate(sizes, at), shape) for p in full if p is not None)
        assert len(places) == len(SPACE)
        if new is None:
            assert not old[places].any() or any(_mixes(t) for t in r)
        else:
            assert np.array_equal(where(new, shape, sizes, values), old[places])


def _mixes(t: Test) -> bool:
    """A test of a composed index may not be expressible in another space."""
    return any(len(p.digits()) > 1 for p in t.idx)


def _cover(rs: list[Region], sizes: dict[str, int], values: dict[str, Array]) -> Array:
    out = np.zeros(shape_of(sizes), bool)
    for r in rs:
        out |= where(r, shape_of(sizes), sizes, values)
    return out


@MANY
@given(st.lists(regions(quantified=True), max_size=4), seeds)
def test_prune_and_resolve_cover_the_same(rs: list[Region], seed: int) -> None:
    for sizes, values in worlds(seed):
        expected = _cover(rs, sizes, values)
        assert np.array_equal(_cover(prune(rs), sizes, values), expected)
        assert np.array_equal(_cover(resolve(rs), sizes, values), expected)


@MANY
@given(st.lists(st.lists(regions(), max_size=3), max_size=3), seeds)
def test_meet_is_an_intersection(lists: list[list[Region]], seed: int) -> None:
    found = meet(lists)
    for sizes, values in worlds(seed):
        expected = np.ones(shape_of(sizes), bool)
        for rs in lists:
            expected &= _cover(rs, sizes, values)
        assert not np.any(_cover(found, sizes, values) & ~expected)


@MANY
@given(regions(quantified=True), regions(quantified=True), seeds)
def test_inside_is_never_wrong(r: Region, k: Region, seed: int) -> None:
    if inside(r, k):
        for sizes, values in worlds(seed):
            here, there = (where(q, shape_of(sizes), sizes, values) for q in (r, k))
            assert not np.any(here & ~there)


def test_resolve_bridges_a_guard() -> None:
    dead = Test("P", (X, Z), "nz", False)
    some = Test("P", (X, bound_digit(SOME - 1, s)), "nz", True)
    every = Test("P", (X, bound_digit(-1, s)), "nz", False)
    bridged = resolve([Region({dead, some}), Region({every})])
    assert Region({dead}) in bridged


def test_provenance_is_kept_apart() -> None:
    t = Test("P", (X, Y), "nz", False)
    proven, resting = Region({t}), Region({t}, via=4)
    assert inside(resting, proven) and not inside(proven, resting)
    assert prune([proven, resting]) == [proven]
    assert (proven | resting).via == 4 and region(resting) == resting
    assert proven != resting


def test_order_does_not_depend_on_construction() -> None:
    ts = [Test("P", (X, Y), "nz", False), Test("Q", (Z,), "nz", True), position(Y - Z)]
    assert Region(ts).text == Region(reversed(ts)).text
    assert list(Region(ts)) == list(Region(reversed(ts)))


@pytest.mark.parametrize(
    ("r", "text"),
    [
        (EVERYWHERE, "everywhere"),
        (Region({Test("attention_mask", (X, Y), "nz", False)}), "attention_mask[d0, d1] == 0"),
        (
            Region({Test("mask", (X, bound_digit(-1, s)), "nz", False)}),
            "all j: mask[d0, j] == 0",
        ),
        (
            Region({Test("m: x", (bound_digit(SOME - 1, s),), "neg", False)}),
            "some j: m: x[j] > -1e4",
        ),
        (Region({position(Y - Z - 1)}), "d1-d2-1 >= 0"),
        (Region({Test("len", (X, Y), "below", False)}), "d1 >= len[d0]"),
    ],
)
def test_descriptions_are_for_people(r: Region, text: str) -> None:
    assert describe(r) == text


def test_descriptions_take_names() -> None:
    r = Region({Test("mask", (X, Y), "nz", False)})
    assert describe(r, {0: "batch", 1: "token"}) == "mask[batch, token] == 0"


@MANY
@given(some_tests(), some_tests(), st.sampled_from([X, Y, Z]), st.sampled_from([X, Y, Z]), seeds)
def test_places_that_a_value_tells_apart_are_not_the_same(
    t: Test, u: Test, i: Poly, j: Poly, seed: int
) -> None:
    """Normal regions hold where their tests do, with positions beside a value at two places."""
    one, other = Test("P", (X, i), "nz", True), Test("P", (X, j), "nz", False)
    given_tests = [one, other, position(i - j - 1), t, u]
    found = region(given_tests)
    for sizes, values in worlds(seed):
        every = [holds(x, shape_of(sizes), sizes, values) for x in given_tests]
        want = np.logical_and.reduce(np.broadcast_arrays(*every))
        got = [holds(x, shape_of(sizes), sizes, values) for x in found or ()]
        if found is None:
            assert not want.any()
        else:
            assert (np.logical_and.reduce(np.broadcast_arrays(want | True, *got)) == want).all()


def test_positions_beside_a_value_at_two_places() -> None:
    one, other = Test("P", (X, Y), "nz", True), Test("P", (X, Z), "nz", False)
    both = Region([one, other])
    above, below = region(both | Region([position(Y - Z - 1)])), Region([position(Z - Y - 1)])
    assert above is not None and position(Y - Z) in above.tests
    assert region(both | Region([position(Y - Z), position(Z - Y)])) is None
    assert region(both) in resolve([above, both | below])  # they cover it
    # another value, the same side, or two coordinates: nothing is known
    for t in (
        Test("Q", (Z,), "nz", False),
        Test("P", (X, Z), "nz", True),
        Test("P", (Z, X), "nz", False),
    ):
        kept = region([one, t, position(Y - Z - 1)])
        assert kept is not None and position(Y - Z - 1) in kept.tests
    pair = [Test("M", (Y, Z), "nz", True), Test("M", (Z, ZERO), "nz", False)]
    assert position(Y - Z - 1) in (region([*pair, position(Y - Z - 1)]) or ())
