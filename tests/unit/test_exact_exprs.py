"""Which axes of an expression are PIT, exactly, and what reducers keep."""

import pytest

from pitc.ir.expr import Axis, Combine, Read, Reducer, TensorExpr
from pitc.ir.index import ONE, Digit, Poly, atom, dim_index, sym
from pitc.ir.region import Predicate, Region, Test, position

b, s, k = sym("b"), sym("s"), sym("k")
B, S, K = (dim_index(d, e) for d, e in enumerate((b, s, k)))


def read(
    *index: Poly | None, operand: int = 0, computed: bool = False, at: Test | None = None
) -> Read:
    return Read(operand, index, computed, Region([at] if at else []))


def nz(*idx: Poly) -> Test:
    return Test("m", idx, "nz", True)


def length(*idx: Poly) -> Test:
    return Test("m", idx, "below", True)


@pytest.mark.parametrize(
    ("reads", "axes"),
    [
        ([read(B, S)], "o0 o1 r0"),
        ([read(B, K), read(K, S, operand=1)], "o0 o1 r0"),
        ([read(B, S * 2)], "o0 r0"),
        ([read(B, S + 1)], "o0 r0"),
        ([read(B, S + K)], "o0"),
        ([read(atom(Digit(0, s, b)), S)], "o1 r0"),
        ([read(B), read(S * 2, operand=1)], "o0 r0"),
        # a place that is not described
        ([read(B, None)], "o0"),
        ([read(B, None, computed=True)], "o0 o1 r0"),
        ([read(B), read(None, S, operand=1)], "o1"),
        # reads of one operand agree
        ([read(B, S), read(B, S)], "o0 o1 r0"),
        ([read(B, S), read(S, B)], "r0"),
        ([read(B, S), read(S, B, operand=1)], "o0 o1 r0"),
        ([read(B, B), read(B, S)], "r0"),
        # .. also where one of them goes all along by an axis of no other use
        ([read(B, S), read(B, K)], "o0 o1"),
        ([read(B, S), read(B, K), read(K, operand=1)], "o0"),
        ([read(B, S), read(B, K * 2)], "o0"),
        ([read(B, S), read(B, K, at=position(K - 1))], "o0"),
        # tests
        ([read(B, S, at=nz(B, S))], "o0 o1 r0"),
        ([read(B, S, at=nz(B, S * 2))], "o0 r0"),
        ([read(B, S, at=position(S - 1))], "o0 r0"),
        ([read(B, S, at=position(S))], "o0 r0"),
        ([read(B, S, at=position(S - B - 1))], "r0"),
        ([read(B, S, at=length(B, S))], "o0 r0"),
        ([read(B, S, at=length(B, S + 1))], "o0 r0"),
        ([read(B, S, at=length(S, B))], "o1 r0"),
        ([], ""),
    ],
    ids=str,
)
def test_axes_that_may_be_permuted(reads: list[Read], axes: str) -> None:
    expr = TensorExpr((b, s), tuple(reads), (k,), Combine.REDUCE, Reducer.SUM)
    assert " ".join(a.name for a in expr.pit_axes()) == axes


def test_axes_in_order() -> None:
    expr = TensorExpr((b, ONE, s), (read(B, dim_index(3, k), dim_index(2, s)),), (k, ONE))
    found = (Axis("o0", b, True), Axis("o2", s, True))
    assert expr.extents == (b, ONE, s, k, ONE) and len(expr.axes) == 5
    assert [a.spatial for a in expr.axes] == [True, True, True, False, False]
    assert expr.pit_axes() == found


@pytest.mark.parametrize("pred", ["nz", "neg", "small"])
def test_tests_of_elements_permute(pred: Predicate) -> None:
    at = Test("m", (B, S), pred, True)
    assert len(TensorExpr((b, s), (read(B, S, at=at),)).pit_axes()) == 2


def test_what_is_ordered_or_normalised_is_not_permuted() -> None:
    reads = (read(B, S),)
    assert [a.name for a in TensorExpr((b, s), reads, normal=(1,)).pit_axes()] == ["o0"]
    assert [a.name for a in TensorExpr((b, s), reads, ordered=frozenset({0})).pit_axes()] == ["o1"]
    assert len(TensorExpr((b, s), combine=Combine.MAP).pit_axes()) == 2
    assert TensorExpr((b, s), combine=Combine.MOVE).pit_axes() == ()


KEEPS = {  # commutes, keeps zero, keeps any constant
    Reducer.NONE: (False, False, False),
    Reducer.SUM: (True, True, False),
    Reducer.MAX: (True, True, True),
    Reducer.POOLED: (True, True, True),
    Reducer.MIN: (True, True, True),
    Reducer.PROD: (True, False, False),
    Reducer.MEAN: (True, True, False),
    Reducer.SQUARE: (True, True, False),
    Reducer.NORMALISE: (False, False, False),
    Reducer.ORDERED: (False, False, False),
}


@pytest.mark.parametrize("reducer", Reducer)
def test_what_reducers_keep(reducer: Reducer) -> None:
    found = reducer.commutes, reducer.keeps_zero, reducer.keeps_constant
    assert found == KEEPS[reducer]
    expr = TensorExpr((b,), (read(B, dim_index(1, k)),), (k,), Combine.REDUCE, reducer)
    assert [a.name for a in expr.pit_axes()] == ["o0", *["r0"] * reducer.commutes]


def test_of_a_place_nothing_is_said_unless_it_is_stated() -> None:
    for said, axes in ((Read(0, (B, None)), ["o0"]), (Read(0, (B, None), True), ["o0", "o1"])):
        expr = TensorExpr((b, s), (said,), combine=Combine.MOVE)
        assert [axis.name for axis in expr.pit_axes()] == axes
    assert (Read(0, ()).within, Read(0, ()).absent) == (Region(), ())
