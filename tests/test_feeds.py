"""Random inputs: sizes named as sums of others, lengths of caches, switches between branches."""

import numpy as np
import pytest

from pitc.check.feeds import PATTERNS, InputSpec, cases, parse_shapes, sizes_of
from pitc.errors import UsageError

INT, FLOAT, BOOL = np.dtype(np.int64), np.dtype(np.float32), np.dtype(bool)
NAMES = ["batch", "new", "old + new", "old"]
DECODER = [
    InputSpec("input_ids", INT, ("batch", "new"), 100),
    InputSpec("attention_mask", INT, ("batch", "old + new")),
    InputSpec("past", FLOAT, ("batch", 4, "old", 8)),
    InputSpec("use_cache_branch", BOOL, (1,)),
]


def sizes(**given: int) -> list[int]:
    fixed = {k.replace("_", " + "): v for k, v in given.items()}
    return list(sizes_of(NAMES, fixed, (3, 17, 5)).values())


def test_sums_agree_with_their_parts() -> None:
    assert sizes() == [3, 17, 22, 5]
    assert sizes(old=0) == [3, 17, 17, 0]
    assert sizes(old_new=16) == [3, 16, 16, 0]  # a prompt
    assert sizes(old_new=16, new=1) == [3, 1, 16, 15]
    assert sizes_of(["a + b"], {}, (3,)) == {"a + b": 3}  # a name like any other
    assert sizes_of(["a + b"], {"a": 1, "b": 2}, (3,)) == {"a + b": 3}


@pytest.mark.parametrize("given", [{"old_new": 4, "old": 5}, {"old_new": 4, "old": 1, "new": 2}])
def test_sums_that_are_none_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="'old \\+ new' is not the sum of its parts"):
        sizes(**given)


def test_a_cache_may_be_empty_and_its_switch_is_on_when_it_is_not() -> None:
    found = list(cases(DECODER))
    assert {c.dims["old"] for c in found} >= {0, 1}
    assert len(found) == 4 * len(PATTERNS)
    for case in found:
        batch, new, old = (case.dims[n] for n in ("batch", "new", "old"))
        assert case.feeds["attention_mask"].shape == (batch, old + new)
        assert case.feeds["past"].shape == (batch, 4, old, 8)
        assert case.feeds["use_cache_branch"].all() or not old
    assert any(not c.feeds["use_cache_branch"].all() for c in found)


def test_shapes_that_a_user_gives() -> None:
    given = parse_shapes(["attention_mask=2x9", "new=4"], DECODER)
    assert [c.dims for c in cases(DECODER, given)] == [
        {"batch": 2, "new": 4, "old + new": 9, "old": 5}
    ] * len(PATTERNS)
