"""Live points computed by ONNX nodes against the numeric meaning of the domain's tests."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Digit, atom, dim_index, sym
from pitc.ir.region import SOME, Region, Test, position
from pitc.passes.audit.points import where
from pitc.passes.facts.fill import fill_facts
from pitc.passes.lower.builder import Builder
from pitc.passes.lower.live import live_points
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.live_tests import can_compute

B, S = sym("b"), sym("s")
C0, C1 = dim_index(0, B), dim_index(1, S)
SOME_KEY = atom(Digit(SOME - 1, ONE, S))

TESTS = [
    Test("mask", (C0, C1), "nz", False),
    Test("mask", (C0, C1), "nz", True),
    Test("mask", (C0, SOME_KEY), "nz", True),
    Test("bias", (C0, C1), "neg", True),
    Test("bias", (C1, C0), "neg", False),
    Test("flag", (C1,), "nz", False),
    Test("lengths", (C0, C1), "below", False),
    Test("lengths", (C0, C1), "below", True),
    position(C1 - 1),
    position(S - 2 - C1),
    position(C1 - C0),
]


def graph(opset: int) -> Graph:
    def info(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    made = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [
            info("x", TensorProto.FLOAT, ["b", "s"]),
            info("mask", TensorProto.INT64, ["b", "s"]),
            info("bias", TensorProto.FLOAT, ["b", "s"]),
            info("flag", TensorProto.BOOL, ["s"]),
            info("lengths", TensorProto.INT32, ["b"]),
        ],
        [info("y", TensorProto.FLOAT, ["b", "s"])],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    g = Graph(ir.serde.deserialize_model(model))
    fill_facts(g)
    return g


@settings(max_examples=40, deadline=None)
@given(
    picked=st.lists(st.sampled_from(TESTS), min_size=1, max_size=3, unique=True),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    opset=st.sampled_from([12, 13, 17, 18, 21]),
    seed=st.integers(0, 1000),
)
def test_live_is_not_dead(picked, sizes, opset, seed):
    b, s = sizes
    if any(t.src == "bias" and t.idx == (C1, C0) for t in picked):
        s = b  # the transposed look-up is in range only in a square
    rng = np.random.default_rng(seed)
    g = graph(opset)
    domain = Domain((B, S), frozenset(picked))
    assert can_compute(g, domain)
    build = Builder(g)
    live = live_points(build, g, domain)
    live.type, live.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([None, None])
    g.model.graph.outputs.append(live)
    g.model.graph.sort()
    feeds = {
        "x": np.zeros((b, s), np.float32),
        "mask": rng.integers(0, 2, (b, s)),
        "bias": np.where(rng.random((b, s)) < 0.5, -1e9, 0.5).astype(np.float32),
        "flag": rng.random(s) < 0.5,
        "lengths": rng.integers(0, s + 1, b).astype(np.int32),
    }
    (_, got) = ReferenceEvaluator(ir.serde.serialize_model(g.model)).run(None, feeds)
    got = np.asarray(got)
    dead = where(Region(picked), (b, s), {"b": b, "s": s}, feeds)
    assert got.dtype == bool and got.shape == (b, s)
    np.testing.assert_array_equal(got, ~dead)


def test_tests_over_all_values_are_computed():
    every = Test("mask", (C0, atom(Digit(-1, ONE, S))), "nz", False)
    assert can_compute(graph(17), Domain((B, S), frozenset((every,))))


def test_sizes_must_be_known():
    unknown = Domain((B, sym("n9")), frozenset((Test("mask", (C0, C1), "nz", False),)))
    assert not can_compute(graph(17), unknown)


@pytest.mark.parametrize("opset", [12, 18])
def test_a_plain_mask_costs_one_node(opset):
    g = graph(opset)
    build = Builder(g)
    live_points(build, g, Domain((B, S), frozenset((TESTS[0],))))
    assert [n.op_type for n in g.model.graph] == ["Identity", "Cast"]
