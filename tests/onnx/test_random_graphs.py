"""Random graphs: every fact holds, and lowered, whether it pays or not, they give ONNX Runtime's
answers.
"""

from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitc.ir.graph import Graph
from pitc.ir.region import EVERYWHERE
from pitc.passes.audit.engine import audit
from pitc.passes.facts import softmax
from pitc.passes.lower import live
from tests.fact_check import analysed
from tests.fact_feeds import random_feeds
from tests.fact_random import RandomGraph
from tests.random_campaign import summary
from tests.random_check import MASK, Outcome, check, check_model, check_seed, lowering_everything
from tests.random_graph import MAX_NODES, RuleGraph
from tests.random_values import Given
from tests.record_twin import twin

BATCHES, GRAPHS = 4, 100  # half a minute each; tests.random_campaign checks more
STRUCTURED, STEPS = 16, 24

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def lower_everything() -> Iterator[None]:
    with lowering_everything():
        yield


@pytest.mark.parametrize(
    "batch",
    [0, *(pytest.param(k, marks=pytest.mark.thorough) for k in range(1, BATCHES))],
)
def test_graphs_of_the_rule_tables(batch: int, record_property: Any) -> None:
    seen: dict[str, int] = {}
    for seed in range(batch * GRAPHS, (batch + 1) * GRAPHS):
        outcome = check_seed(seed)
        assert outcome.failures == [], f"seed {seed}"
        for what, n in outcome.counts.items():
            seen[what] = seen.get(what, 0) + n
    assert seen["nodes"] <= GRAPHS * MAX_NODES
    assert seen["valid"] >= 0.95 * GRAPHS
    assert seen["packed"] >= 0.25 * GRAPHS
    assert all(seen[what] > 0 for what in ("attention", "right", "refusal"))
    record_property("count", ("random graphs that hold", GRAPHS, GRAPHS))
    for what in ("packed", "attention", "refusal"):
        record_property("count", (f"random graphs with: {what}", seen[what], GRAPHS))


def test_graphs_hold_what_they_are_made_of() -> None:
    """Branches, loops, experts and masks of every kind, fed with sizes of 0 and 1, too."""
    operators: set[str] = set()
    levels, sizes = 0, set()
    for seed in range(60):
        made = RuleGraph(np.random.default_rng(seed))
        operators |= {node.op_type for node in made.g.nodes}
        levels += any(spec.levels is not None for spec in made.specs)
        if not made.static:
            sizes |= {feed["x"].shape[:2] for feed in made.feeds(seed, ("holes",))}
    assert operators >= {"If", "Loop", "ArgMax", "Softmax", "IsNaN", "Range", "Where", "Sum"}
    assert levels >= 20
    assert any(0 in shape for shape in sizes) and any(1 in shape for shape in sizes)


@st.composite
def graphs(draw: st.DrawFn) -> RuleGraph:
    return RuleGraph(Given(lambda top: draw(st.integers(0, top))))


BOUNDED: Any = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=60, **BOUNDED)
@given(graph=graphs(), seed=st.integers(0, 99))
def test_graphs_that_hypothesis_draws(graph: RuleGraph, seed: int) -> None:
    assert check(graph, seed).failures == []


def test_a_failing_graph_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that calls every product 0 is refuted by a few nodes."""
    twin(monkeypatch, "Mul", law=lambda constants: 0)

    def wrong(graph: RuleGraph) -> bool:
        return bool(check(graph, 0).failures)

    smallest = hypothesis.find(graphs(), wrong, settings=settings(max_examples=300, **BOUNDED))
    assert len(smallest.g.nodes) <= 8


def structured(seed: int, steps: int) -> Outcome:
    """Check a larger graph of masks, attention and pooling alone."""
    proto, _ = RandomGraph(seed, steps).model()
    graph = Graph(ir.from_proto(proto))
    feeds = random_feeds(graph, MASK, patterns=("right", "left", "holes"), seed=seed)
    return check_model(proto, feeds, seed)


def test_structured_graphs() -> None:
    packed = 0
    for seed in range(STRUCTURED):
        outcome = structured(seed, STEPS)
        assert outcome.failures == [], f"seed {seed}"
        packed += outcome.counts["packed"]
    assert packed > 0


# a mask looked up one place beyond its end, at points that no reader asks for
@pytest.mark.parametrize("seed", [15, 53, 59])
def test_lowered_graphs_that_once_were_wrong(seed: int) -> None:
    assert structured(seed, STEPS).failures == []


def audit_random(seed: int, steps: int = STEPS) -> list[str]:
    """Failures of one structured graph."""
    proto, rows = RandomGraph(seed, steps).model()
    graph, given_up = analysed(proto, MASK, rows if seed % 2 else [])
    feeds = random_feeds(graph, MASK, patterns=("right", "holes"), seed=seed)
    return audit(graph, given_up, feeds, seed=seed, teeth=False).failures


# found by longer runs: a flag that made a row -inf, and conditions known only in part
@pytest.mark.parametrize(("seed", "steps"), [(7225, 40), (9154, 60), (9283, 60), (8227, 40)])
def test_facts_that_once_were_wrong(seed: int, steps: int) -> None:
    assert audit_random(seed, steps) == []


def test_the_random_audit_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard of the softmax rule it fails at once."""
    monkeypatch.setattr(softmax, "spared_rows", lambda *_: [EVERYWHERE])
    assert any(audit_random(seed) for seed in range(6))


# what the campaigns found, as small as it gets: text, sizes of the feeds
FOUND = {
    "rows of a size that no input has, unpacked in front of a computed matrix": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (bool[n, s] mask, bool[n] item, bool[4, 4] keep, float[n, s, 4] x)
          => (float[n, m, 4] y, float[n, s, 4] z)
        <int64[1] one = {1}, int64[2] inner = {1, 2}, int64[1] far = {99},
         float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        {
            h = MatMul (x, w)
            g = MatMul (h, w)
            part = Slice (g, one, far, one)
            k = Cast <to = 1> (keep)
            v = Mul (w, k)
            y = MatMul (part, v)
            f = Cast <to = 1> (item)
            live = Unsqueeze (f, inner)
            z = Mul (h, live)
        }
        """,
        {},
    ),
    "a bias of unknown rank": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, 2, s] x, float[p, q] m, float[2, 2, 1] w)
          => (float[n, 2, r] y)
        {
            bias = Squeeze (m)
            y = Conv (x, w, bias)
        }
        """,
        {"p": 1, "q": 2},
    ),
    "outputs that are given up, of types without a Where": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, s, 4] x) => (bool[n, s, 4] b, float16[n, s, 4] h,
                                                  int16[n, s, 4] i, uint64[n, s, 4] u)
        <float zero = {0}>
        {
            b = Greater (x, zero)
            h = Cast <to = 10> (x)
            i = Cast <to = 5> (x)
            p = Abs (x)
            u = Cast <to = 13> (p)
        }
        """,
        {},
    ),
    "a type that only an operator of ONNX Runtime tells": (
        """
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (int64[n, s] mask, float[n, s, 4] x, float[s] v) => (float[n, s, 4] y)
        <int64[1] last = {-1}, float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        {
            r = ReduceSum <keepdims = 0> (x, last)
            q = com.microsoft.QuickGelu (r)
            wide = Unsqueeze (q, last)
            m = Mul (x, wide)
            y = MatMul (m, w)
        }
        """,
        {},
    ),
    "channels that are packed": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, s, 4] x, float[s] scale, float[s] bias) => (float[n, s, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        {
            variance = Abs (scale)
            b = BatchNormalization (x, scale, bias, bias, variance)
            y = MatMul (b, w)
        }
        """,
        {},
    ),
    "a scale per place of the packed axis": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, s, 4] x, float[s] factor) => (uint8[n, s, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        {
            scale = Abs (factor)
            h = MatMul (x, w)
            y = QuantizeLinear <axis = 1> (h, scale)
        }
        """,
        {},
    ),
    "places counted in an empty batch": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, s, 4] x) => (float[n, s, 4] y)
        <int64[1] last = {-1}, int64[1] far = {-1000000000000}, int64[1] one = {1},
         float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        {
            h = MatMul (x, w)
            turned = Slice (mask, last, far, one, last)
            f = Cast <to = 1> (turned)
            wide = Unsqueeze (f, last)
            y = Mul (h, wide)
        }
        """,
        {"n": 0, "s": 3},
    ),
    "the largest of NaNs": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (bool[n, s] mask, float[n, s, s] x) => (float[n, s, s] y)
        <int64[1] one = {1}, float low = {-inf}>
        {
            keep = Unsqueeze (mask, one)
            scores = Where (keep, x, low)
            p = Softmax (scores)
            y = MaxPool <kernel_shape = [1]> (p)
        }
        """,
        {},
    ),
    "NaN from a line without variance": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[n, s] mask, float[n, s, 1] x) => (float[n, s, 1] y)
        <int64[1] last = {-1}>
        {
            v = MeanVarianceNormalization <axes = [2]> (x)
            f = Cast <to = 1> (mask)
            wide = Unsqueeze (f, last)
            y = Mul (v, wide)
        }
        """,
        {},
    ),
    "columns by a vector": (
        """
        <ir_version: 10, opset_import: ["": 21]>
        g (bool[n, s] mask, float[4] a, float[n, s, 4, 1] b) => (float[n, s, 1] y)
        <int64[1] last = {-1}, float[1, 1] w = {3}>
        {
            c = MatMul (a, b)
            h = MatMul (c, w)
            f = Cast <to = 1> (mask)
            wide = Unsqueeze (f, last)
            y = Mul (h, wide)
        }
        """,
        {},
    ),
    "a fused product in an operator set in which a Gemm has a bias": (
        """
        <ir_version: 10, opset_import: ["": 9, "com.microsoft": 1]>
        g (int64[n, s] mask, float[n, 4] x) => (float[n, n] y)
        {
            y = com.microsoft.FusedGemm <activation = "Tanh", transB = 1> (x, x)
        }
        """,
        {},
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_models_that_once_were_wrong(what: str) -> None:
    text, sizes = FOUND[what]
    proto = onnx.parser.parse_model(text)
    graph = Graph(ir.from_proto(proto))
    feeds = list(random_feeds(graph, MASK, patterns=("holes", "right"), sizes=sizes))
    outcome = check_model(proto, feeds)
    assert outcome.failures == []
    assert outcome.counts["valid"] and "refused feeds" not in outcome.counts


LOOKED_UP = """
<ir_version: 10, opset_import: ["": 21]>
g (bool[n, s] mask, float[n, s, 4] x, float[n, 1, 4] begin) => (float[n, t, 4] y)
<int64[1] last = {-1}, int64[1] zeroth = {0}, int64[1] first = {1}, float zero = {0},
 float[4,4] square = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>
{
    told = Slice (begin, zeroth, first, last)
    dims = Shape (told)
    always = ConstantOfShape <value = bool[1] {1}> (dims)
    wide = Unsqueeze (mask, last)
    flags = Concat <axis = 1> (always, wide)
    longer = Concat <axis = 1> (begin, x)
    h = MatMul (longer, square)
    y = Where (flags, h, zero)
}
"""


def test_live_points_that_look_into_empty_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a sequence, and no place of it that a mask could be looked up at."""
    proto = onnx.parser.parse_model(LOOKED_UP)
    graph = Graph(ir.from_proto(proto))
    sizes = [{"n": 2, "s": s} for s in (3, 3, 1, 0)]
    feeds = [f for n in sizes for f in random_feeds(graph, MASK, patterns=("holes",), sizes=n)]
    with lowering_everything():
        outcome = check_model(proto, feeds)
        assert outcome.failures == []
        assert outcome.counts["packed"] and "refused feeds" not in outcome.counts
        monkeypatch.setattr(live, "_with_element", lambda _, value, *__: value)
        assert check_model(proto, feeds).failures  # the element is needed


def test_a_campaign_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    chunk = {"from": 0, "to": 2, "counts": {"graphs": 2, "nodes": 9}}
    assert summary([chunk, chunk]) == 0
    assert '"graphs": 4' in capsys.readouterr().out
    assert summary([chunk, {"seed": 1, "failures": ["dead x"]}]) == 1
