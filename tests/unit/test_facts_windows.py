"""Masks known by position: windows of keys around a query, alone and together with padding."""

import onnx
import onnx.parser
import pytest

from pitc.ir.graph import Graph
from pitc.ir.region import describe
from tests.fact_check import proven

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
model (float[b, s] x, bool[b, s] mask, int64[b] lengths) => (bool[n, s, s] y, float[b, s] z)
<int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64[1] last = {-1}, int64[1] row = {1},
 int64[1] front = {0}>
{
    z = Identity (x)
    size = Shape <start = 1, end = 2> (x)
    length = Squeeze (size)
    keys = Range (zero, length, one)
    queries = Unsqueeze (keys, last)
    ahead = Sub (keys, queries)
    far = Abs (ahead)
    BODY
}
"""
NEAR = ("d1-d2+3 >= 0 and -d1+d2+3 >= 0", "d1-d2-4 >= 0", "-d1+d2-4 >= 0")
WINDOWS = {  # where 1, where 0
    "near = LessOrEqual (far, three)": ({NEAR[0]}, set(NEAR[1:])),
    "near = GreaterOrEqual (three, far)": ({NEAR[0]}, set(NEAR[1:])),
    "near = Greater (far, three)": (set(NEAR[1:]), {NEAR[0]}),
    "near = Less (three, far)": (set(NEAR[1:]), {NEAR[0]}),
    "near = Less (far, one)": (
        {"d1-d2 >= 0 and -d1+d2 >= 0"},
        {"d1-d2-1 >= 0", "-d1+d2-1 >= 0"},
    ),
}
MASKED = {
    "causal": "near = LessOrEqual (keys, queries)",
    "window": "near = LessOrEqual (far, three)",
    "causal window": """back = Sub (queries, three) a = Greater (keys, back)
        c = LessOrEqual (keys, queries) near = And (a, c)""",
}


def facts_of(body: str) -> Graph:
    model = onnx.parser.parse_model(MODEL.replace("BODY", body))
    return proven(model, sizes={"b": 2, "s": 9}, top_index=12)


def regions(graph: Graph, name: str, constant: int) -> set[frozenset[str]]:
    found = (f for f in graph[name].fills if f.constant == constant)
    return {frozenset(describe(f.region).split(" and ")) for f in found}


@pytest.mark.parametrize("body", WINDOWS)
def test_distances(body: str) -> None:
    graph = facts_of(f"{body} y = Unsqueeze (near, front)")
    for constant, wanted in zip((1, 0), WINDOWS[body], strict=True):
        assert regions(graph, "y", constant) == {frozenset(t.split(" and ")) for t in wanted}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_several_conditions_has_no_zeros_of_its_own(name: str) -> None:
    """Its conditions say all of it; its own zeros would be one more mask for a softmax."""
    graph = facts_of(f"""{MASKED[name]}
        wide = Unsqueeze (mask, row)
        y = And (near, wide)""")
    texts = {t for c in (0, 1) for r in regions(graph, "y", c) for t in r}
    assert texts and not any(t.startswith("y[") for t in texts)
    assert any(t.startswith("mask[") for t in texts)


def test_lengths() -> None:
    graph = facts_of("""column = Unsqueeze (lengths, last)
        short = Less (keys, column)
        wide = Unsqueeze (short, row)
        near = LessOrEqual (far, three)
        y = And (near, wide)""")
    assert regions(graph, "short", 1) == {frozenset({"d1 < lengths[d0]"})}
    assert regions(graph, "short", 0) == {frozenset({"d1 >= lengths[d0]"})}
    assert frozenset({"d2 >= lengths[d0]"}) in regions(graph, "y", 0)
