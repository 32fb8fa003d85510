"""Real exports of decoders with a cache: the first call has no past, later ones read one.

`past` exports serve both calls, `cache` exports the first one alone, and `merged` ones have a
branch for either. Tokens are padded on the left, as generation needs it.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from pitc.importer import load_model
from pitc.passes.audit.engine import audit
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from tests.plan_reference import run_lowered
from tests.test_exports import CACHED, RTOL, contractions, lower, name, session

Feeds = dict[str, np.ndarray]
OLD, NEW = "past_sequence_length", "sequence_length"
TOTAL = f"{OLD} + {NEW}"
SWITCH = "use_cache_branch"
ENCODED = 6


class Call(NamedTuple):
    """What one call is given."""

    batch: int
    past: int
    new: int
    padded: bool


CALLS = [Call(*c) for c in product((1, 3), (0, 1, 5), (1, 4), (False, True))]
AUDITED = [Call(3, 0, 1, False), Call(1, 0, 4, True), Call(3, 5, 4, True), Call(1, 1, 1, False)]


def padding_of(file: Path) -> str:
    return "encoder_attention_mask" if file.stem.startswith("t5") else "attention_mask"


def left(batch: int, length: int, padded: bool, rng: np.random.Generator) -> np.ndarray:
    """A mask; the last sequence has one token or, alone, all but one."""
    dead = rng.integers(0, length, (batch, 1)) * padded
    dead[-1] = (length - 1 if batch > 1 else min(1, length - 1)) * padded
    return np.arange(length) >= dead


def inputs_of(file: Path, call: Call, on: bool = True) -> Feeds:
    """Random inputs of one call; a branch that reads no cache takes a mask of new tokens."""
    rng = np.random.default_rng((*call, on))
    given = {"batch_size": call.batch, "encoder_sequence_length": ENCODED}
    given |= {OLD: call.past, NEW: call.new, TOTAL: call.past * on + call.new}
    feeds: Feeds = {}
    for i in onnx.load(file).graph.input:
        kind = i.type.tensor_type
        shape = [given[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim]
        if "mask" in i.name:
            x = left(shape[0], shape[1], call.padded, rng)
        elif i.name == SWITCH:
            x = np.array([on])
        elif i.name == "position_ids":
            live = feeds["attention_mask"].cumsum(1) - 1
            x = live[:, live.shape[1] - call.new :].clip(0)
        elif i.name == "input_ids":
            x = rng.integers(2, 90, shape)
        else:
            x = rng.normal(size=shape)
        feeds[i.name] = x.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds


def feeds_of(file: Path, calls: list[Call]) -> Iterator[Feeds]:
    """Inputs of all calls that a file serves."""
    inputs = {i.name for i in onnx.load(file).graph.input}
    branches = (True, False) if SWITCH in inputs else (True,)
    for call in calls:
        if call.past == 0 or any(n.startswith("past") for n in inputs):
            yield from (inputs_of(file, call, on) for on in branches)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", CACHED, ids=name)
@pytest.mark.parametrize("padded", [False, True], ids=["every token", "padding"])
def test_results_are_those_of_onnx_runtime(file: Path, padded: bool) -> None:
    """Keys and values go out for every token, padded ones too: only what reads them is skipped."""
    padding = padding_of(file) if padded else None
    lowered, run = lower(file, padding), session(file)
    proto = ir.serde.serialize_model(lowered.model)
    names = [o.name for o in run.get_outputs()]
    tried = 0
    for feeds in feeds_of(file, CALLS):
        for out, x, y in zip(names, run.run(None, feeds), run_lowered(proto, feeds), strict=True):
            x, y = np.asarray(x), np.asarray(y)
            assert x.shape == y.shape
            assert np.isfinite(x).all()
            if padding and "-cache-" in file.stem and out == "logits":  # else the mask is longer
                live = feeds[padding].astype(bool)
                np.testing.assert_array_equal(y[~live], 0)
                x, y = x[live], y[live]
            assert np.linalg.norm(x - y) <= RTOL * np.linalg.norm(x), (out, feeds)
        tried += 1
    assert tried >= (8 if "-cache-" in file.stem else len(CALLS))
    if padding and file.stem.startswith("gpt2-cache"):
        assert contractions(lowered)["packed"] == 4  # behind the last keys and values


@pytest.mark.parametrize("file", CACHED, ids=name)
def test_facts_hold(file: Path) -> None:
    model = load_model(file)
    source = model.clone()
    normalise(model)
    graph, given_up = analyse(model, padding_of(file))
    feeds = list(feeds_of(file, AUDITED))
    result = audit(graph, given_up, feeds, source=source, teeth=False)
    assert not result.failures
    assert result.feeds == len(feeds)
    assert not result.faults and not result.refused
    assert result.fill_checks
    assert result.dead_checks
