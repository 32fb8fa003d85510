"""Dimensions of extent 1 in packed values: what a node gives on live rows has the dimensions that
its readers take, whether the batch is a symbol, 1 or another number.
"""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from pitc.ir import target as targets
from tests.onnx.test_padding import LIVE, check, parsed

# steps from h [b, s, 4] to y [b, s, ..], and how many nodes run on live rows at least
STEPS = {
    "a matrix of rank 3": ("y = MatMul (h, wide)", 2),
    "one column": ("a = MatMul (h, column) y = Relu (a)", 3),
    "one term": ("a = MatMul (h, column) c = MatMul (a, row) y = Relu (c)", 4),
    "a row of one": ("a = Unsqueeze (h, last) c = MatMul (a, w) y = Squeeze (c, last)", 4),
    "reduced": (
        """a = Unsqueeze (h, last) c = ReduceSum <keepdims = 0> (a, last_two)
        y = Unsqueeze (c, last)""",
        4,
    ),
    "reduced and kept": (
        """a = Unsqueeze (h, last) c = ReduceSum <keepdims = 1> (a, last_two)
        y = Squeeze (c, last)""",
        4,
    ),
    "one reduced": ("a = Unsqueeze (h, last) y = ReduceL2 <keepdims = 0, axes = [2]> (a)", 3),
    "turned": (
        """a = Unsqueeze (h, last) c = Transpose <perm = [0, 2, 1, 3]> (a)
        d = Relu (c) y = Squeeze (d, one)""",
        4,
    ),
    "time first": (
        """a = Transpose <perm = [1, 0, 2]> (h) c = MatMul (a, w)
        y = Transpose <perm = [1, 0, 2]> (c)""",
        4,
    ),
    "normalised": (
        """a = Unsqueeze (h, last) c = LayerNormalization (a, ones)
        y = Squeeze (c, last)""",
        4,
    ),
    "softmax": ("a = Unsqueeze (h, last) c = Softmax <axis = 3> (a) y = Squeeze (c, last)", 4),
    "joined": (
        """a = Unsqueeze (h, zero) c = Concat <axis = 0> (a, a)
        y = ReduceSum <keepdims = 0> (c, zero)""",
        1,
    ),
    "split": (
        """a = Unsqueeze (h, zero) c = Concat <axis = 0> (a, a, a)
        d, e = Split <axis = 0> (c, two_one) f = Squeeze (e, zero) y = MatMul (f, w)""",
        1,
    ),
    "looked up": (
        """a = Unsqueeze (h, zero) c = Concat <axis = 0> (a, a, a)
        d = Gather <axis = 0> (c, second) y = MatMul (d, w)""",
        1,
    ),
    "best": (
        """a = Unsqueeze (h, last) c = ArgMax <axis = 3, keepdims = 0> (a)
        y = Cast <to = 1> (c)""",
        3,
    ),
    "heads": (
        """a = Reshape (h, heads) c = Transpose <perm = [0, 2, 1, 3]> (a)
        d = MatMul (c, square) e = Transpose <perm = [0, 2, 1, 3]> (d) y = Reshape (e, merged)""",
        6,
    ),
    "one head": (
        """a = Reshape (h, one_head) c = Transpose <perm = [0, 2, 1, 3]> (a)
        d = MatMul (c, w) e = Transpose <perm = [0, 2, 1, 3]> (d) y = Reshape (e, merged6)""",
        6,
    ),
    "attention of one head": (
        """a = Unsqueeze (h, one) t = Transpose <perm = [0, 1, 3, 2]> (a)
        low = Sub (m4, single) bias = Mul (low, large) s0 = MatMul (a, t) s1 = Add (s0, bias)
        p = Softmax <axis = -1> (s1) c = MatMul (p, a) d = Squeeze (c, one) y = MatMul (d, w)""",
        3,
    ),
    "a table": ("a = MatMul (h, w) c = Add (a, table) y = Relu (c)", 4),
    "spread": ("a = Unsqueeze (h, last) c = Expand (a, three) y = Reshape (c, twelve)", 3),
}
NUMBERS = {
    "wide": (1, 4, 6),
    "column": (4, 1),
    "row": (1, 6),
    "square": (2, 2),
    "table": (1, 5, 6),
    "whole": (4, 4),
    "ones": (4,),
}
INTEGERS = {
    "last_two": [2, 3],
    "two_one": [2, 1],
    "second": 1,
    "heads": [0, 0, 2, 2],
    "one_head": [0, 0, 1, 4],
    "merged": [0, 0, 4],
    "merged6": [0, 0, 6],
    "three": [1, 1, 3, 1],
    "twelve": [0, 0, 12],
    "one_two": [1, 2],
}


@pytest.mark.parametrize("shape", [("b", "s"), (1, "s"), ("b", 5), (1, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("case", STEPS)
def test_dimensions_of_one(
    case: str, shape: tuple[str | int, str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    body, least = STEPS[case]
    first, second = shape
    size = f"{first}, {second}"
    model = parsed(
        f"(float[{size}, 4] x, int64[{size}] mask) => (float[{size}, n] y) {{ {LIVE}"
        f" m4 = Unsqueeze (m, one_two) x0 = Mul (x, m3) h = MatMul (x0, whole) {body} }}"
    )
    rng = np.random.default_rng(2)
    arrays = {name: rng.normal(size=dims).astype(np.float32) for name, dims in NUMBERS.items()}
    arrays |= {name: np.asarray(x, np.int64) for name, x in INTEGERS.items()}
    arrays |= {name: np.float32(x) for name, x in (("single", 1), ("large", 1e9))}
    for name in sorted({name for node in model.graph.node for name in node.input} & set(arrays)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(arrays[name]), name))
    if case == "a table" and second != 5:
        return  # it is one of five places
    lowered, given = check(model, {"b": 3, "s": 5})
    packed = [r.node for r in lowered.report.nodes if r.lowering != "ordinary"]
    assert len(packed) >= least * (shape != (1, 1)), packed
    assert given == {"y"} or second == 1
