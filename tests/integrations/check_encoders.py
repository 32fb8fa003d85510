"""Optimum, transformers, sentence-transformers and fastembed, each against itself on plain ONNX."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from optimum.onnxruntime import ORTModelForFeatureExtraction
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoTokenizer, pipeline

import pitc
from pitc.session import quiet_options
from tests.integrations.conftest import TEXTS

PIT, CPU = "PitExecutionProvider", "CPUExecutionProvider"
WHERE = {"subfolder": "onnx", "file_name": "model.onnx"}
ATOL = 1e-5  # of hidden states of order 1 to 10


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    assert pitc.register() == PIT
    assert PIT in onnxruntime.get_available_providers()


@pytest.fixture(scope="module")
def plain(source: Path) -> Any:
    return ORTModelForFeatureExtraction.from_pretrained(source, provider=CPU, **WHERE)


@pytest.fixture(scope="module")
def by_name(folder: Path) -> Any:
    options = quiet_options()
    return ORTModelForFeatureExtraction.from_pretrained(
        folder, provider=PIT, session_options=options, **WHERE
    )


@pytest.fixture(scope="module")
def by_session(folder: Path) -> Any:
    session = pitc.load(folder / "onnx").session()
    return ORTModelForFeatureExtraction(config=AutoConfig.from_pretrained(folder), session=session)


@pytest.mark.parametrize("how", ["by_name", "by_session"])
def test_optimum(plain: Any, folder: Path, how: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(how)
    assert PIT in model.session.get_providers()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    live = batch["attention_mask"].numpy() != 0
    got, want = (m(**batch).last_hidden_state.numpy() for m in (model, plain))
    np.testing.assert_allclose(got[live], want[live], rtol=0, atol=ATOL)
    assert not got[~live].any() and want[~live].any()


@pytest.mark.parametrize("how", ["by_name", "by_session"])
def test_pipelines_of_transformers(
    plain: Any, folder: Path, how: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = request.getfixturevalue(how)
    both = [pipeline("feature-extraction", model=m, tokenizer=tokenizer) for m in (model, plain)]
    for text, got, want in zip(TEXTS, *(p(TEXTS, batch_size=5) for p in both), strict=True):
        count = len(tokenizer(text)["input_ids"])
        pair = np.array(got)[0, :count], np.array(want)[0, :count]
        np.testing.assert_allclose(*pair, rtol=0, atol=ATOL)


def test_sentence_transformers(folder: Path, source: Path, want: np.ndarray) -> None:
    found = []
    for where, provider in ((folder, PIT), (source, CPU)):
        wanted = {
            "provider": provider,
            "file_name": "onnx/model.onnx",
            "session_options": quiet_options(),
        }
        model = SentenceTransformer(str(where), backend="onnx", model_kwargs=wanted)
        assert provider in model[0].auto_model.session.get_providers()
        found.append(model.encode(TEXTS, batch_size=3, normalize_embeddings=True))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[0], want, rtol=0, atol=1e-6)


def test_fastembed(folder: Path, source: Path, want: np.ndarray) -> None:
    TextEmbedding.add_custom_model(
        model="local/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local/minilm"),
        dim=384,
        model_file="onnx/model.onnx",
    )
    found = []
    for where, provider in ((folder, PIT), (source, CPU)):
        model = TextEmbedding(
            "local/minilm", providers=[provider], specific_model_path=str(where), threads=1
        )
        assert provider in model.model.model.get_providers()
        found.append(np.stack(list(model.embed(TEXTS, batch_size=3))))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[0], want, rtol=0, atol=1e-6)
