"""Regions that hold only where a dimension is empty, against all sizes 1..3."""

from itertools import product

import pytest

from pitc.ir.emptiness import needs_empty, where_left_out
from pitc.ir.index import Poly, dim_index, poly, sym
from pitc.ir.region import Region, Test, for_all, position

S, P = sym("s"), sym("p")
D0 = dim_index(0, S)


def zero(p: Poly, *, yes: bool = False) -> Test:
    return Test("m", (p,), "nz", yes)


def all_of(t: Test) -> Test:
    found = for_all(Region([t]), [0])
    assert found is not None
    return next(iter(found))


CASES = {
    "no place behind a pool": (Region([position(-2 * P)]), True),
    "fewer places than one": (Region([position(poly(0) - P * S)]), True),
    "at most one place": (Region([position(1 - P)]), False),
    "a row behind the last": (Region([position(D0 - S)]), True),
    "the last row": (Region([position(D0 - S + 1)]), False),
    "padding": (Region([zero(D0)]), False),
    "padding, and no place": (Region([zero(D0), position(-P)]), True),
    "all are padding": (Region([all_of(zero(D0))]), False),
    "all are padding, and none is": (
        Region([all_of(zero(D0)), all_of(zero(D0, yes=True))]),
        True,
    ),
    "everywhere": (Region(), False),
}


@pytest.mark.parametrize("name", CASES)
def test_regions(name: str) -> None:
    r, want = CASES[name]
    assert needs_empty(r) is want
    assert where_left_out([r]) == ([] if want else [r])
    holds = any(
        all(_true(t, s, p, i, mask) for t in r)
        for s, p in product((1, 2, 3), repeat=2)
        for i in range(s)
        for mask in product((0, 1), repeat=s)
    )
    assert holds is not want


def _true(t: Test, s: int, p: int, i: int, mask: tuple[int, ...]) -> bool:
    sizes = {"s": s, "p": p}
    if t.pred == "pos":
        return bool(t.idx[0].evaluate(sizes, {0: i}) >= 0)
    places = range(s) if t.alls else [i]
    dim = min(t.dims())
    return all(bool(mask[t.idx[0].evaluate(sizes, {dim: k})]) is t.yes for k in places)
