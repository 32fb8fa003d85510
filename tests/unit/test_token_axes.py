"""Which values of an output are compared, where it holds tokens of a padding mask."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from pitc.check.feeds import Case
from pitc.check.tokens import by_tokens
from pitc.check.verify import Comparison, Rules, compare
from pitc.ir.report import TokenPlace
from tests.declared_tokens import live_of, token_axes

Array = np.ndarray
MASK = np.array([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]])
TRACED = ["b", "Div_y_dim_1"]
"""As a tracing exporter names a size that it does not know to be a number."""


def test_where_outputs_hold_tokens() -> None:
    outputs = {"keys": ["b", "h", "s", 8], "y": ["b", "s", 4], "pooled": ["b", 4], "n": []}
    assert token_axes(["b", "s"], outputs) == {
        "keys": TokenPlace("", 0, 2),
        "y": TokenPlace("", 0, 1),
    }


def test_of_a_mask_over_a_past_the_last_ones() -> None:
    outputs = {"keys": ["b", 2, "p + s", 8], "y": ["b", "s", 4]}
    places = token_axes(["b", "p + s"], outputs)
    assert places == {"keys": TokenPlace("", 0, 2, True), "y": TokenPlace("", 0, 1, True)}
    y = np.zeros((2, 3, 4))
    live = by_tokens(y, y, (MASK != 0, places["y"]))[2]
    assert live is not None and live.tolist() == [[1, 1, 0], [1, 1, 1]]
    keys = np.zeros((2, 2, 5, 8))
    moved, _, live = by_tokens(keys, keys, (MASK != 0, places["keys"]))
    assert moved.shape == (2, 5, 2, 8) and live is not None and np.array_equal(live, MASK)


@pytest.mark.parametrize("width", [3, 4, 6, 7])
def test_a_pooled_row_is_compared_whole(width: int) -> None:
    """Its size has a name of its own, but is not that of the mask: no part of it is padding."""
    assert token_axes(["b", "s"], {"y": TRACED}) == {"y": TokenPlace("", 0, 1)}
    y = np.ones((2, width), np.float32)
    for column in range(width):
        wrong = y.copy()
        wrong[:, column] = 0
        assert not compared(wrong, y).ok
    assert compared(y, y).ok


def test_padded_tokens_are_zero_or_the_reference() -> None:
    y = np.arange(40, dtype=np.float32).reshape(2, 5, 4) + 1
    zeros = np.where(MASK[..., None] != 0, y, np.float32(0))
    assert compared(zeros, y).ok and not compared(zeros - 1, y).ok
    assert "padded token" in compared(np.where(zeros == 0, np.float32(2), y), y).outputs[0].problem


def compared(got: Array, want: Array) -> Comparison:
    """The output `y` beside what it has to be, by a mask of 5 tokens."""
    places = token_axes(["b", "s"], {"y": TRACED})

    def gives(y: Array) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
        return lambda feeds: {"y": y}

    case = Case("given", {}, {"mask": MASK})
    return compare(gives(got), gives(want), [case], Rules(live_of("mask"), places))
