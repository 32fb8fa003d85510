"""Chains of rows that are written into zeros and added, as torch traces `index_add`: joined
exactly, also where rows overwrite each other.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.experts import ExpertsConfig, experts, reference
from models.graph import GraphBuilder
from pitc.ir.region import Region
from pitc.passes import live_lists
from pitc.passes.analysis import analysis
from pitc.passes.normalise import normalise
from pitc.passes.siblings.sums import LEAST_LISTS, join_sums
from tests.lower_support import lower, lower_and_compare, plans
from tests.plan_reference import run_lowered

Feeds = dict[str, Any]
D, CHOICES = 24, 3
WIDE: dict[str, Any] = {"experts": 8, "hidden": 96, "ffn": 192}
OPTIONS: list[dict[str, Any]] = [{}, {"gated": True, "bias": True}, {"top": 1, "scaled": False}]


def tokens(*counts: int) -> Iterator[Feeds]:
    for t in counts:
        yield {"x": np.random.default_rng(t).normal(size=(t, 96)).astype(np.float32)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_traced_loop_runs_grouped(options: dict[str, Any]) -> None:
    config = ExpertsConfig("index_add", **WIDE, **options)
    proto = experts(config, np.random.default_rng(0))
    made = lower_and_compare(proto, tokens(0, 1, 7, 50))
    ops = [p["op"] for p in plans(made)]
    assert (ops.count("grouped"), ops.count("add_rows")) == (2, 1)
    assert "ScatterElements" not in {n.op_type for n in made.model.graph}
    assert made.report.notes == []
    (given,) = tokens(31)
    (got,) = run_lowered(ir.to_proto(made.model), given)
    np.testing.assert_allclose(got, reference(proto, config, given["x"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_experts_that_are_hit(options: dict[str, Any]) -> None:
    """As many as the example hit, or the run stops, as in ONNX Runtime; no matrix is copied."""
    proto = experts(ExpertsConfig("index_add_hits", **WIDE, **options), np.random.default_rng(0))
    made = lower_and_compare(proto, tokens(60, 200))
    ops = [p["op"] for p in plans(made)]
    assert (ops.count("grouped"), ops.count("add_rows")) == (2, 1)
    tables = [n.inputs[0].shape for n in made.model.graph if n.op_type == "Gather" and n.inputs[0]]
    assert max(len(s) for s in tables if s is not None) < 3
    (note,) = made.report.notes
    assert "more nodes" not in note
    assert "takes exactly 8 of the places that 'nonzero_" in note and "batched_mm" in note
    session = ort.InferenceSession(proto.SerializeToString())
    with pytest.raises(Exception, match="exceeds the remaining size of the selected axis"):
        session.run(None, next(tokens(1)))
    (split,) = [n for n in made.model.graph if n.op_type == "Split" and len(n.outputs) == 8]
    assert all(x.uses() for x in split.outputs)  # it stops the compiled model, too


class Chain:
    """Rows of some tokens times a matrix for each sibling, added to `start`.

    Args:
        turned: Flags of a sibling are [tokens, choices].
        add: How rows come to their places.
        count: Of siblings.
        tokens: How many there are; None: a size.
        mirrored: The columns of rows are turned around.
    """

    def __init__(
        self,
        turned: bool = False,
        add: str = "elements",
        count: int = LEAST_LISTS,
        tokens: int | None = None,
        mirrored: bool = False,
    ) -> None:
        self.turned, self.add, self.count, self.mirrored = turned, add, count, mirrored
        self.made = list[str]()
        self.end: Callable[[str], str] = lambda total: total
        self.g, self.rng = GraphBuilder("chain", opset=18), np.random.default_rng(0)
        self.x = self.g.input("x", np.float32, (tokens or "t", D))
        self.ids = self.g.input("ids", np.int64, (tokens or "t", CHOICES))
        self.tokens = tokens or 0
        self.start = self.g.op("ConstantOfShape", self.g.op("Shape", self.x))

    def build(self) -> onnx.ModelProto:
        g, total = self.g, self.start
        for e in range(self.count):
            mine = g.op("Equal", self.ids, g.const(e, np.int64))
            mine = mine if self.turned else g.op("Transpose", mine, perm=[1, 0])
            places = g.op("Transpose", g.op("NonZero", mine), perm=[1, 0])
            a, b = g.ops(2, "Split", places, g.ints(1, 1), axis=1)
            choice, token = (b, a) if self.turned else (a, b)
            rows = g.op("Gather", self.x, g.op("Squeeze", token, g.ints(1)), axis=0)
            if self.mirrored:
                ends = (g.ints(D - 1), g.ints(-D - 1), g.ints(1), g.ints(-1))
                rows = g.op("Slice", rows, *ends)
            rows = g.op("MatMul", rows, g.weight(f"w{e}", self.rng.normal(size=(D, D)).astype("f")))
            rows = g.op("Mul", rows, g.op("Add", g.op("Cast", choice, to=1), g.const(1.0)))
            total = getattr(self, self.add)(total, token, rows)
            self.made.append(total)
        total = self.end(total)
        g.output(total, "y", np.float32, ("t", D))
        return g.model()

    def constants(self, total: str, token: str, rows: str, number: float = 0.0) -> str:
        g, index = self.g, self.g.op("Expand", token, self.g.op("Shape", rows))
        zeros = g.weight(f"zeros{len(self.made)}", np.full((self.tokens, D), number, np.float32))
        return g.op("Add", total, g.op("ScatterElements", zeros, index, rows, axis=0))

    def numbers(self, total: str, token: str, rows: str) -> str:
        return self.constants(total, token, rows, 0.5)

    def elements(self, total: str, token: str, rows: str, **options: Any) -> str:
        g = self.g
        index = g.op("Expand", token, g.op("Shape", rows))
        zeros = g.op("ConstantOfShape", g.op("Shape", total))
        return g.op("Add", total, g.op("ScatterElements", zeros, index, rows, axis=0, **options))

    def elements_first(self, total: str, token: str, rows: str) -> str:
        g, index = self.g, self.g.op("Expand", token, self.g.op("Shape", rows))
        zeros = g.op("ConstantOfShape", g.op("Shape", total))
        return g.op("Add", g.op("ScatterElements", zeros, index, rows), total)

    def vectors(self, total: str, token: str, rows: str) -> str:
        zeros = self.g.op("ConstantOfShape", self.g.op("Shape", total))
        return self.g.op("Add", total, self.g.op("ScatterND", zeros, token, rows))

    def added_elements(self, total: str, token: str, rows: str) -> str:
        return self.elements(total, token, rows, reduction="add")

    def in_place(self, total: str, token: str, rows: str) -> str:
        index = self.g.op("Expand", token, self.g.op("Shape", rows))
        return self.g.op("ScatterElements", total, index, rows, axis=0, reduction="add")

    def of_ones(self, total: str, token: str, rows: str) -> str:
        g, index = self.g, self.g.op("Expand", token, self.g.op("Shape", rows))
        one = onnx.numpy_helper.from_array(np.ones(1, np.float32))
        ones = g.op("ConstantOfShape", g.op("Shape", total), value=one)
        return g.op("Add", total, g.op("ScatterElements", ones, index, rows, axis=0))

    def of_minus_zero(self, total: str, token: str, rows: str) -> str:
        g, index = self.g, self.g.op("Expand", token, self.g.op("Shape", rows))
        zero = onnx.numpy_helper.from_array(np.full(1, -0.0, np.float32))
        zeros = g.op("ConstantOfShape", g.op("Shape", total), value=zero)
        return g.op("Add", total, g.op("ScatterElements", zeros, index, rows, axis=0))

    def some_columns(self, total: str, token: str, rows: str) -> str:
        g = self.g
        zeros = g.op("ConstantOfShape", g.op("Shape", total))
        part = g.op("Slice", rows, g.ints(0), g.ints(5), g.ints(1))
        index = g.op("Expand", token, g.op("Shape", part))
        return g.op("Add", total, g.op("ScatterElements", zeros, index, part, axis=0))

    def along_columns(self, total: str, token: str, rows: str) -> str:
        """The first element of the first row, at the column that its token numbers."""
        g, first = self.g, (self.g.ints(0, 0), self.g.ints(1, 1), self.g.ints(0, 1))
        index = g.op("Mod", g.op("Slice", token, *first), g.const(D, np.int64))
        zeros = g.op("ConstantOfShape", g.op("Shape", total))
        part = g.op("Slice", rows, *first)
        return g.op("Add", total, g.op("ScatterElements", zeros, index, part, axis=1))

    def one_row_of_zeros(self, total: str, token: str, rows: str) -> str:
        """The row of the first token is added to all."""
        g, index = self.g, self.g.op("Expand", token, self.g.op("Shape", rows))
        zeros = g.op("ConstantOfShape", g.ints(1, D))
        return g.op("Add", total, g.op("ScatterElements", zeros, index, rows, axis=0))

    def read_between(self, total: str, token: str, rows: str) -> str:
        total = self.elements(total, token, rows)
        return self.g.op("Add", total, self.g.op("Mul", total, self.g.const(0.5)))


def feeds(count: int = LEAST_LISTS) -> Iterator[Feeds]:
    for t in (0, 1, 9, 60):
        rng = np.random.default_rng(t)
        x = rng.normal(size=(t, D)).astype(np.float32)
        yield {"x": x, "ids": rng.integers(0, count + 1, (t, CHOICES))}  # tokens choose one twice


def joined(proto: onnx.ModelProto, *of: Feeds) -> int:
    """How many products of all siblings there are; the model computes the same with them."""
    model = ir.from_proto(proto)
    normalise(model)
    products = join_sums(model)
    onnx.checker.check_model(made := ir.to_proto(model))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [ort.InferenceSession(m.SerializeToString(), options) for m in (proto, made)]
    for given in of or feeds():
        want, got = (np.asarray(s.run(None, given)[0]) for s in sessions)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
    return len(products)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "add", ["elements", "elements_first", "vectors", "added_elements", "in_place"]
)
def test_rows_of_one_token_in_one_list(add: str, turned: bool) -> None:
    """They are added, or the last one stands, in the order of the list."""
    assert joined(Chain(turned, add).build()) == 1


def test_columns_that_are_turned_around() -> None:
    """They are no rows of the matrix as it is."""
    assert joined(Chain(mirrored=True).build()) == 1


@pytest.mark.parametrize(("add", "count"), [("constants", 1), ("numbers", 0)])
def test_zeros_that_are_constants(add: str, count: int) -> None:
    given = next(f for f in feeds() if len(f["x"]) == 9)
    assert joined(Chain(add=add, tokens=9).build(), given) == count


def test_a_sum_that_is_read_on_the_way() -> None:
    """It stays; what is added behind it is joined if that is enough."""
    for more in (0, 1):
        chain = Chain(count=LEAST_LISTS + more)
        chain.end = partial(lambda c, y: c.g.op("Mul", y, c.made[0]), chain)
        assert joined(chain.build()) == more


def test_a_size_that_is_asked_on_the_way() -> None:
    """It is that of what rows are added to: no scatter is left for it."""
    chain = Chain()
    g = chain.g
    chain.end = lambda y: g.op(
        "Reshape", y, g.op("Shape", g.op("Slice", chain.made[1], g.ints(0), g.ints(99), g.ints(0)))
    )
    proto = chain.build()
    assert joined(proto) == 1
    model = ir.from_proto(proto)
    normalise(model)
    join_sums(model)
    assert "ScatterElements" not in {n.op_type for n in model.graph}


def test_what_rows_are_added_to_may_be_minus_zero() -> None:
    """Rows of no token are 0 behind an addition of zeros."""
    chain = Chain()
    chain.start = chain.g.op("Mul", chain.g.op("Abs", chain.x), chain.g.const(-0.0))
    assert joined(chain.build()) == 1


@pytest.mark.parametrize(
    "add",
    [
        "of_ones",
        "of_minus_zero",
        "some_columns",
        "along_columns",
        "read_between",
    ],
)
def test_other_scatters_stay(add: str) -> None:
    assert joined(Chain(add=add).build()) == 0


def test_rows_for_all_tokens_stay() -> None:
    given = next(f for f in feeds() if len(f["x"]) > 1)
    given["ids"][1:] = LEAST_LISTS  # of no sibling
    assert joined(Chain(add="one_row_of_zeros").build(), given) == 0


def test_few_lists_stay() -> None:
    assert joined(Chain(count=LEAST_LISTS - 1).build()) == 0


def test_different_ways_stay() -> None:
    """Rows that are added, behind rows of which the last one stands."""
    chain = Chain()
    ways = iter(("elements", "added_elements") * LEAST_LISTS)
    chain.mixed = lambda *given: getattr(chain, next(ways))(*given)  # type: ignore[attr-defined]
    chain.add = "mixed"
    assert joined(chain.build()) == 0


def test_a_note_counts_the_nodes() -> None:
    g = GraphBuilder("parts", opset=18)
    x = g.input("x", np.float32, ("t", "n"))
    places = g.op("Transpose", g.op("NonZero", x), perm=[1, 0])
    g.ops(2, "Split", places, g.ints(1, 1), axis=1)  # of a known size
    a, b = g.ops(2, "Split", places, g.ints(2, 3), axis=0)
    (c,) = g.ops(1, "Split", g.op("NonZero", x), g.ints(5), axis=-1)
    for name, value in (("a", a), ("b", b), ("c", c)):
        g.output(value, name, np.int64, (f"{name}0", f"{name}1"))
    (note,) = lower(g.model()).report.notes
    assert "takes exactly 5 of the places that 'nonzero_" in note and "and 1 more nodes do" in note


def padded(made: onnx.ModelProto) -> onnx.ModelProto:
    """The layer with a mask of its tokens, whose result is 0 where it is."""
    g, node = made.graph, onnx.helper.make_node
    g.input.append(onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, ["tokens"]))
    g.output[0].name = "kept"
    for each in g.node:
        each.output[:] = ["made" if n == "y" else n for n in each.output]
    for name, array in (("zero", np.zeros(()).astype("f")), ("column", np.array([-1, 1]))):
        g.initializer.append(onnx.numpy_helper.from_array(array, name))
    g.node.append(node("Cast", ["mask"], ["live"], to=onnx.TensorProto.BOOL))
    g.node.append(node("Reshape", ["live", "column"], ["lives"]))
    g.node.append(node("Where", ["lives", "made", "zero"], ["kept"]))
    return made


@pytest.mark.parametrize("form", ["loop", "index_add"])
def test_padded_tokens_are_on_no_list(form: str) -> None:
    """A router of rows that are left out chooses the first experts for them."""
    config = ExpertsConfig(form, **WIDE)
    made = padded(experts(config, np.random.default_rng(0)))
    lowered = lower(made, sparse=False)
    model = ir.to_proto(lowered.model)
    (places,) = [n.output[0] for n in model.graph.node if n.op_type == "NonZero"]
    model.graph.output.append(onnx.helper.make_tensor_value_info(places, 7, None))
    session = ort.InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(8)
    for t, share in ((40, 0.4), (9, 0.0), (7, 1.0), (0, 0)):
        live = rng.random(t) < share
        given = {"x": rng.normal(size=(t, 96)).astype("f"), "mask": live.astype(np.int64)}
        want = np.asarray(session.run(None, given)[0])
        got, found = run_lowered(model, given)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert found.shape[1] == config.top * live.sum()


@pytest.mark.parametrize(
    ("rests", "count"), [((0, 0), 2), ((0, 1), 1), ((2, 0), 1), ((1, 0), 1), ((0, 4), 2)]
)
def test_lists_whose_facts_rest_on_each_other(
    monkeypatch: pytest.MonkeyPatch, rests: tuple[int, int], count: int
) -> None:
    """Of two lists, of which the first one changes bit 0 and the second one bit 1, one stays."""
    config = ExpertsConfig("loop", experts=2, hidden=96, ffn=192)
    model = ir.from_proto(padded(experts(config, np.random.default_rng(0))))
    normalise(model)
    graph = analysis(model, None).graph
    bits, vias, regions = iter((1, 2)), iter(rests), live_lists._regions
    monkeypatch.setattr(live_lists, "_bits", lambda view: next(bits))
    monkeypatch.setattr(live_lists, "_regions", lambda v: [Region(regions(v)[0], next(vias))])
    assert live_lists.keep_live_places(model, graph) == count
