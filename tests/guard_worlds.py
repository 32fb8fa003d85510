"""Small graphs as text, and runs of all their values on every kind of finite number."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

from pitc.ir.graph import Graph
from pitc.passes.facts.fill import fill_facts

Array = Any
HEAD = """
<ir_version: 8, opset_import: ["" : 18, "other" : 1]>
model (float[b, s] x, float[b, s] z, float[b, s] bias, bool[b, s] mask, int64[b, 1] places,
       float[] any, int64 trips, bool again, string[b, s] said) => (float[] y, float[b, s] p)
<float zero = {0}, float one = {1}, float half = {0.5}, float low = {-inf}, float high = {inf},
 float nan = {nan}, float[2] ends = {-inf, nan}, float[2] lows = {-inf, 1},
 float[1] line = {0}, float[2] pair = {0, 1},
 float big = {-300000000000000000000000000000000000000}, int64[1] front = {0}, int64[1] last = {1},
 int64[1] two = {2}, string[1] written = {"inf"}, int64[4] four_places = {0, 0, -1, 0},
 float minus_zero = {-0.0}, float[0] none = {}, int64[4] around = {0, 1, 0, 1}>
{
    p = Softmax (bias)
    BODY
}
"""
FINITE = (0.0, -0.0, 0.5, -3.0, 7.0, 1e-40)
TEXTS = ("1", "-2.5", "nan", "inf")
BIASES = (0.0, -1.0, -2e4, -np.inf)


def model_of(body: str) -> onnx.ModelProto:
    """The model of some lines that compute y."""
    return onnx.parser.parse_model(HEAD.replace("BODY", body))


def graph_of(model: onnx.ModelProto) -> Graph:
    """Its facts, of the model as it is written."""
    graph = Graph(ir.serde.deserialize_model(model))
    fill_facts(graph)
    return graph


def feeds(rounds: int = 4) -> Iterator[dict[str, Array]]:
    """Inputs of several sizes, all of them finite but the biases."""
    rng = np.random.default_rng(5)
    for b, s in ((2, 3), (1, 1), (2, 0), (0, 2), (4, 2)):
        for _ in range(rounds):
            x, z = (rng.choice(FINITE, (b, s)) for _ in range(2))
            yield {
                "x": x.astype(np.float32),
                "z": z.astype(np.float32),
                "any": x.astype(np.float32),
                "bias": rng.choice(BIASES, (b, s)).astype(np.float32),
                "mask": rng.random((b, s)) < 0.5,
                "places": rng.integers(0, max(s, 1), (b, 1)),
                "trips": np.array(rng.integers(1, 3)),
                "again": np.array(True),
                "said": rng.choice(TEXTS, (b, s)).astype(object),
            }


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def values_of(model: onnx.ModelProto, rounds: int = 4) -> Iterator[Mapping[str, Array]]:
    """All values of each run that the model does not refuse."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    del twin.graph.output[:]
    names = [name for node in twin.graph.node for name in node.output if name]
    twin.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    run = session(twin)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for feed in feeds(rounds):
        try:
            found = run.run(names, feed)
        except Exception:  # sizes that it cannot have
            continue
        yield {**constants, **feed, **dict(zip(names, found, strict=True))}
