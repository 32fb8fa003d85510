"""The table of `docs/precision.md`: errors of kernels against float64, beside ONNX Runtime's."""

import re
from collections.abc import Callable
from dataclasses import replace
from math import erf
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import pitc
from models.graph import GraphBuilder
from pitc.ir import target as targets

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"
ROW = re.compile(r"\| (.+?) \| ([\d.]+e-\d+) \| ([\d.]+e-\d+) \|")
WORSE = 1.35  # than ONNX Runtime's error
ROWS, COLUMNS, HEAD = 96, 128, 64
Array = np.ndarray
Exact = Callable[[Array, list[Array]], Array]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Gelu": gelu,
    "Swish": silu,
    "Relu": lambda x: np.maximum(x, 0),
}


def product(k: int, before: str = "", behind: str = "") -> tuple[GraphBuilder, Exact, int]:
    """A product over k, and what it is exactly."""
    g = GraphBuilder("product", 24)
    h = g.input("x", np.float32, ("b", "s", k))
    g.input("mask", np.bool_, ("b", "s"))
    w = np.random.default_rng(k).standard_normal((k, COLUMNS)) / np.sqrt(k)
    h = g.op("Relu", h) if before else h
    h = g.op("MatMul", h, g.weight("w", w.astype(np.float32)))
    h = g.op(behind, h) if behind else h
    written(g, h, COLUMNS)

    def exact(x: Array, weights: list[Array]) -> Array:
        y = (np.maximum(x, 0) if before else x) @ weights[0]
        return ACTIVATIONS[behind](y) if behind else y

    return g, exact, k


def attention(keys: int) -> tuple[GraphBuilder, Exact, int]:
    """One head, over keys of which a mask hides some."""
    g = GraphBuilder("attention", 24)
    x = g.input("x", np.float32, ("b", "s", HEAD))
    g.input("mask", np.bool_, ("b", "s"))
    rng = np.random.default_rng(keys)
    parts = []
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        w = g.weight(name, (rng.standard_normal((HEAD, HEAD)) / 8).astype(np.float32))
        split = g.op("Reshape", g.op("MatMul", x, w), g.ints(0, 0, 1, HEAD))
        parts.append(g.op("Transpose", split, perm=list(perm)))
    low = g.const(np.finfo(np.float32).min, np.float32)
    bias = g.op("Where", g.op("Unsqueeze", "mask", g.ints(1, 2)), g.const(0, np.float32), low)
    s = g.op("Mul", g.op("MatMul", parts[0], parts[1]), g.const(0.125, np.float32))
    h = g.op("MatMul", g.op("Softmax", g.op("Add", s, bias), axis=-1), parts[2])
    h = g.op("Reshape", g.op("Transpose", h, perm=[0, 2, 1, 3]), g.ints(0, 0, HEAD))
    written(g, h, HEAD)

    def exact(x: Array, weights: list[Array]) -> Array:
        q, k, v = (x @ w for w in weights)
        s = q @ k.transpose(0, 2, 1) * 0.125
        s[~np.broadcast_to(mask_of(*x.shape[:2])[:, None], s.shape)] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v

    return g, exact, HEAD


def written(g: GraphBuilder, h: str, width: int) -> None:
    live = g.op("Unsqueeze", "mask", g.ints(2))
    y = g.op("Where", live, h, g.const(0, np.float32))
    g.output(y, "y", np.float32, ("b", "s", width))


def mask_of(batch: int, length: int) -> Array:
    return np.arange(length) < np.linspace(length, length // 3, batch, dtype=int)[:, None]


CASES: dict[str, tuple[Callable[[], tuple[GraphBuilder, Exact, int]], int]] = {
    "a product of 768 terms": (lambda: product(768), ROWS),
    "a product of 3072 terms": (lambda: product(3072), ROWS),
    "a product of 8192 terms": (lambda: product(8192), ROWS),
    "the same of 768, half of them zeros": (lambda: product(768, "Relu"), ROWS),
    "the same of 3072, half of them zeros": (lambda: product(3072, "Relu"), ROWS),
    "the same of 8192, half of them zeros": (lambda: product(8192, "Relu"), ROWS),
    "a product of 768 terms, then Gelu": (lambda: product(768, "", "Gelu"), ROWS),
    "a product of 768 terms, then Swish": (lambda: product(768, "", "Swish"), ROWS),
    "attention to 512 keys": (lambda: attention(512), 512),
    "attention to 2048 keys": (lambda: attention(2048), 2048),
}


def errors_of(name: str) -> tuple[float, float]:
    """Norm-wise relative errors of pitc and of ONNX Runtime."""
    make, length = CASES[name]
    g, exact, width = make()
    proto = g.model()
    mask = mask_of(2, length)
    x = np.random.default_rng(1).standard_normal((2, length, width)).astype(np.float32)
    feeds = {"x": x, "mask": mask}
    floats = [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]
    weights = [np.frombuffer(t.raw_data, np.float32).reshape(t.dims) for t in floats]
    want = exact(x.astype(np.float64), [w.astype(np.float64) for w in weights])[mask]
    made = pitc.compile(proto, suggest=False)
    assert made.manifest.pit_nodes
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = made.run(feeds)["y"], np.asarray(session.run(None, feeds)[0])
    size = np.linalg.norm(want)
    ours, theirs = (float(np.linalg.norm(y[mask] - want) / size) for y in found)
    return ours, theirs


@pytest.mark.parametrize("name", CASES)
def test_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what the page says, and hardly larger than ONNX Runtime's."""
    cpu = replace(targets.CPU, flops_per_byte=0, least_extent=1, least_weight=1)
    monkeypatch.setattr(targets, "CPU", cpu)
    ours, theirs = errors_of(name)
    print(f"| {name} | {ours:.1e} | {theirs:.1e} |")
    assert ours <= WORSE * theirs
    said = {row[1]: (float(row[2]), float(row[3])) for row in ROW.finditer(PAGE.read_text("utf-8"))}
    assert said.keys() == CASES.keys()
    assert ours == pytest.approx(said[name][0], rel=0.15)
    assert theirs == pytest.approx(said[name][1], rel=0.5)  # its blocks depend on the CPU
