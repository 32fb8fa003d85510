"""Index arithmetic against brute force over all points of small tensors."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.index import (
    ONE,
    ZERO,
    Digit,
    Poly,
    atom,
    bound,
    digit,
    dim_index,
    invert,
    nonneg,
    poly,
    reshape_map,
    substitute,
    sym,
    total_of,
    within,
)

SYMBOLS = ("b", "s", "?n")
b, s, n = (sym(x) for x in SYMBOLS)
FACTORS = [poly(1), poly(2), poly(3), b, s, b * 2]
MANY = settings(max_examples=100, deadline=None)


def _sizes(least: int = 1) -> Iterator[dict[str, int]]:
    for x, y in product(range(1, 4), repeat=2):
        for z in (0, 2):
            yield {"b": x, "s": y, "?n": z + least - 1}


def _points(extents: list[Poly], sizes: dict[str, int]) -> Iterator[dict[int, int]]:
    ranges = [range(int(e.evaluate(sizes, {}))) for e in extents]
    for at in product(*ranges):
        yield dict(enumerate(at))


extents = st.lists(st.sampled_from(FACTORS), min_size=1, max_size=3)


@st.composite
def size_polys(draw: st.DrawFn) -> Poly:
    total = ZERO
    for _ in range(draw(st.integers(0, 3))):
        term = poly(draw(st.integers(-3, 3)))
        for x in draw(st.lists(st.sampled_from([b, s, n]), max_size=2)):
            term = term * x
        total = total + term
    return total


@st.composite
def index_polys(draw: st.DrawFn) -> tuple[Poly, list[Poly]]:
    """An index expression over digits of a small space, and the extents of that space."""
    dims = draw(extents)
    total = draw(size_polys())
    for _ in range(draw(st.integers(1, 3))):
        d = draw(st.integers(0, len(dims) - 1))
        term = dim_index(d, dims[d])
        if draw(st.booleans()):
            inner = draw(st.sampled_from([poly(1), poly(2), b]))
            outer = dims[d].divide(inner)
            if outer is not None and outer != ONE:
                term = atom(Digit(d, inner, outer))
        factor = draw(st.sampled_from([poly(1), poly(2), poly(-1), s, b * s]))
        total = total + term * factor
    return total, dims


@MANY
@given(size_polys(), size_polys(), size_polys())
def test_polynomials_are_a_ring(p: Poly, q: Poly, r: Poly) -> None:
    assert p + q == q + p
    assert p * q == q * p
    assert p * (q + r) == p * q + p * r
    assert p - p == ZERO
    assert hash(p * q) == hash(q * p)
    assert str(p * q) == str(q * p)
    for sizes in _sizes():
        assert (p * q - r).evaluate(sizes, {}) == p.evaluate(sizes, {}) * q.evaluate(
            sizes, {}
        ) - r.evaluate(sizes, {})


@MANY
@given(size_polys(), size_polys())
def test_division_is_exact_or_refused(p: Poly, q: Poly) -> None:
    quotient = p.divide(q)
    if quotient is not None:
        assert quotient * q == p
    if q != ZERO:
        assert (p * q).divide(q) == p
    assert p.divide(ZERO) is None


@MANY
@given(index_polys())
def test_bounds_hold(case: tuple[Poly, list[Poly]]) -> None:
    p, dims = case
    low, high = bound(p, False), bound(p, True)
    for sizes in _sizes():
        values = [p.evaluate(sizes, at) for at in _points(dims, sizes)]
        if values:
            assert low.evaluate(sizes, {}) <= min(values)
            assert max(values) <= high.evaluate(sizes, {})


@MANY
@given(size_polys())
def test_nonneg_is_never_wrong(p: Poly) -> None:
    if nonneg(p):
        assert all(p.evaluate(sizes, {}) >= 0 for sizes in _sizes())


def test_nonneg_decides_what_it_must() -> None:
    assert nonneg(b * s) and nonneg(b * s + b) and nonneg(b + s + 2) and nonneg(n)
    assert not nonneg(n - 1) and not nonneg(b * s - b)  # any size may be 0
    assert not nonneg(b - 2) and not nonneg(b - s)
    assert within(dim_index(0, s), s) and not within(dim_index(0, s) + 1, s)


@MANY
@given(
    index_polys(),
    st.sampled_from([poly(1), poly(2), poly(3), b, s, b * s, s * 2]),
    st.sampled_from([poly(1), poly(2), poly(3), b, s, b * 2]),
)
def test_digit_is_floor_and_remainder(
    case: tuple[Poly, list[Poly]], stride: Poly, extent: Poly
) -> None:
    p, dims = case
    found = digit(p, stride, extent)
    if found is None:
        return
    for sizes in _sizes():
        by, size = stride.evaluate(sizes, {}), extent.evaluate(sizes, {})
        for at in _points(dims, sizes):
            assert found.evaluate(sizes, at) == p.evaluate(sizes, at) // by % size


def test_digit_splits_a_row_major_index() -> None:
    linear = dim_index(0, b) * s * 6 + dim_index(1, s) * 6 + dim_index(2, poly(6))
    assert digit(linear, s * 6, b) == dim_index(0, b)
    assert digit(linear, poly(6), s) == dim_index(1, s)
    assert digit(linear, poly(2), poly(3)) == atom(Digit(2, poly(2), poly(3)))
    odd = dim_index(0, b) * (s + 1) + dim_index(1, s + 1)  # [b, s + 1], as with a class token
    assert digit(odd, s + 1, b) == dim_index(0, b)
    assert digit(odd, ONE, s + 1) == dim_index(1, s + 1)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[Poly], list[Poly]]:
    """Two shapes that group the same factors differently, with ones strewn in."""
    factors = draw(st.lists(st.sampled_from([poly(2), poly(3), b, s]), min_size=1, max_size=4))

    def grouped() -> list[Poly]:
        shape, left = [], list(factors)
        while left:
            take = draw(st.integers(1, len(left)))
            shape.append(total_of(left[:take]))
            left = left[take:]
            if draw(st.booleans()):
                shape.append(ONE)
        return shape

    return grouped(), grouped()


@MANY
@given(reshapes())
def test_reshape_map_is_numpy_reshape(case: tuple[list[Poly], list[Poly]]) -> None:
    old, new = case
    maps = reshape_map(new, old)
    assert None not in maps  # the factors line up, so every index can be said
    for sizes in _sizes():
        shape = [int(e.evaluate(sizes, {})) for e in old]
        x = np.arange(np.prod(shape)).reshape(shape)
        y = x.reshape([int(e.evaluate(sizes, {})) for e in new])
        for at in _points(new, sizes):
            place = tuple(int(p.evaluate(sizes, at)) for p in maps if p is not None)
            assert x[place] == y[tuple(at.values())]


def test_a_reshape_that_mixes_factors_is_refused() -> None:
    assert None in reshape_map([poly(2), poly(3)], [poly(3), poly(2)])
    assert None in reshape_map([b, s], [s, b])


@MANY
@given(reshapes(), st.data())
def test_substitute_composes(case: tuple[list[Poly], list[Poly]], data: st.DataObject) -> None:
    old, new = case
    maps = reshape_map(new, old)
    d = data.draw(st.integers(0, len(old) - 1))
    p = dim_index(d, old[d]) * 3 + s
    for shape in (None, old):
        q = substitute(p, maps, shape)
        assert q is not None
        for sizes in _sizes():
            for at in _points(new, sizes):
                there = {k: m.evaluate(sizes, at) for k, m in enumerate(maps) if m is not None}
                assert q.evaluate(sizes, at) == p.evaluate(sizes, there)


@st.composite
def operand_maps(draw: st.DrawFn) -> tuple[list[Poly | None], list[Poly], list[Poly]]:
    """Index maps of an operand over an iteration space, and both shapes."""
    space = draw(st.lists(st.sampled_from([poly(2), poly(3), b, s, b * 2]), min_size=2, max_size=3))
    maps: list[Poly | None] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 4))
        d = draw(st.integers(0, len(space) - 1))
        e = draw(st.integers(0, len(space) - 1))
        if kind == 0:
            maps.append(None)
        elif kind == 1:
            maps.append(ZERO)
        elif kind == 2 and d != e:
            maps.append(dim_index(d, space[d]) * space[e] + dim_index(e, space[e]))
        elif kind == 3:
            step = draw(st.sampled_from([1, 2, 3]))
            maps.append(dim_index(d, space[d]) * step + draw(st.integers(0, 2)))
        else:
            maps.append(dim_index(d, space[d]))
    shape = [ONE if p is None else bound(p, True) + 1 for p in maps]
    return maps, space, shape


@MANY
@given(operand_maps())
def test_invert_solves_every_reading_point(
    case: tuple[list[Poly | None], list[Poly], list[Poly]],
) -> None:
    maps, space, shape = case
    solved = invert(maps, space, shape)
    for sizes in _sizes():
        for at in _points(space, sizes):
            place = {j: p.evaluate(sizes, at) for j, p in enumerate(maps) if p is not None}
            for d, value in solved.items():
                assert value.evaluate(sizes, place) == at[d]


def test_invert_solves_what_it_must() -> None:
    space = [b, s, poly(4)]
    x, y, z = (dim_index(d, e) for d, e in enumerate(space))
    solved = invert([x * s + y, z + 1], space, [b * s, poly(7)])
    assert set(solved) == {0, 1, 2}
    assert solved[2] == dim_index(1, poly(7)) - 1
    assert invert([x + y], space[:2], [b + s - 1]) == {}  # a convolution's index fixes neither
    assert invert([None, z], space, [b, poly(4)]) == {2: dim_index(1, poly(4))}


def test_text_is_canonical() -> None:
    assert str(dim_index(0, b) * s + dim_index(1, s) - 3) == "d0*s+d1-3"
    assert str(ZERO - s) == "-s" and str(ZERO) == "0" and str(s * -2 + 1) == "-2*s+1"


@pytest.mark.parametrize("value", [poly(7), ZERO, poly(-2)])
def test_constants_are_integers(value: Poly) -> None:
    assert value.as_int() is not None and poly(value) is value
    assert (value + s).as_int() is None
