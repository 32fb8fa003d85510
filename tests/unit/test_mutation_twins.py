"""What the mutation campaign found untested, one test for each kind of wrong twin that lived."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from models.graph import GraphBuilder
from pitc.ir.constant import BOUNDED, FINITE
from pitc.ir.graph import Graph
from tests.fact_check import analysed, built, dead, fills, proven

HIDDEN_WHERE = "m_mask[d0, d2] == 0"


def rows_with(hidden: Callable[[GraphBuilder, str], str]) -> onnx.ModelProto:
    """softmax of a row that a mask hides keys of, and a flag replaces others by something."""

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("batch", "rows", "keys", "parts"))
        keep = g.op("Unsqueeze", g.input("m_mask", np.bool_, ("batch", "keys")), g.ints(1))
        flag = g.input("f_mask", np.bool_, ("batch", "rows", "keys"))
        row = g.op("Where", flag, g.const(0.0), hidden(g, x))
        z = g.op("Where", keep, row, g.const(-1e4))
        p = g.op("Softmax", z, axis=-1)
        g.output(p, "p", np.float32, ("batch", "rows", "keys"))

    return built(make)


def _mean(g: GraphBuilder, x: str) -> str:
    return g.op("ReduceMean", x, g.ints(-1), keepdims=0)


def _logarithm(g: GraphBuilder, x: str) -> str:
    return g.op("ReduceSum", g.op("Log", x), g.ints(-1), keepdims=0)


def zeros_of(graph: Graph) -> set[str]:
    return {text for text, c in fills(graph, "p") if c == 0}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_row_with_a_mean_of_nothing_is_nan(parts: int) -> None:
    graph = proven(rows_with(_mean), sizes={"parts": parts})
    found = zeros_of(graph)
    assert found
    assert all("parts-1 >= 0" in text for text in found), found


def test_a_row_with_what_may_be_nan_says_nothing() -> None:
    graph, _ = analysed(rows_with(_logarithm))
    assert zeros_of(graph) == set()


def scaled(op: str, number: float, low: float) -> onnx.ModelProto:
    """softmax of (q @ k) times or by a number, with a mask."""

    def make(g: GraphBuilder) -> None:
        q = g.input("q", np.float32, ("batch", "rows", 4))
        k = g.input("k", np.float32, ("batch", 4, "keys"))
        keep = g.op("Unsqueeze", g.input("m_mask", np.bool_, ("batch", "keys")), g.ints(1))
        s = g.op(op, g.op("MatMul", q, k), g.const(number))
        p = g.op("Softmax", g.op("Add", s, g.op("Where", keep, g.const(0.0), g.const(low))))
        g.output(p, "p", np.float32, ("batch", "rows", "keys"))

    return built(make)


# a score of at most 1000, before and after: a mask of -6750 hides, and with twice the score -7750
@pytest.mark.parametrize(
    ("op", "number", "low", "hides"),
    [
        *(("Mul", number, -6750, True) for number in (1.0, -1.0, 0.5, -0.25)),
        *(("Div", number, -6750, True) for number in (1.0, -1.0, 2.0, -4.0)),
        *(("Mul", number, low, low == -7750) for number in (2.0, -2.0) for low in (-7749, -7750)),
        *(("Div", number, low, low == -7750) for number in (0.5, -0.5) for low in (-7749, -7750)),
    ],
)
def test_a_scale_that_is_known_is_counted(op: str, number: float, low: float, hides: bool) -> None:
    graph, _ = analysed(scaled(op, number, low))
    want = {f"{HIDDEN_WHERE} and some j: m_mask[d0, j] != 0"}
    assert zeros_of(graph) == (want if hides else set())


def test_a_softmax_names_its_assumptions() -> None:
    graph, _ = analysed(scaled("Mul", 1.0, -1e4))
    softmax = next(n for n in graph.nodes if n.op_type == "Softmax")
    assert softmax.name in graph.assumptions[FINITE]
    assert softmax.name in graph.assumptions[BOUNDED]


def known_terms(*terms: Any) -> onnx.ModelProto:
    """softmax of constants and masks, no score among them."""

    def make(g: GraphBuilder) -> None:
        keep = g.op("Unsqueeze", g.input("m_mask", np.bool_, ("batch", 5)), g.ints(1))
        z = g.op("Where", keep, g.const(0.0), g.const(-1e4))
        for term in terms:
            z = g.op("Add", z, g.weight(f"w{id(term)}", np.asarray(term, np.float32)))
        g.output(g.op("Softmax", z), "p", np.float32, ("batch", 1, 5))

    return built(make)


def test_a_softmax_of_known_terms_assumes_no_bounds() -> None:
    graph, _ = analysed(known_terms([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert zeros_of(graph)
    assert BOUNDED not in graph.assumptions


def test_a_chosen_score_is_assumed_to_be_bounded() -> None:
    """What hides is a number, and only what is kept is a score."""

    def make(g: GraphBuilder) -> None:
        q = g.input("q", np.float32, ("batch", "rows", 4))
        k = g.input("k", np.float32, ("batch", 4, "keys"))
        keep = g.op("Unsqueeze", g.input("m_mask", np.bool_, ("batch", "keys")), g.ints(1))
        z = g.op("Where", keep, g.op("MatMul", q, k), g.const(-1e4))
        g.output(g.op("Softmax", z), "p", np.float32, ("batch", "rows", "keys"))

    graph, _ = analysed(built(make))
    softmax = next(n for n in graph.nodes if n.op_type == "Softmax")
    assert zeros_of(graph)
    assert softmax.name in graph.assumptions[BOUNDED]


def test_nothing_is_assumed_where_nothing_is_claimed() -> None:
    graph, _ = analysed(scaled("Mul", 1.0, -100))
    assert zeros_of(graph) == set()
    assert BOUNDED not in graph.assumptions


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("parts", [0, 3])
def test_a_factor_that_may_be_nan_is_read_where_the_other_is_zero(parts: int) -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("batch", "keys", "width", "parts"))
        keep = g.op("Unsqueeze", g.input("m_mask", np.bool_, ("batch", "keys")), g.ints(1))
        gate = g.op("Where", keep, g.const(1.0), g.const(0.0))
        mean = g.op("ReduceMean", x, g.ints(-1), keepdims=0)
        g.output(g.op("MatMul", gate, mean), "y", np.float32, ("batch", 1, "width"))

    graph = proven(built(make), sizes={"parts": parts})
    (mean,) = (n.outputs[0].name for n in graph.nodes if n.op_type == "ReduceMean")
    assert dead(graph, mean or "") == {"m_mask[d0, d1] == 0 and parts-1 >= 0"}


def test_an_old_softmax_normalises_over_several_dimensions() -> None:
    """A key of the same row is then one of another query, too."""

    def make(g: GraphBuilder) -> None:
        q = g.input("q", np.float32, ("batch", 3, 4))
        k = g.input("k", np.float32, ("batch", 4, 3))
        m = g.input("m_mask", np.bool_, ("batch", 1, 3))
        hidden = g.op("Where", m, g.const(0.0), g.const(-1e4))
        z = g.op("Add", g.op("MatMul", q, k), hidden)
        g.output(g.op("Softmax", z, axis=1), "p", np.float32, ("batch", 3, 3))

    proto = built(make, opset=13)
    proto.opset_import[0].version = 12
    graph = proven(proto)
    assert zeros_of(graph) == {"m_mask[d0, 0, d2] == 0 and some j: m_mask[d0, 0, j] != 0"}
