"""Models of attention under masks of pairs, lowered: plans in numpy answer as ONNX Runtime does."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.pair_masks import Everything
from pitc.ir import target as targets
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.attention_masks import MASKS, MODELS
from tests.lower_support import plans
from tests.plan_reference import run_lowered


@pytest.fixture(name="all_pays", params=[False, True], ids=["prices", "all pays"])
def _all_pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the prices of a machine, and with all that can be packed."""
    if request.param:
        free = replace(targets.CPU, flops_per_byte=0, least_extent=1)
        monkeypatch.setattr(targets, "CPU", free)
    return bool(request.param)


@pytest.mark.parametrize("name", MODELS)
def test_answers(name: str, all_pays: bool) -> None:
    """Between projections every mask has lists."""
    proto, drawn = MODELS[name]()
    lowered = run_passes(ir.serde.deserialize_model(proto), LowerOptions())
    if all_pays and name.startswith("layer") and MASKS[name.split(", ", 1)[1]] != Everything():
        (plan,) = [plan for plan in plans(lowered) if plan["op"] == "attention"]
        assert plan["pairs"] == "1"
    found = ir.serde.serialize_model(lowered.model)
    onnx.checker.check_model(found)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in drawn:
        sizes = str({n: x.shape for n, x in feeds.items()})
        for got, want in zip(run_lowered(found, feeds), session.run(None, feeds), strict=True):
            wanted = np.asarray(want)
            assert np.isfinite(wanted).all(), sizes
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=sizes)
