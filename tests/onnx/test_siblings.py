"""Siblings whose results are added up are joined: exactly, and only where they are alike."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.experts import ExpertsConfig, experts
from models.graph import GraphBuilder
from models.routed import RoutedConfig, routed
from pitc.ir.target import CPU, CUDA
from pitc.passes.lower.share import share_panels
from pitc.passes.normalise import normalise
from pitc.passes.siblings import join_siblings
from pitc.passes.siblings.loops import join_loops
from pitc.passes.siblings.sums import LEAST_LISTS, LEAST_TERMS, join_sums
from tests.lower_support import lower, lower_and_compare, plans

Feeds = dict[str, Any]
D, F = 24, 40
#: What one sibling makes of rows [.., D]: `g`, the rows, its number, a source of its weights.
Make = Callable[[GraphBuilder, str, int, np.random.Generator], str]


def weight(g: GraphBuilder, rng: np.random.Generator, *shape: int) -> str:
    numbers = rng.normal(0, 0.2, shape).astype(np.float32)
    return g.weight(f"w{rng.integers(1 << 60)}", numbers)


def product(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
    return g.op("MatMul", x, weight(g, rng, D, D))


def towers(make: Make, count: int = LEAST_TERMS, opset: int = 17) -> onnx.ModelProto:
    """Terms of a sum, each where a number of the token is that of the sibling."""
    rng, g = np.random.default_rng(0), GraphBuilder("towers", opset=opset)
    x, which = g.input("x", np.float32, ("t", D)), g.input("which", np.int64, ("t", 1))
    total = x
    for e in range(count):
        mine = g.op("Equal", which, g.const(e, np.int64))
        y = g.op("Where", mine, make(g, x, e, rng), g.const(0.0))
        total = g.op("Add", total, y)
    g.output(total, "y", np.float32, ("t", D))
    return g.model()


def lists(
    make: Make,
    count: int = LEAST_LISTS,
    opset: int = 17,
    some: Callable[[GraphBuilder, str], str] = lambda g, places: places,
) -> onnx.ModelProto:
    """Rows are listed, and added at their places; a token is in two lists."""
    rng, g = np.random.default_rng(0), GraphBuilder("lists", opset=opset)
    x, which = g.input("x", np.float32, ("t", D)), g.input("which", np.int64, ("t", 1))
    total = g.op("Neg", x)
    for e in range(count):
        mine = [g.op("Equal", which, g.const(k % count, np.int64)) for k in (e, e + 1)]
        either = g.op("Squeeze", g.op("Or", *mine), g.ints(1))
        places = g.op("Transpose", some(g, g.op("NonZero", either)), perm=[1, 0])
        rows = g.op("Gather", x, g.op("Squeeze", places, g.ints(1)), axis=0)
        total = g.op("ScatterND", total, places, make(g, rows, e, rng), reduction="add")
    g.output(total, "y", np.float32, ("t", D))
    return g.model()


def feeds(count: int) -> Iterator[Feeds]:
    for t in (0, 1, 9, 40):
        rng = np.random.default_rng(t)
        which = rng.integers(0, count + 1, (t, 1))
        yield {"x": rng.normal(size=(t, D)).astype(np.float32), "which": which}


def joined(proto: onnx.ModelProto, count: int) -> int:
    """How many products of all siblings there are; the model computes the same with them."""
    model = ir.from_proto(proto)
    normalise(model)
    products = join_sums(model)
    onnx.checker.check_model(made := ir.to_proto(model))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # scatters lose rows on more
    sessions = [ort.InferenceSession(m.SerializeToString(), options) for m in (proto, made)]
    for given in feeds(count):
        want, got = (np.asarray(s.run(None, given)[0]) for s in sessions)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return len(products)


def steps(*more: str) -> Make:
    """A product, and steps behind it that keep the shape."""

    def make(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        y = product(g, x, e, rng)
        for step in more:
            y = STEPS[step](g, y, e, rng)
        return y

    return make


def _halves(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
    a, b = g.ops(2, "Split", x, g.ints(D // 2, D // 2), axis=1)
    return g.op("Concat", a, b, axis=1)


def _gated(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
    a, b = g.ops(2, "Split", g.op("MatMul", x, weight(g, rng, D, 2 * D)), axis=-1)
    return g.op("Mul", a, g.op("Sigmoid", b))


def _gemm(transposed: bool) -> Make:
    def make(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        w = weight(g, rng, *((D, D + 1) if not transposed else (D + 1, D)))
        y = g.op("Gemm", x, w, weight(g, rng, D + 1), transB=int(transposed))
        return g.op("MatMul", y, weight(g, rng, D + 1, D))

    return make


STEPS: dict[str, Make] = {
    "relu": lambda g, x, e, rng: g.op("Relu", x),
    "bias": lambda g, x, e, rng: g.op("Add", x, weight(g, rng, D)),
    "bias of one row": lambda g, x, e, rng: g.op("Add", weight(g, rng, 1, D), x),
    "number": lambda g, x, e, rng: g.op("Mul", x, g.const(float(e))),
    "number of one": lambda g, x, e, rng: g.op("Mul", x, g.weight(f"n{e}", np.array([e], "f"))),
    "same number": lambda g, x, e, rng: g.op("Mul", x, g.const(2.0)),
    "norm": lambda g, x, e, rng: g.op("LayerNormalization", x, g.weight("g", np.ones(D, "f"))),
    "softmax": lambda g, x, e, rng: g.op("Softmax", x, axis=1),
    "sum": lambda g, x, e, rng: g.op("Sub", x, g.reduce("ReduceSum", x, -1)),
    "mean": lambda g, x, e, rng: g.op("Sub", x, g.reduce("ReduceMean", x, 1)),
    "turned": lambda g, x, e, rng: g.op(
        "Squeeze", g.op("Transpose", g.op("Unsqueeze", x, g.ints(2)), perm=[0, 2, 1]), g.ints(-2)
    ),
    "gated": _gated,
    "gemm": _gemm(False),
    "gemm, turned": _gemm(True),
    "product": product,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", [towers, lists])
def test_steps_behind_a_product(way: Any, step: str) -> None:
    count = {towers: LEAST_TERMS, lists: LEAST_LISTS}[way]
    assert joined(way(steps(step), count), count) == 1 + {"gated": 1, "product": 1}.get(step, 0) + (
        2 * step.startswith("gemm")
    )


def _quantised(axis: int | None) -> Make:
    """Scales of a number, which differ; or of each column, which do not."""

    def make(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        shape = () if axis is None else (D,)
        scale = g.weight(f"s{e if axis is None else ''}", np.full(shape, 0.02 + 0.001 * e, "f"))
        zero = g.weight("z", np.full(shape, 99, np.uint8))
        y = g.op("QuantizeLinear", x, scale, zero, axis=axis or 0)
        return product(g, g.op("DequantizeLinear", y, scale, zero, axis=axis or 0), e, rng)

    return make


def _clipped(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
    return product(g, g.op("Clip", x, g.const(-0.1 - e / 10), g.const(0.9)), e, rng)


OF_ONE_NUMBER: dict[str, Make] = {
    "clip": _clipped,
    "quantised": _quantised(None),
    "quantised, by columns": _quantised(1),
}


@pytest.mark.parametrize("name", OF_ONE_NUMBER)
@pytest.mark.parametrize("way", [towers, lists])
def test_operands_that_do_not_broadcast_stay(way: Any, name: str) -> None:
    """Bounds, scales: with siblings in front they would be of another rank, or along another
    axis.
    """
    make = OF_ONE_NUMBER[name]
    count = {towers: LEAST_TERMS, lists: LEAST_LISTS}[way]
    proto = way(lambda g, x, e, rng: make(g, product(g, x, e, rng), e, rng), count)
    assert joined(proto, count) == 0


@pytest.mark.parametrize(
    "some",
    [
        lambda g, x: g.op("Slice", x, g.ints(0), g.ints(2), g.ints(1)),
        lambda g, x: g.op("Slice", x, g.ints(0), g.ints(-1), g.ints(1)),
        lambda g, x: g.op("Slice", x, g.ints(1), g.ints(99), g.ints(1)),
        lambda g, x: g.op("Slice", x, g.ints(-1), g.ints(-99), g.ints(1), g.ints(-1)),
    ],
    ids=["two", "all but the last", "all but the first", "turned around"],
)
def test_some_places_of_a_list_stay(some: Callable[[GraphBuilder, str], str]) -> None:
    """The first ones of all lists are not those of each."""
    assert joined(lists(product, some=some), LEAST_LISTS) == 0


def test_weights_that_a_caller_may_change_stay() -> None:
    proto = lists(product)
    name = next(w.name for w in proto.graph.initializer if list(w.dims) == [D, D])
    proto.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, [D, D]))
    assert joined(proto, LEAST_LISTS) == 0


REFUSED: dict[str, tuple[Make, Make]] = {
    "other steps": (steps("relu"), steps("bias")),
    "other numbers of steps": (steps(), steps("relu")),
    "parts that are joined again": (_halves, _halves),
    "no product": (STEPS["relu"], STEPS["relu"]),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("way", [towers, lists])
def test_siblings_that_are_not_alike_stay(way: Any, name: str) -> None:
    usual, other = REFUSED[name]
    count = {towers: LEAST_TERMS, lists: LEAST_LISTS}[way]
    assert joined(way(lambda g, x, e, rng: (other if e else usual)(g, x, e, rng)), count) == 0


def test_other_sizes_and_few_siblings_stay() -> None:
    def of_width(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        y = g.op("MatMul", x, weight(g, rng, D, F + (e == 3)))
        return g.op("MatMul", y, weight(g, rng, F + (e == 3), D))

    assert joined(towers(of_width), LEAST_TERMS) == 0
    assert joined(towers(product, LEAST_TERMS - 1), LEAST_TERMS) == 0
    assert joined(lists(product, LEAST_LISTS - 1), LEAST_LISTS) == 0
    assert joined(lists(product, 7), 7) == 1


def test_attributes_that_differ_stay() -> None:
    def sloped(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        return g.op("LeakyRelu", product(g, x, e, rng), alpha=0.1 * (1 + (e == 2)))

    assert joined(towers(sloped), LEAST_TERMS) == joined(lists(sloped), LEAST_LISTS) == 0


def test_random_numbers_are_drawn_by_each() -> None:
    def noisy(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        return g.op("Mul", product(g, x, e, rng), g.op("RandomNormal", shape=[1, D], seed=1.0))

    model = ir.from_proto(towers(noisy))
    normalise(model)
    assert join_sums(model) == []


def test_a_sum_that_something_else_reads_ends_there() -> None:
    proto = towers(product)
    added = [n for n in proto.graph.node if n.op_type == "Add"]
    for k, left in ((0, 1), (len(added) // 2, 0)):
        copy = onnx.ModelProto.FromString(proto.SerializeToString())
        copy.graph.output.append(
            onnx.helper.make_tensor_value_info(added[k].output[0], 1, ["t", D])
        )
        model = ir.from_proto(copy)
        normalise(model)
        assert len(join_sums(model)) == 0, left


def test_siblings_under_conditions_stay() -> None:
    """Each product runs in a branch of its own."""
    rng, text = np.random.default_rng(0), "y0 = Neg (x)"
    for e in range(LEAST_TERMS):
        body = f"then_branch = a () => (float[t, 24] p{e}) {{ p{e} = MatMul (x, w{e}) }}"
        other = f"else_branch = b () => (float[t, 24] q{e}) {{ q{e} = Neg (x) }}"
        text += f" z{e} = If (hit) <{body}, {other}> y{e + 1} = Add (y{e}, z{e})"
    text = text.replace(f"y{LEAST_TERMS} =", "y =")
    head = """<ir_version: 9, opset_import: ["": 17]>
        g (float[t, 24] x, bool hit) => (float[t, 24] y)"""
    proto = onnx.parser.parse_model(f"{head} {{ {text} }}")
    for e in range(LEAST_TERMS):
        numbers = rng.normal(size=(D, D)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, f"w{e}"))
    model = ir.from_proto(proto)
    normalise(model)
    assert join_sums(model) == []


def test_long_sums_and_long_siblings() -> None:
    assert joined(towers(product, 1200), 1200) == 1

    def long(g: GraphBuilder, x: str, e: int, rng: np.random.Generator) -> str:
        y = product(g, x, e, rng)
        for _ in range(300):
            y = g.op("Neg", y)
        return y

    model = ir.from_proto(towers(long))
    normalise(model)
    assert join_sums(model) == []


def test_rows_of_two_lists_stay() -> None:
    """The second product reads rows of another list."""
    rng, g = np.random.default_rng(0), GraphBuilder("lists", opset=17)
    x, which = g.input("x", np.float32, ("t", D)), g.input("which", np.int64, ("t", 1))
    total = g.op("Neg", x)
    for e in range(LEAST_LISTS):
        places = []
        for kind in ("Less", "Greater"):
            mine = g.op("Squeeze", g.op(kind, which, g.const(e, np.int64)), g.ints(1))
            places.append(g.op("Transpose", g.op("NonZero", mine), perm=[1, 0]))
        rows = g.op("Gather", x, g.op("Squeeze", places[0], g.ints(1)), axis=0)
        rows = g.op("MatMul", rows, weight(g, rng, D, D))
        mean = g.reduce("ReduceMean", g.op("Gather", x, g.op("Squeeze", places[1], g.ints(1))), 0)
        total = g.op("ScatterND", total, places[0], g.op("Add", rows, mean), reduction="add")
    g.output(total, "y", np.float32, ("t", D))
    assert joined(g.model(), LEAST_LISTS) == 0


WIDE: dict[str, Any] = {"experts": 8, "hidden": 96, "ffn": 192}
OPTIONS: list[dict[str, Any]] = [{}, {"gated": True, "bias": True}, {"top": 1, "scaled": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_loop_over_experts_runs_grouped(options: dict[str, Any]) -> None:
    proto = experts(ExpertsConfig("loop", **WIDE, **options), np.random.default_rng(0))
    given = (
        {"x": np.random.default_rng(t).normal(size=(t, 96)).astype("f")} for t in (0, 1, 7, 50)
    )
    made = lower_and_compare(proto, given)
    ops = [p["op"] for p in plans(made)]
    assert (ops.count("grouped"), ops.count("add_rows")) == (2, 1)
    assert {"ScatterND", "NonZero"} & {n.op_type for n in made.model.graph} == {"NonZero"}
    names = [r.node for r in made.report.nodes if r.lowering == "grouped"]
    assert len(names) == 2 and all(name.endswith(" and 7 more") for name in names)


def test_towers_run_grouped() -> None:
    proto = routed(RoutedConfig(16, 64, 128, "gelu"), np.random.default_rng(0))
    rng = np.random.default_rng(1)
    given = ({"x": rng.normal(size=(*s, 64)).astype("f")} for s in ((0, 3), (1, 1), (2, 30)))
    made = lower_and_compare(proto, given)
    ops = [p["op"] for p in plans(made)]
    assert (ops.count("grouped"), ops.count("add_rows")) == (2, 1)


def test_what_would_not_run_grouped_stays() -> None:
    """Products that every token needs of all siblings."""
    rng, g = np.random.default_rng(0), GraphBuilder("ensemble")
    total = x = g.input("x", np.float32, ("t", 96))
    for _ in range(LEAST_TERMS):
        total = g.op("Add", total, g.op("MatMul", x, weight(g, rng, 96, 96)))
    g.output(total, "y", np.float32, ("t", 96))
    model = ir.from_proto(g.model())
    normalise(model)
    before = len(model.graph)
    assert join_siblings(model, None, CPU) == 0 and len(model.graph) == before


def test_gpus_run_each_alone() -> None:
    proto = experts(ExpertsConfig("loop", **WIDE), np.random.default_rng(0))
    for target, count in ((CUDA, 0), (CPU, 2)):
        model = ir.from_proto(proto)
        normalise(model, target)
        assert join_siblings(model, None, target) == count


def test_weights_are_in_an_artifact_once() -> None:
    """The source graph reads each matrix from the panels of all."""
    proto = experts(ExpertsConfig("loop", **WIDE, bias=True), np.random.default_rng(0))
    source, made = ir.from_proto(proto), lower(proto)
    share_panels(source, made.model, made.panels)
    left = {n for n in source.graph.initializers if n.startswith(("up.", "down."))}
    assert not {n for n in left if n.split(".")[-1].isdigit() and "bias" not in n}
    given = {"x": np.random.default_rng(3).normal(size=(9, 96)).astype(np.float32)}
    got, want = (
        np.asarray(ort.InferenceSession(m.SerializeToString()).run(None, given)[0])
        for m in (ir.to_proto(source), proto)
    )
    np.testing.assert_array_equal(got, want)


#: One trip, of the number `i`, what trips hand on `a`, tokens `x [t, 96]` and one of their numbers.
ADDED = """wu = Gather (up, i) h = MatMul (x, wu) r = Relu (h) wd = Gather (down, i)
    o = MatMul (r, wd) m = Equal (which, i) z = Where (m, o, zero) b = Add (a, z)"""
LISTED = """m = Equal (which, i) q = Squeeze (m, one) n = NonZero (q)
    p = Transpose <perm = [1, 0]> (n) l = Squeeze (p, one) s = Gather (x, l)
    wu = Gather (up, i) h = MatMul (s, wu) r = Relu (h)
    wd = Gather (down, i) o = MatMul (r, wd) b = ScatterND <reduction = "add"> (a, p, o)"""
LOOP = """<ir_version: 9, opset_import: ["": 17]>
g (float[t, 96] x, int64[t, 1] which, int64 trips) => (float[t, 96] y)
<int64[1] one = {1}, float zero = {0.0}, bool yes = {1}, int64 many = {COUNT}>
{ start = Neg (x) y = Loop (LIMIT, yes, start) <body = trip
    (int64 i, bool go, float[t, 96] a) => (bool on, float[t, 96] b)
    { BODY on = Identity (go) }> }"""
TRIPS = 9


def trips(body: str, count: int = TRIPS, limit: str = "many") -> onnx.ModelProto:
    text = LOOP.replace("BODY", body).replace("COUNT", str(count)).replace("LIMIT", limit)
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("up", (count, 96, 192)), ("down", (count, 192, 96))):
        numbers = rng.normal(0, 0.1, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    return proto


def of_tokens(*counts: int) -> Iterator[Feeds]:
    for t in counts:
        rng = np.random.default_rng(t)
        which = rng.integers(0, TRIPS, (t, 1))
        x = rng.normal(size=(t, 96)).astype(np.float32)
        yield {"x": x, "which": which, "trips": np.array(TRIPS)}


OF_TRIPS = LISTED.replace("Gather (x, l)", "Gather (xi, l)").replace(
    "m = Equal", "f = Cast <to = 1> (i) xi = Mul (x, f) m = Equal"
)
"""Rows of a matrix that each trip has another one of."""


@pytest.mark.parametrize("body", [ADDED, LISTED, OF_TRIPS])
def test_trips_of_a_loop_run_grouped(body: str) -> None:
    made = lower_and_compare(trips(body), of_tokens(0, 1, 7, 60))
    ops = [p["op"] for p in plans(made)]
    assert (ops.count("grouped"), ops.count("add_rows")) == (2, 1)
    assert "Loop" not in {n.op_type for n in made.model.graph}


def test_many_trips_cost_no_node_more() -> None:
    few, many = (lower(trips(LISTED, count)) for count in (TRIPS, 300))
    assert len(few.model.graph) == len(many.model.graph)


LOOPS: dict[str, Any] = {
    "what was made is read": (ADDED.replace("MatMul (x, wu)", "MatMul (a, wu)"), {}),
    "what was made is scaled": (ADDED.replace("Add (a, z)", "Mul (a, z)"), {}),
    "a number of trips that is given": (ADDED, {"limit": "trips"}),
    "a matrix of the next trip": (
        ADDED.replace("Gather (up, i)", "Slice (up, k, one, k)").replace(
            "wu =", "k = Cast<to=7>(i) wu ="
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_other_loops_stay(name: str) -> None:
    body, options = LOOPS[name]
    model = ir.from_proto(trips(body, **options))
    normalise(model)
    before = [n.op_type for n in model.graph]
    assert join_loops(model) == [] and [n.op_type for n in model.graph] == before == ["Neg", "Loop"]


def test_a_loop_that_may_end_early_stays() -> None:
    proto = trips(ADDED.replace("b = Add (a, z)", "b = Add (a, z) big = Greater (i, i)"))
    (loop,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    (body,) = [a.g for a in loop.attribute if a.name == "body"]
    (last,) = [n for n in body.node if n.op_type == "Identity"]
    last.input[0] = "big"
    model = ir.from_proto(proto)
    normalise(model)
    assert join_loops(model) == []
