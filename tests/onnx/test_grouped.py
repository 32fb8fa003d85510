"""Grouped products: which ones become one node, why others do not, and all are right."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.experts import FORMS, AdaptersConfig, ExpertsConfig, adapters, experts
from models.graph import GraphBuilder
from models.half import half
from pitc.ir.refusal import Code
from pitc.ir.target import CPU, CUDA
from pitc.passes.lower.share import share_panels
from tests.lower_support import lower, lower_and_compare, plans, weight
from tests.plan_reference import run_lowered

Body = Callable[[GraphBuilder], str]
Feeds = dict[str, Any]
E, K, N = 5, 24, 40
OPTIONS: list[dict[str, Any]] = [
    {},
    {"gated": True, "bias": True},
    {"top": 1},
    {"top": 1, "scaled": False},
    {"top": 3, "opset": 18},
]
WIDE: dict[str, Any] = {"experts": 8, "hidden": 96, "ffn": 192}


def tokens(*counts: int, hidden: int = 32) -> Iterator[Feeds]:
    for n in counts:
        yield {"x": np.random.default_rng(n).normal(size=(n, hidden)).astype(np.float32)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_products_of_experts_are_grouped(form: str, options: dict[str, Any]) -> None:
    proto = experts(ExpertsConfig(form, **WIDE, **options), np.random.default_rng(0))
    counts = (1, 7, 50) if "labels" in form else (0, 1, 7, 50)  # an Einsum of none ends the process
    made = lower_and_compare(proto, tokens(*counts, hidden=96))
    moves = ("detect", "pack", "unpack", "add_rows")
    summed = [p["op"] for p in plans(made)].count("add_rows")
    assert summed == ("all_experts" in form), "what experts give is added to their tokens"
    assert [p["op"] for p in plans(made) if p["op"] not in moves] == ["grouped", "grouped"]
    found = {r.rule for r in made.report.nodes if r.lowering == "grouped"}
    wide = 384 if options.get("gated") else 192
    up, down = (f"grouped product: 8 matrices of {k} x {n}" for k, n in ((96, wide), (192, 96)))
    assert found == {up, down}
    weights = {name.partition(".")[2] for name in made.model.graph.initializers if name[:1] in "ud"}
    assert weights <= {"panels", "turned.panels", "bias"}, "no matrix is copied"


@pytest.mark.parametrize("gate", [0.0, -0.0, -1.0, np.nan, 1e-45])
def test_an_expert_is_left_out_where_its_gate_is_zero(gate: float) -> None:
    """And nowhere else: not where it is NaN, below 0, or next to nothing."""
    config = ExpertsConfig("all_experts", **WIDE)
    proto = experts(config, np.random.default_rng(0))
    (scatter,) = [n for n in proto.graph.node if n.op_type == "ScatterElements"]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("gates", 1, ["tokens", 8]))
    for node in proto.graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = "gates" if name == scatter.output[0] else name
    (given,) = tokens(6, hidden=96)
    gates = np.zeros((6, 8), np.float32)
    gates[[0, 1, 1, 4], [3, 2, 3, 7]] = [0.5, 1, 2, gate]
    made = lower_and_compare(proto, [given | {"gates": gates}])
    assert [p["op"] for p in plans(made)].count("grouped") == 2


@pytest.mark.parametrize("name", ["up", "down"])
def test_an_infinite_weight_refuses_experts_that_are_all_computed(name: str) -> None:
    """Its product with a gate of 0 is NaN; where matrices are looked up, it is not read."""
    for form, count in (("all_experts", 0), ("looked_up", 2)):
        proto = experts(ExpertsConfig(form, **WIDE), np.random.default_rng(0))
        (weight,) = [w for w in proto.graph.initializer if w.name == name]
        numbers = onnx.numpy_helper.to_array(weight).copy()
        numbers[5, 0, 0] = np.inf
        weight.CopyFrom(onnx.numpy_helper.from_array(numbers, name))
        with np.errstate(invalid="ignore"):
            made = lower_and_compare(proto, tokens(1, 5, hidden=96))
        assert [p["op"] for p in plans(made)].count("grouped") == count


def kept(**sizes: Any) -> onnx.ModelProto:
    """A layer of which some tokens are wanted."""
    config = ExpertsConfig(**sizes)
    proto = experts(config, np.random.default_rng(0))
    graph = proto.graph
    graph.input.append(onnx.helper.make_tensor_value_info("keep", 1, ["tokens", 1]))
    graph.node[-1].output[0] = "all"
    graph.node.append(onnx.helper.make_node("Mul", ["all", "keep"], ["y"], "wanted"))
    return proto


def test_experts_of_tokens_that_are_no_padding() -> None:
    """Who has which expert is computed packed, and decides what lives of the products."""
    g = GraphBuilder("padded")
    x = g.input("x", np.float32, ("batch", "sequence", 96))
    g.input("mask", np.int64, ("batch", "sequence"))
    rows = g.op("Reshape", x, g.ints(-1, 96))
    rows = g.op("Tanh", g.op("MatMul", rows, weight(g, "in", 96, 512)))
    rows = g.op("Tanh", g.op("MatMul", rows, weight(g, "out", 512, 96)))
    best = g.op("ArgMax", g.op("MatMul", rows, weight(g, "r", 96, 8)), axis=-1)
    mine = g.op("Cast", g.op("Equal", best, g.const(np.arange(8), np.int64)), to=1)
    h = g.op("MatMul", g.op("Unsqueeze", rows, g.ints(0)), weight(g, "up", 8, 96, 192))
    y = g.op("MatMul", g.op("Relu", h), weight(g, "down", 8, 192, 96))
    gate = g.op("Unsqueeze", g.op("Transpose", mine, perm=[1, 0]), g.ints(2))
    y = g.reduce("ReduceSum", g.op("Mul", y, gate), 0, 0)
    y = g.op("Reshape", y, g.op("Shape", x))
    g.output(y, "y", np.float32, ("batch", "sequence", 96))
    proto = g.model()
    made = lower(proto, "mask")
    operations = [p["op"] for p in plans(made)]
    assert (operations.count("detect"), operations.count("grouped")) == (2, 2)
    session = ort.InferenceSession(proto.SerializeToString())
    lowered = ir.serde.serialize_model(made.model)
    for shape in ((1, 1), (3, 5), (4, 40)):
        rng = np.random.default_rng(shape[1])
        live = rng.integers(0, 2, shape)
        feeds = {"x": rng.normal(size=(*shape, 96)).astype(np.float32), "mask": live}
        (got,), want = run_lowered(lowered, feeds), np.asarray(session.run(None, feeds)[0])
        np.testing.assert_allclose(got[live == 1], want[live == 1], rtol=1e-4, atol=1e-5)


def with_some_kept(n: int) -> Feeds:
    (found,) = tokens(n)
    return found | {"keep": (np.arange(n) % 3 == 0).astype(np.float32)[:, None]}


def test_rows_that_are_dead_are_in_no_group() -> None:
    made = lower_and_compare(kept(hidden=32, ffn=256), map(with_some_kept, (0, 1, 9)))
    assert [p["op"] for p in plans(made)] == ["detect", "pack", "grouped", "grouped", "unpack"]


def test_where_leaving_rows_out_does_not_pay_no_matrix_is_copied() -> None:
    expensive = replace(CPU, flops_per_byte=1 << 14)
    made = lower(kept(), target=expensive)
    assert [p["op"] for p in plans(made)] == ["grouped", "grouped"]
    products = [r for r in made.report.nodes if r.op_type == "MatMul"]
    assert [r.lowering for r in products] == ["ordinary", "grouped", "grouped"]


def test_adapters_of_sequences_are_grouped() -> None:
    proto = adapters(AdaptersConfig(), np.random.default_rng(0))
    rng = np.random.default_rng(1)
    sizes = [(0, 3), (3, 0), (1, 1), (4, 9)]
    made = lower_and_compare(
        proto,
        [
            {"x": rng.normal(size=(b, s, 64)).astype("f"), "adapter": rng.integers(-5, 5, b)}
            for b, s in sizes
        ],
    )
    assert [p["op"] for p in plans(made)] == ["grouped", "grouped"]


def look(g: GraphBuilder, table: str, axis: int = 0, dtype: Any = np.int64) -> str:
    return g.op("Gather", table, g.input("ids", dtype, ("t",)), axis=axis)


def rows(g: GraphBuilder, *shape: int | str) -> str:
    return g.input("x", np.float32, shape or ("t", 1, K))


def plain(g: GraphBuilder) -> str:
    return g.op("MatMul", rows(g), look(g, weight(g, "w", E, K, N)))


def int32(g: GraphBuilder) -> str:
    return g.op("MatMul", rows(g), look(g, weight(g, "w", E, K, N), dtype=np.int32))


def of_all_rows(g: GraphBuilder) -> str:
    """One index for all rows."""
    w = g.op("Gather", weight(g, "w", E, K, N), g.input("one", np.int64, ()), axis=0)
    return g.op("MatMul", rows(g, "t", K), w)


def second_axis(g: GraphBuilder) -> str:
    """Groups are not the first dimension of the table, nor columns the last one."""
    w = look(g, weight(g, "w", N, E, K), axis=1)
    return g.op("MatMul", rows(g), g.op("Transpose", w, perm=[1, 2, 0]))


def turned_before(g: GraphBuilder) -> str:
    """The table is computed from a constant."""
    w = g.op("Transpose", weight(g, "w", N, K, E), perm=[2, 1, 0])
    return g.op("MatMul", rows(g), look(g, w))


def several_rows(g: GraphBuilder) -> str:
    """Five rows share an index."""
    return g.op("MatMul", rows(g, "t", 5, K), look(g, weight(g, "w", E, K, N)))


def einsum(g: GraphBuilder) -> str:
    w = look(g, weight(g, "w", E, N, K))
    return g.op("Einsum", rows(g, "t", K), w, equation="tk,tnk->tn")


def two_indices(g: GraphBuilder) -> str:
    """Indices of rows and of the places in them, both of numbers that are not 1."""
    ids = g.input("pairs", np.int64, ("t", 3))
    w = g.op("Gather", weight(g, "w", E, K, N), ids, axis=0)
    return g.op("MatMul", rows(g, "t", 3, 2, K), w)


def columns_first(g: GraphBuilder) -> str:
    """Rows of the result stand behind its columns: they are turned."""
    w = look(g, weight(g, "w", E, N, K))
    return g.op("MatMul", w, g.op("Transpose", rows(g, "t", 5, K), perm=[0, 2, 1]))


GROUPED = [
    columns_first,
    plain,
    int32,
    second_axis,
    turned_before,
    several_rows,
    einsum,
    two_indices,
]


def built(body: Body) -> onnx.ModelProto:
    g = GraphBuilder("m")
    out = body(g)
    g.output(out, "y", np.float32, ("t",))
    model = g.model()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def given(proto: onnx.ModelProto, t: int) -> Feeds:
    rng, found = np.random.default_rng(t), Feeds()
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or t for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.FLOAT:
            found[value.name] = rng.normal(size=shape).astype(np.float32)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[value.name] = rng.integers(-E, E, shape).astype(dtype)
    return found


@pytest.mark.parametrize("body", GROUPED, ids=lambda body: body.__name__)
def test_forms_of_look_ups(body: Body) -> None:
    proto = built(body)
    sizes = (1, 2, 33) if body is einsum else (0, 1, 2, 33)  # of 0 rows ONNX Runtime's crashes
    made = lower_and_compare(proto, [given(proto, t) for t in sizes])
    (plan,) = plans(made)
    assert (plan["op"], plan["groups"], plan["k"], plan["n"]) == ("grouped", "5", "24", "40")


def of_input(g: GraphBuilder) -> str:
    """The table is no constant."""
    return g.op("MatMul", rows(g), look(g, g.input("w", np.float32, (E, K, N))))


def by_column(g: GraphBuilder) -> str:
    """Each column has an index."""
    ids = g.input("ids", np.int64, (1, K, N))
    w = g.op("GatherElements", weight(g, "w", E, K, N), ids, axis=0)
    return g.op("MatMul", rows(g), w)


def of_columns(g: GraphBuilder) -> str:
    """Columns are what is looked up."""
    return g.op("MatMul", rows(g, 7, K), look(g, weight(g, "w", K, N), axis=1))


def small(g: GraphBuilder) -> str:
    return g.op("MatMul", rows(g, "t", 1, 3), look(g, weight(g, "w", E, 3, N)))


def doubles(g: GraphBuilder) -> str:
    w = g.weight("w", np.ones((E, K, N)))
    x = g.input("x", np.float64, ("t", 1, K))
    return g.op("Cast", g.op("MatMul", x, look(g, w)), to=1)


ORDINARY = [
    (of_input, Code.NO_FACT),
    (by_column, Code.NO_FACT),
    (of_columns, Code.NO_FACT),
    (small, Code.NO_GAIN),
]


@pytest.mark.parametrize(("body", "code"), ORDINARY, ids=lambda x: getattr(x, "__name__", ""))
def test_other_look_ups_stay_as_they_are(body: Body, code: Code) -> None:
    made = lower(built(body))
    assert plans(made) == []
    (record,) = [r for r in made.report.nodes if r.op_type == "MatMul"]
    assert record.refusal is not None and record.refusal.code is code, record.refusal


def test_types_that_kernels_have() -> None:
    """float32, as which CPUs compute float16; on GPUs zeros are not skipped."""
    assert plans(lower(built(doubles))) == []
    assert plans(lower(built(doubles), target=CUDA)) == []
    proto = experts(ExpertsConfig("looked_up", **WIDE), np.random.default_rng(0))
    assert [p["op"] for p in plans(lower(half(proto)))] == ["grouped", "grouped"]
    for model in (proto, half(proto)):
        made = plans(lower(model, target=CUDA))
        assert [p["op"] for p in made] == ["grouped", "grouped"]
        assert {p["skips"] for p in made} == {"0"}


@pytest.mark.parametrize(
    "part",
    [
        lambda g, w: g.op("Slice", w, g.ints(4), g.ints(12), g.ints(0)),
        lambda g, w: g.op("Slice", w, g.ints(0), g.ints(8), g.ints(0)),
        lambda g, w: g.op("Slice", w, g.ints(-1), g.ints(-99), g.ints(0), g.ints(-1)),
        lambda g, w: g.op("Gather", w, g.ints(*np.repeat(np.arange(16), 2).tolist()), axis=0),
        lambda g, w: g.op("Tile", w, g.ints(2, 1, 1)),
        lambda g, w: g.op("Transpose", g.op("Transpose", w, perm=[0, 2, 1]), perm=[0, 2, 1]),
    ],
    ids=["behind", "the first ones", "turned around", "twice", "twice all", "in order"],
)
def test_matrices_of_a_part_of_a_table(part: Callable[[GraphBuilder, str], str]) -> None:
    """An index counts in what is looked up, from the end of it too."""
    g = GraphBuilder("part", opset=18)
    x, ids = g.input("x", np.float32, ("t", 1, 64)), g.input("ids", np.int64, ("t",))
    w = g.op("Gather", part(g, weight(g, "w", 16, 64, 96)), ids, axis=0)
    g.output(g.op("MatMul", x, w), "y", np.float32, ("t", 1, 96))
    rows = np.random.default_rng(0).normal(size=(5, 1, 64)).astype(np.float32)
    lower_and_compare(g.model(), [{"x": rows, "ids": np.array([0, 1, -1, -2, 7])}])


def test_the_source_graph_reads_matrices_from_panels() -> None:
    """Weights are in an artifact once, in whichever order their dimensions are."""
    for body in (plain, second_axis):
        proto = built(body)
        made, shared = lower(proto), ir.serde.deserialize_model(proto)
        share_panels(shared, made.model, made.panels)
        source = ir.serde.serialize_model(shared)
        names = {w.name for w in source.graph.initializer}
        assert any(n.endswith("w.panels") for n in names) and "w" not in names
        sessions = [ort.InferenceSession(m.SerializeToString()) for m in (proto, source)]
        feeds = given(proto, 9)
        want, got = (s.run(None, feeds)[0] for s in sessions)
        np.testing.assert_array_equal(got, want)
