"""Sizes of a run that the model does not promise: ONNX Runtime's result, or an error with names.

Compiled nodes number points once for all inputs, so a size that would only broadcast, a mask that
is longer than what is sliced off it, or a table that is too short must never be taken silently.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.errors import UsageError
from pitc.session import plain_session, run_session

ROWS, WIDTH, WORDS = 16, 192, 50
Shape = tuple[int, int]


def encoder(rows: int) -> onnx.ModelProto:
    """Words and positions, two products, and the sum of the live rows of a sliced mask."""
    rng = np.random.default_rng(0)
    shapes = {"words": (WORDS, WIDTH), "places": (1, rows, WIDTH)}
    shapes |= {"w": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}
    weights = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    numbers = {f"i{k}": np.array([k], np.int64) for k in range(3)}
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "ids"], ["e"]),
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "i1"], ["length"]),
        node("Slice", ["places", "i0", "length", "i1"], ["p"]),
        node("Add", ["e", "p"], ["x"]),
        node("MatMul", ["x", "w"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["g"]),
        node("Slice", ["mask", "i0", "length", "i1"], ["m"]),
        node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["f", "i2"], ["u"]),
        node("Mul", ["g", "u"], ["z"]),
        node("ReduceSum", ["z", "i1"], ["y"], keepdims=0),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "encoder",
        [value(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")],
        [value("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(a, name) for name, a in (weights | numbers).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(ids: Shape, mask: Shape) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    for live in (np.ones(mask, bool), rng.random(mask) < 0.5):
        yield {"ids": rng.integers(0, WORDS, ids), "mask": live.astype(np.int64)}


EQUAL = [((3, 8), (3, 8)), ((1, 1), (1, 1)), ((3, 0), (3, 0)), ((0, 8), (0, 8)), ((3, 16), (3, 16))]
BROADCAST = [((3, 8), (1, 8)), ((1, 8), (3, 8)), ((3, 8), (3, 1)), ((3, 1), (3, 8))]
OTHER = [
    ((3, 8), (3, 12)),
    ((3, 8), (3, 5)),
    ((3, 8), (1, 12)),
    ((3, 17), (3, 17)),
    ((3, 17), (3, 1)),
]


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_equal_to_onnx_runtime_or_a_named_error(rows: int) -> None:
    proto = encoder(rows)
    plain, compiled = plain_session(proto.SerializeToString()), pitc.compile(proto)
    assert compiled.manifest.pit_nodes
    results = errors = 0
    for ids, mask in (*EQUAL, *BROADCAST, *OTHER):
        for feeds in feeds_of(ids, mask):
            try:
                got = compiled.run(feeds)["y"]
            except UsageError as error:
                errors += 1
                assert rows == 1 or (ids, mask) not in EQUAL, error
                if ids != mask:
                    assert "'batch' is " in str(error) or "'length' is " in str(error)
                continue
            results += 1
            want = run_session(plain, feeds)["y"]  # where it fails, so must the compiled model
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    assert results >= 6 and errors >= (2 if rows == 1 else 8)  # one row may be broadcast
