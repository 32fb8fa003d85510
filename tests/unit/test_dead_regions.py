"""Where operands are not read, exactly, and which regions a value may have."""

import onnx_ir as ir
import pytest

from pitc.ir.constant import FINITE
from pitc.ir.graph import Graph
from pitc.ir.index import dim_index
from pitc.ir.region import EVERYWHERE, Region, Test, position
from pitc.passes.facts import dead as dead_pass
from pitc.passes.facts.dead import dead_facts, legal
from tests.fact_texts import analysed_text, dead_of, text_model

OFF, ON = "flag[d0, d1, d2] == 0", "flag[d0, d1, d2] != 0"
T, E, L = "t = Tanh (mask)", "e = Tanh (other)", "l = Log (mask)"
GATE = "c = Cast <to = 1> (flag)"
TEST = "c = Cast <to = 9> (other)"
NOT_C, IS_C = "c[d0, d1, d2] == 0", "c[d0, d1, d2] != 0"
FLAT = (
    "i = Constant <value_int = 0> () f = Gather (flag, i) c = Cast <to = 1> (f)"
    " g = Gather (mask, i) t = Tanh (g)"
)
LEAST = "i = Constant <value_float = -inf> () h = Where (flag, nought, i) s = Softmax (h)"
KEPT = "some d-101: flag[d0, d1, d-101] != 0"

DEAD: dict[str, dict[str, list[str]]] = {
    # a choice: of a condition nothing is dead where another choice could be infinite
    f"{TEST} {T} {E} y = Where (c, e, t) p = Where (flag, y, nought)": {
        "c": [OFF],
        "e": [NOT_C, OFF],
        "t": [IS_C, OFF],
        "flag": [],
    },
    f"{TEST} {T} {L} y = Where (c, l, t) p = Where (flag, y, nought)": {
        "c": [],
        "l": [NOT_C, OFF],
        "t": [IS_C, OFF],
    },
    f"{TEST} {T} {L} y = Where (c, t, l) p = Where (flag, y, nought)": {
        "c": [],
        "t": [NOT_C, OFF],
        "l": [IS_C, OFF],
    },
    # but where only places are computed from what is chosen
    f"{TEST} {T} {L} y = Where (c, l, t) a = ArgMax <axis = 2> (y) b = Cast <to = 1> (a)"
    " p = Where (flag, b, nought)": {"c": ["all d-1: flag[d0, d1, d-1] == 0"]},
    f"{TEST} {T} {L} y = Where (c, l, t) a = Cast <to = 7> (y) b = Cast <to = 1> (a)"
    " p = Where (flag, b, nought)": {"c": []},  # infinity is no integer
    f"{TEST} {T} {L} y = Where (c, l, t) a = IsNaN (y) b = Cast <to = 1> (a)"
    " p = Where (flag, b, nought)": {"c": [OFF]},
    f"{TEST} {T} {L} y = Where (c, l, t) a = ArgMax <axis = 2> (y) b = Cast <to = 1> (a)"
    " z = Add (b, y) p = Where (flag, z, nought)": {"c": []},
    # the flag of a NaN guard follows the guarded value
    f"{L} c = IsNaN (l) y = Where (c, nought, l) p = Where (flag, y, nought)": {
        "c": [OFF],
        "l": [OFF],
    },
    f"{T} p = Where (flag, t, t)": {"t": []},
    f"{TEST} {T} y = Where (c, t, nought) p = Where (flag, y, t)": {
        "t": [f"{NOT_C} and {ON}"],
        "c": [OFF],
        "y": [OFF],
    },
    # a factor; an addend of a product is none, and a product with it does not vanish
    f"{FLAT} p = Gemm (c, t, row)": {"c": [], "t": ["all d-1: flag[0, d-1, d0] == 0"]},
    f"{FLAT} p = Gemm (t, c, row)": {"c": [], "t": ["all d-1: flag[0, d1, d-1] == 0"]},
    f"{FLAT} p = Gemm (square, t, c)": {"t": [], "c": []},
    f"{FLAT} p = Gemm (square, t, nought)": {"t": []},
    f"{FLAT} p = Gemm (c, c, t)": {"t": [], "c": []},
    f'{GATE} {T} {E} p = Einsum <equation = "abc,abd,abc->ad"> (c, t, e)': {
        "c": [],
        "t": ["all d-1: flag[d0, d1, d-1] == 0"],
        "e": [OFF],
    },
    # of one value that is read twice neither read decides about the other
    "r = Relu (mask) y = Mul (r, r) p = MatMul (y, square)": {"r": []},
    "r = Relu (mask) y = Tanh (r) z = Mul (y, r) p = MatMul (z, square)": {
        "r": [],
        "y": ["r[d0, d1, d2] == 0"],
    },
    f"{T} y = Sum (t, nought, t) z = Mul (y, t) p = Where (flag, z, nought)": {"t": [OFF]},
    # two that test themselves, each where the other one is 0
    "r = Relu (mask) u = Relu (other) y = Mul (r, u) p = MatMul (y, square)": {
        "r": ["u[d0, d1, d2] == 0"],
        "u": ["r[d0, d1, d2] == 0"],
        "y": [],
    },
    # where the other one is finite
    f"d = Cast <to = 9> (other) c = Cast <to = 1> (d) {LEAST} p = MatMul (c, s)": {
        "c": ["all d-1: flag[d0, d2, d-1] == 0"],
        "s": [f"all d-1: d[d0, d-1, d1] == 0 and {KEPT}"],
    },
    f"{TEST} {LEAST} d = Cast <to = 1> (c) y = Mul (d, s) p = ReduceSum (y, axis)": {
        "s": [f"other[d0, d1, d2] == 0 and {KEPT}"],
        "d": [OFF],
    },
    f"{TEST} {LEAST} p = Where (c, s, nought)": {"s": [NOT_C]},
    f"{L} y = Mul (l, nought) p = ReduceSum (y, axis)": {"l": []},
    f"{GATE} {LEAST} b = ReduceSum (c, most) g = Transpose <perm = [0, 2, 1]> (b)"
    " p = MatMul (g, s)": {"s": []},
    # the sign of a 0 is seen by a division, but a sum has none and a choice keeps it
    f"{GATE} {T} y = Mul (c, t) p = Reciprocal (y)": {"t": []},
    f"{GATE} {T} y = MatMul (c, t) p = Reciprocal (y)": {"t": ["all d-1: flag[d0, d-1, d1] == 0"]},
    f"{T} {E} y = Where (flag, e, t) p = Reciprocal (y)": {"e": [OFF], "t": [ON]},
    # what chooses between 0 and -0.0 does so too
    f"{GATE} {T} {TEST.replace('c', 'd', 1)} a = Mul (t, c) b = Neg (a) y = Where (d, a, b)"
    " p = Reciprocal (y)": {"d": []},
    f"{GATE} {T} {TEST.replace('c', 'd', 1)} a = Mul (t, c) b = Neg (a) y = Where (d, a, b)"
    " p = Tanh (y)": {"d": [OFF]},
    # logic
    f"{TEST} y = And (c, flag) p = Not (y)": {"c": [OFF], "flag": [NOT_C]},
    f"{TEST} y = Or (c, flag) p = Not (y)": {"c": [ON], "flag": [IS_C]},
    f"{TEST} y = Xor (c, flag) p = Not (y)": {"c": [], "flag": []},
    # a body reads what two flags say together: of what, nobody knows
    f"{TEST} go = Cast <to = 9> (k) n = Constant <value_int = 20> () y = And (c, flag)"
    " p = Loop <body = body (int64 i, bool on, float[q, r, s] h) => (bool off, float[q, r, s] b)"
    " { off = Identity (on) z = Cast <to = 1> (y) b = Add (h, z) }> (n, go, other)": {
        "c": [OFF],
        "flag": [NOT_C],
        "y": [],
    },
    # elements that are not read at all
    f"{T} p = Trilu <upper = 1> (t)": {"t": ["d1-d2-1 >= 0"]},
    f"{T} p = Trilu <upper = 0> (t)": {"t": ["-d1+d2-1 >= 0"]},
    f"n = Constant <value_int = 1> () {T} p = CumSum <exclusive = 1> (t, n)": {"t": ["d1-3 >= 0"]},
    # a result that is not wanted reads nothing; of an undescribed one everything is read
    f"{T} y, , z = LayerNormalization (t, row) p = Where (flag, y, nought)": {
        "t": ["all d-1: flag[d0, d1, d-1] == 0"],
        "z": ["everywhere"],
    },
    f"{T} go = Cast <to = 9> (k) n = Constant <value_int = 20> () p = Where (flag, t, nought)"
    " o = Loop <body = body (int64 i, bool on, float[q, r, s] h) => (bool off, float[q, r, s] b)"
    " { off = Identity (on) b = Add (h, t) }> (n, go, other)": {"t": [], "other": []},
    f"{T} p, o = TopK (t, most)": {"t": [], "most": []},
    f"{T} y = Reshape (t, same) p = Where (flag, y, nought)": {"t": [OFF], "same": []},
}


@pytest.mark.parametrize("body", DEAD)
def test_dead_regions(body: str) -> None:
    graph = analysed_text(body)
    assert {name: dead_of(graph, name) for name in DEAD[body]} == DEAD[body]


@pytest.mark.parametrize(
    ("body", "assumed"),
    [
        (f"{GATE} {T} p = MatMul (c, t)", True),
        (f"{GATE} {T} y = Mul (c, t) p = ReduceSum (y, axis)", True),
        (f"{TEST} y = And (c, flag) p = Not (y)", False),
        (f"{T} p = Where (flag, t, nought)", False),
        (f"{T} {E} p = Mul (t, e)", False),
        (f"{T} {E} p = MatMul (t, e)", False),
    ],
)
def test_what_is_not_read_beside_a_zero_is_assumed_to_be_finite(body: str, assumed: bool) -> None:
    graph = analysed_text(body)
    graph.assumptions.clear()
    dead_facts(graph)
    assert (FINITE in graph.assumptions) == assumed


def test_too_many_combinations_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = analysed_text(f"{TEST} y = And (c, flag) p = Not (y)")
    for most, found in ((3, [OFF]), (2, [])):  # of the flag: 0, 1, unknown
        monkeypatch.setattr(dead_pass, "MAX_COMBINATIONS", most)
        dead_facts(graph)
        assert dead_of(graph, "c") == found


def test_of_a_value_of_unknown_shape_all_is_read() -> None:
    graph = analysed_text(f"{T} {E} p = Where (flag, t, e)")
    graph["t"].shape = None
    dead_facts(graph)
    assert (dead_of(graph, "t"), dead_of(graph, "e")) == ([], [ON])


# x -> a -> b, and c beside them
STEPS = "a = Tanh (mask) b = Tanh (a) c = Tanh (other) p = Add (b, c)"


def zero_of(name: str) -> Region:
    """Where a value of three dimensions is 0."""
    return Region(
        {Test(name, tuple(dim_index(d, e) for d, e in enumerate((4, 4, 4))), "nz", False)}
    )


def allowed(graph: Graph, name: str, *tests: str, rests: bool = True) -> list[str]:
    """Of the values, those whose tests a region of a value may have."""
    regions = [zero_of(x) for x in tests]
    found = legal(graph, name, regions, graph.descendants(), rests)
    return [t.src for r in found for t in r]


@pytest.fixture
def steps() -> Graph:
    return Graph(ir.from_proto(text_model(STEPS)))


def test_a_region_tests_nothing_that_it_changes(steps: Graph) -> None:
    names = ("mask", "a", "b", "c", "p", "half")
    # without bits, what comes later may be computed from it
    assert allowed(steps, "a", *names) == ["mask", "half"]
    assert allowed(steps, "c", *names) == ["mask", "a", "b", "half"]
    for name in ("c", "mask"):
        steps.note_bit(name)
    assert allowed(steps, "a", *names) == ["mask", "c", "half"]
    for name in "abp":
        steps.note_bit(name)
    assert allowed(steps, "a", *names) == ["mask", "c", "half"]
    assert allowed(steps, "c", *names) == ["mask", "a", "b", "half"]
    assert allowed(steps, "mask", *names) == ["c", "half"]
    assert allowed(steps, "p", *names) == ["mask", "a", "b", "c", "half"]


def test_of_several_tests_each_must_be_legal(steps: Graph) -> None:
    both = Region((*zero_of("mask"), *zero_of("b")))
    place = Region({position(dim_index(0, 4) - 1)})
    assert legal(steps, "a", [both, place, EVERYWHERE, zero_of("mask")], {}) == [
        place,
        EVERYWHERE,
        zero_of("mask"),
    ]


def test_a_region_does_not_rest_on_the_value_itself(steps: Graph) -> None:
    c, a = steps.note_bit("c"), steps.note_bit("a")
    regions = [Region((), c), Region((), a), Region((), a | c)]
    assert legal(steps, "a", regions, {}) == regions[:1]
    assert legal(steps, "c", regions, {}) == regions[1:2]
    assert legal(steps, "b", regions, {}) == regions
    assert legal(steps, "a", regions, {}, rests=False) == regions


def test_a_region_tests_nothing_of_a_branch_that_need_not_run(steps: Graph) -> None:
    then, other = (("0", "then"),), (("0", "else"),)
    steps["mask"].branch = then
    assert allowed(steps, "a", "mask", "other") == ["other"]
    steps["a"].branch = (*then, ("1", "else"))
    assert allowed(steps, "a", "mask", "other") == ["mask", "other"]
    steps["a"].branch = other
    assert allowed(steps, "a", "mask", "other") == ["other"]


def test_what_users_do_not_want_is_dead_in_that_output_only() -> None:
    graph = analysed_text(STEPS.replace("p =", "o = Neg (c) p ="))
    dead_facts(graph, {"p": [zero_of("mask")]})
    assert {n: dead_of(graph, n) for n in "pboc"} == {
        "p": ["mask[d0, d1, d2] == 0"],
        "b": ["mask[d0, d1, d2] == 0"],
        "o": [],
        "c": [],
    }
    dead_facts(graph)
    assert not any(graph[n].dead for n in "pboc")
