"""Dead facts on small graphs, and the soundness traps: each fact is audited in ONNX Runtime."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.graph import GraphBuilder
from pitc.ir.graph import Graph
from pitc.ir.region import EVERYWHERE, Region
from pitc.passes.facts import dead as dead_pass
from pitc.passes.facts import softmax
from tests.fact_check import analysed, built, checked, dead, fills, mask_is_zero, only, proven, rows

RNG = np.random.default_rng(11)
BS = ("batch", "seq")
BSH = (*BS, 4)


def _attention(g: GraphBuilder, mask: str, x: str, fill: float, form: str) -> str:
    """One head: softmax(q k^T + mask) v."""
    q, k, v = (g.op("MatMul", x, g.weight(f"w{n}", rows(RNG, 4, 4))) for n in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
    keep = g.op("Unsqueeze", g.op("Cast", mask, to=9), g.ints(1))
    if form == "add":
        masked = g.op("Add", scores, g.op("Where", keep, g.const(0.0), g.const(fill)))
    else:
        masked = g.op("Where", keep, scores, g.const(fill))
    return g.op("MatMul", g.op("Softmax", masked, axis=-1), v)


def _encoder(fill: float, form: str) -> onnx.ModelProto:
    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.int64, BS), g.input("x", np.float32, BSH)
        g.output(_attention(g, mask, x, fill, form), "y", np.float32, BSH)

    return built(make)


LIVE_KEY = "mask[d0, d1] == 0 and some j: mask[d0, j] != 0"


@pytest.mark.parametrize("form", ["add", "where"])
@pytest.mark.parametrize("fill", [-1e4, -1e9, -3.4e38, -np.inf])
def test_masked_keys_are_dead_without_any_promise(fill: float, form: str) -> None:
    """K and V rows are dead where a key is masked; queries and the input are not."""
    graph = proven(_encoder(fill, form), "mask")
    value = only(graph, "MatMul", 2)
    key_t = only(graph, "Transpose")
    # minus infinity gives 0 or NaN, whatever the other keys are
    exact = fill == -np.inf
    assert dead(graph, value) == {"mask[d0, d1] == 0" if exact else LIVE_KEY}
    where_masked = exact or form == "where"
    assert dead(graph, key_t) == {
        "mask[d0, d2] == 0" if where_masked else "mask[d0, d2] == 0 and some j: mask[d0, j] != 0"
    }
    # a score that is replaced in the whole row does not depend on its query
    assert dead(graph, only(graph, "MatMul", 0)) <= {"all j: mask[d0, j] == 0"}
    assert dead(graph, "x") <= {"all j: mask[d0, j] == 0"}


@pytest.mark.parametrize("form", ["add", "where"])
@pytest.mark.parametrize("fill", [-1e4, -np.inf])
def test_with_the_promise_every_padded_row_is_dead(fill: float, form: str) -> None:
    graph = proven(_encoder(fill, form), "mask", opt_in=["y"])
    for k in range(3):
        assert "mask[d0, d1] == 0" in dead(graph, only(graph, "MatMul", k))
    assert "mask[d0, d1] == 0" in dead(graph, "x")


def test_without_the_guard_an_all_masked_row_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit catches a softmax fact that forgets rows of masked keys only."""
    monkeypatch.setattr(softmax, "spared_rows", lambda view, expr: [EVERYWHERE])
    graph, given_up = analysed(_encoder(-1e9, "where"), "mask")
    result = checked(graph, given_up, "mask")
    assert any("fill 0" in text for text in result.failures)
    assert any("dead" in text for text in result.failures)


def _circular() -> onnx.ModelProto:
    """relu(a) * relu(b): each is unread where the other is 0, but not both at once."""

    def make(g: GraphBuilder) -> None:
        a, b = (g.input(x, np.float32, ("rows", 4)) for x in "ab")
        g.output(g.op("Mul", g.op("Relu", a), g.op("Relu", b)), "p", np.float32, ("rows", 4))
        y = g.op("MatMul", "p", g.weight("w", rows(RNG, 4, 3)))
        g.output(y, "y", np.float32, ("rows", 3))

    return built(make)


def _gshard() -> onnx.ModelProto:
    """Dispatch and combine by one tensor, made from two masks and used by both einsums."""

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("s", 4))
        a, b = g.input("mask_a", np.float32, ("s", 2)), g.input("mask_b", np.float32, ("s", 3))
        dispatch = g.op("Einsum", a, b, equation="se,sc->sec")
        slots = g.op("Einsum", dispatch, x, equation="sec,sm->ecm")
        h = g.op("MatMul", slots, g.weight("w", rows(RNG, 2, 4, 4)))
        y = g.op("Einsum", dispatch, h, equation="sec,ecm->sm")
        g.output(y, "y", np.float32, ("s", 4))

    return built(make, opset=17)


@pytest.mark.parametrize("make", [_circular, _gshard])
def test_facts_do_not_justify_themselves(make: Callable[[], onnx.ModelProto]) -> None:
    graph = proven(make(), sizes={"rows": 12, "s": 9})
    assert any(x.dead for x in graph.values.values())


def test_an_empty_slot_of_gshard_is_dead() -> None:
    graph = proven(_gshard(), sizes={"s": 9})
    dispatch = only(graph, "Einsum")
    slots = only(graph, "MatMul")  # an Einsum too, in the model
    assert f"all j: {dispatch}[j, d0, d1] == 0" in dead(graph, slots)


def test_provenance_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the audit finds a tensor that is dead in its own zeros."""
    real = dead_pass.legal

    def broken(
        graph: Graph, name: str, regions: Sequence[Region], below: Mapping[str, int], **_: bool
    ) -> list[Region]:
        return real(graph, name, regions, below, rests=False)

    monkeypatch.setattr(dead_pass, "legal", broken)
    graph, given_up = analysed(_gshard())
    result = checked(graph, given_up, "mask_a")
    assert any("dead" in text for text in result.failures)


def test_a_square_is_not_dead_because_of_itself() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("rows", 4))
        r = g.op("Relu", x)
        square = g.op("Mul", r, r)
        g.output(
            g.op("MatMul", square, g.weight("w", rows(RNG, 4, 3))), "y", np.float32, ("rows", 3)
        )

    graph = proven(built(make))
    assert dead(graph, only(graph, "Relu")) == set()


def test_the_other_branch_of_where_is_dead() -> None:
    def make(g: GraphBuilder) -> None:
        keep = g.input("mask", np.bool_, BS)
        a, b = (g.op("Exp", g.input(x, np.float32, BS)) for x in "ab")
        g.output(g.op("Where", keep, a, b), "y", np.float32, BS)

    graph = proven(built(make))
    assert dead(graph, only(graph, "Exp", 0)) == {"mask[d0, d1] == 0"}
    assert dead(graph, only(graph, "Exp", 1)) == {"mask[d0, d1] != 0"}
    assert dead(graph, "mask") == set()


def test_only_the_class_token_lives() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, BSH)
        h = g.op("Tanh", x)
        first = g.op("Gather", h, g.const(0, np.int64), axis=1)
        g.output(first, "y", np.float32, ("batch", 4))

    graph = proven(built(make))
    assert dead(graph, only(graph, "Tanh")) == {"d1-1 >= 0"}


def test_masked_mean_pooling_needs_no_promise() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.int64, BS), g.input("x", np.float32, BSH)
        h = g.op("Gelu", g.op("MatMul", x, g.weight("w", rows(RNG, 4, 4))))
        m = g.op("Unsqueeze", g.op("Cast", mask, to=1), g.ints(-1))
        total = g.op("ReduceSum", g.op("Mul", h, m), g.ints(1), keepdims=0)
        g.output(total, "y", np.float32, ("batch", 4))

    graph = proven(built(make), "mask")
    for name in (only(graph, "Gelu"), only(graph, "MatMul"), "x"):
        assert dead(graph, name) == {"mask[d0, d1] == 0"}


def test_a_second_live_use_keeps_a_value_alive() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.float32, BS), g.input("x", np.float32, BS)
        h = g.op("Tanh", x)
        g.output(g.op("Mul", h, mask), "y", np.float32, BS)
        g.output(g.op("ReduceSum", h, keepdims=0), "total", np.float32, ())

    graph = proven(built(make), "mask")
    assert dead(graph, only(graph, "Tanh")) == set()


def test_a_shape_reads_no_element() -> None:
    def make(g: GraphBuilder) -> None:
        x, y = g.input("x", np.float32, BS), g.input("y", np.float32, BS)
        h = g.op("Exp", x)
        g.output(g.op("Reshape", y, g.op("Shape", h)), "z", np.float32, BS)

    graph = proven(built(make))
    assert dead(graph, only(graph, "Exp")) == {"everywhere"}
    assert dead(graph, only(graph, "Shape")) == set()  # an operand that no read lists is live


def test_an_unused_value_is_dead_and_a_captured_one_lives() -> None:
    inner = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Neg", ["h"], ["inner"])], "then", [], [inner])
    other = helper.make_graph([helper.make_node("Abs", ["h"], ["inner"])], "else", [], [inner])

    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.float32, BS), g.input("x", np.float32, BS)
        h = g.op("Tanh", x)
        for node in g._nodes:
            if node.output[0] == h:
                node.output[0] = "h"
        g.op("Exp", x)
        positive = g.op("Greater", g.op("ReduceSum", x, keepdims=0), g.const(0.0))
        branch = g.op("If", positive, then_branch=then, else_branch=other)
        g.output(g.op("Mul", "h", mask), "y", np.float32, BS)
        g.output(branch, "z", np.float32, BS)

    graph = proven(built(make), "mask")
    assert dead(graph, "h") == set() == dead(graph, only(graph, "Choose"))
    assert dead(graph, only(graph, "Exp")) == {"everywhere"}


def test_a_loop_body_keeps_what_it_captures_alive() -> None:
    flag = helper.make_tensor_value_info("go", TensorProto.BOOL, ())
    carried = helper.make_tensor_value_info("carried", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["carried", "h"], ["next"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ()), flag, carried],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )

    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.float32, BS), g.input("x", np.float32, BS)
        h = g.op("Tanh", x)
        for node in g._nodes:
            if node.output[0] == h:
                node.output[0] = "h"
        zero = g.op("Mul", x, g.const(0.0))
        total = g.op("Loop", g.const(20, np.int64), "", zero, body=body)
        g.output(total, "total", np.float32, BS)
        g.output(g.op("Mul", "h", mask), "y", np.float32, BS)

    graph = proven(built(make), "mask")
    assert dead(graph, "h") == set() == dead(graph, only(graph, "Mul", 0))
    assert fills(graph, "total") == set()


def test_the_standard_attention_operator_is_seen_through() -> None:
    """Opset 23: its function body, with a boolean mask of keys."""

    def make(g: GraphBuilder) -> None:
        mask = g.input("mask", np.bool_, BS)
        q, k, v = (g.op("Tanh", g.input(x, np.float32, ("batch", 2, "seq", 4))) for x in "qkv")
        wide = g.op("Unsqueeze", mask, g.ints(1, 2))
        y = g.op("Attention", q, k, v, wide)
        g.output(y, "y", np.float32, ("batch", 2, "seq", 4))

    graph = proven(built(make, opset=23), "mask")
    for place in (1, 2):
        assert any("mask[d0, d2] == 0" in text for text in dead(graph, only(graph, "Tanh", place)))
    assert not any("some" in text for text in dead(graph, only(graph, "Tanh", 0)))


def test_an_operator_without_a_rule_keeps_its_operands_alive() -> None:
    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("batch", 3, 3))
        r = g.const(np.ones((1, 3, 3), np.float32))
        shape = ("batch", 1, 3, 3)
        g.output(g.op("RNN", g.op("Exp", x), r, r, hidden_size=3), "d", np.float32, shape)
        g.output(g.op("Mul", "d", g.const(0.0)), "y", np.float32, shape)

    graph = proven(built(make))
    assert dead(graph, only(graph, "Exp")) == set()


def test_quantified_reads_need_every_reader_dead() -> None:
    """A row of B is read by all rows of A: it is dead only if all of them are."""

    def make(g: GraphBuilder) -> None:
        keep = g.input("mask", np.float32, ("rows",))
        a, b = g.input("a", np.float32, ("rows", 3)), g.input("b", np.float32, (3, 4))
        y = g.op("MatMul", a, g.op("Tanh", b))
        g.output(g.op("Mul", y, g.op("Unsqueeze", keep, g.ints(1))), "y", np.float32, ("rows", 4))

    graph = proven(built(make), "mask")
    assert dead(graph, only(graph, "Tanh")) == {"all j: mask[j] == 0"}
    assert dead(graph, "a") == {"mask[d0] == 0"}


def test_routed_experts_are_dead_for_other_tokens() -> None:
    """Every expert runs on every token; a one-hot gate picks one."""

    def make(g: GraphBuilder) -> None:
        x = g.input("x", np.float32, ("tokens", 4))
        best = g.op(
            "ArgMax", g.op("MatMul", x, g.weight("router", rows(RNG, 4, 3))), axis=-1, keepdims=0
        )
        total = ""
        for e in range(3):
            mine = g.op("Cast", g.op("Equal", best, g.const(e, np.int64)), to=1)
            h = g.op("Relu", g.op("MatMul", x, g.weight(f"up{e}", rows(RNG, 4, 6))))
            y = g.op("MatMul", h, g.weight(f"down{e}", rows(RNG, 6, 4)))
            y = g.op("Mul", y, g.op("Unsqueeze", mine, g.ints(1)))
            total = g.op("Add", total, y) if total else y
        g.output(total, "y", np.float32, ("tokens", 4))

    graph = proven(built(make), sizes={"tokens": 10})
    for e in range(3):
        routed = only(graph, "Equal", e)
        assert f"{routed}[d0] == 0" in dead(graph, only(graph, "Relu", e))
        assert f"{routed}[d0] == 0" in dead(graph, only(graph, "MatMul", 2 + 2 * e))


def test_a_static_expert_loop_reads_only_its_tokens() -> None:
    def make(g: GraphBuilder) -> None:
        hit = g.input("hit", np.bool_, ("tokens",))
        h = g.op("Tanh", g.input("x", np.float32, ("tokens", 4)))
        at = g.op("Squeeze", g.op("NonZero", hit), g.ints(0))
        picked = g.op("Gather", h, at, axis=0)
        g.output(
            g.op("MatMul", picked, g.weight("w", rows(RNG, 4, 4))), "y", np.float32, ("hits", 4)
        )

    graph = proven(built(make), sizes={"tokens": 9})
    assert dead(graph, only(graph, "Tanh")) == {"hit[d0] == 0"}


def test_given_up_regions_belong_to_their_output_only() -> None:
    def make(g: GraphBuilder) -> None:
        mask, x = g.input("mask", np.int64, BS), g.input("x", np.float32, BSH)
        h = g.op("Tanh", x)
        g.output(g.op("Exp", h), "a", np.float32, BSH)
        g.output(g.op("ReduceMax", h, g.ints(1), keepdims=0), "b", np.float32, ("batch", 4))
        del mask

    graph = proven(built(make), "mask", opt_in=["a"])
    assert dead(graph, "a") == {"mask[d0, d1] == 0"}
    assert dead(graph, only(graph, "Tanh")) == set()
    assert mask_is_zero(graph, "mask").text == "mask[d0, d1] == 0"
    assert fills(graph, "a") == set()
