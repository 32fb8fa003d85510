"""Lists of pairs in a session: what the node lists, and attention over lists, to the last entry."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import pitc
from pitc.ir import target as targets
from tests.onnx import test_block_masks as block_masks
from tests.onnx import test_row_guards as guards
from tests.onnx.test_pairs import SIZES, feeds, model
from tests.plan_reference import pairs
from tests.plan_text import Plan
from tests.runtime_support import (
    Array,
    answers_on_eight_threads,
    make_model,
    pit_node,
    quiet_options,
    save,
    session,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

MANY = 700
KINDS = ("positions", "tables", "keys", "queries", "pairs")
NAMES = ("position_tests", "q_tables", "k_tables", "key_flags", "query_flags", "pair_flags")
INPUTS = ("q_offsets", "k_offsets", "q_coords", "k_coords")
OUTPUTS = ("keys", "seen_by", "tiles", "order")
BOTH, EITHER, NEGATE, LEAF = 0, 1, 2, 3


def hidden_in(*regions: tuple[int, ...]) -> tuple[int, ...]:
    """Steps that say which pairs are seen: those in no region, where all of its tests hold."""
    steps = list[int]()
    for n, region in enumerate(regions):
        for m, test in enumerate(region):
            steps += [LEAF + test, *([BOTH] if m else [])]
        steps += [EITHER] if n else []
    return (*steps, NEGATE)


#: how many tests there are of each kind, and the steps
PLANS = {
    "positions": ((2, 0, 0, 0, 0), hidden_in((0,), (1,))),
    "equal": ((0, 1, 0, 0, 0), (LEAF,)),
    "tables": ((1, 3, 0, 0, 0), (4, 5, EITHER, 6, EITHER, 3, BOTH)),
    "not equal": ((0, 2, 0, 0, 0), hidden_in((0, 1))),
    "keys": ((0, 0, 1, 0, 0), hidden_in((0,))),
    "queries": ((0, 0, 0, 2, 0), hidden_in((0,), (1,))),
    "pairs": ((0, 0, 0, 0, 1), hidden_in((0,))),
    "all": ((2, 0, 1, 1, 2), hidden_in((0, 2), (1, 3), (4, 5))),
    "nested": (
        (2, 2, 1, 1, 1),
        (3, 5, NEGATE, BOTH, 4, 6, BOTH, 7, 8, EITHER, NEGATE, 9, *[EITHER] * 3),
    ),
    "many": ((8,) * 5, hidden_in(tuple(range(40)), (39,), (7, 8, 16))),
    "blocks": ((0, 0, 0, 0, 1), hidden_in((0,))),
    "blocks of queries": ((1, 0, 0, 0, 2), (3, 4, EITHER, 5, NEGATE, BOTH)),
    "blocks of keys": ((1, 0, 1, 0, 1), hidden_in((0,), (1, 2))),
    "blocks of another size": ((1, 1, 1, 1, 1), (3, 7, NEGATE, BOTH, 4, 5, BOTH, 6, *[EITHER] * 2)),
    "deep": ((8, 0, 0, 0, 8), (*range(LEAF, LEAF + 16), *[EITHER] * 15)),
}
#: how many queries and keys a flag of pairs is of
BLOCKS = {
    "blocks": (32, 32),
    "blocks of queries": (20, 1),
    "blocks of keys": (1, 64),
    "blocks of another size": (7, 48),
}


def plan_of(name: str, rank: int) -> Plan:
    """A plan of the node."""
    counts, program = PLANS[name]
    fields = dict(zip(KINDS, counts, strict=True)) | {"rank": rank}
    if name in BLOCKS:
        fields |= dict(zip(("q_block", "k_block"), BLOCKS[name], strict=True))
    orders = sum((k + (name == "tables")) % 3 << 2 * k for k in range(counts[1]))
    return Plan("pairs", (*fields.items(), ("orders", orders), ("program", program)))


def domain(rng: np.random.Generator, live: Array) -> tuple[Array, Array]:
    """Offsets and coordinates of live points."""
    counts = live.reshape(int(np.prod(live.shape[:-1])), live.shape[-1]).sum(1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return offsets, np.stack(np.nonzero(live)).astype(np.int32)


def operands(name: str, lead: tuple[int, ...], q: int, k: int, seed: int) -> dict[str, Array]:
    """Random operands: positions with gaps and without, flags that are dense, rare or all set."""
    rng = np.random.default_rng(seed)
    counts, _ = PLANS[name]
    share = (1.0, 0.6)[seed % 2]
    found: dict[str, Array] = {}
    for side, extent in (("q", q), ("k", k)):
        live = rng.random((*lead, extent)) < share
        found[f"{side}_offsets"], found[f"{side}_coords"] = domain(rng, live)
    tests = np.stack(
        [
            rng.integers(-2, 3, counts[0]),
            rng.integers(-2, 3, counts[0]),
            rng.integers(-k, k + 2, counts[0]),
        ],
        axis=1,
    )
    blocks = tuple(-(-n // size) for n, size in zip((q, k), BLOCKS.get(name, (1, 1)), strict=True))
    flags = {"key_flags": (k,), "query_flags": (q,), "pair_flags": blocks}
    for side, extent in (("q", q), ("k", k)):  # numbers rise slowly, or fall, or are anything
        steps = rng.choice([-1, 0, 0, 0, 0, 1], (counts[1], *lead, extent))
        numbers = np.cumsum(steps, axis=-1) if seed % 3 else rng.integers(-3, 3, steps.shape)
        found[f"{side}_tables"] = numbers.astype(np.int64)
        if numbers.size and seed % 5 == 0:
            numbers.flat[0], numbers.flat[-1] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for (operand, extents), count in zip(flags.items(), counts[2:], strict=True):
        few = rng.integers(0, len(lead) + 1)  # such dimensions in front are the same for all
        shape = (count, *[1] * few, *lead[few:], *extents)
        found[operand] = rng.random(shape) < rng.choice([0.0, 0.5, 0.97, 1.0])
    if k >= MANY and counts[4]:  # some queries see far more keys than others
        found["pair_flags"] = rng.random(found["pair_flags"].shape) < 0.02
        found["pair_flags"][..., rng.random(blocks[0]) < 0.2, :] = True
    found["position_tests"] = tests.astype(np.int64)
    of_names = (counts[0], counts[1], *counts[1:])
    given = (n for n, c in zip(NAMES, of_names, strict=True) if c)
    return {n: found[n] for n in (*INPUTS, *given)}


@pytest.mark.parametrize("lead", [(), (2, 3)], ids=len)
@pytest.mark.parametrize("name", PLANS)
def test_lists_are_those_of_the_reference(name: str, lead: tuple[int, ...], tmp_path: Path) -> None:
    plan = plan_of(name, len(lead) + 1)
    first = operands(name, lead, 1, 1, 0)
    types = {np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64}
    types[np.dtype(bool)] = TensorProto.BOOL
    inputs = [(n, types[x.dtype], [None] * x.ndim) for n, x in first.items()]
    ranks = dict(zip(OUTPUTS, (1, 1, 2, 1), strict=True))
    outputs = [(n, TensorProto.INT32, [None] * rank) for n, rank in ranks.items()]
    node = pit_node("pairs", plan, list(first), OUTPUTS)
    run = session(save(tmp_path, make_model([node], inputs, outputs)), quiet_options(2))
    fields = dict(line.split("=", 1) for line in plan.text().splitlines()[1:])
    given, moved = [], False
    sizes = [*itertools.product((0, 1, 33, 70), (0, 65, 130)), (150, MANY), (70, MANY)]
    sizes += itertools.product((31, 32, 64), (31, 64, 200)) if name in BLOCKS else []
    for seed, (q, k) in enumerate(sizes):
        given.append(operands(name, lead, q, k, seed))
        want = pairs(fields, *given[-1].values())
        for got, expected, output in zip(run.run(None, given[-1]), want, OUTPUTS, strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=f"{output}, {q} x {k}")
        moved |= not np.array_equal(want[-1], np.arange(len(want[-1])))
    assert moved or name != "pairs"
    answers_on_eight_threads(run, given[-3:], 2)


CASES = (
    *("causal, selected", "a window", "a window and first keys", "pairs and a cause"),
    *("pairs of an input, added", "this document and the third before"),
)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("pairs")


@pytest.mark.parametrize("shape", ["s, s", "4, s, s"])
@pytest.mark.parametrize("mask", [guards.SAME, guards.LIVE, guards.GIVEN])
def test_rows_that_see_no_key(mask: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and biases of few sequences are those of all."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    proto = guards.model(mask, guards.LARGEST, shape)
    compiled = pitc.compile(proto)
    assert any(record.lowering == "attention" for record in compiled.report.nodes)
    source = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in guards.feeds(proto):
        (want,), got = source.run(None, feed), compiled.run(feed)["y"]
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_answers_of_compiled_models(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    proto = model(case)
    compiled = pitc.compile(proto)
    assert any(record.lowering == "attention" for record in compiled.report.nodes)
    source = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in (*SIZES, (3, 400), (2, 600)):  # of many keys, rows of a head are copied
        for feed in feeds(proto, b, s):
            (want,), got = source.run(None, feed), compiled.run(feed)["y"]
            wanted = np.asarray(want)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{b} x {s}")


@pytest.mark.parametrize(
    "form", ["expanded by side", "looked up, added", "of two sizes", "of keys", "not, and keys"]
)
def test_answers_under_masks_of_blocks(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0, least_extent=1))
    case = block_masks.FORMS[form]
    proto = block_masks.block_model(case)
    compiled = pitc.compile(proto)
    source = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s in itertools.product((1, 3), case.lengths):
        for feed in block_masks.feeds(case, proto, b, s):
            want, got = np.asarray(source.run(None, feed)[0]), compiled.run(feed)["y"]
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            far, whole = (np.linalg.norm(np.nan_to_num(x)) for x in (got - want, want))
            assert far <= 1e-5 * whole
