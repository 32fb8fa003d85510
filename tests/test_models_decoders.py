"""OPT-like decoders and T5-like encoders: what the builders mean, and that they run packed."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.opt import OptConfig, opt
from models.t5 import T5Config, t5_decoder, t5_encoder
from pitc.passes.pipeline import LowerOptions, run_passes
from tests.plan_reference import run_lowered

RTOL = 1e-5
PADDING = "attention_mask"
BUILDERS = {
    "opt": lambda rng: opt(OptConfig(), rng),
    "t5": lambda rng: t5_encoder(T5Config(), rng),
}


def feeds_of(rng: np.random.Generator, side: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    lengths, at = np.array([9, 1, 5, 7]), np.arange(9)
    mask = at < lengths[:, None] if side == "right" else at >= 9 - lengths[:, None]
    ids = rng.integers(1, 97, mask.shape)
    return {"input_ids": ids, PADDING: mask.astype(np.int64)}, mask


def session_of(model: onnx.ModelProto) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The model's only output in ONNX Runtime."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feeds: np.asarray(session.run(None, feeds)[0])


def close(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.linalg.norm(x - y) <= RTOL * np.linalg.norm(y))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", BUILDERS)
def test_padding_does_not_change_a_sequence(name: str, side: str) -> None:
    """The model itself: a padded sequence has the rows that it has alone."""
    rng = np.random.default_rng(2)
    model = BUILDERS[name](rng)
    run = session_of(model)
    feeds, mask = feeds_of(rng, side)
    batch = run(feeds)
    for row, live in enumerate(mask):
        alone = {key: x[row : row + 1, live] for key, x in feeds.items()}
        assert close(batch[row, live], run(alone)[0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_contraction_runs_packed(name: str, side: str) -> None:
    rng = np.random.default_rng(3)
    model = BUILDERS[name](rng)
    run = session_of(model)
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions(padding=PADDING))
    records = [r for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm")]
    assert {r.lowering for r in records} == {"packed", "folded", "attention"}
    feeds, mask = feeds_of(rng, side)
    want = run(feeds)
    got = np.asarray(run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0])
    np.testing.assert_array_equal(got[~mask], 0)
    assert close(got[mask], want[mask])


@pytest.mark.parametrize("name", BUILDERS)
def test_without_padding_rows_stay(name: str) -> None:
    """Padded rows of the last hidden state are outputs like any other. Behind a causal mask the
    first of them see padded keys alone, so that these are read.
    """
    model = BUILDERS[name](np.random.default_rng(4))
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions())
    found = Counter(r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm"))
    assert found["attention"] == (2 if name == "t5" else 0)
    assert found["packed"] == 2 * found["attention"]


def t5_decoder_feeds(rng: np.random.Generator, side: str) -> tuple[dict[str, np.ndarray], ...]:
    """Feeds of the decoder behind an encoder of other lengths, and both masks."""
    feeds, mask = feeds_of(rng, side)
    source = np.arange(7) < np.array([[3], [7], [1], [5]])
    source = source if side == "right" else source[:, ::-1]
    feeds["encoder_hidden_states"] = rng.normal(0, 1, (4, 7, 32)).astype(np.float32)
    feeds["encoder_attention_mask"] = source.astype(np.int64)
    return feeds, {PADDING: mask, "encoder_attention_mask": source}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_decoder_behind_an_encoder_has_two_masks(side: str) -> None:
    """A sequence has the rows that it has alone; under both masks, contractions run packed."""
    rng = np.random.default_rng(5)
    model = t5_decoder(T5Config(), rng)
    feeds, masks = t5_decoder_feeds(rng, side)
    run = session_of(model)
    want = run(feeds)
    for row, (live, kept) in enumerate(zip(*masks.values(), strict=True)):
        alone = {
            key: x[row : row + 1, kept if key.startswith("encoder") else live]
            for key, x in feeds.items()
        }
        assert close(want[row, live], run(alone)[0])
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions(padding=PADDING))
    plans = [r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"]
    assert plans.count("attention") == 4 and "ordinary" not in plans
    got = np.asarray(run_lowered(ir.serde.serialize_model(lowered.model), feeds)[0])
    np.testing.assert_array_equal(got[~masks[PADDING]], 0)
    assert close(got[masks[PADDING]], want[masks[PADDING]])
