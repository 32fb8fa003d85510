"""The benchmark program on tiny models: cases, answers, results; no test looks at a time."""

import io
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from benchmarks import exports_page, program, readme
from benchmarks.attention_cases import MEMORY_CASES
from benchmarks.cases import (
    CASES,
    CompileCase,
    EncoderCase,
    FootprintCase,
    TallCase,
    TextCase,
    ThreadsCase,
    shortened,
)
from benchmarks.compiling import time_compile
from benchmarks.contenders import (
    CONTENDERS,
    OURS,
    PADDED,
    Contender,
    buckets,
    live_rows,
    relative_error,
    singles,
    whole,
)
from benchmarks.cost import flops, weight_bytes
from benchmarks.export_cases import ARCHITECTURES, WHY
from benchmarks.machine import machine_facts, measure_limits
from benchmarks.replay import NodeTasks, makespan_us, node_tasks
from benchmarks.report import RESULTS, save, table
from benchmarks.run import time_case
from benchmarks.sparse_cases import BlocksCase
from benchmarks.workload import MASK, Feeds, Shared, bert_batch, draw_lengths, make_workload
from benchmarks.worst_cases import WORST_CASES
from models import minilm
from models.bert import BERT_BASE, TINY
from pitc.errors import UsageError
from pitc.measure.timing import allowed_cores, interleave, pinned, ratio
from pitc.passes.suggest import LEAST_GAIN

TINY_CASE = EncoderCase("tiny", TINY, batch=6, length=12, mean=5)
BASE = PADDED[0].name
PEERS = tuple(c for c in PADDED if c.name != OURS)


def quiet(_: str) -> None:
    """Progress that nobody reads."""


@pytest.mark.parametrize(
    ("batch", "length", "mean"),
    [(32, 128, 40), (16, 256, 100), (8, 384, 150), (4, 128, 128), (1, 7, 7), (5, 9, 3), (3, 1, 1)],
)
def test_lengths_have_the_mean_and_the_longest(batch: int, length: int, mean: int) -> None:
    for seed in range(20):
        lengths = draw_lengths(np.random.default_rng(seed), batch, length, mean)
        assert len(lengths) == batch
        assert sum(lengths) == mean * batch
        assert max(lengths) == length and min(lengths) >= 1


def test_impossible_lengths_are_refused() -> None:
    for mean in (1, 10):
        with pytest.raises(ValueError, match="cannot have the mean"):
            draw_lengths(np.random.default_rng(0), 4, 9, mean)


def test_a_full_batch_has_no_padding() -> None:
    feeds = bert_batch(replace(TINY_CASE, mean=12), np.random.default_rng(0))
    assert feeds[MASK].all() and feeds["input_ids"].all()


def test_batch_is_padded_on_the_right() -> None:
    feeds = bert_batch(TINY_CASE, np.random.default_rng(0))
    mask = feeds[MASK]
    assert mask.shape == (6, 12) and mask.sum() == 30
    np.testing.assert_array_equal(mask, -np.sort(-mask, axis=1))
    np.testing.assert_array_equal(feeds["input_ids"] != 0, mask != 0)


@pytest.mark.parametrize("split", [whole, singles, buckets])
def test_splits_keep_every_token_once(split: Any) -> None:
    feeds = bert_batch(TINY_CASE, np.random.default_rng(0))
    seen: list[int] = []
    for rows, part in split(feeds):
        seen += list(rows)
        for row, ids, mask in zip(rows, part["input_ids"], part[MASK], strict=True):
            length = feeds[MASK][row].sum()
            assert mask.sum() == length
            np.testing.assert_array_equal(ids[:length], feeds["input_ids"][row, :length])
    assert sorted(seen) == list(range(6))


def test_buckets_are_sorted_and_cut_to_their_longest() -> None:
    feeds = bert_batch(TINY_CASE, np.random.default_rng(0))
    lengths = feeds[MASK].sum(1)
    parts = list(buckets(feeds))
    assert [len(rows) for rows, _ in parts] == [4, 2]
    for rows, part in parts:
        assert part[MASK].shape[1] == lengths[rows].max()
    assert lengths[parts[0][0]].min() >= lengths[parts[1][0]].max()


def test_live_rows_drop_padding_only_where_rows_are_tokens() -> None:
    feeds: Feeds = {MASK: np.array([[1, 1, 0], [1, 0, 0]])}
    per_token = np.arange(12.0).reshape(2, 3, 2)
    first, second = live_rows([(np.array([1, 0]), per_token)], feeds)
    np.testing.assert_array_equal(first, per_token[1, :2])
    np.testing.assert_array_equal(second, per_token[0, :1])
    pooled = np.arange(4.0).reshape(2, 2)
    answers = live_rows([(np.array([0]), pooled[:1]), (np.array([1]), pooled[1:])], feeds)
    np.testing.assert_array_equal(answers, pooled)


def test_relative_error_sees_every_kind_of_wrong_answer() -> None:
    good = [np.ones(4), np.full((2, 2), 2.0)]
    assert relative_error(good, good) == 0.0
    assert relative_error([good[0], good[1] * 1.01], good) == pytest.approx(0.01)
    assert relative_error([good[0], good[1][:1]], good) == float("inf")
    assert relative_error([good[0], good[1] * np.nan], good) == float("inf")


def test_interleave_rotates_and_pairs_rounds() -> None:
    calls: list[str] = []
    ticks = itertools.count()
    work = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    taken = interleave(work, 3, clock=lambda: float(next(ticks)))
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert taken == {name: [1.0, 1.0, 1.0] for name in "abc"}


def test_interleave_keeps_its_budget_but_not_below_one_round() -> None:
    rounds: list[int] = []
    taken = interleave({"a": lambda: None}, 50, budget_s=0.0, progress=rounds.append)
    assert len(taken["a"]) == 1 and rounds == [1]


def test_ratio_is_the_median_of_ratios() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    with pytest.raises(ValueError, match="argument 2"):
        ratio([1.0], [1.0, 2.0])


def test_flops_of_bert_base() -> None:
    """A layer is 2 x 7.08 M per token and 4 x 768 per pair of tokens."""
    one = replace(BERT_BASE, layers=1)
    assert flops(one, [1]) == 2 * 7_077_888 + 4 * 768
    assert flops(BERT_BASE, [10, 20]) == 12 * (30 * 2 * 7_077_888 + 500 * 4 * 768)
    assert weight_bytes(one) == 4 * 7_077_888


@pytest.mark.skipif(not allowed_cores(), reason="the system does not say which cores are allowed")
def test_one_core_is_given_back() -> None:
    before = allowed_cores()
    with pinned(1) as cores:
        assert os.sched_getaffinity(0) == set(cores) and len(cores) == 1
    assert allowed_cores() == before


def test_machine_facts_are_json_without_names() -> None:
    facts = machine_facts()
    text = json.dumps(facts)
    assert os.uname().nodename not in text or len(os.uname().nodename) < 3
    assert str(Path.home()) not in text
    assert facts["packages"]["onnxruntime"]


def test_limits_are_plausible() -> None:
    """Loose on purpose: it only catches a loop that the compiler removed, and wrong units."""
    limits = measure_limits()
    assert limits, "a C compiler is part of the build"
    assert 1 < limits["fma_gflops"] < 2_000
    assert 0.5 < limits["read_gbytes_per_s"] < 2_000


def test_peers_answer_alike(tmp_path: Path) -> None:
    result = time_case(TINY_CASE, 2, {}, PEERS, quiet, Shared(tmp_path))
    rows = {row["name"]: row for row in result["contenders"]}
    assert {BASE, "ort-singles", "ort-buckets"} <= rows.keys()
    for row in rows.values():
        assert row["error"] <= 1e-5 and len(row["rounds_ms"]) == 2
    assert result["best_peer"] in rows
    assert result["limit_ms"] is None and result["speedup"] == {}
    assert result["workload"]["tokens"] == 30
    assert result["workload"]["live_share"] == pytest.approx(30 / 72)


def test_wrong_and_failing_peers_are_not_timed(tmp_path: Path) -> None:
    def off(workload: Any) -> Any:
        return lambda feeds: np.ones((*feeds["input_ids"].shape, TINY.hidden), np.float32)

    def fails(workload: Any) -> Any:
        raise RuntimeError("no kernel\nfor this")

    said: list[str] = []
    wrong = Contender("wrong", off, whole, "numpy")
    broken = Contender("broken", fails, whole, "numpy")
    absent = Contender("absent", fails, whole, "a_package_that_does_not_exist")
    contenders = PADDED[0], wrong, broken, absent
    result = time_case(TINY_CASE, 1, {}, contenders, said.append, Shared(tmp_path))
    rows = {row["name"]: row for row in result["contenders"]}
    assert rows.keys() == {BASE, "wrong"}
    assert rows["wrong"]["ms"] is None and rows["wrong"]["error"] > 0.1
    assert result["best_peer"] == BASE
    assert any("broken: left out, it failed: no kernel for this" in line for line in said)


def test_shortened_cases() -> None:
    for case in CASES:
        short = shortened(case, 1)
        assert short.name == case.name
        batch = short.batch if isinstance(short, FootprintCase | ThreadsCase) else short
        if isinstance(batch, TextCase):
            assert batch.layers == 1
        elif isinstance(batch, EncoderCase | CompileCase | BlocksCase):
            assert batch.config.layers == 1


def test_cases_are_chosen_by_name_or_family() -> None:
    assert [case.name for case in program.chosen(["compile-bert"])] == ["compile-bert"]
    assert program.chosen([]) == list(CASES)
    families = {case.family for case in CASES}
    assert sum(len(program.chosen([family])) for family in families) == len(CASES)
    both = program.chosen(["spmm", "compile-bert", "spmm-2048-1x1-90"])
    assert {case.family for case in both} == {"spmm", "cost"}
    assert len(both) == len(program.chosen(["spmm"])) + 1
    with pytest.raises(UsageError, match=r"no case 'x'.*padding.*spmm.*minilm-64"):
        program.chosen(["x"])
    with pytest.raises(UsageError, match=r"no case 'spmm-7'.*spmm-2048-32x32-99"):
        program.chosen(["spmm-7"])


@pytest.mark.skipif(
    not minilm.installed() and "CI" not in os.environ, reason=f"run: {minilm.INSTALL}"
)
def test_text_workload_is_real_text(tmp_path: Path) -> None:
    case = TextCase("text", batch=4, batches=2, layers=1)
    workload = make_workload(case, tmp_path)
    assert len(workload.batches) == 2 and workload.padding is None
    assert all(feeds["input_ids"][:, 0].tolist() == [101] * 4 for feeds in workload.batches)
    assert workload.facts()["useful_share"] < 1


@pytest.fixture
def tiny_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typer]:
    """The program with tiny cases of the same kinds."""
    cases = (TINY_CASE, CompileCase("compile", TINY), FootprintCase(TINY_CASE))
    cases = (*cases, TallCase("relu", sizes=(4, 8)), ThreadsCase(TINY_CASE))
    monkeypatch.setattr(program, "CASES", cases)
    app = Typer()
    app.command()(program.command)
    yield app


@pytest.mark.thorough
def test_program_end_to_end(tiny_program: Typer, tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    arguments = ["--rounds", "1", "--json", str(out), "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(tiny_program, arguments)
    assert done.exit_code == 0, done.output
    results = {result["case"]["name"]: result for result in json.loads(out.read_text())}
    folders = {"tall-relu": "compile-time", "threads-tiny": "threads"}
    assert results.keys() == {"tiny", "compile", "footprint-tiny", *folders}
    for name, result in results.items():
        folder = tmp_path / "results" / folders.get(name, "")
        assert json.loads((folder / f"{name}.json").read_text()) == result
    tiny = results["tiny"]
    ours = next(row for row in tiny["contenders"] if row["name"] == OURS)
    assert ours["error"] <= 1e-5 and tiny["speedup"][BASE] > 0
    assert tiny["limit_ms"] > 0
    first = results["compile"]
    for row in (first, first["sibling"]):
        assert row["wall_s"] > 0 and row["cpu_s"] > 0
    tall = results["tall-relu"]["sizes"]
    assert [row["nodes"] for row in tall] == [4, 8]
    assert all(row["cpu_s"] > 0 and row["peak_bytes"] > 1e6 for row in tall)
    footprint = results["footprint-tiny"]
    assert footprint["footprint"].keys() == {"onnxruntime", "pitc"}
    assert min(*footprint["ratios"].values(), footprint["help_s"]) > 0
    for row in results["threads-tiny"]["threads"].values():
        assert min(row.values()) > 0
    replayed = results["threads-tiny"]["replayed"]
    assert replayed.keys() == {"16", "64"} and all(row["gain"] > 0 for row in replayed.values())


@pytest.mark.parametrize(
    ("tasks", "threads", "ends"),
    [([], 3, 0), ([2, 2, 2], 1, 6), ([5, 3, 3, 3], 2, 8), ([1, 1, 9], 2, 10), ([4, 1], 8, 4)],
)
def test_tasks_on_many_threads(tasks: list[float], threads: int, ends: float) -> None:
    assert makespan_us(tasks, threads) == ends


def test_replayed_nodes() -> None:
    """Medians of the runs that are cut alike; what is in no loop is done alone."""

    def run(node: str, took: float, *loops: list[float]) -> str:
        told = [{"loop_us": sum(tasks) + 1, "tasks_us": tasks} for tasks in loops]
        return json.dumps({"node": node, "run_us": took, "loops": told})

    lines = [run("a", 20, [4, 4], [6]), run("a", 22, [4, 5], [7]), run("a", 90, [80])]
    (a, b) = node_tasks([*lines, run("b", 3)])
    assert a == NodeTasks(21, 4, ((4, 4.5), (6.5,)))
    assert b == NodeTasks(3, 3, ())
    assert a.critical_us(2) == 4 + 4.5 + 6.5 and b.critical_us(64) == 3


def test_program_short_runs_leave_no_result_files(
    tiny_program: Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTENDERS, EncoderCase, PEERS)
    arguments = ["tiny", "--rounds", "1", "--layers", "1", "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(tiny_program, arguments)
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("arguments", [["nonsense"], ["tiny", "--against", "nobody"]])
def test_program_says_what_is_wrong(tiny_program: Typer, arguments: list[str]) -> None:
    done = CliRunner().invoke(tiny_program, arguments)
    assert done.exit_code == 2
    assert "error: there is no" in done.output + done.stderr


def test_wrong_results_of_pitc_are_noticed() -> None:
    right = {"contenders": [{"name": OURS, "error": 1e-7}]}
    assert not program.wrong(right) and not program.wrong({"wall_s": 1.0})
    for error in (1e-3, None):
        assert program.wrong({"contenders": [{"name": OURS, "error": error}]})


def test_compile_failures_are_reported() -> None:
    case = CompileCase("compile", TINY, padding="no_such_input")
    with pytest.raises(Exception, match="no_such_input"):
        time_compile(case, 1, allowed_cores(), quiet)


def test_tables_show_every_contender(tmp_path: Path) -> None:
    case = {"name": "c", "targets": {"base": 3.5, "peer": 4.5}}
    rows = [
        {"name": BASE, "error": 0.0, "ms": 8.0, "rounds_ms": [8.0]},
        {"name": OURS, "error": 1e-7, "ms": 2.0, "rounds_ms": [2.0]},
        {"name": "other", "error": None, "ms": None, "rounds_ms": []},
    ]
    result: dict[str, Any] = {
        "case": case,
        "workload": {"batches": [[2, 3]], "tokens": 4, "live_share": 4 / 6},
        "contenders": rows,
        "best_peer": BASE,
        "limit_ms": 1.0,
        "speedup": {BASE: 4.0},
    }
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(result))
    text = console.export_text()
    said = "over ort-padded: 3.50x, met", "over ort-padded, the best peer: 4.50x, short"
    for part in ("ort-padded *", "4.00", "wrong answer", "not finite", "8.00", "0.667", *said):
        assert part in text
    path = save(result, tmp_path / "results")
    assert json.loads(path.read_text()) == result


def test_readme_shows_the_committed_results() -> None:
    """Every figure in the README and on the page of benchmarks comes from a committed file."""
    found = readme.results()
    assert found, "no results are committed"
    for page, rows in (
        (readme.README, readme.main_block(found)),
        (readme.PAGE, readme.block(found)),
    ):
        text = page.read_text("utf-8")
        assert readme.updated(text, rows) == text
    assert set(readme.MAIN) <= set(readme.WHAT)
    text = readme.PAGE.read_text("utf-8")
    assert readme.updated(text, readme.worst_block(), *readme.WORST) == text
    assert readme.updated(text, readme.attention_block(), *readme.ATTENTION) == text
    assert readme.updated(text, readme.training_block(), *readme.TRAINING) == text
    assert readme.updated(text, readme.conversion_block(), *readme.CONVERSION) == text
    assert readme.updated(text, readme.experts_block(), *readme.EXPERTS) == text
    timed = {path.stem for path in (RESULTS / "attention").glob("*.json")}
    assert timed - {case.name for case in MEMORY_CASES} == {*readme.ATTENTIONS}
    kept = {path.stem for path in (RESULTS / "worst-case").glob("*.json")}
    assert kept == {case.name for case in WORST_CASES}


def test_the_page_of_exports_shows_the_committed_results() -> None:
    found, text = exports_page.results(), exports_page.PAGE.read_text("utf-8")
    marks = exports_page.BEGIN, exports_page.END
    assert readme.updated(text, exports_page.block(found), *marks) == text
    made = {(row["architecture"], row["exporter"]) for row in found["rows"]}
    assert made == {(case.name, e) for case in ARCHITECTURES for e in case.exporters}


def test_exports_are_right_and_what_helps_is_suggested() -> None:
    """An option that gains a tenth of the work is named, and what stays dense has a reason."""
    for row in exports_page.results()["rows"]:
        assert all(row[key]["right"] for key in row if key.startswith("answers")), row
        gain = row.get("packed_with_padding", 0.0) - row["packed"]
        assert gain < LEAST_GAIN or row["suggestion"] is not None, row
        assert exports_page.best(row) >= exports_page.ENOUGH or row["architecture"] in WHY, row
