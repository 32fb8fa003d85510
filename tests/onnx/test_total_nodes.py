"""Which nodes stay finite, or run at all, when operands change (passes/facts/total.py)."""

from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from pitc.ir.expr import Combine, Reducer, TensorExpr
from pitc.ir.index import poly, sym
from pitc.ir.nodes import output_names
from pitc.ir.region import EVERYWHERE, Region, describe
from pitc.passes.facts.total import filled, is_total, may_fail, reader_upset_by_zeros
from tests.guard_worlds import graph_of, model_of

NODES = {  # the last node: (operands that change, total, may fail)
    "y = Mul (x, z)": [("x z", True, False)],
    "y = Div (x, z)": [("x", True, False), ("z", False, False), ("x z", False, False)],
    "y = Div (x, half)": [("x", True, False)],
    "y = Reciprocal (x)": [("x", False, False)],
    # by combination
    "y = Transpose (x)": [("x", True, False)],
    "y = ReduceMax (x, last)": [("x", True, False)],
    "y = Softmax (x)": [("x", True, False)],
    "a = Transpose (z) y = MatMul (x, a)": [("x", True, False)],
    "y = LayerNormalization (x, pair)": [("x", True, False)],
    "y = LpNormalization (x)": [("x", False, False)],
    "y = CumSum (x, front)": [("x", True, False)],
    "y = NonZero (x)": [("x", True, False)],
    # without a rank
    "y = Tanh (any)": [("any", True, False)],
    "y = Log (any)": [("any", False, False)],
    "y = Div (x, any)": [("x", False, False)],
    "y = other.Op (x)": [("x", False, False)],
    # attributes
    "y = LeakyRelu <alpha = 2.0> (x)": [("x", True, False)],
    "y = LeakyRelu <alpha = inf> (x)": [("x", False, False)],
    "y = LeakyRelu <alpha = 1e20> (x)": [("x", True, False)],
    "h = Cast <to = 10> (x) y = LeakyRelu <alpha = 1e20> (h)": [("h", False, False)],
    "a = Shape (x) y = ConstantOfShape (a)": [("", True, False)],
    "a = Shape (x) y = ConstantOfShape <value = float[1] {2}> (a)": [("", True, False)],
    "a = Shape (x) y = ConstantOfShape <value = float[1] {nan}> (a)": [("", False, False)],
    # conversions
    "y = Cast <to = 1> (mask)": [("mask", True, False)],
    "y = Cast <to = 7> (x)": [("x", True, False)],
    "y = Cast <to = 1> (said)": [("said", False, True), ("", True, False)],
    "y = CastLike (said, x)": [("said", False, True), ("x", True, False)],
    "c = other.Op (x) y = Cast <to = 1> (c)": [("c", False, True), ("x", True, False)],
    "y = Identity (said)": [("said", True, False)],
    # places
    "y = Gather <axis = 1> (x, places)": [
        *[("x", True, False), ("places", True, True), ("", True, False)],
        ("x places", True, True),
    ],
    "c = other.Op (x) y = Gather (x, c)": [("c", True, True), ("x", True, False)],
    # places of the best ones are inside, whatever they are the best of
    "v, i = TopK <axis = 1> (x, last) y = Gather <axis = 1> (z, i)": [("i", True, False)],
    "v, i = TopK <axis = 1> (x, last) y = GatherElements <axis = 1> (z, i)": [
        *[("i", True, False), ("z i", True, False)],
    ],
    "v, i = TopK <axis = 1> (x, last) y = ScatterElements <axis = 1> (z, i, v)": [
        *[("i", True, False), ("i v", True, False)],
    ],
    "i = ArgMax <axis = 1> (x) a = Transpose (i) y = Gather <axis = 1> (z, a)": [
        ("a", True, False),
    ],
    "i = ArgMax <axis = 1> (x) y = Gather <axis = 0> (z, i)": [("i", True, True)],
    "i = ArgMax <axis = 1> (x) a = Add (i, i) y = Gather <axis = 1> (z, a)": [("a", True, True)],
    "i = ArgMax <axis = 1> (x) y = Gather <axis = 1> (i, i)": [("i", True, True)],
    "v, i = TopK <axis = 1> (places, last) y = Gather <axis = 1> (z, v)": [("v", True, True)],
    "i = ArgMax <axis = 1> (x) y = GatherND <batch_dims = 1> (z, i)": [("i", True, False)],
    "y = Add (places, places)": [("places", True, False)],
}
CASES = [(body, *case) for body, cases in NODES.items() for case in cases]


@pytest.mark.parametrize(("body", "changed", "total", "fails"), CASES)
def test_nodes(body: str, changed: str, total: bool, fails: bool) -> None:
    graph = graph_of(model_of(body))
    node = graph["y"].producer
    assert node is not None
    assert is_total(graph, node, set(changed.split())) is total
    assert may_fail(graph, node, set(changed.split())) is fails


def test_an_absent_operand_does_not_change() -> None:
    graph = graph_of(model_of("y = Clip (x, , one)"))
    node = graph["y"].producer
    assert node is not None
    assert is_total(graph, node, {"x"})
    assert not may_fail(graph, node, {"x", ""})


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: [1.0, x],
        lambda x: [x, 1.0],
        *(
            lambda x, t=t: ir.tensor(np.array([x, 2], t))
            for t in ("float16", "float32", "float64", "complex64")
        ),
        lambda x: ir.tensor(np.array([x], np.float32), dtype=None),
    ],
)
def test_attributes(make: Any, bad: float | None) -> None:
    """Of an operator that is total otherwise."""
    graph = graph_of(model_of("y = Tanh (any)"))
    named = {"alpha": 0.5, "text": "inf", "n": 3, "many": [1, 2], "beta": make(bad or 0.5)}
    for order in (named, dict(reversed(named.items()))):
        node = ir.node("Tanh", [ir.val("any")], order, outputs=[ir.val("y")])
        assert is_total(graph, node, {"any"}) is (bad is None)


@pytest.mark.parametrize(
    ("types", "bad", "total"),
    [
        (("float32", "float16"), 1e20, False),
        (("float16", "float32"), 1e20, False),
        (("float32", "float64"), 1e20, True),
        (("float32", "bool"), 0.5, True),
        (("float32", "bool"), np.inf, False),
    ],
)
def test_attributes_are_numbers_of_the_narrowest_floats(
    types: tuple[str, str], bad: float, total: bool
) -> None:
    graph = graph_of(model_of("y = Tanh (any)"))
    for name, dtype in zip(("x", "z"), types, strict=True):
        graph[name].dtype = np.dtype(dtype)
    node = ir.node("Tanh", [ir.val("x"), ir.val("z")], {"alpha": bad}, outputs=[ir.val("y")])
    assert is_total(graph, node, {"x"}) is total


def test_attributes_that_are_no_floats() -> None:
    graph = graph_of(model_of("y = Tanh (any)"))
    tensors = [np.array([2**62]), np.array([True]), np.array([3], np.uint8)]
    named = {f"a{k}": ir.tensor(x) for k, x in enumerate(tensors)}
    text = ir.StringTensor([b"inf"], shape=ir.Shape([1]))
    node = ir.node("Tanh", [ir.val("any")], named | {"t": text}, outputs=[ir.val("y")])
    assert is_total(graph, node, {"any"})


UPSET = {  # from zeros in x: values that may change too, and who is upset
    ("q = Tanh (x) s = Add (z, q) y = Div (z, q)", "q", "y"),
    ("q = Tanh (x) s = Add (z, q) y = Div (z, q)", "", ""),
    ("q = Tanh (x) y = Div (q, z)", "q", ""),
    ("y = Div (z, x)", "", "y"),
    ("y = Div (x, x)", "", "y"),
    ("y = Reciprocal (z) q = Tanh (x)", "q", ""),
    ("q = Tanh (x) r = Neg (q) s = Cos (r) t = Tanh (s) y = Log (t)", "q r s t", "y"),
    ("q = Tanh (x) r = Neg (q) s = Cos (r) t = Tanh (s) y = Log (t)", "q r t", ""),
    ("q = Tanh (x) r = Neg (q) s = Add (q, r) y = Log (s)", "q r s", "y"),
    ("q, r = Split <num_outputs = 2> (x) y = Log (r)", "r", "y"),
    ("q, r = Split <num_outputs = 2> (x) y = Log (r)", "q", ""),
    ("k = Cast <to = 7> (x) y = Gather (z, k)", "k", "y"),
    ("k = Cast <to = 7> (x) y = Gather (z, k)", "", ""),
    ("k = Shape (x) y = ConstantOfShape (k)", "k", ""),
    ("k = Shape (x) q = Tanh (x) y = Log (q)", "q", "y"),
    ("y = Identity (z)", "", ""),
}


@pytest.mark.parametrize(("body", "loose", "upset"), sorted(UPSET))
def test_readers_of_zeros(body: str, loose: str, upset: str) -> None:
    graph = graph_of(model_of(body))
    for name in loose.split():
        graph[name].dead = [EVERYWHERE]
    node = reader_upset_by_zeros(graph, "x", lambda name: graph[name].uses)
    assert (output_names(node) if node else [""]) == [upset]


@pytest.mark.parametrize(
    ("name", "zeroed", "upset"),
    [("x", (), ""), ("x", ("a",), "y"), ("x", ("z",), ""), ("a", (), "y"), ("a", ("x",), "y")],
)
def test_what_is_positive_as_it_is_made_may_have_zeros(
    name: str, zeroed: tuple[str, ...], upset: str
) -> None:
    graph = graph_of(model_of("b = Abs (x) a = Add (b, one) y = Div (z, a)"))
    for loose in ("b", "a"):
        graph[loose].dead = [EVERYWHERE]
    node = reader_upset_by_zeros(graph, name, lambda name: graph[name].uses, zeroed)
    assert (output_names(node) if node else [""]) == [upset]


S, T = sym("s"), sym("t")
EXTENTS = {
    (S,): "s-1 >= 0",
    (S, T): "s-1 >= 0 and t-1 >= 0",
    (poly(3), S): "s-1 >= 0",
    (poly(3), poly(1)): "everywhere",
    (poly(0),): "-1 >= 0",
    (S + 1,): "everywhere",
    (): "everywhere",
}


@pytest.mark.parametrize(("combine", "reducer"), [*product(Combine, Reducer)])
def test_there_is_something_to_reduce(combine: Combine, reducer: Reducer) -> None:
    """Sums and products of nothing are 0 and 1."""
    may_be_empty = reducer in (Reducer.SUM, Reducer.SQUARE, Reducer.PROD)
    for extents, text in EXTENTS.items():
        expr = TensorExpr((T,), reduced=extents, combine=combine, reducer=reducer)
        whole = combine is not Combine.REDUCE or may_be_empty
        assert describe(filled(expr)) == ("everywhere" if whole else text)
        assert isinstance(filled(expr), Region)
