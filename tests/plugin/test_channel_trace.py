"""Decisions of gated convolutions: written when they run, read, summed up and shown."""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import pitc
from models.graph import GraphBuilder
from pitc import api
from pitc.errors import UsageError
from pitc.ir.graph import Graph
from pitc.ir.nodes import plan_of
from pitc.ir.plans.kinds import LONGEST_NAME
from pitc.ir.plans.ops import ChooseChannels
from pitc.measure.trace import race_dense, read_lines
from pitc.measure.trace_channels import ChannelDecision, convolutions
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.channels.choice import choose_channels
from pitc.passes.pipeline import Lowered
from tests.channel_support import (
    BATCH,
    SIZE,
    C,
    F,
    Feeds,
    built,
    conv,
    everything_pays,
    feeds_of,
    flag,
    of_input,
    poisoned,
    session,
)
from tests.channel_support import blocks as gated_blocks
from tests.lower_support import lower, plans
from tests.plugin.test_trace import line as product_line
from tests.plugin.test_trace import write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_pays(monkeypatch)


def chain(names: tuple[str, str] = ("first", "second"), dtype: type = np.float32) -> Lowered:
    """Two convolutions, 8 channels each, by gate0 and gate1 behind them; they choose together."""

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, BATCH)
        for k, name in enumerate(names):
            x = conv(g, x, C, C)
            g._nodes[-1].name = name
            gate = g.input(f"gate{k}", dtype, ("batch", C, 1, 1))
            x = g.op("Where", gate, x, g.const(0.0)) if dtype is np.bool_ else g.op("Mul", x, gate)
        return x

    return lower(built(build, ("batch", C, "h", "w")))


def fed(lowered: Lowered, *live: int, batch: int = 2) -> Feeds:
    """Gates of which so many are open, the last ones."""
    feeds = feeds_of(ir.serde.serialize_model(lowered.model), 1.0, batch)
    for k, count in enumerate(live):
        feeds[f"gate{k}"][:, : C - count] = 0
    return feeds


def traced(lowered: Lowered, path: Path, *feeds: Feeds, **options: str) -> list[ChannelDecision]:
    """What the runs of a session on these inputs have told."""
    one = session(ir.serde.serialize_model(lowered.model), trace=str(path), **options)
    for each in feeds:
        one.run(None, each)
    return read_lines(path).channels


# ---- what is written


PAIR = 2 * SIZE * SIZE * 3 * 3  # operations of a channel of a filter, one image
SUM = 2 * C * C * PAIR


def told(node: str, channels: int, filters: int, live: int, chosen: Any) -> ChannelDecision:
    """A line of the chain, of which `live` pairs are."""
    return ChannelDecision(node, C, channels, C, filters, SUM, live * PAIR, SUM * 3 // 4, chosen)


def test_a_line_for_each_convolution(tmp_path: Path) -> None:
    """All channels of the first image count as live: no gate is in front of it."""
    lowered, path = chain(), tmp_path / "trace"
    cases = [(8, 4, "channels"), (8, 5, "dense"), (6, 8, "channels"), (7, 6, "dense"), (0, 0, "")]
    found = traced(lowered, path, *(fed(lowered, a, b) for a, b, _ in cases))
    want = []
    for a, b, chosen in cases:
        live, chosen = C * a + a * b, chosen or "channels"
        want += [told("first", C, a, live, chosen), told("second", a, b, live, chosen)]
    assert found == want
    assert read_lines(path).products == []
    assert path.read_text().splitlines()[0] == json.dumps(asdict(want[0]))
    assert path.read_text().splitlines() == [json.dumps(asdict(each)) for each in want]


@pytest.mark.parametrize("side", ["then", "else"])
@pytest.mark.parametrize("variant", ["", "dense", "row", "block64"])
def test_the_branch_that_runs_is_the_one_that_is_told(
    side: str, variant: str, tmp_path: Path
) -> None:
    """Dense is forced; other variants are those of products."""
    lowered, path = chain(), tmp_path / "trace"
    options = {"variant": variant} if variant else {}
    spoilt = session(poisoned(lowered, side), trace=str(path), **options)
    chosen = []
    for a in range(0, C + 1, 2):
        for b in (1, 5, 8):
            path.write_bytes(b"")
            (y,) = spoilt.run(None, fed(lowered, a, b))
            (first, second) = read_lines(path).channels
            assert np.isnan(y).all() == ((first.chosen == "channels") == (side == "then"))
            assert np.isnan(y).any() == np.isnan(y).all() and first.chosen == second.chosen
            want = "dense" if variant == "dense" or C * a + a * b > 96 else "channels"
            assert first.chosen == want
            chosen.append(want)
    assert len(set(chosen)) == (1 if variant == "dense" else 2)


def test_numbers_that_are_no_zeros(tmp_path: Path) -> None:
    lowered = chain()
    feeds = fed(lowered, 0, 0)
    gate = feeds["gate0"]
    gate[0, 1], gate[1, 2], gate[0, 3], gate[1, 4], gate[0, 5] = np.nan, -3, 1e-42, -np.inf, -0.0
    first, second = traced(lowered, tmp_path / "trace", feeds)
    assert (first.live_filters, second.live_channels, second.live_filters) == (4, 4, 0)
    flags = fed(bools := chain(dtype=np.bool_), 3, 8)
    first, second = traced(bools, tmp_path / "bools", flags)
    assert (first.live_filters, second.live_filters, first.chosen) == (3, 8, "channels")


def test_no_images(tmp_path: Path) -> None:
    lowered = chain()
    found = traced(lowered, tmp_path / "trace", fed(lowered, 8, 8, batch=0))
    assert [(d.live_channels, d.live_filters, d.chosen) for d in found] == [
        (C, 0, "channels"),
        (0, 0, "channels"),
    ]


def test_names_come_back_as_they_are(tmp_path: Path) -> None:
    """A plan is lines of lists; whatever is in a name, it stays one. Only long ones are cut."""
    odd = '/stage 1/conv,=%2C\n"\\ü€😀\t~[0]'
    lowered = chain((odd, "n" * (LONGEST_NAME - 1) + "ü"))
    first, second = traced(lowered, tmp_path / "trace", fed(lowered, 1, 1))
    assert (first.node, second.node) == (odd, "n" * (LONGEST_NAME - 1))


def test_eight_threads_write_whole_decisions(tmp_path: Path) -> None:
    lowered, path, runs = chain(), tmp_path / "trace", 40
    one = session(ir.serde.serialize_model(lowered.model), trace=str(path))
    feeds = [fed(lowered, live, live) for live in range(C)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: [one.run(None, each) for _ in range(runs)], feeds))
    found = read_lines(path).channels
    assert len(found) == 2 * 8 * runs
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert (first.node, second.node) == ("first", "second")
        assert first.live_filters == second.live_channels == second.live_filters
        assert first.live_work == second.live_work
    assert {d.live_filters for d in found} == set(range(C))


def test_the_environment_names_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lowered = tmp_path / "everywhere", chain()
    monkeypatch.setenv("PITC_TRACE", str(path))
    session(ir.serde.serialize_model(lowered.model)).run(None, fed(lowered, 8, 8))
    assert [d.chosen for d in read_lines(path).channels] == ["dense"] * 2


# ---- plans


def test_plans_hold_whole_numbers_that_fit() -> None:
    (plan,) = plans(chain())
    assert plan["channels"] == "8,8,8" and plan["places"] == "all,0,8"
    assert plan["weights"] == f"{PAIR},{PAIR}" and plan["budget"] == str(SUM * 3 // 4)
    g = GraphBuilder("flags")
    g.output(g.op("Identity", g.input("flags", np.float32, (3,))), "y", np.float32, (3,))
    graph = Graph(ir.serde.deserialize_model(g.model()))
    build = Builder(graph)
    ends = [(3, slice(0, 3)), (5, None), (1 << 24, None)]
    huge = [(1 << 60, 1 << 63), (1 << 45, 1 << 60)]
    choose_channels(build, ["a", "b"], ends, huge, build.value("flags"))
    (plan,) = (plan_of(node) for node in graph.model.graph if node.domain)
    assert isinstance(plan, ChooseChannels)
    first, second = plan.weights
    shift = 60 - (first.bit_length() - 1)
    assert (first, second) == (1 << 60 >> shift, 1 << 45 >> shift)
    work = first * 15 + second * (5 << 24)
    assert 1 << 61 <= work < 1 << 62
    assert plan.budget == ((1 << 63) + (1 << 60)) >> shift


# ---- what is read


LINE: dict[str, Any] = {
    "node": "conv",
    "channels": 8,
    "live_channels": 2,
    "filters": 4,
    "live_filters": 4,
    "work": 640,
    "live_work": 160,
    "budget": 480,
    "chosen": "channels",
}


def line(**changes: object) -> str:
    return json.dumps(LINE | changes)


DAMAGED = {
    '{"channels": 8}': "node: Field required",
    line()[:-3]: "Invalid JSON",
    line(channels=None): "channels: Input should be a valid integer",
    line(channels="8"): "channels: Input should be a valid integer",
    line(filters=-1): "filters: Input should be greater than or equal to 0",
    line(work=1.5): "work: Input should be a valid integer",
    line(budget=True): "budget: Input should be a valid integer",
    line(chosen="row"): "chosen: Input should be 'channels' or 'dense'",
    line(live_channels=9): "more live channels than channels",
    line(live_filters=5): "more live filters than filters",
    line(live_work=641, chosen="dense"): "more than all of the work",
    line(budget=641): "more than all of the work",
    line(live_work=481): "channels were chosen beyond the budget",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items())
def test_a_damaged_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, product_line(), line(), text)
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert str(caught.value).startswith(f"{path}: line 3 is no decision: {message}")


def test_both_kinds_of_lines_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, product_line(), line(), product_line(node="channels"), line(more=1))
    found = read_lines(path)
    assert [d.node for d in found.products] == ["down", "channels"]
    assert found.products == read_lines(path).products
    assert found.channels == [ChannelDecision(**LINE)] * 2


def test_decisions_are_summed_up_by_convolution(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line(),
        line(node="other", channels=0, live_channels=0, work=0, live_work=0, budget=0),
        line(live_channels=8, live_filters=3, live_work=600, chosen="dense"),
        line(live_channels=4, live_filters=0, live_work=320),
        line(channels=16),
    )
    conv, other, wider = convolutions(read_lines(path).channels)
    assert (conv.node, conv.channels, conv.filters, conv.decisions) == ("conv", 8, 4, 3)
    assert (conv.live_channels, conv.live_filters) == (0.5, 0.75)
    assert (conv.live_pairs, conv.live_work, conv.limit) == (0.25, 0.5, 0.75)
    assert list(conv.choices.items()) == [("channels", 2), ("dense", 1)]
    assert (other.live_channels, other.live_filters, other.live_pairs) == (1, 1, 1)
    assert (other.live_work, other.limit) == (1, 1)
    assert (wider.channels, wider.decisions, wider.live_channels) == (16, 1, 0.125)
    assert json.loads(json.dumps(asdict(conv)))["choices"] == {"channels": 2, "dense": 1}


# ---- what is shown


@pytest.fixture
def model(tmp_path: Path) -> pitc.CompiledModel:
    """A gated network of three convolutions."""
    return api.compile(gated_blocks(of_input), output=tmp_path / "gated.pitc")


def open_gates(model: pitc.CompiledModel, live: int) -> tuple[Feeds, list[str]]:
    """Inputs with so many open gates, and the words that name them."""
    proto = onnx.load(model.path / "fallback.onnx")
    feeds = feeds_of(proto, 1.0)
    for name in feeds:
        if name.startswith("gate"):
            feeds[name][:, live:] = 0
    file = model.path.with_name(f"feeds{live}.npz")
    np.savez(file, allow_pickle=False, **feeds)
    return feeds, ["--input", str(file)]


def names(model: pitc.CompiledModel) -> list[str]:
    return [r.node for r in model.report.nodes if r.op_type == "Conv"]


def test_a_race_tells_of_both_choices(model: pitc.CompiledModel) -> None:
    feeds, _ = open_gates(model, 2)
    chosen, dense = race_dense(model, feeds, rounds=3)
    assert chosen.products == dense.products == []
    assert [d.node for d in chosen.channels] == names(model) * 3
    assert {d.chosen for d in chosen.channels} == {"channels"}
    assert {d.chosen for d in dense.channels} == {"dense"}


def test_bench_shows_them(run: Run, model: pitc.CompiledModel, tmp_path: Path) -> None:
    kept, words = tmp_path / "kept.jsonl", ("--rounds", 2, "-q")
    code, out, err = run("bench", model.path, *open_gates(model, 2)[1], *words, "--trace")
    assert (code, err) == (0, "")
    table = out.splitlines()[-4:]
    assert " ".join(table[0].split()) == "node channels filters pairs together up to chosen"
    part = "25.00% of 8"
    live = [f"100.00% of 8 {part} 25.00%", *[f"{part} {part} 6.25%"] * 2]
    for row, name, each in zip(table[1:], names(model), live, strict=True):
        assert " ".join(row.split()) == f"{name} {each} 12.50% 75.00% channels"
    assert "no contraction" not in out and "predicted" not in out
    words = (*words, "--trace-file", kept, "--json")
    body = json.loads(run("bench", model.path, *open_gates(model, 8)[1], *words)[1])
    assert body["contractions"] == []
    assert [c["node"] for c in body["convolutions"]] == names(model)
    for c in body["convolutions"]:
        assert (c["decisions"], c["choices"], c["live_work"]) == (2, {"dense": 2}, 1)
    assert len(read_lines(kept).channels) == 6


def test_explain_shows_them(
    run: Run, model: pitc.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    trace, pages = tmp_path / "t.jsonl", [tmp_path / "r.html", tmp_path / "r.json"]
    for live in (8, 1, 2):
        race_dense(model, open_gates(model, live)[0], rounds=1, keep=tmp_path / "part")
        with trace.open("ab") as file:
            file.write((tmp_path / "part").read_bytes())
    outs = []
    for page in pages:
        code, out, err = run("explain", model.path, "--trace", trace, "--report", page)
        assert (code, err) == (0, "")
        outs.append(out)
    assert outs[0] == outs[1]
    head, *table = outs[0].splitlines()[-4:]
    assert head.split()[-2:] == ["chosen", "zeros"]
    for row, name in zip(table, names(model), strict=True):
        assert row.startswith(name) and " channels 2, dense 1 " in row and " is 0 where " in row
    text = pages[0].read_text()
    assert "<h3>Gated convolutions</h3>" in text
    assert len(re.findall(r"<td [^>]*>channels 2, dense 1</td>", text)) == 3
    written: Mapping[str, Any] = json.loads(pages[1].read_text())
    assert [c["node"] for c in written["convolutions"]] == names(model)
    assert written["contractions"] == []
    one = ("--trace", trace, "--node", names(model)[1], "--json")
    (found,) = json.loads(run("explain", model.path, *one)[1])["convolutions"]
    assert (found["node"], found["live_channels"], found["decisions"]) == (names(model)[1], 0.25, 3)
    assert "convolutions" not in json.loads(run("explain", model.path, "--json")[1])
    assert "Gated convolutions" not in _page_without(run, model, tmp_path)


def _page_without(run: Run, model: pitc.CompiledModel, tmp_path: Path) -> str:
    """The page for a trace in which no convolution is."""
    path, page = write(tmp_path, product_line()), tmp_path / "none.html"
    code, out, _ = run("explain", model.path, "--trace", path, "--report", page)
    assert code == 0 and "pays" not in out and "predicted" in out
    return page.read_text()


def test_half_of_the_channels_of_an_image(tmp_path: Path) -> None:
    """One convolution with a gate in front: all of its filters live."""

    def build(g: GraphBuilder) -> str:
        return conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), F, C)

    lowered = lower(built(build, ("batch", F, "h", "w")))
    feeds = feeds_of(ir.serde.serialize_model(lowered.model), 1.0)
    feeds["gate"][:, 4:] = 0
    (found,) = traced(lowered, tmp_path / "trace", feeds)
    assert (found.live_channels, found.live_filters, found.filters) == (4, F, F)
    assert (found.live_work * 2, found.budget * 4) == (found.work, found.work * 3)
