"""What each rewrite makes of small models that are written down, node by node."""

import onnx
import onnx_ir as ir
import pytest

from pitc.passes import normalise as rewrites
from pitc.passes.control.branches import open_branches
from pitc.passes.normalise import (
    fold_known_if,
    lift_constants,
    remove_identities,
    share_flags,
    unroll_loops,
)
from tests.branch_texts import answers, either, loop, model_of, texts

IDENTITIES = {
    # of an input, in the middle, of an initializer
    "h = Identity (x) y = Neg (h)": (1, ["y = Neg(x)"]),
    "h = Neg (x) i = Identity (h) j = Identity (i) y = Abs (j)": (2, ["h = Neg(x)", "y = Abs(h)"]),
    "o = Identity (one) y = Add (x, o)": (1, ["y = Add(x, one)"]),
    # a result keeps its name, and what it is computed from is no input, constant or other result
    "h = Neg (x) y = Identity (h)": (1, ["y = Neg(x)"]),
    "h = Neg (x) i = Identity (h) y = Identity (i)": (2, ["y = Neg(x)"]),
    "h = Neg (x) i = Abs (h) y = Identity (h) z = Add (h, i)": (
        1,
        ["y = Neg(x)", "i = Abs(y)", "z = Add(y, i)"],
    ),
    "y = Identity (x)": (0, ["y = Identity(x)"]),
    "o = Add (one, two) h = Identity (x) y = Identity (h)": (
        1,
        ["o = Add(one, two)", "y = Identity(x)"],
    ),
    "y = Neg (x) z = Identity (y)": (0, ["y = Neg(x)", "z = Identity(y)"]),
    # others are none
    "h = Neg (x) y = Abs (h)": (0, ["h = Neg(x)", "y = Abs(h)"]),
}


@pytest.mark.parametrize("body", IDENTITIES)
def test_identities(body: str) -> None:
    count, after = IDENTITIES[body]
    model = model_of(body, "y z" if "z =" in body else "y")
    wanted = answers(model)
    assert remove_identities(model) == count
    assert texts(model) == after
    assert answers(model) == wanted
    nodes = set(map(id, model.graph))
    assert all(id(u.node) in nodes for n in model.graph for x in n.inputs if x for u in x.uses())


def test_a_result_has_the_shape_that_the_file_declares() -> None:
    model = model_of("h = Neg (x) y = Identity (h)")
    remove_identities(model)
    (y,) = model.graph.outputs
    assert y.name == "y" and str(y.shape) == str(model.graph.inputs[0].shape)
    assert y.type == model.graph.inputs[0].type


def test_an_identity_of_another_domain_stays() -> None:
    model = model_of("h = other.Identity (x) y = Neg (h)".replace("other.", ""))
    model.graph[0].domain = "other"
    assert remove_identities(model) == 0
    assert texts(model) == ["h = Identity(x)", "y = Neg(h)"]


AXES = "a = Constant <value_ints = [0]> ()"
#: Of comparisons with a number: how many were made before, and what is left.
FLAGS: dict[str, tuple[int, list[str]]] = {
    f"{AXES} e = Equal (x, one) u = Unsqueeze (x, a) v = Equal (u, one) w = Squeeze (v, a)"
    " n = Not (w) k = And (e, n) y = Cast <to = 1> (k)": (
        1,
        [
            "e = Equal(x, one)",
            "v = Unsqueeze(e, a)",
            "w = Squeeze(v, a)",
            "n = Not(w)",
            "k = And(e, n)",
            "y = Cast(k)",
        ],
    ),
    # twice the same, and with what it is a reshape of
    "e = Less (x, one) v = Less (x, one) k = And (e, v) y = Cast <to = 1> (k)": (
        1,
        ["e = Less(x, one)", "v = Identity(e)", "k = And(e, v)", "y = Cast(k)"],
    ),
    f"{AXES} u = Unsqueeze (x, a) s = Squeeze (u, a) e = Less (u, one) v = Less (s, one)"
    " w = Squeeze (e, a) k = And (w, v) y = Cast <to = 1> (k)": (
        1,
        [
            "u = Unsqueeze(x, a)",
            "e = Less(u, one)",
            "v = Squeeze(e, a)",
            "w = Squeeze(e, a)",
            "k = And(w, v)",
            "y = Cast(k)",
        ],
    ),
    # another number, another comparison, the other way round, another step in between
    "e = Less (x, one) v = Less (x, two) k = And (e, v) y = Cast <to = 1> (k)": (0, []),
    "e = Less (x, one) v = Greater (x, one) k = And (e, v) y = Cast <to = 1> (k)": (0, []),
    "e = Less (x, one) v = Less (one, x) k = And (e, v) y = Cast <to = 1> (k)": (0, []),
    "e = Less (x, one) u = Neg (x) v = Less (u, one) k = And (e, v) y = Cast <to = 1> (k)": (0, []),
    # no number, numbers with dimensions
    "e = Less (x, x) v = Less (x, x) k = And (e, v) y = Cast <to = 1> (k)": (0, []),
    "p = Constant <value_floats = [1.0]> () e = Less (x, p) v = Less (x, p) k = And (e, v)"
    " y = Cast <to = 1> (k)": (0, []),
}


@pytest.mark.parametrize("body", FLAGS)
def test_comparisons_that_were_made_before(body: str) -> None:
    count, after = FLAGS[body]
    model = model_of(body)
    wanted = answers(model)
    lift_constants(model)
    before = texts(model)
    assert share_flags(model) == count
    assert texts(model) == (after or before)
    assert answers(model) == wanted
    assert share_flags(model) == 0 or count


def test_comparisons_of_branches_stay_there() -> None:
    """A branch may not run."""
    sides = [f"k{i} = Less (x, one) p = Cast <to = 1> (k{i})" for i in (1, 2)]
    model = model_of(
        f"e = Less (x, one) h = Cast <to = 1> (e) i = If (c) {either(*sides)} y = Add (h, i)"
    )
    open_branches(model)
    wanted = answers(model)
    assert share_flags(model) == 0
    assert answers(model) == wanted


def test_constants_become_initializers() -> None:
    model = model_of(
        "k = Constant <value_float = 3.0> () m = Constant <value_floats = [1.0, 2.0]> ()"
        " e = Constant <value = float[0] {}> () h = Add (x, k) i = ReduceSum <keepdims = 0> (m)"
        " j = ReduceSum <keepdims = 0> (e) l = Add (i, j) y = Add (h, l)"
    )
    wanted = answers(model)
    assert lift_constants(model) == 3
    assert texts(model)[:2] == ["h = Add(x, k)", "i = ReduceSum(m)"]
    assert {"k", "m", "e"} <= set(model.graph.initializers)
    assert answers(model) == wanted
    assert lift_constants(model) == 0


SIDES = either("p = Neg (x)", "p = Abs (x)")
SIZE = "s = Shape (x) r = Size (s) z = Constant <value_int = 0> () "
NUMBERS = either("p = Identity (s)", "p = Neg (s)", "int64[m] p")
RANGE = "y = Cast <to = 1> (h)"
FOLDED: dict[str, tuple[int, list[str]]] = {
    f"{SIZE} t = Equal (r, r) y = If (t) {SIDES}": (1, ["p = Neg(x)", "y = Identity(p)"]),
    f"{SIZE} t = Less (r, r) y = If (t) {SIDES}": (1, ["p.2 = Abs(x)", "y = Identity(p.2)"]),
    f"y = If (c) {SIDES}": (0, ["p = Neg(x)", "p.2 = Abs(x)", "y = Choose(c, p, p.2)"]),
    "y = Neg (x)": (0, ["y = Neg(x)"]),
    # an operand of Range is a scalar
    f"{SIZE} t = Equal (r, r) l = If (t) {NUMBERS} h = Range (l, l, l) {RANGE}": (
        1,
        [
            "s = Shape(x)",
            "p = Identity(s)",
            "l = Identity(p)",
            "l.scalar = Squeeze(l)",
            "l.scalar.2 = Squeeze(l)",
            "l.scalar.3 = Squeeze(l)",
            "h = Range(l.scalar, l.scalar.2, l.scalar.3)",
            "y = Cast(h)",
        ],
    ),
    f"{SIZE} l = If (c) {NUMBERS} q = Squeeze (l) h = Range (z, q, r) {RANGE}": (
        0,
        [
            "s = Shape(x)",
            "r = Size(s)",
            "z = Constant()",
            "p = Identity(s)",
            "p.2 = Neg(s)",
            "l = Choose(c, p, p.2)",
            "q = Squeeze(l)",
            "h = Range(z, q, r)",
            "y = Cast(h)",
        ],
    ),
}


@pytest.mark.parametrize("body", FOLDED)
def test_a_choice_that_sizes_decide(body: str) -> None:
    count, after = FOLDED[body]
    model = model_of(body)
    open_branches(model)
    assert fold_known_if(model) == count
    assert texts(model) == after
    onnx.checker.check_model(ir.to_proto(model))


def test_a_choice_may_decide_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{SIZE} t = Equal (r, r) l = If (t) {NUMBERS} u = Equal (l, s) y = If (u) {SIDES}"
    for rounds, count in ((1, 1), (2, 2), (8, 2)):
        monkeypatch.setattr(rewrites, "MAX_ROUNDS", rounds)
        model = model_of(body)
        open_branches(model)
        assert fold_known_if(model) == count
    assert texts(model)[-2:] == ["p.3 = Neg(x)", "y = Identity(p.3)"]


def test_a_range_of_another_domain_stays() -> None:
    model = model_of(next(b for b in FOLDED if "Range" in b))
    open_branches(model)
    next(n for n in model.graph if n.op_type == "Range").domain = "other"
    model.graph.opset_imports["other"] = 1
    assert fold_known_if(model) == 1
    assert "h = Range(l, l, l)" in texts(model)


INNER = loop("u", "sy", "pu = Sin (su)", 2)
LOOPS: dict[str, tuple[int, list[str]]] = {
    loop("y", "x", "py = Neg (sy)", 2): (1, ["Neg", "Neg"]),
    loop("y", "x", "py = Neg (sy)", 9): (0, ["Loop"]),
    loop("y", "x", f"{INNER} py = Neg (u)", 2): (3, ["Sin", "Sin", "Neg", "Sin", "Sin", "Neg"]),
    loop("y", "x", f"py = If (c) {either('p = Neg (sy)', 'p = Abs (sy)')}", 2): (
        1,
        ["Neg", "Abs", "Choose", "Neg", "Abs", "Choose"],
    ),
    "y = Neg (x)": (0, ["Neg"]),
}


@pytest.mark.parametrize("body", LOOPS)
def test_loops_of_a_few_trips(body: str) -> None:
    count, operators = LOOPS[body]
    model = model_of(body)
    wanted = answers(model)
    open_branches(model)
    assert unroll_loops(model) == count
    found = [n.op_type for n in model.graph if n.op_type not in ("Identity", "Constant")]
    assert found == operators
    assert answers(model) == wanted
