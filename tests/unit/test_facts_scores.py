"""Which values are terms of a softmax, and which sums of products among them are raw scores."""

import pytest

from tests.fact_texts import analysed_text, fills_of

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
        "c = Cast <to = 1> (ids) u = Unsqueeze (c, axis) a = MatMul (u, square) t = Cast <to = 1>"
        " (flag) b = Mul (t, square) s = Add (a, b) p = Softmax (s)",
        "a t square b s",
        "a",
    ),
    "both of integers": (
        "c = Cast <to = 1> (ids) u = Unsqueeze (c, axis) a = MatMul (u, square)"
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
    "by weights that a node makes": (
        "t = Transpose <perm = [1, 0]> (square) a = MatMul (x, w) m = MatMul (mask, t)"
        " s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "by sizes": (
        "u = Unsqueeze (mask, axis) z = Shape (u) c = Cast <to = 1> (z) e = Unsqueeze (c, axis)"
        " a = MatMul (x, w) m = MatMul (mask, e) s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of a sum of masks": (
        "b = Add (mask, other) a = MatMul (x, w) m = MatMul (b, square) s = Add (a, m)"
        " p = Softmax (s)",
        "a m s",
        "",
    ),
    "before a step that no function says": (
        "a = MatMul (x, w) s = BatchNormalization (a, row, row, row, row) p = Softmax (s)",
        "a row s",
        "a",
    ),
    "of sizes": (
        "z = Shape (mask) c = Cast <to = 1> (z) u = MatMul (c, sizes) m = MatMul (mask, square)"
        " s = Add (u, m) p = Softmax (s)",
        "u m s",
        "",
    ),
    "of a value of which nothing is known": (
        "r = RandomNormalLike (mask) a = MatMul (r, square) m = MatMul (mask, square)"
        " s = Add (a, m) p = Softmax (s)",
        "a m s",
        "",
    ),
    "of products without a sum": (
        'm = MatMul (mask, square) s = Einsum <equation = "abc,abc->abc"> (mask, m)'
        " p = Softmax (s)",
        "s",
        "",
    ),
    "of what is no product": ("s = ReduceSum (mask, axis) p = Softmax (s)", "s", ""),
    "the largest ones": (
        "a = MatMul (x, w) s, i = TopK (a, most) p = Softmax (s)",
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


SMALL, LOW = "within 1e3", "<= -1e4"
MASK, OTHER, B = "mask[d0, d1, d2]", "other[d0, d1, d2]", "b[d0, d1, d2]"
# what is known of terms: of a, which is x @ w, that it is a score
KNOWN: dict[str, dict[str, list[str]]] = {
    "s = Add (a, mask) p = Softmax (s)": {
        "a": ["SCORE where everywhere"],
        "mask": [f"NEG where {MASK} {LOW}", f"TAME where {MASK} {SMALL}"],
        "s": [
            f"-inf..-9000 (assumed) where {MASK} {LOW}",
            f"-2000..2000 (assumed) where {MASK} {SMALL}",
        ],
    },
    # nothing is added on the way to a softmax, so nothing is tested
    "s = Add (a, mask) p = Tanh (s)": {},
    "b = Add (mask, other) s = Add (a, b) p = Softmax (s)": {
        "other": [f"NEG where {OTHER} {LOW}", f"TAME where {OTHER} {SMALL}"],
        "b": [
            f"-inf..-20000 where {MASK} {LOW} and {OTHER} {LOW}",
            f"-inf..-9000 where {MASK} {LOW} and {OTHER} {SMALL}",
            f"-inf..-9000 where {MASK} {SMALL} and {OTHER} {LOW}",
            f"-2000..2000 where {MASK} {SMALL} and {OTHER} {SMALL}",
        ],
    },
    # a number is added on the way: the result is tested
    "b = Add (mask, half) s = Add (a, b) p = Softmax (s)": {
        "mask": [f"NEG where {MASK} {LOW}"],
        "half": ["0.5 where everywhere"],
        "b": [f"-inf..-9999.5 where {MASK} {LOW}", f"TAME where {B} {SMALL}"],
    },
    "b = Tanh (mask) s = Add (a, b) p = Softmax (s)": {
        "b": ["-1.001..1.001 where everywhere"],
    },
    # a constant needs no test, nor does what holds everywhere or hides where it is not small
    "s = Add (a, row) p = Softmax (s)": {
        "row": ["1..4 where everywhere"],
        "s": ["-999..1004 (assumed) where everywhere"],
    },
    "s = Add (a, infinite) p = Softmax (s)": {
        "infinite": [
            "-inf..-inf where infinite[d0] <= -1e4",
            "0..1 where infinite[d0] > -1e4",
        ],
    },
    "s = Add (a, plus) p = Softmax (s)": {"plus": ["0..inf where everywhere"]},
    "q = Mul (other, mask) b = Add (a, mask) s = Add (b, q) p = Softmax (s)": {
        "mask": [
            f"0 where {MASK} == 0",
            f"Special.NZ where {MASK} != 0",
            f"NEG where {MASK} {LOW}",
            f"TAME where {MASK} {SMALL}",
        ],
    },
    "b = Abs (mask) s = Add (a, b) p = Softmax (s)": {"b": [f"TAME where {B} {SMALL}"]},
    "b = Relu (mask) s = Add (a, b) p = Softmax (s)": {
        "b": [f"0.0 where {MASK} {LOW}", f"TAME where {B} {SMALL}"],
    },
    "l = Log (x) b = MatMul (l, w) s = Add (b, mask) p = Softmax (s)": {
        "b": [f"TAME where {B} {SMALL}"],
    },
    "b = Where (flag, half, low) s = Add (a, b) p = Softmax (s)": {
        "b": [
            "-10000.0 where flag[d0, d1, d2] == 0",
            "0.5 where flag[d0, d1, d2] != 0",
        ],
    },
    "b = Where (flag, half, mask) s = Add (a, b) p = Softmax (s)": {
        "b": [
            f"NEG where flag[d0, d1, d2] == 0 and {MASK} {LOW}",
            "0.5 where flag[d0, d1, d2] != 0",
            f"TAME where {B} {SMALL}",
        ],
    },
    # scores times a number
    "s = Mul (a, k) p = Softmax (s)": {"s": ["0 where k[] == 0", "SCORE where k[] > -1e4"]},
    "s = Mul (k1, a) p = Softmax (s)": {"s": ["0 where k1[0] == 0", "SCORE where k1[0] > -1e4"]},
    "s = Div (a, k) p = Softmax (s)": {"s": ["SCORE where k[] > -1e4"]},
    "s = Div (k, a) p = Softmax (s)": {"s": []},
    "s = Add (a, k) p = Softmax (s)": {
        "k": ["NEG where k[] <= -1e4", "TAME where k[] within 1e3"],
        "s": [
            "-inf..-9000 (assumed) where k[] <= -1e4",
            "-2000..2000 (assumed) where k[] within 1e3",
        ],
    },
    # the scores lie elsewhere in the result
    "s = Mul (a, k4) p = Softmax (s)": {"s": []},
    "b = Where (flag, a, nought) s = Mul (b, k) p = Softmax (s)": {
        "b": ["0.0 where flag[d0, d1, d2] == 0", "SCORE where flag[d0, d1, d2] != 0"],
        "s": [
            "0.0 where k[] == 0",
            "0.0 where flag[d0, d1, d2] == 0 and k[] > -1e4",
            "SCORE where flag[d0, d1, d2] != 0 and k[] > -1e4",
        ],
    },
    # of a score, though one in places only, nothing is tested
    "b = Where (flag, a, other) s = Add (b, mask) p = Softmax (s)": {
        "b": [
            f"NEG where flag[d0, d1, d2] == 0 and other[d0, d1, d2] {LOW}",
            "SCORE where flag[d0, d1, d2] != 0",
        ],
    },
    "s = Mul (a, mask) p = Softmax (s)": {"s": [f"0 where {MASK} == 0"]},
    "s = Mul (a, half) p = Softmax (s)": {"s": ["SCORE where everywhere"]},
    "s = Mul (a, minus) p = Softmax (s)": {"s": ["SCORE where everywhere"]},
    "s = Mul (a, two) p = Softmax (s)": {"s": ["-2000..2000 (assumed) where everywhere"]},
    "s = Div (a, two) p = Softmax (s)": {"s": ["SCORE where everywhere"]},
    "s = Div (a, half) p = Softmax (s)": {"s": ["-2000..2000 (assumed) where everywhere"]},
    "b = Mul (a, two) s = Mul (b, k) p = Softmax (s)": {"s": ["0 where k[] == 0"]},
    "b = Gather <axis = 1> (a, first) s = Mul (b, one) p = Softmax (s)": {
        "b": ["SCORE where everywhere"],
    },
    # what a third operand adds is no score
    "f = Reshape (mask, flat) s = Gemm (f, square) p = Softmax (s)": {
        "s": ["SCORE where everywhere"],
    },
    "f = Reshape (mask, flat) s = Gemm (f, square, row) p = Softmax (s)": {"s": []},
    # ends of small types, below the largest number of float16
    "b = DequantizeLinear (bytes, scale, zero) s = Add (a, b) p = Softmax (s)": {
        "b": ["0.0 where bytes[d0, d1, d2] == 0", "-25.5996..25.5996 (assumed) where everywhere"],
    },
    "b = DequantizeLinear (bytes, wide, zero) s = Add (a, b) p = Softmax (s)": {
        "b": ["0.0 where bytes[d0, d1, d2] == 0", "-58879.1..58879.1 (assumed) where everywhere"],
    },
    "b = DequantizeLinear (bytes, wider, zero) s = Add (a, b) p = Softmax (s)": {
        "b": ["0.0 where bytes[d0, d1, d2] == 0", f"TAME where {B} {SMALL}"],
    },
    "b = DequantizeLinear (bytes, scale, zero) p = Tanh (b)": {
        "b": ["0.0 where bytes[d0, d1, d2] == 0"],
    },
}


@pytest.mark.parametrize("case", SUMS)
def test_which_sums_are_raw_scores(case: str) -> None:
    body, terms, scores = SUMS[case]
    graph = analysed_text(body)
    assert {n for n, value in graph.values.items() if value.term} == set(terms.split())
    assert {n for n, value in graph.values.items() if value.score} == set(scores.split())


@pytest.mark.parametrize("body", KNOWN)
def test_what_is_known_of_terms(body: str) -> None:
    graph = analysed_text(f"a = MatMul (x, w) {body}")
    for name, facts in KNOWN[body].items():
        assert fills_of(graph, name) == facts, name
    if not KNOWN[body]:
        assert not any(v.fills for v in graph.values.values() if v.producer is not None)
