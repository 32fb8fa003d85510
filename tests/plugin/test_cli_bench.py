"""`pitc bench`: inputs, answers before times, output; no test looks at how long anything takes."""

import builtins
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pitc.check.feeds import Case, InputSpec
from pitc.errors import UsageError
from pitc.measure import bench
from pitc.measure.bench import (
    BASE,
    LEAST_ROUNDS,
    OURS,
    PEERS,
    Contender,
    WrongAnswer,
    make_case,
    race,
)
from pitc.measure.timing import Spread, interval, ratios, spread
from tests.plugin.test_tolerance import half_inside
from tests.wrong_pass import replace_operator

Run = Callable[..., tuple[int, str, str]]
PNG = b"\x89PNG\r\n\x1a\n"
LONG = np.dtype(np.int64)
SPECS = [
    InputSpec("ids", LONG, ("batch", "length"), 50),
    InputSpec("mask", LONG, ("batch", "length")),
    InputSpec("x", np.dtype(np.float32), ("batch", 3)),
]


def test_spread() -> None:
    assert spread([4.0]) == Spread(4.0, 4.0, 4.0)
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.1, 2.9)
    numbers = list(np.random.default_rng(0).standard_normal(37))
    found = spread(numbers)
    want = np.percentile(numbers, [50, 5, 95])
    np.testing.assert_allclose([found.median, found.p5, found.p95], want, rtol=1e-12)


def test_ratios_are_of_the_same_rounds() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_lengths_make_the_mask_and_the_sizes() -> None:
    case = make_case(SPECS, {}, lengths=[2, 5, 0])
    assert case.dims == {"batch": 3, "length": 5}
    np.testing.assert_array_equal(case.feeds["mask"].sum(1), [2, 5, 0])
    np.testing.assert_array_equal(case.feeds["mask"], -np.sort(-case.feeds["mask"], axis=1))
    assert case.feeds["ids"].shape == (3, 5) and case.feeds["ids"].max() < 50
    wider = make_case(SPECS, {"length": 9}, padding="mask", lengths=[2, 5])
    assert wider.feeds["mask"].shape == (2, 9) and wider.feeds["mask"].sum() == 7


def test_a_mean_is_exact() -> None:
    case = make_case(SPECS, {"batch": 6, "length": 20}, mean=8, seed=3)
    lengths = case.feeds["mask"].sum(1)
    assert lengths.sum() == 48 and lengths.max() == 20
    again = make_case(SPECS, {"batch": 6, "length": 20}, mean=8, seed=3)
    np.testing.assert_array_equal(case.feeds["mask"], again.feeds["mask"])


@pytest.mark.parametrize(
    ("specs", "options", "message"),
    [
        (SPECS[2:], {"lengths": [1]}, "no input is one"),
        (SPECS, {"mean": 2, "dims": {"batch": 2, "length": 9}}, "cannot have the mean 2"),
        (SPECS, {"lengths": [3, 9], "dims": {"length": 8}}, "do not fit 'mask' of shape"),
        (SPECS, {"lengths": [3], "dims": {"batch": 2}}, "do not fit 'mask' of shape"),
    ],
)
def test_impossible_lengths(specs: list[InputSpec], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_case(specs, options.pop("dims", {}), **options)


CASE = Case("given", {}, {"x": np.arange(6.0, dtype=np.float32)})


def times(factor: float) -> Callable[[], bench.Run]:
    """Loads a model that multiplies."""

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": feeds["x"] * np.float32(factor)}

    return lambda: run


def broken() -> bench.Run:
    raise RuntimeError("no kernel\nfor this")


def test_wrong_and_failing_peers_are_left_out() -> None:
    def fails(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise ValueError("shape")

    stages: list[str] = []
    found = race(
        [
            Contender(BASE, BASE, times(2)),
            Contender(OURS, "pitc", times(2)),
            Contender("off", "off", times(2.001)),
            Contender("broken", "broken", broken),
            Contender("failing", "failing", lambda: fails),
        ],
        CASE,
        rounds=4,
        stage=stages.append,
    )
    assert stages == ["load", "check", "time"]
    assert [t.name for t in found.timings] == [OURS, BASE]
    assert all(len(t.rounds_ms) == 4 for t in found.timings)
    assert found.timings[0].speedup == Spread(1.0, 1.0, 1.0)
    assert found.left_out == {
        "broken": "it cannot load the model: no kernel for this",
        "failing": "it fails: shape",
        "off": "its answer differs: y: error 5.0e-04",
    }


@pytest.mark.parametrize("count", [1, 5, 6, 9, 20, 101])
def test_the_interval_holds_the_median_in_95_of_100(count: int) -> None:
    """Of numbers whose median is 0, between two of their order statistics as often as is said."""
    if count < LEAST_ROUNDS:
        assert interval([1.0] * count) is None
        return
    drawn = np.random.default_rng(count).standard_exponential((4000, count)) - np.log(2)
    ends = [interval([float(x) for x in row]) for row in drawn]
    held = np.mean([pair is not None and pair[0] <= 0 <= pair[1] for pair in ends])
    assert 0.94 <= held <= 0.99
    widths = [pair[1] - pair[0] for pair in ends if pair is not None]
    assert np.mean(widths) < 2 * (np.percentile(drawn, 95) - np.percentile(drawn, 5))


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([2.0] * 5, "too few rounds to say"),
        ([2.0] * 6, "pitc is faster"),
        ([0.9] * 6, "pitc is slower"),
        ([2.0] * 5 + [0.9], "no difference shown"),
        ([1.02] * 15 + [0.9] * 5, "pitc is faster"),
        ([1.02] * 14 + [0.9] * 6, "no difference shown"),
    ],
)
def test_what_may_be_said(gains: list[float], said: str) -> None:
    row = bench.Timing(BASE, "1", 0, Spread(1, 1, 1), interval(gains), Spread(1, 1, 1), (1,))
    assert row.verdict == said


def test_few_rounds_claim_nothing(run: Run, mlp_path: Path) -> None:
    words = ("bench", mlp_path, "-q", "--against", BASE, "--shape", "batch=2")
    code, out, _ = run(*words, "--rounds", 3)
    assert code == 0
    assert "too few rounds to say: it takes 6 (--rounds, --seconds)" in out
    assert "CPU time, 3 rounds" in " ".join(out.split()) and "x " not in out.split("norm rel")[1]
    body = json.loads(run(*words, "--rounds", 3, "--json")[1])
    assert body["clock"] == "CPU time"
    assert body["contenders"][1]["verdict"] == "too few rounds to say"
    assert body["contenders"][1]["interval"] is None
    assert body["tolerances"] == {"y": "1.0e-05: float32 arithmetic"}
    row = json.loads(run(*words, "--rounds", 6, "--json")[1])["contenders"][1]
    assert row["interval"][0] <= row["speedup"]["median"] <= row["interval"][1]
    assert "95 % interval" in run(*words, "--rounds", 6)[1]


def test_bench_has_the_tolerances_of_verify(run: Run, tmp_path: Path) -> None:
    onnx.save(half_inside(), tmp_path / "half.onnx")
    words = ("-q", "--rounds", 1, "--against", BASE, "--shape", "batch=2")
    code, out, _ = run("bench", tmp_path / "half.onnx", *words)
    assert code == 0 and "float16 arithmetic: 2 times what ONNX Runtime" in " ".join(out.split())


def test_a_wrong_answer_is_not_timed() -> None:
    contenders = [Contender(BASE, BASE, times(2)), Contender(OURS, "pitc", times(3))]
    with pytest.raises(WrongAnswer) as caught:
        race(contenders, CASE, rounds=1)
    assert not caught.value.comparison.ok


def test_our_own_failure_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        race([Contender(BASE, BASE, times(2)), Contender(OURS, "pitc", broken)], CASE, rounds=1)


def test_bench(run: Run, bert_artifact: Path, tmp_path: Path) -> None:
    plot = tmp_path / "race.png"
    words = ("--lengths", "3,9,20", "--rounds", 2, "--plot", plot)
    code, out, err = run("bench", bert_artifact, *words)
    assert code == 0, err
    assert "32 of 60 tokens live" in out
    assert plot.read_bytes().startswith(PNG)
    assert [line.split(" ...")[0] for line in err.splitlines()] == [
        "[1/3] load",
        "[2/3] check",
        "[3/3] time",
    ]
    for name in (OURS, BASE):
        assert any(line.startswith(name) for line in out.splitlines())


def test_bench_as_json(run: Run, bert_artifact: Path) -> None:
    words = ("--mean", 8, "--shape", "sequence=16", "--shape", "batch=4", "--rounds", 3, "-q")
    code, out, err = run("bench", bert_artifact, *words, "--json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert body["schema"] == 1
    assert body["tokens"] == {"live": 32, "places": 64}
    assert body["inputs"]["attention_mask"] == [4, 16]
    rows = {row["name"]: row for row in body["contenders"]}
    installed = {name for name in PEERS if importlib.util.find_spec(name)}
    assert rows.keys() | body["left_out"].keys() == {OURS, BASE} | installed
    for row in rows.values():
        assert len(row["rounds_ms"]) == body["rounds"] == 3
        assert 0 < row["ms"]["p5"] <= row["ms"]["median"] <= row["ms"]["p95"]
        assert row["norm"] <= 1e-5


def test_bench_of_a_model_and_a_file(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((5, 16), np.float32))
    words = ("--input", tmp_path / "in.npz", "--against", BASE, "--rounds", 1, "-q", "--json")
    code, out, _ = run("bench", mlp_path, *words)
    assert code == 0
    body = json.loads(out)
    assert body["inputs"] == {"x": [5, 16]} and body["tokens"] is None
    assert [row["name"] for row in body["contenders"]] == [OURS, BASE]


def test_bench_fails_on_wrong_answers(
    run: Run, mlp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_operator(monkeypatch, "Add", "Sub")
    code, out, err = run("bench", mlp_path, "--shape", "batch=2", "-q")
    assert code == 4
    assert "FAILED" in out
    assert err.endswith("differs from ONNX Runtime; nothing was timed\n")
    code, out, _ = run("bench", mlp_path, "--shape", "batch=2", "-q", "--json")
    assert code == 4 and json.loads(out)["ok"] is False


def test_bench_errors(run: Run, mlp_path: Path, bert_artifact: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((5, 16), np.float32))
    for words, message in (
        (("--plot", "a.pdf"), "does not end in .png"),
        (("--plot", tmp_path / "no" / "a.png"), "does not exist"),
        (("--lengths", "3,x"), "are not N,N,..."),
        (("--lengths", "3", "--mean", 3), "exclude each other"),
        (("--against", "torch"), "is not one of onnxruntime, openvino"),
        (("--input", tmp_path / "in.npz", "--mean", 3), "every input is given"),
        (("--mean", 3, "-q"), "no input is one"),
        (("--rounds", 0), "Invalid value for '--rounds'"),
    ):
        code, out, err = run("bench", mlp_path, *words)
        assert (code, out) == (2, ""), words
        assert message in err.splitlines()[-1]
    code, _, err = run("bench", bert_artifact)  # 128 tokens are too many for its position table
    assert code == 2
    assert err.rstrip().endswith("(sizes were batch=8, sequence=128; choose by --shape)")


def test_missing_packages(run: Run, mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, find = builtins.__import__, importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        code, _, err = run("bench", mlp_path, "--plot", "a.png")
    assert code == 6
    assert err.endswith("matplotlib, which is not installed (pip install matplotlib)\n")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "openvino" else find(n, *a)
    )
    code, _, err = run("bench", mlp_path, "--against", "openvino")
    assert code == 6
    assert err == "error: peer 'openvino' is not installed (pip install openvino)\n"
    assert bench.chosen_peers([]) == []


def test_inspect_lists_kernels_and_placement(run: Run, bert_artifact: Path) -> None:
    code, out, err = run("inspect", bert_artifact, "--ep")
    assert (code, err) == (0, "")
    assert "2 attention, 12 contract, 1 detect" in out
    body = json.loads(run("inspect", bert_artifact, "--ep", "--json")[1])
    manifest = body["manifest"]
    assert ": v4, v3" in out
    for symbol in manifest["kernels"]["symbols"]:
        assert symbol in out
    assert sum(body["pit_nodes"]["cpu"].values()) == manifest["pit_nodes"]
    placed = [n for n in body["placement"] if n["provider"] == "PitExecutionProvider"]
    assert len(placed) == manifest["pit_nodes"]
    assert {n["op_type"] for n in placed} == {"com.microsoft::EPContext"}
    graph = onnx.load(bert_artifact / "model.onnx", load_external_data=False).graph
    names = {n.name for n in graph.node if n.op_type == "EPContext"}
    assert {n["node"] for n in placed} == names


def test_inspect_says_when_onnxruntime_does_not_tell(
    run: Run, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    method = "get_provider_graph_assignment_info"
    owner = next(c for c in onnxruntime.InferenceSession.__mro__ if method in vars(c))
    monkeypatch.delattr(owner, method)
    code, _, err = run("inspect", bert_artifact, "--ep")
    assert code == 6
    assert "does not tell which provider runs which node" in err
