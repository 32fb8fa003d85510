"""Gradients of attention lowered for GPUs: one node of a layer, equal to the reference."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from models.bert import BertConfig, bert
from models.opt import OptConfig, opt
from pitc.ir.engines import kernels_of
from pitc.ir.plans.ops import AttentionGrad
from pitc.ir.target import CPU, CUDA
from pitc.passes.lower.kernels import kernels_for
from tests.gpu.test_lower_cuda import lowered, plans
from tests.plan_reference import run_lowered

SIZES: dict[str, Any] = {"layers": 1, "hidden": 128, "heads": 2, "ffn": 256, "vocab": 50}
LOSS = pitc.Loss("cross_entropy", "logits")
NAMES = ("encoder", "decoder")


def gradient(name: str) -> ir.Model:
    """A step of an encoder that labels tokens, or of a decoder."""
    rng = np.random.default_rng(0)
    if name == "encoder":
        return pitc.gradient(bert(BertConfig(**SIZES, head="tokens"), rng), LOSS)
    masked = replace(LOSS, mask="attention_mask")
    return pitc.gradient(opt(OptConfig(**SIZES), rng, head=True), masked)


@pytest.mark.parametrize(("name", "kind"), [("encoder", "bias"), ("decoder", "sees_p0q0an")])
def test_a_layer_has_one_node_that_is_right(name: str, kind: str) -> None:
    source = ir.to_proto(gradient(name))
    found = lowered(source, CUDA)
    (plan,) = [p for p in plans(found.model) if p["op"] == "attention_grad"]
    assert plan["source"] == "PitCudaExecutionProvider" and plan["pairs"] == "0"
    symbol = f"attention_grad_d64_v64_{kind}_f32"
    assert plan["kernels"] == f"attention_grad:{symbol}"
    (request,) = [k for k in found.kernels if k.family == "attention_grad"]
    assert (request.kind, request.symbol) == ("cuda", symbol)
    records = [r.kernel for r in found.report.nodes if r.kernel]
    assert ("simt64x32",) in [r.tiles for r in records if r.operation == "attention_grad"]
    run = ort.InferenceSession(source.SerializeToString(), quiet())
    made = ir.to_proto(found.model)
    for lengths in ([20, 1, 7], [33]):
        given = feeds(lengths, name)
        for got, want in zip(run_lowered(made, given), run.run(None, given), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-6)


def quiet() -> ort.SessionOptions:
    """Options of sessions that do not warn of weights which are inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return options


def feeds(lengths: list[int], name: str) -> dict[str, np.ndarray]:
    """A batch, padded on the left."""
    rng = np.random.default_rng(len(lengths))
    mask = (np.arange(max(lengths))[::-1] < np.array(lengths)[:, None]).astype(np.int64)
    found = {"input_ids": rng.integers(1, 50, mask.shape) * mask, "attention_mask": mask}
    found |= {"token_type_ids": 0 * mask} if name == "encoder" else {}
    return found | {"labels": np.where(mask == 1, rng.integers(0, 2, mask.shape), -100)}


def test_no_list_of_keys_is_made() -> None:
    """CPUs get lists, GPUs the formula."""
    source = ir.to_proto(gradient("decoder"))
    ops = [{p["op"] for p in plans(lowered(source, target).model)} for target in (CPU, CUDA)]
    assert "pairs" in ops[0] and "pairs" not in ops[1]
    assert all("attention_grad" in each for each in ops)


@pytest.mark.parametrize(
    ("d", "dv", "tile"), [(64, 64, "64x32"), (8, 96, "64x16"), (256, 64, "32x8")]
)
def test_tiles_of_heads_of_any_width(d: int, dv: int, tile: str) -> None:
    fields: dict[str, Any] = {
        "heads": 2,
        "scale": 0.125,
        "bias": False,
        "pairs": False,
        "dtype": "float32",
    }
    plan = AttentionGrad(d=d, dv=dv, floor=-1e9, no_pairs="zero", **fields)
    assert kernels_of(plan, CUDA).record.tiles == (f"simt{tile}",)
    (request,) = kernels_for(plan, CUDA).values()
    assert request.symbol == f"attention_grad_d{d}_v{dv}_f32"
