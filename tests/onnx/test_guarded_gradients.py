"""Gradients of attention as torch writes them: batch and heads are one dimension, weights of rows
without a key are 0, statistics of a norm are read once more.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from pitc.passes.pipeline import Lowered
from tests.lower_support import lower_and_compare, plans
from tests.onnx import test_pairs

everything_pays = test_pairs._everything_pays


INPUTS = ", ".join(f"float[b, s, 4, 8] {name}" for name in ("q", "k", "v", "g0"))
HEAD = f"""<ir_version: 9, opset_import: ["": 18]> g ({INPUTS}, int64[b, s] mask,
int64[b, s] labels) => (float[b, s, 4, 8] dq, float[b, s, 4, 8] dk, float[b, s, 4, 8] dv)
<float zero = {{0}}, float low = {{0}}, float ninf = {{0}}, int64 ignored = {{-100}},
int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] four = {{4}}, int64[1] eight = {{8}},
int64[1] last = {{-1}}, int64[1] rowwise = {{-2}}, int64[2] end = {{2, 3}},
int64[2] middle = {{1, 2}}> {{
    none = Equal (labels, ignored) up = Unsqueeze (none, end) g = Where (up, zero, g0)
    b = Shape <start = 0, end = 1> (q) s = Shape <start = 1, end = 2> (q)
    exists = Cast <to = 9> (mask) keys = Unsqueeze (exists, middle)
    whole = Concat <axis = 0> (b, four, s, s)
    rows = Concat <axis = 0> (b, four, s, eight) columns = Concat <axis = 0> (b, four, eight, s)
    size = Squeeze (s) at = Range (i0, size, i1) q_at = Unsqueeze (at, last)
    before = GreaterOrEqual (q_at, at) SEEN m = Where (seen, zero, low)
    %s
    p = Softmax (z) %s """
MASKS = {"padding": "seen = Identity (keys)", "causal": "seen = And (keys, before)"}
MERGED = """heads = Mul (b, four) pairs = Concat <axis = 0> (heads, s, s)
    of_rows = Concat <axis = 0> (heads, s, eight) of_columns = Concat <axis = 0> (heads, eight, s)
    q1 = Transpose <perm = [0, 2, 1, 3]> (q) k1 = Transpose <perm = [0, 2, 3, 1]> (k)
    v1 = Transpose <perm = [0, 2, 1, 3]> (v) g1 = Transpose <perm = [0, 2, 1, 3]> (g)
    q2 = Reshape (q1, of_rows) k2 = Reshape (k1, of_columns) v2 = Reshape (v1, of_rows)
    g2 = Reshape (g1, of_rows) s0 = MatMul (q2, k2) s1 = Reshape (s0, whole) z = Add (s1, m)"""
APART = """q2 = Transpose <perm = [0, 2, 1, 3]> (q) k2 = Transpose <perm = [0, 2, 3, 1]> (k)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v) g2 = Transpose <perm = [0, 2, 1, 3]> (g)
    s1 = MatMul (q2, k2) z = Add (s1, m)"""
MERGED_BACK = """w2 = Reshape (w, pairs) wt = Transpose <perm = [0, 2, 1]> (w2)
    dv2 = MatMul (wt, g2) vt = Transpose <perm = [0, 2, 1]> (v2) d2 = MatMul (g2, vt)
    d = Reshape (d2, whole) wd = Mul (d, w) sum = ReduceSum (wd, last) u = Mul (w, sum)
    ds = Sub (wd, u) ds2 = Reshape (ds, pairs) qt = Transpose <perm = [0, 2, 1]> (q2)
    dk2 = MatMul (qt, ds2) kt = Transpose <perm = [0, 2, 1]> (k2) dq2 = MatMul (ds2, kt)
    dq3 = Reshape (dq2, rows) dk3 = Reshape (dk2, columns) dv3 = Reshape (dv2, rows)"""
APART_BACK = """wt = Transpose <perm = [0, 1, 3, 2]> (w) dv3 = MatMul (wt, g2)
    vt = Transpose <perm = [0, 1, 3, 2]> (v2) d = MatMul (g2, vt)
    wd = Mul (d, w) sum = ReduceSum (wd, last) u = Mul (w, sum) ds = Sub (wd, u)
    qt = Transpose <perm = [0, 1, 3, 2]> (q2) dk3 = MatMul (qt, ds)
    kt = Transpose <perm = [0, 1, 3, 2]> (k2) dq3 = MatMul (ds, kt)"""
END = """ dq = Transpose <perm = [0, 2, 1, 3]> (dq3)
    dk = Transpose <perm = [0, 3, 1, 2]> (dk3) dv = Transpose <perm = [0, 2, 1, 3]> (dv3) }"""
#: torch's: rows of scores that are all -inf have weights of 0
GUARD = """e = Equal (z, ninf) n = Not (e) i = Cast <to = 7> (n) most = ReduceMax (i, last)
    any = Cast <to = 9> (most) c = Not (any) w = Where (c, zero, p)"""
BARE = "w = Identity (p)"
#: conditions that do not hold in every such row
OTHERS = {
    "all": GUARD.replace("ReduceMax", "ReduceMin"),
    "some": GUARD.replace("c = Not (any)", "c = Identity (any)"),
    "of columns": GUARD.replace("(i, last)", "(i, rowwise)"),
    "of other scores": GUARD.replace("(z, ninf)", "(s1, ninf)"),
}
SIZES = ((0, 3), (1, 1), (2, 2), (3, 31), (2, 33), (2, 40))


def model(guard: str, low: float, *, mask: str = "padding", merged: bool) -> onnx.ModelProto:
    """The gradients of queries, keys and values."""
    head = HEAD % ((MERGED, guard) if merged else (APART, guard))
    text = (head + (MERGED_BACK if merged else APART_BACK) + END).replace("SEEN", MASKS[mask])
    proto = onnx.parser.parse_model(text)
    for value in proto.graph.initializer:
        if value.name in ("low", "ninf"):
            number = np.array(low if value.name == "low" else -np.inf, np.float32)
            value.CopyFrom(onnx.numpy_helper.from_array(number, value.name))
    return proto


def feeds(*, blind: bool) -> Iterator[dict[str, np.ndarray]]:
    """Sequences of all lengths; with `blind` some have no key at all."""
    rng = np.random.default_rng(0)
    for b, s in SIZES:
        for share in (0.4, 1.0):
            shape = (b, s, 4, 8)
            feed: dict[str, np.ndarray] = {
                x: rng.normal(0, 1, shape).astype(np.float32) for x in ("q", "k", "v", "g0")
            }
            mask = rng.random((b, s)) < share
            mask[:, 0] = True
            if blind and share < 1:
                mask[: b // 2] = False
            counted = rng.random((b, s)) < share
            feed["mask"] = mask.astype(np.int64)
            yield feed | {"labels": np.where(counted, 1, -100)}


def gradients(lowered: Lowered) -> list[dict[str, str]]:
    return [p for p in plans(lowered) if p["op"] == "attention_grad"]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("guard", "low", "mask", "no_pairs"),
    [
        (BARE, -3.4e38, "padding", "nan"),
        (GUARD, -3.4e38, "padding", "nan"),
        (GUARD, -np.inf, "padding", "nan"),  # sequences without a key have no pair
        (GUARD, -np.inf, "causal", "zero"),
    ],
    ids=["bare", "finite", "infinite", "causal"],
)
def test_one_node(guard: str, low: float, mask: str, no_pairs: str, merged: bool) -> None:
    proto = model(guard, low, mask=mask, merged=merged)
    lowered = lower_and_compare(proto, feeds(blind=low == -np.inf))
    (plan,) = gradients(lowered)
    assert plan["no_pairs"] == no_pairs
    left = {node.op_type for node in lowered.model.graph}
    if low > -np.inf:  # else rows are asked for by their condition, where that costs nothing
        assert not left & {"Softmax", "MatMul", "ReduceSum"}


@pytest.mark.parametrize("name", OTHERS)
def test_conditions_that_say_something_else(name: str) -> None:
    """Rows of -inf may be NaN, so that no key is dead; others may be 0."""
    proto = model(OTHERS[name], -np.inf, mask="causal", merged=False)
    lowered = lower_and_compare(proto, feeds(blind=True))
    assert all(plan["no_pairs"] == "nan" for plan in gradients(lowered))


def test_statistics_of_a_norm_are_packed_beside_it() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[b, s, 64] x, float[64, 64] a, float[64] scale, int64[b, s] labels)
    => (float[b, s, 64] y) <float zero = {0}, int64 ignored = {-100}, int64[1] end = {2}> {
        h = MatMul (x, a) n, mean, deviation = LayerNormalization (h, scale)
        u = Sub (h, mean) v = Mul (u, deviation) w = Add (v, n) z = MatMul (w, a)
        none = Equal (labels, ignored) up = Unsqueeze (none, end) y = Where (up, zero, z) }"""
    rng, given = np.random.default_rng(0), list[dict[str, np.ndarray]]()
    for b, s in SIZES:
        shapes = {"x": (b, s, 64), "a": (64, 64), "scale": (64,)}
        feed = {name: rng.normal(0, 0.3, dims) for name, dims in shapes.items()}
        feed = {name: x.astype(np.float32) for name, x in feed.items()}
        given.append(feed | {"labels": np.where(rng.random((b, s)) < 0.4, 1, -100)})
    lowered = lower_and_compare(onnx.parser.parse_model(text), given)
    (norm,) = [n for n in lowered.report.nodes if n.op_type == "LayerNormalization"]
    assert norm.lowering == "packed"
