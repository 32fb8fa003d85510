"""Modules and source lines that torch's exporter writes into nodes: shown, and never trusted."""

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from pitc import api
from pitc.artifact.manifest import report_from_dict, report_to_dict
from pitc.ir.origin import MOST_LINE, MOST_MODULE, SCOPES, TRACE, line_of, module_of
from pitc.report.page import page
from tests.report_pages import HOSTILE, Parsed

Run = Callable[..., tuple[int, str, str]]

SELF = "encoder.layer.0.attention.self"
FRAMES = """File "/home/me/app/modeling_bert.py", line 233, in forward
    query = self.query(hidden)
  File "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
"""


@pytest.mark.parametrize(
    ("scopes", "module"),
    [
        (f"['', 'encoder', '{SELF}', 'linear_3']", SELF),
        ("['', 'add']", ""),
        ("['add']", ""),
        ('["", "it\'s", "x"]', "it's"),
        ("not a list", ""),
        ("", ""),
        ("['', 'a\\x1b[31m', 'x']", "a\\x1b[31m"),
        ("['', 'a\x1b[31m\u202e\x07b', 'x']", "a [31m b"),
        (f"['', '{'m' * 500}', 'x']", "m" * (MOST_MODULE - 2) + ".."),
        ("['" * 100_000, ""),
        ("['', " + "'a', " * 100_000 + "'end', 'x']", "a"),  # no more is read than a part
    ],
)
def test_modules(scopes: str, module: str) -> None:
    found = module_of({SCOPES: scopes})
    assert found == module or (not module and len(found) <= MOST_MODULE)


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (FRAMES, "modeling_bert.py:233 in forward: query = self.query(hidden)"),
        (
            'File "C:\\Users\\me\\net.py", line 7, in forward\n  return a + b',
            "net.py:7 in forward: return a + b",
        ),
        ('File "x.py", line 7', "x.py:7"),
        (
            'File "/a/torch/nn/functional.py", line 9, in gelu\n    y',
            "functional.py:9 in gelu: y",
        ),
        ("Traceback", ""),
        ("", ""),
    ],
)
def test_lines(trace: str, line: str) -> None:
    assert line_of({TRACE: trace}) == line


def test_lines_are_bounded() -> None:
    long = f'File "{"d/" * 40_000}f.py", line 1, in {"g" * 900}\n    {"c" * 90_000}'
    assert len(line_of({TRACE: long})) <= MOST_LINE
    assert len(line_of({TRACE: f'File "a.py", line 1, in f\n  {"c" * 900}'})) == MOST_LINE


def model(scopes: str, trace: str) -> onnx.ModelProto:
    text = """<ir_version: 10, opset_import: ["": 18]>
        m (float[b, 8] x) => (float[b, 8] y) { h = Tanh (x)  y = Relu (h) }"""
    found = onnx.parser.parse_model(text)
    found.graph.node[0].name = "node_Tanh_0"
    for key, value in ((SCOPES, scopes), (TRACE, trace)):
        found.graph.node[0].metadata_props.add(key=key, value=value)
    return found


def test_explain_and_report_show_them(run: Run, tmp_path: Path) -> None:
    onnx.save(model(f"['', '{SELF}', 'tanh']", FRAMES), tmp_path / "m.onnx")
    line = "modeling_bert.py:233 in forward: query = self.query(hidden)"
    shown = [f"    module: {SELF}", f"    line: {line}"]
    for words in (["--facts"], ["--node", "node_Tanh_0"]):
        out = run("explain", tmp_path / "m.onnx", *words)[1].splitlines()
        assert [x for x in out if x in shown] == shown, words
    assert SELF not in run("explain", tmp_path / "m.onnx")[1]
    (report,) = api.explain(tmp_path / "m.onnx", "cpu:v3").values()
    told = Parsed(page([report])).text.replace("\u2060", "")
    assert line in told and SELF in {a.get("title") for a in Parsed(page([report])).all("span")}
    body = report_to_dict(report)
    assert (body["nodes"][0]["module"], body["nodes"][0]["line"]) == (SELF, line)
    assert not {"module", "line"} & body["nodes"][1].keys()  # not told, not kept
    assert report_from_dict(body).nodes == report.nodes


def test_hostile_metadata_stays_text(run: Run, tmp_path: Path) -> None:
    quoted = HOSTILE.replace("'", "`").replace('"', "`")
    trace = f'File "a.py", line 1, in {HOSTILE}\n    [red]{HOSTILE}\x1b[2J'
    onnx.save(model(f"['', '{quoted}', 'x']", trace), tmp_path / "m.onnx")
    out = run("explain", tmp_path / "m.onnx", "--facts")[1]
    assert "\x1b" not in out and "[red]<script>" in out
    (report,) = api.explain(tmp_path / "m.onnx", "cpu:v3").values()
    parsed = Parsed(page([report]))
    assert len(parsed.all("script")) == 1 and not parsed.all("img")
