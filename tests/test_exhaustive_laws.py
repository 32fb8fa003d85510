"""Every elementwise law holds on all values that its constants stand for, in ONNX Runtime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.constant import NZ, TOP, is_number, is_zero
from pitc.passes.rules.constants import Constants
from pitc.passes.rules.laws import UNSETTLED
from pitc.passes.rules.record import OPERATORS
from tests.exhaustive_laws import Case, by_operator, cases, failures, running
from tests.record_twin import twin as make_twin

OPERATOR_CASES = by_operator()
CASES = cases()
LEAST_CASES = 440  # that ONNX Runtime has kernels for
SHOWN = 3  # wrong claims of a case that are shown


@pytest.mark.parametrize("op", OPERATOR_CASES)
def test_laws_hold_for_all_values(op: str) -> None:
    wrong = []
    for case in running(OPERATOR_CASES[op]):
        found = list(failures(case))
        if found:
            wrong += [f"{case.title}: {len(found)} claims are wrong", *found[:SHOWN]]
    assert wrong == []


def test_most_cases_run() -> None:
    found = running(CASES)
    assert len(found) >= LEAST_CASES
    elementwise = {key for key, row in OPERATORS.items() if row.function}
    assert {(c.domain, c.op) for c in found} == elementwise - {(DOMAIN, CHOOSE)}


# --- wrong twins, of what the first test finds right ---


def _case(op: str, *types: str) -> Case:
    return next(c for c in CASES if c.op == op and c.types == types)


def _zero(cs: Constants) -> Any:
    """A law that forgets that the other operand may be infinite."""
    return 0 if any(map(is_zero, cs)) else UNSETTLED


def _law(op: str) -> Callable[[Constants], Any]:
    law = OPERATORS["", op].law
    assert law is not None
    return law


def _swapped(op: str) -> Callable[[Constants], Any]:
    law = _law(op)
    return lambda cs: law((*cs[:-2], cs[-1], cs[-2]))


F16 = "float16"
TWINS: list[tuple[Case, Any]] = [
    (_case("Where", "bool", F16, F16), _swapped("Where")),
    (_case("Mul", F16, F16), _zero),
    (_case("Sub", F16, F16), _swapped("Sub")),
    (_case("Div", F16, F16), _law("Mul")),
    (_case("And", "bool", "bool"), _law("Or")),
    (_case("Or", "bool", "bool"), _law("And")),
    (_case("Not", "bool"), lambda cs: cs[0]),
    (_case("Min", F16, F16), lambda cs: min((c for c in cs if is_number(c)), default=TOP)),
    (_case("Equal", F16, F16), lambda cs: 0 if NZ in cs else UNSETTLED),
    (_case("Neg", "int8"), lambda cs: cs[0]),
]


@pytest.mark.parametrize(("case", "twin"), TWINS, ids=lambda p: getattr(p, "title", ""))
def test_a_wrong_law_is_found(case: Case, twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_twin(monkeypatch, case.op, law=twin)
    assert any(failures(case))


COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("Abs", {"monotone": True}),
    ("Cos", {"image": (-0.9, 1.0)}),
    ("Less", {"evaluate": np.less_equal}),
    ("Max", {"evaluate": np.minimum}),
]


@pytest.mark.parametrize(("op", "column"), COLUMNS)
def test_a_wrong_column_is_found(
    op: str, column: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(c for c in CASES if c.op == op and F16 in c.types)
    make_twin(monkeypatch, op, **column)
    assert any(failures(case))
