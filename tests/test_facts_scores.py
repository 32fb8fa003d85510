"""Which values are terms of a softmax, and which sums of products among them are raw scores."""

import numpy as np
import onnx
import pytest

from tests.fact_check import analysed

# what a model computes from rows x and a mask; its terms; which of them are raw scores
SUMS: dict[str, tuple[str, str, str]] = {
    "the only one": ("s = MatMul (x, w) p = Softmax (s)", "s", "s"),
    "of two run-time values": (
        "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul (x, t) m = MatMul (mask, square)"
        " s = Add (a, m) p = Softmax (s)",
        "a m s",
        "a",
    ),
    "a mask of itself": (
        "t = Transpose <perm = [0, 2, 1]> (x) a = MatMul (x, t) u = Transpose <perm = [0, 2, 1]>"
        " (mask) m = MatMul (mask, u) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "a m",
    ),
    "both by weights": (
        "a = MatMul (x, w) m = MatMul (mask, square) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of a normalised row": (
        "n = Softmax (x) a = MatMul (n, w) m = MatMul (mask, square) s = Add (a, m)"
        " p = Softmax (s)",
        "x a m s",
        "a",
    ),
    "of a product of two": (
        "n = Mul (x, x) y = MatMul (n, v) t = Transpose <perm = [0, 2, 1]> (y) z = MatMul (y, t)"
        " a = MatMul (z, square) m = MatMul (mask, square) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "a",
    ),
    "behind steps": (
        "a = MatMul (x, w) b = Mul (a, half) m = MatMul (mask, square) c = Relu (m)"
        " d = Reshape (c, same) s = Add (b, d) p = Softmax (s)",
        "a b half m c d s",
        "",
    ),
    "in two softmaxes": (
        "a = MatMul (x, w) b = MatMul (mask, square) p = Softmax (a) o = Softmax (b)",
        "a b",
        "a b",
    ),
    "in two softmaxes, one shared": (
        "a = MatMul (x, w) b = MatMul (mask, square) s = Add (a, b) p = Softmax (s)"
        " o = Softmax (a)",
        "a b s",
        "",
    ),
    "cut off by a bounded step": (
        "a = MatMul (x, w) b = Tanh (a) m = MatMul (mask, square) s = Add (b, m) p = Softmax (s)",
        "b m s",
        "m",
    ),
    "beside a value of which nothing is known": (
        "r = RandomNormalLike (mask) a = MatMul (x, w) s = Add (a, r) p = Softmax (s)",
        "r a s",
        "a",
    ),
    "with a bias of its own": (
        "f = Reshape (mask, flat) s = Gemm (f, square, row) p = Softmax (s)",
        "s",
        "s",
    ),
    "with the other one as its bias": (
        "f = Reshape (mask, flat) m = MatMul (f, square) s = Gemm (f, square, m) p = Softmax (s)",
        "s",
        "s",
    ),
    "of a choice": (
        "keep = Greater (mask, half) a = MatMul (x, w) s = Where (keep, a, mask) p = Softmax (s)",
        "a mask s",
        "a",
    ),
    "one of several results": (
        "a = MatMul (x, w) s, e = Split <axis = 1, num_outputs = 2> (a) p = Softmax (s)",
        "a s",
        "a",
    ),
    "the second of several results": (
        "a = MatMul (x, w) e, s = Split <axis = 1, num_outputs = 2> (a) p = Softmax (s)",
        "a s",
        "a",
    ),
    "clipped from above": (
        "a = MatMul (x, w) s = Clip (a, , half) p = Softmax (s)",
        "a half s",
        "a",
    ),
    "of numbers that are no input": (
        "a = MatMul (square, square) m = MatMul (mask, square) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of three": (
        "a = MatMul (x, w) m = MatMul (mask, square) n = MatMul (mask, square) b = Add (a, m)"
        " s = Add (b, n) p = Softmax (s)",
        "a m n b s",
        "",
    ),
    "one with a bias, both by weights": (
        "f = Reshape (mask, flat) e = Tanh (f) g = Gemm (f, square, e) m = MatMul (f, square)"
        " s = Add (g, m) p = Softmax (s)",
        "g m s",
        "",
    ),
    "of rows of a table": (
        "e = Gather (table, ids) a = MatMul (e, w) m = MatMul (mask, square) s = Add (a, m)"
        " p = Softmax (s)",
        "a m s",
        "a",
    ),
    "of rows of the mask": (
        "e = Gather <axis = 1> (mask, some) a = MatMul (e, square) m = MatMul (mask, square)"
        " s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of integers, and of what is no number": (
        "c = Cast <to = 1> (ids) u = Unsqueeze (c, one) a = MatMul (u, square) t = Cast <to = 1>"
        " (flag) b = Mul (t, square) s = Add (a, b) p = Softmax (s)",
        "a t square b s",
        "a",
    ),
    "both of integers": (
        "c = Cast <to = 1> (ids) u = Unsqueeze (c, one) a = MatMul (u, square)"
        " m = MatMul (mask, square) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "both of bools": (
        "c = Cast <to = 1> (flag) a = MatMul (c, square) m = MatMul (mask, square)"
        " s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of sizes": (
        "z = Shape (mask) c = Cast <to = 1> (z) u = MatMul (c, sizes) m = MatMul (mask, square)"
        " s = Add (u, m) p = Softmax (s)",
        "u m s",
        "",
    ),
    "of a value of which nothing is known": (
        "r = RandomNormalLike (mask) a = MatMul (r, square) m = MatMul (mask, square) s = Add (a, m)"
        " p = Softmax (s)",
        "a m s",
        "",
    ),
    "of products without a sum": (
        'm = MatMul (mask, square) s = Einsum <equation = "abc,abc->abc"> (mask, m)'
        " p = Softmax (s)",
        "s",
        "",
    ),
    "of what is no product": ("s = ReduceSum (mask, one) p = Softmax (s)", "s", ""),
    "the largest ones": (
        "a = MatMul (x, w) s, i = TopK (a, two) p = Softmax (s)",
        "s",
        "",
    ),
    "a sum behind a softmax, beside another": (
        "a = MatMul (x, w) o = Softmax (a) b = MatMul (a, square) m = MatMul (mask, square)"
        " s = Add (b, m) p = Softmax (s)",
        "a b m s",
        "a",
    ),
    "far from the softmax": (
        "a = MatMul (x, w) s = Softmax (a) p = MatMul (s, square)",
        "a",
        "a",
    ),
}


@pytest.mark.parametrize("case", SUMS)
def test_which_sums_are_raw_scores(case: str) -> None:
    body, terms, scores = SUMS[case]
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 4, 8] x, float[n, 4, 4] mask, int64[n, 4] ids, bool[n, 4, 4] flag) => (float p)
        <float half = {{0.5}}, int64[2] flat = {{-1, 4}}, float[4] row = {{1, 2, 3, 4}},
         int64[1] one = {{1}}, int64[1] two = {{2}}, int64[4] some = {{3, 0, 1, 1}},
         float[3, 1] sizes = {{1, 1, 1}},
         int64[3] same = {{0, 4, 4}}>
        {{ {body} }}""")
    shapes = {"w": (8, 4), "v": (8, 8), "square": (4, 4), "table": (9, 8)}
    for k, (name, shape) in enumerate(shapes.items()):
        numbers = np.random.default_rng(k).normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    for name in ("p", *(["o"] if " o = " in body else [])):
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    del proto.graph.output[0]
    graph, _ = analysed(proto)
    assert {n for n, value in graph.values.items() if value.term} == set(terms.split())
    assert {n for n, value in graph.values.items() if value.score} == set(scores.split())
