"""Constants through elementwise operators: exactly what ranges and casts give."""

from math import inf

import ml_dtypes
import numpy as np
import pytest

from pitc.ir.constant import NEG, NZ, SCORE, TAME, TOP, ZN, Constant, Range
from pitc.ir.graph import NodeView
from pitc.passes.rules.constants import corners, evaluate_constants
from tests.constant_views import (
    BELOW,
    BRAIN,
    F2,
    F4,
    F8,
    HIDDEN,
    I1,
    I4,
    I8,
    INT4,
    U1,
    B,
    retyped,
    same,
    to,
    view,
)

RANGES: list[tuple[NodeView, tuple[Constant, ...], Constant]] = [
    (view("Add", F4, F4), (NEG, SCORE), HIDDEN),
    (view("Add", F4, F4), (SCORE, NEG), HIDDEN),
    (view("Add", F4, F4), (TAME, 500.0), Range(-500.0, 1500.0)),
    (view("Sum", F4, F4, F4), (NEG, TAME, SCORE), Range(-inf, -8e3, True)),
    (view("Add", F4, F4), (TAME, ZN), TOP),
    (view("Add", F4, F4), (TAME, NZ), TOP),
    (view("Add", F4, F4), (TAME, TOP), TOP),
    # an end at infinity is of use where the other one is below 0
    (view("Add", F4, F4), (NEG, 1e4), TOP),
    (view("Add", F4, F4), (NEG, 10000.5), TOP),
    (view("Add", F4, F4), (NEG, 9999.5), Range(-inf, -0.5)),
    (view("Neg", F4), (NEG,), TOP),
    (view("Clip", F4, bounds=(-2.0, 0.75)), (TAME,), Range(-2.0, 0.75)),
    (view("Clip", F4, bounds=(-2.0, 0.75)), (NEG,), -2.0),
    (view("Clip", F4, bounds=(-2.0, 0.75)), (TOP,), TOP),  # as of all that is quite unknown
    (view("Clip", F4, bounds=(-2.0, 0.75)), (NZ,), TOP),
    (view("Ceil", F4), (Range(-0.5, 2.5),), Range(0, 3.0)),
    (view("Abs", F4), (TAME,), TOP),
    # integers wrap around
    (view("Add", I1, I1), (Range(100, 120), 100), TOP),
    (view("Add", I1, I1), (Range(0, 1), 1), TOP),
    (view("Where", B, I4, I4), (TOP, BELOW, -20000), TOP),
    # one of two
    (view("Where", B, F4, F4), (TOP, NEG, HIDDEN), HIDDEN),
    (view("Where", B, F4, F4), (TOP, HIDDEN, NEG), HIDDEN),
    (view("Where", B, F4, F4), (TOP, BELOW, -3e4), Range(-3e4, -1e4)),
    (view("Where", B, F4, F4), (TOP, BELOW, BELOW), BELOW),
    (view("Where", B, F4, F4), (TOP, TAME, TAME), TOP),
    (view("Where", B, F4, F4), (TOP, NEG, TOP), TOP),
    (view("Where", B, F4, F4), (TOP, NEG, TAME), TOP),
    (view("Where", B, F4, F4), (1, NEG, TOP), NEG),
    # comparisons
    (view("Less", F4, F4), (NEG, TAME), 1),
    (view("Less", F4, F4), (TAME, NEG), 0),
    (view("Less", F4, F4), (TAME, 0.0), TOP),
    (view("Less", I4, I4), (Range(-3, -1), 0), TOP),
    (view("GreaterOrEqual", F4, F4), (TAME, -1e3), 1),
    # functions that lie between two ends, of finite numbers
    (view("Tanh", F4), (TAME,), Range(-1.001, 1.001)),
    (view("Sigmoid", F4), (TOP,), Range(-0.001, 1.001)),
    (view("Sin", F4), (TAME,), Range(-1.001, 1.001)),
    (view("Sin", F4), (NEG,), TOP),
    (view("Sin", F4), (Range(0.0, inf),), TOP),
    (view("Softsign", F4), (NEG,), TOP),
    (view("Sin", F4), (NZ,), TOP),
    (view("Tan", F4), (TAME,), TOP),
]


@pytest.mark.parametrize(("node", "constants", "known"), RANGES)
def test_ranges(node: NodeView, constants: tuple[Constant, ...], known: Constant) -> None:
    assert same(evaluate_constants(node.op, constants, node=node), known)
    to_bool = node.op in ("Less", "GreaterOrEqual")
    assert same(evaluate_constants(node.op, constants, to_bool, node), known)


def test_ranges_without_a_node() -> None:
    assert evaluate_constants("Add", (NEG, SCORE)) == HIDDEN
    assert evaluate_constants("Where", (TOP, NEG, HIDDEN)) == HIDDEN
    assert evaluate_constants("Sin", (NEG,)) is TOP
    assert evaluate_constants("MatMul", (TAME, TAME)) is TOP


CASTS: list[tuple[NodeView, Constant, Constant]] = [
    *((to(F4, t), TAME, TAME) for t in (F2, F4, F8)),
    (to(F4, F2), Range(0.1, 1e5), TOP),  # infinity is no end of use
    (to(F4, F2), Range(-1e5, -0.5), Range(-inf, -0.5)),
    (to(F4, F2), Range(-1e5, -8e4), -inf),
    (to(F4, F2), HIDDEN, Range(-inf, -9e3, True)),
    (to(F8, F4), Range(-0.3, 0.1), Range(float(np.float32(-0.3)), float(np.float32(0.1)))),
    (to(F8, F2), Range(-1.0, 1 + 2**-11 + 2**-40), TOP),  # rounded once or twice
    (to(F4, I4), TAME, TOP),
    (to(I4, F4), Range(0, 1), TOP),
    (to(F4, BRAIN), TAME, TOP),
    (view("CastLike", F4, like=I8), NZ, TOP),
    (view("CastLike", I4, like=F4), NZ, NZ),
    (to(F4, F2), ZN, ZN),
    (to(F4, I4), ZN, TOP),
    (to(F4, F2), NZ, TOP),
    (to(F4, F4), NZ, NZ),
    (to(F2, F8), NZ, NZ),
    (to(F4, I8), NZ, TOP),
    (to(I8, F2), NZ, NZ),
    (to(I8, I4), NZ, TOP),
    (to(I4, I4), NZ, NZ),
    (to(I1, I8), NZ, NZ),
    (to(B, I8), NZ, NZ),
    (to(U1, I1), NZ, NZ),
    (to(I1, INT4), NZ, TOP),  # 16 has no bits in there
    (to(I8, BRAIN), NZ, TOP),
    (to(F4, B), NZ, 1),
    (to(F4, B), NEG, 1),
    (to(F4, B), TAME, TOP),
    (to(F4, B), ZN, TOP),
    (to(I8, B), NZ, 1),
    *((to(t, u), TOP, TOP) for t in (F4, I8) for u in (F4, I8, B)),
    # numbers
    (to(F4, I8), 2.5, 2),
    (to(F4, B), 0.5, 1),
    (to(F4, I1), 300.0, TOP),
    (to(F8, F2), 1 + 2**-11 + 2**-40, TOP),
    (to(F8, F2), 1 + 2**-11, 1.0),
    (to(F8, F2), 1e9, inf),
    (to(F8, F4), 0.1, float(np.float32(0.1))),
    (to(F4, INT4), 3.0, TOP),
    (to(F4, BRAIN), 3.0, TOP),
    (to(I8, I1), 300, 44),
]


@pytest.mark.parametrize(("node", "constant", "known"), CASTS)
def test_casts(node: NodeView, constant: Constant, known: Constant) -> None:
    found = evaluate_constants(node.op, (constant,), node=node)
    assert same(found, known)
    dtype = node.out_dtype()
    assert dtype is not None
    assert same(evaluate_constants(node.op, (constant,), dtype.kind == "b", node), known)


def test_a_cast_without_a_node_is_known_to_bool_only() -> None:
    assert evaluate_constants("Cast", (NZ,), True) == 1
    assert evaluate_constants("Cast", (TAME,), True) is TOP
    assert evaluate_constants("Cast", (0.5,), True) == 1
    assert evaluate_constants("Less", (0.5, 1.0), True) == 1
    for c in (NZ, TAME, ZN, 0.0, 1.0):
        assert evaluate_constants("Cast", (c,)) is TOP


@pytest.mark.parametrize("other", [None, np.dtype(ml_dtypes.bfloat16)])
def test_without_types_nothing_is_computed(other: np.dtype | None) -> None:
    for place in ("x0", "y0"):
        node = retyped("Cast", F4, place=place, dtype=other, to=10)
        for c in (TAME, NZ, ZN, 1.0):
            assert evaluate_constants("Cast", (c,), node=node) is TOP
    for place in ("x0", "x1"):
        node = retyped("Add", F4, F4, place=place, dtype=other)
        assert evaluate_constants("Add", (1.0, 2.0), node=node) is TOP
        assert evaluate_constants("Add", (TAME, 2.0), node=node) is TOP
    node = retyped("Sin", F4, place="x0", dtype=other)
    assert evaluate_constants("Sin", (TAME,), node=node) is TOP
    node = retyped("Where", B, F4, F4, place="x0", dtype=other)
    assert evaluate_constants("Where", (TOP, NEG, HIDDEN), node=node) == HIDDEN


@pytest.mark.parametrize(("operands", "count"), [(1, 2), (2, 4), (3, 8), (4, 2), (64, 2)])
def test_corners_of_a_box(operands: int, count: int) -> None:
    """Of many operands two corners are enough, and all of them too many."""
    found = [*corners([(0.0, 1.0)] * operands)]
    assert len(set(found)) == len(found) == count
    assert {(0.0,) * operands, (1.0,) * operands} <= set(found)
