"""Attention of all rows to live keys: without a flag, those of padding are not computed."""

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, poly, sym
from pitc.ir.region import EVERYWHERE, truth
from pitc.passes.lower.rows import rows_first
from pitc.passes.regions.domain import NEVER, all_live
from pitc.passes.regions.form import Form, GatheredOperand, Packing, has_elements
from pitc.passes.regions.layout import layout_of
from tests.lower_support import check, lower, plans
from tests.runtime_support import quiet_options

WIDTH, HEADS, SIZE = 64, 4, 16
HEAD = """<ir_version: 10, opset_import: ["": %(opset)d]>
block (%(inputs)s) => (%(outputs)s)
<int64[4] split = {0, 0, 4, 16}, int64[3] join = {0, 0, 64}, int64[2] middle = {1, 2},
float zero = {0}, float low = {%(low)s}, float quarter = {0.25}> {
    flags = Cast <to = 9> (mask) wide = Unsqueeze (flags, middle) bias = Where (wide, zero, low)
    %(body)s
}"""
QUERIES = """q = MatMul (x, wq) q4 = Reshape (q, split)
    queries = Transpose <perm = [0, 2, 1, 3]> (q4)
"""
KEYS = """k = MatMul (%(of)s, wk) k4 = Reshape (k, split)
    keys = Transpose <perm = [0, 2, 3, 1]> (k4)
    v = MatMul (%(of)s, wv) v4 = Reshape (v, split) values = Transpose <perm = [0, 2, 1, 3]> (v4)
"""
ATTEND = """raw = MatMul (queries, keys) scaled = Mul (raw, quarter) scores = Add (scaled, bias)
    weights = Softmax <axis = -1> (scores) heads = MatMul (weights, values)
"""
JOIN = """back = Transpose <perm = [0, 2, 1, 3]> (heads) joined = Reshape (back, join)
    y = Add (joined, x)"""
X, MASK = "float[b, s, 64] x", "int64[b, s] mask"
SELF = QUERIES + KEYS % {"of": "x"} + ATTEND + JOIN
CROSS = QUERIES + KEYS % {"of": "memory"} + ATTEND + JOIN


def model(
    inputs: str, outputs: str, body: str, opset: int = 17, low: str = "-1e30"
) -> onnx.ModelProto:
    text = HEAD % {"inputs": inputs, "outputs": outputs, "body": body, "opset": opset, "low": low}
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    for name in ("wq", "wk", "wv"):
        x = rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(x, name))
    return proto


def feeds_of(proto: onnx.ModelProto, sizes: dict[str, int], live: str) -> dict[str, np.ndarray]:
    """Random inputs; of the mask's rows all, some, or none are set."""
    rng = np.random.default_rng(sum(sizes.values()))
    feeds = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in dims]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        if value.name == "flags_of":
            feeds[value.name] = rng.random(shape) < 0.5
        if value.name == "trips":
            feeds[value.name] = np.array(2)
        if value.name == "mask":
            share = {"all": 1.0, "some": 0.4, "none": 0.0}[live]
            feeds["mask"] = (rng.random(shape) < share).astype(np.int64)
    return feeds


MODELS = {
    "of itself": (f"{X}, {MASK}", "float[b, s, 64] y", SELF),
    "of a memory": (f"{X}, float[b, t, 64] memory, int64[b, t] mask", "float[b, s, 64] y", CROSS),
    "of one sequence": (
        "float[1, s, 64] x, int64[1, s] mask",
        "float[1, s, 64] y",
        SELF,
    ),
    "of heads that are given": (
        f"float[b, 4, q, 16] queries, {X}, {MASK}",
        "float[b, 4, q, 16] heads",
        KEYS % {"of": "x"} + ATTEND,
    ),
    "of heads that are a result, too": (
        f"{X}, {MASK}",
        "float[b, s, 64] y, float[b, 4, s, 16] heads, float[b, 4, s, 16] queries",
        SELF,
    ),
    "with a result that divides": (
        f"{X}, {MASK}",
        "float[b, 4, s, 16] y",
        SELF.split("back")[0] + "q2 = Div (queries, heads) y = Sign (q2)",
    ),
    "from which a mask is computed": (
        f"{X}, {MASK}",
        "float[b, s, 64] last",
        SELF
        + """ k5 = MatMul (y, wk) k6 = Reshape (k5, split)
        keys2 = Transpose <perm = [0, 2, 3, 1]> (k6)
        v5 = MatMul (y, wv) v6 = Reshape (v5, split) values2 = Transpose <perm = [0, 2, 1, 3]> (v6)
        most = ReduceMax <axes = [2], keepdims = 0> (joined) flags2 = Greater (most, quarter)
        wide2 = Unsqueeze (flags2, middle) bias2 = Where (wide2, zero, low)
        raw2 = MatMul (queries, keys2) scores2 = Add (raw2, bias2)
        weights2 = Softmax <axis = -1> (scores2) heads2 = MatMul (weights2, values2)
        back2 = Transpose <perm = [0, 2, 1, 3]> (heads2) last = Reshape (back2, join)""",
    ),
    "in two layers": (
        f"{X}, {MASK}",
        "float[b, s, 64] last",
        SELF
        + """ k5 = MatMul (y, wk) k6 = Reshape (k5, split)
        keys2 = Transpose <perm = [0, 2, 3, 1]> (k6)
        v5 = MatMul (y, wv) v6 = Reshape (v5, split) values2 = Transpose <perm = [0, 2, 1, 3]> (v6)
        raw2 = MatMul (queries, keys2) scores2 = Add (raw2, bias)
        weights2 = Softmax <axis = -1> (scores2) heads2 = MatMul (weights2, values2)
        back2 = Transpose <perm = [0, 2, 1, 3]> (heads2) last = Reshape (back2, join)""",
    ),
}
SIZES = (
    {"b": 2, "s": 5, "t": 7, "q": 3},
    {"b": 1, "s": 1, "t": 1, "q": 1},
    {"b": 0, "s": 5, "t": 4, "q": 2},
    {"b": 3, "s": 0, "t": 4, "q": 2},
    {"b": 3, "s": 4, "t": 0, "q": 0},
)


@pytest.mark.parametrize("title", MODELS)
def test_all_rows_attend_to_live_keys(title: str) -> None:
    proto = model(*MODELS[title])
    lowered = lower(proto)
    for sizes, live in product(SIZES, ("all", "some", "none")):
        check(proto, lowered, feeds_of(proto, sizes, live))
    found = [p["kind"] for p in plans(lowered)]
    assert "attention" in found and "unpack" not in found


@pytest.mark.parametrize("title", MODELS)
def test_the_compiled_model_gives_what_the_source_does(title: str, tmp_path: Path) -> None:
    proto = model(*MODELS[title])
    onnx.save(proto, tmp_path / "model.onnx")
    compiled = pitc.compile(tmp_path / "model.onnx").session(quiet_options())
    source = ort.InferenceSession(proto.SerializeToString(), quiet_options())
    for sizes, live in product(SIZES, ("all", "some", "none")):
        feeds = feeds_of(proto, sizes, live)
        for got, want in zip(compiled.run(None, feeds), source.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)


def test_rows_are_gathered_once_and_come_back_without_a_copy() -> None:
    """One SRead of the rows of x, for keys and values; no SWrite, and no other SRead."""
    found = [p["kind"] for p in plans(lower(model(*MODELS["of itself"])))]
    assert sorted(found) == ["attention", "dense", "dense", "detect", "detect"]


# without it
ORDINARY = {
    "rows whose number only the run knows": (
        f"{X}, {MASK}, bool[s] flags_of",
        "float[b, u, 64] joined",
        "kept = Compress <axis = 1> (x, flags_of) "
        + SELF.replace("MatMul (x, wq)", "MatMul (kept, wq)").split("y =")[0],
    ),
    "heads that a body reads": (
        f"{X}, {MASK}, int64 trips",
        "float[b, 4, s, 16] y",
        SELF.split("back")[0]
        + """ go = Constant <value = bool {1}> ()
        y = Loop (trips, go, queries)
            <body = each (int64 i, bool c, float[b, 4, s, 16] t) => (bool d, float[b, 4, s, 16] u)
                { d = Identity (c) u = Sub (t, heads) }>""",
    ),
    "keys and values that are given": (
        f"{X}, {MASK}, float[b, 4, 16, s] keys, float[b, 4, s, 16] values",
        "float[b, s, 64] y",
        QUERIES + ATTEND + JOIN,
    ),
}


@pytest.mark.parametrize("title", ORDINARY)
def test_nothing_is_packed_that_saves_no_contraction(title: str) -> None:
    proto = model(*ORDINARY[title])
    lowered = lower(proto)
    assert "attention" not in check(proto, lowered, feeds_of(proto, SIZES[0], "some"))


def test_keys_of_which_nobody_says_that_they_are_dead_are_all_read() -> None:
    """No score is written to memory then, which is all that is saved."""
    proto = model(
        f"{X}, {MASK}", "float[b, s, 64] y", SELF.replace("Add (scaled, bias)", "Identity (scaled)")
    )
    lowered = lower(proto)
    kinds = check(proto, lowered, feeds_of(proto, SIZES[0], "some"))
    assert kinds.count("attention") == 1
    assert not any(n.op_type == "Softmax" for n in lowered.model.graph)


SMALL_TERM = "near = Constant <value = float[1, 1, 1, 1] {0.3}> () "
TWICE = "first = Add (scaled, bias) scores = Add (first, %s)"


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
@pytest.mark.parametrize(
    ("low", "term", "packs"),
    [
        ("-1e4", None, False),
        ("-9e8", None, False),
        ("-1e9", None, True),
        ("-3.4e38", None, True),
        ("-1e9", "near", False),
        ("-3.4e38", "near", True),
        ("-3.4e38", "bias", True),  # the sum of both is -inf
    ],
)
def test_rows_of_hidden_keys_alone_must_not_show_rounding(
    low: str, term: str | None, packs: bool
) -> None:
    """Score + -1e4 keeps three digits, and a last bit decides which. A second term may be added
    before the mask or behind it: only a mask that absorbs both gives the same.
    """
    text = SELF.replace("scores = Add (scaled, bias)", TWICE % term) if term else SELF
    proto = model(f"{X}, {MASK}", "float[b, s, 64] y", SMALL_TERM + text, low=low)
    lowered = lower(proto)
    found = check(proto, lowered, feeds_of(proto, SIZES[0], "some"))
    assert ("attention" in found) is packs


def test_old_operator_sets_cannot_reshape_to_no_rows() -> None:
    proto = model(*MODELS["of itself"], opset=13)
    lowered = lower(proto)
    assert "attention" not in check(proto, lowered, feeds_of(proto, SIZES[2], "some"))


@pytest.mark.parametrize(
    ("extents", "known"), [((4, 16), True), ((), True), ((0, 16), False), (("n",), False)]
)
def test_rows_are_counted_by_their_elements(extents: tuple[int | str, ...], known: bool) -> None:
    """How many there are is a quotient: of a size that is 0, or unknown, there is none."""
    rest = [poly(e) if isinstance(e, int) else sym(e) for e in extents]
    shape = (sym("b"), sym("s"), *rest)
    coords = tuple(Digit(d, ONE, e) for d, e in enumerate(shape[:2]))
    layout, domain = layout_of(shape, coords), all_live(shape[:2])
    assert layout is not None
    packing = Packing("x", domain, coords, layout, EVERYWHERE)
    graph = Graph(ir.serde.deserialize_model(model(*MODELS["of itself"])))
    assert has_elements(graph, Form((packing,), (), "Identity")) is known
    gathered = GatheredOperand("x", domain, ("c0", "c1"))
    assert not has_elements(graph, Form((packing,), (gathered,), "Identity"))


def test_a_domain_without_dead_points() -> None:
    domain = all_live(())
    assert domain.lives_everywhere and domain.dead == {NEVER}
    assert not domain.sources()
    cases = domain.live_cases(())
    assert cases is not None and [truth(c) for c in cases] == [True]


def test_coordinates_come_first() -> None:
    assert rows_first(("c0", "r", "c1", "r")) == [0, 2, 1, 3]
    assert rows_first(("r", "l")) == [1, 0]
    assert rows_first(("c1", "0", "c0")) == [1, 2, 0]
