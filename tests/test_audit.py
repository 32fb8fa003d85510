"""The audit finds facts that are wrong: every kind of mutation of a sound analysis."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.ir.constant import NEG, NZ, ZN, FillFact
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, dim_index, poly
from pitc.ir.region import EVERYWHERE, Region, Test
from pitc.passes.audit.engine import agrees, audit, noise
from pitc.passes.facts.dead import dead_facts
from pitc.passes.facts.fill import fill_facts
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
    graph.dead[only(graph, "Add")] = [EVERYWHERE]


def _dead_elsewhere(graph: Graph) -> None:
    live = Test("mask", graph.index_of("mask"), "nz", True)
    graph.dead[only(graph, "Add")] = [Region({live})]


def _dead_input(graph: Graph) -> None:
    graph.dead["mask"] = [EVERYWHERE]


def _dead_flag(graph: Graph) -> None:
    graph.dead[only(graph, "Cast")] = [EVERYWHERE]


def _wrong_fill(graph: Graph) -> None:
    graph.fills["y"] = [FillFact(mask_is_zero(graph, "mask"), 1)]


def _wrong_region(graph: Graph) -> None:
    graph.fills["y"] = [FillFact(EVERYWHERE, 0)]


def _wrong_affine(graph: Graph) -> None:
    shape = graph.shapes["count"]
    assert shape is not None
    graph.affine["count"] = dim_index(0, shape[0]) + 1


def _wrong_value(graph: Graph) -> None:
    name = next(n for n in graph.values if n not in graph.constants())
    value = graph.values[name].copy()
    value.reshape(-1)[0] = value.reshape(-1)[0] + 1
    graph.values[name] = value


def _wrong_shape(graph: Graph) -> None:
    graph.shapes["y"] = (ONE, poly(2))


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
    graph.finite_if.clear()
    graph.clean_if.clear()
    assert len(_run(graph, given_up)) >= 2


def test_given_up_elements_are_not_compared() -> None:
    def make(g: GraphBuilder) -> None:
        g.input("mask", np.int64, BS)
        g.output(g.op("Tanh", g.input("x", np.float32, BS)), "y", np.float32, BS)

    proto = built(make)
    graph, given_up = analysed(proto, "mask", ["y"])
    assert _run(graph, given_up) == []
    assert graph.dead["x"]
    assert _run(graph, {})  # without the promise the same facts are wrong


def test_a_feed_that_the_runtime_refuses_is_counted() -> None:
    graph, given_up = _sound()
    result = audit(graph, given_up, [{"x": np.zeros((2, 3), np.float32)}])
    assert result.faults == 1 and result.fill_checks == 0


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
        fill_facts(graph, "mask")
        dead_facts(graph)
        texts.append(str([graph.fills, graph.dead, graph.affine]))
    assert texts[0] == texts[1]
