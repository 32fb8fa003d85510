"""Real exports with masks of pairs (models/export/masks): windows, documents, both ways, caches.

The files are what torch and transformers wrote; only sizes and weights are small. Everything pays
here that can be packed: what pitc decides is then a matter of rules, not of these widths.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import pitc
from pitc.check.reference import plain_session
from pitc.importer import load_model
from pitc.ir import target as targets
from pitc.ir.report import Report
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from tests.fact_check import probed
from tests.plugin.test_exports import FOLDER, MAX_BYTES, RTOL, name
from tests.runtime_support import Array, use_built_provider

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

MASKS = sorted((FOLDER.parent / "masks").glob("*.onnx"))
#: Others that take long sequences.
LONG = [FOLDER / f"{stem}.onnx" for stem in ("modernbert-sdpa-dynamo", "t5-encoder-eager-dynamo")]
PADDING = "attention_mask"
SIZES = (1, 2, 17, 63, 64, 65, 200)
PASTS = (0, 1, 70)
KINDS = ("full", "right", "left", "holes")
STEPS = {"Cast", "Identity", "IsNaN", "Reshape", "Slice", "Where"}  # between softmax and product
ALL_PAYS = replace(targets.CPU, flops_per_byte=0, least_extent=1, least_weight=1)


@functools.cache
def inputs_of(file: Path) -> dict[str, np.dtype[np.generic]]:
    inputs = onnx.load(file).graph.input
    types = {i.name: i.type.tensor_type.elem_type for i in inputs}
    return {n: helper.tensor_dtype_to_np_dtype(t) for n, t in types.items()}


def cases() -> list[tuple[Path, str | None]]:
    """Every export, without the option and with it."""
    return [(f, p) for f in MASKS + LONG for p in (None, PADDING) if p is None or p in inputs_of(f)]


def label(x: object) -> str:
    return x.stem if isinstance(x, Path) else x if isinstance(x, str) else "no flag"


@functools.cache
def compiled(file: Path, padding: str | None) -> pitc.CompiledModel:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(targets, "CPU", ALL_PAYS)
        return pitc.compile(file, padding=padding, suggest=False)


def documents(rng: np.random.Generator, batch: int, s: int) -> Array:
    """Numbers of up to five documents in a row, from 0."""
    starts = np.zeros((batch, s), np.int64)
    for row in starts[:, 1:]:
        row[rng.choice(s - 1, rng.integers(0, min(s, 5)), replace=False)] = 1
    return starts.cumsum(1)


def mask_of(kind: str, batch: int, s: int, rng: np.random.Generator) -> Array:
    """Each sequence keeps a token: the last one where there are holes."""
    at, lengths = np.arange(s), rng.integers(1, s + 1, (batch, 1))
    holes = (rng.random((batch, s)) < 0.6) | (at == s - 1)
    masks = {"right": at < lengths, "left": at >= s - lengths, "holes": holes}
    return masks.get(kind, np.ones((batch, s), np.bool_))


def feeds_of(file: Path, batch: int, s: int, kind: str, past: int, seed: int) -> dict[str, Array]:
    """Inputs of one run; a query sees at least itself."""
    rng = np.random.default_rng(seed)
    segments = documents(rng, batch, s)
    seen = (rng.random((batch, 1, s, s)) < 0.5) | np.eye(s, dtype=np.bool_)
    starts = np.stack([np.searchsorted(row, row) for row in segments])
    restarted = np.arange(s) - starts
    has_past = any(n.startswith("past") for n in inputs_of(file))
    feeds: dict[str, Array] = {}
    for n, dtype in inputs_of(file).items():
        if n == PADDING:
            x = mask_of(kind, batch, past * has_past + s, rng)
        elif n == "segments":
            x = 7 * segments - 3
        elif n == "position_ids":
            x = past + np.tile(np.arange(s), (batch, 1)) if has_past else restarted
        elif n == "pairs":
            x = seen if dtype == np.bool_ else np.where(seen, 0, np.finfo(np.float32).min)
        elif n == "patches":
            x = rng.normal(size=(batch, s, 32))
        elif n.startswith("past"):
            x = rng.normal(size=(batch, 2, past, 8))
        else:
            x = rng.integers(2, 100, (batch, s))
        feeds[n] = x.astype(dtype)
    return feeds


def runs(file: Path) -> Iterator[dict[str, Array]]:
    """All sizes; every kind of padding meets short sequences and long ones."""
    for seed, (s, batch) in enumerate(product(SIZES, (1, 3))):
        yield feeds_of(file, batch, s, KINDS[seed % 4], PASTS[seed % 3], seed)


@pytest.mark.parametrize(("file", "padding"), cases(), ids=label)
def test_answers(file: Path, padding: str | None) -> None:
    model, reference = compiled(file, padding), plain_session(file)
    for feeds in runs(file):
        (want, *_), (got, *_) = reference.run(None, feeds), model.run(feeds).values()
        if padding is not None:
            live = feeds[padding][:, -want.shape[1] :] != 0
            assert not got[~live].any()
            want, got = want[live], got[live]
        assert np.isfinite(want).all()
        assert np.linalg.norm(want - got) <= RTOL * np.linalg.norm(want)


ENDS = np.array([-(1 << 63), (1 << 63) - 1, -1, 0, 1, 1 << 40])
ODD = ("ends", "any order", "none", "all")
NUMBERED = [f for f in MASKS if inputs_of(f).keys() & {"segments", "pairs"} or "packed" in f.stem]


@pytest.mark.parametrize("file", NUMBERED, ids=label)
def test_odd_documents_and_pairs(file: Path) -> None:
    """Numbers at the ends of int64, in any order; queries that see nothing."""
    model, reference = compiled(file, None), plain_session(file)
    for seed, kind in enumerate(ODD):
        feeds, rng = feeds_of(file, 2, 70, "full", 0, seed), np.random.default_rng(seed)
        for n in feeds.keys() & {"segments", "position_ids"}:
            numbers = {"ends": ENDS, "any order": np.arange(-3, 4), "none": np.arange(1000)}
            feeds[n] = rng.choice(numbers.get(kind, np.array([5])), feeds[n].shape)
        for n in feeds.keys() & {"pairs"}:
            shares = {"ends": 0.02, "any order": 0.5, "none": 0.0}
            seen = rng.random(feeds[n].shape) < shares.get(kind, 1.0)
            feeds[n] = (
                seen
                if feeds[n].dtype == np.bool_
                else np.where(seen, np.float32(0), np.float32(-1e30))
            )
        (want,), (got,) = reference.run(None, feeds), model.run(feeds).values()
        assert np.isfinite(want).all()
        assert np.linalg.norm(want - got) <= RTOL * np.linalg.norm(want), kind


@pytest.mark.parametrize("file", [f for f in MASKS if "traced" not in f.stem], ids=label)
def test_facts_hold(file: Path) -> None:
    model = load_model(file)
    normalise(model)
    graph, given_up = analyse(model, None)
    feeds = [feeds_of(file, 2, 13, "holes", 3, 1)]
    result = probed(onnx.load(file), graph, given_up, None, feeds, every=32)
    assert not result.failures
    assert result.fill_checks


def test_they_are_small() -> None:
    assert len(MASKS) >= 19
    assert all(f.stat().st_size <= MAX_BYTES for f in MASKS)


def products_behind_softmax(file: Path) -> list[str]:
    """Names of products whose left operand is a softmax, or what steps make of it."""
    nodes = onnx.load(file).graph.node
    weights, found = set[str](), list[str]()
    for node in nodes:
        if node.op_type == "MatMul" and node.input[0] in weights:
            found.append(node.name)
        if node.op_type == "Softmax" or (node.op_type in STEPS and weights & {*node.input}):
            weights |= {*node.output}
    return found


def decided(file: Path, report: Report) -> str:
    """What became of each attention: its formula, or why it has none."""
    records = {r.node: r for r in report.nodes}
    lines = []
    for product_ in products_behind_softmax(file):
        record = records[product_]
        texts, why = [] if record.refusal else [record.rule], record.refusal
        while why is not None:
            texts.append(f"{why.code.id} {why.reason}")
            why = why.also
        lines.append(f"    {product_}: {record.lowering}: {'; '.join(texts)}")
    return "\n".join(lines)


def test_every_attention_is_decided_as_it_was(golden: Callable[[str, str], None]) -> None:
    """A sounder rule must not lose it unnoticed, nor a bolder one gain it."""
    parts = []
    for file, padding in cases():
        flag = f" --padding {padding}" if padding else ""
        parts += [f"{name(file)}{flag}", decided(file, compiled(file, padding).report)]
    golden("masks.txt", "\n".join([*parts, ""]))
