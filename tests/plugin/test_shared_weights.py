"""Nodes that read the same weight hold it once, also while a session is made."""

from pathlib import Path

import numpy as np
import onnx

import pitc
from benchmarks.worst import peak_of
from models.graph import GraphBuilder
from pitc.measure.timing import allowed_cores

STEPS, K, N = 24, 1024, 1024  # the weight has 4 MB


def steps() -> onnx.ModelProto:
    """The input products of an LSTM that was unrolled: one weight, a product for each step."""
    b = GraphBuilder("steps")
    x = b.input("x", np.float32, ("b", STEPS, K))
    relu = b.op("Relu", x)
    weight = b.weight("w", np.random.default_rng(0).standard_normal((K, N), np.float32))
    rows = (b.op("Gather", relu, b.const(t, np.int64), axis=1) for t in range(STEPS))
    sums = [b.op("MatMul", row, weight) for row in rows]
    b.output(b.op("Sum", *sums), "y", np.float32, ("b", N))
    return b.model()


def test_a_session_reads_a_weight_once(tmp_path: Path) -> None:
    onnx.save(steps(), tmp_path / "m.onnx")
    compiled = pitc.compile(tmp_path / "m.onnx", output=tmp_path / "m.pitc")
    assert sum(record.lowering == "contract" for record in compiled.report.nodes) == STEPS
    feeds = {"x": np.ones((1, STEPS, K), np.float32)}
    source, ours = (
        peak_of(tmp_path / name, feeds, allowed_cores()) for name in ("m.onnx", "m.pitc")
    )
    assert ours - source < 10 * K * N * 4
