"""Every elementwise law holds on all values that its constants stand for, in ONNX Runtime."""

import pytest

from pitc.ir.branch import CHOOSE, DOMAIN
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
