"""If nodes: facts through branches, packed nodes inside them, and nothing of the other branch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.constant import TOP
from pitc.ir.graph import Graph
from pitc.passes.facts import dead as backward
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import analyse
from pitc.passes.rules import constants
from tests.branch_models import (
    BSD,
    PADDING,
    Body,
    Make,
    branch,
    inside,
    linear,
    loop,
    lower,
    masked,
    model,
)
from tests.control_check import audited, compiled, lowerings, start
from tests.fact_check import dead, fills
from tests.record_twin import twin


def same_mask(g: GraphBuilder) -> None:
    """Both branches read live tokens only."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")
    y = branch(
        g,
        c,
        lambda b: masked(b, linear(b, h, "then", "Tanh"), mask),
        lambda b: masked(b, linear(b, linear(b, h, "else"), "more"), mask),
    )
    g.output(y, "y", np.float32, ("b", 32))


def one_branch_reads_all(g: GraphBuilder) -> None:
    """Only the first branch looks at the mask."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")
    y = branch(
        g,
        c,
        lambda b: masked(b, linear(b, h, "then", "Tanh"), mask),
        lambda b: b.reduce("ReduceSum", linear(b, h, "else"), 1, keepdims=0),
    )
    g.output(y, "y", np.float32, ("b", 32))


def two_masks(g: GraphBuilder) -> None:
    """Each branch has a mask of its own."""
    x, mask, c = start(g)
    other = g.input("other_mask", np.int64, ("b", "s"))
    h = linear(g, x, "h", "Relu")
    y = branch(
        g,
        c,
        lambda b: masked(b, linear(b, h, "then"), mask),
        lambda b: masked(b, linear(b, h, "else"), other),
    )
    g.output(y, "y", np.float32, ("b", 32))


def optional_projection(g: GraphBuilder) -> None:
    """One branch computes, the other hands its operand on."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")
    p = branch(g, c, lambda b: linear(b, h, "then"), lambda b: b.op("Identity", h))
    g.output(masked(g, linear(g, p, "out"), mask), "y", np.float32, ("b", 32))


def nested(g: GraphBuilder) -> None:
    """An If in a branch, results of different kinds, one of them used twice."""
    x, mask, c = start(g)
    d = g.input("d", np.bool_, (1,))
    h = linear(g, x, "h", "Relu")

    def outer(b: Body) -> Sequence[str]:
        inner = branch(
            b,
            d,
            lambda i: linear(i, h, "a", "Tanh"),
            lambda i: i.op("Add", linear(i, h, "b"), h),
        )
        return [linear(b, inner, "deep"), inner]

    p, q = branch(g, c, outer, lambda b: [linear(b, h, "flat", "Relu"), h])
    g.output(masked(g, g.op("Add", p, q), mask), "y", np.float32, ("b", 32))
    g.output(masked(g, linear(g, q, "q"), mask), "z", np.float32, ("b", 32))


def mask_in_a_branch(g: GraphBuilder) -> None:
    """The mask that makes tokens dead is computed in the branch."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")

    def own_mask(b: Body) -> str:
        return masked(b, linear(b, h, "then"), b.op("Mul", mask, b.op("Abs", mask)))

    y = branch(g, c, own_mask, lambda b: masked(b, linear(b, h, "else"), mask))
    g.output(y, "y", np.float32, ("b", 32))


def mask_out_of_an_if(g: GraphBuilder) -> None:
    """One output of the If is the mask of what another one is computed from."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")
    wide = g.op("Cast", mask, to=TensorProto.FLOAT)
    chosen, summed = branch(
        g,
        c,
        lambda b: [b.op("Relu", wide), linear(b, h, "then")],
        lambda b: [b.op("Abs", wide), linear(b, h, "else", "Tanh")],
    )
    g.output(masked(g, linear(g, summed, "out"), chosen), "y", np.float32, ("b", 32))


def fails_if_taken(g: GraphBuilder) -> None:
    """A branch that cannot run, for any of the inputs: it must not be run when it is not taken."""
    x, mask, c = start(g)
    impossible = g.op("And", c, g.op("Not", c))

    def broken(b: Body) -> str:
        far = b.op("Add", b.size(x, 1), b.const(1000, np.int64))
        row = b.op("Gather", x, far, axis=1)
        return masked(b, linear(b, b.op("Add", x, b.op("Unsqueeze", row, b.ints(1))), "bad"), mask)

    y = branch(g, impossible, broken, lambda b: masked(b, linear(b, x, "good"), mask))
    g.output(y, "y", np.float32, ("b", 32))


def sizes_differ(g: GraphBuilder) -> None:
    """The branches give tensors of different sizes, and of different ranks."""
    x, mask, c = start(g)
    p = branch(g, c, lambda b: linear(b, x, "then"), lambda b: b.op("Concat", x, x, axis=1))
    q = branch(g, c, lambda b: b.op("Identity", x), lambda b: b.op("ReduceSum", x, keepdims=0))
    g.output(
        g.op("Add", g.op("ReduceSum", p, keepdims=0), g.op("ReduceMax", q, keepdims=0)),
        "y",
        np.float32,
        (),
    )
    g.output(masked(g, linear(g, x, "live"), mask), "z", np.float32, ("b", 32))


def shared_condition(g: GraphBuilder) -> None:
    """Two Ifs on one condition, one behind the other, and a node that both branches mention."""
    x, mask, c = start(g)
    h = linear(g, x, "h", "Relu")
    p = branch(g, c, lambda b: linear(b, h, "p"), lambda b: b.op("Mul", h, h))
    q = branch(g, c, lambda b: b.op("Add", p, h), lambda b: linear(b, p, "q", "Tanh"))
    g.output(masked(g, q, mask), "y", np.float32, ("b", 32))


def cached_keys(g: GraphBuilder) -> None:
    """Keys and values of another sequence, computed now or given as they were computed before."""
    x, mask, c = start(g)
    other = g.input("other", np.float32, BSD)
    keys = g.input("past_keys", np.float32, BSD), g.input("past_values", np.float32, BSD)
    k, v = branch(
        g, c, lambda b: list(keys), lambda b: [linear(b, other, "k"), linear(b, other, "v")]
    )
    scores = g.op("MatMul", linear(g, x, "q"), g.op("Transpose", k, perm=[0, 2, 1]))
    low = g.op("Mul", g.op("Sub", g.const(1.0), g.op("Cast", mask, to=1)), g.const(-1e4))
    weights = g.op("Softmax", g.op("Add", scores, g.op("Unsqueeze", low, g.ints(1))), axis=-1)
    g.output(g.op("MatMul", weights, v), "y", np.float32, BSD)


def from_data(g: GraphBuilder) -> None:
    """The condition is computed from the hidden states."""
    x, mask, _ = start(g)
    h = linear(g, x, "h", "Relu")
    total = g.op("ReduceSum", masked(g, h, mask), keepdims=0)
    c = g.op("Greater", total, g.const(20.0))
    y = branch(g, c, lambda b: linear(b, h, "then"), lambda b: linear(b, h, "else", "Relu"))
    g.output(masked(g, y, mask), "y", np.float32, ("b", 32))


MODELS = {
    make.__name__: make
    for make in (
        same_mask,
        one_branch_reads_all,
        two_masks,
        optional_projection,
        nested,
        mask_in_a_branch,
        mask_out_of_an_if,
        fails_if_taken,
        sizes_differ,
        shared_condition,
        cached_keys,
        from_data,
    )
}


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack wherever it is sound, in small models too."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_lowered_model_computes_what_it_did(
    make: Callable[[GraphBuilder], None], padding: str | None
) -> None:
    proto = model(make)
    compiled(proto, padding)
    if make is not fails_if_taken:  # the audit runs both branches
        assert audited(proto, padding) == []


@pytest.mark.parametrize(
    "make", [same_mask, one_branch_reads_all, two_masks, nested, shared_condition, from_data]
)
def test_contractions_run_packed_in_branches(make: Callable[[GraphBuilder], None]) -> None:
    lowered = compiled(model(make))
    assert set(lowerings(lowered, "MatMul")) == {"packed"}
    found = inside(ir.to_proto(lowered.model))
    assert found["EPContext"] > 0 and not found["MatMul"]


def test_a_branch_starts_and_ends_packed() -> None:
    """Between packed neighbours an If hands packed rows on."""
    lowered = compiled(model(optional_projection))
    assert lowerings(lowered, "If") == ["packed"]
    assert inside(ir.to_proto(lowered.model)) == {"EPContext": 1, "Identity": 1}


def test_keys_are_projected_where_they_are_needed() -> None:
    lowered = compiled(model(cached_keys))
    names = {r.node: r.lowering for r in lowered.report.nodes if r.op_type == "MatMul"}
    assert [names[n] for n in names if n.startswith("m0e")] == ["packed", "packed"]


def test_without_sparsity_a_model_stays_as_it_was() -> None:
    def make(g: GraphBuilder) -> None:
        x, _, c = start(g)
        y = branch(g, c, lambda b: linear(b, x, "then"), lambda b: linear(b, x, "else", "Relu"))
        g.output(y, "y", np.float32, BSD)

    lowered = compiled(model(make))
    assert not lowered.kernels
    assert [n.op_type for n in lowered.model.graph] == ["If"]
    assert inside(ir.to_proto(lowered.model)) == {"MatMul": 2, "Add": 2, "Relu": 1}


# ---- facts


def _facts(make: Callable[[GraphBuilder], None]) -> Any:
    opened = ir.from_proto(model(make))
    normalise(opened)
    return analyse(opened, None)[0]


def test_a_captured_value_is_dead_where_it_is_in_both_branches() -> None:
    live = "mask[d0, d1] == 0"
    graph = _facts(same_mask)
    assert live in dead(graph, "relu_2")
    graph = _facts(one_branch_reads_all)
    assert dead(graph, "relu_2") == {f"c[] != 0 and {live}"}
    graph = _facts(two_masks)
    each = {f"c[] != 0 and {live}", f"c[] == 0 and other_{live}"}
    assert dead(graph, "relu_2") == {*each, f"{live} and other_{live}"}


def test_a_result_is_what_both_branches_say() -> None:
    def make(g: GraphBuilder) -> None:
        x, mask, c = start(g)
        wide = g.op("Unsqueeze", g.op("Cast", mask, to=TensorProto.FLOAT), g.ints(2))
        y = branch(
            g, c, lambda b: b.op("Mul", x, wide), lambda b: b.op("Mul", wide, b.op("Tanh", x))
        )
        z = branch(g, c, lambda b: b.op("Mul", x, wide), lambda b: b.op("Exp", x))
        g.output(g.op("MatMul", y, g.const(np.ones((32, 2)))), "p", np.float32, ("b", "s", 2))
        g.output(g.op("MatMul", z, g.const(np.ones((32, 2)))), "q", np.float32, ("b", "s", 2))

    graph = _facts(make)
    assert ("mask[d0, d1] == 0", 0) in fills(graph, "p")
    assert ("c[] != 0 and mask[d0, d1] == 0", 0) in fills(graph, "q")
    assert ("mask[d0, d1] == 0", 0) not in fills(graph, "q")
    assert audited(model(make)) == []


def _either(cs: Sequence[Any]) -> Any:
    """Wrong: what one branch gives is taken for the result."""
    return cs[1] if cs[1] is not TOP else cs[2]


def _always(op: str, j: int, cs: Sequence[Any], node: Any = None) -> bool:
    """Wrong: an operand is unread where the other branch says so."""
    return op == CHOOSE or constants.ignores(op, j, cs, node)


def test_the_audit_finds_a_wrong_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(g: GraphBuilder) -> None:
        x, mask, c = start(g)
        wide = g.op("Unsqueeze", g.op("Cast", mask, to=TensorProto.FLOAT), g.ints(2))
        z = branch(g, c, lambda b: b.op("Mul", x, wide), lambda b: b.op("Exp", x))
        g.output(g.op("MatMul", z, g.const(np.ones((32, 2)))), "q", np.float32, ("b", "s", 2))

    assert audited(model(make)) == []
    with monkeypatch.context() as wrong:
        twin(wrong, CHOOSE, DOMAIN, law=_either)
        assert any("fill" in line for line in audited(model(make)))
    with monkeypatch.context() as wrong:
        wrong.setattr(backward, "ignores", _always)
        assert any("dead" in line for line in audited(model(make)))


# ---- what may run where


def scores_in_a_branch(g: GraphBuilder) -> None:
    """Each branch finds out by itself which tokens live; what it sums up is computed outside."""
    x, _, c = start(g)
    score = g.input("score", np.float32, ("b", "s"))
    h = linear(g, x, "h", "Relu")

    def live(op: str) -> Make:
        def make(b: Body) -> str:
            return masked(b, linear(b, linear(b, h, op), "in"), b.op(op, score, b.const(0.0)))

        return make

    g.output(branch(g, c, live("Greater"), live("Less")), "y", np.float32, ("b", 32))


def test_a_mask_of_a_branch_packs_nothing_outside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = compiled(model(scores_in_a_branch))
    assert lowerings(lowered, "MatMul") == ["ordinary", *["ordinary", "packed"] * 2]
    assert audited(model(scores_in_a_branch)) == []
    monkeypatch.setattr(Graph, "visible", lambda *_: True)
    with pytest.raises(ValueError, match="outside of its branch"):
        lower(model(scores_in_a_branch))


def test_an_if_runs_as_one_node() -> None:
    """A result of it cannot be the mask of what another one is made of."""

    def make(g: GraphBuilder) -> None:
        x, mask, c = start(g)
        h, k = g.op("Exp", x), g.op("Neg", mask)
        p, q = branch(g, c, lambda b: [b.op("Relu", h), h], lambda b: [x, b.op("Cast", k, to=1)])
        g.output(p, "p", np.float32, BSD)
        g.output(q, "q", np.float32, BSD)

    graph = _facts(make)
    both = graph.note_bit("p") | graph.note_bit("q")
    for name in ("exp_0", "neg_1", "m2t.relu_0"):
        graph.note_bit(name)
    below, above = graph.descendants(), graph.ancestors()
    assert all(below[name] & both == both for name in ("x", "c", "exp_0", "neg_1", "m2t.relu_0"))
    read = graph["exp_0"].bit | graph["neg_1"].bit | graph["m2t.relu_0"].bit
    assert all(above[name] & read == read for name in ("p", "q"))
    assert "p" not in below and not above["p"] & both


# ---- shapes of control flow that exporters write


def _merged(then: onnx.ModelProto, other: onnx.ModelProto, condition: str) -> onnx.ModelProto:
    """Two models with the same inputs and outputs as the branches of one If."""
    weights: list[onnx.TensorProto] = []

    def body(proto: onnx.ModelProto, name: str) -> onnx.GraphProto:
        graph = onnx.GraphProto(name=name)
        outer = {w.name: f"{name}.{w.name}" for w in proto.graph.initializer}
        for node in proto.graph.node:  # values have equal names in both branches
            graph.node.add().CopyFrom(node)
            graph.node[-1].input[:] = [outer.get(x, x) for x in node.input]
        for tensor in proto.graph.initializer:
            weights.append(onnx.TensorProto())
            weights[-1].CopyFrom(tensor)
            weights[-1].name = outer[tensor.name]
        graph.output.extend(proto.graph.output)
        return graph

    branches: dict[str, Any]
    branches = {"then_branch": body(then, "then"), "else_branch": body(other, "else")}
    outputs = []
    for info in then.graph.output:
        outputs.append(onnx.ValueInfoProto())
        outputs[-1].CopyFrom(info)
        outputs[-1].name = f"{info.name}.merged"
    node = helper.make_node("If", [condition], [o.name for o in outputs], "merged", **branches)
    flag = helper.make_tensor_value_info(condition, TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*then.graph.input, flag], outputs, weights)
    opsets = list(then.opset_import)
    return helper.make_model(graph, opset_imports=opsets, ir_version=then.ir_version)


def test_a_merged_model_runs_packed_in_both_branches() -> None:
    """As optimum merges decoders: the whole model is one If."""
    rng, small = np.random.default_rng(0), BertConfig(batch="b", sequence="s", layers=1)
    decoders = (small, replace(small, activation="relu", layers=2))
    first, second = (bert(config, rng) for config in decoders)
    proto = _merged(first, second, "cache")
    onnx.checker.check_model(proto)
    lowered = compiled(proto, "attention_mask")
    assert set(lowerings(lowered, "If")) == {"packed"}
    assert "ordinary" not in lowerings(lowered, "MatMul")
    got = ir.to_proto(lowered.model)
    assert "MatMul" not in {n.op_type for n in got.graph.node} | inside(got).keys()
    assert inside(got)["EPContext"] > 20


# ---- random models

STEPS: dict[str, Callable[[GraphBuilder, Any, list[str], str], str]] = {
    "linear": lambda g, n, xs, mask: linear(g, xs[0], f"w{n}"),
    "relu": lambda g, n, xs, mask: g.op("Relu", xs[0]),
    "tanh": lambda g, n, xs, mask: g.op("Tanh", xs[0]),
    "add": lambda g, n, xs, mask: g.op("Add", xs[0], xs[-1]),
    "mask": lambda g, n, xs, mask: g.op("Mul", xs[0], g.op("Unsqueeze", mask, g.ints(2))),
    "where": lambda g, n, xs, mask: g.op(
        "Where", g.op("Cast", g.op("Unsqueeze", mask, g.ints(2)), to=9), xs[0], g.const(0.0)
    ),
    "norm": lambda g, n, xs, mask: g.op("LpNormalization", xs[0], axis=-1),
    "transpose": lambda g, n, xs, mask: g.op("Transpose", xs[0], perm=[0, 1, 2]),
}
BLOCKS = st.recursive(
    st.sampled_from(sorted(STEPS)),
    lambda inner: (
        st.tuples(
            st.sampled_from(["c", "d"]), st.lists(inner, max_size=4), st.lists(inner, max_size=4)
        )
        | st.tuples(st.sampled_from([0, 1, 2, 9]), st.lists(inner, max_size=4))
    ),
    max_leaves=14,
)


def _extend(g: GraphBuilder, block: Any, values: list[str], mask: str) -> None:
    """Add a step, an If or a Loop around lists of steps; newer values come first."""
    if isinstance(block, str):
        values.insert(0, STEPS[block](g, len(values), values, mask))
        return
    if len(block) == 2:
        trips, steps = block

        def body(b: Body, i: str, states: list[str]) -> list[str]:
            inner = [*states, *values]
            for one in steps:
                _extend(b, one, inner, mask)
            return [b.op("Tanh", inner[0])]

        begin = g.const(True, np.bool_)
        values[:0] = loop(g, g.const(trips, np.int64), [values[0]], body, None, begin)
        return
    condition, then, other = block

    def side(blocks: Any) -> Make:
        def make(b: Body) -> list[str]:
            inner = list(values)
            for one in blocks:
                _extend(b, one, inner, mask)
            return [inner[0], inner[min(1, len(inner) - 1)]]

        return make

    values[:0] = branch(g, condition, side(then), side(other))


def _random(blocks: Any, float_mask: bool) -> Callable[[GraphBuilder], None]:
    def make(g: GraphBuilder) -> None:
        x, mask, _ = start(g)
        g.input("d", np.bool_, (1,))
        values = [x]
        wide = g.op("Cast", mask, to=TensorProto.FLOAT)
        for block in blocks:
            _extend(g, block, values, wide if float_mask else g.op("Abs", wide))
        g.output(masked(g, linear(g, values[0], "last"), mask), "y", np.float32, ("b", 32))
        g.output(g.op("Identity", values[-1]), "z", np.float32, BSD)

    return make


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference divides 0 by 0 and drops it
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(blocks=st.lists(BLOCKS, min_size=1, max_size=5), padding=st.sampled_from([None, PADDING]))
def test_random_branches(blocks: Any, padding: str | None) -> None:
    proto = model(_random(blocks, padding is None))
    compiled(proto, padding, ["holes"])
    assert audited(proto, padding, ["left"]) == []
