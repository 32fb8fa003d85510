"""What may stand between the two contractions of an attention node, and what may not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.constant import BOUNDED
from pitc.passes.regions.scores import is_factor
from tests.lower_support import check, lower, plans, weight

HIDDEN, HEADS, SIZE = 64, 4, 16
SCORES = ("b", 1, "s", "s")
LOWEST = float(np.finfo(np.float32).min)
Step = Callable[[GraphBuilder, str], str]


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack wherever it is sound, in small models too."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))


def heads(g: GraphBuilder, x: str, name: str) -> str:
    split = g.op("Reshape", g.op("MatMul", x, weight(g, name, HIDDEN, HIDDEN)), g.ints(0, 0, 4, 16))
    return g.op("Transpose", split, perm=[0, 2, 1, 3])


def by_keys(g: GraphBuilder, s: str) -> str:
    return g.op("Softmax", s, axis=-1)


def attention(*steps: Step, after: Step | None = None, softmax: Step = by_keys) -> onnx.ModelProto:
    """Attention whose scores go through some steps; `bias`, `keep` and `keep2` are inputs."""
    g = GraphBuilder("attention", 17)
    x, mask = g.input("x", np.float32, ("b", "s", HIDDEN)), g.input("mask", np.int64, ("b", "s"))
    for name, dtype in (("bias", np.float32), ("keep", np.bool_), ("keep2", np.bool_)):
        g.input(name, dtype, SCORES)
    g.op("Unsqueeze", g.op("Cast", mask, to=TensorProto.BOOL), g.ints(1, 2))
    g._nodes[-1].output[0] = "live"
    q, k, v = heads(g, x, "q"), heads(g, x, "kk"), heads(g, x, "vvv")
    s = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    for step in steps:
        s = step(g, s)
    p = softmax(g, s)
    rows = g.op("MatMul", after(g, p) if after else p, v)
    rows = g.op("Reshape", g.op("Transpose", rows, perm=[0, 2, 1, 3]), g.ints(0, 0, HIDDEN))
    g.output(
        g.op("MatMul", rows, weight(g, "out", HIDDEN, HIDDEN)), "y", np.float32, ("b", "s", 64)
    )
    return g.model()


def number(g: GraphBuilder, value: float) -> str:
    return g.const(value, np.float32)


def where(condition: str, low: float) -> Step:
    return lambda g, s: g.op("Where", condition, s, number(g, low))


def biased(g: GraphBuilder, s: str) -> str:
    return g.op("Add", s, "bias")


def by(factor: float, op: str = "Mul") -> Step:
    return lambda g, s: g.op(op, s, number(g, factor))


hidden = where("live", -np.inf)  # exact without any assumption
STEPS = [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]


def feeds(bias: float = 1.0) -> dict[str, np.ndarray]:
    """A row of which `keep` keeps nothing, and a large bias on that row and others."""
    rng = np.random.default_rng(0)
    keep = np.tril(np.ones((2, 1, 6, 6), bool))
    keep[0, 0, 2] = False
    wide = rng.normal(size=(2, 1, 6, 6)).astype(np.float32)
    if abs(bias) > 1:
        wide = np.where(np.triu(wide) != 0, np.float32(bias), np.float32(0))
    x = rng.normal(size=(2, 6, HIDDEN)).astype(np.float32)
    return {
        "x": x,
        "mask": np.array(STEPS),
        "bias": wide,
        "keep": keep,
        "keep2": np.triu(np.ones_like(keep)),
    }


def live_rows_agree(proto: onnx.ModelProto, given: dict[str, np.ndarray]) -> bool:
    """Whether attention became a node, once the live rows have been compared."""
    alone = onnx.ModelProto()
    alone.CopyFrom(proto)  # dead rows are given up: compare them as zeros
    found, (y,) = lower(proto, "mask"), proto.graph.output
    live = onnx.helper.make_node("Unsqueeze", ["mask", "last"], ["live_rows"])
    cast = onnx.helper.make_node("Cast", ["live_rows"], ["wanted"], to=TensorProto.BOOL)
    pick = onnx.helper.make_node("Where", ["wanted", y.name, "nothing"], ["picked"])
    for n, array in (("last", np.array([2])), ("nothing", np.float32(0))):
        alone.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), n))
    alone.graph.node.extend([live, cast, pick])
    alone.graph.output[0].name = "picked"
    with np.errstate(all="ignore"):
        return "attention" in check(alone, found, given)


# scores go through steps, in the order of the graph; whether that is an attention node
EXACT: dict[str, tuple[list[Step], bool]] = {
    "mask": ([hidden], True),
    "scale": ([by(0.25), hidden], True),
    "bias": ([biased, hidden], True),
    "replaced": ([where("keep", -1e9), hidden], True),
    "replaced by the lowest": ([where("keep", LOWEST), hidden], True),
    "replaced by -inf": ([where("keep", -np.inf), hidden], True),
    "replaced twice": ([where("keep", -1e9), where("keep2", -1e9), hidden], False),
    "replaced by -inf twice": ([where("keep", -np.inf), where("keep2", -np.inf), hidden], True),
    "replaced, then a bias": ([where("keep", -1e9), biased, hidden], False),
    "a bias, then replaced": ([biased, where("keep", -1e9), hidden], False),
    "replaced by -inf, then a bias": ([where("keep", -np.inf), biased, hidden], True),
    "a bias, then replaced by -inf": ([biased, where("keep", -np.inf), hidden], True),
    "scaled between": ([where("keep", -1e9), by(2), hidden], False),
    "may be NaN": ([lambda g, s: g.op("Log", s), where("keep", -np.inf), hidden], False),
    "no scale": ([by(0), hidden], False),
    "infinite scale": ([by(np.inf), hidden], False),
    "scale of NaN": ([by(np.nan), hidden], False),
    "by zero": ([by(0, "Div"), hidden], False),
    "large scale": ([by(1e20), by(1e-20), hidden], False),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bias", [1.0, 1e4, -1e4, LOWEST, -np.inf])
@pytest.mark.parametrize("case", EXACT)
def test_steps_on_scores_keep_the_answer(case, bias):
    steps, node = EXACT[case]
    if bias != 1 and not any(s is biased for s in steps):
        return
    assert live_rows_agree(attention(*steps), feeds(bias)) == node


def keep_live(g: GraphBuilder, p: str) -> str:
    return g.op("Where", "live", p, number(g, 0))


FILLED = {"zero": where("live", 0), "number": where("live", -5.0), "none": lambda g, s: s}


@pytest.mark.parametrize("case", FILLED)
def test_probabilities_zeroed_later_still_count_in_the_sum(case):
    """Dead keys weigh in the softmax, though what is multiplied is 0 there."""
    assert not live_rows_agree(attention(FILLED[case], after=keep_live), feeds())


def test_a_softmax_of_live_keys_may_be_masked_again():
    assert live_rows_agree(attention(hidden, after=keep_live), feeds())


def guard(flagged: Callable[[GraphBuilder, str], str], value: float = 0.0) -> Step:
    return lambda g, p: g.op("Where", g.op("IsNaN", flagged(g, p)), number(g, value), p)


GUARDS = {
    "itself": (guard(lambda g, p: p), True),
    "another number": (guard(lambda g, p: p, 0.5), False),
    "something else": (guard(lambda g, p: g.op("Sqrt", p)), False),
}


@pytest.mark.parametrize("case", GUARDS)
def test_only_a_guard_against_nan_is_one(case):
    after, node = GUARDS[case]
    proto = attention(where("keep", -np.inf), hidden, after=after)
    assert live_rows_agree(proto, feeds()) == node


def test_what_rests_on_bounded_scores_says_so():
    for steps, noted in (([hidden], False), ([where("keep", -1e9), hidden], True)):
        found = lower(attention(*steps), "mask")
        assert "attention" in [p["op"] for p in plans(found)]
        assert (BOUNDED in found.report.assumptions) == noted


def jointly(g: GraphBuilder, s: str) -> str:
    """A softmax over all pairs of a head, not over its keys."""
    lines = g.op("Reshape", s, g.ints(0, 0, -1))
    return g.op("Reshape", g.op("Softmax", lines, axis=-1), g.op("Shape", s))


def test_a_softmax_over_pairs_is_no_attention():
    """Its lines are the keys of all queries, so that a row alone does not add up to 1."""

    def live_queries(g: GraphBuilder, s: str) -> str:
        queries = g.op("Transpose", "live", perm=[0, 1, 3, 2])
        return g.op("Where", queries, s, number(g, -np.inf))

    proto = attention(hidden, live_queries, softmax=jointly)
    assert not live_rows_agree(proto, feeds())
    assert live_rows_agree(attention(hidden, live_queries), feeds())


@pytest.mark.parametrize("bias", ["merged", "turned", "own"])
def test_a_bias_is_read_where_it_is_added(bias: str) -> None:
    """Of fixed sizes, heads of all sequences may be one dimension where it is added."""

    def reshaped(g: GraphBuilder, s: str) -> str:
        g.input("merged", np.float32, (1, 8, 6, 6))
        g.input("own", np.float32, (2, 4, 6, 6))
        turned = g.op("Reshape", "merged", g.ints(2, 4, 6, 6))
        if bias == "merged":
            s = g.op("Add", g.op("Reshape", s, g.ints(1, 8, 6, 6)), "merged")
            return g.op("Reshape", s, g.ints(2, 4, 6, 6))
        doubled = g.op("Mul", g.op("Reshape", s, g.ints(1, 8, 6, 6)), number(g, 2))
        s = g.op("Reshape", doubled, g.ints(2, 4, 6, 6))
        return g.op("Add", s, turned if bias == "turned" else "own")

    proto = attention(reshaped, hidden)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim, n in zip(value.type.tensor_type.shape.dim, (2, 6), strict=False):
            if dim.dim_param:
                dim.dim_value = n
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 6
    numbers = np.random.default_rng(1).normal(0, 3, (2, 4, 6, 6)).astype(np.float32)
    given = {**feeds(), "own": numbers, "merged": numbers.reshape(1, 8, 6, 6)}
    assert live_rows_agree(proto, given)


def test_an_operand_that_is_absent_is_no_score():
    def clipped(g: GraphBuilder, s: str) -> str:
        return g.op("Clip", s, "", number(g, 5))

    assert not live_rows_agree(attention(clipped, hidden), feeds())


def flat(alpha: float, second: float = 1.0) -> onnx.ModelProto:
    """Attention of one head over one sequence by Gemm, which may scale its product."""
    g = GraphBuilder("flat", 17)
    x, mask = g.input("x", np.float32, ("s", HIDDEN)), g.input("mask", np.bool_, ("s",))
    q, k, v = (g.op("MatMul", x, weight(g, n, HIDDEN, SIZE)) for n in ("q", "kk", "vvv"))
    s = g.op("Gemm", q, k, transB=1, alpha=alpha)
    s = g.op("Where", g.op("Unsqueeze", mask, g.ints(0)), s, number(g, -np.inf))
    y = g.op("Gemm", g.op("Softmax", s, axis=-1), v, alpha=second)
    wide = g.op("Cast", g.op("Unsqueeze", mask, g.ints(1)), to=TensorProto.FLOAT)
    g.output(g.op("Mul", y, wide), "y", np.float32, ("s", SIZE))
    return g.model()


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.25, 1.0), (1.0, 3.0)])
def test_a_product_that_scales_itself(factors):
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(6, HIDDEN)).astype(np.float32)}
    given["mask"] = np.array([1, 1, 0, 1, 0, 0], bool)
    proto = flat(*factors)
    assert "detect" in check(proto, lower(proto), given)


def test_factors_are_ordinary_numbers():
    assert all(map(is_factor, (1.0, -0.125, 1e-6, 1e6, 3)))
    assert not any(map(is_factor, (0, 0.0, np.inf, -np.inf, np.nan, 1e-9, 1e9)))
