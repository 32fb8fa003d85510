"""Functions for models that are written by hand: they run anywhere, and are seen through."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import pitc
from tests.lower_support import lower_and_compare, plans

Arrays = dict[str, Any]
G, K, N = 6, 64, 96


def model(opset: int, bias: bool, choices: str = "j") -> onnx.ModelProto:
    """A layer of experts: up, ReLU, down for each pair of a token and a choice."""
    name, more = ("GroupedMatMulBias", ", b{}") if bias else ("GroupedMatMul", "")
    proto = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": {opset}, "pitc": 1]>
        g (float[m, {K}] x, int64[m, {choices}] ids) => (float[m, {choices}, {K}] y)
        <int64[2] flat = {{-1, {N}}}, int64[2] column = {{-1, 1}}> {{
            h = pitc.{name} (x, up, ids{more.format(0)})
            r = Relu (h) rows = Reshape (r, flat) each = Reshape (ids, column)
            d = pitc.{name} (rows, down, each{more.format(1)})
            s = Shape (ids) width = Constant <value_ints = [{K}]> ()
            shape = Concat <axis = 0> (s, width) y = Reshape (d, shape) }}"""
    )
    proto.functions.append(pitc.grouped_matmul(opset, bias=bias))
    rng = np.random.default_rng(0)
    sizes = {"up": (G, K, N), "down": (G, N, K), "b0": (G, N), "b1": (G, K)}
    for key in ("up", "down", *(("b0", "b1") if bias else ())):
        numbers = rng.normal(0, 0.1, sizes[key]).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(numbers, key))
    return proto


def feeds(m: int, j: int) -> Arrays:
    rng = np.random.default_rng(m)
    x = rng.normal(size=(m, K)).astype(np.float32)
    return {"x": x, "ids": rng.integers(-G, G, (m, j))}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("opset", [14, 17, 22])
def test_grouped_products(opset: int, bias: bool) -> None:
    proto = model(opset, bias)
    onnx.checker.check_model(proto)
    made = lower_and_compare(proto, [feeds(m, j) for m, j in ((0, 2), (1, 1), (40, 3))])
    assert [p["op"] for p in plans(made)].count("grouped") == 2
