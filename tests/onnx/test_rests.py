"""A size that remains beside sizes that may be 0 has the name that it has without a 0."""

from itertools import product

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from pitc.ir.graph import Graph
from pitc.passes.exprs.derive import derive
from pitc.passes.rests import name_rests
from tests.fused_models import Array, run

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[b, 4, s, s] scores, float[b, 1, s, s] mask, float[b, 1, s, 1] row, float[s] line)
  => (float[b, 4, s, s] y, float[u0, u1, u2, u3] o)
<int64[1] four = {4}, int64[1] rest = {-1}, int64[1] two = {2}>
{
    b = Shape <start = 0, end = 1> (scores) s = Shape <start = 2, end = 3> (scores)
    b4 = Mul (b, four) flat = Concat <axis = 0> (b4, s, s)
    x = Reshape <allowzero = 1> (scores, flat)
    split = Concat <axis = 0> (SPLIT) v = Reshape <allowzero = 1> (x, split)
    BODY
}"""
HEADS = "b, four, s, rest"
UNSEEN = {
    "added": (HEADS, "y = Add (v, mask) o = Neg (y)"),
    "chosen": (HEADS, "f = Cast <to = 9> (mask) y = Where (f, v, mask) o = Neg (y)"),
    "a line": (HEADS, "y = Add (line, v) o = Neg (y)"),
    "read twice": (HEADS, "y = Add (v, mask) o = Mul (mask, v)"),
}
SEEN = {
    "given": (HEADS, "y = Add (v, mask) o = Identity (v)"),
    "its shape is": (HEADS, "y = Add (v, mask) k = Shape (v) o = Expand (row, k)"),
    "beside one place": (HEADS, "y = Add (v, mask) o = Add (v, row)"),
    "alone": (HEADS, "y = Add (v, mask) o = Neg (v)"),
    "summed up": (HEADS, "y = Add (v, mask) o = ReduceSum <keepdims = 1> (v, rest)"),
    "beside a 1 it would be 4": ("b, s, s, rest", "y = Add (v, mask) o = Neg (y)"),
}


def model(case: tuple[str, str]) -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.replace("SPLIT", case[0]).replace("BODY", case[1]))


def feeds(b: int, s: int) -> dict[str, Array]:
    rng = np.random.default_rng((b, s))
    shapes = {"scores": (b, 4, s, s), "mask": (b, 1, s, s), "row": (b, 1, s, 1), "line": (s,)}
    return {k: rng.normal(size=n).astype(np.float32) for k, n in shapes.items()}


@pytest.mark.parametrize("label", UNSEEN)
def test_a_size_that_nobody_sees_is_named(label: str) -> None:
    proto = model(UNSEEN[label])
    named = ir.from_proto(proto)
    assert name_rests(named) == 1
    graph = Graph(named)
    derive(graph)
    assert " ".join(map(str, graph["v"].shape or ())) == "b 4 s s"
    after, ran = ir.to_proto(named), 0
    for b, s in product(range(3), range(6)):
        try:
            want = run(proto, feeds(b, s))
        except Exception:  # sizes that the model cannot have
            continue
        ran += 1
        for x, y in zip(want, run(after, feeds(b, s)), strict=True):
            np.testing.assert_array_equal(x, y)
    assert ran > 12


@pytest.mark.parametrize("label", SEEN)
def test_a_size_that_is_seen_stays(label: str) -> None:
    named = ir.from_proto(model(SEEN[label]))
    assert name_rests(named) == 0
