"""Small tables of sizes as symbols (passes/exprs/values.py): what exporters compute shapes with.

The audit compares every symbolic value with ONNX Runtime's, for several sizes.
"""

import re

import onnx.parser
import pytest

from pitc.passes.rules import OPERATORS
from tests.fact_check import proven

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
model (float[a, b] x) => (int64[n, m] y, float[a, b] z)
<int64[2] square = {2, 2}, int64[2] both = {1, 0}, int64[2] zeros = {0, 0}, int64[2] two = {2, 2},
 int64[2] axes = {1, -2}, int64[2] first = {-1, 9}, int64[2] before = {-99, -99},
 int64[2] back = {-1, -1}, int64[1] one = {1}, int64[1] row = {0}, int64[1] end = {2},
 int64[3] places = {0, -1, 7}, int64 depth = {2}, int64[1] place = {1}>
{
    z = Identity (x)
    size = Shape (x)
    more = Add (size, both)
    long = Concat <axis = 0> (size, more)
    table = Reshape (long, square)
    BODY
}
"""
VALUES = {  # table: [[a, b], [a+1, b]]
    "y = Transpose (table)": ["a", "a+1", "b", "b"],
    "y = Transpose <perm = [0, 1]> (table)": ["a", "b", "a+1", "b"],
    "y = Slice (table, one, end, row)": ["a+1", "b"],
    "y = Slice (table, one, end, one)": ["b", "b"],
    "y = Slice (table, row, one)": ["a", "b"],
    "y = Slice (table, first, before, axes, back)": ["b", "a+1", "b", "a"],
    "y = Slice (table, zeros, two, axes, two)": ["a"],
    "y = Slice (table, end, one, row)": [],
    "y = OneHot (places, depth, size)": ["b", "a", "a", "b", "a", "a"],
    "y = OneHot <axis = 0> (places, depth, size)": ["b", "a", "a", "a", "b", "a"],
    "y = OneHot <axis = -2> (place, depth, size)": ["a", "b"],
    "y = Identity (table)": ["a", "b", "a+1", "b"],
    "y = Cast <to = 7> (table)": ["a", "b", "a+1", "b"],
    "y = Neg (size)": ["-a", "-b"],
    "y = Add (size, more)": ["2*a+1", "2*b"],
    "y = Sub (more, size)": ["1", "0"],
    "y = Mul (more, size)": ["a*a+a", "b*b"],
    "k = Mul (size, two) y = Div (k, two)": ["a", "b"],
    "y = Mod (both, two)": ["1", "0"],
    "y = Max (size, more)": ["a+1", "b"],
    "y = Min (size, more)": ["a", "b"],
    "k = Greater (more, size) y = Cast <to = 7> (k)": ["1", "0"],
    "k = GreaterOrEqual (size, more) y = Cast <to = 7> (k)": ["0", "1"],
    "k = Less (size, more) y = Cast <to = 7> (k)": ["1", "0"],
    "k = LessOrEqual (more, size) y = Cast <to = 7> (k)": ["0", "1"],
    "k = Equal (more, size) y = Cast <to = 7> (k)": ["0", "1"],
    "k = Equal (more, size) n = Not (k) y = Cast <to = 7> (n)": ["1", "0"],
    "k = Cast <to = 9> (both) y = Where (k, two, size)": ["2", "b"],
    "k = Cast <to = 9> (both) n = Not (k) m = And (k, n) y = Cast <to = 7> (m)": ["0", "0"],
    "k = Cast <to = 9> (both) n = Not (k) m = Or (k, n) y = Cast <to = 7> (m)": ["1", "1"],
    "y = Gather (size, place)": ["b"],
    "y = Gather <axis = 1> (table, place)": ["b", "b"],
    "y = Flatten <axis = 0> (table)": ["a", "b", "a+1", "b"],
    "k = Unsqueeze (size, row) y = Squeeze (k, row)": ["a", "b"],
    "y = Expand (size, two)": ["a", "b", "a", "b"],
    "y = ReduceProd (size)": ["a*b"],
    "y = Size (x)": ["a*b"],
    "y = ConstantOfShape <value = int64[1] {7}> (two)": ["7", "7", "7", "7"],
}


@pytest.mark.parametrize("body", VALUES)
def test_tables_of_sizes(body: str) -> None:
    model = onnx.parser.parse_model(MODEL.replace("BODY", body))
    graph = proven(model, sizes={"a": 3, "b": 5})
    value = graph["y"].ints
    assert value is not None
    assert [str(p) for p in value.reshape(-1)] == VALUES[body]


def test_every_operator_that_computes_with_sizes_is_tested() -> None:
    text = MODEL + " ".join(VALUES)
    named = {op for _, op in OPERATORS if re.search(rf"\b{op}\b", text)}
    assert {op for (_, op), row in OPERATORS.items() if row.value is not None} <= named


def test_an_unknown_place_is_no_symbol() -> None:
    """A place that depends on the data."""
    body = "which = ArgMax <axis = 0, keepdims = 0> (x) y = OneHot (which, depth, size)"
    model = onnx.parser.parse_model(MODEL.replace("BODY", body))
    assert proven(model, sizes={"a": 3, "b": 5})["y"].ints is None
