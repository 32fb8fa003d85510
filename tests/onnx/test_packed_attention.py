"""What attention nodes read, what they say, and what is left beside them; in smallest graphs."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pitc.ir import target as targets
from pitc.ir.refusal import Code
from tests.lower_support import plans
from tests.onnx.test_padding import check

HEAD = """<ir_version: 9, opset_import: ["": 17]> g (float[b, s, 8] x, bool[b, s] mask%(more)s)
=> (float[b, s, 8] y) <int64[4] split = {0, 0, 4, 2}, int64[3] join = {0, 0, 8},
int64[1] first = {1}, int64[2] middle = {1, 2}, int64[1] two = {2}, float zero = {0},
float low = {-1e30}, float half = {0.5}, float third = {0.25}, float tiny = {1e-30}> {
    flat = Unsqueeze (mask, first) wide = Unsqueeze (mask, middle)
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)
    %(body)s y = MatMul (rows, wo) }"""
SPLIT = """q4 = Reshape (q, split) queries = Transpose <perm = [0, 2, 1, 3]> (q4)
    k4 = Reshape (k, split) keys = Transpose <perm = [0, 2, 3, 1]> (k4)
    v4 = Reshape (v, split) values = Transpose <perm = [0, 2, 1, 3]> (v4)"""
HIDE = "hidden = Where (wide, zero, low) s1 = Add (s0, hidden) p = Softmax <axis = -1> (s1)"
JOIN = """c = MatMul (%s, values) back = Transpose <perm = [0, 2, 1, 3]> (c)
    rows = Reshape (back, join)"""
REPLACE = "s1 = Where (wide, s9, least) p = Softmax <axis = -1> (s1)"
QUERIES = """q4 = Reshape (q, split) queries = Transpose <perm = [0, 2, 1, 3]> (q4)
    turned = Transpose <perm = [0, 1, 3, 2]> (cached)"""
BY_CACHE = JOIN.replace("values", "cached") % "p"
ONE = """keys = Transpose <perm = [0, 2, 1]> (k) s0 = MatMul (q, keys)
    hidden = Where (flat, zero, low) s1 = Add (s0, hidden) p = Softmax <axis = -1> (s1)
    rows = MatMul (p, v)"""
MORE = {  # inputs that some bodies read
    "extra": "float[b, 1, s, s] extra",
    "kept": "bool[b, 1, s, s] kept",
    "cached": "float[b, 4, s, 2] cached",
    "number": "float[1, 1, 1] number",
}
TO_HEADS = ["Reshape"] * 3  # of queries, keys and values
SIZES = {"b": 3, "s": 4}
HEADS = {"heads": "4", "d": "2", "dv": "2"}


def model(body: str) -> onnx.ModelProto:
    more = "".join(f", {text}" for name, text in MORE.items() if name in body)
    proto = onnx.parser.parse_model(HEAD % {"body": body, "more": more})
    rng = np.random.default_rng(3)
    for name in ("wq", "wk", "wv", "wo"):
        x = rng.normal(0, 0.5, (8, 8)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(x, name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(-np.inf, np.float32), "least"))
    return proto


def scaled(*steps: str) -> str:
    """Steps on queries, `a` to `b`, and on keys, `c` to `d`."""
    return f"{SPLIT} {' '.join(steps)} s0 = MatMul (b, d) {HIDE} {JOIN % 'p'}"


AS_IT_IS = "d = Identity (keys)"
# bodies, fields of the node, and the ordinary nodes that are left
CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "heads": (
        f"{SPLIT} s0 = MatMul (queries, keys) {HIDE} {JOIN % 'p'}",
        HEADS | {"scale": "0x1.0000000000000p+0", "nan_to_zero": "0"},
        [*TO_HEADS, "Reshape"],
    ),
    "one head": (ONE, {"heads": "1", "d": "8", "dv": "8"}, ["Reshape"]),
    "queries by a number": (
        scaled("b = Mul (queries, half)", AS_IT_IS),
        HEADS | {"scale": "0x1.0000000000000p-1"},
        [*TO_HEADS, "Reshape"],
    ),
    "a number by queries": (
        scaled("b = Mul (half, queries)", AS_IT_IS),
        HEADS | {"scale": "0x1.0000000000000p-1"},
        [*TO_HEADS, "Reshape"],
    ),
    "queries and keys over numbers": (
        scaled("b = Div (queries, half)", "d = Div (keys, third)"),
        HEADS | {"scale": "0x1.0000000000000p+3"},
        [*TO_HEADS, "Reshape"],
    ),
    "queries by a number that is no factor": (
        scaled("b = Mul (queries, tiny)", "d = Mul (half, keys)"),
        HEADS | {"scale": "0x1.0000000000000p-1"},
        [*TO_HEADS, "Mul", "Reshape"],
    ),
    "a number that is no factor by queries": (
        scaled("b = Mul (tiny, queries)", "d = Mul (keys, half)"),
        HEADS | {"scale": "0x1.0000000000000p-1"},
        [*TO_HEADS, "Mul", "Reshape"],
    ),
    "an added bias": (
        f"{SPLIT} s0 = MatMul (queries, keys) s9 = Add (s0, extra) {REPLACE} {JOIN % 'p'}",
        HEADS | {"bias": "1"},
        [*TO_HEADS, "Reshape"],
    ),
    "kept scores": (
        f"{SPLIT} s0 = MatMul (queries, keys) s9 = Where (kept, s0, least) {REPLACE} {JOIN % 'p'}",
        HEADS | {"bias": "1"},
        [*TO_HEADS, "Where", "Reshape"],
    ),
    "a cache": (
        f"{QUERIES} s0 = MatMul (queries, turned) {HIDE} {BY_CACHE}",
        HEADS | {"bias": "0", "whole": "1"},
        ["Reshape", "Reshape"],
    ),
    "a cache and a bias": (
        f"{QUERIES} s0 = MatMul (queries, turned) s9 = Add (s0, extra) {REPLACE} {BY_CACHE}",
        HEADS | {"bias": "1", "whole": "1"},
        ["Reshape", "Reshape"],
    ),
    "a guard": (
        f"""{SPLIT} s0 = MatMul (queries, keys) {HIDE} odd = IsNaN (p)
        guarded = Where (odd, zero, p) {JOIN % "guarded"}""",
        HEADS | {"nan_to_zero": "1"},
        [*TO_HEADS, "Reshape"],
    ),
}


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    eager = replace(targets.CPU, flops_per_byte=0, least_extent=1, hides_pairs="")
    monkeypatch.setattr(targets, "CPU", eager)
    with np.errstate(invalid="ignore"):  # of a softmax of no key
        yield


@pytest.mark.parametrize("case", CASES)
def test_attention(case: str) -> None:
    body, fields, left = CASES[case]
    lowered, _ = check(model(body), SIZES)
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    assert {name: plan[name] for name in fields} == fields
    assert "attention" in {r.kernel.operation for r in lowered.report.nodes if r.kernel}
    assert sorted(n.op_type for n in lowered.model.graph if n.op_type != "EPContext") == sorted(
        left
    )


def test_scores_of_three_dimensions_have_a_bias() -> None:
    body = ONE.replace(
        "s1 = Add (s0, hidden)", "s9 = Add (s0, number) s1 = Where (flat, s9, least)"
    )
    lowered, _ = check(model(body.replace("hidden = Where (flat, zero, low)", "")), SIZES)
    (plan,) = [p for p in plans(lowered) if p["op"] == "attention"]
    assert (plan["bias"], plan["heads"]) == ("1", "1")


def test_values_that_may_be_infinite_stay() -> None:
    """A row without keys is 0 by the guard, where 0 times infinity is not."""
    live = (
        "found = Reciprocal (v) rows_of = Unsqueeze (mask, two) v9 = Where (rows_of, found, zero)"
    )
    split = SPLIT.replace("Reshape (v, split)", "Reshape (v9, split)")
    body = f"""{live} {split} s9 = MatMul (queries, keys) {REPLACE} odd = IsNaN (p)
        guarded = Where (odd, zero, p) {JOIN % "guarded"}"""
    lowered, _ = check(model(body), SIZES)
    (record,) = (r for r in lowered.report.nodes if r.node == "c")
    assert record.refusal is not None
    assert (record.refusal.code, record.refusal.value) == (Code.NO_FACT, "values")
    assert "0 times a value that may be infinite" in record.refusal.reason


def test_values_of_no_number_stay() -> None:
    body = "none = MatMul (x, to_none) empty = MatMul (p, none) rows = MatMul (empty, from_none)"
    made = model(ONE.replace("rows = MatMul (p, v)", body))
    for name, shape in (("to_none", (8, 0)), ("from_none", (0, 8))):
        made.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    lowered, _ = check(made, SIZES)
    (record,) = (r for r in lowered.report.nodes if r.node == "empty")
    assert record.refusal is not None and record.refusal.also is not None
    assert record.refusal.also.code is Code.NO_LOWERING
    assert "head size 0 is not in" in record.refusal.also.reason
