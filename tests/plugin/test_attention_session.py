"""Models of attention under masks of pairs, compiled: sessions answer as ONNX Runtime does."""

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

import pitc
from pitc.ir import target as targets
from tests.attention_masks import MODELS
from tests.runtime_support import use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)


@pytest.fixture(name="_prices", params=[False, True], ids=["prices", "all pays"], autouse=True)
def _all_pays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the prices of a machine, and with all that can be packed."""
    if request.param:
        free = replace(targets.CPU, flops_per_byte=0, least_extent=1)
        monkeypatch.setattr(targets, "CPU", free)


@pytest.mark.parametrize("name", MODELS)
def test_answers(name: str) -> None:
    proto, drawn = MODELS[name]()
    compiled = pitc.compile(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for feeds in drawn:
        sizes, got = str({n: x.shape for n, x in feeds.items()}), compiled.run(feeds)
        for output, want in zip(names, session.run(names, feeds), strict=True):
            wanted = np.asarray(want)
            np.testing.assert_allclose(got[output], wanted, rtol=1e-4, atol=1e-5, err_msg=sizes)
