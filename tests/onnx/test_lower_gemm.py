"""Fusion behind packed contractions: what is taken in, and how weights are shared."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from models.bert import BertConfig, bert
from pitc.ir.panels import PANEL_WIDTH, pack_panels
from pitc.passes.lower.share import share_panels
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.plan_reference import parse, unpack_panels


@pytest.mark.parametrize("size", [(1, 1), (3, 64), (5, 65), (128, 200)])
def test_panels_hold_the_weight_and_zeros(size):
    k, n = size
    w = np.random.default_rng(0).normal(size=size).astype(np.float32)
    panels = pack_panels(w)
    assert panels.shape == (-(-n // PANEL_WIDTH), k, PANEL_WIDTH)
    np.testing.assert_array_equal(unpack_panels(panels, n), w)
    full = panels.transpose(1, 0, 2).reshape(k, -1)
    np.testing.assert_array_equal(full[:, n:], 0)


def plans(model: ir.Model) -> list[dict[str, str]]:
    texts = [
        n.attributes["ep_cache_context"].as_string()
        for n in model.graph
        if n.op_type == "EPContext"
    ]
    return [parse(text) for text in texts]


@pytest.mark.parametrize("linear", ["matmul", "transpose", "gemm"])
def test_a_layer_becomes_six_gemms(linear):
    config = BertConfig(layers=1, mask="fill_min", head="none", linear=linear, token_types="none")
    model = bert(config, np.random.default_rng(0))
    source = ir.serde.deserialize_model(model)
    lowered = run_passes(source.clone(), LowerOptions("attention_mask"))
    gemms = [p for p in plans(lowered.model) if p["kind"] == "dense"]
    assert [(p["activation"], p["residual"]) for p in gemms].count(("none", "0")) == 3
    assert [(p["activation"], p["residual"]) for p in gemms].count(("none", "1")) == 2
    assert [(p["activation"], p["residual"]) for p in gemms].count(("gelu", "0")) == 1
    assert all(p["bias"] == "1" for p in gemms)
    left = {n.op_type for n in lowered.model.graph}
    assert not left & {"MatMul", "Gemm", "Erf", "Softmax"}
    assert len([v for v in lowered.model.graph.initializers if v.endswith(".panels")]) == 6


@pytest.mark.parametrize("linear", ["matmul", "transpose", "gemm"])
def test_the_source_graph_reads_shared_panels(linear):
    """The same numbers, bit for bit, from one copy of the weights."""
    rng = np.random.default_rng(0)
    config = BertConfig(layers=1, hidden=40, heads=4, ffn=100, linear=linear, head="mean")
    model = bert(config, rng)
    fallback = ir.serde.deserialize_model(model)
    lowered = run_passes(fallback.clone(), LowerOptions())
    share_panels(fallback, lowered.model, lowered.panels)
    shared = ir.serde.serialize_model(fallback)
    onnx.checker.check_model(shared, full_check=True)
    kept = {w.name for w in shared.graph.initializer}
    assert len([n for n in kept if n.endswith(".panels")]) == 6
    assert not kept & {name for name, *_ in lowered.panels.made}
    feeds = {
        i.name: rng.integers(0, 2, (2, 5)).astype(
            helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        )
        for i in model.graph.input
    }
    want, got = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for m in (model, shared)
    )
    np.testing.assert_array_equal(got[0], want[0])
