"""Laws of signs: each says the most that holds of all numbers of a type."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from pitc.passes.rules import signs
from pitc.passes.rules.signs import Sign, Signs

ANY, NONNEGATIVE, POSITIVE = Sign
F = np.finfo(np.float32)
NUMBERS = np.array([F.smallest_subnormal, 1, 2, F.max, np.inf], np.float32)
VALUES = {
    ANY: np.concatenate([-NUMBERS, [np.float32(-0.0), np.float32(0)], NUMBERS]),
    NONNEGATIVE: np.concatenate([[np.float32(-0.0), np.float32(0)], NUMBERS]),
    POSITIVE: NUMBERS,
}
LAWS: list[tuple[Callable[[Signs], Sign], Callable[..., Any], tuple[int, ...]]] = [
    (signs.product, np.multiply, (2,)),
    (signs.quotient, np.divide, (2,)),
    (signs.total, lambda *xs: np.sum(xs, axis=0), (2, 3)),
    (signs.largest, lambda *xs: np.max(xs, axis=0), (1, 2, 3)),
    (signs.smallest, lambda *xs: np.min(xs, axis=0), (1, 2, 3)),
    (signs.narrowed, lambda x: x.astype(np.float16), (1,)),
    (signs.clip, lambda x, low: np.maximum(x, low), (2,)),
    (signs.clip, lambda x, low, high: np.minimum(np.maximum(x, low), high), (3,)),
]


def strongest(y: Any) -> Sign:
    """What is true of all results but NaN."""
    y = y[y == y]
    return POSITIVE if (y > 0).all() else NONNEGATIVE if (y >= 0).all() else ANY


@pytest.mark.parametrize(("law", "function", "counts"), LAWS)
def test_a_law_says_the_most_that_holds(
    law: Callable[[Signs], Sign], function: Callable[..., Any], counts: tuple[int, ...]
) -> None:
    for given in (g for count in counts for g in product(Sign, repeat=count)):
        operands = np.meshgrid(*(VALUES[g] for g in given))
        with np.errstate(all="ignore"):
            assert law(given) is strongest(function(*operands)), given


def test_what_no_operand_decides() -> None:
    for sign in Sign:
        assert signs.never_negative([sign]) is max(sign, NONNEGATIVE)
        assert signs.clip([sign]) is ANY  # by attributes, which may be negative
