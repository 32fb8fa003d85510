"""Layers of experts as few people write them: all compute what ONNX Runtime does, and the products
of most run grouped.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from models.graph import GraphBuilder
from tests.lower_support import lower, plans
from tests.plan_reference import run_lowered

Feeds = dict[str, Any]
#: A layer: `g`, tokens `x` [t, D], numbers `ids` [t, 2] from -E to E - 1  ->  [t, D].
Layer = Callable[[GraphBuilder, str, str], str]
E, D, F, TOP = 8, 64, 128, 2


def table(g: GraphBuilder, name: str, *shape: int) -> str:
    rng = np.random.default_rng(sum(name.encode()) + len(shape))
    return g.weight(name, rng.normal(0, 0.1, shape).astype(np.float32))


def number(g: GraphBuilder, value: int) -> str:
    return g.const(value, np.int64)


def first_ids(g: GraphBuilder, ids: str) -> str:
    """One number for each token, [t]."""
    return g.op("Gather", ids, number(g, 0), axis=1)


def of_rows(g: GraphBuilder, x: str, matrices: str) -> str:
    """Rows [t, k] by a matrix each, [t, k, n]."""
    return g.op("Squeeze", g.op("MatMul", g.op("Unsqueeze", x, g.ints(1)), matrices), g.ints(1))


def block(g: GraphBuilder, x: str, ids: str, stem: str = "", count: int = E) -> str:
    """Each token by the expert that its number says."""
    up, down = table(g, f"{stem}up", count, D, F), table(g, f"{stem}down", count, F, D)
    h = g.op("Relu", of_rows(g, x, g.op("Gather", up, ids, axis=0)))
    return of_rows(g, h, g.op("Gather", down, ids, axis=0))


def dense(g: GraphBuilder, x: str, stem: str) -> str:
    """One feed-forward block."""
    h = g.op("Relu", g.op("MatMul", x, table(g, f"{stem}up", D, F)))
    return g.op("MatMul", h, table(g, f"{stem}down", F, D))


def int32_from_the_end(g: GraphBuilder, x: str, ids: str) -> str:
    """Numbers of int32 count from the end."""
    low = g.op("Sub", g.op("Mod", first_ids(g, ids), number(g, E)), number(g, E))
    return block(g, x, g.op("Cast", low, to=onnx.TensorProto.INT32))


def best_one(g: GraphBuilder, x: str, ids: str) -> str:
    """ArgMax chooses, and experts have biases."""
    best = g.op("ArgMax", g.op("MatMul", x, table(g, "router", D, E)), axis=1, keepdims=0)
    bias = g.op("Gather", table(g, "bias", E, D), best, axis=0)
    return g.op("Add", block(g, x, best), bias)


def same_expert_twice(g: GraphBuilder, x: str, ids: str) -> str:
    """A token has both of its numbers, and the first one again."""
    again = g.op("Concat", ids, g.op("Slice", ids, g.ints(0), g.ints(1), g.ints(1)), axis=1)
    wide = g.op("Expand", g.op("Unsqueeze", x, g.ints(1)), g.ints(1, TOP + 1, 1))
    flat = g.op("Reshape", wide, g.ints(-1, D))
    y = block(g, flat, g.op("Reshape", again, g.ints(-1)))
    return g.op("ReduceSum", g.op("Reshape", y, g.ints(-1, TOP + 1, D)), g.ints(1), keepdims=0)


def turned_tables(g: GraphBuilder, x: str, ids: str) -> str:
    """Matrices lie transposed, and are read by a Transpose, then by labels."""
    one = first_ids(g, ids)
    up = g.op("Gather", table(g, "up", E, F, D), one, axis=0)
    h = g.op("Relu", of_rows(g, x, g.op("Transpose", up, perm=[0, 2, 1])))
    down = g.op("Gather", table(g, "down", E, D, F), one, axis=0)
    return g.op("Einsum", h, down, equation="tf,tdf->td")


def tables_in_parts(g: GraphBuilder, x: str, ids: str) -> str:
    """The table is put together when the model runs."""
    parts = [table(g, f"part {k}", E // 2, D, D) for k in (0, 1)]
    return of_rows(g, x, g.op("Gather", g.op("Concat", *parts, axis=0), first_ids(g, ids)))


def rows_of_a_long_table(g: GraphBuilder, x: str, ids: str) -> str:
    """Matrices lie one below the other, and rows of them are gathered."""
    first = g.op("Mul", g.op("Mod", first_ids(g, ids), number(g, E)), number(g, D))
    rows = g.op("Add", g.op("Unsqueeze", first, g.ints(1)), g.weight("to D", np.arange(D)))
    return of_rows(g, x, g.op("Gather", table(g, "long", E * D, D), rows, axis=0))


def shared_expert(g: GraphBuilder, x: str, ids: str) -> str:
    """One expert that every token has, beside one that is chosen."""
    return g.op("Add", dense(g, x, "shared "), block(g, x, first_ids(g, ids)))


def groups_then_experts(g: GraphBuilder, x: str, ids: str) -> str:
    """The best of two groups, then the best of its four experts."""
    group = g.op("ArgMax", g.op("MatMul", x, table(g, "groups", D, 2)), axis=1, keepdims=0)
    logits = g.op("Reshape", g.op("MatMul", x, table(g, "router", D, E)), g.ints(-1, 2, 4))
    place = g.op("Expand", g.op("Unsqueeze", group, g.ints(1, 2)), g.ints(1, 1, 4))
    mine = g.op("Squeeze", g.op("GatherElements", logits, place, axis=1), g.ints(1))
    within = g.op("ArgMax", mine, axis=1, keepdims=0)
    return block(g, x, g.op("Add", g.op("Mul", group, number(g, 4)), within))


def experts_choose(g: GraphBuilder, x: str, ids: str) -> str:
    """Each expert takes the tokens that it likes best, here half of them."""
    shares = g.op("Softmax", g.op("MatMul", x, table(g, "router", D, E)), axis=1)
    half = g.op("Div", g.op("Add", g.size(x, 0), number(g, 1)), number(g, 2))
    count = g.op("Unsqueeze", half, g.ints(0))
    gates, chosen = g.ops(2, "TopK", g.op("Transpose", shares, perm=[1, 0]), count, axis=1)
    rows = g.op("Gather", x, chosen, axis=0)  # [E, half, D]
    h = g.op("Relu", g.op("MatMul", rows, table(g, "up", E, D, F)))
    y = g.op("MatMul", h, table(g, "down", E, F, D))
    y = g.op("Reshape", g.op("Mul", y, g.op("Unsqueeze", gates, g.ints(2))), g.ints(-1, D))
    places = g.op("Expand", g.op("Reshape", chosen, g.ints(-1, 1)), g.op("Shape", y))
    return g.op("ScatterElements", g.op("Neg", x), places, y, axis=0, reduction="add")


def dropped_tokens_pass(g: GraphBuilder, x: str, ids: str) -> str:
    """Switch: the first three tokens of an expert have it, and the others stay as they are."""
    one = g.op("Mod", first_ids(g, ids), number(g, E))
    hot = g.op("OneHot", one, number(g, E), g.const([0, 1], np.int64), axis=-1)
    line = g.op("Mul", g.op("CumSum", hot, number(g, 0)), hot)
    fits = g.op("LessOrEqual", g.reduce("ReduceSum", line, 1), number(g, 3))
    return g.op("Where", fits, block(g, x, one), x)


def masked_tokens(g: GraphBuilder, x: str, ids: str) -> str:
    """All experts for all tokens; some tokens have none."""
    hot = g.op("Equal", g.op("Mod", ids, number(g, E)), number(g, 0))
    some = g.op("Cast", g.op("Not", g.op("Slice", hot, g.ints(0), g.ints(1), g.ints(1))), to=1)
    mine = g.op("Equal", g.op("Unsqueeze", first_ids(g, ids), g.ints(1)), g.ints(*range(E)))
    gates = g.op("Mul", g.op("Cast", mine, to=1), some)
    h = g.op("Relu", g.op("MatMul", g.op("Unsqueeze", x, g.ints(0)), table(g, "up", E, D, F)))
    y = g.op("MatMul", h, table(g, "down", E, F, D))
    gate = g.op("Unsqueeze", g.op("Transpose", gates, perm=[1, 0]), g.ints(2))
    return g.op("ReduceSum", g.op("Mul", y, gate), g.ints(0), keepdims=0)


def two_layers(g: GraphBuilder, x: str, ids: str) -> str:
    """The second layer has other experts, and the second numbers."""
    y = g.op("Add", x, block(g, x, first_ids(g, ids)))
    second = g.op("Gather", ids, number(g, 1), axis=1)
    return g.op("Add", y, block(g, y, second, "second ", 2 * E))


def one_expert(g: GraphBuilder, x: str, ids: str) -> str:
    """Of one expert, which 0 and -1 name."""
    return block(g, x, g.op("Div", first_ids(g, ids), number(g, E)), "only ", 1)


def many_experts(g: GraphBuilder, x: str, ids: str) -> str:
    """More experts than tokens."""
    return block(g, x, first_ids(g, ids), "many ", 64)


def sequences(g: GraphBuilder, x: str, ids: str) -> str:
    """Tokens [batch, sequence, D], numbers [batch, sequence, 2]: matrices are looked up by them."""
    tokens = g.op("Unsqueeze", x, g.ints(0))
    places = g.op("Unsqueeze", ids, g.ints(0))
    h = g.op("Unsqueeze", tokens, g.ints(2, 3))
    h = g.op("MatMul", h, g.op("Gather", table(g, "up", E, D, F), places, axis=0))
    y = g.op("MatMul", g.op("Relu", h), g.op("Gather", table(g, "down", E, F, D), places, axis=0))
    return g.op("Reshape", g.op("ReduceSum", y, g.ints(2), keepdims=0), g.ints(-1, D))


def lists(g: GraphBuilder, x: str, ids: str, f: Callable[[int, str], str], *, added: bool) -> str:
    """One expert after the other on the tokens that have it first."""
    one, y = g.op("Mod", first_ids(g, ids), number(g, E)), g.op("Neg", x)
    for e in range(E):
        places = g.op("NonZero", g.op("Equal", one, number(g, e)))
        column = g.op("Transpose", places, perm=[1, 0])
        rows = f(e, g.op("Gather", x, g.op("Squeeze", column, g.ints(1)), axis=0))
        if added:
            y = g.op("ScatterND", y, column, rows, reduction="add")
        else:
            every = g.op("Expand", column, g.op("Shape", rows))
            y = g.op("ScatterElements", y, every, rows, axis=0)
    return y


def of_other_widths(g: GraphBuilder, x: str, ids: str) -> str:
    """Odd experts are wider."""

    def one(e: int, rows: str) -> str:
        wide = F + 32 * (e % 2)
        h = g.op("Relu", g.op("MatMul", rows, table(g, f"up {e}", D, wide)))
        return g.op("MatMul", h, table(g, f"down {e}", wide, D))

    return lists(g, x, ids, one, added=True)


def of_other_activations(g: GraphBuilder, x: str, ids: str) -> str:
    """One expert is another function."""

    def one(e: int, rows: str) -> str:
        h = g.op("MatMul", rows, table(g, f"up {e}", D, F))
        return g.op("MatMul", g.op("Tanh" if e == 5 else "Relu", h), table(g, f"down {e}", F, D))

    return lists(g, x, ids, one, added=True)


def with_a_shared_matrix(g: GraphBuilder, x: str, ids: str) -> str:
    """Experts share what is in front, and have slopes, scales and biases of their own."""

    def one(e: int, rows: str) -> str:
        h = g.op("MatMul", rows, table(g, "up", D, F))
        h = g.op("PRelu", h, table(g, f"slope {e}", F))
        h = g.op("Mul", h, g.const(1 + e / E))
        return g.op("Add", g.op("MatMul", h, table(g, f"down {e}", F, D)), table(g, f"b {e}", 1, D))

    return lists(g, x, ids, one, added=True)


def that_replace_rows(g: GraphBuilder, x: str, ids: str) -> str:
    """Rows are set, element by element."""
    return lists(g, x, ids, lambda e, rows: dense(g, rows, f"{e} "), added=False)


def sixteen_terms(g: GraphBuilder, x: str, ids: str) -> str:
    """Every two terms of a sum share their matrices."""
    one, y = g.op("Unsqueeze", first_ids(g, ids), g.ints(1)), x
    for e in range(16):
        mine = g.op("Equal", one, number(g, e - E))
        y = g.op("Add", y, g.op("Where", mine, dense(g, x, f"{e // 2} "), g.const(-0.0)))
    return y


def slots(g: GraphBuilder, x: str, ids: str) -> str:
    """One-hot products that pick rows, and put them back."""
    one = g.op("Mod", first_ids(g, ids), number(g, E))
    hot = g.op("Equal", g.op("Unsqueeze", one, g.ints(1)), g.weight("to 64", np.arange(64)))
    hot = g.op("Cast", hot, to=1)
    means = g.op("MatMul", g.op("Transpose", hot, perm=[1, 0]), g.op("Mul", x, x))
    return g.op("MatMul", hot, means)


#: Layers, and how many of their products run grouped.
FORMS: list[tuple[Layer, int]] = [
    (int32_from_the_end, 2),
    (best_one, 2),
    (same_expert_twice, 2),
    (turned_tables, 2),
    (tables_in_parts, 0),
    (rows_of_a_long_table, 0),
    (shared_expert, 2),
    (groups_then_experts, 2),
    (experts_choose, 0),
    (dropped_tokens_pass, 2),
    (masked_tokens, 2),
    (two_layers, 4),
    (one_expert, 2),
    (many_experts, 2),
    (sequences, 2),
    (of_other_widths, 0),
    (of_other_activations, 0),
    (with_a_shared_matrix, 1),
    (that_replace_rows, 0),
    (sixteen_terms, 2),
    (slots, 0),
]


def built(layer: Layer) -> onnx.ModelProto:
    g = GraphBuilder("forms", opset=18)
    x, ids = g.input("x", np.float32, ("t", D)), g.input("ids", np.int64, ("t", TOP))
    g.output(layer(g, x, ids), "y", np.float32, ("t", D))
    return g.model()


def feeds(*counts: int) -> Iterator[Feeds]:
    for t in counts:
        rng = np.random.default_rng(t)
        x = rng.normal(size=(t, D)).astype(np.float32)
        yield {"x": x, "ids": rng.integers(-E, E, (t, TOP))}


@pytest.mark.parametrize(("layer", "count"), FORMS, ids=lambda x: getattr(x, "__name__", ""))
def test_forms_of_experts(layer: Layer, count: int) -> None:
    proto = built(layer)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = lower(proto)
    lowered, compiled = ir.serde.serialize_model(made.model), pitc.compile(proto, suggest=False)
    for given in feeds(*((1, 7, 40) if layer is turned_tables else (0, 1, 7, 40))):  # Einsum
        want = np.asarray(session.run(None, given)[0])
        for got in (run_lowered(lowered, given)[0], compiled.run(given)["y"]):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert [p["op"] for p in plans(made)].count("grouped") == count
