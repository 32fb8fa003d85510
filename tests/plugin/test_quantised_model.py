"""A whole model with static scales, compiled, beside ONNX Runtime: attention is packed too, and
every product of 8 bits stays one.

A value near half a step falls to this side or that with the last bits of a sum, and moves what is
behind it, in ONNX Runtime's own optimised graph as well: that is the measure.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pitc
from models.bert import TINY, bert
from models.quantised import static
from pitc.ir import target as targets

CONFIG = replace(TINY, hidden=64, heads=4, layers=2)
Feeds = dict[str, np.ndarray]


@pytest.fixture(name="model", scope="module")
def _model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    return static(bert(CONFIG, rng), [feeds_of(rng, 16, 24)])


@pytest.fixture(name="compiled", scope="module")
def _compiled(model: onnx.ModelProto) -> Iterator[pitc.CompiledModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
        yield pitc.compile(model, target="cpu", padding="attention_mask")


def feeds_of(rng: np.random.Generator, batch: int, length: int) -> Feeds:
    live = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
    ids = rng.integers(1, CONFIG.vocab, live.shape)
    return {
        "input_ids": ids * live,
        "attention_mask": live.astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }


def options(level: Any = ort.GraphOptimizationLevel.ORT_ENABLE_ALL) -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.intra_op_num_threads, made.log_severity_level = 1, 4
    made.graph_optimization_level = level
    return made


def live_rows(session: Any, feeds: Feeds) -> np.ndarray:
    return np.asarray(session.run(None, feeds)[0])[feeds["attention_mask"] != 0]


def test_answers_are_as_near_as_those_of_the_optimised_graph(
    model: onnx.ModelProto, compiled: pitc.CompiledModel
) -> None:
    lowerings = Counter(r.lowering for r in compiled.report.nodes)
    assert lowerings["attention"] == CONFIG.layers
    text, levels = model.SerializeToString(), ort.GraphOptimizationLevel
    plain, fused = (
        ort.InferenceSession(text, options(level), ["CPUExecutionProvider"])
        for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL)
    )
    ours, rng = compiled.session(options()), np.random.default_rng(1)
    mine, theirs = [], []
    for batch, length in ((7, 9), (3, 24), (1, 1), (2, 17), (16, 24)):
        feeds = feeds_of(rng, batch, length)
        want = live_rows(plain, feeds)
        mine.append(np.abs(live_rows(ours, feeds) - want).ravel())
        theirs.append(np.abs(live_rows(fused, feeds) - want).ravel())
    a, b = np.concatenate(mine), np.concatenate(theirs)
    assert a.mean() <= 1.5 * b.mean() + 1e-6 and a.max() <= 2 * b.max() + 1e-5


def test_products_stay_of_8_bits(compiled: pitc.CompiledModel, tmp_path: Path) -> None:
    made = options()
    made.enable_profiling, made.profile_file_prefix = True, str(tmp_path / "run")
    session = compiled.session(made)
    session.run(None, feeds_of(np.random.default_rng(2), 4, 12))
    events = json.loads(Path(session.end_profiling()).read_text())
    found = Counter(e["args"]["op_name"] for e in events if e["name"].endswith("_kernel_time"))
    assert found["QLinearMatMul"] == 6 * CONFIG.layers
    assert not found.keys() & {"MatMul", "Gemm", "FusedMatMul", "Softmax", "Where"}
