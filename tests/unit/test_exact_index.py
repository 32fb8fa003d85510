"""Index arithmetic: exact results of worked examples, and brute force with sizes that may be 0."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import (
    ONE,
    ZERO,
    Digit,
    Poly,
    atom,
    bare_dim,
    digit,
    dim_digit,
    dim_index,
    invert,
    poly,
    rename,
    reshape_map,
    substitute,
    sym,
)
from pitc.ir.region import SOME

b, s = sym("b"), sym("s")
TWO, THREE, FOUR, SIX = (poly(n) for n in (2, 3, 4, 6))
ALL, ANY = atom(Digit(-1, ONE, s)), atom(Digit(SOME - 1, ONE, s))


def d(dim: int, extent: Poly | int, stride: Poly | int = 1) -> Poly:
    return dim_digit(dim, poly(stride), poly(extent))


@pytest.mark.parametrize(
    ("p", "stride", "extent", "found"),
    [
        (d(0, s), ONE, s, d(0, s)),
        (d(0, s), s, b, None),  # b may be 0
        (d(0, s), ONE, ONE, ZERO),
        (d(0, s), TWO, ONE, ZERO),
        (d(0, TWO), TWO, s, None),  # s may be 0
        (d(0, TWO), TWO, s + 1, ZERO),
        (poly(5), ONE, SIX, poly(5)),
        (poly(6), ONE, SIX, ZERO),
        (poly(7), ONE, SIX, None),
        (poly(-1), ONE, SIX, None),
        (poly(-6), ONE, SIX, ZERO),
        (poly(12), SIX, FOUR, TWO),
        (d(0, 8), TWO, FOUR, d(0, 4, 2)),
        (d(0, 8), ONE, FOUR, d(0, 4)),
        (d(0, 8), FOUR, TWO, d(0, 2, 4)),
        (d(0, 8), FOUR, FOUR, d(0, 2, 4)),
        (d(0, 8), TWO, TWO, d(0, 2, 2)),
        (d(0, 8), THREE, TWO, None),
        (d(0, 8, 2), TWO, TWO, d(0, 2, 4)),
        (d(0, s * 2), s, TWO, d(0, 2, s)),
        (d(0, s * 2), TWO, s, d(0, s, 2)),
        (d(0, s), TWO, s, None),
        # rows
        (d(0, b) * s + d(1, s), s, b, d(0, b)),
        (d(0, b) * s + d(1, s), ONE, s, d(1, s)),
        (d(0, b) * s + d(1, s + 1), ONE, s, None),
        (d(0, b) * s + d(1, s) + 1, ONE, s, None),
        (d(0, b) * s - d(1, s), ONE, s, None),
        (d(0, b) * d(1, s) * 2 + d(2, 2), TWO, b * s, None),
        (d(0, b) * d(1, s + 1) * 2 + d(2, 2), ONE, TWO, d(2, 2)),
        (d(0, b) * d(1, b), s, s, None),
        # one digit straddles, between others
        (d(0, b) * 12 + d(1, 4) * 3 + d(2, 3), SIX, b * 2, d(0, b) * 2 + d(1, 2, 2)),
        (d(0, b) * 12 + d(1, 4) * 3 + d(2, 3), ONE, SIX, d(1, 2) * 3 + d(2, 3)),
        (d(0, b) * 12 + d(1, 4) * 3 + d(2, 3), THREE, TWO, d(1, 2)),
        (d(0, b) * 12 + d(1, 4) * 3 + d(2, 4), SIX, b * 2, None),
        (d(0, b) * 12 + d(1, 3) * 4 + d(2, 4), SIX, b * 2, None),
        (d(0, b) * 12 + d(1, 9) * 3 + d(2, 3), SIX, b * 2, None),
        (d(0, b) * d(3, b) * 8 + d(1, 4) * 2, FOUR, b * b * 2, None),
        (d(1, 4) * 2 + 1, FOUR, TWO, d(1, 2, 2)),
        (d(1, 4) * 2 + 1, ONE, FOUR, d(1, 2) * 2 + 1),
        (d(1, 4) * 2 - 1, ONE, FOUR, None),
    ],
    ids=str,
)
def test_digits_that_are_found(p: Poly, stride: Poly, extent: Poly, found: Poly | None) -> None:
    assert digit(p, stride, extent) == found


terms = st.tuples(
    st.sampled_from([d(0, b), d(1, s), d(2, 2), d(2, 6), d(2, 3, 2), d(1, s + 1), ONE, ONE * 2]),
    st.sampled_from([ONE, TWO, THREE, SIX, s, b, poly(-1), s + 1, s * 2]),
)
units = st.sampled_from([ONE, TWO, THREE, SIX, s, b, s + 1, s * 2])


@settings(max_examples=400, deadline=None)
@given(st.lists(terms, min_size=1, max_size=3), units, units)
def test_a_digit_is_floor_and_remainder(
    parts: list[tuple[Poly, Poly]], stride: Poly, extent: Poly
) -> None:
    p = sum((x * c for x, c in parts), ZERO)
    found = digit(p, stride, extent)
    if found is None:
        return
    for rows, columns in product(range(4), repeat=2):
        sizes = {"b": rows, "s": columns}
        by, size = stride.evaluate(sizes, {}), extent.evaluate(sizes, {})
        extents = {0: rows, 1: columns, 2: 6}
        extents |= {a.dim: columns + 1 for a in p.digits() if a.extent == s + 1}
        if by and size and not ({d(1, s), d(1, s + 1)} <= {atom(a) for a in p.digits()}):
            for place in product(*map(range, extents.values())):
                at = dict(enumerate(place))
                assert found.evaluate(sizes, at) == p.evaluate(sizes, at) // by % size


@pytest.mark.parametrize(
    ("p", "maps", "shape", "found"),
    [
        (d(0, b), [d(1, b)], [b], d(1, b)),
        (d(0, b), [d(1, b)], None, d(1, b)),
        (d(0, b), [d(1, s)], None, None),
        (d(0, b), [d(1, s)], [b], d(1, s)),  # taken to be in range
        (d(0, b), [None], None, None),
        (s + 3, [None], None, s + 3),
        (d(1, s) * b - 3, [None, d(0, s) + 1], [b, s], d(0, s) * b + b - 3),
        (d(0, b) * d(1, s), [d(1, b), d(0, s)], [b, s], d(1, b) * d(0, s)),
        (d(0, b) + d(1, s) * 2, [d(1, b), d(0, s)], [b, s], d(1, b) + d(0, s) * 2),
        (ALL * s + d(0, b), [d(1, b)], [b], ALL * s + d(1, b)),
        (ANY, [d(1, b)], [b], ANY),
        (d(0, 4, 2), [d(1, 8)], [poly(8)], d(1, 4, 2)),
        (d(0, 4, 2), [d(1, 4)], [FOUR], d(1, 2, 2)),  # not the whole dimension
        (d(0, 2), [d(1, 8)], [poly(8)], d(1, 2)),
        (d(0, s * 2, 2), [d(1, 3)], [SIX], None),
    ],
    ids=str,
)
def test_substituted(
    p: Poly, maps: Sequence[Poly | None], shape: Sequence[Poly] | None, found: Poly | None
) -> None:
    assert substitute(p, maps, shape) == found


def test_renamed() -> None:
    p = d(0, b) * s + d(1, s) * d(0, b) * 2 + ALL - 3
    assert rename(p, {0: 1, 1: 0, -1: -2}) == (
        d(1, b) * s + d(0, s) * d(1, b) * 2 + atom(Digit(-2, ONE, s)) - 3
    )
    assert rename(p, {}) == p and rename(d(0, s, 2), {0: 5}) == d(5, s, 2)


@pytest.mark.parametrize(
    ("new", "old", "maps"),
    [
        ([b, s], [b * s], [d(0, b) * s + d(1, s)]),
        ([b * s], [b, s], [d(0, b, s), d(0, s)]),
        ([b, s, FOUR], [b, s * 4], [d(0, b), d(1, s) * 4 + d(2, 4)]),
        ([SIX], [TWO, ONE, THREE], [d(0, 2, 3), ZERO, d(0, 3)]),
        ([TWO, THREE], [THREE, TWO], [None, None]),
        ([b, TWO, THREE], [b, THREE, TWO], [d(0, b), None, None]),
        ([], [ONE], [ZERO]),
        ([ONE], [], []),
    ],
    ids=str,
)
def test_reshapes(new: list[Poly], old: list[Poly], maps: list[Poly | None]) -> None:
    assert reshape_map(new, old) == tuple(maps)


@pytest.mark.parametrize(
    ("maps", "extents", "shape", "solved"),
    [
        ([d(0, b), d(1, s)], [b, s], [b, s], {0: d(0, b), 1: d(1, s)}),
        ([d(1, s), d(0, b)], [b, s], [s, b], {0: d(1, b), 1: d(0, s)}),
        ([None, d(1, s)], [b, s], [b, s], {1: d(1, s)}),
        ([d(0, b), d(0, b)], [b], [b, b], {0: d(0, b)}),  # the first of two
        ([d(0, b) + 2], [b], [b + 2], {0: d(0, b + 2) - 2}),
        ([d(0, b) + s], [b], [b + s], {0: d(0, b + s) - s}),
        ([d(0, b) - 1], [b], [b], {0: d(0, b) + 1}),
        ([d(0, b) * 2], [b], [b * 2], {0: d(0, b, 2)}),
        ([d(0, b) * 2 + 1], [b], [b * 2], {}),
        ([d(0, b) * 2 + 4], [b], [b * 2 + 4], {}),
        ([d(0, b) * 2 + d(1, 3)], [b, THREE], [b * 2], {}),  # several points read an element
        ([ZERO - d(0, b)], [b], [b], {}),
        ([d(0, b) * -2], [b], [b], {}),
        ([d(0, b) * s + d(1, s)], [b, s], [b * s], {0: d(0, b, s), 1: d(0, s)}),
        ([d(0, b) * s + d(1, s + 1)], [b, s + 1], [b * s + 1], {}),
        ([d(0, b) * s * 2 + d(1, s)], [b, s], [b * s * 2], {0: d(0, b, s * 2), 1: d(0, s)}),
        ([d(0, b) * d(1, s)], [b, s], [b * s], {}),
        ([d(0, b) * d(1, s) * 2 + d(2, 2)], [b, s, TWO], [b * s * 2], {2: d(0, 2)}),
        ([d(0, 4) * 3 + d(1, 3)], [FOUR, THREE], [poly(12)], {0: d(0, 4, 3), 1: d(0, 3)}),
        # a dimension in two parts
        ([d(0, 2, 3), d(0, 3)], [SIX], [TWO, THREE], {0: d(0, 2) * 3 + d(1, 3)}),
        ([d(0, b, s), d(0, s)], [b * s], [b, s], {0: d(0, b) * s + d(1, s)}),
        ([d(0, b, s)], [b * s], [b], {}),
        ([d(0, s)], [b * s], [s], {}),
        ([ZERO, d(1, s)], [ONE, s], [ONE, s], {0: ZERO, 1: d(1, s)}),
        ([], [ONE, s], [], {0: ZERO}),
    ],
    ids=str,
)
def test_inverted(
    maps: list[Poly | None],
    extents: list[Poly],
    shape: list[Poly],
    solved: dict[int, Poly],
) -> None:
    assert invert(maps, extents, shape) == solved


@pytest.mark.parametrize(
    ("p", "dim"),
    [
        (d(3, s), 3),
        (ALL, -1),
        (d(3, s, 2), None),
        (d(3, s) * 2, None),
        (d(3, s) + 1, None),
        (d(3, s) * s, None),
        (d(3, s) + d(1, s), None),
        (d(3, s) * d(1, s), None),
        (s, None),
        (ONE, None),
        (ZERO, None),
    ],
    ids=str,
)
def test_bare_dimensions(p: Poly, dim: int | None) -> None:
    assert bare_dim(p) == dim


def test_a_dimension_of_one_place_has_no_digit() -> None:
    assert dim_digit(0, s, ONE) == dim_index(0, ONE) == ZERO != dim_digit(0, ONE, s)
    assert dim_digit(2, ONE, s) == dim_index(2, s) == atom(Digit(2, ONE, s))
