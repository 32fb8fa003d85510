"""The benchmark of the worst case on tiny models: sizes, limits, exit codes; no test looks at a
time.
"""

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

import pitc
from benchmarks import program, worst, worst_cases, worst_inputs
from benchmarks.cases import CASES
from benchmarks.report import table
from benchmarks.worst import beyond, measure_worst, memory_ratio, ratio_of_pair, time_ratio
from benchmarks.worst_cases import EXPORTS, WORST_CASES, ZOO, WorstCase, cases_of
from benchmarks.worst_inputs import Feeds, given_inputs, masks_of, sized
from models.per_head import PerHeadConfig, pair_bias
from pitc.check.feeds import Case, InputSpec, input_specs, random_feeds
from pitc.errors import UsageError
from pitc.ir.report import Report, Suggestion
from pitc.measure.bench import of_session, session_options
from pitc.measure.timing import allowed_cores

PATHS = {"onnxruntime": Path("a"), "pitc": Path("b")}


def tiny() -> onnx.ModelProto:
    return pair_bias(PerHeadConfig(1, 64, 4), np.random.default_rng(0))


def encoder() -> onnx.ModelProto:
    """Attention that hides keys where the mask is not 0."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        encoder (float[b, n, 8] x, bool[b, n] mask) => (y)
        <int64[1] one = {1}, float low = {-inf}, float zero = {0}>
        {
            turned = Transpose <perm = [0, 2, 1]> (x)
            scores = MatMul (x, turned)
            hidden = Unsqueeze (mask, one)
            bias = Where (hidden, low, zero)
            biased = Add (scores, bias)
            weights = Softmax (biased)
            y = MatMul (weights, x)
        }"""
    return onnx.parser.parse_model(text.replace("{-inf}", "{-1e30}"))


def test_every_export_and_model_of_the_zoo_is_a_case() -> None:
    exports = {p.stem for f in ("fixtures", "fused") for p in EXPORTS.glob(f"{f}/*.onnx")}
    assert len(exports) > 80
    assert {c.model for c in WORST_CASES} == exports | set(ZOO)
    assert set(WORST_CASES) < set(CASES)
    assert program.chosen(["worst-case"]) == list(WORST_CASES)
    assert {(c.most_time, c.most_memory) for c in WORST_CASES} == {(1.02, 1.25)}


@pytest.mark.parametrize("case", WORST_CASES, ids=lambda c: c.model)
def test_models_are_written(case: WorstCase, tmp_path: Path) -> None:
    if case.model in ZOO and not case.model.startswith(("tall", "cnn", "pair", "routed")):
        return  # large ones: the benchmark builds them
    path = case.write(tmp_path)
    assert path.is_file() and input_specs(ir.load(path))
    assert (path.parent == tmp_path) == (case.model in ZOO)


def test_a_model_at_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worst_cases, "ZOO", {"tiny": tiny})
    monkeypatch.setattr(worst_inputs, "SIZES", {"small": (1, 4), "large": (2, 9)})
    monkeypatch.setattr(worst, "MOST_ROUNDS", 1)
    case, said = WorstCase("tiny", 1e3, 1e3), list[str]()
    result = measure_worst(case, 1, allowed_cores(), said.append)
    rows = result["worst"]
    settings = [(row["size"], row["pattern"], row["padding"]) for row in rows]
    assert settings == [
        (size, pattern, padding)
        for padding in (None, "mask")
        for size in ("small", "large")
        for pattern in ("full", "right")
    ]
    assert [row["dims"]["n"] for row in rows[:4]] == [4, 4, 9, 9]
    assert all(
        row["ok"] and not row["wrong"] and row["time"] > 0 and row["rounds"] == 1 for row in rows
    )
    assert all(min(row["peak_bytes"].values()) > 10e6 for row in rows)
    assert not result["skipped"] and not beyond(result)
    head = {"case": {"name": case.name, "most_time": 1.02, "most_memory": 1.25}}
    console = Console(file=io.StringIO(), width=200)
    rows[0] |= {"ok": False, "interval": (1.03, 1.07)}
    console.print(table(json.loads(json.dumps(head | result))))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count(" !") >= 2 and "1.030-1.070" in text


def test_peak_memory_is_that_of_a_process_of_its_own(tmp_path: Path) -> None:
    """A graph that makes two values of 34 MB takes more, whatever this process holds."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x, int64[1] n) => (float[1] y)
        { many = Expand (x, n) more = Neg (many) y = ReduceMax <keepdims = 1> (more) }"""
    path, held, peaks = tmp_path / "m.onnx", np.ones(1 << 25), list[int]()
    onnx.save(onnx.parser.parse_model(text), path)
    for n in (1, 1 << 23):
        feeds = {"x": np.ones(1, np.float32), "n": np.array([n])}
        peaks.append(worst.peak_of(path, feeds, allowed_cores()))
    assert 30e6 < peaks[1] - peaks[0] < 200e6  # the arena rounds up
    assert peaks[0] < held.nbytes


@pytest.mark.parametrize(
    ("peaks", "rounds", "ratio"),
    [
        ([100, 110], 1, 1.1),  # far from the limit
        ([100, 130, 100, 118, 100, 119], 3, 1.18),  # once over it
        ([100, 116, 100, 117, 99, 116], 3, 116 / 99),
    ],
)
def test_memory_near_the_limit_is_measured_again(
    peaks: list[int], rounds: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter(peaks)
    monkeypatch.setattr(worst, "peak_of", lambda *_: next(taken))
    monkeypatch.setattr(worst, "MEMORY_ROUNDS", 3)
    found = memory_ratio(PATHS, {}, set(), 1.25)
    assert found["memory"] == pytest.approx(ratio) and next(taken, None) is None
    assert len(peaks) == 2 * rounds


@pytest.mark.parametrize(
    ("times", "rounds"),
    [
        ([1.0], 6),  # settled at once
        ([1.1], 6),
        ([1.0, 1.1], 24),  # the interval holds the limit all the time
        ([1.0, 1.0, 1.1, 1.1, 1.1, 1.1, *[1.1] * 90], 12),  # and no longer
    ],
)
def test_time_near_the_limit_is_measured_again(
    times: list[float], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = itertools.cycle(times)

    def interleaved(work: dict[str, Callable[[], None]], count: int) -> dict[str, list[float]]:
        if len(work) == 1:
            return {"once": [1.0]}
        return {"onnxruntime": [1.0] * count, "pitc": [next(endless) for _ in range(count)]}

    monkeypatch.setattr(worst, "interleave", interleaved)
    monkeypatch.setattr(worst, "MOST_ROUNDS", 4)
    found = ratio_of_pair({"onnxruntime": lambda _: {}, "pitc": lambda _: {}}, {}, 6, 1.02)
    assert found["rounds"] == rounds


@pytest.mark.parametrize(
    ("ratios", "pairs", "found"),
    [
        ([0.9, 1.3], [0.9], 0.9),  # one pair is enough
        ([1.1, 1.0, 1.01, 1.2, 1.0], [1.1, 1.0, 1.01, 1.2, 1.0], 1.01),
        ([1.1, 1.0, 1.05, 1.2, 1.3], [1.1, 1.0, 1.05, 1.2, 1.3], 1.1),
    ],
)
def test_time_above_the_limit_is_measured_in_other_sessions(
    ratios: list[float], pairs: list[float], found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, opened = iter(ratios), list[int]()

    def ratio(runs: object, *_: object) -> dict[str, Any]:
        opened.append(id(runs))
        return {"time": next(each), "rounds": len(opened)}

    monkeypatch.setattr(worst, "ratio_of_pair", ratio)
    kept: list[dict[str, Any]] = [{}]

    def another() -> dict[str, Any]:
        kept.append({})
        return kept[-1]

    row = time_ratio(kept[0], another, {}, 6, 1.02)
    assert (row["time"], row["pairs"]) == (found, pairs)
    assert row["rounds"] == pairs.index(found) + 1  # all of one pair
    assert opened == [id(x) for x in kept]


@pytest.mark.parametrize(
    ("batches", "lengths", "found"),
    [
        (range(99), range(21), {"b": 3, "n": 16}),
        (range(99), range(3), None),
        (range(99), range(100, 999), {"b": 3, "n": 128}),  # a frame has so many samples
        (range(2), range(999), {"b": 1, "n": 64}),
    ],
)
def test_sizes_that_a_model_does_not_take_are_others(
    batches: range,
    lengths: range,
    found: dict[str, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worst_inputs, "SIZES", {"middle": (3, 64)})
    specs = input_specs(ir.from_proto(tiny()))

    def run(feeds: Feeds) -> Feeds:
        b, n = feeds["mask"].shape
        if b not in batches or n not in lengths:
            raise ValueError
        return {}

    dims, feeds = sized(specs, "middle", run, "full") or (None, {})
    assert dims == found
    assert found is None or feeds["mask"].all()
    assert masks_of(specs) == ["mask"]


def test_the_first_size_is_no_batch_behind_another() -> None:
    molecule = [InputSpec("atoms", np.dtype(np.int64), (1, "n"))]
    assert (sized(molecule, "large", dict, "full") or ({}, {}))[0] == {"n": 256}
    image = [InputSpec("image", np.dtype(np.float32), (1, 1024, "w", "h"))]

    tried = list[int]()

    def refuses(feeds: Feeds) -> Feeds:
        tried.append(feeds["image"].size)
        raise ValueError

    assert sized(image, "small", refuses, "full") is None
    assert max(tried) == worst_inputs.MOST_ELEMENTS


def test_a_wrong_answer_is_seen(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(tiny(), model)
    compiled = pitc.compile(model, padding="mask", suggest=False)
    session = of_session(compiled.session(session_options()))
    specs = input_specs(ir.from_proto(tiny()))
    feeds = random_feeds(specs, {"b": 2, "n": 5}, np.random.default_rng(0), "right", "mask")
    case = Case("right", {}, feeds)
    assert worst.wrong_answer(compiled, model, case, session) == ""
    found = worst.wrong_answer(compiled, model, case, lambda f: {"y": session(f)["y"] + 1})
    assert found.startswith("y: ")


@pytest.mark.parametrize(("ok", "wrong", "code"), [(True, "", 0), (False, "", 1), (False, "y", 4)])
def test_the_program_fails_over_a_limit(
    ok: bool, wrong: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"size": "small", "pattern": "full", "padding": None, "dims": {}, "interval": None}
    row |= {"ms": {"pitc": 1.0}, "time": 1.0, "peak_bytes": {"pitc": 1}, "memory": 1.0, "ok": ok}
    row |= {"wrong": wrong}
    result = {"worst": [row], "skipped": []}
    monkeypatch.setattr(program, "measure_worst", lambda *_: result)
    monkeypatch.setattr(program, "measure_limits", dict)
    app = Typer()
    app.command()(program.command)
    done = CliRunner().invoke(app, ["worst-pair-bias", "--results", str(tmp_path)])
    assert done.exit_code == code, done.output
    written = json.loads((tmp_path / "worst-case" / "worst-pair-bias.json").read_text())
    assert written["worst"] == [row] and written["case"]["most_memory"] == 1.25


def test_there_is_no_other_case() -> None:
    with pytest.raises(UsageError, match="there is no case"):
        program.chosen(["worst-nothing"])


def test_a_folder_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with its own inputs, in a folder, one that nothing can run, and one that is none."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x, int64 rate, string[n] s) => (y, z)
        { r = Cast <to = 1> (rate) y = Mul (x, r) z = Identity (s) }"""
    (tmp_path / "sound").mkdir()
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sound" / "m.onnx")
    own: dict[str, Any] = {
        "rate": np.array(8),
        "s": np.array(["a", "b"]),
        "x": np.ones(2, np.float32),
    }
    np.savez(tmp_path / "sound" / "m.npz", **own)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "b.onnx")
    (tmp_path / "c.onnx").write_text("nothing")
    cases = {case.name: case for case in cases_of(tmp_path)}
    assert list(cases) == ["worst-b", "worst-c", "worst-sound-m"]
    given = given_inputs(tmp_path / "sound" / "m.onnx")
    assert given.keys() == own.keys() and not given_inputs(tmp_path / "b.onnx")
    monkeypatch.setattr(program, "measure_limits", dict)
    app, out, results = Typer(), tmp_path / "out.json", tmp_path / "results"
    app.command()(program.command)
    words = ["--models", str(tmp_path), "--no-times", "--json", str(out), "--results", str(results)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    failed = {r["case"]["name"]: r["failed"] for r in json.loads(out.read_text())}
    assert "no tensor of numbers" in failed["worst-b"] and "ONNX" in failed["worst-c"]
    done = CliRunner().invoke(app, ["worst-sound-m", *words])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(out.read_text())
    assert [(row["time"], row["packed"], row["ok"]) for row in result["worst"]] == [(None, 0, True)]
    assert "sound-m" in done.output and not results.exists()
    for wrong in (["worst-nothing", *words], ["minilm-64", "--no-times"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    with pytest.raises(UsageError, match="no ONNX file"):
        cases_of(results)


def test_masks_that_the_compiler_suggests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suggested ones go before those by name, of which the side that fits is taken."""
    suggestion = Suggestion("padding", "", "--padding '!mask'")
    report = Report(suggestions=[Suggestion("other", "", "--other x"), suggestion])
    assert worst.suggested(report) == ["!mask"]
    monkeypatch.setattr(worst_inputs, "SIZES", {"small": (1, 4)})
    onnx.save(encoder(), tmp_path / "m.onnx")
    case = WorstCase("m", 1e3, 1e3, file=str(tmp_path / "m.onnx"))
    result = measure_worst(case, 0, allowed_cores(), lambda _: None)
    assert {row["padding"] for row in result["worst"]} == {None, "!mask"}
    assert result["failed"] == "" and not beyond(result)
