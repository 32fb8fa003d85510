"""Integers as sums of elements: equal to what the nodes compute, also where their type wraps."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from pitc.ir.index import dim_index, poly
from pitc.passes.exprs.sums import Sum, sum_of
from tests.fact_check import analysed
from tests.fact_texts import analysed_text, fills_of

HEAD = """<ir_version: 10, opset_import: ["": 21]> g (int8[3, 3] x, int8[3, 3] z) => (y)
<int8 three = {3}, int8 top = {127}, int64 big = {3}> { %s }"""
#: nodes, and of the sum the terms and the constant
TEXTS = {
    "y = Sub (x, z)": ("1*x -1*z", 0),
    "y = Neg (x)": ("1*y", 0),  # no sum of operands
    "a = Add (x, x) y = Sub (a, z)": ("2*x -1*z", 0),
    "a = Add (x, z) y = Sub (a, z)": ("1*x", 0),
    "a = Add (x, three) b = Sub (three, a) y = Sub (b, z)": ("-1*x -1*z", 0),
    "a = Add (x, top) y = Add (a, top)": ("1*x", 254),
    "a = Sub (x, z) b = Mul (a, three) y = Add (b, x)": ("1*b 1*x", 0),
    "a = Transpose (x) b = Sub (a, x) y = Identity (b)": ("1*x -1*x", 0),
    "a = Add (x, z) w = Cast <to = 7> (a) y = Sub (w, big)": ("1*a", -3),
    "w = Cast <to = 7> (x) y = Sub (w, big)": ("1*x", -3),
    "a = Add (x, x) b = Add (a, a) c = Add (b, b) d = Add (c, c) y = Add (d, x)": ("8*a 1*x", 0),
}


@pytest.mark.parametrize("text", TEXTS)
def test_sums(text: str) -> None:
    proto = onnx.parser.parse_model(HEAD % text)
    graph = analysed(proto)[0]
    found = sum_of(graph, "y", (dim_index(0, poly(3)), dim_index(1, poly(3))))
    terms = " ".join(f"{factor}*{name}" for (name, _), factor in found.terms)
    assert (terms, found.constant) == TEXTS[text]
    rng = np.random.default_rng(1)
    feed = {name: rng.integers(-128, 128, (3, 3), np.int8) for name in "xz"}
    names = ["y", *sorted({name for (name, _), _ in found.terms} - {"x", "z", "y"})]
    for name in names[1:]:
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    results = map(np.asarray, ReferenceEvaluator(proto).run(None, feed))
    values = feed | dict(zip(names, results, strict=True))
    for i, j in np.ndindex(3, 3):
        total = found.constant
        for (name, place), factor in found.terms:
            at = tuple(int(p.evaluate({}, {0: i, 1: j})) for p in place)
            total += factor * int(values[name][at])
        assert np.array(total).astype(found.dtype) == values["y"][i, j]


@pytest.mark.parametrize(
    ("constant", "signed", "unsigned"),
    [(0, 0, 0), (256, 0, 0), (-512, 0, 0), (127, 127, 127), (128, -128, 128), (-1, -1, 255)],
)
def test_a_constant_is_a_number_of_its_type(constant: int, signed: int, unsigned: int) -> None:
    assert Sum((), constant, np.dtype(np.int8)).wrapped() == signed
    assert Sum((), constant, np.dtype(np.uint8)).wrapped() == unsigned


@pytest.mark.parametrize(
    ("nodes", "facts"),
    [
        ("d = Sub (q, r) o = Equal (d, nought_i)", "1"),
        ("d = Sub (r, q) o = Equal (one_i, d)", "0"),
        ("d = Sub (q, r) o = Less (d, nought_i)", "0"),
        ("d = Sub (q, r) o = Less (d, one_i)", "1"),
        ("d = Sub (q, r) o = GreaterOrEqual (d, nought_i)", "1"),
        ("d = Sub (q, r) e = Sub (r, q) o = Less (d, e)", "0"),
        ("d = Sub (q, r) e = Sub (r, one_i) o = Less (d, e)", ""),
        ("d = Add (q, one_i) e = Add (r, one_i) o = Less (d, e)", "0"),
        ("d = Add (q, one_i) e = Add (one_i, r) o = LessOrEqual (d, e)", "1"),
        ("d = Add (q, one_i) o = LessOrEqual (d, r)", ""),
        ("d = Add (q, r) o = Equal (d, nought_i)", ""),
        ("r2 = Add (r, r) d = Sub (q, r2) o = Equal (d, nought_i)", ""),
    ],
)
def test_where_elements_are_the_same(nodes: str, facts: str) -> None:
    """On the diagonal of q and r, which are one vector."""
    body = f"""nought_i = Constant <value_int = 0> () one_i = Constant <value_int = 1> ()
        two_i = Constant <value_ints = [2]> ()
        q = Unsqueeze (ids, two_i) r = Unsqueeze (ids, axis) {nodes} p = Identity (half)"""
    same = " where -d1+d2 >= 0 and d1-d2 >= 0"
    found = [f for f in fills_of(analysed_text(body), "o") if f.endswith(same)]
    assert found == [f"{fact}{same}" for fact in facts]
