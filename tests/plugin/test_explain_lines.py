"""The table of `pitc explain`: one line a node in 80 columns, names whole, the rest on demand."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.bert import BertConfig, bert
from pitc import api
from pitc.cli import show_nodes
from pitc.cli.show_nodes import MOST_NODES
from pitc.ir.naming import with_initials
from pitc.ir.refusal import ALL_READ, Code, Refusal
from pitc.ir.report import NodeRecord, Report
from pitc.ir.summary import LEAST, slight_refusals, summary_of, summary_text
from pitc.ir.words import GLOSSARY, WORDS
from pitc.report.page import page
from pitc.report.view import view_of
from tests.report_pages import LONG, Parsed, model

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]
TRACED = ROOT / "models/export/fixtures/bert-eager-traced.onnx"


@pytest.fixture(name="narrow")
def _narrow(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")
    return run


def table(out: str) -> list[str]:
    """The lines of nodes."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(r"node +op +runs +why", line))
    stop = next(i for i, line in enumerate(lines) if i > start and not line.strip())
    return [line for line in lines[start + 1 : stop] if not re.match(r"\d+ of \d+|PATTERN", line)]


@pytest.mark.parametrize("padding", [None, "attention_mask"])
def test_an_encoder_of_two_layers_fits_a_screen_or_two(narrow: Run, padding: str | None) -> None:
    words = ["--padding", padding] if padding else []
    code, out, _ = narrow("explain", TRACED, *words)
    lines = out.splitlines()
    assert code == 0 and len(lines) < 80
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("bert-eager-traced.onnx on cpu")  # the summary comes first
    report = api.explain(TRACED, padding=padding)["cpu"]
    prefix = "/model/"
    assert f"names of nodes begin with {prefix}" in lines
    records = {r.node.removeprefix(prefix): r for r in report.nodes}
    shown = [line.split() for line in table(out)]
    assert len(shown) == MOST_NODES
    for name, op, runs, *_ in shown:
        pattern = re.escape(name).replace(r"\.\.", ".*").replace("/", "[^/]*/")
        fits = [r for n, r in records.items() if re.fullmatch(pattern, n)]
        ways = {"dense" if r.lowering == "ordinary" else r.lowering for r in fits}
        assert fits and runs in ways, name
        assert any(r.op_type == op or ".." in op for r in fits), name
    assert len({tuple(words) for words in shown}) == len(shown)  # no two look the same
    numbers = {n for name, *_ in shown for n in re.findall(r"layer\.\d", name)}
    assert numbers == {"layer.0", "layer.1"}


def test_most_of_the_work_is_shown_in_the_order_of_the_graph(run: Run, tmp_path: Path) -> None:
    config = BertConfig(layers=4, hidden=64, heads=2, ffn=256)
    onnx.save(bert(config, np.random.default_rng(0)), tmp_path / "m.onnx")
    out = run("explain", tmp_path / "m.onnx")[1]
    report = api.explain(tmp_path / "m.onnx")["cpu"]
    shown = [line.split()[0] for line in table(out)]
    places = {r.node: i for i, r in enumerate(report.nodes)}
    assert [places[name] for name in shown] == sorted(places[name] for name in shown)
    most = sorted((r.flops or 0 for r in report.nodes), reverse=True)[MOST_NODES - 1]
    assert {r.node for r in report.nodes if (r.flops or 0) > most} <= set(shown)
    assert f"{len(report.nodes) - MOST_NODES} of {len(report.nodes)} nodes, " in out
    for words in (["--node", "MatMul"], ["--refused"]):
        some = run("explain", tmp_path / "m.onnx", *words)[1]
        assert "are left out" not in some
    names = {line.split()[0] for line in table(run("explain", tmp_path / "m.onnx", "--all")[1])}
    assert names == set(places)


def record(node: str, **fields: object) -> NodeRecord:
    return replace(NodeRecord(node, "MatMul", flops=5), **fields)  # type: ignore[arg-type]


def shown(*records: NodeRecord, width: int = 80, **what: bool) -> list[str]:
    """What is printed of nodes."""
    with pytest.MonkeyPatch.context() as patch, show_nodes.console().capture():
        out = show_nodes.console()
        patch.setattr(out, "_width", width)
        with out.capture() as caught:
            show_nodes._print_nodes(out, records, show_nodes.Shown(**what))
    return [line.rstrip() for line in caught.get().splitlines()]


READ = Refusal(Code.NO_FACT, "n", ALL_READ, "last_hidden_state")
LATER = Refusal(Code.LAYOUT, "n", "rows and columns of the result are mixed", "scores")


def test_a_line_says_how_a_node_runs_and_why() -> None:
    lines = shown(
        record("a", refusal=READ),
        record("b", refusal=replace(LATER, also=READ)),
        record("c", lowering="packed", rule="contraction"),
        record("d", lowering="folded", inside="c"),
        width=100,
    )
    assert [line.split(None, 3)[2:] for line in lines[1:]] == [
        ["dense", "PIT002 read by 'last_hidden_state'"],
        ["dense", "PIT012 rows and columns of the result are mixed, at 'scores'"],
        ["packed", "contraction"],
        ["folded", "into c"],
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", [LONG, "x" * 300, "/a" * 90, "ein Name mit\nZeilen", "n"])
def test_lines_fit(width: int, name: str) -> None:
    lines = shown(
        record(name, refusal=replace(READ, value=name), op_type="my.domain::VeryLongOperatorName"),
        record("m", lowering="packed", inside=name),
        record("n2", refusal=replace(LATER, reason="word " * 40)),
        width=width,
    )
    assert len(lines) == 4 and max(map(len, lines)) <= width, lines
    assert shown(record(name), whole=True)[1].startswith(" ".join(name.split()))


def test_facts_stand_below_a_node_where_they_are_asked_for() -> None:
    known = record(
        "n",
        refusal=replace(LATER, also=READ),
        fills=("0 where m == 0",),
        dead=("m[d0] == 0",),
        pit_axes=("o0", "r0"),
        module="encoder.layer.0",
        line="net.py:7",
    )
    below = [
        "    axes: o0 r0",
        "    fill 0 where m == 0",
        "    dead m[d0] == 0",
        "    refused: PIT012 rows and columns of the result are mixed, at 'scores'",
        f"    nor: PIT002 {ALL_READ}, at 'last_hidden_state'",
        "    engine: onnxruntime",
        "    module: encoder.layer.0",
        "    line: net.py:7",
    ]
    assert shown(known, facts=True)[2:] == shown(known, asked=True)[2:] == below
    assert len(shown(known)) == 2
    assert len(shown(*[known] * 4, asked=True)) == 5  # many were asked for
    assert shown() == ["no such node"]


def test_names_that_would_look_the_same_keep_first_letters() -> None:
    names = [
        f"encoder/layer.0/{part}/dense/MatMul" for part in ("attention/output", "intermediate")
    ]
    lines = shown(*(record(n, refusal=LATER) for n in names), record("n/b"))
    first, second = (line.split()[0] for line in lines[1:3])
    assert first != second and "layer.0" in first and "layer.0" in second
    assert with_initials("encoder/" + "x" * 99 + "/MatMul", 20) == "e/x/MatMul"


def test_each_reason_stands_in_full_once(run: Run) -> None:
    out = " ".join(run("explain", TRACED, "--padding", "attention_mask")[1].split())
    reason = "an operand must be reshaped to [1, sequence] (an unpacked dimension has no static"
    assert out.count(reason) == 1


# ---- refusals


def test_a_hint_on_cost_stands_behind_reasons_of_cost() -> None:
    """Reasons that are about what runs packed nearby have a code of their own."""
    costs = {"under 32 operations per byte moved"}
    seen = set()
    for name in ("bert-eager-traced", "experts-loop-sdpa-traced", "llama-sdpa-dynamo"):
        path = ROOT / f"models/export/fixtures/{name}.onnx"
        for record in api.explain(path, padding="attention_mask")["cpu"].nodes:
            refusal = record.refusal
            if refusal is not None and refusal.code is Code.NO_GAIN:
                told = refusal.reason in costs or refusal.reason.startswith("the matrix has only")
                assert told or "whole line" in refusal.reason, refusal
            if refusal is not None and refusal.code is Code.NOT_NEEDED:
                seen.add(refusal.reason.split("'")[0])
    assert {"no packed node needs it packed", "no contraction shares its dead rows"} <= seen


def costly(share: int) -> Report:
    """Some nodes that are refused alike, in a model of 1000 operations."""
    small = [
        record(f"s{i}", refusal=replace(LATER, reason=f"'{i}' is mixed"), flops=share // 2)
        for i in range(2)
    ]
    rest = record("rest", refusal=READ, flops=1000 - 2 * (share // 2))
    custom = record("own", refusal=Refusal(Code.NO_RULE, "own", "odd"), flops=None)
    return Report(nodes=[*small, rest, custom])


@pytest.mark.parametrize(("share", "told"), [(8, False), (10, True), (400, True)])
def test_refusals_under_a_hundredth_are_neither_told_nor_painted(share: int, told: bool) -> None:
    assert LEAST == 0.01
    report = costly(share)
    codes = [cost.code for cost in summary_of(report).costs]
    assert codes == ["PIT012", "PIT001"][not told :]  # what nobody knows the work of is told
    assert ("PIT012" in summary_text(report)) is told
    assert slight_refusals(report) == (set() if told else {"s0", "s1"})
    view = view_of(report, {}, {}, several=False)
    painted = {name: box.kind for box in view.drawing.boxes for name in names_of(box.title)}
    assert painted["s0"] == painted["s1"] == ("refused" if told else "dense")
    assert painted["own"] == "refused"
    assert [row.kind for row in view.rows] == ["refused", "refused", "dense", "refused"]


def names_of(title: str) -> list[str]:
    return [line.split(" ")[0] for line in title.splitlines()]


# ---- the report of a model that gains little


def test_a_model_that_gains_little_says_what_to_try() -> None:
    report = api.explain(TRACED)["cpu"]
    (said,) = report.suggestions
    told = Parsed(page([replace_packed(report)])).text
    box = told[told.index("What to try") : told.index("Graph", told.index("What to try"))]
    assert said.option in box and "Every row is read by output 'last_hidden_state'." in box
    assert "docs/case.md" in box and "What would help" not in told
    assert "Only " in told
    assert "What to try" not in Parsed(page([model()])).text
    assert "What would help" in Parsed(page([model()])).text


def replace_packed(report: Report) -> Report:
    """The same with less packed, so that little is gained."""
    nodes = [
        replace(r, flops=(r.flops or 0) // 10) if r.lowering != "ordinary" else r
        for r in report.nodes
    ]
    return replace(report, nodes=nodes)


# ---- words


def test_words_are_explained_where_they_stand() -> None:
    parsed = Parsed(page([model()]))
    links = [a for a in parsed.all("a") if a.get("class") == "word"]
    assert {"packed", "sparse", "folded", "dense", "refused", "live-rows"} <= {
        (a["href"] or "").removeprefix("#word-") for a in links
    }
    assert all(a["title"] in WORDS.values() for a in links)
    assert {f"word-{w.replace(' ', '-')}" for w in WORDS} <= {
        a.get("id") for _, a in parsed.elements
    }


def test_the_glossary_has_the_same_words(run: Run) -> None:
    text = " ".join((ROOT / GLOSSARY).read_text("utf-8").split())
    for word, meaning in WORDS.items():
        assert f"| {word} | {meaning} |" in text, word
    assert f"words: {GLOSSARY}" in run("explain", TRACED)[1]
