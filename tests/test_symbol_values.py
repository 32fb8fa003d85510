"""Small tables of sizes as symbols (passes/facts/values.py): what exporters compute shapes with.

The audit compares every symbolic value with ONNX Runtime's, for several sizes.
"""

import onnx.parser
import pytest

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
}


@pytest.mark.parametrize("body", VALUES)
def test_tables_of_sizes(body: str) -> None:
    model = onnx.parser.parse_model(MODEL.replace("BODY", body))
    graph = proven(model, sizes={"a": 3, "b": 5})
    value = graph["y"].ints
    assert value is not None
    assert [str(p) for p in value.reshape(-1)] == VALUES[body]


def test_an_unknown_place_is_no_symbol() -> None:
    """A place that depends on the data."""
    body = "which = ArgMax <axis = 0, keepdims = 0> (x) y = OneHot (which, depth, size)"
    model = onnx.parser.parse_model(MODEL.replace("BODY", body))
    assert proven(model, sizes={"a": 3, "b": 5})["y"].ints is None
