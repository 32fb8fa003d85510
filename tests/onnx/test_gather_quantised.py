"""Rows of quantised values are gathered as bytes, where one number is the scale of all."""

import numpy as np
import onnx
import pytest

from models.graph import GraphBuilder
from tests.lower_support import check, lower, plans, weight

WIDTH = 256
MASK = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


def model(
    scale: tuple[int, ...],
    kind: type[np.generic],
    *,
    computed: bool = False,
    weights: type[np.generic] = np.int8,
) -> onnx.ModelProto:
    """y = product of x, quantised and back, where a mask lives; z reads all of x."""
    g = GraphBuilder("quantised", opset=21)
    x = g.input("x", np.float32, ("b", "s", WIDTH))
    mask = g.input("mask", np.int64, ("b", "s"))
    size = g.weight("scale", np.full(scale, 0.05, np.float32))
    if computed:
        size = g.op("Abs", g.op("Neg", g.input("size", np.float32, scale)))
    zero = g.weight("zero", np.full(scale, 3, kind))
    d = g.op("DequantizeLinear", g.op("QuantizeLinear", x, size, zero, axis=2), size, zero, axis=2)
    w = weight(g, "w", WIDTH, WIDTH)
    if weights is np.int8:
        numbers = np.random.default_rng(1).integers(-9, 9, (WIDTH, WIDTH)).astype(np.int8)
        grid = g.weight("step", np.array(0.01, np.float32))
        w = g.op(
            "DequantizeLinear", g.weight("wq", numbers), grid, g.weight("w0", np.array(0, np.int8))
        )
    live = g.op("Unsqueeze", g.op("Cast", mask, to=onnx.TensorProto.FLOAT), g.ints(2))
    g.output(g.op("Mul", g.op("MatMul", d, w), live), "y", np.float32, ("b", "s", WIDTH))
    g.output(g.op("Relu", d), "z", np.float32, ("b", "s", WIDTH))
    return g.model()


@pytest.mark.parametrize(
    ("scale", "kind", "computed"),
    [
        ((), np.int8, False),
        ((), np.uint8, False),
        ((1,), np.uint8, False),
        ((), np.uint8, True),  # computed, and still one number
    ],
)
def test_bytes_are_gathered(scale: tuple[int, ...], kind: type[np.generic], computed: bool) -> None:
    proto = model(scale, kind, computed=computed)
    lowered = lower(proto, sparse=False)
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 4, WIDTH)).astype(np.float32)}
    feeds |= {"mask": MASK}
    if computed:
        feeds["size"] = np.full(scale, 0.05, np.float32)
    assert check(proto, lowered, feeds) == ["detect", "pack", "unpack"]
    (rows,) = (n.outputs[0] for n in lowered.model.graph if n.name and n.name.endswith("[pack]"))
    assert rows.dtype is not None and rows.dtype.numpy() == kind
    (reader,) = rows.consumers()
    assert reader.op_type == "DequantizeLinear"


@pytest.mark.parametrize(
    ("scale", "kind"),
    [
        ((WIDTH,), np.uint8),  # a scale for each channel
        ((), np.int16),  # of two bytes
    ],
)
def test_floats_are_gathered(scale: tuple[int, ...], kind: type[np.generic]) -> None:
    """ONNX Runtime runs neither, so the graph alone is looked at."""
    lowered = lower(model(scale, kind), sparse=False)
    (rows,) = (n.outputs[0] for n in lowered.model.graph if n.name and n.name.endswith("[pack]"))
    assert rows.dtype is not None and rows.dtype.numpy() == np.float32
    assert [n.op_type for n in rows.consumers()] == ["MatMul"]


def test_a_product_of_ours_gathers_what_was_dequantised() -> None:
    """It is there, whole, for others: no node is added for its rows."""
    lowered = lower(model((), np.uint8, weights=np.float32), sparse=False)
    assert [p["kind"] for p in plans(lowered)] == ["detect", "dense"]
    assert sum(n.op_type == "DequantizeLinear" for n in lowered.model.graph) == 1
