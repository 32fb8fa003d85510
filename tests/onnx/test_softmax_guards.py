"""Which rows of a softmax keep a key: guards against brute force, and the guards that are found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import ONE, dim_index
from pitc.ir.region import SOME, Region, Test, describe, position
from pitc.passes.audit.points import where
from pitc.passes.facts.softmax import Lines, keeping
from tests.region_worlds import SPACE, X, Y, Z, bound_digit, regions, s, shape_of, worlds

NAMES = {0: "b", 1: "q", 2: "k"}
NORMAL = [(2,), (1,), (1, 2), (0,)]


@settings(max_examples=400, deadline=None)
@given(regions(quantified=True), st.sampled_from(NORMAL), st.integers(0, 99))
def test_a_row_where_a_guard_holds_keeps_a_key(
    kept: Region, normal: tuple[int, ...], seed: int
) -> None:
    guards = list(keeping(kept, Lines(SPACE, normal)))
    for sizes, values in worlds(seed) if guards else ():
        shape = shape_of(sizes)
        some = where(kept, shape, sizes, values).any(axis=normal, keepdims=True)
        for guard in guards:
            assert not np.any(where(guard, shape, sizes, values) & ~some), guard


def nz(name: str, *idx: object, yes: bool = True) -> Test:
    return Test(name, idx, "nz", yes)  # type: ignore[arg-type]


MASK, ROWS, PAIRS = nz("P", X, Z), nz("Q", Y), nz("M", Y, Z)
SMALL = Test("P", (X, Z), "small", True)
ANY, EVERY = bound_digit(SOME - 1, s), bound_digit(-1, s)


@pytest.mark.parametrize(
    ("kept", "guards"),
    [
        ([], ["everywhere"]),
        ([ROWS], ["Q[q] != 0"]),
        ([MASK], ["some j: P[b, j] != 0", "P[b, q] != 0"]),
        # of several tests the row of queries counts as well
        ([MASK, ROWS], ["Q[q] != 0 and some j: P[b, j] != 0", "P[b, q] != 0 and Q[q] != 0"]),
        (
            [MASK, PAIRS],
            [
                "all j: P[b, j] != 0 and some j: M[q, j] != 0",
                "all j: M[q, j] != 0 and some j: P[b, j] != 0",
                "M[q, q] != 0 and P[b, q] != 0",
            ],
        ),
        # a position: the key at the row's own one
        ([position(Y - Z)], ["everywhere"]),
        ([position(Y - Z), MASK], ["P[b, q] != 0"]),
        # or the last or the first one that positions allow, where there is one
        ([position(Z - Y - 1)], ["-q+s-2 >= 0"]),
        # biases small at all keys
        (
            [SMALL, PAIRS],
            [
                "all j: P[b, j] within 1e3 and some j: M[q, j] != 0",
                "all j: M[q, j] != 0 and some j: P[b, j] within 1e3",
                "M[q, q] != 0 and P[b, q] within 1e3",
                "M[q, q] != 0 and all j: P[b, j] within 1e3",
            ],
        ),
        ([position(Z - 1), MASK], ["P[b, q] != 0 and q-1 >= 0"]),
        (
            [SMALL, Test("P", (X, Y), "small", False)],
            ["P[b, q] not within 1e3 and some j: P[b, j] within 1e3"],
        ),
        # the row exists, so there is a first key
        ([Test("L", (X, Z), "below", True)], ["0 < L[b]", "q < L[b]"]),
        # what is bound already is no test of this row's keys
        ([nz("M", Y, ANY)], ["some j: M[q, j] != 0"]),
        ([nz("M", EVERY, Z)], ["all j: M[j, q] != 0"]),
        ([nz("M", ANY, Z)], ["some j: M[j, q] != 0"]),
    ],
    ids=str,
)
def test_guards_that_are_found(kept: list[Test], guards: list[str]) -> None:
    found = {describe(g, NAMES) for g in keeping(Region(kept), Lines(SPACE, (2,)))}
    assert found == set(guards)


def test_one_key_more_does_not_move_those_of_rows() -> None:
    """A sink behind them: rows stand at the first keys, not at the last ones."""
    lines = Lines((*SPACE[:2], s + 1), (2,))
    key = dim_index(2, s + 1)
    before = position(s - 1 - key)
    for kept, guard in [
        ([position(Y - key), before], "everywhere"),
        ([position(Y - key), position(key - Y + 2), before], "everywhere"),
        ([before, nz("P", X, key)], "P[b, q] != 0"),
    ]:
        found = {describe(g, NAMES) for g in keeping(Region(kept), lines)}
        assert guard in found


def test_without_keys_there_is_no_place_of_a_row_among_them() -> None:
    assert list(keeping(Region([MASK]), Lines((*SPACE[:2], ONE + 1), (2,)))) != []
    assert [describe(g) for g in keeping(Region([position(Y - Z)]), Lines(SPACE, (1, 2)))] == []


def test_without_names_nothing_is_said_of_all_keys() -> None:
    """A test has a bound dimension for each name; the one of the keys would be a further one."""
    many = nz("M", *(bound_digit(n, s) for n in range(-1, SOME, -1)), Z)
    found = [describe(g, NAMES) for g in keeping(Region([MASK, many]), Lines(SPACE, (2,)))]
    assert [g.count("P[b, q] != 0") for g in found] == [1]
