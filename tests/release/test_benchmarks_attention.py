"""Benchmark cases of attention under masks: what they hold, peers, exact answers, memory."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import attention_memory, attention_operators, attention_peers, contenders, workload
from benchmarks.attention_cases import (
    ATTENTION_CASES,
    MEMORY_CASES,
    AttentionCase,
    AttentionMemoryCase,
    LayersCase,
    StepCase,
    TimedAttention,
)
from benchmarks.attention_memory import measure_memory
from benchmarks.attention_work import attention_cost, attention_feeds, pairs_of
from benchmarks.cases import CASES, source
from benchmarks.contenders import ATTENTION, CONTENDERS, OURS, Contender, relative_error, whole
from benchmarks.flex_tests import flex_test
from benchmarks.report import over_limit, save, table, verdicts, with_verdicts
from benchmarks.run import describe, time_case
from benchmarks.sparse_cases import Targets
from benchmarks.workload import Amortised, Feeds, Infer, Shared, Workload, make_workload
from models.attention import StepConfig
from models.attention_reference import seen_by
from models.block_masks import Bars, Blocks, Given
from models.graph import Array
from models.longformer import LongformerConfig
from models.modern_bert import ModernBertConfig
from models.pair_masks import Causal, Documents, Everything, PairMask, Window
from pitc.ir import target as targets

MASKS: dict[str, PairMask] = {
    "full": Everything(),
    "causal": Causal(),
    "causal window": Causal(7),
    "window": Window(9, 3),
    "documents": Documents(20),
    "bars": Bars(9, (1, 2, 4)),
    "blocks": Blocks(32, 0.3),
    "given": Given(0.3),
}
STEP = StepCase("step", StepConfig(16, 6, 2, 16), 40)
LAYERS = LayersCase("layers", ModernBertConfig((Everything(), Window(9)), 32, 4, 24, 50), 20)

LONG_CONFIG = LongformerConfig(2, Window(9, globals=2), 32, 4, 64, 50, 64)
LONG = LayersCase("long", LONG_CONFIG, 40)


def small(name: str) -> AttentionCase:
    return AttentionCase("small", MASKS[name], 64, Targets(2.0, 3.0), heads=2)


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def contender(name: str) -> Contender:
    (found,) = [c for c in ATTENTION if c.name == name]
    return found


def test_cases_are_those_that_were_set() -> None:
    """A row for each workload, with its targets."""
    found = {case.name: case.targets for case in ATTENTION_CASES}
    assert len(found) == len(ATTENTION_CASES) == 16
    limit = 1.7
    assert found["attention-2048-window-257-global-16"] == Targets(8.0, 5.5, 1.9, limit)
    assert found["attention-4096-window-513-global-16"] == Targets(9.0, 6.5, 1.9, limit)
    assert found["attention-2048-causal-window-257"] == Targets(8.0, 2.4, 1.8, limit)
    assert found["attention-4096-documents-400"] == Targets(10.0, 2.9, 1.7, limit)
    assert found["attention-4096-bars-128"] == Targets(6.0, 6.0, None, limit)
    assert found["attention-4096-blocks-64-5"] == Targets(12.0, 2.4, None, limit)
    assert found["attention-4096-causal"] == Targets(2.5, 1.25, None, limit)
    assert found["attention-512-full"] == Targets(1.1, 1.0, None, limit)
    assert found["modern-bert-4096"] == Targets(2.5, 1.7)
    assert found["longformer-4096"] == Targets(4.0, 2.5)
    assert found["attention-step-4095"] == Targets(5.0, 2.3)
    assert [case.most_bytes for case in MEMORY_CASES] == [64 << 20] * 2
    assert set(ATTENTION_CASES) | set(MEMORY_CASES) <= set(CASES)
    assert len({source(case) for case in ATTENTION_CASES}) == len(ATTENTION_CASES)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("attention-2048-window-257-global-16", 0.13, 0.14),
        ("attention-4096-window-513-global-16", 0.125, 0.135),
        ("attention-4096-documents-400", 0.05, 0.12),
        ("attention-4096-bars-128", 0.15, 0.18),
        ("attention-4096-blocks-32-10", 0.10, 0.115),
        ("attention-4096-blocks-64-5", 0.06, 0.075),
        ("attention-step-4095", 0.125, 0.125),
    ],
)
def test_live_shares(name: str, least: float, most: float) -> None:
    (case,) = [case for case in ATTENTION_CASES if case.name == name]
    feeds = attention_feeds(case)
    live, pairs = pairs_of(case, feeds)
    assert least <= live / pairs <= most


def test_costs() -> None:
    """Two products of 64 for each head and live pair; of layers projections and weights besides."""
    assert attention_cost(small("causal"), 100).flops == 4 * 64 * 2 * 100
    step = attention_cost(STEP, 16)
    assert step.flops == 4 * 16 * 6 * 16
    assert step.read_bytes == 2 * (2 * 2 * 41 * 16 * 4)  # read and written, keys and values
    layers = attention_cost(LAYERS, 500)
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 24)
    assert (layers.flops, layers.read_bytes) == (4 * 8 * 4 * 500 + 2 * 20 * weights, 4 * weights)
    assert pairs_of(LAYERS, attention_feeds(LAYERS)) == (400 + 20 * 9 - 2 * 10, 800)
    long = attention_cost(LONG, 0)
    assert long.flops == 2 * 40 * 2 * (6 * 32 * 32 + 2 * 32 * 64)
    seen = np.abs(np.subtract.outer(np.arange(40), np.arange(40))) <= 4
    seen[:2] = seen[:, :2] = True
    assert pairs_of(LONG, attention_feeds(LONG)) == (2 * seen.sum(), 2 * 1600)


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_workloads(name: str, tmp_path: Path) -> None:
    case = small(name)
    made = make_workload(case, tmp_path)
    whole_mask = seen_by(case.mask, made.batches[0], 1, 64)
    assert made.facts()["live_share"] == whole_mask.mean()
    assert made.facts()["batches"] == [[1, 64, 128]]
    limit = made.limit_ms({"fma_gflops": 1.0, "read_gbytes_per_s": 1.0})
    assert limit == pytest.approx(4 * 64 * 2 * whole_mask.sum() / 1e6)


@pytest.mark.parametrize("name", MASKS)
def test_operators_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    made = make_workload(small(name), tmp_path)
    engines = {"ort-mha": attention_operators.multi_head}
    if isinstance(MASKS[name], Causal):
        engines["ort-gqa"] = attention_operators.group_query
    assert made.exact is not None
    for peer in ("ort-mha", "ort-gqa"):
        assert contender(peer).competes(made) == (peer in engines)
    for engine in engines.values():
        answer = engine(made)(made.batches[0])
        assert relative_error(list(answer), list(made.exact)) < 1e-6


def test_the_operator_of_grouped_heads_behind_a_past(tmp_path: Path) -> None:
    made = make_workload(STEP, tmp_path)
    answer = attention_operators.group_query(made)(made.batches[0])
    assert made.exact is not None
    assert relative_error(list(answer), list(made.exact)) < 1e-6


@pytest.mark.parametrize("name", MASKS)
def test_openvino(name: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    made = make_workload(small(name), tmp_path)
    answer = attention_peers.openvino_sdpa(made)(made.batches[0])
    assert made.exact is not None
    assert relative_error(list(answer), list(made.exact)) < 1e-6


TORCH = ("torch-sdpa", "torch-causal", "hand-chunks-128", "hand-documents")


@pytest.mark.parametrize("name", MASKS)
def test_torch(name: str, tmp_path: Path) -> None:
    """Chunks of 24, so that there are several and the last is short."""
    pytest.importorskip("torch")
    made = make_workload(small(name), tmp_path)
    assert made.exact is not None
    ran = set()
    for peer in TORCH:
        known = contender(peer)
        if known.says(made):
            chunks = peer == "hand-chunks-128"
            engine = attention_peers.torch_chunks(24, made) if chunks else known.engine(made)
            answer = engine(made.batches[0])
            assert relative_error(list(answer), list(made.exact)) < 1e-6, peer
            ran.add(peer)
    more = {
        "causal": {"torch-causal"},
        "causal window": {"hand-chunks-128"},
        "window": {"hand-chunks-128"},
        "documents": {"hand-documents"},
    }
    assert ran == {"torch-sdpa"} | more.get(name, set())


@pytest.mark.parametrize("name", ["torch-step", "hand-cut"])
def test_torch_behind_a_past(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    made = make_workload(STEP, tmp_path)
    assert made.exact is not None and contender(name).says(made)
    answer = contender(name).engine(made)(made.batches[0])
    assert relative_error(list(answer), list(made.exact)) < 1e-6


@pytest.mark.parametrize("name", sorted(MASKS.keys() - {"full"}))
def test_functions_for_flex_attention(name: str, tmp_path: Path) -> None:
    """They say what the mask says; compiling them takes minutes."""
    torch = pytest.importorskip("torch")
    made = make_workload(small(name), tmp_path)
    at = torch.arange(64)
    first = torch.zeros((), dtype=torch.int64)
    test = flex_test(MASKS[name], made.batches[0], 64, torch.from_numpy)
    got = test(first, first, at[:, None], at[None])
    assert contender("flex-64").says(made)
    np.testing.assert_array_equal(got.numpy(), seen_by(MASKS[name], made.batches[0], 1, 64)[0, 0])


def test_who_competes(tmp_path: Path) -> None:
    """Layers are run by engines that take any model; peers for one mask refuse another."""
    assert {c.name for c in CONTENDERS[LayersCase]} == {"ort", OURS, "openvino"}
    full, window = (make_workload(small(name), tmp_path) for name in ("full", "window"))
    says = {c.name for c in ATTENTION if c.says(full)}
    assert not says & {"flex-32", "torch-causal", "ort-gqa", "hand-chunks-128", "torch-step"}
    assert says >= {"ort", OURS, "openvino", "openvino-sdpa", "torch-sdpa", "ort-mha"}
    assert {c.name for c in ATTENTION if c.by_hand} == {
        *("hand-cut", "hand-chunks-128", "hand-chunks-256", "hand-documents")
    }
    with pytest.raises(TypeError, match="is not causal"):
        attention_operators.group_query(window)
    with pytest.raises(TypeError, match="is not attention alone"):
        attention_operators.multi_head(make_workload(STEP, tmp_path))


@pytest.mark.filterwarnings("ignore::pitc.errors.SuggestionWarning")
@pytest.mark.parametrize("case", [small("window"), STEP, LAYERS, LONG])
def test_every_kind_is_run(case: TimedAttention, tmp_path: Path) -> None:
    """The engines that are always there; answers are compared with float64."""
    table_of = [c for c in CONTENDERS[type(case)] if c.package in ("onnxruntime", "pitc")]
    limits = {"fma_gflops": 100.0, "read_gbytes_per_s": 10.0}
    measured = time_case(case, 1, limits, table_of, quiet, Shared(tmp_path))
    rows = {row["name"]: row for row in measured["contenders"]}
    assert {"ort", OURS} <= rows.keys()
    assert all(0 < row["error"] <= 1e-5 and row["ms"] > 0 for row in rows.values())
    result = with_verdicts({"case": describe(case), **measured})
    assert result["over_limit"] == rows[OURS]["ms"] / measured["limit_ms"]
    assert [v["met"] for v in result["verdicts"]] == [v.met for v in verdicts(result)]
    path = save(json.loads(json.dumps(result)), tmp_path)
    assert path == tmp_path / "attention" / f"{case.name}.json"
    assert result["case"]["name"] == case.name and OURS in shown(result)


def shown(result: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(result))
    return console.export_text()


def test_answers_are_compared_with_the_exact_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "attention_answer", lambda case, feeds: feeds["q"] * 2.0)
    ort = CONTENDERS[AttentionCase][:1]
    measured = time_case(small("causal"), 1, {}, ort, quiet, Shared(tmp_path))
    assert measured["contenders"][0]["ms"] is None
    assert measured["contenders"][0]["error"] > 0.1


def test_what_is_done_once_counts_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is written by hand is not the best library."""
    done: list[str] = []

    def amortised(made: Workload) -> Infer:
        infer = contenders.onnx_runtime(made)
        return Amortised(infer, lambda: done.append("once"), 12)

    def by_hand(made: Workload) -> Infer:
        infer = contenders.onnx_runtime(made)

        def slow(feeds: Feeds) -> Array:
            return infer(feeds)

        return slow

    def interleave(work: dict[str, Any], rounds: int, warm_up: int) -> dict[str, list[float]]:
        assert warm_up == 1
        for call in work.values():
            call()
        seconds = {"ort": 4.0, "flex": 2.0, "flex, once": 36.0, "hand": 1.0}
        assert set(work) == set(seconds)
        return {name: [seconds[name]] for name in work}

    monkeypatch.setattr("benchmarks.run.interleave", interleave)
    monkeypatch.setattr("benchmarks.run._calls", lambda loaded, made: 1)
    everyone = (
        Contender("ort", contenders.onnx_runtime, whole, "onnxruntime"),
        Contender("flex", amortised, whole, "onnxruntime"),
        Contender("hand", by_hand, whole, "onnxruntime", by_hand=True),
    )
    measured = time_case(small("causal"), 1, {}, everyone, quiet, Shared(tmp_path))
    rows = {row["name"]: row for row in measured["contenders"]}
    assert done == ["once"]
    assert rows["flex"]["ms"] == 5000.0
    assert (rows["flex"]["once_ms"], rows["flex"]["once_calls"]) == (36_000.0, 12)
    assert "once_ms" not in rows["ort"]
    assert (measured["best_peer"], measured["best_by_hand"]) == ("ort", "hand")


def test_verdicts_of_attention() -> None:
    result: dict[str, Any] = {
        "case": {
            **{"name": "a", "family": "attention"},
            "targets": {"base": 8.0, "peer": 2.0, "hand": 1.9, "limit": 1.7},
        },
        "contenders": [
            {"name": "ort", "ms": 80.0, "error": 1e-7},
            {"name": OURS, "ms": 10.0, "error": 1e-7},
        ],
        "best_peer": "flex-64",
        "best_by_hand": "hand-documents",
        "speedup": {"ort": 8.0, "flex-64": 2.5, "hand-documents": 1.5},
        "limit_ms": 6.0,
        "workload": {"batches": [[1, 12, 8, 64]], "live_share": 0.5},
    }
    assert [v.met for v in verdicts(result)] == [True, True, False, True]
    assert over_limit(result) == pytest.approx(10 / 6)
    assert [v["over"] for v in with_verdicts(result)["verdicts"]] == [
        *("ort", "flex-64", "hand-documents", "limit of the core")
    ]
    text = shown(result)
    for part in (
        "target over hand-documents: 1.90x, short",
        "target at most, over the limit of the core: 1.70x, met",
    ):
        assert part in text
    assert not verdicts(result | {"limit_ms": 5.0})[3].met
    unknown = verdicts(result | {"limit_ms": None, "best_by_hand": None})
    assert [v.gain for v in unknown[2:]] == [None, None] and not any(v.met for v in unknown[2:])
    other = {"case": {"family": "spmm"}, "contenders": []}
    assert with_verdicts(other) is other


def test_memory(tmp_path: Path) -> None:
    """Of a short sequence: more than its scores are needed, and not much more."""
    case = AttentionMemoryCase("memory", Window(9, 3), 1024, 2)
    result = {"case": describe(case), **measure_memory(case, set(), quiet)}
    found = result["memory"]
    assert found["failed"] == "" and found["error"] < 1e-6
    assert found["dense_bytes"] == 2 * 1024**2 * 4
    assert 0 < found["peak_bytes"] < 128 << 20
    assert found["met"] == (found["peak_bytes"] <= 64 << 20)
    assert "dense scores alone" in shown(result)
    assert save(result, tmp_path).parent.name == "attention"


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes more address space than it may fails, and the result says why: here of
    ONNX Runtime's nodes, as attention of all rows pays on no target without lists.
    """
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, hides_pairs=""))
    monkeypatch.setattr(attention_memory, "MOST_SPACE", 3 << 30)
    case = AttentionMemoryCase("memory", Everything(), 16384, 4)
    result = {"case": describe(case), **measure_memory(case, set(), quiet)}
    found = result["memory"]
    assert (found["peak_bytes"], found["error"], found["met"]) == (None, None, False)
    assert found["failed"].startswith("with 3 GiB of address space: Non-zero status code")
    assert "with 3 GiB" in shown(result)
    assert "/" not in found["failed"].split(" Name:")[0]


def test_wrong_rows_do_not_meet_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        attention_memory, "attention_reference", lambda config, feeds, rows: feeds["q"][:, rows]
    )
    case = replace(AttentionMemoryCase("memory", Causal(), 64, 1), most_bytes=1 << 40)
    assert not measure_memory(case, set(), quiet)["memory"]["met"]
