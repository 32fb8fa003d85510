"""Single steps of fill facts (passes/facts/fill.py): exact results for operands made by hand."""

from dataclasses import replace
from math import inf

import numpy as np
import onnx
import pytest

from pitc.ir.constant import BOUNDED, FINITE, NEG, SCORE, TOP, ZN, Constant, FillFact, Range
from pitc.ir.expr import Reducer, TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.region import EVERYWHERE, Region, Test
from pitc.passes.facts import fill
from pitc.passes.facts.fill import (
    _by_combine,
    _combinations,
    _is_tame,
    _product,
    _result,
    _tame,
    term_guard,
    weaker_than,
)
from pitc.passes.rules.record import operator_of
from tests.fact_check import proven
from tests.rule_proof import Sample, analysed

F = np.ones((2, 2), np.float32)


def flag(name: str, yes: bool = True) -> Region:
    """A region by one number's test."""
    return Region({Test(name, (), "nz", yes)})


def node(op: str, count: int = 2, **attributes: object) -> tuple[NodeView, TensorExpr]:
    """A node on floats: `finite k` and `clean k` say where operand k is."""
    first = [np.ones((2, 2), bool)] if op == "Where" else []
    operands = (*first, *[F] * (count - len(first)))
    graph = analysed(Sample(op, operands, dict(attributes)))
    view = NodeView(graph, graph.nodes[0])
    expr = graph[view.out()].expr
    assert expr is not None
    for k in range(count):
        value = graph[view.name(k)]
        value.finite_if, value.clean_if = flag(f"finite {k}"), flag(f"clean {k}")
    return view, expr


LOW, SOME, HIGH, ANY = Range(-inf, 1), Range(-1, 2), Range(0, inf), Range(-inf, inf)


@pytest.mark.parametrize(
    ("op", "tame"), [("Add", [LOW, NEG, SOME]), ("Mul", [SOME]), ("Div", [LOW, NEG, SOME])]
)
def test_what_is_finite_by_what_is_known_of_it(op: str, tame: list[Constant]) -> None:
    operator = operator_of(node(op)[0])
    every: list[Constant] = [LOW, NEG, SOME, HIGH, ANY, TOP, ZN]
    assert [c for c in every if _is_tame(c, operator)] == tame


@pytest.mark.parametrize(
    ("op", "constants", "guards"),
    [
        ("Add", (TOP, 1.0), ["clean 0"]),
        ("Add", (1.0, TOP), ["clean 1"]),
        ("Add", (TOP, TOP), ["clean 0", "clean 1"]),
        ("Add", (LOW, 1.0), []),
        ("Add", (HIGH, ZN), ["clean 0", "clean 1"]),
        ("Sub", (TOP, 1.0), ["clean 0"]),
        ("Sub", (1.0, TOP), ["finite 1"]),
        ("Mul", (0, TOP), ["finite 1"]),
        ("Mul", (SOME, LOW), ["finite 1"]),
        ("Mul", (inf, -inf), []),
        ("Max", (TOP, SOME), ["finite 0"]),
        ("Where", (1, TOP, TOP), []),
    ],
)
def test_operands_that_count_as_finite_must_be(
    op: str, constants: tuple[Constant, ...], guards: list[str]
) -> None:
    view, expr = node(op, len(constants))
    assert _tame(view, expr, constants) == Region(t for g in guards for t in flag(g))


def test_what_is_finite_nowhere_is_nowhere_tame() -> None:
    view, expr = node("Add")
    view.graph[view.name(0)].clean_if = None
    assert term_guard(view, expr.reads[0]) is None
    assert _tame(view, expr, (TOP, 1.0)) is None is _tame(view, expr, (TOP, TOP))
    assert _tame(view, expr, (1.0, TOP)) == flag("clean 1")
    assert _result(view, expr, (TOP, -inf)) is None


@pytest.mark.parametrize(
    ("op", "constants", "found", "assumed"),
    [
        ("Mul", (2.0, 3.0), (6.0, EVERYWHERE), []),
        ("Mul", (0, TOP), (0, flag("finite 1")), [FINITE]),
        ("Mul", (TOP, 0), (0, flag("finite 0")), [FINITE]),
        ("Mul", (1.0, NEG), (NEG, flag("finite 1")), [FINITE]),
        ("Mul", (TOP, TOP), None, []),
        ("Add", (-inf, TOP), (-inf, flag("clean 1")), [FINITE]),
        ("Add", (TOP, NEG), None, []),
        ("Add", (1.0, SOME), (Range(0, 3), EVERYWHERE), []),
        ("Add", (SOME, SOME), (Range(-2, 4), EVERYWHERE), []),
        ("Where", (1, 0, TOP), (0, EVERYWHERE), []),
        # what a score is taken to be is named where the result does not say so itself
        ("Add", (SCORE, 5.0), (Range(-995, 1005, True), EVERYWHERE), []),
        ("Less", (SCORE, 2e3), (1, EVERYWHERE), [BOUNDED]),
        ("Less", (2e3, SCORE), (0, EVERYWHERE), [BOUNDED]),
        ("Less", (SOME, 2e3), (1, EVERYWHERE), []),
        ("Mul", (SCORE, 0), (0, EVERYWHERE), []),
    ],
)
def test_a_result_names_what_it_assumes(
    op: str,
    constants: tuple[Constant, ...],
    found: tuple[Constant, Region] | None,
    assumed: list[str],
) -> None:
    view, expr = node(op, len(constants))
    assert _result(view, expr, constants) == found
    assert list(view.graph.assumptions) == assumed


def test_weaker_constants_have_one_unknown_more() -> None:
    assert list(weaker_than((0, 1.0, TOP))) == [(TOP, 1.0, TOP), (0, TOP, TOP)]
    assert list(weaker_than((1.0, 2.0, 3.0)))[1:] == [(1.0, TOP, 3.0), (1.0, 2.0, TOP)]
    assert list(weaker_than((TOP,))) == [] == list(weaker_than(()))


@pytest.mark.parametrize(("most", "count"), [(8, 0), (9, 4)])
def test_too_many_combinations_say_nothing(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, expr = node("Mul")
    for k in (0, 1):
        facts = [FillFact(flag(f"a{k}"), 2.0), FillFact(flag(f"b{k}"), 3.0)]
        view.graph[view.name(k)].fills = facts
    monkeypatch.setattr(fill, "MAX_COMBINATIONS", most)
    assert len(_combinations(view, expr)) == count


def test_further_outputs_are_not_what_the_operator_computes() -> None:
    view, expr = node("Mul")
    view.graph[view.name(0)].fills = [FillFact(flag("a"), 0)]
    assert _by_combine(view, 0, expr) == [FillFact(flag("a") | flag("finite 1"), 0)]
    assert [_by_combine(view, k, expr) for k in (1, 2)] == [[], []]


def test_only_sums_of_products_are_looked_at() -> None:
    view, expr = node("MatMul")
    view.graph[view.name(0)].fills = [FillFact(flag("a"), 0)]
    assert _product(view, expr) == [FillFact(flag("a") | flag("finite 1"), 0)]
    assert list(view.graph.assumptions) == [FINITE]
    assert _product(view, replace(expr, reducer=Reducer.MAX)) == []
    assert _product(view, replace(expr, reduced=(), reducer=Reducer.NONE)) != []


@pytest.mark.parametrize(
    ("kind", "body", "assumed"),
    [
        ("float16", "c = Where (flag, large, x) p = Add (c, large)", True),
        ("float16", "c = Where (flag, negative, x) p = Sub (c, large)", True),
        ("float16", "c = Where (flag, one, x) p = Add (c, one)", False),
        ("float16", "c = Where (flag, infinite, x) p = Add (c, one)", False),
        ("float16", "c = Where (flag, infinite, x) p = Add (one, c)", False),
        ("float", "c = Where (flag, large, x) p = Add (c, large)", False),
    ],
)
def test_infinite_sums_of_numbers(kind: str, body: str, assumed: bool) -> None:
    """ONNX Runtime may add float16 in float32, where 60000 + 60000 is finite."""
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (bool[n, 4] flag, {kind}[n, 4] x) => ({kind} p) {{ {body} }}""")
    dtype = np.dtype(np.float16 if kind == "float16" else np.float32)
    large = 6e4 if kind == "float16" else 3e38
    numbers = {"large": large, "negative": -large, "one": 1, "infinite": np.inf}
    for name, number in numbers.items():
        weight = onnx.numpy_helper.from_array(np.array(number, dtype), name)
        proto.graph.initializer.append(weight)
    graph = proven(proto)
    sign = -1 if "Sub" in body else 1
    assert [fact.constant for fact in graph["p"].fills] == [
        2 if "one, x" in body else sign * np.inf
    ]
    assert (FINITE in graph.assumptions) == assumed
