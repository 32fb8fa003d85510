"""Formulas: their text, what is a column, what depends on rows."""

import pytest

from pitc.ir.formula import Formula

NORM = "Mul:x0:x1,ReduceMean:s0,Add:s1:x2,Sub:s0:s2;s3;s2;s0"


def test_a_formula_and_its_text() -> None:
    formula = Formula.of(("whole", "row", "number"), NORM)
    assert formula.text == NORM and Formula.of(formula.kinds, formula.text) == formula
    assert [s.op for s in formula.steps] == ["Mul", "ReduceMean", "Add", "Sub"]
    assert formula.results == (3, 2, 0) and formula.columns == (False, True, True, False)
    assert formula.column_results == (False, True, False)


@pytest.mark.parametrize(
    ("kinds", "text", "by_rows"),
    [
        (("whole", "number"), "Add:x0:x1;s0", False),
        (("whole", "flags"), "Where:x1:x0:0x0.0p+0;s0", False),
        (("whole", "row"), "Add:x0:x1;s0", True),
        (("whole", "column"), "Add:x0:x1;s0", True),
        (("whole",), "ReduceSum:x0,Add:x0:s0;s1", True),
    ],
)
def test_what_depends_on_rows(kinds: tuple[str, ...], text: str, by_rows: bool) -> None:
    assert Formula.of(kinds, text).by_rows == by_rows


def test_a_row_is_no_column() -> None:
    formula = Formula.of(("whole", "row", "column"), "Add:x1:x2,Add:s0:x0,Neg:x2,Mul:s1:s2;s3")
    assert formula.columns == (False, False, True, False)


def test_kernels_have_names_of_their_own() -> None:
    """By what operands are and by the text, results included."""
    texts = [
        "Add:x0:x1;s0",
        "Sub:x0:x1;s0",
        "Add:x1:x0;s0",
        "Neg:x0,Add:s0:x1;s1",
        "Neg:x0,Add:s0:x1;s1;s0",
    ]
    kinds = [("whole", "whole"), ("whole", "row"), ("whole", "number")]
    symbols = {Formula.of(k, t).symbol for k in kinds for t in texts}
    assert len(symbols) == len(texts) * len(kinds)
    assert all(x.startswith("elementwise_") and x.isidentifier() for x in symbols)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Add:x0:x2;s0", "reads x2"),
        ("Add:x0:s0;s0", "reads s0"),
        ("Add:x0:x1,Neg:s2;s1", "reads s2"),
        ("Add;s0", "no step"),
        ("Add:x0:1.5;s0", "no step"),
        ("Add:x0:x1", "no results"),
        ("Add:x0:x1,Neg:s0;s0", "no results"),
        ("Add:x0:x1;s0;s3", "no results"),
        ("", "no step"),
    ],
)
def test_what_is_no_formula(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Formula.of(("whole", "whole"), text)
