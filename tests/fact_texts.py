"""Facts of models that are written down, as text."""

from collections.abc import Sequence

import numpy as np
import onnx

from pitc.ir.graph import Graph
from tests.fact_check import analysed


def text_model(body: str) -> onnx.ModelProto:
    """A model of the inputs and constants below; its outputs are p, and o if there is one."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 4, 8] x, float[n, 4, 4] mask, float[n, 4, 4] other, int64[n, 4] ids,
           bool[n, 4, 4] flag, uint8[n, 4, 4] bytes, float k, float[1] k1,
           float[1, 1, 1, 1] k4) => (float p)
        <float half = {{0.5}}, int64[2] flat = {{-1, 4}}, float[4] row = {{1, 2, 3, 4}},
         float one = {{1}}, float two = {{2}}, float minus = {{-0.5}}, float low = {{-10000}},
         float nought = {{0}}, int64[4] first = {{0, 0, 0, 0}},
         float scale = {{0.1}}, float wide = {{230}}, float wider = {{240}}, uint8 zero = {{0}},
         int64[1] axis = {{1}}, int64[1] most = {{2}}, int64[0] nothing = {{}},
         int64[4] some = {{3, 0, 1, 1}},
         float[3, 1] sizes = {{1, 1, 1}}, int64[3] same = {{0, 4, 4}}>
        {{ {body} }}""")
    shapes = {"w": (8, 4), "v": (8, 8), "square": (4, 4), "table": (9, 8)}
    for k, (name, shape) in enumerate(shapes.items()):
        numbers = np.random.default_rng(k).normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    for name, values in {"infinite": [0, -np.inf, 0, 1], "plus": [0, np.inf, 0, 1]}.items():
        numbers = np.array(values, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    for name in ("p", *(["o"] if " o = " in body else [])):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    del proto.graph.output[0]
    return proto


def analysed_text(body: str, mask: str | None = None, opt_in: Sequence[str] = ()) -> Graph:
    """The facts of a model that is written down."""
    return analysed(text_model(body), mask, opt_in)[0]


def fills_of(graph: Graph, name: str) -> list[str]:
    """Fill facts of a value as text."""
    return [f"{f.constant} where {f.region}" for f in graph[name].fills]


def dead_of(graph: Graph, name: str) -> list[str]:
    """Where a value is not read, as text."""
    return [str(r) for r in graph[name].dead]


def slack_of(graph: Graph, name: str) -> tuple[list[str], float]:
    """Where any number up to a limit would do, as text, and the limit."""
    regions, limit = graph[name].slack
    return [str(r) for r in regions], limit
