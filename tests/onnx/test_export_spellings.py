"""What exporters write for simple things: facts of each, audited by runs, and of its wrong twin."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from pitc.ir.graph import Graph
from pitc.ir.index import dim_index, poly, sym
from pitc.ir.nodes import first_output, input_names
from pitc.ir.region import Region, Test, position, region
from pitc.ir.summary import summary_of
from pitc.passes.analysis import analyse
from pitc.passes.effect import NOT_HIDDEN
from pitc.passes.facts.fill import fill_facts
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.fact_check import proven
from tests.fact_texts import fills_of
from tests.lower_support import lower
from tests.plan_reference import run_lowered

b, s = sym("b"), sym("s")
PLACE = (dim_index(0, s), dim_index(1, s))
MODEL = """<ir_version: 8, opset_import: ["": 18]> m
(float[b, s, 8] x, int64[b, s] mask, float[b, s, s] scores,
 float[s, s] flat, bool[s, s] flag) => (float[] y)
<float zero = {0}, float one = {1}, float low = {-3.4028235e38}, int64 z = {0}, int64 i = {1},
 int64 minus = {-1}, int64[1] at0 = {0}, int64[1] at1 = {1}, int64[1] far = {9223372036854775807},
 int64 two = {2}, float nothing = {-inf}>
{
    h = Shape (scores) bs = Shape <start = 0, end = 1> (x) s1 = Shape <start = 1, end = 2> (x)
    n = Squeeze (s1) ns = Neg (s1) m = Neg (n) r = Range (z, n, i) up = Unsqueeze (r, at0)
    BODY
}"""


def graph_of(body: str, *, runs: bool = True, padding: str | None = None) -> Graph:
    proto = onnx.parser.parse_model(MODEL.replace("BODY", body))
    if runs:
        return proven(proto, padding)
    graph = Graph(ir.serde.deserialize_model(proto))
    fill_facts(graph)
    return graph


SHAPES = {
    # the last n of n, and what is not known to be that
    "y = Slice (x, ns, far, at1)": (b, s, poly(8)),
    "t = Add (ns, ns) y = Slice (x, t, far, at1)": (b, s, poly(8)),
    "t = Sub (at1, s1) y = Slice (x, t, far, at1)": None,
    "t = Neg (bs) y = Slice (x, t, far, at1)": None,
    # downwards by one
    "y = Range (n, m, minus)": (2 * s,),
    "y = Range (m, n, minus)": None,
    "t = Neg (two) y = Range (n, m, t)": None,
    # all but the first of 2 s places: none where s is 0
    "d = Concat <axis = 2> (scores, scores) t = Transpose <perm = [0, 2, 1]> (d)"
    "p = Slice (t, at1, far, at1) g = Sub (s1, at1) f = Add (g, s1)"
    "k = Concat <axis = 0> (bs, s1, f) w = Reshape (p, k) y = Gather <axis = 2> (w, r)": (b, s, s),
    "d = Concat <axis = 2> (scores, scores) t = Transpose <perm = [0, 2, 1]> (d)"
    "k = Concat <axis = 0> (bs, s1, bs) y = Reshape (t, k)": None,
}


@pytest.mark.parametrize("body", SHAPES)
def test_sizes(body: str) -> None:
    shape = graph_of(body, runs=False)["y"].shape
    assert shape is not None
    if SHAPES[body] is None:
        assert any("?" in str(e) for e in shape)
    else:
        assert shape == SHAPES[body]


ROWS = "rows = Unsqueeze (r, at1) grid = Expand (rows, sq) wide = Unsqueeze (grid, at2)"
GRID = (
    "at2 = Constant <value_ints = [2]> () sq = Concat <axis = 0> (s1, s1) " + ROWS + " "
    "cols = Expand (up, sq) high = Unsqueeze (cols, at2) own = Concat <axis = 2> (wide, high)"
    "turned = Concat <axis = 2> (high, wide) off = Where (flag, zero, flat)"
)
HERE, THERE = "0.0 where flag[d0, d1] != 0", "0.0 where flag[d1, d0] != 0"
SCATTERS = {
    "y = ScatterND (flat, own, off)": [HERE],
    "y = ScatterND (off, own, flat)": [],  # nothing of it stays
    'y = ScatterND <reduction = "add"> (flat, own, off)': [],
    "y = ScatterND (flat, turned, off)": [],
    # the last of several rows is written to the only one
    "o = ReduceMax (flat, at0) none = Mul (r, z) l = Unsqueeze (none, at1)"
    "y = ScatterND (o, l, off)": [],
    "o = ReduceMax (flat, at0) none = Mul (r, z) l = Unsqueeze (none, at1) k = Expand (l, sq)"
    "y = ScatterElements (o, k, off)": [],
    "y = ScatterElements (flat, grid, off)": [HERE],
    "y = ScatterElements <axis = 1> (flat, cols, off)": [HERE],
    "y = ScatterElements (flat, cols, off)": [],
    'y = ScatterElements <reduction = "mul"> (flat, grid, off)': [],
    'y = Einsum <equation = "ij->ji"> (off)': [THERE],
    'y = Einsum <equation = "ij"> (off)': [HERE],
    'on = Where (flag, one, flat) y = Einsum <equation = "ij->ji"> (on)': [
        "1.0 where flag[d1, d0] != 0",
    ],
    'y = Einsum <equation = "ij->i"> (off)': ["0.0 where all d-1: flag[d0, d-1] != 0"],
}


@pytest.mark.parametrize("body", SCATTERS)
def test_what_is_written_everywhere_is_all_there_is(body: str) -> None:
    graph = graph_of(f"{GRID} {body}", runs=False)
    assert [f for f in fills_of(graph, "y") if "y[" not in f] == SCATTERS[body]


DIAGONALS = {
    "y = EyeLike <dtype = 1> (flat)": 0,
    "y = EyeLike <dtype = 1, k = 2> (flat)": 2,
    "y = EyeLike <dtype = 1, k = -1> (flat)": -1,
    "e = EyeLike <dtype = 7> (flat) y = Cast <to = 1> (e)": 0,
}


@pytest.mark.parametrize("body", DIAGONALS)
def test_a_diagonal_is_known_by_positions(body: str) -> None:
    graph = graph_of(body)
    k = DIAGONALS[body]
    facts = {str(f.region): f.constant for f in graph["y"].fills}
    for row in range(4):
        for column in range(4):
            (known,) = {
                c
                for f, c in ((f.region, f.constant) for f in graph["y"].fills)
                if all(t.idx[0].evaluate({"s": 4}, {0: row, 1: column}) >= 0 for t in f)
            }
            assert known == (column - row == k) and isinstance(known, float), facts


CUTS = {
    "t = Where (flag, one, low) y = Trilu <upper = 1> (t, i)": PLACE[1] - PLACE[0] - 1,
    "t = Where (flag, one, low) y = Trilu <upper = 0> (t)": PLACE[0] - PLACE[1],
}


@pytest.mark.parametrize("body", CUTS)
def test_what_is_on_one_side_of_a_diagonal_stays(body: str) -> None:
    inside = Region([position(CUTS[body])])
    facts = {(str(f.region), f.constant) for f in graph_of(body)["y"].fills}
    flagged = region(inside | Region([Test("flag", PLACE, "nz", True)]))
    (outside,) = (n for t in inside if (n := t.negate()) is not None)
    assert (str(flagged), 1.0) in facts and (str(Region([outside])), 0.0) in facts


#: Scores under a causal mask and one of padding, as two finite numbers that are added up.
TWO_MASKS = (
    "q = Unsqueeze (r, at1) below = GreaterOrEqual (q, up) causal = Where (below, zero, LOW)"
    "live = Cast <to = 9> (mask) keys = Unsqueeze (live, at1) hide = Where (keys, zero, low)"
    "both = Add (hide, causal) a = Tanh (scores) t = Add (a, both) y = Softmax (t)"
)


@pytest.mark.parametrize(
    ("causal", "zero"),
    [("low", "-d1+d2-1 >= 0 and mask[d0, d2] == 0"), ("nothing", "-d1+d2-1 >= 0")],
)
def test_beside_two_masks_every_row_has_a_number(causal: str, zero: str) -> None:
    graph = graph_of(TWO_MASKS.replace("LOW", causal), padding="mask")
    assert f"0 where {zero}" in fills_of(graph, "y")
    assert str(graph["y"].finite_if) == "everywhere"


def test_a_row_of_nothing_else_stays_unknown() -> None:
    """Both masks are -inf: a padded row is NaN."""
    body = TWO_MASKS.replace("LOW", "nothing").replace("zero, low", "zero, nothing")
    graph = graph_of(body, padding="mask")
    assert not any(f.startswith("0 where mask[d0, d2] == 0") for f in fills_of(graph, "y"))
    assert graph["y"].finite_if != graph["a"].finite_if


def decoder() -> onnx.ModelProto:
    """Two layers of attention under a causal mask and one of padding, both finite."""
    rng, g = np.random.default_rng(0), GraphBuilder("decoder")
    x = g.input("x", np.float32, ("b", "s", 64))
    mask = g.input("mask", np.int64, ("b", "s"))
    size = g.op("Gather", g.op("Shape", x), g.const(1, np.int64))
    at = g.op("Range", g.const(0, np.int64), size, g.const(1, np.int64))
    low = float(np.finfo(np.float32).min)
    causal = g.op("GreaterOrEqual", g.op("Unsqueeze", at, g.ints(1)), at)
    hidden = g.op("Where", causal, g.const(0.0), g.const(low))
    live = g.op("Cast", g.op("Unsqueeze", mask, g.ints(1)), to=9)
    both = g.op("Add", g.op("Where", live, g.const(0.0), g.const(low)), hidden)
    for layer in range(2):
        q, k, v, o = (
            g.op("MatMul", x, g.weight(f"{n}{layer}", rng.normal(0, 0.1, (64, 64)).astype("f4")))
            for n in "qkvo"
        )
        scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), both)
        rows = g.op("MatMul", g.op("Softmax", scores), v)
        up = g.weight(f"up{layer}", rng.normal(0, 0.1, (64, 256)).astype("f4"))
        down = g.weight(f"down{layer}", rng.normal(0, 0.1, (256, 64)).astype("f4"))
        x = g.op(
            "Add", g.op("Add", x, o), g.op("MatMul", g.op("Tanh", g.op("MatMul", rows, up)), down)
        )
    g.output(x, "y", np.float32, ("b", "s", 64))
    return g.model()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # both masks at once are -inf
def test_two_finite_masks_are_packed_and_right() -> None:
    proto = decoder()
    lowered = lower(proto, "mask")
    assert summary_of(lowered.report).packed.share > 0.7  # all but scores, of one wide head
    graph = analyse(ir.serde.deserialize_model(proto), "mask")[0]
    products = [n for n in graph.nodes if input_names(n)[-1] in {f"{x}0" for x in "qkv"}]
    assert len(products) == 3
    for node in products:  # they rest on no more than they must: none is needed of a padded token
        assert "mask[d0, d1] == 0" in [str(r) for r in graph[first_output(node)].dead]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng, model = np.random.default_rng(1), ir.serde.serialize_model(lowered.model)
    for mask in ([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0]], [[0] * 5, [1, 0, 1, 0, 1]]):
        feeds = {"x": rng.normal(size=(2, 5, 64)).astype("f4"), "mask": np.array(mask)}
        live = feeds["mask"].astype(bool)
        (got,), (want,) = run_lowered(model, feeds), session.run(None, feeds)
        np.testing.assert_allclose(got[live], np.asarray(want)[live], rtol=1e-4, atol=1e-5)
        assert not got[~live].any()


def test_regions_that_nothing_can_lie_in_pack_nothing() -> None:
    """Without the option a mask may hold any number, and a bias made of it is small nowhere there:
    such a test would be evaluated for nothing.
    """
    g = GraphBuilder("inverted")
    x = g.input("x", np.float32, ("b", "s", 64))
    live = g.op("Cast", g.input("mask", np.int64, ("b", "s")), to=1)
    other = g.op("Sub", g.const(1.0), g.op("Unsqueeze", live, g.ints(1)))
    low = g.op("Where", g.op("Cast", other, to=9), g.const(-3.4e38), other)
    w = g.weight("w", np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype("f4"))
    keys = g.op("Transpose", g.op("MatMul", x, w), perm=[0, 2, 1])
    p = g.op("Softmax", g.op("Add", g.op("MatMul", x, keys), low))
    g.output(g.op("MatMul", p, x), "y", np.float32, ("b", "s", 64))
    graph = analyse(ir.serde.deserialize_model(g.model()), None)[0]
    low = "some d-101: where_4[d0, 0, d-101] within 1e3"  # a key is kept
    assert [str(r) for r in graph["matmul_5"].dead] == [
        f"cast_3[d0, 0, d1] != 0 and {low}",
        f"mask[d0, d1] == 0 and {low}",
    ]
    assert graph["x"].dead == []


@pytest.mark.parametrize("turned", [False, True])
def test_a_computed_bool_that_hides_keys_is_suggested(turned: bool) -> None:
    """No input hides keys: the model makes bools of frames."""
    g, rng = GraphBuilder("frames"), np.random.default_rng(0)
    x = g.input("x", np.float32, ("b", "s", 64))
    ends = g.input("ends", np.int64, ("b", "s"))
    mask = g.op("Cast", g.op("CumSum", ends, g.const(1, np.int64)), to=9)
    low = g.op("Unsqueeze", mask, g.ints(1))
    low = g.op("Where", low, *[g.const(v) for v in ((-1e9, 0.0) if turned else (0.0, -1e9))])
    scores = g.op("Add", g.op("MatMul", x, g.op("Transpose", x, perm=[0, 2, 1])), low)
    up = g.weight("up", rng.normal(0, 0.1, (64, 256)).astype("f4"))
    down = g.weight("down", rng.normal(0, 0.1, (256, 64)).astype("f4"))
    rows = g.op("MatMul", g.op("Softmax", scores), x)
    g.output(
        g.op("MatMul", g.op("Tanh", g.op("MatMul", rows, up)), down),
        "y",
        np.float32,
        ("b", "s", 64),
    )
    model = ir.serde.deserialize_model(g.model())
    (said,) = run_passes(model, LowerOptions(suggest=True)).report.suggestions
    assert said.kind == "padding" and said.gain is not None and said.gain > 0.5
    found = said.option.removeprefix("--padding ").strip("'")
    packed = summary_of(lower(g.model(), found).report).packed.share
    assert packed > 0.9


def test_a_mask_that_no_attention_reads_is_said_to_be() -> None:
    def said(*, hides: bool) -> list[str]:
        g = GraphBuilder("unread")
        x = g.input("x", np.float32, ("b", "s", 64))
        mask = g.op("Cast", g.input("mask", np.int64, ("b", "s")), to=1)
        scores = g.op("MatMul", x, g.op("Transpose", x, perm=[0, 2, 1]))
        low = g.op("Mul", g.op("Sub", g.const(1.0), mask), g.const(-1e9 if hides else -1.0))
        p = g.op("Softmax", g.op("Add", scores, g.op("Unsqueeze", low, g.ints(1))))
        p = p if hides else g.op("Sqrt", p)  # else the mask is a bias of attention over all keys
        w = g.weight("w", np.ones((64, 256), "f4"))
        rows = g.op("ReduceMean", g.op("MatMul", g.op("MatMul", p, x), w), axes=[1], keepdims=0)
        g.output(rows, "y", np.float32, ("b", 256))
        return run_passes(ir.serde.deserialize_model(g.model()), LowerOptions("mask")).report.notes

    assert any(NOT_HIDDEN in note for note in said(hides=False))
    assert not any(NOT_HIDDEN in note for note in said(hides=True))
