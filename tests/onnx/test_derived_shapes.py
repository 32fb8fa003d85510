"""Shapes of a graph's values, and why there is no expression (passes/exprs/derive.py)."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pitc.ir.constant import FILLED
from pitc.ir.graph import Graph
from pitc.ir.index import ONE
from pitc.passes.audit.points import sizes_of
from pitc.passes.control.branches import open_branches
from pitc.passes.exprs.derive import derive
from tests.place_worlds import model_of, runs_of
from tests.random_nodes import session_of
from tests.record_twin import twin

UNKNOWN, NO_RANK = "?", "no rank"
PIECE = "k = Shape <start = 0, end = 1> (x) t = Less (rows, two) v = Slice (four, front, k) "


def if_of(then: str, other: str) -> str:
    """An If; each branch is an expression, or an If between brackets."""
    names = iter(range(99))

    def branch(text: str) -> str:
        return f"() => (int64[m{next(names)}] p) {{ p = {text} }}"

    return f"If (t) <then_branch = e {branch(then)}, else_branch = f {branch(other)}>"


ADD, SUB, KEEP = "Add (v, lengths)", "Sub (lengths, v)", "Neg (v)"
NESTED = if_of(ADD, SUB)
PIECES = {  # what w is; whether v, the first places of four, is known to be as long as a
    "Add (v, lengths)": True,
    "Add (lengths, v)": True,
    "Add (v, far)": False,
    "Neg (v)": False,
    if_of(ADD, SUB): True,
    if_of(ADD, KEEP): False,
    if_of(KEEP, SUB): False,
    if_of(NESTED, ADD): True,
    if_of(SUB, NESTED): True,
    if_of(NESTED, NESTED): True,
    if_of(NESTED, KEEP): False,
    if_of(KEEP, NESTED): False,
    if_of(if_of(ADD, KEEP), SUB): False,
    if_of(if_of(KEEP, ADD), SUB): False,
    if_of(if_of(NESTED, SUB), if_of(ADD, NESTED)): True,
    if_of(if_of(NESTED, SUB), if_of(ADD, if_of(ADD, KEEP))): False,
    f"{if_of(ADD, KEEP)} u = {if_of(KEEP, SUB)}": False,
    "Neg (v) u = Add (v, lengths)": False,
    "Neg (q) q = Add (v, lengths)": True,
}


def derived(model: onnx.ModelProto) -> Graph:
    opened = ir.from_proto(model)
    open_branches(opened)
    graph = Graph(opened)
    derive(graph)
    return graph


def shape_of(graph: Graph, name: str = "v") -> str:
    shape = graph[name].shape
    return NO_RANK if shape is None else " ".join(map(str, shape))


def ordered(text: str) -> str:
    first, _, second = text.partition(" q = ")
    return f"q = {second} w = {first}" if second else f"w = {first}"


@pytest.mark.parametrize("text", PIECES)
def test_the_first_places_of_a_table(text: str) -> None:
    graph = derived(model_of(PIECE + ordered(text), ", int64[q] w"))
    assert (shape_of(graph) == "a") is PIECES[text]
    assert PIECES[text] or shape_of(graph).startswith(UNKNOWN)


@pytest.mark.parametrize(
    ("table", "known"), [("four", True), ("both", True), ("front", False), ("far", False)]
)
def test_a_table_that_is_long_enough_to_tell(table: str, known: bool) -> None:
    """One place broadcasts to any number of them."""
    text = PIECE.replace("four", table) + "w = Add (v, lengths)"
    assert (shape_of(derived(model_of(text, ", int64[q] w"))) == "a") is known


def test_what_a_body_captures_is_wanted() -> None:
    loop = """u = Add (v, lengths) w = Loop <body = g (int64 i, bool c, int64[a] s) =>
        (bool d, int64[a] r) { d = Identity (c) r = Add (s, u) }> (two, t, lengths)"""
    assert shape_of(derived(model_of(PIECE + loop, ", int64[a] w"))) == "a"


LOOP = """t = Less (two, seven) v, w = Loop <body = g (int64 i, bool c, float[m, n] p,
    float[o, r] q) => (bool d, float[e, f] p1, float[h, l] q1) {
    d = Identity (c) p1 = FIRST q1 = SECOND }>
    (two, t, START)"""
INSIDE = """If (c) <then_branch = e () => (float[g1, g2] z1) { z1 = Neg (p) },
    else_branch = f () => (float[h1, h2] z2) { z2 = Tanh (p) }>"""
CARRIED = {
    ("Tanh (p)", "Neg (q)", "x, x"): ("a b", "a b"),
    ("Neg (q)", "Tanh (p)", "x, x"): ("a b", "a b"),
    (INSIDE, "Neg (q)", "x, x"): ("a b", "a b"),
    ("Concat <axis = 0> (p, p)", "Neg (q)", "x, x"): (NO_RANK, "a b"),
    ("Neg (p)", "Concat <axis = 0> (q, q)", "x, x"): ("a b", NO_RANK),
    # another has its shape in the first trip only
    ("Concat <axis = 0> (p, p)", "Neg (p)", "x, x"): (NO_RANK, NO_RANK),
    ("Concat <axis = 0> (p, p)", "Neg (q)", "o, x"): (NO_RANK, "a b"),
    ("Neg (p)", "Concat <axis = 0> (q, q)", "o, x"): (NO_RANK, NO_RANK),
    ("Neg (p)", "Neg (q)", "o, o"): (NO_RANK, NO_RANK),
}


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_carried_values(case: tuple[str, str, str]) -> None:
    text = "o = other.Op (x) " + LOOP
    for mark, part in zip(("FIRST", "SECOND", "START"), case, strict=True):
        text = text.replace(mark, part)
    graph = derived(model_of(text))
    for name, wanted in zip("vw", CARRIED[case], strict=True):
        found = shape_of(graph, name)
        assert found == wanted, name


@pytest.mark.parametrize("number", ["", "[1]"])
@pytest.mark.parametrize("condition", ["", "[1]"])
def test_a_condition_is_of_the_shape_that_the_body_declares(number: str, condition: str) -> None:
    text = f"""t = Less (two, seven) v = Loop <body = g (int64{number} i, bool{condition} c,
        float[m, n] p) => (bool{condition} d, float[e, f] q) {{ d = Identity (c) q = Neg (p) }}>
        (two, t, x)"""
    graph = derived(model_of(text))
    (shapes,) = graph.carried.values()
    assert shapes[0] == ((ONE,) if condition else ())
    assert shape_of(graph) == "a b"


SHAPES = {  # shape, and why there is no expression
    "v = Identity (x)": ("a b", ""),
    "v = other.Op (x)": (NO_RANK, "Op: no rule for operator other::Op"),
    "k = Sub (size, both) v = ConstantOfShape (k)": (
        None,
        "ConstantOfShape: a size of it may be negative, which means 0",
    ),
    "k = Add (size, both) v = ConstantOfShape (k)": ("a b+1", ""),
    "v = Bernoulli (weights)": (None, None),
    # 3 steps in ONNX Runtime, 4 by ONNX's inference
    "p = Constant <value_float = 0.1> () q = Constant <value_float = 0.4> () v = Range (p, q, p)": (
        "?1",
        "",
    ),
    "p = Constant <value_float = 0.5> () q = Constant <value_float = 1.6> () v = Range (p, q, p)": (
        "3",
        "",
    ),
}


# Reshapes of lengths [a], of a row [a, 1] and of x [a, b] to sizes that may be 0, which copies
COPIED = [
    "v = Reshape (lengths, k)",
    "m = Concat <axis = 0> (k, last) v = Reshape (lengths, m)",
    "m = Concat <axis = 0> (k, rest) v = Reshape (lengths, m)",
    "m = Concat <axis = 0> (last, k) v = Reshape (lengths, m)",
    "m = Concat <axis = 0> (k, rest) v = Reshape (x, m)",
    "m = Concat <axis = 0> (k, h) v = Reshape (x, m)",
    "m = Concat <axis = 0> (h, k) v = Reshape (x, m)",
    "m = Concat <axis = 0> (h, rest) v = Reshape (x, m)",
    "m = Concat <axis = 0> (rest, k) v = Reshape (x, m)",
    "m = Concat <axis = 0> (h, k, last) u = Reshape (x, rest) v = Reshape (u, m)",
    "m = Concat <axis = 0> (h, k, last) u = Flatten <axis = 2> (x) v = Reshape (u, m)",
    "m = Concat <axis = 0> (last, h, k) v = Reshape (x, m)",
    "m = Concat <axis = 0> (last, rest, k) v = Reshape (x, m)",
    "m = Concat <axis = 0> (k, last, rest) v = Reshape (x, m)",
    "m = Concat <axis = 0> (h, k) v = Reshape <allowzero = 1> (x, m)",
    "m = Concat <axis = 0> (k, h) v = Reshape <allowzero = 1> (x, m)",
    "m = Concat <axis = 0> (h, rest, last) v = Reshape <allowzero = 1> (x, m)",
    "m = Concat <axis = 0> (k, rest) v = Reshape <allowzero = 1> (lengths, m)",
    # what is asked for where there is nothing to copy, or meets the same size, is not 0 in any run
    "u = Expand (n, seventh) m = Concat <axis = 0> (h, k, last) v = Reshape (x, m)",
    "t = Tile (n, pair) y = Reshape (t, one2) m = Concat <axis = 0> (k, rest) v = Reshape (y, m) "
    "o = Unsqueeze (far, last) w = Add (v, o)",
    "t = Tile (n, pair) m = Concat <axis = 0> (h, k) v = Reshape (t, m) w = Add (v, far)",
    # of an operator without a rule inference would take the asked size for granted
    "u = Reshape (lengths, k) s = Cast <to = 1> (u) v = Bernoulli (s)",
]


# what is copied where b is 0, and joined to a row of b: there the model fails, but for one place
JOINED = {
    "v = Reshape (four, k) w = Add (v, far)": "b",
    "v = Reshape (four, k) w = Sub (far, v)": "b",
    "v = Reshape (both, k) w = Add (v, far)": "b",
    "v = Reshape (front, k) w = Add (v, far)": "?1",
    "v = Reshape (lengths, k) w = Add (v, far)": "?1",
    "v = Reshape (four, k) w = Add (v, lengths)": "?1",
    "v = Reshape (four, k) w = Neg (v)": "?1",
    "u = Reshape (four, k) v = Reshape (u, k) w = Add (v, far)": "b",
    "u = Reshape (both, k) v = Reshape (u, k) w = Add (v, far)": "b",
    "u = Reshape (four, h) v = Reshape (u, k) w = Add (v, far)": "?2",
    # a size of another value that is b, or 4, is no 0 that copies
    "u = Reshape (four, k) l = Shape (u) v = Reshape (four, l) w = Add (v, far)": "b",
    "u = Reshape (front, k) l = Shape (u) v = Reshape (four, l) w = Add (v, far)": "?1",
    "u = Reshape (lengths, k) l = Shape (u) v = Reshape (four, l) w = Add (v, far)": "?2",
    "u = Reshape (front, k) v = Reshape (u, k) w = Add (v, far)": "?2",
    # each walk has another name for the size; it ends all the same
    "u = Compress (lengths, flags) l = Shape (u) v = Reshape (four, l) w = Add (v, u)": "?2",
}


# which of them have another shape only where a and b are 0 at once
TWO_EMPTY = {
    "m = Concat <axis = 0> (h, k, last) u = Flatten <axis = 2> (x) v = Reshape (u, m)",
}


@pytest.mark.parametrize("body", COPIED)
def test_a_size_of_0_copies(body: str) -> None:
    """The derived shapes are the real ones in every run that there is."""
    start = "k = Shape (far) h = Shape (lengths) rest = Neg (last) pair = Add (both, last) "
    model = model_of(start + "one2 = Concat <axis = 0> (last, rest) " + body)
    graph, runs = derived(model), list(runs_of(model))
    assert runs
    assert (FILLED in graph.assumptions) == (body in TWO_EMPTY)
    for values in runs:
        undefined = "allowzero" in body and -1 in values["m"] and 0 in values["m"]
        if not undefined and (body not in TWO_EMPTY or values["x"].shape != (0, 0)):
            assert sizes_of(graph, values)[1] == []


@pytest.mark.parametrize("body", JOINED)
def test_a_copy_that_is_joined(body: str) -> None:
    start = "k = Shape (far) h = Shape (lengths) "
    model = model_of(start + body, ", int64[q] w")
    graph = derived(model)
    assert shape_of(graph) == JOINED[body]
    for values in runs_of(model):
        assert sizes_of(graph, values)[1] == []


@pytest.mark.parametrize("body", SHAPES)
def test_shapes(body: str) -> None:
    graph = derived(model_of(body))
    shape, why = SHAPES[body]
    assert shape is None or shape_of(graph) == shape
    assert why is None or graph["v"].unruled == why
    assert (graph["v"].expr is None) is (why != "")


def test_a_size_that_may_be_negative_is_no_size() -> None:
    model = model_of("k = Max (both, size) l = Sub (k, both) v = ConstantOfShape (l)")
    for values in runs_of(model):
        _, clashes = sizes_of(derived(model), values)
        assert clashes == []


def test_constants_are_functions_of_positions() -> None:
    assert str(derived(model_of("v = Identity (line)"))["v"].affine) == "2*d0+5"


def test_an_output_that_is_not_wanted_has_no_expression() -> None:
    model = model_of("w, v = Split <num_outputs = 2> (four)")
    model.graph.node[-1].output[0] = ""
    graph = derived(model)
    assert graph[""].expr is None and graph["v"].expr is not None


def test_an_output_that_a_rule_leaves_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    twin(monkeypatch, "Identity", rule=lambda _: [])
    assert derived(model_of("v = Identity (line)"))["v"].unruled == (
        "Identity: output 0 has no expression"
    )


# ONNX counts a last window of a pool that ONNX Runtime leaves out: what stands behind it
BEHIND_A_POOL = [
    "v = ConvTranspose (p, f)",
    "v = Bernoulli (p)",
    "b = Bernoulli (p) v = ConvTranspose (b, f)",
    "k = Shape (p) e = ConstantOfShape (k) v = Bernoulli (e)",
    "k = Shape (p) v = Resize (x, , , k)",
    "k = Shape (p) q = Sub (k, k) m = Add (q, k) e = Expand (one, m) v = ConvTranspose (e, f)",
]


@pytest.mark.parametrize("body", BEHIND_A_POOL)
@pytest.mark.parametrize("size", range(1, 7))
def test_sizes_that_inference_takes_for_others(body: str, size: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    pooled (float[1, 4, {size}] x, float[4, 1, 2] f) => (v) <float[1] one = {{1}}> {{
        p = AveragePool <ceil_mode = 1, kernel_shape = [2], pads = [1, 1], strides = [3]> (x)
        {body}
    }}"""
    model = onnx.parser.parse_model(text)
    graph = derived(model)
    inner = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    feed = {"x": np.zeros((1, 4, size), np.float32), "f": np.ones((4, 1, 2), np.float32)}
    found = session_of(model).run(inner, feed)
    values = {name: np.asarray(x) for name, x in zip(inner, found, strict=True)}
    assert sizes_of(graph, {**feed, **values})[1] == []


@pytest.mark.parametrize("kind", ["seq(float[2, 4])", "optional(seq(float[2, 4]))"])
def test_elements_of_a_sequence_are_of_any_shape(kind: str) -> None:
    """ONNX Runtime does not compare them with what is declared."""
    get = "Identity" if kind.startswith("seq") else "OptionalGetElement"
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({kind} several) => (float[n, m] y)
        <int64 n0 = {{0}}> {{ all = {get} (several) e = SequenceAt (all, n0) y = Neg (e) }}"""
    graph = derived(onnx.parser.parse_model(text))
    assert graph["e"].shape is None


@pytest.mark.parametrize(
    "body", ["Reshape (x, over)", "Unsqueeze (x, over)", "Expand (x, over)", "ReduceSum (x, over)"]
)
def test_numbers_that_a_caller_may_change(body: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[1, n] x, int64[r] over) => (float[] y) {{ y = {body} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "over"))
    known = derived(model)["y"].shape
    assert known is None or (body.startswith("ReduceSum") and len(known) == 2)
