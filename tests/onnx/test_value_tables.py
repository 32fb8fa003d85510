"""Small tables of integers as symbols (passes/exprs/values.py): exactly, and in every small run."""

import numpy as np
import pytest

from pitc.ir.graph import NodeView
from pitc.ir.index import ONE, poly
from pitc.passes.audit.points import sizes_of
from pitc.passes.audit.symbols import wrong_symbols
from pitc.passes.exprs.values import SMALL_VALUE, small_value
from tests.guard_worlds import graph_of
from tests.place_worlds import model_of, runs_of
from tests.record_twin import twin

VALUES = {
    "v = Shape (x)": "a b",
    "v = Identity (size)": "a b",
    "v = Add (rows, two)": "a+2",
    "v = Mul (size, size)": "a*a b*b",
    "v = Slice (size, front, last)": "a",
    "v = Slice (size, front, front)": "",
    "v = Add (weights, weights)": None,
    "v = NonZero (flags)": None,
    "v = Identity (lengths)": None,
    "v = Sign (line)": None,
    "k = Shape (flags) v = ConstantOfShape (k)": None,
    # types
    "v = Cast <to = 9> (both)": "0 1",
    "v = Cast <to = 9> (line)": "1 1 1",
    "v = Cast <to = 9> (size)": None,
    "v = Cast <to = 1> (size)": None,
    "v = Cast <to = 1> (both)": None,
    "v = Cast <to = 3> (seven)": "7",
    "v = Cast <to = 6> (size)": None,
    "v = Cast <to = 2> (minus)": None,
    "v = Cast <to = 2> (both)": "0 1",
    "v = Less (two, seven)": "1",
    "v = Less (rows, two)": None,
    "v = Neg (tiny)": None,
    "v = Add (byte, byte)": "6",
    "v = Sub (byte, byte)": "0",
    "v = Mul (huge, two)": None,
    "v = Sub (least, one)": None,
    "v = Sub (huge, one)": str(2**62),
    # sizes
    "v = ConstantOfShape <value = int64[1] {7}> (seventh)": " ".join(["7"] * 7),
    "v = ConstantOfShape <value = float[1] {7.5}> (seventh)": None,
    "v = ConstantOfShape <value = int64[1] {7}> (many)": " ".join(["7"] * 64),
    "v = ConstantOfShape <value = int64[1] {7}> (square)": " ".join(["7"] * 64),
    "v = ConstantOfShape <value = int64[1] {7}> (more)": None,
    "v = ConstantOfShape <value = int64[1] {7}> (size)": None,
}


@pytest.mark.parametrize("body", VALUES)
def test_tables(body: str) -> None:
    model = model_of(body)
    graph, runs = graph_of(model), 0
    found = graph["v"].ints
    assert (None if found is None else " ".join(map(str, found.reshape(-1)))) == VALUES[body]
    for values in runs_of(model):
        runs += 1
        sizes, _ = sizes_of(graph, values)
        assert list(wrong_symbols(graph, values, sizes)) == []
    assert runs and SMALL_VALUE == 64


def test_of_an_unknown_type_nothing_is_known() -> None:
    graph = graph_of(model_of("v = Shape (x)"))
    view = NodeView(graph, graph.nodes[-1])
    expr = graph["v"].expr
    assert expr is not None and small_value(view, expr) is not None
    graph["v"].dtype = None
    assert small_value(view, expr) is None


def test_a_table_has_the_shape_that_the_rule_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((2,), (1, 2), (3,), ()):
        made = np.full(shape, ONE, object)
        twin(monkeypatch, "Identity", value=lambda _view, _shape, made=made: made)
        found = graph_of(model_of("v = Identity (size)"))["v"].ints
        assert (found is not None) is (shape == (2,))


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_each_number_has_to_fit(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.array([poly(2**63 if k == bad else 1) for k in range(2)], object)
    twin(monkeypatch, "Identity", value=lambda _view, _shape: numbers)
    assert (graph_of(model_of("v = Identity (size)"))["v"].ints is None) is (bad < 2)
