"""The inequality behind the row guard (docs/theory.md, section 7), from both sides of numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.graph import GraphBuilder
from pitc.ir.constant import FINITE, SCORE, Range
from pitc.ir.graph import Graph
from pitc.passes.audit.engine import audit
from tests.fact_check import analysed, built, fills

B, Q, K = 2, 3, 5
Terms = Callable[[GraphBuilder], Sequence[str]]
LEAST = float(np.finfo(np.float32).min)


def scores(terms: Terms, dtype: int = 1, rows: str | int = "rows", keys: str | int = "keys") -> Any:
    """softmax(q @ k + terms)."""

    def make(g: GraphBuilder) -> None:
        q = g.input("q", np.float32, ("batch", rows, 4))
        k = g.input("k", np.float32, ("batch", 4, keys))
        z = g.op("MatMul", q, k)
        z = z if dtype == 1 else g.op("Cast", z, to=dtype)
        for term in terms(g):
            z = g.op("Add", z, term)
        p = g.op("Softmax", z, axis=-1)
        p = p if dtype == 1 else g.op("Cast", p, to=1)
        g.output(p, "p", np.float32, ("batch", rows, keys))

    return built(make)


def mask(
    g: GraphBuilder, name: str, low: float, dtype: type = np.float32, keys: str | int = "keys"
) -> str:
    """0 where a bool says so, else low."""
    keep = g.op("Unsqueeze", g.input(name, np.bool_, ("batch", keys)), g.ints(1))
    return g.op("Where", keep, g.const(0, dtype), g.const(low, dtype))


def zeros_of(proto: onnx.ModelProto) -> set[str]:
    graph, _ = analysed(proto)
    return {text for text, c in fills(graph, "p") if c == 0}


@pytest.mark.parametrize(
    ("low", "hides"),
    [(-9999, True), (-1e4, True), (-6750, True), (-6749, False), (LEAST, True), (-100, False)],
)
def test_a_number_hides_a_key_from_6750_on(low: float, hides: bool) -> None:
    found = zeros_of(scores(lambda g: [mask(g, "m", low)]))
    assert found == ({"m[d0, d2] == 0 and some j: m[d0, j] != 0"} if hides else set())


def test_two_weak_masks_hide_a_key_together() -> None:
    proto = scores(lambda g: [mask(g, "a", -6e3), mask(g, "b", -6e3)], rows="keys")
    # where both hide it, and neither hides the row's own key
    together = "a[d0, d2] == 0 and b[d0, d2] == 0"
    assert zeros_of(proto) == {
        f"a[d0, d1] != 0 and {together.replace(' and', ' and b[d0, d1] != 0 and')}"
    }


@pytest.mark.parametrize(
    ("dtype", "low"), [(10, -65504.0), (10, -1e4), (11, -1e300), (11, -9999.0)]
)
def test_other_types_have_the_same_numbers(dtype: int, low: float) -> None:
    kind = np.float16 if dtype == 10 else np.float64
    found = zeros_of(scores(lambda g: [mask(g, "m", low, kind)], dtype))
    assert found == {"m[d0, d2] == 0 and some j: m[d0, j] != 0"}


@pytest.mark.parametrize(("count", "hides"), [(3, True), (4, False)])
def test_three_tested_terms_are_allowed(count: int, hides: bool) -> None:
    def terms(g: GraphBuilder) -> list[str]:
        biases = [g.input(f"bias{n}", np.float32, ("batch", 1, "keys")) for n in range(count)]
        return [mask(g, "m", -1e4), *biases]

    found = {t for t in zeros_of(scores(terms)) if "m[d0, d2] == 0" in t}
    assert bool(found) is hides
    assert all(t.count("within 1e3") + t.count("> -1e4") >= count for t in found)


def test_a_table_of_small_numbers_needs_no_test() -> None:
    table = np.linspace(-3, 3, K, dtype=np.float32)
    proto = scores(lambda g: [mask(g, "m", -1e4, keys=K), g.weight("table", table)], keys=K)
    assert zeros_of(proto) == {"m[d0, d2] == 0 and some j: m[d0, j] != 0"}


def additive(values: Sequence[float], dtype: Any = np.float32) -> tuple[Graph, list[str]]:
    """Audit of an additive mask that is an input, holding all these values in some order."""
    kind = {np.float32: 1, np.float16: 10}[dtype]

    def terms(g: GraphBuilder) -> list[str]:
        m = g.input("m", np.float32, ("batch", 1, "keys"))
        return [m if kind == 1 else g.op("Cast", m, to=kind)]

    proto = scores(terms, kind)
    graph, given_up = analysed(proto)
    rng = np.random.default_rng(0)
    feeds = [
        {
            "q": rng.normal(size=(B, Q, 4)).astype(np.float32),
            "k": rng.normal(size=(B, 4, K)).astype(np.float32),
            "m": rng.choice(np.asarray(values, np.float32), (B, 1, K)),
        }
        for _ in range(20)
    ]
    return graph, audit(graph, given_up, feeds, teeth=False).failures


AROUND = {
    "mask": (0, -1e4),
    "above": (-9999, -1e4),
    "below": (-10001, -1e4),
    "kept": (999, -999, -1e4),
    "limit": (1000, -1000, 1001, -1001, -1e4),
    "weak": (-6000, -1e4),
    "half": (-4999, -5001, -1e4),
    "deep": (-1e9, -1e4),
    "infinite": (-np.inf, -1e4),
    "positive": (1e4, 2e4, -1e4, 0),
    "nothing kept": (-1e4, -1e4),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("values", AROUND.values(), ids=AROUND)
def test_whatever_a_mask_holds_the_facts_are_true(values: Sequence[float], dtype: Any) -> None:
    graph, failures = additive(values, dtype)
    assert any(c == 0 for _, c in fills(graph, "p"))
    assert failures == []


def test_without_nan_is_an_assumption_with_a_name() -> None:
    """A NaN in a row makes NaN of all of it, of hidden keys too."""
    graph, failures = additive((np.nan, 0, -1e4))
    assert failures and FINITE in graph.assumptions


HIDING: dict[str, Callable[[GraphBuilder, str], str]] = {
    "as it is": lambda g, m: m,
    "clip": lambda g, m: g.op("Clip", m, g.const(-2e4), g.const(0.0)),
    "max": lambda g, m: g.op("Max", m, g.const(-2e4)),
    "sum": lambda g, m: g.op("ReduceSum", g.op("Unsqueeze", m, g.ints(3)), g.ints(3), keepdims=0),
    "einsum": lambda g, m: g.op("Einsum", m, equation="bqk->bqk"),
    "product": lambda g, m: g.op("MatMul", m, g.weight("eye", np.eye(K, dtype=np.float32))),
    "half": lambda g, m: g.op("Cast", g.op("Cast", m, to=10), to=1),
    "cumulated": lambda g, m: g.op("CumSum", m, g.const(0, np.int64)),
}


@pytest.mark.parametrize("way", HIDING)
def test_a_second_mask_may_hide_what_the_first_one_keeps(way: str) -> None:
    """The row guard of the first mask alone would give 0 to keys that are truly read."""

    def terms(g: GraphBuilder) -> list[str]:
        second = g.input("second", np.float32, ("batch", "rows", K))
        return [mask(g, "m", -1e4, keys=K), HIDING[way](g, second)]

    proto = scores(terms, keys=K)
    graph, given_up = analysed(proto)
    rng = np.random.default_rng(1)
    keep = np.array([[1, 0, 1, 0, 1], [1, 0, 0, 0, 0]], bool)
    feed = {
        "q": rng.normal(size=(B, Q, 4)).astype(np.float32),
        "k": rng.normal(size=(B, 4, K)).astype(np.float32),
        "m": keep,
        "second": np.where(keep[:, None], -1e4, 0) + np.zeros((B, Q, K), np.float32),
    }
    feed["second"] = feed["second"].astype(np.float32)
    result = audit(graph, given_up, [feed, feed | {"second": 0 * feed["second"]}], teeth=False)
    assert result.failures == [] and result.fill_checks
    found = {text for text, c in fills(graph, "p") if c == 0}
    assert found and all("within 1e3" in t or "> -1e4" in t or "all j" in t for t in found)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    p = np.asarray(session.run(["p"], feed)[0])
    assert (p[~np.broadcast_to(keep[:, None], p.shape)] > 0).any()  # so the test has teeth


@pytest.mark.parametrize("point", [0, 3, 255], ids="zero point {}".format)
@pytest.mark.parametrize(("dtype", "sign"), [("uint8", 1), ("int8", 1), ("uint8", -1)])
def test_a_dequantised_term_lies_between_its_ends(dtype: str, point: int, sign: int) -> None:
    ends = np.iinfo(dtype)
    every = np.arange(ends.min, ends.max + 1).astype(dtype)

    def make(g: GraphBuilder) -> None:
        z = g.op("MatMul", g.input("q", np.float32, ("r", 4)), g.input("k", np.float32, (4, 256)))
        zero = g.weight("zero", np.asarray(point + ends.min, dtype))
        bias = g.input("b", every.dtype, (256,))
        term = g.op("DequantizeLinear", bias, g.const(sign * 0.3), zero)
        g.output(g.op("Identity", term), "term", np.float32, (256,))
        g.output(g.op("Softmax", g.op("Add", z, term), axis=-1), "p", np.float32, ("r", 256))

    proto = built(make)
    feed = {"q": np.ones((1, 4), np.float32), "k": np.ones((4, 256), np.float32), "b": every}
    found = np.asarray(ort.InferenceSession(proto.SerializeToString()).run(["term"], feed)[0])
    graph, _ = analysed(proto)
    constants = [f.constant for x in graph.values.values() for f in x.fills]
    limits = {
        c.hi for c in constants if isinstance(c, Range) and c.assumed and c != SCORE and c.lo < 0
    }
    assert any(np.abs(found).max() <= limit <= 1.01 * np.abs(found).max() for limit in limits)
    assert -min(limits) <= found.min() <= found.max() <= min(limits)
