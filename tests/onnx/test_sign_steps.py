"""What a sign follows from (passes/facts/signs.py): each kind of step exactly, and in every run."""

import numpy as np
import pytest

from pitc.ir.graph import NodeView
from pitc.passes.facts.signs import MAX_STEPS, Known, _has_reciprocals, sign_of
from pitc.passes.rules.signs import Sign
from tests.guard_worlds import graph_of, model_of, values_of

ANY, NONNEGATIVE, POSITIVE = Sign
SOFT = "four = Gather <axis = 1> (x, four_places) p4 = Softmax (four) "  # 4 weights in a line
SQUARE = SOFT + "t4 = Transpose (four) g4 = Gather <axis = 1> (t4, four_places) "
CUBE = SOFT + "u4 = Unsqueeze (four, last) q4 = Softmax (u4) "
ABOVE = "e = Exp (x) a = Add (e, half) "

CONSTANTS = {
    **{"half": POSITIVE, "high": POSITIVE, "zero": NONNEGATIVE, "pair": NONNEGATIVE},
    **{"line": NONNEGATIVE, "minus_zero": NONNEGATIVE, "low": ANY, "lows": ANY, "nan": ANY},
    **{"ends": ANY, "none": POSITIVE, "two": ANY, "x": ANY, "places": ANY, "any": ANY},
}


def cut(start: int, end: int, axis: int, step: int) -> str:
    """A part t of p4 along an axis."""
    numbers = {"c0": start, "c1": end, "c2": axis, "c3": step}
    made = (f"{n} = Constant <value_ints = [{x}]> ()" for n, x in numbers.items())
    return f"{' '.join(made)} t = Slice (p4, c0, c1, c2, c3)"


SIGNS = {
    # known numbers
    "k = Shape (x) y = ConstantOfShape <value = float[1] {2}> (k)": POSITIVE,
    "k = Shape (x) y = ConstantOfShape <value = float[1] {0}> (k)": NONNEGATIVE,
    "k = Shape (x) y = ConstantOfShape <value = float[1] {-2}> (k)": ANY,
    "k = Shape (x) y = ConstantOfShape <value = float[1] {nan}> (k)": ANY,
    "k = Neg (one) a = Abs (x) y = Where (mask, one, a)": NONNEGATIVE,
    "y = Where (mask, one, x)": ANY,
    # who knows
    "y = other.Op (x)": ANY,
    "c = other.Op (x) y = Identity (c)": ANY,
    "y = Tanh (any)": ANY,
    "y = Abs (any)": ANY,
    "c = Abs (places) y = Identity (c)": ANY,
    # one element each
    "y = Exp (x)": NONNEGATIVE,
    f"{ABOVE} y = Identity (a)": POSITIVE,
    "y = Neg (x)": ANY,
    "y = Mul (x, x)": NONNEGATIVE,
    "y = Mul (x, z)": ANY,
    "y = Clip (x, half)": POSITIVE,
    "y = Clip (x, , one)": ANY,
    "e = Exp (x) y = Sum (e, half, e)": POSITIVE,
    "e = Exp (x) y = Sum (e, half, z)": ANY,
    # sizes
    "k = Shape (four_places) y = Cast <to = 1> (k)": POSITIVE,
    "k = Shape (x) y = Cast <to = 1> (k)": NONNEGATIVE,
    "k = Shape (x) l = Add (k, last) y = Cast <to = 1> (l)": POSITIVE,
    "k = Shape (x) l = Concat <axis = 0> (k, two) y = Cast <to = 1> (l)": NONNEGATIVE,
    "k = Shape (x) l = Sub (k, last) y = Cast <to = 1> (l)": ANY,
    "k = Shape (x) m = Neg (k) l = Concat <axis = 0> (k, m) y = Cast <to = 1> (l)": ANY,
    "k = Shape (four_places) y = CastLike (k, half)": POSITIVE,
    "y = Cast <to = 1> (last)": POSITIVE,
    "y = Cast <to = 1> (front)": NONNEGATIVE,
    "y = Cast <to = 1> (places)": ANY,
    "y = Cast <to = 1> (mask)": ANY,
    f"{ABOVE} h = Cast <to = 11> (a) y = Cast <to = 1> (h)": NONNEGATIVE,
    # places
    f"{ABOVE} y = Transpose (a)": POSITIVE,
    f"{ABOVE} y = Slice (a, front, last, last)": POSITIVE,
    f"{ABOVE} y = Gather <axis = 1> (a, places)": POSITIVE,
    f"{ABOVE} y = Concat <axis = 1> (a, x)": ANY,
    f"{ABOVE} y = Pad (a, around)": ANY,
    f"{ABOVE} y = Trilu (a)": ANY,
    f"{ABOVE} y = Concat <axis = 1> (a, a)": POSITIVE,
    # lines
    "y = Softmax (x)": NONNEGATIVE,
    "y = LogSoftmax (x)": ANY,
    f"{ABOVE} y = ReduceSum (a, last)": NONNEGATIVE,
    f"{ABOVE} y = ReduceMean (a, last)": NONNEGATIVE,
    f"{ABOVE} y = ReduceMax (a, last)": ANY,
    f"{ABOVE} y = ReduceProd (a, last)": ANY,
    "y = ReduceSum (x, last)": ANY,
    "y = ReduceL2 (x, last)": NONNEGATIVE,
    "y = ReduceL1 (x, last)": NONNEGATIVE,
    "p4 = Softmax (x) y = ReduceSum (p4, last)": NONNEGATIVE,  # there may be none
    f"{SOFT} y = ReduceSum (p4, last)": POSITIVE,
    f"{SOFT} y = ReduceMean <keepdims = 0> (p4, last)": POSITIVE,
    f"{SOFT} y = ReduceMax (p4, last)": ANY,
    f"{SOFT} y = ReduceSum (p4, front)": NONNEGATIVE,
    f"{SOFT} y = ReduceSum (p4)": NONNEGATIVE,
    "u = Unsqueeze (x, last) p1 = Softmax <axis = 1> (u) y = ReduceSum (p1, last)": NONNEGATIVE,
    f"{SQUARE} s4 = Softmax (g4) y = ReduceSum (s4, last)": POSITIVE,
    f"{SQUARE} s4 = Softmax (g4) y = ReduceSum (s4, front)": NONNEGATIVE,
    f"{SQUARE} s4 = Softmax <axis = 0> (t4) y = ReduceSum (s4)": NONNEGATIVE,
    """c = ReduceSum (x, last) d = Concat <axis = 1> (x, c) p1 = Softmax (d)
       y = ReduceSum (p1, last)""": POSITIVE,
    f"{SOFT} r4 = Relu (p4) y = ReduceSum (r4, last)": NONNEGATIVE,
    # a window of a line is not all of it
    f"{CUBE} y = AveragePool <kernel_shape = [2]> (q4)": NONNEGATIVE,
    f"{CUBE} y = AveragePool <kernel_shape = [2], strides = [2]> (q4)": NONNEGATIVE,
    f"{CUBE} y = AveragePool <kernel_shape = [3], strides = [3]> (q4)": NONNEGATIVE,
    f"{CUBE} y = AveragePool <kernel_shape = [4]> (q4)": POSITIVE,
    f"{CUBE} y = AveragePool <kernel_shape = [4], pads = [3, 3]> (q4)": NONNEGATIVE,
    f"{CUBE} y = GlobalAveragePool (q4)": POSITIVE,
    f"{CUBE} w4 = Unsqueeze (u4, two) s4 = Softmax (w4) y = GlobalAveragePool (s4)": POSITIVE,
    # the largest of a line
    f"{SOFT} t, i = TopK (p4, two) y = ReduceSum (t, last)": POSITIVE,
    f"{SOFT} t, i = TopK <largest = 1> (p4, two) y = ReduceSum (t, last)": POSITIVE,
    f"{SOFT} t, i = TopK (p4, last) y = ReduceSum (t, last)": POSITIVE,  # of one element
    f"{SOFT} t, i = TopK <axis = 0> (p4, last) y = ReduceSum (t, front)": ANY,
    f"{SOFT} t, i = TopK <largest = 0> (p4, two) y = ReduceSum (t, last)": ANY,
    f"{SOFT} t, i = TopK <axis = 0> (p4, last) y = ReduceSum (t, last)": ANY,
    f"{SOFT} t, i = TopK (p4, front) y = ReduceSum (t, last)": ANY,
    f"{SOFT} t, i = TopK (p4, two) u, j = TopK (t, two) y = ReduceSum (u, last)": POSITIVE,
    f"{SOFT} t, i = TopK (four, two) y = ReduceSum (t, last)": ANY,
    f"{SOFT} t = CumSum (p4, last) y = ReduceSum (t, last)": ANY,
    # lines that are moved as wholes
    f"{SOFT} t = Transpose (p4) y = ReduceSum (t, front)": POSITIVE,
    f"{SOFT} t = Transpose (p4) y = ReduceSum (t, last)": NONNEGATIVE,
    f"{SOFT} t = Unsqueeze (p4, front) y = ReduceSum (t, two)": POSITIVE,
    f"{SOFT} t = Unsqueeze (p4, front) y = ReduceSum (t, front)": NONNEGATIVE,
    f"{SOFT} t = Concat <axis = 0> (p4, p4) y = ReduceSum (t, last)": NONNEGATIVE,
    f"{SOFT} {cut(-1, -5, 1, -1)} y = ReduceSum (t, last)": POSITIVE,
    f"{SOFT} {cut(-1, -4, 1, -1)} y = ReduceSum (t, last)": NONNEGATIVE,
    f"{SOFT} {cut(0, 3, 1, 1)} y = ReduceSum (t, last)": NONNEGATIVE,
    f"{SOFT} {cut(0, 4, 1, 2)} y = ReduceSum (t, last)": NONNEGATIVE,
    f"{SOFT} {cut(1, 99, 0, 1)} y = ReduceSum (t, last)": POSITIVE,
    f"{SOFT} t = Gather <axis = 1> (p4, two) y = ReduceSum (t, last)": NONNEGATIVE,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    assert sign_of(graph_of(model_of("y = Add (x, z)")), name) is CONSTANTS[name]


@pytest.mark.parametrize("body", SIGNS)
def test_signs(body: str) -> None:
    graph = graph_of(model_of(body))
    assert sign_of(graph, "y") is SIGNS[body]
    others = [n for n, v in graph.values.items() if v.dtype is None or v.dtype.kind != "f"]
    assert all(sign_of(graph, n) is ANY for n in others)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", [b for b in SIGNS if "other" not in b])
def test_no_run_refutes_a_sign(body: str) -> None:
    model = model_of(body)
    graph, runs = graph_of(model), 0
    for values in values_of(model):
        runs += 1
        for name in (n for n in graph.values if n in values and values[n].dtype.kind == "f"):
            sign, x = sign_of(graph, name), values[name]
            assert sign is ANY or not (x < 0).any(), name
            assert sign is not POSITIVE or not (x == 0).any(), name
    assert runs


STEPS = {  # the last of a chain: its sign, and the steps that it takes
    "e": ("e = Exp (x)", NONNEGATIVE, 1),
    "a": (ABOVE, POSITIVE, 2),
    "m": (ABOVE + "m = Transpose (a)", POSITIVE, 3),
    "r": (ABOVE + "r = ReduceSum (a, last)", NONNEGATIVE, 3),
    "s": (ABOVE + "s = Softmax (a)", NONNEGATIVE, 1),
    "q": (ABOVE + "q = ReduceSumSquare (a, last)", NONNEGATIVE, 1),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_counted(name: str) -> None:
    body, sign, least = STEPS[name]
    graph = graph_of(model_of(body + f" y = Identity ({name})"))
    for steps in range(5):
        assert sign_of(graph, name, steps=steps) is (sign if steps >= least else ANY)


ZEROED = {  # a value that comes back with zeros, and the sign that is left
    f"{ABOVE} v = Identity (a)": ("a", NONNEGATIVE),
    f"{ABOVE} v = Transpose (a)": ("v", NONNEGATIVE),
    f"{ABOVE} o = Relu (a) v = Add (a, o)": ("a", NONNEGATIVE),
    f"{ABOVE} q = Mul (a, a) v = Add (q, a)": ("q", POSITIVE),
    f"{SOFT} v = ReduceSum (p4, last)": ("p4", NONNEGATIVE),
    f"{SOFT} t, i = TopK (p4, two) v = ReduceSum (t, last)": ("t", ANY),
    "v = Neg (x)": ("v", ANY),
}


@pytest.mark.parametrize("body", ZEROED)
def test_what_comes_back_with_zeros_is_not_positive(body: str) -> None:
    name, left = ZEROED[body]
    graph = graph_of(model_of(body + " y = Identity (v)"))
    assert sign_of(graph, "v", {name}) is left
    assert Known(NodeView(graph, graph.nodes[-1]), zeroed={name}).sign(0) is left


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_chain_is_not_followed(more: int) -> None:
    names = [f"v{k}" for k in range(MAX_STEPS - 1 + more)]
    pairs = zip(["e", *names], [*names, "y"], strict=True)
    body = "e = Exp (x) " + " ".join(f"{y} = Identity ({x})" for x, y in list(pairs)[:-1])
    graph = graph_of(model_of(body + " y = Identity (e)"))
    assert sign_of(graph, names[-1]) is (ANY if more else NONNEGATIVE)


NUMBERS = {
    **{"half": (0.5, True), "zero": (0.0, False), "pair": (None, False), "ends": (None, True)},
    **{"x": (None, False), "two": (2, False), "lows": (None, True), "none": (None, True)},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_known_of_an_operand(name: str) -> None:
    graph = graph_of(model_of(f"y = other.Op (x, {name})"))
    known = Known(NodeView(graph, graph.nodes[-1]))
    assert (known.number(1), known.has_no_zero(1)) == NUMBERS[name]
    assert not known.has_no_zero(0)


@pytest.mark.parametrize(
    ("number", "found"), [(4e-39, True), (2e-39, False), (0.0, False), (-0.0, False), (3e38, True)]
)
def test_numbers_with_reciprocals(number: float, found: bool) -> None:
    """The reciprocal of 4e-39 is 2.5e38, that of 2e-39 no float32."""
    assert _has_reciprocals(np.array([1, number], np.float32)) is found
