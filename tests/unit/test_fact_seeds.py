"""What is said of inputs and constants by themselves: exactly, and against their numbers."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.constant import NEG, NZ, FillFact, Range
from pitc.ir.graph import Graph
from pitc.passes.audit.points import where
from pitc.passes.facts import seeds
from pitc.passes.facts.seeds import seed_constant, seed_input
from tests.exhaustive_values import stands_for

Array = Any
IS_MASK = "the padding mask '{}' holds 0 and 1 only"
TRUTH = ["0 where {}[d0] == 0", "1 where {}[d0] != 0"]
NUMBER = ["0 where {}[d0] == 0", "NZ where {}[d0] != 0"]
LOW = ["NEG where {}[d0] <= -1e4"]
HALF = [0.0, 1.0] * 4096
ODD_ZEROS = [1.0, 0.0] * 50
NAN, INF = np.nan, np.inf


def texts(facts: list[FillFact]) -> list[str]:
    named = {NZ: "NZ", NEG: "NEG"}
    return [f"{named.get(f.constant, f.constant)} where {f.region}" for f in facts]


@pytest.fixture
def inputs() -> Graph:
    """Inputs of every kind, which nothing reads."""
    kinds = ("bool", "int64", "int32", "uint8", "float", "double", "float16", "complex64", "string")
    names = ", ".join(f"{kind}[n] x_{kind}" for kind in kinds)
    head = '<ir_version: 8, opset_import: ["": 18]>'
    model = onnx.parser.parse_model(f"{head} g ({names}) => (float y) <float y = {{1}}> {{ }}")
    return Graph(ir.from_proto(model))


@pytest.mark.parametrize(
    ("kind", "alone", "mask"),
    [
        ("bool", TRUTH, TRUTH),
        ("int64", NUMBER, TRUTH),
        ("int32", NUMBER, TRUTH),
        ("uint8", NUMBER, TRUTH),
        ("float", [], TRUTH),
        ("double", [], TRUTH),
        ("float16", [], TRUTH),
        ("complex64", [], []),
        ("string", [], []),
    ],
)
def test_what_is_said_of_an_input(
    inputs: Graph, kind: str, alone: list[str], mask: list[str]
) -> None:
    name = f"x_{kind}"
    assert texts(seed_input(inputs, name, False)) == [t.format(name) for t in alone]
    assert not inputs.assumptions
    assert texts(seed_input(inputs, name, True)) == [t.format(name) for t in mask]
    # a bool needs no promise
    promised = mask == TRUTH and kind != "bool"
    assert inputs.assumptions == ({IS_MASK.format(name): []} if promised else {})


@pytest.mark.parametrize("kind", ["float", "double", "float16", "int64", "complex64", "string"])
@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize("term", [False, True])
def test_numbers_that_are_a_factor_or_a_term_of_a_softmax(
    inputs: Graph, kind: str, factor: bool, term: bool
) -> None:
    name = f"x_{kind}"
    inputs[name].term = term
    inputs[name].multiplied = ("",) if factor else ()
    expected = {"f": NUMBER * factor + LOW * term, "i": NUMBER}
    found = expected.get(inputs.dtype(name).kind, [])
    assert texts(seed_input(inputs, name, False)) == [t.format(name) for t in found]


def test_nothing_is_said_of_an_unknown_type_or_shape(inputs: Graph) -> None:
    inputs["x_bool"].dtype = None
    inputs["x_int64"].shape = None
    for name in ("x_bool", "x_int64"):
        assert seed_input(inputs, name, True) == []


def graph_of(x: Array, term: bool = False) -> Graph:
    """A graph with one constant."""
    head = '<ir_version: 8, opset_import: ["": 18]>'
    model = onnx.parser.parse_model(f"{head} g (float a) => (float y) {{ y = Identity (a) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(x), "c"))
    graph = Graph(ir.from_proto(model))
    graph["c"].term = term
    return graph


def said(x: Array, term: bool = False) -> list[tuple[str, Any]]:
    """What is said of a constant."""
    return [(str(f.region), f.constant) for f in seed_constant(graph_of(x, term), "c")]


MASKED, OTHERS = "c[d0] <= -1e4", "c[d0] > -1e4"
ZERO, TRUE, FALSE = ("c[d0] == 0", 0), ("c[d0] != 0", 1), ("c[d0] == 0", 0)


@pytest.mark.parametrize(
    ("values", "dtype", "expected", "of_a_term"),
    [
        ([2.5, 2.5], "f4", [("everywhere", 2.5)], None),
        ([-1e9], "f8", [("everywhere", -1e9)], None),
        ([-INF, -INF], "f4", [("everywhere", -INF)], None),
        ([NAN, NAN], "f4", [], None),
        ([7, 7], "i8", [("everywhere", 7)], None),
        ([True, True], "?", [("everywhere", True)], None),
        ([True, False], "?", [FALSE, TRUE], None),
        ([1, 0], "i8", [], None),
        ([], "f4", [], None),
        ([], "?", [], None),
        ([1j, 2], "c8", [], None),
        ([1j, 1j], "c8", [], None),
        (
            [0.0, -1e4],
            "f4",
            [],
            [(MASKED, Range(-1e4, -1e4)), (OTHERS, Range(0, 0))],
        ),
        ([1.0, -3.0], "f4", [], [("everywhere", Range(-3, 1))]),
        ([-9999.0, 2.0], "f4", [], [("everywhere", Range(-9999, 2))]),
        ([-2e4, -1e4], "f4", [], [(MASKED, Range(-2e4, -1e4))]),
        (
            [-INF, 1.0, 3.0],
            "f4",
            [],
            [(MASKED, Range(-INF, -INF)), (OTHERS, Range(1, 3))],
        ),
        ([NAN, 1.0], "f4", [], []),
        ([NAN, -1e9], "f4", [], []),
        ([INF, 1.0], "f4", [], [("everywhere", Range(1, INF))]),
        # a mask of zeros, when it is large and most of it is 0
        ([0.0] * 64 + [1.0], "f4", [ZERO], None),
        ([0.0] * 63 + [1.0], "f4", [], [("everywhere", Range(0, 1))]),
        ([0] * 64 + [1], "i8", [], None),
        (HALF, "f4", [], [("everywhere", Range(0, 1))]),
        (ODD_ZEROS, "f4", [], [("everywhere", Range(0, 1))]),
        ([0.0, 0.0, *ODD_ZEROS[2:]], "f4", [ZERO], None),
    ],
    ids=str,
)
def test_what_is_said_of_a_constant(
    values: list[Any], dtype: str, expected: list[Any], of_a_term: list[Any] | None
) -> None:
    x = np.array(values, dtype)
    assert said(x) == expected
    assert said(x, term=True) == (expected if of_a_term is None else of_a_term)


def test_nothing_is_said_of_what_is_no_constant() -> None:
    assert seed_constant(graph_of(np.ones(1)), "a") == []


@pytest.mark.parametrize(
    ("sampled", "others", "mostly"),
    [(0.6, 0.6, True), (0.5, 1.0, False), (0.4, 1.0, False), (0.6, 0.4, False), (0.6, 0.5, True)],
)
def test_of_a_large_constant_a_sample_is_looked_at_first(
    sampled: float, others: float, mostly: bool
) -> None:
    x = np.ones((4096, 2), np.float32)
    for column, share in enumerate((sampled, others)):
        x[: round(4096 * share), column] = 0
    assert (said(x) == [("c[d0, d1] == 0", 0)]) == mostly


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1e4, -9999.5, -2e4, NAN, INF, -INF]), max_size=5),
    st.sampled_from(["f4", "f8", "f2", "?", "i4"]),
    st.booleans(),
)
def test_what_is_said_holds(values: list[float], dtype: str, term: bool) -> None:
    with np.errstate(invalid="ignore"):
        x = np.array(values).astype(dtype)
    for f in seed_constant(graph_of(x, term), "c"):
        here = np.broadcast_to(where(f.region, x.shape, {}, {"c": x}), x.shape)
        assert stands_for(f.constant, x[here]).all()


def test_the_share_of_zeros_is_more_than_half() -> None:
    assert seeds.MOSTLY == 0.5
    assert said(np.array([0.0] * 51 + [1.0] * 49, np.float32)) == [ZERO]
    assert said(np.array([0.0] * 50 + [1.0] * 50, np.float32)) == []
