"""Rows of weights that a condition makes 0, behind the softmax: rows that see no key, or others."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from pitc.passes.pipeline import Lowered
from tests.lower_support import lower_and_compare, plans
from tests.onnx import test_pairs

everything_pays = test_pairs._everything_pays

HEAD = """<ir_version: 9, opset_import: ["": 18]> g (float[b, 4, s, 8] q, float[b, 4, s, 8] k,
float[b, 4, s, 8] v, bool[%s] flag, bool[b, 1, s, s] other, float[%s] bias, float[b, 1, s, s] terms,
bool[b, s] live) => (float[b, 4, s, 8] y)
<float zero = {0}, float low = {0}, float one = {1}, float least = {-3e38}, int64 zero_i = {0},
int64 one_i = {1}, int64 two_i = {2}, int64[1] last = {-1}, int64[1] rows = {-2},
int64[1] first = {0}, int64[1] second = {1}, int64[2] middle = {1, 2}> {
    keys = Transpose <perm = [0, 1, 3, 2]> (k) s0 = MatMul (q, keys)
    sizes = Shape (q) size = Gather (sizes, two_i) at = Range (zero_i, size, one_i)
    k_at = Unsqueeze (at, first) q_at = Unsqueeze (at, second) before = GreaterOrEqual (q_at, k_at)
    %s s1 = Add (s0, m) p = Softmax <axis = -1> (s1) %s y = MatMul (w, v) }"""
ADDED = "m = Where (seen, zero, low)"
SAME, CAUSE = f"seen = Identity (flag) {ADDED}", f"seen = And (flag, before) {ADDED}"
MOST = "most = ReduceMax (m, last) c = Equal (most, low)"
LARGEST = f"{MOST} w = Where (c, zero, p)"
LIVE = """less = Where (flag, zero, low) up = Unsqueeze (live, middle)
hide = Where (up, zero, low) m = Add (less, hide)"""
GIVEN = "m = Identity (bias)"
ANY = "n = Cast <to = 6> (seen) any = ReduceMax (n, last) c = Cast <to = 9> (any)"
ALL = "no = Not (seen) n = Cast <to = 6> (no) all = ReduceMin (n, last) c = Cast <to = 9> (all)"
TURNED = """turned = Transpose <perm = [1, 0]> (m) most = ReduceMax <keepdims = 0> (turned, first)
up = Unsqueeze (most, second) c = Equal (up, low) w = Where (c, zero, p)"""
#: the mask, the guard, and the shape of flags; its rows see no key, and no others are 0
GUARDS = {
    "the largest": (SAME, LARGEST, "s, s"),
    "of a batch of one": (SAME, LARGEST, "1, 1, s, s"),
    "of heads": (SAME, LARGEST, "4, s, s"),
    "of all": (SAME, LARGEST, "b, 4, s, s"),
    "of sequences": (SAME, LARGEST, "b, 1, s, s"),
    "of a cause, too": (CAUSE, LARGEST, "b, 1, s, s"),
    "of sequences, too": (f"seen = And (flag, other) {ADDED}", LARGEST, "s, s"),
    "of live keys, too": (LIVE, LARGEST, "s, s"),
    "of columns that were rows": (SAME, TURNED, "s, s"),
    "below 0": (SAME, LARGEST.replace("Equal (most, low)", "Less (most, zero)"), "s, s"),
    "any": (CAUSE, f"{ANY} w = Where (c, p, zero)", "s, s"),
    "not any": (CAUSE, f"{ANY} not = Not (c) w = Where (not, zero, p)", "s, s"),
    "all": (SAME, f"{ALL} w = Where (c, zero, p)", "s, s"),
}
#: a mask of floats, or of one finite number, whose condition hides its rows
HIDING = {
    "floats": (GIVEN, LARGEST, "s, s"),
    "floats of heads": (GIVEN, LARGEST, "4, s, s"),
    "a finite number": (
        *("m = Where (flag, zero, least)", f"seen = Identity (flag) {ANY} w = Where (c, p, zero)"),
        "s, s",
    ),
}
#: the same, where other rows are 0 as well, or rows without a key stay NaN
OTHERS = {
    "the other way round": (SAME, f"{MOST} w = Where (c, p, zero)", "s, s"),
    "the least": (SAME, LARGEST.replace("ReduceMax", "ReduceMin"), "s, s"),
    "never": (SAME, LARGEST.replace("low)", "one)"), "s, s"),
    "always": (SAME, LARGEST.replace("Equal (most, low)", "Less (most, one)"), "s, s"),
    "some hidden": (
        SAME,
        f"{ALL} w = Where (c, zero, p)".replace("ReduceMin", "ReduceMax"),
        "s, s",
    ),
    "the sum": (
        *(SAME, f"{ALL} w = Where (c, zero, p)".replace("Min", "Sum").replace("6", "1"), "s, s"),
    ),
    "without the cause": (
        *(f"{CAUSE} less = Where (flag, zero, low)", LARGEST.replace("(m,", "(less,"), "s, s"),
    ),
    "of another cause": (
        f"{SAME} both = And (flag, before) more = Where (both, zero, low)",
        *(LARGEST.replace("(m,", "(more,"), "s, s"),
    ),
    "of other flags": (
        *(f"{SAME} less = Where (other, zero, low)", LARGEST.replace("(m,", "(less,"), "s, s"),
    ),
    "of columns": (SAME, LARGEST.replace("last", "rows"), "s, s"),
    "of columns of floats": (GIVEN, LARGEST.replace("last", "rows"), "s, s"),
    "of a column more": (
        *(
            f"{SAME} at_f = Cast <to = 1> (q_at) none = Mul (at_f, zero)",
            f"""
        wide = Concat <axis = 1> (m, none) {LARGEST.replace("(m,", "(wide,")}""",
            "s, s",
        ),
    ),
    "of a column less": (
        SAME,
        f"""part = Slice (m, first, last, second) {LARGEST.replace("(m,", "(part,")}""",
        "s, s",
    ),
    "without the live keys": (
        LIVE,
        *(LARGEST.replace("(m,", "(less,"), "s, s"),
    ),
    "floats of live keys": (LIVE.replace("less,", "bias,"), LARGEST, "s, s"),
    "floats without the live keys": (
        LIVE.replace("(less,", "(bias,"),
        *(LARGEST.replace("(m,", "(bias,"), "s, s"),
    ),
    "beside a bias of sequences": (
        *(
            SAME,
            "tame = Tanh (terms) s2 = Add (s1, tame) p2 = Softmax (s2) w = Identity (p2)",
        ),
        "4, s, s",
    ),
    "between two shapes": (
        GIVEN,
        f"{MOST} p5 = Unsqueeze (p, second) w5 = Where (c, zero, p5) w = Squeeze (w5, second)",
        "s, s",
    ),
    "1 for 0": (SAME, f"{MOST} w = Where (c, one, p)", "s, s"),
    "twice": (SAME, f"{MOST} w0 = Where (c, zero, p) w = Where (c, zero, w0)", "s, s"),
}
BESIDE = "p2 = Softmax (s2) w = Identity (p2)"
#: what is added behind a mask of each head: a head of all sequences, or of each
ADDED_BEHIND = {
    "in turn": "most = ReduceMax (bias, first) by_head = Tanh (most) s2 = Add (s1, by_head)",
    "in turn and of each": """most = ReduceMax (bias, first) by_head = Tanh (most)
    s3 = Add (s1, by_head) top = ReduceMax (bias, rows) of_keys = Tanh (top)
    s2 = Add (of_keys, s3)""",
    "of each and in turn": """top = ReduceMax (bias, last) of_rows = Tanh (top)
    s3 = Add (of_rows, s1) most = ReduceMax (top, first) by_row = Tanh (most)
    s2 = Add (by_row, s3)""",
}
SIZES = ((1, 0), (0, 3), (1, 1), (2, 2), (3, 31), (2, 33), (2, 65))


def model(mask: str, guard: str, shape: str) -> onnx.ModelProto:
    """Attention with a mask and a guard."""
    proto = onnx.parser.parse_model(HEAD % (shape, shape, mask, guard))
    for value in proto.graph.initializer:
        if value.name == "low":
            value.CopyFrom(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "low"))
    return proto


def feeds(proto: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of all sizes: rows with some keys, with all, and with none."""
    rng = np.random.default_rng(5)
    dims = proto.graph.input[3].type.tensor_type.shape.dim
    for b, s in SIZES:
        for share in (0.0, 0.1, 1.0):
            shape = [{"b": b, "s": s}.get(d.dim_param, d.dim_value) for d in dims]
            feed: dict[str, np.ndarray] = {
                x: rng.normal(0, 1, (b, 4, s, 8)).astype(np.float32) for x in "qkv"
            }
            feed["flag"] = np.asarray(rng.random(shape) < share)
            feed["other"] = np.asarray(rng.random((b, 1, s, s)) < 0.5)
            bias = rng.normal(0, 1, shape).astype(np.float32)
            feed["terms"] = rng.normal(0, 1, (b, 1, s, s)).astype(np.float32)
            feed["live"] = np.asarray(rng.random((b, s)) < 0.5)
            feed["bias"] = np.where(feed["flag"], bias, np.float32(-np.inf))
            yield feed


def check(proto: onnx.ModelProto) -> Lowered:
    """Lower, and compare with ONNX Runtime."""
    return lower_and_compare(proto, feeds(proto))


def plan_of(lowered: Lowered) -> dict[str, str]:
    """Of the only attention."""
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    return plan


@pytest.mark.parametrize("case", GUARDS)
def test_rows_that_see_no_key_are_0(case: str) -> None:
    lowered = check(model(*GUARDS[case]))
    plan = plan_of(lowered)
    assert (plan["pairs"], plan["no_pairs"], plan["bias"]) == ("1", "zero", "0")
    # Neither the condition nor what it is made of is computed.
    left = {node.op_type for node in lowered.model.graph}
    assert not left & {"Softmax", "Where", "ReduceMax", "ReduceMin"}


@pytest.mark.parametrize("case", OTHERS)
def test_conditions_that_say_something_else(case: str) -> None:
    lowered = check(model(*OTHERS[case]))
    assert all(p["no_pairs"] == "nan" for p in plans(lowered) if p["op"] == "attention")


@pytest.mark.parametrize("case", ADDED_BEHIND)
def test_heads_are_sequences(case: str) -> None:
    """What is added by head is read in turn, or repeated beside what each sequence has."""
    lowered = check(model(SAME, f"{ADDED_BEHIND[case]} {BESIDE}", "b, 4, s, s"))
    plan = plan_of(lowered)
    assert (plan["heads"], plan["pairs"], plan["bias"]) == ("1", "1", "1")
    repeats = [node for node in lowered.model.graph if node.op_type == "Expand"]
    assert len(repeats) == (case != "in turn")


@pytest.mark.parametrize("case", HIDING)
def test_rows_are_hidden_by_the_condition(case: str) -> None:
    """Of a float mask not every number is known to hide a key or to keep one."""
    plan = plan_of(check(model(*HIDING[case])))
    assert (plan["pairs"], plan["no_pairs"], plan["bias"]) == ("1", "zero", "1")
