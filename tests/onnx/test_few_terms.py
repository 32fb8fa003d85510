"""Products of operands that hold few elements, as one-hot tensors do; layers with capacity."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from models.experts import ExpertsConfig, experts, reference
from models.graph import GraphBuilder
from pitc.ir.target import CUDA
from pitc.passes.facts.few_elements import most_elements
from tests.fact_check import proven
from tests.lower_support import lower, lower_and_compare, plans, weight
from tests.plan_reference import run_lowered

Body = Callable[[GraphBuilder], str]
WIDE: dict[str, Any] = {"form": "capacity", "experts": 8, "hidden": 256, "ffn": 1024}
CAPACITIES: list[dict[str, Any]] = [
    {"top": 1, "capacity": 9},
    {"top": 1, "capacity": 9, "scaled": False},
    {"top": 2, "capacity": 40},
    {"top": 2, "capacity": 33, "bias": True, "gated": True},
]
MOVES = ("detect", "pack", "unpack")


@pytest.mark.parametrize("options", CAPACITIES, ids=str)
def test_slots_that_no_token_has_are_left_out(options: dict[str, Any]) -> None:
    """Tokens find their slots, and rows their way back, as sums of few rows."""
    config = ExpertsConfig(**WIDE, **options)
    proto = experts(config, np.random.default_rng(0))
    made = lower(proto)
    for count in (1, 7, 120, 300):  # an Einsum of none ends the process
        x = np.random.default_rng(count).normal(size=(count, 256)).astype(np.float32)
        (found,) = run_lowered(ir.serde.serialize_model(made.model), {"x": x})
        np.testing.assert_allclose(found, reference(proto, config, x), atol=2e-5)
    operations = [p["op"] for p in plans(made) if p["op"] not in MOVES]
    assert operations == ["sparse_product", "grouped", "grouped", "sparse_product"]
    (live,) = [p for p in plans(made) if p["op"] == "detect"]
    assert live["rank"] == "2", "experts and their slots"


def test_a_token_without_a_slot_gets_zeros() -> None:
    config = ExpertsConfig(**WIDE, top=1, capacity=9, scaled=False)
    proto = experts(config, np.random.default_rng(0))
    x = np.repeat(np.random.default_rng(1).normal(size=(1, 256)), 20, 0).astype(np.float32)
    (y,) = run_lowered(ir.serde.serialize_model(lower(proto).model), {"x": x})
    assert y[:9].any(1).all() and not y[9:].any()


def built(body: Body, *shape: int | str) -> onnx.ModelProto:
    g = GraphBuilder("few", opset=17)
    g.output(body(g), "y", np.float32, shape)
    return g.model()


def one_hot(g: GraphBuilder, name: str, depth: int, *shape: int | str, **how: Any) -> str:
    numbers = g.const(how.pop("numbers", [0.0, 1.0]))
    ids = g.input(name, np.int64, shape)
    return g.op("OneHot", ids, g.const(depth, np.int64), numbers, **how)


def counted(g: GraphBuilder, *numbers: int) -> str:
    """`arange(n) == x[.., None]`, as float32."""
    ids = g.input("ids", np.int64, ("t", 1))
    same = g.op("Equal", g.const([numbers], np.int64), ids)
    return g.op("Cast", same, to=1)


def slots(g: GraphBuilder) -> str:
    expert, slot = one_hot(g, "expert", 8, "t"), one_hot(g, "slot", 50, "t")
    return g.op("Einsum", expert, slot, equation="te,tc->tec")


def one_of_the_other(g: GraphBuilder) -> str:
    """Rows pick columns, and columns rows: up to 64 pairs of 64 * 64 pick each other."""
    a, b = one_hot(g, "rows", 64, 64), one_hot(g, "columns", 64, 64)
    return g.op("Mul", a, g.op("Transpose", b, perm=[1, 0]))


def flat_and_part(g: GraphBuilder) -> str:
    """Two one-hot tensors along digits of the same dimension: the second one says nothing new."""
    flat, part = one_hot(g, "flat", 400, "t"), one_hot(g, "part", 8, "t")
    wide = g.op("Expand", g.op("Unsqueeze", part, g.ints(2)), g.ints(1, 1, 50))
    return g.op("Mul", flat, g.op("Reshape", wide, g.ints(-1, 400)))


def best_two(g: GraphBuilder) -> str:
    gates = g.input("gates", np.float32, ("t", 2))
    return g.op("Einsum", gates, one_hot(g, "ids", 50, "t", 2), equation="tk,tke->te")


def written(g: GraphBuilder, number: float = 0.0, axis: int = 1) -> str:
    """Two elements of each line, of 50, are written."""
    x = g.input("x", np.float32, ("t", 50))
    start = g.op("Add", g.op("Mul", g.op("Sigmoid", x), g.const(0.0)), g.const(number))
    ids, gates = (g.input(n, t, ("t", 2)) for n, t in (("ids", np.int64), ("gates", np.float32)))
    return g.op("ScatterElements", start, ids, gates, axis=axis)


BOUNDS: dict[str, tuple[Body, int, Fraction]] = {
    "one of 50": (lambda g: one_hot(g, "ids", 50, "t"), 50, Fraction(1, 50)),
    "along the first dimension": (lambda g: one_hot(g, "ids", 50, 7, axis=0), 7, Fraction(1, 50)),
    "another number elsewhere": (
        lambda g: one_hot(g, "ids", 50, "t", numbers=[1.0, 0.0]),
        50,
        Fraction(1),
    ),
    "two of 50 are written": (written, 50, Fraction(2, 50)),
    "written to ones": (lambda g: written(g, 1.0), 50, Fraction(1)),
    "written along an unknown size": (lambda g: written(g, axis=0), 50, Fraction(1)),
    "two of 50": (best_two, 50, Fraction(2, 50)),
    "slots of experts": (slots, 50, Fraction(1, 400)),
    "slots, in one dimension": (
        lambda g: g.op("Reshape", slots(g), g.ints(-1, 400)),
        400,
        Fraction(1, 400),
    ),
    "turned": (lambda g: g.op("Transpose", slots(g), perm=[0, 2, 1]), 8, Fraction(1, 400)),
    "one of the other": (one_of_the_other, 64, Fraction(1, 64)),
    "flat and a part": (flat_and_part, 400, Fraction(1, 400)),
    "numbers that are compared": (lambda g: counted(g, *range(40)), 40, Fraction(1, 40)),
    "a number twice": (lambda g: counted(g, *range(39), 3), 40, Fraction(1)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_how_many_elements_are_not_zero(name: str) -> None:
    body, last, share = BOUNDS[name]

    def product(g: GraphBuilder) -> str:
        return g.op("MatMul", body(g), g.input("b", np.float32, (last, 3)))

    proto = built(product, *("p", "q", "r")[: 3 if name in ("turned", "slots of experts") else 2])
    graph = proven(proto, sizes={"t": 9})
    (a,) = [n.input[0] for n in proto.graph.node if n.op_type == "MatMul"]
    assert most_elements(graph, a) == share


SUMS = {
    "te,ted->td": 1,
    "ted,te->td": 1,
    "te,etd->td": 1,
    "et,ted->td": 1,
    "te,tedh->tdh": 1,
    "te,ted->ed": 1,
    "te,ted->d": 0,  # the sum over all live points is no sum of rows
    "te,ted->t": 0,
    "te,ted->dt": 0,
    "te,ted->ted": 0,
}


@pytest.mark.parametrize("equation", SUMS)
def test_sums_of_rows_times_numbers(equation: str) -> None:
    """y[t] = sum over e of gate[t, e] * rows[t, e]: with rows as they are stored, few of which are
    computed.
    """
    g, rng = GraphBuilder("sums", opset=18), np.random.default_rng(0)
    x, ids = g.input("x", np.float32, ("t", 96)), g.input("ids", np.int64, ("t", 2))
    hot = g.op("OneHot", ids, g.const(8, np.int64), g.const([0.0, 1.0]))
    gates = g.op("Sigmoid", g.input("gates", np.float32, ("t", 2)))
    gate = g.op("Einsum", gates, hot, equation="tk,tke->te")
    w = g.weight("w", rng.normal(0, 0.1, (8, 96, 192)).astype(np.float32))
    y = g.op("MatMul", g.op("Unsqueeze", x, g.ints(0)), w)  # [e, t, d]
    terms, out = equation.split("->")
    for term in terms.split(","):
        if len(term) > 2 and not term.startswith("et"):
            y = g.op("Transpose", y, perm=[1, 0, 2])
        if "h" in term:
            y = g.op("Reshape", y, g.ints(0, 0, 48, 4))
        if term == "et":
            gate = g.op("Transpose", gate, perm=[1, 0])
    operands = (gate, y) if len(terms.split(",")[0]) == 2 else (y, gate)
    sizes: dict[str, int | str] = {"t": "t", "e": 8, "d": 48 if "h" in equation else 192, "h": 4}
    y = g.op("Einsum", *operands, equation=equation)
    g.output(y, "y", np.float32, tuple(sizes[c] for c in out))
    feeds = []
    for t in (1, 9, 40):
        given = {"x": rng.normal(size=(t, 96)), "gates": rng.normal(size=(t, 2))}
        feeds.append({n: a.astype(np.float32) for n, a in given.items()})
        feeds[-1]["ids"] = rng.integers(-9, 9, (t, 2))  # from the end, twice, and none
    made = lower_and_compare(g.model(), feeds)
    found = [p for p in plans(made) if p["op"] == "add_rows"]
    assert len(found) == SUMS[equation] and all(p["scaled"] == "1" for p in found)


def rows(g: GraphBuilder, k: int = 50) -> str:
    return g.input("b", np.float32, (k, 600))


REFUSED: dict[str, Body] = {
    "too many": lambda g: g.op("MatMul", one_hot(g, "ids", 30, "t"), rows(g, 30)),
    "batches": lambda g: g.op(
        "MatMul", slots(g), g.op("Unsqueeze", g.input("b", np.float32, (50, 600)), g.ints(0))
    ),
    "a vector": lambda g: g.op("MatMul", one_hot(g, "ids", 2000), rows(g, 2000)),
    "a constant": lambda g: g.op("MatMul", one_hot(g, "ids", 50, "t"), weight(g, "w", 50, 600)),
    "few products": lambda g: g.op(
        "MatMul", one_hot(g, "ids", 50, 9), g.input("b", np.float32, (50, 600))
    ),
    "float64": lambda g: g.op(
        "Cast",
        g.op(
            "MatMul",
            g.op("Cast", one_hot(g, "ids", 50, "t"), to=11),
            g.op("Cast", rows(g), to=11),
        ),
        to=1,
    ),
    "on the right": lambda g: g.op(
        "MatMul", g.input("x", np.float32, ("n", 60)), one_hot(g, "ids", 50, 60)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_product_of_few_terms(name: str) -> None:
    shape = {
        "batches": ("t", 8, 600),
        "few products": (9, 600),
        "on the right": ("n", 50),
        "a vector": (600,),
    }
    made = lower(built(REFUSED[name], *shape.get(name, ("t", 600))))
    assert "sparse_product" not in [p["op"] for p in plans(made)]


def test_a_product_of_few_terms_is_right() -> None:
    """Ids in front, from the end, and none of both; and only on CPUs."""
    proto = built(lambda g: g.op("MatMul", one_hot(g, "ids", 50, "t", 2), rows(g)), "t", 2, 600)
    b = np.random.default_rng(0).normal(size=(50, 600)).astype(np.float32)
    feeds = [
        {"ids": np.asarray(ids, np.int64).reshape(-1, 2), "b": b}
        for ids in ([], [3, 3], [0, -1, -50, 49], [50, -51, 7, 1 << 40])
    ]
    made = lower(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        (found,), (want,) = (
            run_lowered(ir.serde.serialize_model(made.model), feed),
            session.run(None, feed),
        )
        assert np.array_equal(found, np.asarray(want))
    (plan,) = plans(made)
    assert plan["op"] == "sparse_product" and plan["turned"] == "0"
    (record,) = [r for r in made.report.nodes if r.lowering == "sparse_product"]
    assert record.engine == "cpu" and record.sparse.startswith("at most 1/50 of 'onehot")
    assert [p["op"] for p in plans(lower(proto, target=CUDA))] == []


def test_one_hot_tensors_of_no_numbers() -> None:
    """There is no share of nothing; sums of none are 0."""
    for depth, tokens in ((0, "t"), (50, 0)):
        proto = built(
            lambda g, n=depth, t=tokens: g.op("MatMul", one_hot(g, "ids", n, t), rows(g, n)),
            tokens,
            600,
        )
        made = lower(proto)
        count = 3 if tokens == "t" else 0
        feeds = {"ids": np.zeros(count, np.int64), "b": np.ones((depth, 600), np.float32)}
        (found,) = run_lowered(ir.serde.serialize_model(made.model), feeds)
        assert found.shape == (count, 600) and not found.any()


@pytest.mark.parametrize("tokens_first", [False, True])
def test_gates_of_choices_that_are_added_up(tokens_first: bool) -> None:
    """spread[t, e] = sum over the choices of gate * one_hot: most of it is 0 in every run."""
    rng, g, e, k, n = np.random.default_rng(0), GraphBuilder("gates", opset=18), 8, 96, 192
    x = g.input("x", np.float32, ("t", k))
    shares = g.op("Softmax", g.op("MatMul", x, weight(g, "router", k, e)), axis=-1)
    gates, ids = g.ops(2, "TopK", shares, g.ints(2), axis=-1)
    hot = g.op("OneHot", ids, g.const(e, np.int64), g.const([0.0, 1.0]))
    chosen = g.op("Mul", hot, g.op("Unsqueeze", gates, g.ints(2)))
    spread = g.reduce("ReduceSum", chosen, 1, 0)
    up, down = (
        g.weight(name, rng.normal(0, 0.1, shape).astype(np.float32))
        for name, shape in (("up", (e, k, n)), ("down", (e, n, k)))
    )
    if tokens_first:
        h = g.op("Relu", g.op("Einsum", x, up, equation="td,edf->tef"))
        y = g.op("Einsum", h, down, equation="tef,efd->ted")
        y = g.op("Einsum", spread, y, equation="te,ted->td")
    else:
        h = g.op("Relu", g.op("MatMul", g.op("Unsqueeze", x, g.ints(0)), up))
        gate = g.op("Unsqueeze", g.op("Transpose", spread, perm=[1, 0]), g.ints(2))
        y = g.reduce("ReduceSum", g.op("Mul", g.op("MatMul", h, down), gate), 0, 0)
    g.output(y, "y", np.float32, ("t", k))
    feeds = ({"x": rng.normal(size=(t, k)).astype(np.float32)} for t in (1, 9, 40))
    made = lower_and_compare(g.model(), feeds)
    operations = [p["op"] for p in plans(made) if p["op"] not in MOVES]
    assert operations == ["grouped", "grouped", "add_rows"]
