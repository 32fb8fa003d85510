"""The report as text: one well-formed file, hostile names, a row for each node, what it tells."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.ir.report import NodeRecord, Report
from pitc.measure.trace_lines import Decision
from pitc.report import boxes, layout, text
from pitc.report.charts import density_chart
from pitc.report.evidence import Evidence
from pitc.report.page import TEMPLATES, page
from pitc.report.view import hosts_of, view_of
from tests.report_pages import (
    HOSTILE,
    LAYERS,
    LONG,
    Parsed,
    decision,
    evidence,
    model,
    random_model,
)


@pytest.fixture(name="parsed", scope="module")
def _parsed() -> Parsed:
    return Parsed(page([model()], evidence()))


# ---- the file


def test_the_page_is_one_file(parsed: Parsed) -> None:
    """Nothing is fetched: links lead into the page, and its policy forbids all else."""
    for tag, attributes in parsed.elements:
        if tag != "link":
            assert "src" not in attributes, (tag, attributes)
        for name in ("href", "xlink:href", "data", "action", "poster", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith("#") or value == "data:,", (tag, name, value)
    (policy,) = parsed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in (policy["content"] or "")
    for name in ("style.css", "script.js"):
        own = (TEMPLATES / name).read_text("utf-8")
        assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest|eval\(", own)


def test_links_lead_somewhere(parsed: Parsed) -> None:
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for a in parsed.all("a")]
    assert len(links) > 3 * LAYERS
    assert {link[1:] for link in links} <= set(ids)
    labels = {a.get("aria-labelledby") for _, a in parsed.elements} - {None}
    assert labels <= set(ids)


def test_hostile_names_stay_text(parsed: Parsed) -> None:
    assert len(parsed.all("script")) == 1 and not parsed.all("img")
    assert HOSTILE in {a.get("title") for a in parsed.all("span")}
    assert "49" not in parsed.text.replace("49 %", "")
    assert [a for a in parsed.all("h1") if a.get("title") == "model<i>.onnx"]
    assert not parsed.all("i") or all("style" in a for a in parsed.all("i"))
    assert "<b>" in parsed.text  # of the reason and the note


def test_every_node_has_one_row(parsed: Parsed) -> None:
    report = model()
    places = [int(a["data-place"] or "") for a in parsed.all("tr") if "data-place" in a]
    assert places == list(range(len(report.nodes)))
    drawn = [int(n) for a in parsed.all("a") for n in (a.get("data-nodes") or "").split()]
    hidden = {i for i, record in enumerate(report.nodes) if record.is_plumbing}
    assert sorted(drawn) == sorted(set(places) - hidden) and len(hidden) == LAYERS
    titles = [a.get("title") for a in parsed.all("span")]
    assert {record.node for record in report.nodes} <= set(titles)
    assert LONG not in parsed.text and "…" in parsed.text


def test_what_the_page_tells(parsed: Parsed) -> None:
    told = parsed.text
    assert "times as fast as ONNX Runtime on these inputs" in told
    for expected in (
        "pitc bench 'my model.onnx' --report report.html",
        "250 → 180 MB",
        "33 of 64",
        "31.0 ms",
        "more nodes would run packed --padding mask",
        "PIT001",
        "0.0 where attention_mask[i0, i1] == 0",
        "pitc_gemm_v4_6x64_float32_bias_gelu",
        "region0",
        "run-time values are finite",
        "openvino was left out",
        "compiled bypitc 0.0.1",
        "finding live rows, moving them",
        "/model/layer.0/q/MatMul and 1 inside",
        "micro-tiles: row 1x1",
    ):
        assert expected in told, expected
    assert len(parsed.all("path", **{"class": "thin"})) == LAYERS


@pytest.mark.parametrize(
    ("interval", "shown", "carried"),
    [
        ((2.9, 3.05), "2.98 times as fast as ONNX Runtime", "95 % interval 2.90 – 3.05×"),
        (None, "Too few rounds to say whether it is faster", "20 rounds: too few for a claim"),
        ((0.9, 1.1), "No difference from ONNX Runtime was shown", "95 % interval 0.90 – 1.10×"),
    ],
)
def test_a_claim_needs_rounds(
    interval: tuple[float, float] | None, shown: str, carried: str
) -> None:
    known = evidence()
    assert known.race is not None
    known.race.timings[1] = replace(known.race.timings[1], interval=interval)
    told = Parsed(page([model()], known)).text
    assert shown in told and carried in told


def test_without_evidence() -> None:
    parsed = Parsed(page([model()]))
    assert "of the work runs on live rows only" in parsed.text
    assert not any(a.get("id") in ("times", "density") for _, a in parsed.elements)
    assert "The trace is empty" in Parsed(page([model()], Evidence(contractions=[]))).text


@pytest.mark.parametrize("nodes", [[], [NodeRecord("only", "Neg")]])
def test_small_models(nodes: list[NodeRecord]) -> None:
    parsed = Parsed(page([Report(nodes=nodes)]))
    assert "No work to skip was found: the model runs unchanged" in parsed.text
    assert bool(parsed.all("a", **{"class": "box k-dense"})) == bool(nodes)


def test_two_kinds_of_machine() -> None:
    parsed = Parsed(page([model(), model(kind="cuda")], evidence()))
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"cpu-n0", "cuda-n0", "graph-cpu", "nodes-cuda"} <= set(ids)
    assert {(a["href"] or "")[1:] for a in parsed.all("a")} <= set(ids)


# ---- names and numbers


@given(st.text(max_size=60))
def test_words_only_add_places_to_break(given_text: str) -> None:
    shown = text.words(given_text, token=100)
    parsed = Parsed(f"<p>{shown}</p>")
    joined = "\N{WORD JOINER}"
    expected = " ".join(given_text.split()).replace(joined, "")
    assert "".join(parsed.texts).replace(joined, "") == expected


def test_words_break_behind_signs_only() -> None:
    assert text.words("/model/layer.0/q_proj") == "/model/<wbr>layer.<wbr>0/<wbr>q_<wbr>proj"
    assert text.words("1.25 – 3.38× 1,234") == "1.25 – 3.38× 1,234"
    assert text.words("x" * 40, 9) == "xxxx\u2060…\u2060xxxx"
    shown = text.name("/model/encoder/layer.11/attention/MatMul", 30)
    assert re.sub("<wbr>|\u2060", "", shown) == "/model/…11/attention/MatMul"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (0, "0 %"),
        (4e-4, "<0.1 %"),
        (0.0345, "3.5 %"),
        (0.345, "34 %"),
        (0.9996, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_shares(part: float, shown: str) -> None:
    assert text.share(part) == shown


def test_figures() -> None:
    assert [text.figures(x) for x in (0, 0.01234, 1.234, 12.34, 1234.4)] == [
        "0",
        "0.0123",
        "1.23",
        "12.3",
        "1234",
    ]
    assert [text.time(x) for x in (None, 5, 1500, 2.5e6)] == ["–", "5.00 µs", "1.50 ms", "2.50 s"]
    assert (text.size(999), text.size(2.5e6), text.size_in(2.5e6, "kB")) == (
        "999 B",
        "2.50 MB",
        "2500",
    )
    assert (text.flops(26.9e9), text.flops(12)) == ("26.9 G", "12")


# ---- the drawing


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 90), st.integers(0, 10**6), st.sampled_from([3, 20, 220]))
def test_boxes_hold_each_node_once_and_feed_forward(nodes: int, seed: int, most: int) -> None:
    report = random_model(nodes, seed)
    kinds = [row.kind for row in view_of(report, {}, {}, several=False).rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "MOST_BOXES", most)
        found = boxes.boxes_of(report.nodes, kinds)
    assert nx.is_directed_acyclic_graph(found.graph)
    assert sorted(found.graph) == list(range(len(found.nodes)))
    held = sorted(n for box in found.nodes for n in box)
    assert held == sorted(set(held)) and len(held) + found.hidden == nodes
    for box in found.nodes:
        assert len({kinds[n] for n in box} - {boxes.FOLDED}) <= 1
    owner = {n: i for i, box in enumerate(found.nodes) for n in box}
    for n in held:  # what feeds a node directly feeds its box
        for back in report.nodes[n].reads:
            u, v = owner.get(n - back), owner[n]
            assert u is None or u == v or found.graph.has_edge(u, v)


def test_what_leads_through_plumbing_is_told_once() -> None:
    """a -> shape -> b and a -> c -> b: the first says nothing new; a -> shape -> d does."""
    names = {"a": (), "shape": (1,), "c": (2,), "b": (1, 2), "d": (3,)}
    nodes = [NodeRecord(n, "X", flops=0 if n == "shape" else 1, reads=r) for n, r in names.items()]
    found = boxes.boxes_of(nodes, ["dense"] * 5)
    assert found.hidden == 1
    assert set(found.graph.edges) == {(0, 1), (1, 2), (0, 3)}


def test_experts_side_by_side_share_boxes() -> None:
    nodes = [NodeRecord("x", "Neg", flops=1)]
    for _ in range(300):
        nodes.append(NodeRecord("up", "MatMul", flops=1, lowering="packed", reads=(len(nodes),)))
        nodes.append(NodeRecord("down", "MatMul", flops=1, lowering="contract", reads=(1,)))
    nodes.append(NodeRecord("sum", "Sum", flops=1, reads=tuple(range(1, 600, 2))))
    kinds = [row.kind for row in view_of(Report(nodes=nodes), {}, {}, several=False).rows]
    found = boxes.boxes_of(nodes, kinds)
    assert len(found.nodes) == 16 and max(map(len, found.nodes)) == 48


def test_a_box_names_its_operators() -> None:
    nodes = [NodeRecord("", op) for op in ("MatMul", "MatMul", "my.domain::Add", "Softmax", "Erf")]
    assert boxes.label_of([0], nodes) == "MatMul"
    assert boxes.label_of([0, 1, 2], nodes) == "2 × MatMul, Add"
    assert boxes.label_of([0, 1, 2, 3, 4], nodes) == "2 × MatMul, Add, 2 more"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_boxes_do_not_overlap_and_lines_go_down(nodes: int, seed: int) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    for i, record in enumerate(random_model(nodes, seed).nodes):
        graph.add_edges_from((i - back, i) for back in record.reads)
    found = layout.layout_of(graph)
    for x, y in found.places.values():
        assert 0 < x <= found.width - layout.BOX_WIDTH and 0 < y <= found.height - layout.BOX_HEIGHT
    rows: dict[int, list[int]] = {}
    for x, y in found.places.values():
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        assert all(b - a >= layout.BOX_WIDTH for a, b in pairwise(sorted(row)))
    assert len(found.lines) + len(found.long) == graph.number_of_edges()
    for line in found.lines:
        assert all(a[1] < b[1] for a, b in pairwise(line))


def test_a_source_lies_above_its_reader() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "d"), ("c", "d")])
    assert layout.levels_of(graph) == {"a": 0, "b": 1, "c": 1, "d": 2}  # type: ignore[arg-type]


# ---- charts


def test_the_race_is_on_one_scale(parsed: Parsed) -> None:
    bars = [x["style"] for x in parsed.all("span") if "style" in x]
    assert bars[(at := bars.index("width:33.55%")) : at + 2] == ["width:33.55%", "width:100.0%"]
    assert pytest.approx(100 * 10.4 / 31, abs=0.01) == 33.55
    between = [x["style"] for x in parsed.all("i") if "style" in x]
    assert between == ["left:32.26%;width:2.58%", "left:100.0%;width:0.0%"]
    assert "2.98×" in parsed.text


def test_times_of_what_runs_inside_count_with_its_host(parsed: Parsed) -> None:
    view = view_of(model(), {}, {}, several=False)
    hosts = hosts_of(view.report.nodes)
    assert (
        hosts["/model/layer.0/q/Add"]
        == hosts["/model/layer.0/q/MatMul"]
        == "/model/layer.0/q/MatMul"
    )
    rows = [a for a in parsed.all("tr") if "data-place" in a]
    by_place = {int(a["data-place"] or ""): a for a in rows}
    product, bias = by_place[3], by_place[4]
    assert (product["data-before"], product["data-after"]) == ("900.0", "400.0")
    assert "data-after" not in bias
    assert (by_place[6]["data-live"], by_place[6]["data-after"]) == ("0.5", "600.0")


def test_hosts_that_name_each_other_end() -> None:
    nodes = [NodeRecord("a", "X", inside="b"), NodeRecord("b", "X", inside="a")]
    assert set(hosts_of(nodes)) == {"a", "b"}


def density_of(decisions: Sequence[Decision]) -> dict[str, Any] | None:
    return density_chart(Evidence(decisions=decisions, contractions=[]), {})


def test_density_over_time() -> None:
    few = density_of([decision("a", 64), decision("b", 16)])
    assert few is not None and few["lines"] == []  # one decision is no line
    many = density_of([decision("a", live) for live in (0, 128, 256)])
    assert many is not None
    assert [line["path"] for line in many["lines"]] == ["M0.0 200.0L300.0 100.0L600.0 0.0"]
    assert (many["middle"], many["ticks"][0]) == ("", "100 %")
    long = density_of([decision("a", 10)] * 1000)
    assert long is not None and long["lines"][0]["path"].count("L") == 119
    assert density_chart(Evidence(), {}) is None


def test_the_templates_ship() -> None:
    assert {p.name for p in Path(TEMPLATES).iterdir()} == {
        "parts.html",
        "report.html",
        "script.js",
        "style.css",
    }
