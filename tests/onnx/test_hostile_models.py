"""Models that readers wrote to find what is claimed and not true."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.random_check import check_model, lowering_everything

NEWER = {  # operator sets
    "windows that leave out places": 22,
    "past keys that nobody reads on": 23,
    "scores behind past keys": 23,
}
HEAD = """<ir_version: 10, opset_import: ["": %d, "com.microsoft": 1]>
hostile (float[b, s, 4] x, int64[b, s] mask"""
START = """<int64[1] last = {-1}, int64[1] one_axis = {1}, int64[0] none = {}, float zero = {0},
int64 n0 = {0}, int64 n1 = {1}, int64 n2 = {2}, int64 n3 = {3}, int64[1] third = {3},
int64[1] far = {9223372036854775807},
int64[1] two = {2}, float one = {1}, int64[2] to_rows = {0, -1}, bool yes = {1}, float six = {6},
int64[2] columns4 = {-1, 4}, int64[1] minus_one = {-1}> {
    live = Cast <to = 1> (mask)
    wide = Unsqueeze (live, last)
    h = MatMul (x, w)
    y = Mul (h, wide)
    sizes = Shape (x)
    count = Gather (sizes, n1)
    places = Range (n0, count, n1)
    %s
}"""
ONE_OR_OTHER = """ <
    then_branch = t () => (float[b, s, 4] p1) { p1 = Neg (y) },
    else_branch = e () => (float[b, s, 4] p2) { p2 = Identity (y) }>"""
# what a model gets beside x and mask, and gives; its nodes
MODELS: dict[str, tuple[str, str, str]] = {
    "flags say how many slices there are": (
        "",
        "int64[3] n, float[b, s, 4] y",
        """top = ReduceMax <keepdims = 0, axes = [0, 2]> (h) flags = Greater (top, zero)
        chosen = Compress <axis = 1> (h, flags) n = Shape (chosen)""",
    ),
    "flags say how many elements there are": (
        "",
        "int64[1] n, float[b, s, 4] y",
        """top = ReduceMax <keepdims = 0, axes = [0, 2]> (h) flags = Greater (top, zero)
        chosen = Compress (top, flags) n = Shape (chosen)""",
    ),
    "a condition says how many places there are": (
        "",
        "int64[3] n, float[b, s, 4] y",
        """top = ReduceMax <keepdims = 0> (h) flag = Greater (top, zero)
        chosen = If (flag) <
            then_branch = t () => (float[b, s, 4] p) { p = Identity (h) },
            else_branch = e () => (float[b, u, 4] q) { q = Concat <axis = 1> (h, h) }>
        n = Shape (chosen)""",
    ),
    "pools of nothing but -inf": (
        "",
        "bool[b, s, p] z, bool[b, s, q] z2, float[b, s, 4] y",
        """wide_flag = Cast <to = 9> (wide) minus = Log (zero) hidden = Where (wide_flag, h, minus)
        pooled = GlobalMaxPool (hidden) z = IsInf (pooled)
        pooled2 = MaxPool <kernel_shape = [2]> (hidden) z2 = IsInf (pooled2)""",
    ),
    "no axes are all of one place": (
        "",
        "float[p, q, r] z",
        "k = Squeeze (y, none) z = MatMul (k, w)",
    ),
    "a scale of one element": (
        ", float[k, 4] sx, int64[c] columns, float[b, c] t",
        "float[b, c] z, float[b, s, 4] y",
        """ones = MatMul (sx, w) flat = ReduceSum <keepdims = 0> (ones, last) scale = Abs (flat)
        q = QuantizeLinear <axis = 1> (t, scale) d = Cast <to = 1> (q)
        columns_live = Cast <to = 1> (columns) z = Mul (d, columns_live)""",
    ),
    "a zero point of one element": (
        ", float[k, 4] sx, int64[c] columns, uint8[b, 3] a8, uint8[3, c] b8, uint8 a_zero",
        "float[b, c] z, float[b, s, 4] y",
        """ones = MatMul (sx, w) flat = ReduceSum <keepdims = 0> (ones, last) size = Abs (flat)
        zeros = Cast <to = 2> (size) q = MatMulInteger (a8, b8, a_zero, zeros)
        d = Cast <to = 1> (q) columns_live = Cast <to = 1> (columns) z = Mul (d, columns_live)""",
    ),
    "backwards to the largest number": (
        "",
        "float[b, s, q] z",
        "t = Slice (h, third, far, two, last) u = Relu (t) z = Mul (u, wide)",
    ),
    "a choice between two zeros": (
        ", float[b, s, 4] t",
        "float[b, s, 4] z",
        """flag = Greater (h, zero) a = Mul (t, wide) b2 = Neg (a) v = Where (flag, a, b2)
        r = Reciprocal (v) z = Atan (r)""",
    ),
    "places, all of them none": (
        "",
        "float[o] z",
        """r = Range (n1, n0, n2) c = Concat <axis = 0> (r, r)
        t = ReduceMax <keepdims = 0, axes = [0, 2]> (h) z = Gather (t, c)""",
    ),
    "live places of a mask, none of them, and others": (
        ", int64[s] kept, int64[k] others",
        "float[b, o, 4] z",
        """nz = NonZero (kept) p = Reshape (nz, last) start = Reshape (n0, one_axis)
        e = Slice (p, start, start) q = Concat <axis = 0> (e, others) r = Relu (h)
        z = Gather <axis = 1> (r, q)""",
    ),
    "a slice of nothing": (
        ", int64[2, 3] m8, float[2, 3] pair",
        "float z",
        """flag = Cast <to = 9> (m8) k = Where (flag, pair, zero)
        t = Slice (k, third, far, one_axis) z = ReduceSum <keepdims = 0> (t)""",
    ),
    "an exit that is positive as it is made, and its reciprocal": (
        "",
        "float[b] z",
        """a = Abs (h) above = Add (a, one) v = Reshape (above, to_rows) r = Reciprocal (v)
        shape = Shape (above) all = Expand (wide, shape) kept = Reshape (all, to_rows)
        p = Mul (r, kept) z = ReduceSum <keepdims = 0> (p, one_axis)""",
    ),
    "a flag that is always set, and a reciprocal": (
        "",
        "float[b] z, float[b, s, 4] y",
        """flag = Greater (h, zero) always = Or (flag, yes) c = Cast <to = 1> (always)
        five = Mul (c, one) v = Reshape (five, to_rows) r = Reciprocal (v)
        shape = Shape (h) all = Expand (wide, shape) kept = Reshape (all, to_rows)
        p = Mul (r, kept) z = ReduceSum <keepdims = 0> (p, one_axis)""",
    ),
    "rows that are flattened, given up and read": (
        "",
        "float[b1, s1, 4] hidden, float[b, 4] pooled",
        """c = Clip (x, zero, six) rows = Reshape (c, columns4) made = MatMul (rows, w)
        turned = Reshape (made, sizes) hidden = Add (turned, x)
        pooled = ReduceMean <axes = [1], keepdims = 0> (hidden)""",
    ),
    "windows that leave out places": (
        ", float[1, 1, 6] line, int64[6] m6, float[2, 4] two_rows",
        "float[2, 4] z",
        """m6f = Cast <to = 1> (m6) k = Mul (line, m6f)
        p = AveragePool <kernel_shape = [1], strides = [3], auto_pad = "SAME_UPPER"> (k)
        column = Reshape (p, minus_one) wide2 = Unsqueeze (column, last) q = MatMul (two_rows, w)
        z = Mul (q, wide2)""",
    ),
    "parts behind windows that ONNX counts otherwise": (
        ", float[1, 1, 6] line, int64[6] m6, float[2] pair_of",
        "float[1, 1, p] z",
        """m6f = Cast <to = 1> (m6) k = Mul (line, m6f)
        p = MaxPool <kernel_shape = [2], strides = [3], ceil_mode = 1> (k)
        z = com.microsoft.BiasGelu (p, pair_of)""",
    ),
    "past keys that nobody reads on": (
        ", float[b, 2, s, 4] q, float[b, 2, p, 4] past",
        "float[b, s, 4] y, float[b, 2, s, 4] z",
        "z, keys, values = Attention (q, q, q, , past, past)",
    ),
    "scores behind past keys": (
        ", float[b, 2, s, 4] q, float[b, 2, p, 4] past",
        "float[b, s, 4] z, float[b, 2, u, 4] keys, float[b, 2, v, 4] values",
        """a, keys, values, scores = Attention <qk_matmul_output_mode = 0> (q, q, q, , past, past)
        n = Size (scores) empty = Equal (n, n0) z = If (empty)"""
        + ONE_OR_OTHER,
    ),
    "tokens of no segment": (
        ", int32[b, s] ids, float[9, 4] words, float[64, 4] table, float[2, 4] kinds, float[4] row",
        "float[b, s, 4] z",
        """e, n = com.microsoft.EmbedLayerNormalization (ids, , words, table, kinds, row, row)
        k = MatMul (e, w) z = Mul (k, wide)""",
    ),
    "a rank that the caller may change": (
        ", int64[r] shape",
        "float[b, s, 4] z",
        """turned = Reshape (x, shape) sizes2 = Shape (turned) n = Size (sizes2)
        flat = Equal (n, n2) z = If (flat)"""
        + ONE_OR_OTHER,
    ),
    "a flag of 2": (
        "",
        "float[b, s, 4] z",
        """r = ReduceSum <keepdims = 2> (x, one_axis) sizes2 = Shape (r) n = Size (sizes2)
        flat = Equal (n, n2) z = If (flat)"""
        + ONE_OR_OTHER,
    ),
    "an output without a shape that is read on": (
        ", float[4, 4] flags",
        "float[] r, float[] z",
        "masked = Mul (w, flags) made = MatMul (x, masked) r = Relu (made) z = MatMul (r, w)",
    ),
    "positions": (
        "",
        "float[b, s] z",
        """a = Less (places, n1) b2 = Less (places, n2) c = Or (a, b2)
        z = Where (c, live, zero)""",
    ),
    "distances": (
        "",
        "float[b, s] z",
        """d = Sub (places, n2) m = Abs (d) a = Less (m, n1) b2 = Less (m, n2) c = Or (a, b2)
        z = Where (c, live, zero)""",
    ),
    "lengths": (
        ", int32[b] lengths",
        "float[b] z",
        """l = Cast <to = 7> (lengths) a = Less (n3, l) b2 = Less (n2, l) c = Or (a, b2)
        t = ReduceMax <keepdims = 0, axes = [1]> (live) z = Where (c, t, zero)""",
    ),
}


def _feed(inputs: str, b: int, s: int, k: int) -> dict[str, Any]:
    rng = np.random.default_rng(b + s)
    made: dict[str, Any] = {
        "x": rng.random((b, s, 4), np.float32) + (1 if s > 3 else -0.5),
        "mask": rng.integers(0, 2, (b, s)),
        "sx": rng.random((k, 4), np.float32) + 1,
        "columns": np.array([0, 1, 0, 1, 1]),
        "t": rng.standard_normal((b, s, 4) if "s, 4] t" in inputs else (b, 5), np.float32),
        "two_rows": rng.random((2, 4), np.float32),
        "a8": rng.integers(0, 9, (b, 3), np.uint8),
        "b8": rng.integers(0, 9, (3, 5), np.uint8),
        "a_zero": np.array(3, np.uint8),
        "m8": np.array([[1, 0, 1], [0, 1, 1]]),
        "line": rng.random((1, 1, 6), np.float32) + 1,
        "m6": np.array([0, 1, 1, 0, 1, 0]),
        "pair_of": np.array([1, 2], np.float32),
        "pair": np.ones((2, 3), np.float32),
        "kept": np.arange(s) % 2,
        "others": np.arange(s)[::-1][:3],
        "q": rng.standard_normal((b, 2, s, 4), np.float32),
        "past": rng.standard_normal((b, 2, k, 4), np.float32),
        "ids": rng.integers(0, 9, (b, s), np.int32),
        "words": rng.standard_normal((9, 4), np.float32),
        "table": rng.standard_normal((64, 4), np.float32),
        "kinds": rng.standard_normal((2, 4), np.float32),
        "row": np.ones(4, np.float32),
        "shape": np.array([b, s, 4]),
        "flags": rng.integers(0, 2, (4, 4)).astype(np.float32),
        "lengths": np.resize(np.array([0, 2, 3, 4, 9], np.int32), b),
    }
    named = {"x", "mask", *inputs.replace(",", " ").split()}
    return {name: x for name, x in made.items() if name in named}


@pytest.mark.parametrize("title", MODELS)
def test_it_holds(title: str) -> None:
    inputs, outputs, body = MODELS[title]
    head = HEAD % NEWER.get(title, 13)
    model = onnx.parser.parse_model(f"{head}{inputs}) => ({outputs}) {START % body}")
    weight = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    if "shape" in inputs:
        fallback = np.array([-1, 4])
        model.graph.initializer.append(onnx.numpy_helper.from_array(fallback, "shape"))
    feeds = [_feed(inputs, *sizes) for sizes in ((2, 5, 1), (1, 3, 5), (5, 1, 1))]
    with lowering_everything():
        for seed in range(6):  # the audit's noise, and which feed it takes
            turned = [*feeds[seed % 3 :], *feeds[: seed % 3]]
            found = check_model(model, turned, seed)
            assert found.failures == []
            assert found.counts["fill checks"] > 0
