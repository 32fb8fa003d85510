"""Attention under masks of pairs: ONNX Runtime against numpy in float64, written apart."""

from collections.abc import Callable
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

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
from models.attention_reference import (
    ROWS,
    attended,
    attention_reference,
    live_pairs,
    longformer_reference,
    modern_bert_reference,
    seen_by,
)
from models.block_masks import Bars, Blocks
from models.graph import Array
from models.longformer import LongformerConfig, draw_long_tokens, draw_longformer, longformer
from models.modern_bert import ModernBertConfig, draw_weights, modern_bert
from models.pair_masks import Causal, Documents, Feeds, Window, pieces
from tests.attention_masks import (
    LENGTHS,
    LONG,
    MASKS,
    TINY,
    bert_tokens,
    lengths,
    long_tokens,
)

MOST = 1e-6  # norm-wise


def session_of(model: onnx.ModelProto) -> Callable[[Feeds], Array]:
    """The model's first output in ONNX Runtime."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feeds: np.asarray(session.run(None, feeds)[0])


def error(got: Array, want: Array) -> float:
    assert got.shape == want.shape
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", MASKS)
def test_attention(name: str) -> None:
    config = AttentionConfig(MASKS[name], 3, 16)
    run = session_of(attention(config))
    for length, batch in product(lengths(config.mask), (1, 3)):
        feeds = draw(config, np.random.default_rng(length), batch, length)
        assert error(run(feeds), attention_reference(config, feeds)) < MOST, (batch, length)


@pytest.mark.parametrize("name", ["causal window", "no pair"])
def test_attention_beside_sinks(name: str) -> None:
    config = AttentionConfig(MASKS[name], 3, 16, (-1.0, 0.5, 3.0))
    run = session_of(attention(config))
    for length, batch in product((1, 2, 65), (1, 3)):
        feeds = draw(config, np.random.default_rng(length), batch, length)
        got, want = run(feeds), attention_reference(config, feeds)
        assert np.linalg.norm(got - want) <= MOST * np.linalg.norm(want), (batch, length)


@pytest.mark.parametrize("name", ["window and flags of global tokens", "documents", "no pair"])
def test_layer(name: str) -> None:
    config = AttentionConfig(MASKS[name], 3, 16)
    model = attention_layer(config, np.random.default_rng(1))
    weights = {w.name: numpy_helper.to_array(w).astype(float) for w in model.graph.initializer}
    run = session_of(model)
    for length, batch in product(LENGTHS, (1, 3)):
        feeds = draw_layer(config, np.random.default_rng(length), batch, length)
        q, k, v = (
            (feeds["x"] @ weights[name]).reshape(batch, length, 3, 16).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        seen = seen_by(config.mask, feeds, batch, length)
        y = attended(q, k, v, lambda row, at, seen=seen: seen[row, 0, at], np.arange(length))
        want = y.transpose(0, 2, 1, 3).reshape(batch, length, 48) @ weights["out"]
        assert error(run(feeds), want) < MOST, (batch, length)


@pytest.mark.parametrize("past", [0, 1, 40])
def test_step(past: int) -> None:
    """Also that the longer cache is there, and that heads are those of their group."""
    config = StepConfig(16, 6, 2, 8)
    model = attention_step(config)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for length, batch in product((1, 3, 17), (1, 3)):
        feeds = draw_step(config, np.random.default_rng(length), batch, length, past)
        y, key, value = map(np.asarray, session.run(None, feeds))
        assert error(y, attention_reference(config, feeds)) < MOST
        np.testing.assert_array_equal(key, np.concatenate([feeds["past_key"], feeds["k"]], 2))
        np.testing.assert_array_equal(value, np.concatenate([feeds["past_value"], feeds["v"]], 2))


def test_reference_of_a_query() -> None:
    """By hand: two keys are seen, or none."""
    q = np.array([[[[2.0, 0.0]] * 2]])
    k, v = np.array([[[[1.0, 0.0], [0.0, 5.0], [3.0, 0.0]]]]), np.array([[[[1.0], [2.0], [6.0]]]])
    seen = np.array([[True, False, True], [False, False, False]])
    y = attended(q, k, v, lambda _, at: seen[at], np.arange(2))[0, 0, :, 0]
    first, third = np.exp(2 / np.sqrt(2)), np.exp(6 / np.sqrt(2))
    np.testing.assert_allclose(y, [(first + 6 * third) / (first + third), 3.0])


def test_some_rows_of_the_reference() -> None:
    config = AttentionConfig(Window(9, 3), 2, 8)
    feeds = draw(config, np.random.default_rng(0), 2, ROWS + 40)
    places = np.array([0, 7, ROWS, ROWS + 39])
    some = attention_reference(config, feeds, places)
    np.testing.assert_allclose(some, attention_reference(config, feeds)[:, places], rtol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_live_pairs(name: str) -> None:
    """Counted by rows, they are those of the whole mask."""
    mask = MASKS[name]
    for length in (
        lengths(mask)[-1],
        lengths(mask)[-1] + (64 if isinstance(mask, Blocks) else 150),
    ):
        feeds = mask.draw(np.random.default_rng(3), 2, length)
        whole = seen_by(mask, feeds, 2, length)
        assert live_pairs(mask, feeds, 2, np.arange(length), length) == whole.sum()


def test_what_is_drawn() -> None:
    """Documents and bars ascend and are as long as they should be; each bar ends in a summary."""
    rng = np.random.default_rng(0)
    cut = pieces(rng, 3, 4096, 400)
    assert (np.diff(cut, axis=1) >= 0).all() and (cut[:, -1] == 9).all() and (cut[:, 0] == 0).all()
    assert not pieces(rng, 2, 1, 400).any()
    drawn = Bars().draw(rng, 2, 4096)
    sizes = [np.bincount(row) for row in drawn["bar"]]
    assert all(96 <= n <= 160 for row in sizes for n in row[:-1])
    ends = np.diff(drawn["bar"], axis=1, append=-1) != 0
    assert (drawn["summary"][:, :-1] == ends[:, :-1]).all()
    flags = Window(9, 16).draw(rng, 3, 200)["global"]
    assert (flags.sum(1) == 16).all() and flags.dtype == np.int64
    assert Window(9, 16, "bool").draw(rng, 1, 5)["global"].all()
    assert Blocks(32, 0.0).draw(rng, 2, 100)["blocks"].sum() == 8


def test_windows_in_keys() -> None:
    """A window holds as many keys as its name says."""
    at = np.array([100])
    assert Window(9).seen({}, 0, at, 200).sum() == 9
    assert Causal(7).seen({}, 0, at, 200).sum() == 7
    assert Causal().seen({}, 0, at, 200).sum() == 101
    feeds = {"segments": np.repeat([[4, -1, 4]], [60, 60, 80], axis=1)}
    assert Documents(20).seen(feeds, 0, np.array([5, 70, 150]), 200).sum(1).tolist() == [6, 11, 91]


def test_modern_bert() -> None:
    """Norms, gates, positions and both kinds of layers; padding is hidden."""
    rng = np.random.default_rng(0)
    weights = draw_weights(TINY, rng)
    run = session_of(modern_bert(TINY, weights))
    for feeds in bert_tokens(rng):
        assert error(run(feeds), modern_bert_reference(TINY, weights, feeds)) < MOST


def test_longformer() -> None:
    """Each sequence has global tokens of its own, or none; padding is hidden."""
    rng = np.random.default_rng(0)
    weights = draw_longformer(LONG, rng)
    run = session_of(longformer(LONG, weights))
    for feeds in long_tokens(rng):
        assert error(run(feeds), longformer_reference(LONG, weights, feeds)) < MOST


def test_what_a_longformer_sees() -> None:
    """Far keys change a row where they or it are global, and only there."""
    rng = np.random.default_rng(0)
    config = LongformerConfig(1, Window(9, globals=1), 32, 4, 64, 50, 256)
    run = session_of(longformer(config, draw_longformer(config, rng)))
    feeds = draw_long_tokens(config, rng, 1, 100)
    before = run(feeds)
    feeds["input_ids"][0, 60] = feeds["input_ids"][0, 60] % 49 + 1
    moved = np.flatnonzero(np.abs(run(feeds) - before).max(-1)[0])
    assert moved.tolist() == [0, *range(56, 65)]


def test_sizes_of_modern_bert() -> None:
    config = ModernBertConfig()
    assert config.size == 64 and len(config.masks) == 3
    assert config.tensors["layers.2.mlp.Wi"] == (768, 2304)
