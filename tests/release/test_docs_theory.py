"""docs/theory.md says what the code says: its tables come from here (pytest --update-golden)."""

import re
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from pitc.ir import region, work
from pitc.ir.constant import (
    BOUNDED,
    FINITE,
    HIDDEN,
    KEPT,
    MASKED,
    NEG,
    NZ,
    SCORE,
    SMALL,
    TOP,
    ZN,
    Constant,
)
from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.target import CPU
from pitc.passes.exprs.derive import derive
from pitc.passes.facts import fill
from pitc.passes.regions import domain
from pitc.passes.regions.live_tests import SIZE_CLASSES
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import OPERATORS as RECORDS
from pitc.passes.rules.record import always

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
BLOCK = re.compile(r"<!-- generated (\w+): [^\n]* -->\n(.*?)<!-- /generated \1 -->\n", re.DOTALL)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def reducers() -> str:
    """What each reducer allows."""
    yes = {True: "yes", False: ""}
    rows = [
        [f"`{r.value}`", yes[r.commutes], yes[r.keeps_zero], yes[r.keeps_constant]] for r in Reducer
    ]
    header = ["Reducer", "order does not matter", "zeros give 0", "equal terms give that term"]
    return table(header, rows)


SAMPLES = {
    "MatMul": "(float[b, m, k] x, float[k, n] w) => (float[b, m, n] y) { y = MatMul(x, w) }",
    "ReduceMax": "(float[b, s] x) => (float[b] y) { y = ReduceMax <axes = [1], keepdims = 0> (x) }",
    "Add": "(float[b, s] x, float[s] w) => (float[b, s] y) { y = Add(x, w) }",
    "Transpose": "(float[b, s] x) => (float[s, b] y) { y = Transpose <perm = [1, 0]> (x) }",
    "Gather": "(float[v, d] x, int64[b] i) => (float[b, d] y) { y = Gather(x, i) }",
    "Concat": "(float[b, s] x, float[b, t] w) => (float[b, u] y) { y = Concat <axis = 1> (x, w) }",
    "Softmax": "(float[b, s] x) => (float[b, s] y) { y = Softmax <axis = -1> (x) }",
    "LayerNormalization": (
        "(float[b, d] x, float[d] w) => (float[b, d] y) { y = LayerNormalization(x, w) }"
    ),
    "Conv": "(float[b, c, 32] x, float[n, c, 3] w) => (float[b, n, 30] y) { y = Conv(x, w) }",
}


def expression(text: str) -> TensorExpr:
    """The expression of the output of a one-node model."""
    header = '<ir_version: 8, opset_import: ["": 17]>\nsample '
    model = onnx.parser.parse_model(header + text)
    graph = Graph(ir.serde.deserialize_model(model))
    derive(graph)
    found = graph["y"].expr
    assert found is not None
    return found


def axes() -> str:
    """Expressions and PIT axes of some operators."""
    rows = []
    for op, text in SAMPLES.items():
        expr = expression(text)
        names = [axis.name for axis in expr.axes]

        def show(p: Poly | None, names: list[str] = names) -> str:
            return "?" if p is None else re.sub(r"\bd(\d+)", lambda m: names[int(m[1])], str(p))

        reads = [f"x{r.operand}[{', '.join(map(show, r.index))}]" for r in expr.reads]
        out = ", ".join(names[: len(expr.shape)])
        kind = expr.combine.value
        if expr.reduced:
            kind = f"{expr.reducer.value} over {', '.join(names[len(expr.shape) :])} of {kind}"
        pit = " ".join(axis.name for axis in expr.pit_axes()) or "none"
        rows.append([op, f"`y[{out}]`: {kind} of `{', '.join(reads)}`", pit])
    return table(["operator", "expression", "PIT axes"], rows)


OPERANDS: dict[str, Constant] = {"0": 0, "-inf": -inf, "`NEG`": NEG, "`ZN`": ZN, "`NZ`": NZ}
LAWS: dict[str, Callable[[Constant], list[Constant]]] = {
    "c * x": lambda c: [c, TOP],
    "c / x": lambda c: [c, TOP],
    "x + c": lambda c: [TOP, c],
    "SCORE + c": lambda c: [SCORE, c],
    "c - x": lambda c: [c, TOP],
    "min(c, x)": lambda c: [c, TOP],
    "relu(c)": lambda c: [c],
    "c and x": lambda c: [c, TOP],
    "c or x": lambda c: [c, TOP],
}
OPERATORS = ("Mul", "Div", "Add", "Add", "Sub", "Min", "Relu", "And", "Or")


def laws() -> str:
    """What is known of f(c, x) for a known c and a finite x."""

    def show(c: Constant) -> str:
        if c is TOP:
            return ""
        return f"{c:g}" if isinstance(c, (int, float)) else f"`{c!r}`"

    rows = [
        [f"`{text}`", *(show(evaluate_constants(op, at(c))) for c in OPERANDS.values())]
        for (text, at), op in zip(LAWS.items(), OPERATORS, strict=True)
    ]
    return table(["x finite, else unknown; c is", *OPERANDS], rows)


def partial() -> str:
    """Elementwise operators that may turn finite numbers into others."""
    rows = RECORDS.items()
    names = sorted(op for (_, op), row in rows if row.function and row.finite is not always)
    return ", ".join(names) + ".\n"


def limits() -> str:
    """Where the search for facts and forms ends."""
    rows = [
        ["tests in a region", region.MAX_TESTS],
        ["regions of a value", region.MAX_FACTS],
        ["combinations of operand facts at a node", fill.MAX_COMBINATIONS],
        ["coordinates of a domain", domain.MAX_RANK],
        ["head size of attention", CPU.longest_head],
        ["smallest extent of a fused contraction", CPU.least_extent],
        ["operations that must be saved per byte moved", CPU.flops_per_byte],
        ["times that where ONNX Runtime computes on copies", CPU.copied_price],
        ["bytes moved in the time that such copies take to start", CPU.copied_start_bytes],
        ["what a byte counts for that is gathered from between others", CPU.apart_price],
        ["times that where a live test reads or makes it", CPU.tested_price],
        ["bytes of a live test that cost nothing", CPU.tested_free_bytes],
        ["elements that an unknown size counts for", work.EXAMPLE_SIZE],
        ["those for which a live test has to pay", ", ".join(map(str, SIZE_CLASSES))],
        ["a mask, where it is tested: at most", f"{MASKED:g}"],
        ["no mask, where it is tested: within", f"{SMALL:g}"],
        ["a raw score is assumed to be within", f"{SCORE.hi:g}"],
        ["a hidden term of a softmax is at most", f"{HIDDEN:g}"],
        ["a kept one at least", f"{KEPT:g}"],
    ]
    return table(["limit", "value"], rows)


GENERATED = {
    "reducers": reducers,
    "axes": axes,
    "laws": laws,
    "partial": partial,
    "limits": limits,
}


@pytest.mark.parametrize("name", GENERATED)
def test_the_tables_are_what_the_code_says(name: str, request: pytest.FixtureRequest) -> None:
    text, made = PAGE.read_text("utf-8"), "\n" + GENERATED[name]() + "\n"
    (found,) = (m for m in BLOCK.finditer(text) if m[1] == name)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[: found.start(2)] + made + text[found.end(2) :], "utf-8")
        return
    assert found[2] == made, "pytest --update-golden tests/release/test_docs_theory.py"


def test_every_table_of_the_page_is_made_here() -> None:
    assert [m[1] for m in BLOCK.finditer(PAGE.read_text("utf-8"))] == list(GENERATED)


def test_every_combine_is_explained() -> None:
    text = PAGE.read_text("utf-8")
    for combine in Combine:
        assert f"| `{combine.value}` |" in text


def test_assumptions_are_named_as_the_compiler_prints_them() -> None:
    text = PAGE.read_text("utf-8")
    assert BOUNDED in text and FINITE in text


def test_the_examples_run() -> None:
    codes = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert codes
    for code in codes:
        exec(compile(code, PAGE.name, "exec"), {})


def test_the_numbers_of_the_row_guard() -> None:
    """A hidden term gives 0 beside a kept one, in every type; three tested terms are allowed."""
    assert np.exp(np.float64(HIDDEN - KEPT)) == 0 < np.exp(np.float64(-745))
    limit = SCORE.hi
    assert MASKED + limit + 3 * SMALL <= HIDDEN < MASKED + limit + 4 * SMALL
    assert -(limit + 4 * SMALL) >= KEPT > -(limit + 5 * SMALL)
    assert -6750 + limit <= HIDDEN < -6749 + limit
    text = PAGE.read_text("utf-8")
    assert f"H = {HIDDEN:g}" in text and f"K = {KEPT:g}" in text and f"S = {limit:g}" in text
