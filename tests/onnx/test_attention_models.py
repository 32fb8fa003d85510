"""Models of attention under masks of pairs, compiled: they answer as ONNX Runtime does."""

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import pitc
from models.attention import (
    AttentionConfig,
    StepConfig,
    attention,
    attention_layer,
    attention_step,
    draw,
    draw_layer,
    draw_step,
)
from models.longformer import LongformerConfig, draw_long_tokens, draw_longformer, longformer
from models.modern_bert import ModernBertConfig, draw_tokens, draw_weights, modern_bert
from models.pair_masks import Everything, Feeds, Window
from pitc.ir import target as targets
from tests.attention_masks import LENGTHS, MASKS, lengths
from tests.runtime_support import use_built_provider

provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)
pytestmark = pytest.mark.filterwarnings("ignore::pitc.errors.SuggestionWarning")


@pytest.fixture(name="_all_pays", params=[False, True], ids=["prices", "all pays"], autouse=True)
def _prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the prices of a machine, and with all that can be packed."""
    if request.param:
        free = replace(targets.CPU, flops_per_byte=0, least_extent=1)
        monkeypatch.setattr(targets, "CPU", free)


class Pair:
    """A model in ONNX Runtime, and compiled."""

    def __init__(self, model: onnx.ModelProto) -> None:
        source = model.SerializeToString()
        self.source = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
        self.compiled = pitc.compile(model)

    def check(self, feeds: Feeds) -> None:
        """Every output; NaN is none of the answers."""
        names = [output.name for output in self.source.get_outputs()]
        got = self.compiled.run(feeds)
        for name, want in zip(names, map(np.asarray, self.source.run(names, feeds)), strict=True):
            sizes = {n: x.shape for n, x in feeds.items()}
            assert np.isfinite(got[name]).all(), sizes
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=f"{sizes}")


@pytest.mark.parametrize("name", MASKS)
def test_attention(name: str) -> None:
    config = AttentionConfig(MASKS[name], 3, 16)
    pair = Pair(attention(config))
    for length, batch in product(lengths(config.mask), (1, 3)):
        pair.check(draw(config, np.random.default_rng(length), batch, length))


@pytest.mark.parametrize("name", MASKS)
def test_attention_between_projections(name: str) -> None:
    config = AttentionConfig(MASKS[name], 3, 16)
    pair = Pair(attention_layer(config, np.random.default_rng(1)))
    for length, batch in product(lengths(config.mask), (1, 3)):
        pair.check(draw_layer(config, np.random.default_rng(length), batch, length))


def test_a_step_behind_a_past() -> None:
    config = StepConfig(16, 6, 2, 16)
    pair = Pair(attention_step(config))
    for past, length, batch in product((0, 1, 15, 200), (1, 2, 17), (1, 3)):
        pair.check(draw_step(config, np.random.default_rng(past), batch, length, past))


def test_modern_bert() -> None:
    config = ModernBertConfig((Everything(), Window(9), Window(9)), 32, 4, 24, 50)
    rng = np.random.default_rng(0)
    pair = Pair(modern_bert(config, draw_weights(config, rng)))
    for length, batch in product(LENGTHS, (1, 3)):
        feeds = draw_tokens(config, rng, batch, length)
        if batch > 1:
            feeds["attention_mask"][0, length // 2 :] = 0
        pair.check(feeds)


def test_longformer() -> None:
    """Local rows, and the rows of global tokens, which few or no token is."""
    config = LongformerConfig(2, Window(9, globals=2), 32, 4, 64, 50, 256)
    rng = np.random.default_rng(0)
    pair = Pair(longformer(config, draw_longformer(config, rng)))
    for length, batch in product(LENGTHS, (1, 3)):
        feeds = draw_long_tokens(config, rng, batch, length)
        if batch > 1:
            feeds["attention_mask"][0, length // 2 + 1 :] = 0
            feeds["global_attention_mask"][1, length // 2] = 1
            feeds["global_attention_mask"][2] = 0
        pair.check(feeds)
