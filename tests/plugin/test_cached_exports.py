"""Real exports of decoders with a cache: the first call has no past, later ones read one.

`past` exports serve both calls, `cache` exports the first one alone, and `merged` ones have a
branch for either. Tokens are padded on the left, as generation needs it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import pitc
from pitc.importer import load_model
from pitc.ir.target import CPU
from pitc.passes.audit.engine import audit
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import LowerOptions, analyse, run_passes
from tests.declared_tokens import token_axis
from tests.lowered_exports import lowered_export, what_packs
from tests.plan_reference import evaluator, run_lowered
from tests.plugin.test_exports import CACHED, RTOL, contractions, name, session
from tests.tile_prices import PRICES

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


def live_tokens(padding: str, axis: int, x: np.ndarray, feeds: Feeds) -> np.ndarray:
    """Of an output's tokens, which are real: what is appended comes last in the mask."""
    mask = feeds[padding].astype(bool)
    return mask[:, mask.shape[1] - x.shape[axis] :]


def past_of(out: str, feeds: Feeds, x: np.ndarray) -> np.ndarray:
    """What the caller gave for the keys or values that an output goes on from; 0 behind it."""
    given = feeds.get(out.replace("present", "past_key_values"))
    kept = np.zeros_like(x)
    if given is not None and given.shape[2] < x.shape[2]:
        kept[:, :, : given.shape[2]] = given
    return kept


def assert_right(
    ours: ReferenceEvaluator,
    run: ort.InferenceSession,
    feeds: Feeds,
    axes: dict[str, int],
    mask: str,
) -> None:
    """Real tokens as ONNX Runtime says; others are 0, or what the caller gave for them, or as well
    as ONNX Runtime says: where nothing shows that an output has tokens, it is left as it is.
    """
    names = [o.name for o in run.get_outputs()]
    for out, x, y in zip(names, run.run(None, feeds), run_lowered(ours, feeds), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape
        assert np.isfinite(y).all()
        if out in axes:
            live = live_tokens(mask, axes[out], x, feeds)
            x, y, kept = (np.moveaxis(v, axes[out], 1) for v in (x, y, past_of(out, feeds, x)))
            same = (y == 0) | (y == kept) | np.isclose(x, y, rtol=1e-3, atol=1e-5)
            assert np.all(same | live.reshape(*live.shape, *[1] * (x.ndim - 2)))
            x, y = x[live], y[live]
        assert np.linalg.norm(x - y) <= RTOL * np.linalg.norm(x), (out, feeds)


def axes_of(run: ort.InferenceSession, padding: str | None) -> dict[str, int]:
    shapes = {v.name: v.shape for v in (*run.get_inputs(), *run.get_outputs())}
    found = {o.name: token_axis(shapes[padding], o.shape) for o in run.get_outputs() if padding}
    return {out: axis for out, axis in found.items() if axis is not None}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", CACHED, ids=name)
@pytest.mark.parametrize("padded", [False, True], ids=["every token", "padding"])
def test_results_are_those_of_onnx_runtime(file: Path, padded: bool) -> None:
    padding = padding_of(file) if padded else None
    lowered, run = lowered_export(file, padding), session(file)
    axes = axes_of(run, padding)
    ours = evaluator(ir.serde.serialize_model(lowered.model))
    tried = 0
    for feeds in feeds_of(file, CALLS):
        assert_right(ours, run, feeds, axes, padding or "")
        tried += 1
    assert tried >= (8 if "-cache-" in file.stem else len(CALLS))


def test_every_export_packs_what_it_packed(golden: Callable[[str, str], None]) -> None:
    """As of exports without a cache."""
    golden("coverage_cached.txt", what_packs(CACHED))


EAGER = replace(CPU, flops_per_byte=0, least_extent=1, least_weight=1)
"""What a region costs is nothing: small models are lowered as large ones are."""

OWN = [f for f in CACHED if not f.stem.startswith(("t5", "opt-merged"))]  # attend to themselves


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", OWN, ids=name)
def test_a_prompt_runs_packed_with_a_past_and_without(file: Path) -> None:
    """All but the past: every product by a weight, and attention; keys and values, too."""
    options = LowerOptions(padding="attention_mask", prices=PRICES, target=EAGER, check=True)
    lowered, run = run_passes(load_model(file), options), session(file)
    counts = contractions(lowered)
    assert counts["attention"] == 2 and counts["ordinary"] == 0, counts
    axes = axes_of(run, "attention_mask")
    caches = [n for n in axes if n.startswith("present")]
    assert len(caches) == 4 and axes["logits"] == 1 and {axes[n] for n in caches} == {2}
    ours = evaluator(ir.serde.serialize_model(lowered.model))
    for feeds in feeds_of(file, CALLS):
        assert_right(ours, run, feeds, axes, "attention_mask")
    for feeds in feeds_of(file, AUDITED):  # holes, and a sequence without any token
        total = feeds["attention_mask"].shape[1]
        feeds["attention_mask"][:] = np.arange(total) % 2
        feeds["attention_mask"][0] = 0
        assert_right(ours, run, feeds, axes, "attention_mask")


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


@pytest.mark.parametrize(
    ("output", "axis"),
    [
        (["b", 12, "p + s", 64], 2),
        (["b", 12, "s + p", 64], 2),  # the same sum
        (["b", "h", "p + s", 64], 2),
        (["b", "s", 1000], 1),
        (["b", 12, "s", "p + s"], 3),  # weights of keys: real ones are compared
        (["b", 12, "p + s", "p + s"], None),  # queries or keys: not said
        (["n", 12, "p + s", 64], None),
        (["b", 64], None),
        (["p + s"], None),
    ],
)
def test_which_axis_of_an_output_holds_tokens(output: list[int | str], axis: int | None) -> None:
    assert token_axis(["b", "p + s"], output) == axis


def test_a_sum_of_other_names_is_one_name() -> None:
    """Only what inputs have as sizes is added up."""
    (file,) = [f for f in CACHED if f.stem == "opt-past-sdpa-traced"]
    proto = onnx.load(file)
    for value in proto.graph.input:
        for d in value.type.tensor_type.shape.dim:
            d.dim_param = d.dim_param.replace(f"{OLD} + {NEW}", f"{OLD} + others")
    model = ir.from_proto(proto)
    normalise(model)
    graph, given = analyse(model, "attention_mask")
    shape = graph["attention_mask"].shape
    assert shape is not None and str(shape[-1]) == f"'{OLD} + others'"
    assert not given


GPT2 = next(f for f in CACHED if f.stem == "gpt2-past-sdpa-dynamo")


@pytest.fixture(scope="module")
def of_one_past() -> pitc.CompiledModel:
    return pitc.compile(GPT2, padding=padding_of(GPT2), suggest=False)


@pytest.mark.parametrize("pasts", [(0, 5, 1), (0, 5, 6), (5, 0, 6), (4, 6, 5), (4, 6, 7)], ids=str)
def test_pasts_of_different_lengths_are_an_error(
    pasts: tuple[int, int, int], of_one_past: pitc.CompiledModel
) -> None:
    """One name stands for the past of every layer: a cache is read where it lies only if it is as
    long as the mask. ONNX Runtime's answer would be as good.
    """
    feeds = inputs_of(GPT2, Call(1, 3, 1, False))
    rng = np.random.default_rng(0)
    for key, past in product(("key", "value"), (0, 1)):
        name_ = f"past_key_values.{past}.{key}"
        shape = (1, feeds[name_].shape[1], pasts[past], feeds[name_].shape[3])
        feeds[name_] = rng.standard_normal(shape).astype(np.float32)
    feeds["attention_mask"] = np.ones((1, pasts[2]), np.int64)
    with pytest.raises(pitc.PitcError, match=r"inputs are of different sizes|< .*, got"):
        of_one_past.run(feeds)
