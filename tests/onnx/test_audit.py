"""The audit finds facts that are wrong: every kind of mutation of a sound analysis."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.cli import show
from pitc.ir.constant import NEG, NZ, SMALL, ZN, FillFact, Range
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, dim_index, poly, sym
from pitc.ir.region import EVERYWHERE, Region, Test
from pitc.passes.audit.engine import AuditResult, agrees, audit, noise
from pitc.passes.audit.points import Points
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
from tests.branch_models import Body, branch
from tests.fact_check import analysed, built, mask_is_zero, only
from tests.fact_feeds import PATTERNS, mask_pattern, random_feeds

BS = ("batch", "seq")


def _model(dtype: type = np.float32) -> onnx.ModelProto:
    """A sum of masked values, with integers, bools and positions on the way."""

    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.int64, BS), g.input("x", dtype, BS)
        keep = g.op("Cast", mask, to=9)
        h = g.op("Add", x, x)
        y = g.op("Where", keep, h, g.const(0, dtype))
        g.output(y, "y", dtype, BS)
        counted = g.op("Range", g.const(0, np.int64), g.size(mask, 1), g.const(1, np.int64))
        g.output(counted, "count", np.int64, ("seq",))

    return built(make)


def _sound(dtype: type = np.float32) -> tuple[Graph, dict[str, list[Region]]]:
    return analysed(_model(dtype), "mask")


def _run(graph: Graph, given_up: dict[str, list[Region]]) -> list[str]:
    return audit(graph, given_up, random_feeds(graph, "mask")).failures


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_a_sound_analysis_passes_with_teeth(dtype: type) -> None:
    graph, given_up = _sound(dtype)
    result = audit(graph, given_up, random_feeds(graph, "mask"))
    assert result.failures == [] and result.faults == 0
    assert result.fill_checks > 0 and result.dead_checks > 0
    assert result.tight > 0


def _everywhere_dead(graph: Graph) -> None:
    graph[only(graph, "Add")].dead = [EVERYWHERE]


def _dead_elsewhere(graph: Graph) -> None:
    live = Test("mask", graph.index_of("mask"), "nz", True)
    graph[only(graph, "Add")].dead = [Region({live})]


def _dead_input(graph: Graph) -> None:
    graph["mask"].dead = [EVERYWHERE]


def _dead_flag(graph: Graph) -> None:
    graph[only(graph, "Cast")].dead = [EVERYWHERE]


def _wrong_fill(graph: Graph) -> None:
    graph["y"].fills = [FillFact(mask_is_zero(graph, "mask"), 1)]


def _wrong_region(graph: Graph) -> None:
    graph["y"].fills = [FillFact(EVERYWHERE, 0)]


def _wrong_affine(graph: Graph) -> None:
    shape = graph["count"].shape
    assert shape is not None
    graph["count"].affine = dim_index(0, shape[0]) + 1


def _wrong_value(graph: Graph) -> None:
    computed = (x for n, x in graph.values.items() if not graph.is_constant(n))
    ints = next(x.ints for x in computed if x.ints is not None)
    ints.reshape(-1)[0] = ints.reshape(-1)[0] + 1


def _wrong_shape(graph: Graph) -> None:
    graph["y"].shape = (ONE, poly(2))


MUTATIONS: list[Callable[[Graph], None]] = [
    _everywhere_dead,
    _dead_elsewhere,
    _dead_input,
    _dead_flag,
    _wrong_fill,
    _wrong_region,
    _wrong_affine,
    _wrong_value,
    _wrong_shape,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_wrong_fact_is_caught(mutate: Callable[[Graph], None]) -> None:
    graph, given_up = _sound()
    mutate(graph)
    assert _run(graph, given_up)


def test_values_that_are_not_finite_are_caught() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BS)
        g.output(g.op("Add", x, g.weight("w", np.full(1, np.inf, np.float32))), "y", np.float32, BS)

    graph, given_up = analysed(built(make))
    assert _run(graph, given_up) == []
    for value in graph.values.values():
        value.finite_if = value.clean_if = EVERYWHERE
    assert len(_run(graph, given_up)) >= 2


def test_given_up_elements_are_not_compared() -> None:
    def make(g: GraphBuilder) -> None:
        g.input("mask", np.int64, BS)
        g.output(g.op("Tanh", g.input("x", np.float32, BS)), "y", np.float32, BS)

    proto = built(make)
    graph, given_up = analysed(proto, "mask", ["y"])
    assert _run(graph, given_up) == []
    assert graph["x"].dead
    assert _run(graph, {})  # without the promise the same facts are wrong


def test_a_feed_that_the_runtime_refuses_is_counted() -> None:
    graph, given_up = _sound()
    result = audit(graph, given_up, [{"x": np.zeros((2, 3), np.float32)}])
    assert result.faults == 1 and result.fill_checks == 0


def _with_a_branch() -> onnx.ModelProto:
    """If(long) { the masked sum of x, first half of it } { x }, where the half must divide."""

    def make(g: GraphBuilder) -> None:
        x, mask = g.input("x", np.float32, BS), g.input("mask", np.bool_, BS)
        long = g.input("long", np.bool_, ())

        def halves(b: Body) -> str:
            h = b.op("Where", mask, b.op("Exp", x), b.const(0.0))
            return b.op("ReduceSum", b.op("Reshape", h, b.ints(-1, 4)), b.ints(1), keepdims=0)

        y = branch(g, long, halves, lambda b: b.op("ReduceSum", x, b.ints(1), keepdims=0))
        g.output(y, "y", np.float32, ("n",))

    return built(make)


@pytest.mark.parametrize("long", [True, False])
def test_a_branch_that_is_not_taken_need_not_be_defined(long: bool) -> None:
    proto = _with_a_branch()
    graph, given_up = analysed(proto)
    rng = np.random.default_rng(0)
    feeds = [
        {
            "x": rng.normal(size=(3, size)).astype(np.float32),
            "mask": rng.random((3, size)) < 0.5,
            "long": np.array(long),
        }
        for size in (4, 5, 8)
    ]
    result = audit(graph, given_up, feeds, source=ir.from_proto(proto))
    # 3 x 5 has no rows of 4: the model itself refuses it where it is long
    assert (result.feeds, result.refused, result.faults) == ((2, 1, 0) if long else (3, 0, 0))
    assert result.failures == []
    assert bool(result.dead_checks) is long  # the dead values stand in that branch
    inner = only(graph, "Exp")
    graph[inner].dead = [EVERYWHERE]
    failures = audit(graph, given_up, feeds, source=ir.from_proto(proto)).failures
    assert bool(failures) is long
    graph[inner].dead, graph[inner].fills = [], [FillFact(EVERYWHERE, 0)]
    failures = audit(graph, given_up, feeds, source=ir.from_proto(proto)).failures
    assert bool(failures) is long


def test_a_rewrite_that_changes_the_model_is_caught() -> None:
    graph, given_up = _sound()
    other = _model()
    next(n for n in other.graph.node if n.op_type == "Add").op_type = "Mul"
    feeds = list(random_feeds(graph, "mask"))
    result = audit(graph, given_up, feeds, source=ir.from_proto(other), teeth=False)
    assert any("is not that of the imported model" in text for text in result.failures)
    assert audit(graph, given_up, feeds, source=ir.from_proto(_model())).failures == []


def test_a_feed_that_only_the_source_takes_is_a_failure() -> None:
    def make(g: GraphBuilder, rows: int) -> None:
        x = g.input("x", np.float32, BS)
        g.output(g.op("Reshape", x, g.ints(-1, rows)), "y", np.float32, ("n", rows))

    graph, given_up = analysed(built(lambda g: make(g, 4)))
    source = ir.from_proto(built(lambda g: make(g, 1)))
    feed = {"x": np.ones((3, 5), np.float32)}
    result = audit(graph, given_up, [feed], source=source)
    assert result.failures == ["feed 0: the imported model takes it, the normalised one does not"]


def test_what_remains_beside_nothing_is_no_size() -> None:
    """ONNX Runtime gives [1, 0] for [0, 0]; ONNX calls the model invalid."""

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BS)
        shape = g.op("Concat", g.ints(-1), g.op("Unsqueeze", g.size(x, 1), g.ints(0)), axis=0)
        g.output(g.op("Reshape", x, shape, allowzero=1), "y", np.float32, ("n", "seq"))

    graph, given_up = analysed(built(make))
    feeds = [{"x": np.zeros(shape, np.float32)} for shape in ((0, 0), (0, 3))]
    result = audit(graph, given_up, feeds, source=ir.from_proto(built(make)))
    assert (result.feeds, result.refused, result.failures) == (1, 1, [])


def test_two_empty_sizes_are_no_evidence() -> None:
    """Told 0 and 0, the second Reshape copies 0 and 4; one empty size it is asked for alone."""
    g = GraphBuilder("m")
    x = g.input("x", np.float32, ("b", "s", 4))
    rows = g.op("Tanh", g.op("Reshape", x, g.ints(-1, 4)))
    g.output(g.op("Reshape", rows, g.op("Shape", x)), "y", np.float32, ("d0", "d1", "d2"))
    graph, given_up = analysed(g.model())
    for b, s, assumed in ((0, 0, 1), (2, 0, 0), (0, 2, 0)):
        result = audit(graph, given_up, [{"x": np.zeros((b, s, 4), np.float32)}])
        assert (result.failures, result.assumed) == ([], assumed)
    graph.assumptions.clear()
    assert audit(graph, given_up, [{"x": np.zeros((0, 0, 4), np.float32)}]).failures


def test_facts_are_looked_up_in_the_imported_model_too() -> None:
    """A value of the same name that is another one."""
    graph, given_up = _sound()
    other = _model()
    next(n for n in other.graph.node if n.op_type == "Add").op_type = "Div"  # x / x
    graph[only(graph, "Add")].fills = [FillFact(EVERYWHERE, 2)]
    feed = {"x": np.ones((2, 3), np.float32), "mask": np.ones((2, 3), np.int64)}
    failures = audit(graph, given_up, [feed], source=ir.from_proto(other)).failures
    assert any(text.startswith("feed 0: imported model: fill 2") for text in failures)


def _scores() -> onnx.ModelProto:
    """softmax(q @ k + mask)."""

    def make(g: GraphBuilder) -> None:
        z = g.op("MatMul", g.input("q", np.float32, ("b", 4)), g.input("k", np.float32, (4, "s")))
        low = g.op("Where", g.input("mask", np.bool_, ("s",)), g.const(0.0), g.const(-1e4))
        g.output(g.op("Softmax", g.op("Add", z, low), axis=-1), "p", np.float32, ("b", "s"))

    return built(make)


def test_a_feed_beyond_an_assumption_is_no_evidence() -> None:
    graph, given_up = analysed(_scores())
    mask = np.array([True, False])
    k = np.array([[-1, 1]] * 4, np.float32)
    feed = {"q": np.full((1, 4), 2500, np.float32), "k": k, "mask": mask}  # scores of 10,000
    result = audit(graph, given_up, [feed])
    assert (result.failures, result.assumed) == ([], 1)
    graph["p"].fills.append(FillFact(EVERYWHERE, 0))  # rests on the bound as well
    assert audit(graph, given_up, [feed]).failures == []
    graph["mask"].fills = [FillFact(EVERYWHERE, 0)]  # does not
    assert audit(graph, given_up, [feed]).failures != []


def test_what_is_assumed_of_scores_has_to_be_enough() -> None:
    """No feed has such scores; the audit puts them there."""
    graph, given_up = analysed(_scores())
    feed = {"q": np.zeros((2, 4)), "k": np.zeros((4, 5)), "mask": np.ones(5)}
    feed = {n: x.astype(np.bool_ if n == "mask" else np.float32) for n, x in feed.items()}
    assert audit(graph, given_up, [feed]).failures == []
    (name,) = (n for n, x in graph.values.items() if x.score)
    assumed = Range(-500, 500, assumed=True)
    added = only(graph, "Add")
    graph[added].fills = [FillFact(EVERYWHERE, assumed)]
    failures = audit(graph, given_up, [feed]).failures
    assert len(failures) == 1 and failures[0].startswith("feed 0: scores of 1000: ")
    assert name != added


def test_scores_that_choose_where_another_is_known_are_moved_alone() -> None:
    """The larger score says which rows are routed; a row that is not has scores of 0."""

    def make(g: GraphBuilder) -> None:
        x, wide = (
            g.input("x", np.float32, ("batch", "seq", 4)),
            g.const(np.eye(4, dtype=np.float32)),
        )
        first = g.op("MatMul", x, g.op("Transpose", x, perm=[0, 2, 1]))
        p = g.op("Softmax", first, axis=-1)
        routed = g.op("ArgMax", g.op("MatMul", p, x), axis=-1, keepdims=1)
        chosen = g.op("Equal", routed, g.const(0, np.int64))
        rows = g.op("Where", chosen, g.op("MatMul", x, wide), g.const(0.0))
        z = g.op("MatMul", rows, g.op("Transpose", rows, perm=[0, 2, 1]))
        g.output(
            g.op("MatMul", g.op("Softmax", z, axis=-1), rows), "y", np.float32, ("batch", "seq", 4)
        )

    graph, given_up = analysed(built(make))
    assert sum(x.score for x in graph.values.values()) == 2
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(2, 7, 4)).astype(np.float32)
        result = audit(graph, given_up, [{"x": x}], seed=seed)
        assert (result.failures, result.feeds) == ([], 1)


def test_numbers_that_only_noise_makes_too_large_are_no_evidence() -> None:
    """1e38 * x + high is not read where the gate is 0: with x = 3 it is infinite, 0 * it NaN."""

    def make(g: GraphBuilder) -> None:
        x, gate, high = (g.input(name, np.float32, BS) for name in ("x", "gate", "high"))
        large = g.op("Add", g.op("Mul", x, g.const(1e38)), high)
        g.output(g.op("Mul", large, gate), "y", np.float32, BS)

    graph, given_up = analysed(built(make))
    feed = {"x": [[3, 0, 3]], "high": [[0, 2e38, 0]], "gate": [[1, 0, 0]]}
    feed = {n: np.array(x, np.float32) for n, x in feed.items()}
    results = [audit(graph, given_up, [feed], seed=seed) for seed in range(8)]
    assert not any(r.failures for r in results) and any(r.assumed for r in results)


def test_numbers_too_large_for_their_type_are_no_evidence() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BS)
        g.output(g.op("Mul", x, x), "y", np.float32, BS)

    graph, given_up = analysed(built(make))
    assert audit(graph, given_up, [{"x": np.full((1, 1), 1e30, np.float32)}]).assumed == 1
    assert audit(graph, given_up, [{"x": np.full((1, 1), 1e10, np.float32)}]).assumed == 0


def test_values_that_numpy_has_not_are_left_out() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[b, s, 4] x, int64[b, s] mask) => (float[b, s, 4] y) <int64[1] last = {-1}>
        {
            h = Cast <to = 16> (x)
            r = Cast <to = 1> (h)
            f = Cast <to = 1> (mask)
            u = Unsqueeze (f, last)
            y = Mul (r, u)
        }""")
    graph, given_up = analysed(proto)
    feed = {"x": np.ones((2, 3, 4), np.float32), "mask": np.asarray([[1, 0, 1], [0, 0, 1]])}
    found = audit(graph, given_up, [feed], source=ir.from_proto(proto))
    assert found.failures == [] and found.dead_checks and found.fill_checks


def test_values_of_every_constant_kind() -> None:
    x = np.array([0, -1e9, 2, np.nan], np.float32)
    assert agrees(x, 0).tolist() == [True, False, False, False]
    assert agrees(x, NEG).tolist() == [False, True, False, False]
    assert agrees(x, ZN).tolist() == [True, False, False, True]
    assert agrees(x, NZ).tolist() == [False, True, True, True]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
def test_noise_stays_in_the_domain(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((5, 7)) * 3).astype(dtype)
    y = noise(x, rng)
    assert y.dtype == x.dtype and y.shape == x.shape and np.any(x != y)
    if x.dtype.kind in "iu":
        assert set(y.reshape(-1)) <= set(x.reshape(-1))
    assert noise(x[:0], rng).shape == (0, 7)


def test_noise_is_no_larger_than_a_score() -> None:
    """A score under a mask of -1e4 is dead as long as the sum stays far below 0."""
    x = np.array([[-1e4, 0.0, 3.0, 1e6]], np.float32)
    assert np.abs(noise(x, np.random.default_rng(0))).max() <= SMALL
    assert np.abs(noise(x[:, 3:], np.random.default_rng(0))).max() <= SMALL


def test_masks_have_every_form_of_padding() -> None:
    rng = np.random.default_rng(3)
    masks = {p: mask_pattern((4, 9), p, rng) for p in PATTERNS}
    assert np.all(np.diff(masks["right"]) <= 0) and np.all(np.diff(masks["left"]) >= 0)
    assert not masks["holes"][-1].any() and masks["full"].all()
    assert np.any(np.diff(masks["holes"][0]) > 0) and np.any(np.diff(masks["holes"][0]) < 0)
    assert mask_pattern((0, 3), "holes", rng).shape == (0, 3)


def test_two_graphs_of_one_model_agree() -> None:
    """Facts do not depend on hashing or on earlier analyses."""
    texts = []
    for _ in range(2):
        graph = Graph(ir.from_proto(_model()))
        fill_facts(graph, ["mask"])
        dead_facts(graph)
        texts.append(str([(n, x.fills, x.dead, x.affine) for n, x in graph.values.items()]))
    assert texts[0] == texts[1]


def test_verify_says_when_nothing_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    show.audited(AuditResult(refused=3))
    assert "NOT CHECKED: 0 inputs checked, 3 refused by the model" in capsys.readouterr().out
    show.audited(AuditResult(feeds=2, assumed=1, fill_checks=7))
    assert "PASSED: 2 inputs checked, 1 beyond an assumption" in capsys.readouterr().out


def test_pieces_of_a_tensor_are_told_apart() -> None:
    """Tests are looked at once for each shape, and for each piece."""
    mask = np.array([1, 0, 0, 1, 1, 1])
    r = Region({Test("mask", (dim_index(0, sym("n")),), "nz", False)})
    points = Points({"n": 6}, {"mask": mask})
    parts = [points.where(r, (2, 3), start) for start in (0, 2, 4)]
    assert np.array_equal(np.concatenate(parts), points.where(r, (6, 3)))
    assert np.array_equal(points.where(r, (6, 3))[:, 0], mask == 0)
