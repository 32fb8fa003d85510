"""`pitc bench` with threads and streams, and latencies: what is counted, not how long it takes."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitc.check.feeds import Case
from pitc.measure import bench, benchmark, throughput, timing
from pitc.measure.bench import BASE, OURS, Contender, race
from pitc.measure.throughput import Round, flow, measure_rates, rates_of
from pitc.measure.timing import WALL_TIME, Spread, latency, pinned

Run = Callable[..., tuple[int, str, str]]
Feeds = Mapping[str, np.ndarray]
X = {"x": np.arange(6.0, dtype=np.float32)}


def nothing(feeds: Feeds) -> Feeds:
    return feeds


def test_latency_is_in_ms_and_counts_calls() -> None:
    seconds = list(np.random.default_rng(0).random(250))
    found = latency(seconds)
    want = np.percentile(seconds, [50, 95, 99]) * 1e3
    np.testing.assert_allclose([found.p50, found.p95, found.p99], want, rtol=1e-12)
    assert found.calls == 250


def test_streams_run_at_the_same_time() -> None:
    """Each request waits until as many are under way as there are streams."""
    together = threading.Barrier(4)
    found = flow(lambda feeds: {"i": np.array(together.wait(timeout=20))}, X, 4, 12)
    assert len(found.seconds) == 12


def test_a_round_is_from_the_first_start_to_the_last_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: float(next(ticks)))
    assert flow(nothing, X, 1, 3) == Round(5.0, (1.0, 1.0, 1.0))
    assert Round(5.0, (1.0, 1.0, 1.0)).rate == 0.6


def test_a_request_that_fails_is_an_error() -> None:
    asked = itertools.count()

    def fails(feeds: Feeds) -> Feeds:
        if next(asked) == 5:
            raise RuntimeError("no kernel")
        return feeds

    with pytest.raises(RuntimeError, match="no kernel"):
        flow(fails, X, 2, 10_000)
    assert next(asked) < 10_000


def threads_after(before: int) -> int:
    """Threads that there are, once the last steps of those that have ended are done."""
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.001)
    return threading.active_count()


def test_ctrl_c_ends_every_stream() -> None:
    """Sessions are gone when the command ends: a thread that still runs one would crash it."""
    asked, main = itertools.count(), threading.get_ident()

    def run(feeds: Feeds) -> Feeds:
        if next(asked) == 5:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.001)
        return feeds

    before = threading.active_count()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            flow(run, X, 3, 100_000)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert next(asked) < 10_000
    assert threads_after(before) == before


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, itertools.count()

    def few(thread: threading.Thread) -> None:
        if next(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        flow(nothing, X, 4, 10)
    assert threads_after(before) == before


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def round_of(run: Callable[[Feeds], Any], feeds: Feeds, streams: int, requests: int) -> Round:
        turns.append(str(run(feeds)))
        return Round(0.01 * streams, (0.01,) * requests)

    monkeypatch.setattr(throughput, "flow", round_of)
    runs: Any = {name: lambda feeds, name=name: name for name in "abc"}
    found = measure_rates(runs, X, 2, 3)
    assert "".join(turns[3:]) == "abcbcacab"  # behind one trial of each
    # a trial of 2 requests took 0.02 s: 12 for each stream fill a round
    assert {len(r.seconds) for rounds in found.values() for r in rounds} == {24}
    turns.clear()
    assert [len(r) for r in measure_rates(runs, X, 1, 9, seconds=0).values()] == [1, 1, 1]


def test_rates_and_their_ratio() -> None:
    found = {
        BASE: [Round(2.0, (1.0,) * 20), Round(1.0, (0.5,) * 10)],
        OURS: [Round(1.0, (0.1,) * 20), Round(1.0, (0.1,) * 40)],
    }
    ours, base = rates_of(found, OURS, {OURS: "1", BASE: "2"}, {OURS: 1e-7, BASE: 0.0})
    assert (ours.name, base.name) == (OURS, BASE)
    assert ours.rounds == (20.0, 40.0) and base.rounds == (10.0, 10.0)
    assert base.speedup == Spread(3.0, 2.1, 3.9) and ours.speedup == Spread(1.0, 1.0, 1.0)
    assert (base.requests, base.wall_s, base.latency.calls) == (30, 3.0, 30)
    assert base.latency.p50 == 1000.0 and ours.latency.p50 == 100.0
    assert base.verdict == "too few rounds to say"


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, (7,)), (2, (5, 7)), (4, (2, 3, 5, 7)), (9, (2, 3, 5, 7))]
)
def test_pinned_takes_the_last_cores(
    monkeypatch: pytest.MonkeyPatch, count: int, chosen: tuple[int, ...]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(timing, "allowed_cores", lambda: {7, 2, 3, 5})
    monkeypatch.setattr(timing.os, "sched_setaffinity", lambda _, cores: asked.append(set(cores)))
    with pinned(count) as found:
        assert found == chosen
    assert asked == [set(chosen), {2, 3, 5, 7}]


def test_threads_of_a_session() -> None:
    """The pool is shared by those that call, whose own thread works, too."""
    asked = {(1, 0): 1, (4, 0): 4, (1, 3): 3, (4, 3): 6}
    assert {pair: timing.threads_in_all(*pair) for pair in asked} == asked


def contenders() -> list[Contender]:
    return [Contender(name, name, lambda: lambda feeds: {"y": feeds["x"]}) for name in (BASE, OURS)]


def test_single_calls_are_counted_without_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_calls", lambda *_: 3)
    found = race(contenders(), Case("given", {}, X), rounds=4)
    assert [t.latency and t.latency.calls for t in found.timings] == [12, 12]
    assert found.rates == [] and found.rounds == 4 and found.to_dict()["streams"] == 0


def test_calls_of_a_round_are_those_of_a_warm_session() -> None:
    taken = iter([0.04, 0.001, 0.0005])
    now = [0.0]

    def run(feeds: Feeds) -> Feeds:
        now[0] += next(taken)
        return feeds

    assert bench._calls(run, X, lambda: now[0]) == 10
    slow = iter([2.0])
    assert bench._calls(lambda f: now.__setitem__(0, now[0] + next(slow)), X, lambda: now[0]) == 1  # type: ignore[arg-type, return-value]


def test_threads_are_those_of_both_sides(
    run: Run, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def options(threads: int = 1) -> Any:
        asked.append(threads)
        return bench.session_options(threads)

    monkeypatch.setattr(benchmark, "session_options", options)
    words = ("--shape", "sequence=8", "--rounds", 2, "--threads", 2, "--against", BASE, "-q")
    code, out, err = run("bench", bert_artifact, *words, "--json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert asked == [2, 2]
    assert body["threads"] == body["machine"]["threads"] == 2 and body["clock"] == WALL_TIME
    assert len(body["cores"]) == min(2, len(timing.allowed_cores()))
    assert bench.session_options(3).intra_op_num_threads == 3
    _, out, _ = run("bench", bert_artifact, *words)
    assert "; 2 threads" in out and "wall time, 2 rounds" in " ".join(out.split())


def test_throughput(run: Run, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "ROUND_SECONDS", 0.01)
    words = ("bench", bert_artifact, "--shape", "sequence=8", "--rounds", 6, "--streams", 3)
    code, out, err = run(*words, "--against", BASE)
    assert code == 0, err
    assert "3 streams of one thread" in out and "95 % interval" in out
    assert "requests/s" in out and "latency of a request, ms: p50" in out
    body = json.loads(run(*words, "--against", BASE, "-q", "--json")[1])
    assert body["streams"] == 3 and body["clock"] == WALL_TIME and body["rounds"] == 6
    assert [row["name"] for row in body["contenders"]] == [OURS, BASE]
    for row in body["contenders"]:
        assert row["requests"] == row["latency"]["calls"] and row["requests"] % 3 == 0
        assert len(row["rounds"]) == 6 and row["norm"] <= 1e-5
        assert 0 < row["latency"]["p50"] <= row["latency"]["p95"] <= row["latency"]["p99"]
    base = body["contenders"][1]
    assert base["interval"][0] <= base["speedup"]["median"] <= base["interval"][1]


@pytest.mark.parametrize(
    "words",
    [
        ("--threads", 2, "--trace"),
        ("--threads", 2, "--report", "r.html"),
        ("--streams", 2, "--trace"),
    ],
)
def test_what_shows_one_thread_is_refused(
    run: Run, mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("bench", mlp_path, *words)
    assert code == 2 and "shows times of one thread (omit --threads and --streams)" in err


def test_no_picture_of_throughput(run: Run, mlp_path: Path, tmp_path: Path) -> None:
    code, _, err = run("bench", mlp_path, "--streams", 2, "--plot", tmp_path / "a.png")
    assert code == 2 and "--plot shows times, and no throughput" in err


@pytest.mark.parametrize("words", [("--threads", 0), ("--streams", 0), ("--streams", 9999)])
def test_no_numbers(run: Run, mlp_path: Path, words: Any) -> None:
    code, _, err = run("bench", mlp_path, *words)
    assert code == 2 and f"Invalid value for '{words[0]}'" in err


def test_requests_of_openvino_are_as_many_as_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs at the same time never share one."""
    busy: set[int] = set()

    class Request:
        def infer(self, feeds: Feeds, share_inputs: bool) -> Feeds:
            assert id(self) not in busy
            busy.add(id(self))
            time.sleep(0.001)
            busy.discard(id(self))
            return {"y": feeds["x"]}

    class Compiled:
        outputs = ()

        def create_infer_request(self) -> Request:
            return Request()

    asked: list[Any] = []
    monkeypatch.setattr(
        bench, "compiled_by_openvino", lambda *words: asked.append(words) or Compiled()
    )
    answer = bench.openvino(Path("m.onnx"), 2, 3)
    assert len(flow(answer, X, 3, 60).seconds) == 60
    assert asked == [(Path("m.onnx"), 2, 3)]
