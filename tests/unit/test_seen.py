"""Formulas of pairs with keys for queries."""

import numpy as np
import pytest

from pitc.ir.seen import steps_of, turned
from tests.attention_cases import Sees

FORMULAS = ("p0", "p1n", "e0", "l0", "m0", "l0m1o", "k0", "q1", "f0", "p2ne1k1ooq1af1nal0o")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_turned_formula_says_the_same_of_a_pair(text: str) -> None:
    rng, queries, keys = np.random.default_rng(0), 9, 7
    lines = rng.integers(-3, 4, (3, 3))
    tables = tuple(rng.integers(0, 4, (2, 1, n)) for n in (queries, keys))
    of_keys, of_queries = (rng.integers(0, 2, (2, 1, n)) for n in (keys, queries))
    flags = rng.integers(0, 2, (2, 1, queries, keys))
    sees = Sees(text, lines, (tables[0], tables[1]), of_keys, of_queries, flags)
    other = Sees(
        "".join(step.text for step in turned(steps_of(text))),
        lines[:, [1, 0, 2]],
        (tables[1], tables[0]),
        of_queries,
        of_keys,
        flags.swapaxes(2, 3),
    )
    q, k = np.arange(queries), np.arange(keys)
    np.testing.assert_array_equal(other.pairs(0, k, q), sees.pairs(0, q, k).T)


@pytest.mark.parametrize("text", FORMULAS)
def test_it_is_turned_back(text: str) -> None:
    """Up to what is negated twice."""
    again = "".join(step.text for step in turned(turned(steps_of(text))))
    assert again.replace("nn", "") == text
