"""Small graphs as text that compute with sizes and positions, and their runs for small sizes."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import onnx
import onnx.parser

from tests.guard_worlds import Array, session

HEAD = """
<ir_version: 8, opset_import: ["" : 18, "other" : 1]>
model (float[a, b] x, int64[a] lengths, int32[a] short, uint64[a] long, bool[a] flags, int64[b] far,
       int64[a, b] table, int32 number, float[a] weights) => (float[a, b] z)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 minus = {-1}, int64 seven = {7},
 int64[1] front = {0}, int64[1] last = {1}, int64[2] both = {0, 1}, int64[1] top = {100},
 int64 least = {-9223372036854775808}, int64 huge = {4611686018427387905},
 int64 edge = {4611686018427387904}, float[2] some = {0, 1},
 int8 tiny = {-128}, uint8 byte = {3}, int64[3] line = {5, 7, 9}, int64[3] bent = {5, 7, 8},
 int64[2, 3] grid = {0, 1, 2, 10, 11, 12}, int64[1] seventh = {7}, int64[1] many = {64},
 int64[1] more = {65},
 int64[2] square = {8, 8}, int64[4] four = {0, 1, 2, 3},
 int64[3, 1] column = {4, 5, 6},
 uint64[2] large = {9223372036854775808, 9223372036854775809}, int32[3] falling = {3, 1, -1},
 int64[2, 1, 2, 1] deep = {0, 3, 1, 4}>
{
    z = Identity (x)
    size = Shape (x)
    rows = Gather (size, zero)
    columns = Gather (size, one)
    i = Range (zero, rows, one)
    j = Range (zero, columns, one)
    c = Unsqueeze (i, last)
    d = Sub (c, j)
    n = Unsqueeze (lengths, last)
    BODY
}
"""
SIZES = (0, 1, 2, 3)


def model_of(body: str, outputs: str = "") -> onnx.ModelProto:
    """The model of some lines that compute v, and perhaps further outputs."""
    return onnx.parser.parse_model(HEAD.replace("BODY", body).replace("b] z)", f"b] z{outputs})"))


def runs_of(model: onnx.ModelProto) -> Iterator[dict[str, Array]]:
    """All values, for all small sizes that the model can have."""
    rng = np.random.default_rng(7)
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    del twin.graph.output[:]
    names = [name for node in twin.graph.node for name in node.output if name]
    twin.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    run = session(twin)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for a, b in product(SIZES, SIZES):
        feed = {
            "x": np.zeros((a, b), np.float32),
            "lengths": rng.integers(-1, 5, a),
            "short": rng.integers(-1, 5, a).astype(np.int32),
            "long": rng.integers(0, 5, a).astype(np.uint64),
            "flags": rng.random(a) < 0.5,
            "far": rng.integers(-9, 9, b),
            "table": rng.integers(-1, 5, (a, b)),
            "number": np.array(2, np.int32),
            "weights": rng.choice(np.array([0, 1, 2], np.float32), a),
        }
        try:
            found = run.run(names, feed)
        except Exception:  # sizes that it cannot have
            continue
        yield {**constants, **feed, **dict(zip(names, found, strict=True))}
