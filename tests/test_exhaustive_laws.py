"""Every elementwise law holds on all values that its constants stand for, in ONNX Runtime."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.constant import NZ, TOP, is_number, is_zero
from pitc.passes.rules import constants
from pitc.passes.rules.constants import Constants
from pitc.passes.rules.elementwise import ELEMENTWISE
from tests.exhaustive_laws import Case, cases, failures, session

CASES = cases()
LEAST_CASES = 440  # that ONNX Runtime has kernels for


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.title)
def test_laws_hold_for_all_values(case: Case) -> None:
    if session(case) is None:
        pytest.skip("ONNX Runtime has no kernel")
    found, _ = failures(case)
    assert found == [], f"{len(found)} claims are wrong, such as {found[0]}"


def test_most_cases_run() -> None:
    running = [c for c in CASES if session(c) is not None]
    assert len(running) >= LEAST_CASES
    assert {(c.domain, c.op) for c in running} == set(ELEMENTWISE) - {(DOMAIN, CHOOSE)}


# --- wrong twins ---


def _case(op: str, *types: str) -> Case:
    return next(c for c in CASES if c.op == op and c.types == types)


def _zero(cs: Constants) -> Any:
    """A law that forgets that the other operand may be infinite."""
    return 0 if any(map(is_zero, cs)) else constants.UNSETTLED


def _swapped(op: str) -> Callable[[Constants], Any]:
    law = constants.LAWS[op]
    return lambda cs: law((*cs[:-2], cs[-1], cs[-2]))


F16 = "float16"
TWINS: list[tuple[Case, Any]] = [
    (_case("Where", "bool", F16, F16), _swapped("Where")),
    (_case("Mul", F16, F16), _zero),
    (_case("Sub", F16, F16), _swapped("Sub")),
    (_case("Div", F16, F16), constants.LAWS["Mul"]),
    (_case("And", "bool", "bool"), constants.LAWS["Or"]),
    (_case("Or", "bool", "bool"), constants.LAWS["And"]),
    (_case("Not", "bool"), lambda cs: cs[0]),
    (_case("Min", F16, F16), lambda cs: min((c for c in cs if is_number(c)), default=TOP)),
    (_case("Equal", F16, F16), lambda cs: 0 if NZ in cs else constants.UNSETTLED),
    (_case("Neg", "int8"), lambda cs: cs[0]),
]


@pytest.mark.parametrize(("case", "twin"), TWINS, ids=lambda p: getattr(p, "title", ""))
def test_a_wrong_law_is_found(case: Case, twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = failures(case)
    monkeypatch.setitem(constants.LAWS, case.op, twin)
    wrong, _ = failures(case)
    assert set(wrong) - set(right)


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
    assert failures(case)[0] == []
    monkeypatch.setitem(ELEMENTWISE, ("", op), replace(ELEMENTWISE["", op], **column))
    assert failures(case)[0]
