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


def cached_feeds(side: str, past: int, new: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Feeds of `opt` with a cache, and its mask; the last sequence has no padding."""
    rng, config, total = np.random.default_rng(past), OptConfig(), past + new
    lengths = np.array([total // 2, max(total - 1, 0), 1, total])[:, None]
    at = np.arange(total)
    live = at >= total - lengths if side == "left" else at < lengths
    if side == "holes":
        live = (rng.random((4, total)) < 0.5) | (at >= total - 1)
    feeds: dict[str, np.ndarray] = {"input_ids": rng.integers(1, 97, (4, new))}
    feeds[PADDING] = live.astype(np.int64)
    shape = 4, config.heads, past, config.hidden // config.heads
    for layer in range(config.layers):
        for part in ("key", "value"):
            entry = f"past_key_values.{layer}.{part}"
            feeds[entry] = rng.standard_normal(shape, np.float32)
    return feeds, live


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_a_cache_is_read_where_it_lies(side: str) -> None:
    """Prompts and steps; on CPUs attention has the keys and values that are handed on."""
    model = opt(OptConfig(), np.random.default_rng(6), cached=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions(padding=PADDING))
    made = ir.serde.serialize_model(lowered.model)
    plans = {node.name: plan_of(node) for node in made.graph.node if node.op_type == "EPContext"}
    attentions = [n for n in made.graph.node if "op=attention\n" in plans.get(n.name, "")]
    assert [list(n.input[1:3]) for n in attentions] == [
        [f"present.{layer}.key", f"present.{layer}.value"] for layer in range(2)
    ]
    assert all("whole=1\n" in plans[n.name] for n in attentions)
    packs = [name for name, plan in plans.items() if "op=pack\n" in plan]
    assert packs and not any("present" in name for name in packs)
    for past, new in ((0, 7), (5, 3), (9, 1), (0, 1)):
        feeds, live = cached_feeds(side, past, new)
        want = [np.asarray(x) for x in session.run(None, feeds)]
        got = [np.asarray(x) for x in run_lowered(made, feeds)]
        rows = live[:, past:]
        np.testing.assert_array_equal(got[0][~rows], 0)
        assert close(got[0][rows], want[0][rows])
        for x, y in zip(got[1:], want[1:], strict=True):
            assert close(x.transpose(0, 2, 1, 3)[live], y.transpose(0, 2, 1, 3)[live])


def plan_of(node: onnx.NodeProto) -> str:
    """The plan of a PIT node."""
    (plan,) = (a.s for a in node.attribute if a.name == "ep_cache_context")
    return bytes(plan).decode()


@pytest.mark.parametrize("name", BUILDERS)
def test_without_padding_rows_stay(name: str) -> None:
    """Padded rows of the last hidden state are outputs like any other. Behind a causal mask the
    first of them see padded keys alone, so that these are read: there pairs are left out.
    """
    model = BUILDERS[name](np.random.default_rng(4))
    lowered = run_passes(ir.serde.deserialize_model(model), LowerOptions())
    found = Counter(r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm"))
    assert found["attention"] == 2
    assert found["packed"] == (4 if name == "t5" else 0)


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
