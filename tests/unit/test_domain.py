"""Domains and layouts: coordinates found from dead facts alone, in every arrangement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitc.ir.index import ONE, Coords, Digit, atom, dim_index, poly, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.passes.regions import domain as domains
from pitc.passes.regions.domain import Domain, covering, named_coords
from pitc.passes.regions.layout import Layout
from pitc.passes.regions.layout import layout_of as find_layout

B, S, H, D = sym("b"), sym("s"), poly(4), poly(16)


def domain_of(region: Region) -> tuple[Domain, Coords]:
    found = domains.domain_of(region)
    assert found is not None
    return found


def layout_of(shape, coords) -> Layout:
    found = find_layout(shape, coords)
    assert found is not None
    return found


def number(p) -> int:
    n = p.as_int()
    assert n is not None
    return n


def dead_at(*index: object) -> Region:
    return Region((Test("mask", tuple(index), "nz", False),))  # type: ignore[arg-type]


HIDDEN = (B, S, poly(64)), dead_at(dim_index(0, B), dim_index(1, S))
HEADS = (B, H, S, D), dead_at(dim_index(0, B), dim_index(2, S))
FLAT = (B * S, poly(64)), dead_at(atom(Digit(0, S, B)), atom(Digit(0, ONE, S)))
MERGED = (B * H, S, D), dead_at(atom(Digit(0, H, B)), dim_index(1, S))
TIME_FIRST = (S, B, poly(64)), dead_at(dim_index(1, B), dim_index(0, S))


@pytest.mark.parametrize(("shape", "dead"), [HIDDEN, HEADS, FLAT, MERGED, TIME_FIRST])
def test_all_layouts_share_one_domain(shape, dead):
    domain, _ = domain_of(HIDDEN[1])
    (coords,) = named_coords(domain, [dead])
    assert domain_of(dead)[0] == domain
    assert domain.at(coords) == dead
    assert covering(domain, coords, [dead]) == dead


@pytest.mark.parametrize(
    ("value", "rest", "codes"),
    [
        (HIDDEN, (64,), ("c0", "c1", "r")),
        (HEADS, (4, 16), ("c0", "r", "c1", "r")),
        (FLAT, (64,), ("l", "r")),
        (MERGED, (4, 16), None),
        (TIME_FIRST, (64,), ("c1", "c0", "r")),
    ],
)
def test_layouts_keep_the_other_digits(value, rest, codes):
    shape, dead = value
    domain, _ = domain_of(HIDDEN[1])
    (coords,) = named_coords(domain, [dead])
    layout = layout_of(shape, coords)
    assert tuple(e.as_int() for e in layout.rest_shape) == rest
    assert layout.dim_codes() == codes


@pytest.mark.parametrize(
    ("shape", "dim", "rest", "codes"),
    [
        ((ONE, S, poly(64)), 1, (64,), ("0", "c0", "r")),
        ((ONE, H, S, D), 2, (4, 16), ("0", "r", "c0", "r")),
        ((poly(3), ONE, S, D), 2, (3, 16), ("r", "0", "c0", "r")),
        ((ONE, ONE, S, ONE), 2, (1, 1), ("0", "r", "c0", "r")),
        ((S, ONE, D), 0, (1, 16), ("c0", "r", "r")),
    ],
)
def test_a_batch_of_one_is_dropped(shape, dim, rest, codes):
    layout = layout_of(shape, (Digit(dim, ONE, S),))
    assert tuple(e.as_int() for e in layout.rest_shape) == rest
    assert layout.dim_codes() == codes
    assert [layout.rest_axis(d) for d, c in enumerate(codes) if c != "r"] == [None] * (
        len(codes) - codes.count("r")
    )


def test_a_mask_of_extents_one_has_one_point():
    """It is numbered along the dimension that stands for the batch."""
    domain, coords = domain_of(dead_at(poly(0), poly(0)))
    assert (domain.extents, coords) == ((), ())
    layout = layout_of((ONE, ONE, D), coords)
    assert layout.dim_codes() == ("c0", "r", "r")
    assert layout_of((H, D), coords).dim_codes() is None
    assert list(named_coords(domain, [dead_at(poly(0), poly(0))])) == [()]


def test_scores_belong_twice():
    shape = (B, H, S, S)
    by_query, by_key = (dead_at(dim_index(0, B), dim_index(d, S)) for d in (2, 3))
    domain, _ = domain_of(HIDDEN[1])
    found = set(named_coords(domain, [by_query, by_key]))
    assert found == {
        (Digit(0, ONE, B), Digit(2, ONE, S)),
        (Digit(0, ONE, B), Digit(3, ONE, S)),
    }
    layout_of(shape, next(iter(found)))


def test_a_wider_dead_fact_belongs_to_a_narrower_domain():
    guard = Test("mask", (dim_index(0, B), atom(Digit(SOME - 1, ONE, S))), "nz", True)
    late = position(dim_index(1, S) - 1)
    narrow, _ = domain_of(HIDDEN[1] | Region((guard, late)))
    assert len(narrow.dead) == 3
    (coords,) = named_coords(narrow, [HIDDEN[1]])
    assert covering(narrow, coords, [HIDDEN[1]]) == HIDDEN[1]
    wide, _ = domain_of(HIDDEN[1])
    assert covering(wide, coords, [HIDDEN[1] | Region((guard,))]) is None


def test_facts_without_coordinates_give_no_domain():
    everywhere_late = Region((position(poly(3)),))
    assert domains.domain_of(everywhere_late) is None
    overlapping = dead_at(atom(Digit(0, ONE, B * S)), atom(Digit(0, S, B)))
    assert domains.domain_of(overlapping) is None


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    split=st.data(),
)
def test_layout_tiles_every_index(sizes, split):
    """The digits of a dimension, put together again, are its index."""
    which = split.draw(st.integers(0, len(sizes) - 1))
    stride = 1
    digits = []
    for k in reversed(range(len(sizes))):
        digits.append(Digit(0, poly(stride), poly(sizes[k])))
        stride *= sizes[k]
    coords = (digits[::-1][which],)
    layout = layout_of((poly(stride),), coords)
    index = np.arange(stride)
    total = sum(
        (index // number(f.digit.stride) % number(f.digit.extent)) * number(f.digit.stride)
        for f in layout.factors[0]
    )
    np.testing.assert_array_equal(total, index)
