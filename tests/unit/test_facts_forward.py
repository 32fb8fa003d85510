"""Fill facts on small graphs: each is looked up as text, and audited in ONNX Runtime."""

import numpy as np
import pytest

from models.graph import GraphBuilder
from pitc.ir.constant import SCORE, ZN, is_hidden
from pitc.ir.graph import Graph
from pitc.ir.region import EVERYWHERE
from tests.fact_check import analysed, built, fills, only, proven, rows

RNG = np.random.default_rng(7)
BS = ("batch", "seq")


def _masked_input(g: GraphBuilder, dtype: type = np.int64) -> tuple[str, str]:
    # Tanh: a float input that is multiplied would count as a mask itself
    return g.input("mask", dtype, BS), g.op("Tanh", g.input("x", np.float32, (*BS, 4)))


def test_a_mask_times_a_value_is_zero() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g)
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        g.output(g.op("Mul", x, m), "y", np.float32, (*BS, 4))

    graph = proven(built(make), "mask")
    assert ("mask[d0, d1] == 0", 0) in fills(graph, "y")


DIALECTS = {
    "one minus": lambda g, m: g.op(
        "Mul", g.op("Sub", g.const(1.0), g.op("Cast", m, to=1)), g.const(-1e4)
    ),
    "where": lambda g, m: g.op("Where", g.op("Cast", m, to=9), g.const(0.0), g.const(-1e9)),
    "not": lambda g, m: g.op(
        "Mul", g.op("Cast", g.op("Not", g.op("Cast", m, to=9)), to=1), g.const(-3e38)
    ),
    "equal": lambda g, m: g.op(
        "Where", g.op("Equal", m, g.const(0, np.int64)), g.const(-1e5), g.const(0.0)
    ),
    "and": lambda g, m: g.op(
        "Where",
        g.op("And", g.op("Cast", m, to=9), g.op("Not", g.const(False, np.bool_))),
        g.const(0.0),
        g.const(-1e9),
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_mask_dialect_reaches_the_softmax(dialect: str) -> None:
    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.int64, BS)
        q = g.input("q", np.float32, ("batch", "rows", 4))
        k = g.input("k", np.float32, ("batch", 4, "seq"))
        scores = g.op("MatMul", q, k)
        additive = g.op("Unsqueeze", DIALECTS[dialect](g, mask), g.ints(1))
        p = g.op("Softmax", g.op("Add", scores, additive), axis=-1)
        g.output(p, "p", np.float32, ("batch", "rows", "seq"))

    graph = proven(built(make), "mask")
    terms = dict(fills(graph, only(graph, "Add")))
    assert is_hidden(terms["mask[d0, d2] == 0"]) and terms["mask[d0, d2] != 0"] == SCORE
    # an all-masked row is uniform, so the zero needs a live key
    assert fills(graph, "p") == {("mask[d0, d2] == 0 and some j: mask[d0, j] != 0", 0)}
    assert any("softmax" in text for text in graph.assumptions)


def test_minus_infinity_needs_no_guard_but_is_zero_or_nan() -> None:
    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.bool_, BS)
        scores = g.op("Tanh", g.input("scores", np.float32, BS))
        masked = g.op("Where", mask, scores, g.const(-np.inf))
        p = g.op("Softmax", masked, axis=-1)
        guarded = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
        g.output(p, "p", np.float32, BS)
        g.output(guarded, "q", np.float32, BS)

    graph = proven(built(make), "mask")
    assert fills(graph, "p") == {("mask[d0, d1] == 0", ZN)}
    assert fills(graph, "q") == {("mask[d0, d1] == 0", 0)}
    assert graph["p"].finite_if not in (None, EVERYWHERE) and graph["q"].finite_if == EVERYWHERE


def test_a_nan_guard_leaves_infinities() -> None:
    """1 / 0 is no NaN, and 0 times it is."""

    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.bool_, BS)
        p = g.op("Reciprocal", g.op("Relu", g.input("x", np.float32, BS)))
        guarded = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
        y = g.op("Mul", guarded, g.op("Cast", mask, to=1))
        g.output(guarded, "q", np.float32, BS)
        g.output(y, "y", np.float32, BS)

    graph = proven(built(make), "mask")
    assert graph["q"].finite_if is None
    assert fills(graph, "y") == set()


def test_nan_of_an_all_masked_row_is_not_multiplied_away() -> None:
    """0 * NaN is NaN: the zero needs a live key, although the mask itself is 0."""

    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.bool_, BS)
        scores = g.op("Tanh", g.input("scores", np.float32, BS))
        p = g.op("Softmax", g.op("Where", mask, scores, g.const(-np.inf)), axis=-1)
        y = g.op("Mul", g.op("Sigmoid", p), g.op("Cast", mask, to=1))
        g.output(y, "y", np.float32, BS)

    graph = proven(built(make), "mask")
    assert fills(graph, "y") == {("mask[d0, d1] == 0 and some j: mask[d0, j] != 0", 0)}


def _causal(g: GraphBuilder, size: str) -> str:
    counted = g.op("Range", g.const(0, np.int64), size, g.const(1, np.int64))
    query, key = g.op("Unsqueeze", counted, g.ints(1)), g.op("Unsqueeze", counted, g.ints(0))
    return g.op("LessOrEqual", key, query)


def test_a_causal_mask_is_a_test_of_positions() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("scores", np.float32, ("batch", "seq", "seq"))
        scores = g.op("Tanh", x)
        keep = _causal(g, g.size(scores, 2))
        p = g.op("Softmax", g.op("Where", keep, scores, g.const(-1e9)), axis=-1)
        g.output(p, "p", np.float32, ("batch", "seq", "seq"))

    graph = proven(built(make))
    assert fills(graph, "p") == {("-d1+d2-1 >= 0", 0)}  # every row keeps its own key


def test_a_condition_that_is_partly_known_is_tested_itself() -> None:
    """Half of the mask is unknown: a key that the known half spares may be masked all the same."""

    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.int64, BS)
        other = g.op("Tanh", g.input("other", np.float32, BS))
        keep = g.op("Greater", g.op("Mul", g.op("Cast", mask, to=1), other), g.const(0.0))
        scores = g.op("Tanh", g.input("scores", np.float32, BS))
        p = g.op("Softmax", g.op("Where", keep, scores, g.const(-1e9)), axis=-1)
        g.output(keep, "keep", np.bool_, BS)
        g.output(p, "p", np.float32, BS)

    graph = proven(built(make), "mask")
    assert {("mask[d0, d1] == 0", 0), ("keep[d0, d1] == 0", 0)} <= fills(graph, "keep")
    kept = "some j: keep[d0, j] != 0"
    assert fills(graph, "p") == {(f"{x}[d0, d1] == 0 and {kept}", 0) for x in ("mask", "keep")}


def test_a_mask_that_cannot_be_followed_is_tested_itself() -> None:
    """A reshape that mixes dimensions loses the mask, not its effect."""

    def make(g: GraphBuilder) -> None:
        first = g.input("mask", np.int64, (2, 6))
        second = g.op("Reshape", g.input("mask_b", np.int64, (3, 4)), g.ints(2, 6))
        scores = g.op("Tanh", g.input("scores", np.float32, (2, 6)))
        keep = [
            g.op("Where", g.op("Cast", m, to=9), g.const(0.0), g.const(-1e9))
            for m in (first, second)
        ]
        total = g.op("Add", g.op("Add", scores, keep[0]), keep[1])
        g.output(g.op("Softmax", total, axis=-1), "p", np.float32, (2, 6))

    graph = proven(built(make), "mask")
    second = only(graph, "Cast", 1)
    found = fills(graph, "p")
    some = {
        (f"all j: {a}[d0, j] != 0 and {b}[d0, d1] == 0 and some j: {b}[d0, j] != 0", 0)
        for a, b in (("mask", second), (second, "mask"))
    }
    # Or the last keys, one for each row, are seen by both.
    own = {(f, n) for f, n in found if "mask[d0, d0+4] != 0" in f and f"{second}[d0, d0+4]" in f}
    assert some <= found and found - some == own


def test_causal_and_padding_guard_by_the_rows_own_key() -> None:
    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.bool_, BS)
        x = g.input("scores", np.float32, ("batch", "seq", "seq"))
        scores = g.op("Tanh", x)
        keep = g.op("And", _causal(g, g.size(scores, 2)), g.op("Unsqueeze", mask, g.ints(1)))
        p = g.op("Softmax", g.op("Where", keep, scores, g.const(-1e9)), axis=-1)
        g.output(p, "p", np.float32, ("batch", "seq", "seq"))

    graph = proven(built(make), "mask")
    assert fills(graph, "p") == {
        ("-d1+d2-1 >= 0 and mask[d0, d1] != 0", 0),
        ("mask[d0, d1] != 0 and mask[d0, d2] == 0", 0),
    }


def test_nothing_is_said_of_whole_rows_of_relu_zeros() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("rows", 3))
        r = g.op("Relu", x)
        g.output(r, "r", np.float32, ("rows", 3))
        y = g.op("MatMul", "r", g.weight("w", rows(RNG, 3, 5)))
        g.output(y, "y", np.float32, ("rows", 5))

    graph = proven(built(make), sizes={"rows": 40})
    assert fills(graph, "r") == {("r[d0, d1] == 0", 0)}
    assert fills(graph, "y") == set()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_not_finite_annihilates_nothing(bad: float) -> None:
    weight = rows(RNG, 4, 5)
    weight[1, 2] = bad

    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g)
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        y = g.op("MatMul", g.op("Mul", x, m), g.weight("w", weight))
        g.output(y, "y", np.float32, (*BS, 5))
        scaled = g.op("Mul", m, g.weight("v", weight[1]))
        g.output(scaled, "z", np.float32, (*BS, 5))

    graph = proven(built(make), "mask")
    assert fills(graph, "y") == set() and fills(graph, "z") == set()
    assert not graph.finite("w") and graph["y"].finite_if is None


def test_reductions_quantify_and_keep_what_they_can() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g)
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        z = g.op("Mul", x, m)
        ones = g.op("Where", g.op("Cast", m, to=9), x, g.const(3.5))
        for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp"):
            g.output(g.op(op, z, g.ints(1), keepdims=0), f"{op}_0", np.float32, ("batch", 4))
            g.output(g.op(op, ones, g.ints(1), keepdims=0), f"{op}_c", np.float32, ("batch", 4))

    graph = proven(built(make), "mask")
    where = "all j: mask[d0, j] == 0"
    filled = "seq-1 >= 0"  # of nothing, a mean is NaN and a maximum -inf
    for op in ("ReduceSum", "ReduceL2"):
        assert fills(graph, f"{op}_0") == {(where, 0)}
    for op in ("ReduceMax", "ReduceMean"):
        assert fills(graph, f"{op}_0") == {(f"{where} and {filled}", 0)}
    assert fills(graph, "ReduceLogSumExp_0") == set()
    assert fills(graph, "ReduceMax_c") == {(f"{where} and {filled}", 3.5)}
    assert fills(graph, "ReduceSum_c") == fills(graph, "ReduceMean_c") == set()  # a mean rounds


def test_movement_carries_facts_through_digits() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g)
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        z = g.op("Mul", x, m)
        heads = g.op("Transpose", g.op("Reshape", z, g.ints(0, 0, 2, 2)), perm=[0, 2, 1, 3])
        g.output(heads, "heads", np.float32, ("batch", 2, "seq", 2))
        g.output(g.op("Reshape", z, g.ints(-1, 4)), "flat", np.float32, ("tokens", 4))
        both = g.op("Concat", z, z, axis=1)
        g.output(both, "both", np.float32, ("batch", "twice", 4))
        g.output(
            g.op("Slice", z, g.ints(1), g.ints(99), g.ints(1)),
            "tail",
            np.float32,
            ("batch", "rest", 4),
        )

    graph = proven(built(make), "mask")
    assert fills(graph, "heads") == {("mask[d0, d2] == 0", 0)}
    assert fills(graph, "flat") == {("mask[(d0//seq%batch), (d0%seq)] == 0", 0)}
    assert {text for text, _ in fills(graph, "both")} == {
        "-d1+seq-1 >= 0 and mask[d0, d1] == 0",
        "d1-seq >= 0 and mask[d0, d1-seq] == 0",
    }
    assert fills(graph, "tail") == {("mask[d0, d1+1] == 0", 0)}


def test_computed_indices_become_index_maps() -> None:
    """Flatten + Gather(row * seq + key), and GatherND of (row, key)."""

    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.int64, BS)
        batch, seq = g.size(mask, 0), g.size(mask, 1)
        count = [g.op("Range", g.const(0, np.int64), n, g.const(1, np.int64)) for n in (batch, seq)]
        row, key = g.op("Unsqueeze", count[0], g.ints(1)), g.op("Unsqueeze", count[1], g.ints(0))
        index = g.op("Add", g.op("Mul", row, seq), key)
        flat = g.op("Gather", g.op("Flatten", mask, axis=2), index, axis=0)
        g.output(g.op("Reshape", flat, g.op("Shape", index)), "flat", np.int64, BS)
        shape = g.dims(batch, seq)
        pair = [g.op("Unsqueeze", g.op("Expand", x, shape), g.ints(-1)) for x in (row, key)]
        found = g.op("GatherND", mask, g.op("Concat", *pair, axis=-1))
        g.output(found, "found", np.int64, BS)

    graph = proven(built(make), "mask")
    for name in ("flat", "found"):
        assert ("mask[d0, d1] == 0", 0) in fills(graph, name)


def test_a_float_mask_that_nobody_named_counts() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g, np.float32)
        kept = g.op("Mul", x, g.op("Unsqueeze", mask, g.ints(-1)))
        g.output(g.op("ReduceSum", kept, g.ints(1), keepdims=0), "y", np.float32, ("batch", 4))

    graph = proven(built(make))
    assert fills(graph, "y") == {("all j: mask[d0, j] == 0", 0)}


def test_two_masks_meet_in_one_test_of_their_product() -> None:
    def make(g: GraphBuilder) -> None:
        a, b = (g.input(x, np.float32, BS) for x in ("mask_a", "mask_b"))
        g.output(g.op("Mul", a, b), "both", np.float32, BS)
        y = g.op("MatMul", "both", g.input("x", np.float32, ("batch", "seq", 4)))
        g.output(y, "y", np.float32, ("batch", "batch", 4))

    graph = proven(built(make))
    assert ("both[d0, d1] == 0", 0) in fills(graph, "both")


def test_a_nonzero_scatter_keeps_the_base_elsewhere() -> None:
    def make(g: GraphBuilder) -> None:
        hit = g.input("hit", np.bool_, ("tokens",))
        x = g.input("x", np.float32, ("tokens", 4))
        at = g.op("Transpose", g.op("NonZero", hit), perm=[1, 0])
        picked = g.op("GatherND", x, at)
        base = g.op("ConstantOfShape", g.op("Shape", x))
        g.output(g.op("ScatterND", base, at, picked), "y", np.float32, ("tokens", 4))

    graph = proven(built(make), sizes={"tokens": 9})
    assert fills(graph, "y") == {("hit[d0] == 0", 0)}


def test_boolean_values_are_masks_of_their_own() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BS)
        big = g.op("Greater", x, g.const(0.5))
        g.output(big, "big", np.bool_, BS)
        g.output(g.op("Mul", x, g.op("Cast", "big", to=1)), "y", np.float32, BS)

    graph = proven(built(make))
    assert ("big[d0, d1] == 0", 0) in fills(graph, "y")


def _opaque(graph: Graph) -> bool:
    return graph["o"].expr is None and bool(graph["o"].unruled)


def test_an_operator_without_a_rule_says_nothing() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = _masked_input(g)
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        z = g.op("Mul", x, m)
        w, r = (g.const(np.ones((1, 3, n), np.float32)) for n in (4, 3))
        shape = ("batch", 1, "seq", 3)
        g.output(g.op("RNN", z, w, r, hidden_size=3), "o", np.float32, shape)
        g.output(g.op("Mul", "o", g.const(0.0)), "zero", np.float32, shape)

    graph = proven(built(make), "mask")
    assert _opaque(graph) and fills(graph, "o") == set()
    assert fills(graph, "zero") == set()  # it may as well give NaN


def test_sizes_and_positions_are_symbols() -> None:
    """The audit compares every symbolic value with the real one."""

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, (*BS, 6))
        seq = g.size(x, 1)
        half = g.op("Div", g.size(x, 2), g.const(2, np.int64))
        shape = g.dims(g.op("Mul", g.size(x, 0), seq), half, 2)
        g.output(g.op("Reshape", x, shape), "y", np.float32, ("n", 3, 2))
        back = g.op("Sub", g.op("Range", g.const(0, np.int64), seq, g.const(1, np.int64)), seq)
        g.output(g.op("Neg", back), "back", np.int64, ("seq",))
        grown = g.op("Max", g.op("Add", seq, g.const(1, np.int64)), seq)
        g.output(
            g.op("Expand", g.const(1.0), g.op("Unsqueeze", grown, g.ints(0))),
            "e",
            np.float32,
            ("m",),
        )

    graph = proven(built(make))
    assert str(graph["back"].affine) == "-d0+seq"
    assert [str(e) for e in graph["y"].shape or ()] == ["batch*seq", "3", "2"]
    assert [str(e) for e in graph["e"].shape or ()] == ["seq+1"]


def test_missing_optional_operands_and_unknown_ranks_are_legal() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BS)
        g.output(g.op("Clip", x, "", g.const(1.0)), "y", np.float32, BS)
        g.output(g.op("Clip", x, g.const(0.0)), "z", np.float32, BS)

    proto = built(make)
    free = proto.graph.input.add()
    free.name = "free"
    free.type.tensor_type.elem_type = 1
    proto.graph.node.add(op_type="Relu", input=["free"], output=["r"])
    out = proto.graph.output.add()
    out.CopyFrom(proto.graph.output[0])
    out.name = "r"
    del out.type.tensor_type.shape.dim[:]
    out.type.tensor_type.ClearField("shape")
    graph, _ = analysed(proto)
    assert graph["free"].shape is None and graph["r"].shape is None
    assert graph["r"].unruled
