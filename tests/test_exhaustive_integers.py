"""Symbolic integers, affine functions and position facts hold for all sizes 0..4."""

from collections.abc import Callable
from typing import Any

import pytest

from pitc.passes.facts import affine, values
from tests.exhaustive_integers import Program, arithmetic, failures, positions, programs, shapes

PROGRAMS = list(programs())


@pytest.mark.parametrize(("name", "make"), PROGRAMS, ids=[n for n, _ in PROGRAMS])
def test_integers_are_what_the_runtime_computes(name: str, make: Callable[[], Program]) -> None:
    found, _ = failures(make())
    assert found == [], f"{name}: {len(found)} values are wrong, such as {found[0]}"


def _add(xs: list[Any]) -> Any:
    return xs[0] + xs[1] + xs[1]


SIZE = values.VALUES["Size"]
TWINS: list[tuple[Callable[[], Program], dict[str, Any], str, Any]] = [
    (lambda: arithmetic("int64"), affine.AFFINE, "Sub", lambda xs: xs[1] - xs[0]),
    (lambda: arithmetic("int32"), affine.AFFINE, "Add", _add),
    (lambda: positions("int64"), affine.NONNEGATIVE, "Less", lambda d: [-d]),
    (lambda: positions("int64"), affine.BELOW, "LessOrEqual", (0, True)),
    (shapes, values.VALUES, "Size", lambda view, shape: SIZE(view, shape) + 1),
    (shapes, values.VALUES, "Sub", values.VALUES["Add"]),
    (shapes, values.VALUES, "Less", values.VALUES["LessOrEqual"]),
]


@pytest.mark.parametrize(("make", "table", "key", "twin"), TWINS)
def test_a_wrong_rule_is_found(
    make: Callable[[], Program],
    table: dict[str, Any],
    key: str,
    twin: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, _ = failures(make())
    monkeypatch.setitem(table, key, twin)
    wrong, _ = failures(make())
    assert set(wrong) - set(right)
