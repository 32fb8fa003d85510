"""Times of nodes from ONNX Runtime's profiler, memory of a process, and who feeds whom."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pitc import api
from pitc.ir.report import Report
from pitc.measure.memory import peak_bytes
from pitc.measure.profile import Change, NodeTime, Profile, changes, named, read_profile

Run = Callable[..., tuple[int, str, str]]
NAMES = {"/fc/Gemm": "/fc/Gemm", "fc.out": "/fc/Gemm", "x [packed]": "/odd", "add_16": "/add"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("/fc/Gemm", "/fc/Gemm"),
        ("/fc/Gemm/GemmTransposeFusion/", "/fc/Gemm"),
        ("/fc/Gemm [packed contract]", "/fc/Gemm"),
        ("fc.out [unpack].2", "/fc/Gemm"),
        ("x [packed] [pack]", "/odd"),  # a value that is called like our own names
        ("mask [detect]", None),
        ("pitc.reshape.node.3", None),
        ("/fc/Gem", None),
    ],
)
def test_a_session_s_node_finds_its_source(name: str, source: str | None) -> None:
    assert named(name, NAMES) == source


def event(name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": args}


def test_reading_a_profile(tmp_path: Path) -> None:
    """The first two runs warm up; of the others each node's least counts; a node of a loop's body
    counts as often as it runs.
    """
    events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_loading_uri", "args": {}}]
    for run, dur in enumerate((1, 2, 30, 20)):
        start = 1000 * run
        events.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 500, "args": {}})
        shape = {"output_type_shape": [{"float": [4, 8]}, {"int64": [1]}]}
        events.append(event("/fc/Gemm", start + 1, dur, op_name="Gemm", **shape))
        ours = {"provider": "PitExecutionProvider", "op_name": "PitExecutionProvider_77_1"}
        events.append(event("PitExecutionProvider_x_1_1", start + 2, 7, **ours))
        events += [event("body", start + 3 + i, 5, op_name="Add") for i in range(3)]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    found = read_profile(path, NAMES, ["mask [detect]", "add_16 [packed contract]"])
    gemm, ours_, body = found.nodes
    assert gemm == NodeTime("/fc/Gemm", "Gemm", True, 20, 32)
    assert (ours_.node, ours_.op_type, ours_.known, ours_.us) == ("/add", "PIT", True, 7)
    assert (body.us, body.elements, found.runs) == (15, 0, 2)
    (nameless, *_) = [n for n in read_profile(path, NAMES, []).nodes if n.op_type == "PIT"]
    assert (nameless.node, nameless.known) == ("PIT node 1", False)


def test_changes_pair_nodes_by_their_source() -> None:
    def profile(*nodes: tuple[str, float, int]) -> Profile:
        return Profile(tuple(NodeTime(n, "X", n != "?", us, size) for n, us, size in nodes), 1)

    before = profile(("a", 9, 64), ("b", 2, 8), ("grown", 1, 4), ("?", 5, 5))
    after = profile(("a", 3, 64), ("a", 1, 16), ("c", 4, 2), ("grown", 1, 8), ("?", 5, 5))
    assert changes(before, after) == {
        "a": Change(9, 4, 0.25),
        "b": Change(2, None, None),
        "grown": Change(1, 1, None),  # it is no share
        "c": Change(None, 4, None),
    }


def test_memory_is_that_of_a_process_of_its_own(tmp_path: Path) -> None:
    """A weight of 64 MB is more than one of 4; names of inputs may be any text."""
    peaks = []
    for rows in (1 << 10, 1 << 14):
        weight = onnx.numpy_helper.from_array(np.ones((rows, 1024), np.float32), "w")
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["file", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("file", TensorProto.FLOAT, [1, rows])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1024])],
            [weight],
        )
        opset = [helper.make_opsetid("", 17)]
        path = tmp_path / f"{rows}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
        peaks.append(peak_bytes(path, {"file": np.ones((1, rows), np.float32)}))
    small, large = peaks
    assert small is not None and large is not None
    assert large - small > 50e6
    assert peak_bytes(path, {"file": np.array(["text"], object)}) is None
    assert peak_bytes(path, {"other": np.ones(1)}) is None


def test_reads_are_who_feeds_whom(bert_path: Path) -> None:
    (report,) = api.explain(bert_path, padding="attention_mask").values()
    nodes = {record.node: i for i, record in enumerate(report.nodes)}
    graph = onnx.load(bert_path, load_external_data=False).graph
    makers = {o: n.name or n.output[0] for n in graph.node for o in n.output}
    checked = 0
    for node in graph.node:
        place = nodes.get(node.name or node.output[0])
        if place is None or any(x in makers and makers[x] not in nodes for x in node.input):
            continue  # the compiler has simplified it
        feeds = {nodes[makers[x]] for x in node.input if x in makers}
        assert {place - back for back in report.nodes[place].reads} == feeds, node.name
        checked += 1
    assert checked > 100


def loop() -> onnx.ModelProto:
    """A node in front of a loop whose body reads it, and one behind."""
    number = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"], "on"),
            helper.make_node("Add", ["state", "front"], ["next"], "sum"),
        ],
        "body",
        [number("i", 7, []), number("go", 9, []), number("state", 1, ["n"])],
        [number("on", 9, []), number("next", 1, ["n"])],
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["front"], "neg"),
        helper.make_node("Loop", ["trips", "", "x"], ["state_out"], "loop", body=body),
        helper.make_node("Abs", ["state_out"], ["y"], "abs"),
    ]
    ends = number("x", 1, ["n"]), number("trips", 7, [])
    graph = helper.make_graph(nodes, "g", ends, [number("y", 1, ["n"])])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def test_a_body_reads_what_lies_outside() -> None:
    (report,) = api.explain(loop()).values()
    places = {record.node: i for i, record in enumerate(report.nodes)}
    assert report.nodes[places["loop"]].reads == (places["loop"] - places["neg"],)
    assert report.nodes[places["abs"]].reads == (places["abs"] - places["loop"],)


def test_bench_writes_a_report(run: Run, bert_artifact: Path, tmp_path: Path) -> None:
    from tests.report_pages import Parsed

    data, page = tmp_path / "report.json", tmp_path / "report.html"
    words = (
        "bench",
        bert_artifact,
        "--lengths",
        "9,16,7",
        "--rounds",
        2,
        "--against",
        "onnxruntime",
    )
    for path in (data, page):
        code, _, err = run(*words, "--report", path, "-q")
        assert (code, err) == (0, "")
    body = json.loads(data.read_text())
    assert set(body["peak_bytes"]) == {"onnxruntime", "pitc"}
    assert [t["name"] for t in body["race"]["contenders"]] == ["pitc", "onnxruntime"]
    source = {n["node"] for n in body["nodes"]}
    for profile in body["profiles"].values():
        assert {n["node"] for n in profile["nodes"] if n["known"]} <= source
    ours = [n for n in body["profiles"]["after"]["nodes"] if n["op_type"] == "PIT"]
    assert ours and any(n["known"] for n in ours)
    parsed = Parsed(page.read_text())
    assert f"pitc bench {bert_artifact} --lengths 9,16,7" in parsed.text
    assert "32 of 48" in parsed.text
    live = {
        row["data-live"]
        for row in parsed.all("tr", **{"data-kind": "packed"})
        if "data-live" in row
    }
    assert live == {str(32 / 48)}


def test_a_report_of_a_gpu_is_refused(run: Run, bert_artifact: Path, tmp_path: Path) -> None:
    code, _, err = run("bench", bert_artifact, "--report", tmp_path / "report.txt")
    assert code == 2 and "neither .json nor .html" in err


def test_links_cost_little(bert_path: Path) -> None:
    """Of a report as an artifact keeps it."""
    (report,) = api.explain(bert_path, padding="attention_mask").values()
    assert _bytes(report, True) < 1.05 * _bytes(report, False)


def _bytes(report: Report, reads: bool) -> int:
    body = report.to_dict()
    for node in body["nodes"]:
        if not reads:
            del node["reads"]
    return len(json.dumps(body, indent=1))
