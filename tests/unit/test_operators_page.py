"""docs/operators.md: every operator of the installed onnx, and what the rules say today."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from pitc.passes.rules import OPERATORS, REFUSED, Reason
from tests.record_twin import twin
from tests.rule_proof import Sample, analysed
from tools.operators_page import operators, page, schemas
from tools.specimens import SPECIMENS

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
MADE = "run python -m tools.operators_page"


def rows() -> set[str]:
    """Names of the operators that have a row."""
    lines = PAGE.read_text("utf-8").splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def test_every_operator_of_onnx_is_on_the_page() -> None:
    assert {op for _, op in schemas()} - rows() == set(), MADE


def test_the_page_is_what_the_rules_say() -> None:
    text = PAGE.read_text("utf-8")
    if f"operators of onnx {onnx.__version__} and" not in text:
        pytest.skip("the page was made with another version of onnx")
    assert text == page(), MADE


def test_an_operator_has_a_rule_or_a_reason() -> None:
    assert [key for key in operators() if (key in OPERATORS) == (key in REFUSED)] == []
    assert set(SPECIMENS) == set(OPERATORS)


def test_a_new_operator_of_onnx_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REFUSED, ("", "Bernoulli"))
    assert [key for key in operators() if key not in OPERATORS and key not in REFUSED] == [
        ("", "Bernoulli")
    ]


def test_a_changed_rule_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page()
    twin(monkeypatch, "Mul", rule=OPERATORS["", "Softmax"].rule)
    changed = [a for a, b in zip(page().splitlines(), before.splitlines(), strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0].startswith("| `Mul` ")


X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("Multinomial", (X,), {"sample_size": 3}), Reason.RANDOM),
        (Sample("SequenceConstruct", (X, X)), Reason.SEQUENCE),
        (Sample("Unique", (X,)), Reason.SELECTION),
        (Sample("NonMaxSuppression", (X[None], X[None, :1])), Reason.SELECTION),
        (Sample("Normalizer", (X,), domain="ai.onnx.ml"), Reason.CLASSICAL),
        (Sample("QLinearConcat", (X,) * 5, domain="com.microsoft"), Reason.QUANTISED),
    ],
    ids=lambda value: value.title if isinstance(value, Sample) else value.name,
)
def test_a_node_without_rule_says_its_reason(sample: Sample, reason: Reason) -> None:
    graph = analysed(sample)
    assert graph["y0"].expr is None
    assert graph["y0"].unruled == f"{sample.op}: {reason.value}"
