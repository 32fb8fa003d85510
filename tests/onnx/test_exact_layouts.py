"""Layouts: exact results of worked examples, and places of packed values against brute force."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.expr import Read
from pitc.ir.index import ONE, ZERO, Coords, Digit, Poly, dim_index, poly, sym
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.layout import (
    Factor,
    Layout,
    PackedSpace,
    aligned_rest,
    coordinate_codes,
    increasing,
    layout_of,
    read_along,
    read_in_packed,
    uses_coordinates,
    wide,
)
from tests.rule_proof import Sample, analysed

b, s, h = sym("b"), sym("s"), sym("h")
TWO, THREE, FOUR, FIVE, SIX = (poly(n) for n in (2, 3, 4, 5, 6))
TWELVE = poly(12)
BATCH, ROWS = Domain((b, s), frozenset()), Domain((s,), frozenset())
POINT = Domain((), frozenset())
EXPR = analysed(Sample("Relu", (np.zeros((2, 3), np.float32),)))["y0"].expr


def whole(d: int, e: Poly) -> Digit:
    return Digit(d, ONE, e)


def laid(shape: tuple[Poly, ...], *coords: Digit) -> Layout:
    found = layout_of(shape, coords)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shape", "coords", "factors", "codes"),
    [
        ((b, s, h), [whole(0, b), whole(1, s)], "0:0 1:1 2:r", "c0 c1 r"),
        ((s, h, b), [whole(2, b), whole(0, s)], "0:1 1:r 2:0", "c1 r c0"),
        # a batch of one ahead of all coordinates has no digit: the first one
        ((ONE, b, h, s), [whole(1, b), whole(3, s)], " 1:0 2:r 3:1", "0 c0 r c1"),
        ((h, ONE, ONE, s), [whole(3, s)], "0:r  2:r 3:0", "r 0 r c0"),
        ((b, ONE, s), [whole(0, b), whole(2, s)], "0:0 1:r 2:1", "c0 r c1"),
        ((b, ONE, s), [whole(2, s), whole(0, b)], "0:1 1:r 2:0", "c1 r c0"),
        # without coordinates
        ((h, ONE), [], "0:r ", "r c0"),
        ((h, s), [], "0:r 1:r", None),
        ((), [], "", None),
        # two coordinates in one dimension
        ((b * s, h), [Digit(0, s, b), Digit(0, ONE, s)], "0:0,0:1 1:r", "l r"),
        ((b * s, h), [Digit(0, ONE, s), Digit(0, s, b)], "0:1,0:0 1:r", None),
        # gaps: outside, inside, between
        ((b * s,), [Digit(0, ONE, s)], "0:r,0:0", None),
        ((b * s,), [Digit(0, s, b)], "0:0,0:r", None),
        ((TWELVE,), [Digit(0, SIX, TWO), Digit(0, ONE, THREE)], "0:0,0:r,0:1", None),
        ((TWELVE,), [Digit(0, TWO, TWO)], "0:r,0:0,0:r", None),
        ((poly(24),), [Digit(0, TWELVE, TWO), Digit(0, TWO, THREE)], "0:0,0:r,0:1,0:r", None),
        ((poly(24),), [Digit(0, TWO, THREE), Digit(0, TWELVE, TWO)], "0:1,0:r,0:0,0:r", None),
        ((h * s * 2,), [Digit(0, h * s, TWO), Digit(0, s, h)], "0:0,0:1,0:r", None),
        ((h * s * 2,), [Digit(0, s, h), Digit(0, h * s, TWO)], "0:1,0:0,0:r", None),
    ],
    ids=str,
)
def test_how_dimensions_split(
    shape: tuple[Poly, ...], coords: list[Digit], factors: str, codes: str | None
) -> None:
    layout = laid(shape, *coords)
    found = [
        ",".join(f"{f.digit.dim}:{'r' if f.coordinate is None else f.coordinate}" for f in dim)
        for dim in layout.factors
    ]
    assert " ".join(found) == factors
    both = [(f.coordinate, f.digit) for dim in layout.factors for f in dim]
    assert all(k is None or coords[k] == d for k, d in both)
    assert layout.rank == len(coords)
    assert layout.dim_codes() == (None if codes is None else tuple(codes.split()))


@pytest.mark.parametrize(
    ("shape", "coords"),
    [
        ((FIVE,), [Digit(0, ONE, TWO)]),
        ((FIVE,), [Digit(0, TWO, TWO)]),
        ((TWELVE,), [Digit(0, TWO, TWO), Digit(0, THREE, FOUR)]),
        ((TWELVE,), [Digit(0, ONE, FOUR), Digit(0, SIX, TWO)]),
        ((TWELVE,), [Digit(0, FOUR, THREE), Digit(0, SIX, TWO)]),
        ((TWELVE,), [Digit(0, ONE, FOUR), Digit(0, TWO, TWO)]),
        ((poly(48),), [Digit(0, ONE, FOUR), Digit(0, poly(8), TWO), Digit(0, SIX, TWO)]),
        ((b * s,), [Digit(0, b, s), Digit(0, s, b)]),
        ((b,), [Digit(0, ONE, s)]),
        ((h, b), [whole(0, h), Digit(1, ONE, s)]),
    ],
    ids=str,
)
def test_digits_that_do_not_tile(shape: tuple[Poly, ...], coords: list[Digit]) -> None:
    assert layout_of(shape, tuple(coords)) is None


@st.composite
def split_values(draw: st.DrawFn) -> tuple[tuple[int, ...], Coords]:
    """A shape, and some digits of its dimensions."""
    shape, digits = [], []
    for d in range(draw(st.integers(0, 3))):
        parts, stride = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)), 1
        for n in reversed(parts):
            digits.append(Digit(d, poly(stride), poly(n)))
            stride *= n
        shape.append(stride)
    chosen = [c for c in digits if c.extent != ONE and draw(st.booleans())]
    return tuple(shape), tuple(draw(st.permutations(chosen)))


def value_of(p: Poly | None, index: dict[int, int]) -> int:
    assert p is not None
    return int(p.evaluate({}, index))


@settings(max_examples=200, deadline=None)
@given(split_values())
def test_every_place_of_a_value_is_one_of_the_packed_space(value: tuple[tuple[int, ...], Coords]):
    """Points of the packed space, sent back by `maps`, are the places of the value, each once."""
    shape, coords = value
    layout = layout_of(tuple(map(poly, shape)), coords)
    assert layout is not None and layout.rank == len(coords)
    assert not set(coords) & set(layout.rest)
    domain = Domain(tuple(c.extent for c in coords), frozenset())
    space = PackedSpace(domain, layout, (THREE, TWO))
    assert [space.rest_dim(k) for k in range(2)] == [layout.rank, layout.rank + 1]
    first = layout.rank + len(layout.rest)
    assert [space.reduced_dim(k) for k in range(2)] == [first, first + 1]
    extents = [c.extent.as_int() or 0 for c in (*coords, *layout.rest)]
    assert prod(extents) == prod(shape)
    seen = set()
    for point in product(*map(range, extents)):
        at = dict(enumerate((*point, 2, 1)))
        *place, first_axis, second_axis = (value_of(p, at) for p in space.maps())
        assert (first_axis, second_axis) == (2, 1)
        seen.add(tuple(place))
        # the digits of the place are the point
        for d, n in zip((*coords, *layout.rest), point, strict=True):
            assert value_of(Poly({(d,): 1}), dict(enumerate(place))) == n
    assert seen == set(product(*map(range, shape)))


def test_the_packed_place_of_a_dimension() -> None:
    layout = laid((ONE, s, h, b * FOUR, FIVE), whole(1, s), Digit(3, ONE, FOUR))
    assert layout.rest_shape == (h, b, FIVE)
    assert [layout.rest_axis(d) for d in range(5)] == [None, None, 1, None, 3]
    assert Layout(((Factor(whole(0, s)),),), 1).rest_axis(0) == 1


# the output [b, h, s] packed over (b, s), with one reduced axis: d0, d2 | d1 | reduced
SPACE = PackedSpace(BATCH, laid((b, h, s), whole(0, b), whole(2, s)), (FIVE,))
B, S, H, R = (dim_index(k, e) for k, e in enumerate((b, s, h, FIVE)))


def test_reads_in_the_packed_space() -> None:
    assert EXPR is not None
    expr = replace(EXPR, shape=(b, h, s), reduced=(FIVE,))
    i, j, k, n = (dim_index(d, e) for d, e in enumerate((b, h, s, FIVE)))
    assert SPACE.maps() == [B, H, S, R]
    read = Read(0, (k, None, j * 5 + n, i + 1))
    assert read_in_packed(SPACE, expr, read) == [S, None, H * 5 + R, B + 1]


@pytest.mark.parametrize(
    ("index", "coords", "shape", "rest"),
    [
        ([B, S, R], [whole(0, b), whole(1, s)], (b, s, FIVE), [R]),
        ([R, S, B], [whole(2, b), whole(1, s)], (FIVE, s, b), [R]),
        ([B, S, H, R], [whole(0, b), whole(1, s)], (b, s, h, FIVE), [H, R]),
        ([B, S, H * 5 + R], [whole(0, b), whole(1, s)], (b, s, h * 5), [H * 5 + R]),
        ([B, S, ZERO], [whole(0, b), whole(1, s)], (b, s, ONE), [ZERO]),
        # other coordinates, none, or unknown ones
        ([S, B, R], [whole(0, b), whole(1, s)], (b, s, FIVE), None),
        ([B, S + 1, R], [whole(0, b), whole(1, s)], (b, s, FIVE), None),
        ([B, None, R], [whole(0, b), whole(1, s)], (b, s, FIVE), None),
        ([None, S, R], [whole(0, b), whole(1, s)], (b, s, FIVE), None),
        ([B, R, S], [whole(0, b), whole(1, s)], (b, s, FIVE), None),
        # the rest depends on them, or is unknown
        ([B, S, S], [whole(0, b), whole(1, s)], (b, s, s), None),
        ([B, S, B], [whole(0, b), whole(1, s)], (b, s, b), None),
        ([B, S, None], [whole(0, b), whole(1, s)], (b, s, h), None),
        ([B, S, H, S + R], [whole(0, b), whole(1, s)], (b, s, h, FIVE), None),
    ],
    ids=str,
)
def test_operands_at_the_same_packed_row(
    index: list[Poly | None], coords: list[Digit], shape: tuple[Poly, ...], rest: list[Poly] | None
) -> None:
    assert aligned_rest(index, tuple(coords), laid(shape, *coords), BATCH) == rest


@pytest.mark.parametrize(
    ("index", "shape", "domain", "codes", "rest"),
    [
        ([B, S], (b, s), BATCH, "c0 c1", []),
        ([S, ZERO, H], (s, ONE, h), BATCH, "c1 0 r", [H]),
        ([H, R, B], (h, FIVE, b), BATCH, "r r c0", [H, R]),
        ([B * s + S, H], (b * s, h), BATCH, "l r", [H]),
        ([dim_index(0, s)], (s,), ROWS, "c0", []),
        ([ZERO, H], (ONE, h), POINT, "0 r", [H]),
        ([poly(3)], (h,), BATCH, "r", [poly(3)]),
        ([], (), BATCH, "", []),
        # cut, moved, mixed or unknown
        ([B], (b + 1,), BATCH, None, None),
        ([H, None], (h, s), BATCH, None, None),
        ([S + 1], (s,), BATCH, None, None),
        ([S * b + B], (b * s,), BATCH, None, None),
        ([B * s + S], (b * s + 1,), BATCH, None, None),
        ([B * s], (b * s,), BATCH, None, None),
        ([S], (b * s,), BATCH, None, None),
        ([B + H], (b + h,), BATCH, None, None),
    ],
    ids=str,
)
def test_how_operands_are_gathered(
    index: list[Poly | None],
    shape: tuple[Poly, ...],
    domain: Domain,
    codes: str | None,
    rest: list[Poly] | None,
) -> None:
    found = coordinate_codes(index, shape, domain)
    assert found == (None if codes is None or rest is None else (tuple(codes.split()), rest))


def test_what_depends_on_coordinates() -> None:
    assert [uses_coordinates([p], 2) for p in (B, S, H, R, B * H, H + S, poly(3), None)] == [
        *(True, True, False, False, True, True, False, True)
    ]
    assert uses_coordinates([H, None], 0) and uses_coordinates([H, R, S], 2)
    assert not uses_coordinates([], 2) and not uses_coordinates([B, S], 0)


def test_dimensions_that_are_read_along_others() -> None:
    assert read_along([B, H], (b, h), [0, 2]) and read_along([], (), [])
    assert read_along([ZERO, H], (ONE, h), [5, 2]) and read_along([ZERO], (ONE,), [None])
    assert read_along([poly(3), H], (ONE, h), [5, 2]) and read_along([poly(3)], (h,), [None])
    for index, dims in (([B, H], [2, 0]), ([B, H], [0]), ([B], [0, 2]), ([B + 1, H], [0, 2])):
        assert not read_along(index, (b, h)[: len(index)], dims)
    assert not read_along([B, S, H], (b, s, h), [0, 1, 3])


def test_small_questions() -> None:
    assert wide([whole(0, b), whole(1, ONE), whole(2, TWO)]) == (whole(0, b), whole(2, TWO))
    assert [increasing(x) for x in ([], [3], [1, 2, 5], [1, 1], [2, 1], [1, 3, 2])] == [
        *(True, True, True, False, False, False)
    ]
