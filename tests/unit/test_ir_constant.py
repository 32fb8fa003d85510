"""What is said of constants, against all the values that each stands for."""

from collections.abc import Callable
from math import exp, inf, nan
from typing import Any

import numpy as np
import pytest

from pitc.ir.constant import (
    HIDDEN,
    KEPT,
    MASKED,
    NEG,
    NZ,
    SCORE,
    SCORE_LIMIT,
    SMALL,
    TAME,
    TOP,
    ZN,
    Constant,
    Range,
    annihilates,
    is_assumed,
    is_bounded,
    is_hidden,
    is_kept,
    is_number,
    is_score,
    is_zero,
    range_of,
)
from pitc.passes.rules.laws import truth_of
from tests.exhaustive_values import stands_for

LANDMARKS = (0.0, 1.0, 750.0, 1e3, 5e3, 5750.0, 9e3, 1e4)
NEAR = sorted(
    {s * v for n in LANDMARKS for v in (n, n - 0.5, n + 0.5) for s in (1, -1)} | {inf, -inf}
)
NUMBERS: list[float | int] = [*NEAR, -0.0, 0, 1, -6000, 7]
VALUES = np.array([*NUMBERS, nan])
RANGES: list[Constant] = [
    Range(lo, hi, assumed)
    for assumed in (False, True)
    for k, lo in enumerate(NEAR)
    for hi in NEAR[k + 1 :: 3]
]
CONSTANTS: list[Constant] = [*NUMBERS, *RANGES, ZN, NZ, TOP]


def values_of(c: Constant) -> Any:
    return VALUES[stands_for(c, VALUES)]


def no_product_depends(x: Any) -> bool:
    """Is x * y the same for all finite y, sign of the zero aside?"""
    with np.errstate(invalid="ignore"):
        products = x[:, None] * np.array([-3.0, 0.0, 0.5, 1e30])
    return bool(np.array_equal(products, products[:, [0] * 4], equal_nan=True))


TRUE_OF_VALUES: list[tuple[Callable[[Constant], Any], Callable[[Any], bool]]] = [
    (is_zero, lambda x: bool(np.all(x == 0))),
    (annihilates, no_product_depends),
    (is_hidden, lambda x: bool(np.all(x <= HIDDEN))),
    (lambda c: is_hidden(c, MASKED), lambda x: bool(np.all(x <= MASKED))),
    (is_kept, lambda x: bool(np.all(x >= KEPT))),
    (is_bounded, lambda x: bool(np.all(x <= HIDDEN) or np.all(np.isfinite(x)))),
    (lambda c: truth_of(c) is True, lambda x: bool(np.all(x != 0))),
    (lambda c: truth_of(c) is False, lambda x: bool(np.all(x == 0))),
]


@pytest.mark.parametrize(("said", "held"), TRUE_OF_VALUES)
def test_what_is_said_is_what_holds_of_all_values(
    said: Callable[[Constant], Any], held: Callable[[Any], bool]
) -> None:
    for c in CONSTANTS:
        assert bool(said(c)) == held(values_of(c)), c


def test_ends_hold_all_values_and_are_values() -> None:
    for c in CONSTANTS:
        known, x = range_of(c), values_of(c)
        if c is ZN or c is NZ or c is TOP:
            assert known is None
        else:
            assert known is not None
            assert (known.lo, known.hi) == (x.min(), x.max())


def test_numbers_are_those_of_python() -> None:
    assert [c for c in CONSTANTS if is_number(c)] == NUMBERS
    assert is_number(True)


def test_assumed_is_what_rests_on_scores() -> None:
    for c in CONSTANTS:
        marked = isinstance(c, Range) and c.assumed
        assert is_assumed(c) is marked
        assert is_score(c) is (marked and bool(np.isfinite(values_of(c)).all()))


def test_where_scores_and_masks_lie() -> None:
    """The numbers that users read in reports; tests at run time compare with them."""
    assert (Range(-inf, -1e4), Range(-1e3, 1e3), Range(-1e3, 1e3, True)) == (NEG, TAME, SCORE)
    assert (MASKED, SMALL, SCORE_LIMIT) == (-1e4, 1e3, 1e3)
    names = [repr(c) for c in (NEG, TAME, SCORE, ZN, NZ, Range(-inf, -9e3), Range(0, 1.5, True))]
    assert names == ["NEG", "TAME", "SCORE", "ZN", "NZ", "-inf..-9000", "0..1.5 (assumed)"]


def test_a_hidden_term_is_nothing_beside_a_kept_one() -> None:
    assert exp(HIDDEN - KEPT) == 0 < exp(HIDDEN - KEPT + 5)
    # a masked score is hidden, one with small biases is kept
    assert is_hidden(MASKED + SCORE_LIMIT + SMALL)
    assert is_kept(-SCORE_LIMIT - 4 * SMALL)
