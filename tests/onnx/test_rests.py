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
    "multiplied": (HEADS, "y = MatMul (v, mask) o = Neg (y)"),
    "read twice": (HEADS, "y = Add (v, mask) o = Mul (mask, v)"),
}
SEEN = {
    "given": (HEADS, "y = Add (v, mask) o = Identity (v)"),
    "its shape is": (HEADS, "y = Add (v, mask) k = Shape (v) o = Expand (row, k)"),
    "beside one place": (HEADS, "y = Add (v, mask) o = Add (v, row)"),
    "multiplied on the right": (HEADS, "y = MatMul (mask, v) o = Neg (y)"),
    "alone": (HEADS, "y = Add (v, mask) o = Neg (v)"),
    "summed up": (HEADS, "y = Add (v, mask) o = ReduceSum <keepdims = 1> (v, rest)"),
    "beside a 1 it would be 4": ("b, s, s, rest", "y = Add (v, mask) o = Neg (y)"),
}


MERGED = """<ir_version: 10, opset_import: ["" : 18]>
g (float[b, 4, s, s] scores, float[s, 8] plane, float[s] line) => (float[u0, u1, u2] y)
<int64[1] four = {4}, int64[1] rest = {-1}>
{
    b = Shape <start = 0, end = 1> (scores) s = Shape <start = 2, end = 3> (scores)
    b4 = Mul (b, four) flat = Concat <axis = 0> (b4, s, rest)
    v = Reshape <allowzero = 1> (scores, flat) BODY
}"""


def model(case: tuple[str, str]) -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.replace("SPLIT", case[0]).replace("BODY", case[1]))


def feeds(b: int, s: int) -> dict[str, Array]:
    rng = np.random.default_rng((b, s))
    shapes = {"scores": (b, 4, s, s), "mask": (b, 1, s, s), "row": (b, 1, s, 1), "line": (s,)}
    shapes |= {"plane": (s, 8)}
    return {k: rng.normal(size=n).astype(np.float32) for k, n in shapes.items()}


@pytest.mark.parametrize("label", UNSEEN)
def test_a_size_that_nobody_sees_is_named(label: str) -> None:
    names_the_size(model(UNSEEN[label]), "b 4 s s")


def names_the_size(proto: onnx.ModelProto, shape: str) -> None:
    """One size is named, and nothing that ONNX Runtime runs is another answer then."""
    named = ir.from_proto(proto)
    assert name_rests(named) == 1
    graph = Graph(named)
    derive(graph)
    assert " ".join(map(str, graph["v"].shape or ())) == shape
    after, ran = ir.to_proto(named), 0
    inputs = {value.name for value in proto.graph.input}
    for b, s in product(range(3), range(6)):
        try:
            feed = {k: x for k, x in feeds(b, s).items() if k in inputs}
            want = run(proto, feed)
        except Exception:  # sizes that the model cannot have
            continue
        ran += 1
        for x, y in zip(want, run(after, feed), strict=True):
            np.testing.assert_array_equal(x, y)
    assert ran >= 10


def test_products_ask_for_the_size_that_others_have() -> None:
    """Without batches 4 * s remains, which no MatMul takes; a sum takes it beside s = 1."""
    proto = onnx.parser.parse_model(MERGED.replace("BODY", "y = MatMul (v, plane)"))
    names_the_size(proto, "4*b s s")
    for body in ("y = Add (v, line)", "less = Neg (v) y = MatMul (v, less)"):
        named = ir.from_proto(onnx.parser.parse_model(MERGED.replace("BODY", body)))
        assert name_rests(named) == 0


@pytest.mark.parametrize(
    ("this", "other"), [("[s, 8] plane", "[t, 8] plane"), ("s, rest", "rest, s")]
)
def test_products_do_not_ask_for_another_size(this: str, other: str) -> None:
    """What is summed is of a size t, or is another dimension than the rest."""
    text = MERGED.replace("BODY", "y = MatMul (v, plane)")
    assert this in text
    named = ir.from_proto(onnx.parser.parse_model(text.replace(this, other)))
    assert name_rests(named) == 0


@pytest.mark.parametrize("label", SEEN)
def test_a_size_that_is_seen_stays(label: str) -> None:
    named = ir.from_proto(model(SEEN[label]))
    assert name_rests(named) == 0
