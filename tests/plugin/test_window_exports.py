"""Longformer and LED as `pitc.from_torch` exports them: windows and global tokens as masks."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import pitc
from pitc.check.reference import plain_session
from pitc.importer import load_model
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from tests.fact_check import probed
from tests.lowered_exports import lowered_export
from tests.plugin.test_exports import RTOL, TARGET, WINDOWS, contractions
from tests.runtime_support import Array, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

SIZES = (1, 2, 17, 63, 64, 65, 200)
PADDED = ("no", "right", "left", "holes", "empty")
GLOBAL = ("no", "first", "several", "all", "each")
MASK, DECODER = "attention_mask", "decoder_attention_mask"


def mask_of(kind: str, batch: int, s: int, rng: np.random.Generator) -> Array:
    """Which tokens live; of `empty`, the last sequence has none."""
    at, lengths = np.arange(s), rng.integers(1, s + 1, (batch, 1))
    holes = rng.random((batch, s)) < 0.6
    holes[:, -1] = True
    masks = {"right": at < lengths, "left": at >= s - lengths, "holes": holes}
    mask = masks.get(kind, np.ones((batch, s), bool)).copy()
    mask[-1] &= kind != "empty"
    return mask


def global_of(kind: str, batch: int, s: int, rng: np.random.Generator) -> Array:
    """Which tokens are global; of `each`, others in every sequence, padded ones, too."""
    at = np.arange(s)
    rows = {"no": at < 0, "first": at == 0, "several": at % 7 == 3, "all": at >= 0}
    return np.tile(rows[kind], (batch, 1)) if kind in rows else rng.random((batch, s)) < 0.3


def feeds_of(
    file: Path, batch: int, s: int, padded: str, tokens: str, seed: int
) -> dict[str, Array]:
    """Inputs of one run; every sequence of a decoder has a token."""
    rng = np.random.default_rng(seed)
    masks = {
        "attention_mask": mask_of(padded, batch, s, rng),
        "global_attention_mask": global_of(tokens, batch, s, rng),
        "decoder_attention_mask": mask_of("right", batch, TARGET, rng),
    }
    feeds = {}
    for i in onnx.load(file).graph.input:
        length = TARGET if i.name.startswith("decoder") else s
        ids = rng.integers(2, 100, (batch, length))
        feeds[i.name] = masks[i.name].astype(np.int64) if i.name in masks else ids
    return feeds


def runs(file: Path) -> Iterator[dict[str, Array]]:
    """All sizes; every kind of padding meets every kind of global tokens."""
    kinds = list(product(PADDED, GLOBAL))
    for seed, (s, batch) in enumerate(product(SIZES, (1, 3))):
        for padded, tokens in kinds[seed % 2 :: 2]:
            yield feeds_of(file, batch, s, padded, tokens, seed)


CASES = [(f, p) for f in WINDOWS for p in (None, MASK, DECODER) if p != DECODER or "led" in f.stem]


def label(value: Path | str | None) -> str:
    return value.stem if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("file", "padding"), CASES, ids=label)
def test_every_attention_leaves_out_what_is_hidden(file: Path, padding: str | None) -> None:
    """Two layers, each with a local attention and one of global tokens; of a decoder, whose batch
    and heads are one dimension, the causal one and the one to the encoder. No option is needed.
    """
    lowered, decoder = lowered_export(file, padding), "led" in file.stem
    assert contractions(lowered)["attention"] == 4 + 2 * decoder
    lists = [n for n in lowered.model.graph if "[pairs]" in str(n.name)]
    assert len(lists) == 3 + decoder  # windows of two widths, global tokens; the order


@pytest.mark.parametrize("file", WINDOWS, ids=label)
def test_facts_hold_without_padding(file: Path) -> None:
    """(With it: test_exports.py.)"""
    model = load_model(file)
    normalise(model)
    graph, given_up = analyse(model, None)
    feeds = [feeds_of(file, 3, 9, "empty", "each", 1), feeds_of(file, 1, 8, "holes", "several", 2)]
    result = probed(onnx.load(file), graph, given_up, None, feeds, every=16)
    assert not result.failures
    assert result.fill_checks and result.dead_checks


@pytest.mark.parametrize(("file", "padding"), CASES, ids=label)
def test_answers(file: Path, padding: str | None) -> None:
    model, reference = pitc.compile(file, padding=padding, suggest=False), plain_session(file)
    assert model.manifest.pit_nodes
    for feeds in runs(file):
        (want,), (got,) = reference.run(None, feeds), model.run(feeds).values()
        assert np.isfinite(want).all()
        if padding is not None and feeds[padding].shape == want.shape[:2]:
            live = feeds[padding] != 0
            assert not got[~live].any()
            want, got = want[live], got[live]
        assert np.linalg.norm(want - got) <= RTOL * np.linalg.norm(want)
