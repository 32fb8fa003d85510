"""Pairs that a mask hides are left out of attention: what is listed, and that answers stay."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from pitc.ir import target as targets
from pitc.ir.refusal import Code
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import run_lowered

HEAD = """<ir_version: 9, opset_import: ["": 18]> g (float[b, s, 8] x%(more)s)
=> (float[b, s, 8] y) <int64[4] split = {0, 0, 4, 2}, int64[3] join = {0, 0, 8},
int64 zero_i = {0}, int64 one_i = {1}, int64[1] first = {0}, int64[1] second = {1},
int32 three_i = {3},
int64[2] firsts = {0, 1}, int64 wide = {%(window)d}, int64 fourth = {4}, int64 three = {3},
float zero = {0}, float[4, 1, 1] slopes = {0.5, 0.25, -0.125, 2},
float low = {-3e38}, float none = {%(none)s}> {
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)
    q4 = Reshape (q, split) queries = Transpose <perm = [0, 2, 1, 3]> (q4)
    k4 = Reshape (k, split) keys = Transpose <perm = [0, 2, 3, 1]> (k4)
    v4 = Reshape (v, split) values = Transpose <perm = [0, 2, 1, 3]> (v4)
    sizes = Shape (x) size = Gather (sizes, one_i) at = Range (zero_i, size, one_i)
    k_at = Unsqueeze (at, first) q_at = Unsqueeze (at, second)
    s0 = MatMul (queries, keys) %(mask)s p = Softmax <axis = -1> (s1) %(behind)s
    c = MatMul (%(weights)s, values) back = Transpose <perm = [0, 2, 1, 3]> (c)
    rows = Reshape (back, join) y = MatMul (rows, wo) }"""
CAUSAL = "seen = GreaterOrEqual (q_at, k_at)"
WINDOW = "off = Sub (q_at, k_at) far = Abs (off) seen = LessOrEqual (far, wide)"
ADD = "hide = Where (seen, zero, low) s1 = Add (s0, hide)"
SELECT = "s1 = Where (seen, s0, none)"
BY_PAIR = "flags = Identity (pairs) seen = Identity (flags)"
KEPT = "bool[b, 1, s, s] pairs"
#: the mask, more inputs, and of the plan how many tests there are of each kind, and the regions
CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "causal, added": (f"{CAUSAL} {ADD}", "", {"positions": "1", "program": "3,2"}),
    "causal, selected": (f"{CAUSAL} {SELECT}", "", {"positions": "1", "program": "3,2"}),
    "a window": (f"{WINDOW} {ADD}", "", {"positions": "2", "program": "3,4,1,2"}),
    "a causal window": (
        f"""off = Sub (q_at, k_at) near = Less (off, wide) before = GreaterOrEqual (q_at, k_at)
        seen = And (near, before) {SELECT}""",
        "",
        {"positions": "2", "program": "3,4,1,2"},
    ),
    "twice the position": (
        f"two = Add (q_at, q_at) seen = GreaterOrEqual (two, k_at) {SELECT}",
        "",
        {"positions": "1", "program": "3,2"},
    ),
    "a window and first keys": (
        f"""off = Sub (q_at, k_at) far = Abs (off) near = LessOrEqual (far, wide)
        start = Less (k_at, fourth) seen = Or (near, start) {SELECT}""",
        "",
        {"positions": "2", "keys": "1", "program": "3,4,5,0,1,2"},
    ),
    "pairs of an input": (
        f"seen = Identity (pairs) {SELECT}",
        KEPT,
        {"pairs": "1", "program": "3,2"},
    ),
    "pairs of each head": (
        f"seen = Identity (flag) {SELECT}",
        "bool[b, 4, s, s] flag",
        {"pairs": "1", "program": "3,2", "rank": "3"},
    ),
    "keys of each head, and a cause": (
        f"by_head = Identity (flag) before = GreaterOrEqual (q_at, k_at) "
        f"seen = And (by_head, before) {ADD}",
        "bool[b, 4, 1, s] flag",
        {"positions": "1", "keys": "1", "program": "4,3,1,2", "rank": "3", "no_pairs": "mean"},
    ),
    "documents": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        seen = Equal (q_doc, k_doc) {SELECT}""",
        "int64[b, s] doc",  # where one of both is 0 is known besides
        {"tables": "1", "program": "3"},
    ),
    "documents of a batch": (
        f"""k_doc = Unsqueeze (doc, first) q_doc = Unsqueeze (doc, second)
        same = Equal (q_doc, k_doc) before = GreaterOrEqual (q_at, k_at)
        seen = And (before, same) {ADD}""",
        "int32[s] doc",
        {"positions": "1", "tables": "1", "program": "3,4,0"},
    ),
    "earlier documents, too": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        later = Less (q_doc, k_doc) seen = Not (later) {SELECT}""",
        "int64[b, s] doc",
        {"tables": "1", "orders": "1", "program": "3,2"},
    ),
    "later documents": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        seen = GreaterOrEqual (k_doc, q_doc) {ADD}""",
        "int64[b, s] doc",
        {"tables": "1", "orders": "2", "program": "3"},
    ),
    "this document and the third before": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        d3 = Sub (doc, three) q_third = Unsqueeze (d3, middle_q)
        same = Equal (q_doc, k_doc) third = Equal (k_doc, q_third) either = Or (same, third)
        k_sum = Unsqueeze (live, middle) any = Or (either, k_sum)
        before = GreaterOrEqual (q_at, k_at) seen = And (any, before) {ADD}""",
        "int64[b, s] doc, bool[b, s] live",
        {"positions": "1", "tables": "2", "keys": "1", "program": "4,5,1,6,2,1,3,0"},
    ),
    "this document and the third before, by distance": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        past = Sub (q_doc, k_doc) same = Equal (past, zero_i) third = Equal (three, past)
        either = Or (same, third) before = GreaterOrEqual (q_at, k_at)
        seen = And (either, before) {ADD}""",
        "int64[b, s] doc",
        {"positions": "1", "tables": "2", "program": "4,5,1,3,0"},
    ),
    "documents that add up": (
        f"""k_doc = Unsqueeze (doc, first) q_doc = Unsqueeze (doc, second)
        sum = Add (q_doc, k_doc) more = Add (sum, q_doc) seen = Equal (more, three_i) {SELECT}""",
        "int32[s] doc",
        {"tables": "1", "program": "3"},
    ),
    "distances by head": (  # nothing is added at the own key
        """off = Sub (k_at, q_at) far = Cast <to = 1> (off) more = Mul (far, slopes)
        s01 = Add (s0, more) seen = GreaterOrEqual (q_at, k_at) s1 = Where (seen, s01, low)""",
        "",
        {"positions": "1", "program": "3,2", "bias": "1"},
    ),
    "all of these, or not": (
        f"""k_doc = Unsqueeze (doc, middle_k) q_doc = Unsqueeze (doc, middle_q)
        same = Equal (q_doc, k_doc) off = Sub (q_at, k_at) far = Abs (off)
        near = LessOrEqual (far, wide) other = Not (same) one = And (same, pairs)
        two = And (other, near) some = Or (one, two) q_live = Unsqueeze (live, middle_q)
        three_of = Or (some, q_live) before = GreaterOrEqual (q_at, k_at)
        four = And (three_of, before) five = Or (four, same) seen = Or (five, near) {SELECT}""",
        f"int64[b, s] doc, bool[b, s] live, {KEPT}",
        {
            **{"positions": "3", "tables": "1", "queries": "1", "pairs": "1", "bias": "1"},
            "program": "6,8,2,0,6,2,3,4,1,2,0,1,7,2,1,5,0,6,1,3,4,1,2,1",
        },
    ),
    "pairs of an input, added": (  # a row without any is uniform
        f"seen = Identity (pairs) {ADD}",
        KEPT,
        {"pairs": "1", "program": "3,2", "no_pairs": "mean"},
    ),
    "pairs and a cause": (
        f"before = GreaterOrEqual (q_at, k_at) seen = And (pairs, before) {SELECT}",
        KEPT,
        {"positions": "1", "pairs": "1", "program": "4,3,1,2"},
    ),
    "keys of an input": (
        f"seen = Unsqueeze (live, middle) {SELECT}",
        "bool[b, s] live",
        {},
    ),
}
SIZES = ((1, 0), (0, 3), (1, 1), (2, 2), (3, 31), (1, 32), (2, 33), (1, 64), (2, 65), (1, 140))


def model(case: str, behind: str = "", weights: str = "p", window: int = 7) -> onnx.ModelProto:
    """A layer of attention, with random weights."""
    mask, more, _ = CASES[case]
    values = {"mask": mask, "more": f", {more}" if more else "", "behind": behind}
    values |= {"weights": weights, "none": "0", "window": window}
    proto = onnx.parser.parse_model(HEAD % values)
    rng = np.random.default_rng(3)
    for name in ("wq", "wk", "wv", "wo"):
        x = rng.normal(0, 0.5, (8, 8)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(x, name))
    for value in proto.graph.initializer:
        if value.name == "none":
            value.CopyFrom(numpy_helper.from_array(np.array(-np.inf, np.float32), "none"))
    places = {"middle": (1, 2), "middle_k": (1, 2), "middle_q": (1, 3)}
    for name, at in places.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(at, np.int64), name))
    return proto


def feeds(proto: onnx.ModelProto, b: int, s: int) -> Iterator[dict[str, np.ndarray]]:
    """Inputs: of flags some, all and none."""
    rng = np.random.default_rng(b * 100 + s)
    for share in (0.3, 1.0, 0.0):
        feed: dict[str, np.ndarray] = {"x": rng.normal(0, 1, (b, s, 8)).astype(np.float32)}
        names = {value.name for value in proto.graph.input}
        if "pairs" in names:
            feed["pairs"] = rng.random((b, 1, s, s)) < share
        if "live" in names:
            feed["live"] = rng.random((b, s)) < share
        if "doc" in names:
            found = np.sort(rng.integers(0, 1 + int(6 * share), (b, s)), axis=1)
            feed["doc"] = found if share > 0.5 else rng.integers(0, 3, (b, s))
            if proto.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.INT32:
                feed["doc"] = feed["doc"][0].astype(np.int32) if b else np.zeros(s, np.int32)
        for value in proto.graph.input:
            if value.name == "flag":
                dims = value.type.tensor_type.shape.dim
                shape = [{"b": b, "s": s}.get(d.dim_param, d.dim_value) for d in dims]
                feed["flag"] = np.asarray(rng.random(shape) < share)
        yield feed


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    with np.errstate(invalid="ignore"):  # of a softmax of no key
        yield


def check(proto: onnx.ModelProto, padding: str | None = None) -> Lowered:
    """Lower, and compare with ONNX Runtime, NaN included."""
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding=padding))
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in SIZES:
        for feed in feeds(proto, b, s):
            (want,), (got,) = session.run(None, feed), run_lowered(found, feed)
            wanted = np.asarray(want)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{b} x {s}")
    return lowered


@pytest.mark.parametrize("case", CASES)
def test_hidden_pairs(case: str) -> None:
    lowered = check(model(case))
    wanted = CASES[case][2]
    made = [p for p in plans(lowered) if p["op"] == "pairs"]
    if not wanted:
        assert not made
        return
    (plan,) = made
    kinds = ("positions", "tables", "keys", "queries", "pairs", "orders")
    usual = dict.fromkeys(kinds, "0") | {"rank": "2"}
    fields = {k: v for k, v in wanted.items() if k not in ("bias", "no_pairs")}
    assert {k: plan[k] for k in (*usual, "program")} == usual | fields
    (attention,) = [p for p in plans(lowered) if p["op"] == "attention"]
    found = [attention[name] for name in ("pairs", "bias", "no_pairs")]
    assert found == ["1", wanted.get("bias", "0"), wanted.get("no_pairs", "nan")]
    assert not [n for n in lowered.model.graph if n.op_type == "Softmax"]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("a causal window", "q >= k and k + 6 >= q"),
        ("a window and first keys", "q + 7 >= k and (k + 7 >= q or 3 >= k)"),
        ("twice the position", "2*q >= k"),
        ("documents of a batch", "q >= k and doc[q] == doc[k]"),
        ("earlier documents, too", "doc[q] >= doc[k]"),
        (
            "this document and the third before",
            "(doc[q] == doc[k] or d3[q] == doc[k] or k_sum[k] != 0) and q >= k",
        ),
        (
            "this document and the third before, by distance",
            "(doc[q] == doc[k] or doc[q] == doc[k] + 3) and q >= k",
        ),
        ("documents that add up", "2*doc[q] == - doc[k] + 3"),
        ("pairs and a cause", "pairs[q, k] != 0 and q >= k"),
        (
            "all of these, or not",
            "((((doc[q] == doc[k] and pairs[q, k] != 0) or (doc[q] != doc[k] and q + 7 >= k and "
            "k + 7 >= q) or q_live[q] != 0) and q >= k) or doc[q] == doc[k] or (q + 7 >= ..",
        ),
    ],
)
def test_the_report_says_which_keys_are_seen(case: str, text: str) -> None:
    lowered = run_passes(ir.serde.deserialize_model(model(case)), LowerOptions(padding=None))
    (record,) = [r for r in lowered.report.nodes if r.lowering == "attention"]
    assert record.rule == f"softmax over live keys: {text}"


@pytest.mark.parametrize(
    "case", ["this document and the third before, by distance", "documents that add up"]
)
def test_equations_hold_where_sums_wrap_around(case: str) -> None:
    proto = model(case)
    dtype = np.int64 if "[b, s] doc" in CASES[case][1] else np.int32
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = [least, least + 2, most, most - 1, least // 2, most // 2 + 1, 0, 3, -1]
    doc = np.array([*ends, *ends[::-1]], dtype)
    doc = doc[None] if dtype == np.int64 else doc
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding=None))
    assert [p["pairs"] for p in plans(lowered) if p["op"] == "pairs"] == ["0"]
    x = np.random.default_rng(1).normal(0, 1, (1, doc.shape[-1], 8)).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x, "doc": doc})
    (got,) = run_lowered(ir.serde.serialize_model(lowered.model), {"x": x, "doc": doc})
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_difference_at_the_end_of_int64(turned: bool) -> None:
    """Its opposite is no int64."""
    proto = model("this document and the third before, by distance")
    for value in proto.graph.initializer:
        if value.name == "three":
            least = np.array(np.iinfo(np.int64).min)
            value.CopyFrom(numpy_helper.from_array(least, "three"))
    (past,) = [node for node in proto.graph.node if node.output == ["past"]]
    past.input[:] = list(past.input)[:: -1 if turned else 1]
    (plan,) = [p for p in plans(check(proto)) if p["op"] == "pairs"]
    assert plan["tables"] == "2"


def test_a_row_of_no_pair_is_nan_or_what_a_guard_says() -> None:
    """The flags that hide all of a row are among the inputs of `check`."""
    guard = "odd = IsNaN (p) guarded = Where (odd, zero, p)"
    for behind, weights, to_zero in (("", "p", "0"), (guard, "guarded", "1")):
        lowered = check(model("pairs of an input", behind, weights))
        (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
        assert (plan["nan_to_zero"], plan["pairs"]) == (to_zero, "1")


@pytest.mark.parametrize(
    ("low", "no_pairs"), [(-65504.0, "mean"), (-5751.0, "mean"), (-5749.0, ""), (-3e38, "mean")]
)
def test_rows_of_one_number_are_means(low: float, no_pairs: str) -> None:
    """Where a number replaces scores, no rounding decides what a row of it alone gives."""
    proto = model("pairs of an input")
    for value in proto.graph.initializer:
        if value.name == "none":
            value.CopyFrom(numpy_helper.from_array(np.array(low, np.float32), "none"))
    found = [p["no_pairs"] for p in plans(check(proto)) if p["op"] == "attention" and p["pairs"]]
    assert found == ([no_pairs] if no_pairs else [])


@pytest.mark.parametrize(("factor", "positions"), [(1 << 20, "1"), ((1 << 20) + 1, "0")])
def test_tests_of_large_numbers_are_flags(factor: int, positions: str) -> None:
    """What the runtime could not add up without an overflow is computed by nodes."""
    proto = model("twice the position")
    for node in proto.graph.node:
        if node.output == ["two"]:
            node.op_type, node.input[1] = "Mul", "large"
    proto.graph.initializer.append(numpy_helper.from_array(np.array(factor), "large"))
    (plan,) = [p for p in plans(check(proto)) if p["op"] == "pairs"]
    assert (plan["positions"], plan["pairs"]) == (positions, str(1 - int(positions)))


@pytest.mark.parametrize("extra", ["", "[1]", "[1, 1, 1, 1]", "[b, 1, 1, 1]", "[b, 1, s, 1]"])
def test_flags_of_no_key_hide_whole_rows(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flag of the run, of a sequence, or of a query."""
    wanted = {"queries": "1", "program": "3,2"}
    case = (f"seen = Identity (flag) {SELECT}", f"bool{extra} flag", wanted)
    monkeypatch.setitem(CASES, "a flag", case)
    (plan,) = [p for p in plans(check(model("a flag"))) if p["op"] == "pairs"]
    assert {name: plan[name] for name in wanted} == wanted


def test_packed_rows_are_listed() -> None:
    """Under a padding mask positions have gaps, and lists number the rows that are left."""
    proto = model("a causal window")
    mask = onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, ["b", "s"])
    proto.graph.input.append(mask)
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions(padding="mask"))
    found, rng = ir.serde.serialize_model(lowered.model), np.random.default_rng(5)
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    assert plan["pairs"] == "1"
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in SIZES:
        x = rng.normal(0, 1, (b, s, 8)).astype(np.float32)
        live = np.arange(s) < rng.integers(0, s + 1, (b, 1))
        (got,) = run_lowered(found, {"x": x, "mask": live})
        (want,) = session.run(None, {"x": x, "mask": live})
        np.testing.assert_allclose(got[live], np.asarray(want)[live], rtol=1e-4, atol=1e-5)


def test_what_costs_more_than_it_saves_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of pairs touch bytes of each; one head of two numbers is too little work for it."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=32))
    lowered = check(model("pairs of an input"))
    assert not [p for p in plans(lowered) if p["op"] == "pairs"]
    (record,) = [r for r in lowered.report.nodes if r.node == "c"]
    assert record.refusal is not None and record.refusal.code is Code.NO_GAIN
