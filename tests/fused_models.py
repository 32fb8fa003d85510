"""What the tests of fused operators share: small models of one node, masks, runs."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h

from pitc.ir.plan import EP_NAME
from pitc.passes.pipeline import Lowered
from tests.plan_reference import parse

Array = np.ndarray
MICROSOFT = "com.microsoft"
B, S, H, D = 3, 5, 2, 4
WIDTH = H * D
KINDS = ("right", "left", "holes", "empty", "full")


def mask_of(kind: str) -> Array:
    """[batch, sequence] of 0 and 1."""
    lengths, at = np.asarray([[2], [5], [1]]), np.arange(S)
    return {
        "right": at < lengths,
        "left": at >= S - lengths,
        "holes": np.asarray([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]),
        "empty": np.zeros((B, S)),
        "full": np.ones((B, S)),
    }[kind].astype(np.int32)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Array],
    weights: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose first two input dimensions are symbols where they are B and S."""
    symbols: dict[int, int | str] = {B: "b", S: "s"}

    def info(label: str, x: Array) -> onnx.ValueInfoProto:
        dims = [symbols.get(n, n) for n in x.shape]
        return h.make_tensor_value_info(label, h.np_dtype_to_tensor_dtype(x.dtype), dims)

    graph = h.make_graph(
        nodes,
        "g",
        [info(k, x) for k, x in inputs.items()],
        [h.make_empty_tensor_value_info(o) for o in outputs],
        [onnx.numpy_helper.from_array(x, k) for k, x in weights.items()],
    )
    opsets = [h.make_opsetid("", opset), h.make_opsetid(MICROSOFT, 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=8)


def run(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, feeds)]


def fused(op: str, inputs: list[str], outputs: tuple[str, ...] = ("y",), **rest: Any) -> Any:
    return h.make_node(op, inputs, list(outputs), "node", domain=MICROSOFT, **rest)


def assert_close(want: list[Array], got: list[Array], tolerance: float = 1e-6) -> None:
    for a, b in zip(want, got, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)


def lengths(kind: str) -> Array:
    return mask_of(kind).sum(1).astype(np.int32)


def contractions(lowered: Lowered) -> list[str]:
    return [r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")]


def plans(lowered: Lowered) -> list[dict[str, str]]:
    nodes = [n for n in lowered.model.graph if n.op_type == "EPContext"]
    assert all(n.attributes["source"].as_string() == EP_NAME for n in nodes)
    return [parse(n.attributes["ep_cache_context"].as_string()) for n in nodes]


MASK = mask_of("holes")
X = {"x": random(B, S, WIDTH)}
ROWS = {"g": random(WIDTH, seed=1), "e": random(WIDTH, seed=2), "c": random(WIDTH, seed=3)}
QKV = {"w": random(WIDTH, 3 * WIDTH) / 2, "p": random(3 * WIDTH)}
TABLES = {
    "words": random(9, WIDTH),
    "places": random(6, WIDTH, seed=5),
    "types": random(2, WIDTH, seed=6),
}
TOKENS = {"ids": np.arange(B * S, dtype=np.int32).reshape(B, S) % 9, "kinds": mask_of("left")}
