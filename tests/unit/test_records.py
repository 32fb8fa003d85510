"""The records of operators: every column is decided, its default is the safe side, and it agrees
with what the operator computes.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.ir.index import poly
from pitc.passes.rules.assumes import RULE, RUNTIME, Assumes
from pitc.passes.rules.record import (
    OPERATORS,
    UNKNOWN,
    Elementwise,
    Items,
    Key,
    Operator,
    never,
    operator_of,
    trust_none,
)
from pitc.passes.rules.registry import rule
from tools import operators_page as page

ROOT = Path(__file__).parents[2]
# what is said of an operator of which nobody says anything; a new column needs a line
SAFE: dict[str, Any] = {
    "rule": None,
    "assumes": None,  # undecided, which no operator of the registry may be
    "function": None,
    "magnitude": None,
    "finite": never,
    "keeps_clean": False,
    "selects": False,
    "finds_nan": False,
    "chooses": False,
    "converts": False,
    "caps": False,
    "quantises": False,
    "dequantises": False,
    "reads_no_element": False,
    "weights": (),
    "powers": (),
    "law": None,
    "sign": None,
    "not_positive": never,
    "least": None,
    "square": never,
    "exponent": None,
    "affine": None,
    "order": None,
    "value": None,
    "fill": None,
    "diagonal": None,
    "elsewhere": None,
    "positions": None,
    "few": None,  # nothing rests on it but the order in which nodes are tried, and prices
    "live_places": False,
    "zeros": None,  # nothing rests on it but the cost of the analysis
    "extremes_of": None,
    "centres": None,
    "packs": None,
    "items": Items.ALL,
    "kernels": (),
    "derivative": None,
    "adjoint": None,
}
SAFE_FUNCTION: dict[str, Any] = {
    "operands": None,
    "trusted": trust_none,
    "parameters": None,
    "monotone": False,
    "image": None,
    "boolean": False,
    "typed": False,  # without a node only: operands count as float32
}


def test_the_default_of_every_column_is_the_safe_side() -> None:
    assert {f.name: getattr(UNKNOWN, f.name) for f in fields(Operator)} == SAFE
    known = Elementwise(None)
    columns = {f.name: getattr(known, f.name) for f in fields(Elementwise)}
    assert columns.pop("evaluate") is None
    assert columns == SAFE_FUNCTION


def test_an_operator_without_a_record_has_the_safe_one() -> None:
    for domain, op in (("", "NoSuchOperator"), ("my.domain", "Add"), ("com.microsoft", "Where")):
        assert operator_of(ir.node(op, [], domain=domain)) is UNKNOWN
    assert operator_of(ir.node("Add", [], domain="ai.onnx")) is OPERATORS["", "Add"]


def undecided(operators: dict[Key, Operator]) -> list[Key]:
    """Operators of the registry of which nobody has said what their rules assume."""
    return [key for key, row in operators.items() if row.rule is None or row.assumes is None]


def test_every_operator_says_what_it_assumes() -> None:
    assert undecided(OPERATORS) == []
    assert undecided({("", "New"): Operator(finite=never)}) == [("", "New")]
    with pytest.raises(TypeError, match="assumes"):
        rule("New")  # type: ignore[call-arg]


@pytest.mark.parametrize("assumed", Assumes, ids=lambda a: a.name)
def test_somebody_checks_what_is_assumed(assumed: Assumes) -> None:
    by = assumed.value.by
    if by not in (RULE, RUNTIME):
        module, name = by.split(":")
        assert hasattr(importlib.import_module(module), name)
    assert assumed.label in page.page()


# --- columns against what the operator computes ---

FUNCTIONS = {
    key: row.function.evaluate
    for key, row in OPERATORS.items()
    if row.function is not None and row.function.evaluate is not None
}
NUMBERS = (-3.0, -1.0, 0.5, 2.0, 4.0)


def of_two(column: str) -> list[Any]:
    """Operators of two operands that have a column."""
    return [pytest.param(k, id=k[1]) for k, row in OPERATORS.items() if getattr(row, column)]


@pytest.mark.parametrize("key", of_two("weights"))
def test_a_sum_is_one(key: Key) -> None:
    row = OPERATORS[key]
    for x, y in product(NUMBERS, repeat=2):
        assert FUNCTIONS[key](x, y) == row.weight(0) * x + row.weight(1) * y


@pytest.mark.parametrize("key", [p for p in of_two("powers") if p.id != "Einsum"])
def test_a_product_is_one(key: Key) -> None:
    row = OPERATORS[key]
    for x, y in product(NUMBERS, repeat=2):
        assert FUNCTIONS[key](x, y) == x ** row.power(0) * y ** row.power(1)


@pytest.mark.parametrize("key", of_two("order"))
def test_a_comparison_is_one(key: Key) -> None:
    order = OPERATORS[key].order
    assert order is not None
    for x, y in product((1, 2, 3), repeat=2):
        real = bool(FUNCTIONS[key](x, y))
        known = [p.as_int() for p in order.nonnegative(poly(x - y))]
        assert real == all(n is not None and n >= 0 for n in known)
        turned = [p.as_int() for p in order.turned().nonnegative(poly(y - x))]
        assert real == all(n is not None and n >= 0 for n in turned)
        if (below := order.below()) is not None:
            assert real == ((x + below[0] < y) == below[1])


@pytest.mark.parametrize("key", of_two("affine"))
def test_an_affine_function_is_right_for_numbers(key: Key) -> None:
    law, function = OPERATORS[key].affine, OPERATORS[key].function
    assert law is not None and function is not None
    one = key[1] in ("Neg", "Cast")
    for xs in product((-2, 0, 5), repeat=1 if one else 2):
        known = {"to": np.dtype(np.int64)} if function.parameters is not None else {}
        found = law([poly(x) for x in xs])
        assert found is not None
        assert found.as_int() == FUNCTIONS[key](*xs, **known)


def test_bools_are_bools() -> None:
    for domain, op in (key for key in FUNCTIONS if not key[0]):
        schema, function = onnx.defs.get_schema(op), OPERATORS[domain, op].function
        kind = schema.outputs[0].type_str
        types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        assert function is not None
        assert function.boolean == (types.get(kind, [kind]) == ["tensor(bool)"]), op


def test_a_choice_depends_on_the_chosen_operand_alone() -> None:
    for key in (k for k, row in OPERATORS.items() if row.chooses):
        assert FUNCTIONS[key](True, 1.0, np.nan) == 1.0
        assert FUNCTIONS[key](False, np.nan, 2.0) == 2.0
        assert OPERATORS[key].selects
    assert [k for k, row in OPERATORS.items() if row.finds_nan] == [("", "IsNaN")]


# --- no table of operators lives elsewhere ---

NAMES = {op for _, op in OPERATORS}
ENGINES = [f"passes/{room}" for room in ("exprs", "quirks", "facts", "regions", "lower", "audit")]
LEFT = {
    "passes/lower/activation.py": "steps that a kernel's epilogue can do",
    "passes/regions/softmax_grad.py": "what is multiplied out to compare it with a gradient",
    "passes/quirks/early_quantise.py": "what ONNX Runtime moves a quantisation over",
    "pitc/ir/quirks.py": "of which ONNX Runtime counts places otherwise",
}


def tables(text: str) -> Iterator[set[str]]:
    """Literals of a module that list three or more operators."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            keys = [k for k in node.keys if k is not None]
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            keys = node.elts
        else:
            continue
        parts = [e for k in keys for e in (k.elts if isinstance(k, ast.Tuple) else [k])]
        named = {p.value for p in parts if isinstance(p, ast.Constant) and p.value in NAMES}
        if len(named) > 2:
            yield named


def test_engines_have_no_tables_of_operators() -> None:
    found = {}
    for folder in (*ENGINES, "pitc/ir"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if lists := list(tables(path.read_text("utf-8"))):
                found[str(path.relative_to(ROOT))] = lists
    assert found.keys() == LEFT.keys(), found
    assert list(tables('X = {"Add", "Sub", "Mul"}')) == [{"Add", "Sub", "Mul"}]
