"""Symbolic integers, affine functions and position facts hold for all sizes 0..4."""

from collections.abc import Callable
from typing import Any

import pytest

from pitc.ir.graph import NodeView
from pitc.passes.rules import values
from pitc.passes.rules.affine import Order
from tests.exhaustive_integers import Program, arithmetic, failures, positions, programs, shapes
from tests.record_twin import twin

PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_integers_are_what_the_runtime_computes(name: str) -> None:
    assert [text for program in PROGRAMS[name]() for text in failures(program)] == []


def _add(xs: list[Any]) -> Any:
    return xs[0] + xs[1] + xs[1]


def _size(view: NodeView, shape: tuple[int, ...]) -> Any:
    return values.element_count(view, shape) + 1


TWINS: list[tuple[Callable[[], Program], str, dict[str, Any]]] = [
    (lambda: arithmetic("int64"), "Sub", {"affine": lambda xs: xs[1] - xs[0]}),
    (lambda: arithmetic("int32"), "Add", {"affine": _add}),
    (lambda: positions("int64"), "Less", {"order": Order(less=True, equal=True)}),
    (lambda: positions("int64"), "LessOrEqual", {"order": Order(less=True, equal=False)}),
    (lambda: positions("int64"), "Greater", {"order": Order(less=True, equal=False)}),
    (lambda: positions("int64"), "Equal", {"order": Order(less=False, equal=True)}),
    (shapes, "Size", {"value": _size}),
    (shapes, "Sub", {"value": values.add}),
    (shapes, "Less", {"value": values.less_or_equal}),
]


@pytest.mark.parametrize(("make", "op", "columns"), TWINS)
def test_a_wrong_rule_is_found(
    make: Callable[[], Program],
    op: str,
    columns: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first test finds the right rules right."""
    twin(monkeypatch, op, **columns)
    assert any(failures(make()))
