"""Attention whose batch and heads are one dimension, [batch * heads, queries, keys]: sequences are
told by the masks, and what is added to the scores is read where it lies.
"""

import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from pitc.passes.pipeline import Lowered
from tests.lower_support import lower_and_compare, plans
from tests.onnx import test_pairs

everything_pays = test_pairs._everything_pays

HEAD = """<ir_version: 9, opset_import: ["": 18]> g (float[b, s, 32] q, float[b, s, 32] k,
float[b, s, 32] v, bool[FLAG] flag, float[b, 4, 1, s] line,
float[b, 1, s, s] term, float[1, 4, s, s] table, float[s] keys) => (float[b, s, 32] y)
<float zero = {0}, float low = {-3e38}, float less = {0}, int64 zero_i = {0},
int64 one_i = {1}, int64[1] first = {0}, int64[1] second = {1},
int64[1] four = {4}, int64[1] eight = {8}, int64[1] one = {1},
int64[4] split = {0, 0, 4, 8}, int64[3] join = {0, 0, 32}> {
    sizes = Shape (q) b = Gather (sizes, first) s = Gather (sizes, second) bh = Mul (b, four)
    rows = Concat <axis = 0> (bh, s, eight) columns = Concat <axis = 0> (bh, eight, s)
    pairs = Concat <axis = 0> (bh, s, s) apart = Concat <axis = 0> (b, four, s, s)
    beside = Concat <axis = 0> (bh, one, s) whole = Concat <axis = 0> (b, four, s, eight)
    q4 = Reshape (q, split) qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    qm = Reshape <allowzero = 1> (qt, rows)
    k4 = Reshape (k, split) kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    km = Reshape <allowzero = 1> (kt, columns)
    v4 = Reshape (v, split) vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    vm = Reshape <allowzero = 1> (vt, rows)
    s0 = MatMul (qm, km) BODY
    o = MatMul (p, vm) o4 = Reshape <allowzero = 1> (o, whole)
    ot = Transpose <perm = [0, 2, 1, 3]> (o4) y = Reshape (ot, join) }"""
GIVEN = """<ir_version: 9, opset_import: ["": 18]> g (float[x, s, 8] q, float[x, s, 8] k,
float[x, s, 8] v, bool[FLAG] flag) => (float[x, s, 8] y) <float low = {-3e38}> {
    keys = Transpose <perm = [0, 2, 1]> (k) s0 = MatMul (q, keys) s1 = Where (flag, s0, low)
    p = Softmax (s1) y = MatMul (p, v) }"""
APART = "s4 = Reshape <allowzero = 1> (s0, apart)"
MERGED = "p4 = Softmax (s2) p = Reshape <allowzero = 1> (p4, pairs)"
CAUSE = """size = Gather (sizes, one_i) at = Range (zero_i, size, one_i)
k_at = Unsqueeze (at, first) q_at = Unsqueeze (at, second) seen = GreaterOrEqual (q_at, k_at)"""
REPEATED = "all = Expand (flag, apart) each = Reshape <allowzero = 1> (all, pairs)"
#: steps between the products, and the shape of flags
HIDDEN = {
    "apart": (f"{APART} s2 = Where (flag, s4, low) {MERGED}", "b, 1, s, s"),
    "repeated": (f"{REPEATED} s2 = Where (each, s0, low) p = Softmax (s2)", "b, 1, s, s"),
    "of pairs": ("s2 = Where (flag, s0, low) p = Softmax (s2)", "s, s"),
    "of order": (f"{CAUSE} s2 = Where (seen, s0, low) p = Softmax (s2)", "s, s"),
    "of order and apart": (
        f"{CAUSE} {APART} both = And (flag, seen) s2 = Where (both, s4, low) {MERGED}",
        "b, 1, s, s",
    ),
}
TAME = "tame = Tanh (line) near = Reshape <allowzero = 1> (tame, beside)"
#: the same, and what is added: in front of the mask, in one shape or in the other, or behind it
ADDED = {
    "added where merged": (
        f"{TAME} s1 = Add (s0, near) s4 = Reshape <allowzero = 1> (s1, apart)"
        f" s2 = Where (flag, s4, less) {MERGED}",
        "b, 1, s, s",
    ),
    "added apart": (
        f"{APART} tame = Tanh (line) s1 = Add (s4, tame) s2 = Where (flag, s1, less) {MERGED}",
        "b, 1, s, s",
    ),
    "in both shapes": (
        f"{TAME} s1 = Add (s0, near) s4 = Reshape <allowzero = 1> (s1, apart)"
        f" more = Tanh (term) s5 = Add (more, s4) s2 = Where (flag, s5, less) {MERGED}",
        "b, 1, s, s",
    ),
    "of heads": (
        f"{APART} tame = Tanh (table) s1 = Add (s4, tame) s2 = Where (flag, s1, less) {MERGED}",
        "b, 1, s, s",
    ),
    "of keys": (
        f"{REPEATED} tame = Tanh (keys) s1 = Add (s0, tame) s2 = Where (each, s1, less)"
        " p = Softmax (s2)",
        "b, 1, s, s",
    ),
}
SIZES = ((1, 0), (0, 3), (1, 1), (2, 2), (3, 31), (2, 33), (2, 65))


def model(body: str, flags: str, sizes: str) -> onnx.ModelProto:
    """Attention with these steps between its products, and sizes of a batch and of a sequence."""
    inputs, rest = HEAD.replace("FLAG", flags).replace("BODY", body).split("=>", 1)
    for name, size in zip("bs", sizes.split(", "), strict=True):
        inputs = re.sub(rf"\b{name}(?=[,\]])", size, inputs)
    proto = onnx.parser.parse_model(f"{inputs}=>{rest}")
    for value in proto.graph.initializer:
        if value.name == "less":
            value.CopyFrom(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "less"))
    return proto


def feeds(proto: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of all sizes: rows with some keys, with all, and with none."""
    rng = np.random.default_rng(7)
    shapes = {v.name: v.type.tensor_type.shape.dim for v in proto.graph.input}
    for b, s in SIZES:
        for share in (0.0, 0.1, 1.0):
            sizes = {"b": b, "s": s, "x": b}
            feed = {
                n: rng.normal(0, 1, [sizes.get(d.dim_param, d.dim_value) for d in dims])
                for n, dims in shapes.items()
            }
            found = {n: x.astype(np.float32) for n, x in feed.items()}
            flag = np.asarray(rng.random(found["flag"].shape) < share)
            yield found | {"flag": flag}


def check(proto: onnx.ModelProto) -> Lowered:
    """Lower, and compare with ONNX Runtime."""
    return lower_and_compare(proto, feeds(proto))


@pytest.mark.parametrize("sizes", ["b, s", "2, s", "b, 33", "2, 33"])
@pytest.mark.parametrize("case", [*HIDDEN, *ADDED])
def test_sequences_have_heads(case: str, sizes: str) -> None:
    """Rows are read and written as they lie, four heads of each sequence."""
    lowered = check(model(*(HIDDEN | ADDED)[case], sizes))
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    assert (plan["heads"], plan["pairs"], plan["bias"]) == ("4", "1", str(int(case in ADDED)))
    left = {node.op_type for node in lowered.model.graph}
    assert not left & {"MatMul", "Softmax", "Where", "Transpose"}


@pytest.mark.parametrize("flags", ["x, s, s", "s, s", "1, s, s"])
def test_each_row_is_a_sequence(flags: str) -> None:
    """Nothing says how many heads a sequence has."""
    proto = onnx.parser.parse_model(GIVEN.replace("FLAG", flags))
    (plan,) = [p for p in plans(check(proto)) if p["op"] == "attention"]
    assert (plan["heads"], plan["pairs"], plan["bias"]) == ("1", "1", "0")
