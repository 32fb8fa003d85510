"""Convolutions that leave out channels: which do, and that the answer stays the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.refusal import Code
from tests.channel_support import (
    BATCH,
    DENSITIES,
    SIZE,
    C,
    F,
    Make,
    array,
    branches,
    built,
    cast,
    code_of,
    conv,
    everything_pays,
    feeds_of,
    flag,
    gated,
    ifs,
    lowerings,
    norm,
    poisoned,
    records,
    same,
    selected,
    session,
)
from tests.lower_support import lower
from tests.runtime_support import Array


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_pays(monkeypatch)


def excited(function: str, **attributes: Any) -> Make:
    """Squeeze and excite, with a gate that is 0 on an interval."""

    def make(g: GraphBuilder, x: str) -> str:
        pooled = g.op("GlobalAveragePool", g.input("signal", np.float32, BATCH))
        one = g.op("Conv", pooled, g.weight("squeeze", array(C, C, 1, 1)))
        g._nodes[-1].name = "squeeze"
        return g.op("Mul", x, g.op(function, one, **attributes))

    return make


def several(g: GraphBuilder, x: str) -> str:
    """0 where one of two gates is; the other gate knows no images."""
    other = g.input("gate2", np.float32, (C, 1, 1))
    return g.op("Mul", g.op("Mul", x, flag(g)), other)


def halves(g: GraphBuilder, x: str) -> str:
    """Two values side by side, each with a gate of its own."""
    gate2 = g.input("gate2", np.float32, ("batch", 4, 1, 1))
    first = g.op("Slice", x, g.ints(0), g.ints(4), g.ints(1))
    last = g.op("Slice", x, g.ints(4), g.ints(C), g.ints(1))
    parts = [g.op("Mul", first, flag(g, shape=("batch", 4, 1, 1))), g.op("Mul", last, gate2)]
    return g.op("Concat", *parts, axis=1)


GATES: dict[str, Make] = {
    "float": lambda g, x: g.op("Mul", x, flag(g)),
    "of every image": lambda g, x: g.op("Mul", x, flag(g, shape=(1, C, 1, 1))),
    "of channels": lambda g, x: g.op("Mul", flag(g, shape=(C, 1, 1)), x),
    "a matrix": lambda g, x: g.op(
        "Mul", x, g.op("Reshape", flag(g, shape=("batch", C)), g.ints(0, C, 1, 1))
    ),
    "bool": lambda g, x: g.op("Where", flag(g, np.bool_), x, g.const(0.0)),
    "filled": lambda g, x: g.op("Where", flag(g, np.bool_), g.const(0.0), x),
    "cast bool": lambda g, x: g.op("Mul", x, cast(g, flag(g, np.bool_))),
    "cast integer": lambda g, x: g.op("Mul", x, cast(g, flag(g, np.int32))),
    "relu": excited("Relu"),
    "hard sigmoid": excited("HardSigmoid", alpha=2.0),
    "of two": several,
    "of halves": halves,
}
CARRIED: dict[str, Make] = {
    "relu": lambda g, x: g.op("Relu", g.op("Mul", x, flag(g))),
    "largest": lambda g, x: g.op("MaxPool", g.op("Mul", x, flag(g)), kernel_shape=[2, 3]),
    "mean": lambda g, x: g.op("AveragePool", g.op("Mul", x, flag(g)), kernel_shape=[3, 3]),
}


# ---- gates


@pytest.mark.parametrize("gate", [*GATES, *CARRIED])
def test_channels_of_the_image_are_left_out(gate: str) -> None:
    proto = gated({**GATES, **CARRIED}[gate])
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    assert records(lowered)[-1].sparse.startswith("operand 0 is 0 where")
    same(proto, lowered, [feeds_of(proto, d, n) for d in DENSITIES for n in (1, 3)])


@pytest.mark.parametrize("gate", GATES)
def test_filters_that_nobody_reads_are_left_out(gate: str) -> None:
    proto = selected(GATES[gate])
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    assert ("'y' is 0 where" in records(lowered)[-1].sparse) == (gate != "of halves")
    same(proto, lowered, [feeds_of(proto, d, n) for d in DENSITIES for n in (1, 3)])


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_may_be_farther_away(gate: str) -> None:
    """What the gate hides passes a step that moves the places of a channel."""

    def turned(g: GraphBuilder, y: str) -> str:
        return GATES[gate](g, g.op("Transpose", y, perm=[0, 1, 3, 2]))

    proto = selected(turned)
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    assert "is unread where" in records(lowered)[-1].sparse
    same(proto, lowered, [feeds_of(proto, d, n) for d in DENSITIES for n in (1, 3)])


@pytest.mark.parametrize("batch", [0, 1, 4])
def test_what_lives_for_one_image_lives_for_all(batch: int) -> None:
    proto = gated(GATES["float"])
    feeds = feeds_of(proto, 0.0, batch)
    feeds["gate"][:, 2] = 1.5
    for image in range(batch):
        feeds["gate"][image, image] = image
    same(proto, lower(proto), [feeds])


def test_tests_with_numbers_below_zero() -> None:
    """0 where both gates are, one of which has no images, so that nothing is summed over them."""

    def gate(g: GraphBuilder, x: str) -> str:
        line = g.op("Reshape", g.input("gate2", np.float32, (C,)), g.ints(1, C, 1, 1))
        return g.op("Add", g.op("Mul", x, flag(g)), g.op("Mul", x, line))

    proto = gated(gate)
    lowered = lower(proto)
    assert records(lowered)[-1].sparse.count("==") == 2
    feeds = feeds_of(proto, 0.0)
    feeds["gate"][:, 3], feeds["gate2"][[2, 3]] = 1.0, -1.0
    same(proto, lowered, [feeds])


def test_numbers_near_zero_and_nan_are_no_zeros() -> None:
    proto = gated(GATES["float"])
    feeds = feeds_of(proto, 0.0)
    feeds["gate"][0, 1], feeds["gate"][1, 4] = -0.0, 1e-42
    feeds["x"][1, 4] = 1e38
    same(proto, lower(proto), [feeds])
    feeds["gate"][0, 3] = np.nan
    same(proto, lower(proto), [feeds])


# ---- convolutions


STEPS: dict[str, Make] = {
    "norm": lambda g, x: norm(g, x, C),
    "relu": lambda g, x: g.op("Relu", x),
    "clip": lambda g, x: g.op("Clip", x, g.const(-0.5), g.const(0.5)),
    "clip from above": lambda g, x: g.op("Clip", x, "", g.const(0.5)),
    "scaled by channel": lambda g, x: g.op("Mul", x, g.weight("s", array(C, 1, 1))),
    "shifted by channel": lambda g, x: g.op("Sub", g.weight("s", array(1, C, 1, 1)), x),
    "slope": lambda g, x: g.op("PRelu", x, g.weight("s", array(C, 1, 1))),
    "largest": lambda g, x: g.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4),
    "mean": lambda g, x: g.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4),
    "all": lambda g, x: g.op("Relu", g.op("Add", norm(g, x, C), g.const([[[0.1]]]))),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_behind_a_convolution_go_with_it(step: str) -> None:
    def gate(g: GraphBuilder, y: str) -> str:
        return g.op("Mul", STEPS[step](g, y), flag(g))

    proto = selected(gate)
    lowered = lower(proto)
    inside = [r for r in lowered.report.nodes if r.lowering == "channels"]
    assert len(inside) > 1 and inside[0].op_type == "Conv"
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


@pytest.mark.parametrize(
    "step",
    [
        lambda g, y: g.op("Add", y, g.weight("table", array(C, SIZE, SIZE))),
        lambda g, y: g.op("Mul", y, g.input("z", np.float32, BATCH)),
        lambda g, y: g.op("Softmax", y, axis=1),
        lambda g, y: g.op("LRN", y, size=3),
        lambda g, y: g.op("CumSum", y, g.const(1, np.int64)),
        lambda g, y: cast(g, g.op("Greater", y, g.const(0.0))),
        lambda g, y: g.op("Mul", y, y),
        lambda g, y: g.op(
            "Mul", g.op("ReduceSum", y, g.ints(2, 3)), g.input("z", np.float32, BATCH)
        ),
        lambda g, y: g.op(
            "Mul",
            g.input("z", np.float32, BATCH),
            g.op("Unsqueeze", g.op("ReduceSum", y, g.ints(3), keepdims=0), g.ints(3)),
        ),
    ],
)
def test_other_steps_stay_behind(step: Make) -> None:
    proto = gated(lambda g, x: g.op("Mul", x, flag(g)), C)
    g = GraphBuilder("other")
    y = conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), C, C)
    g.output(g.op("Identity", step(g, y)), "y", np.float32, BATCH)
    proto = g.model()
    lowered = lower(proto)
    assert [r.op_type for r in lowered.report.nodes if r.lowering == "channels"] == ["Conv"]
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_a_step_that_repeats_an_image_stays_behind() -> None:
    def build(g: GraphBuilder) -> str:
        shape = (1, C, SIZE, SIZE)
        x = g.op("Mul", g.input("x", np.float32, shape), flag(g, shape=(1, C, 1, 1)))
        return g.op("Mul", conv(g, x, C, C), g.input("z", np.float32, ("batch", C, 1, 1)))

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert [r.op_type for r in lowered.report.nodes if r.lowering == "channels"] == ["Conv"]
    same(proto, lowered, [feeds_of(proto, d, n) for d in DENSITIES for n in (0, 1, 3)])


def test_the_last_step_whose_zeros_are_known_is_the_last() -> None:
    def shifted(g: GraphBuilder, y: str) -> str:
        return g.op("Add", g.op("Mul", y, flag(g)), g.weight("s", array(C, 1, 1)))

    proto = selected(shifted)
    lowered = lower(proto)
    inside = [r for r in lowered.report.nodes if r.lowering == "channels"]
    assert [r.op_type for r in inside] == ["Conv", "Mul"] and "' is 0 where" in inside[0].sparse
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_steps_that_run_packed_stay_behind() -> None:
    """Behind gated channels there is a product at places that a mask shows."""

    def build(g: GraphBuilder) -> str:
        y = conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), C, C)
        rows = g.op("Transpose", g.op("Relu", y), perm=[0, 2, 3, 1])
        product = g.op("MatMul", rows, g.weight("w", array(C, 64)))
        return g.op("Mul", product, g.input("seen", np.float32, ("batch", SIZE, SIZE, 1)))

    proto = built(build, ("batch", SIZE, SIZE, 64))
    lowered = lower(proto)
    found = {r.op_type: r.lowering for r in lowered.report.nodes}
    assert (found["Conv"], found["Relu"], found["MatMul"]) == ("channels", "packed", "packed")
    assert ifs(ir.serde.serialize_model(lowered.model))


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "no pads": {"pads": [0] * 4},
    "odd pads": {"pads": [0, 2, 1, 0]},
    "strides": {"strides": [2, 3]},
    "dilations": {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
    "same upper": {"auto_pad": "SAME_UPPER", "pads": None},
    "same lower": {"auto_pad": "SAME_LOWER", "strides": [2, 2], "pads": None},
    "valid": {"auto_pad": "VALID", "pads": None},
    "named kernel": {"kernel_shape": [3, 3]},
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_convolution(name: str) -> None:
    attributes = {"pads": [1] * 4, **ATTRIBUTES[name]}
    attributes = {k: v for k, v in attributes.items() if v is not None}

    def build(g: GraphBuilder) -> str:
        x = g.op("Mul", g.input("x", np.float32, BATCH), flag(g))
        y = g.op("Conv", x, g.weight("w", array(F, C, 3, 3)), **attributes)
        return g.op("Mul", y, g.input("gate2", np.float32, ("batch", F, 1, 1)))

    proto = built(build, ("batch", F, "h", "w"))
    lowered = lower(proto)
    assert records(lowered)[-1].sparse.count(" where ") == 2
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


@pytest.mark.parametrize("window", [(3,), (1,), (3, 2, 1)])
def test_convolutions_of_one_and_three_dimensions(window: tuple[int, ...]) -> None:
    ones = (1,) * len(window)

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, ("batch", C, *((SIZE,) * len(window))))
        x = g.op("Mul", x, flag(g, shape=("batch", C, *ones)))
        y = g.op("Conv", x, g.weight("w", array(F, C, *window)), g.weight("b", array(F, 1)[:, 0]))
        return g.op("Mul", y, g.input("gate2", np.bool_, (F, *ones)) and _as_float(g, "gate2"))

    def _as_float(g: GraphBuilder, name: str) -> str:
        return cast(g, name)

    proto = built(build, ("batch", F, *(SIZE - k + 1 for k in window)))
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_images_of_any_size() -> None:
    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, ("batch", C, "height", "width"))
        y = conv(g, g.op("Mul", x, flag(g)), F, C, strides=[2, 1])
        return g.op("Mul", y, g.input("gate2", np.float32, ("batch", F, 1, 1)))

    proto = built(build, ("batch", F, "h", "w"))
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    sizes = [(1, 1), (5, 9), (17, 4)]
    same(proto, lowered, [feeds_of(proto, 0.5, height=h, width=w) for h, w in sizes])


# ---- the choice


@pytest.mark.parametrize(("live", "side"), [(0, "then"), (6, "then"), (7, "else"), (8, "else")])
def test_few_live_channels_run_alone(live: int, side: str) -> None:
    """6 of 8 are three quarters, what a convolution by constant filters is faster by."""
    proto = gated(GATES["of channels"])
    lowered = lower(proto)
    feeds = feeds_of(proto, 0.0)
    feeds["gate"][C - live :] = 1.0
    for name in ("then", "else"):
        (y,) = session(poisoned(lowered, name)).run(None, feeds)
        assert np.isnan(y).all() == (name == side)


def test_both_branches_hold_only_what_they_need() -> None:
    proto = selected(lambda g, y: g.op("Mul", norm(g, y, C), flag(g)))
    found = branches(ir.serde.serialize_model(lower(proto).model))
    kinds = {side: [n.op_type for n in graph.node] for side, graph in found.items()}
    assert kinds["else_branch"] == ["Max", "Max", "Conv", "BatchNormalization", "Mul"]
    assert {"NonZero", "Conv", "Pad"} <= set(kinds["then_branch"])
    assert "Max" not in [n.op_type for n in proto.graph.node]


def test_a_result_keeps_its_name() -> None:
    """The convolution itself makes an output of the graph, and somebody else reads it too."""
    g = GraphBuilder("named")
    y = conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), C, C)
    g.output(y, "y", np.float32, BATCH)
    g.output(g.op("Neg", "y"), "z", np.float32, BATCH)
    proto = g.model()
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_inside_a_branch() -> None:
    """A convolution of a branch stays there, with all that it needs."""

    def branch(name: str, weight: Array) -> onnx.GraphProto:
        node = onnx.helper.make_node
        gate = node("Mul", ["x", "gate"], [f"{name}.x"])
        product = node("Conv", [f"{name}.x", f"{name}.w"], [f"{name}.y"], pads=[1] * 4)
        out = onnx.helper.make_tensor_value_info(f"{name}.y", 1, None)
        weights = [onnx.numpy_helper.from_array(weight, f"{name}.w")]
        return onnx.helper.make_graph([gate, product], name, [], [out], weights)

    g = GraphBuilder("branches")
    g.input("x", np.float32, BATCH)
    flag(g)
    g.input("choice", np.bool_, ())
    sides: dict[str, Any] = {"then_branch": branch("one", array(F, C, 3, 3, seed=1))}
    sides["else_branch"] = branch("other", array(F, C, 3, 3))
    g.output(g.op("If", "choice", **sides), "y", np.float32, ("batch", F, SIZE, SIZE))
    proto = g.model()
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"] * 2
    outer = ir.serde.serialize_model(lowered.model).graph.node
    assert "Conv" not in [n.op_type for n in outer]
    feeds = [feeds_of(proto, d) for d in DENSITIES]
    for each in feeds:
        for choice in (False, True):
            each["choice"] = np.array(choice)
            same(proto, lowered, [each])


# ---- what is left alone


def test_of_what_holds_no_zeros_only_the_first_reason_is_told() -> None:
    lowered = lower(gated(lambda g, x: g.op("Identity", x)))
    refusal = records(lowered)[0].refusal
    assert refusal is not None and refusal.reason == "every part of it is read"


def test_zeros_of_single_places_are_no_channels() -> None:
    proto = gated(lambda g, x: g.op("Relu", x))
    lowered = lower(proto)
    assert code_of(lowered) is Code.NO_LOWERING
    assert "single places" in str(records(lowered)[-1].refusal)
    assert not ifs(ir.serde.serialize_model(lowered.model))


def test_a_mask_of_images_or_places_is_none_of_channels() -> None:
    for shape in (("batch", 1, 1, 1), ("batch", 1, SIZE, SIZE)):
        proto = gated(lambda g, x, s=shape: g.op("Mul", x, flag(g, shape=s)))
        assert lowerings(lower(proto))[-1] != "channels"


def grouped(groups: int) -> onnx.ModelProto:
    def build(g: GraphBuilder) -> str:
        x = g.op("Mul", g.input("x", np.float32, BATCH), flag(g))
        return g.op("Conv", x, g.weight("w", array(C, C // groups, 3, 3)), group=groups)

    return built(build, ("batch", C, SIZE - 2, SIZE - 2))


@pytest.mark.parametrize("groups", [2, C])
def test_groups_have_no_axis_of_channels(groups: int) -> None:
    assert code_of(lower(grouped(groups))) is Code.AXIS_NOT_PIT


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_have_to_be_finite(bad: float) -> None:
    def build(g: GraphBuilder) -> str:
        x = g.op("Mul", g.input("x", np.float32, BATCH), flag(g))
        weight = array(F, C, 3, 3)
        weight[1, 2, 0, 0] = bad
        return g.op("Conv", x, g.weight("w", weight))

    proto = built(build, ("batch", F, SIZE - 2, SIZE - 2))
    lowered = lower(proto)
    assert code_of(lowered) is Code.NON_FINITE_WEIGHT
    same(proto, lowered, [feeds_of(proto, 0.2)])


def test_computed_weights_are_read_whole() -> None:
    def build(g: GraphBuilder) -> str:
        x = g.op("Mul", g.input("x", np.float32, BATCH), flag(g))
        return g.op("Conv", x, g.input("w", np.float32, (F, C, 3, 3)))

    lowered = lower(built(build, ("batch", F, SIZE - 2, SIZE - 2)))
    assert code_of(lowered) is Code.NO_LOWERING


def test_a_value_that_is_also_wanted_whole_keeps_its_filters() -> None:
    def build(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", np.float32, BATCH), C, C)
        return g.op("Add", g.op("Mul", y, flag(g)), y)

    assert lowerings(lower(built(build, BATCH))) == ["ordinary"]


def test_a_test_must_not_depend_on_what_is_overwritten() -> None:
    """The gate is computed from the filters that it lets nobody read."""

    def build(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", np.float32, BATCH), C, C)
        gate = g.op("Relu", g.op("GlobalAveragePool", y))
        z = g.op("Mul", y, gate)
        return conv(g, z, F, C)

    proto = built(build, ("batch", F, SIZE, SIZE))
    lowered = lower(proto)
    assert lowerings(lowered) == ["ordinary", "channels"]
    same(proto, lowered, [feeds_of(proto, 0.5)])


def test_what_is_overwritten_moves_no_test() -> None:
    """Only hidden channels of the first result decide about hidden channels of the second one: a
    dead fact, and yet not one to use where the second convolution asks that gate.
    """

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, BATCH)
        first = conv(g, x, C, C)
        inner = g.op("Relu", g.op("GlobalAveragePool", first))
        second = g.op("Mul", conv(g, x, C, C), inner)
        return g.op("Mul", g.op("Add", second, g.op("Neg", first)), flag(g))

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert lowerings(lowered) == ["ordinary", "channels"]
    first = records(lowered)[0]
    assert first.dead and first.refusal is not None and first.refusal.code is Code.JOINT
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


@pytest.mark.parametrize("first", ["Relu", "Unsqueeze"])
def test_a_test_that_packed_columns_move_is_not_asked(first: str) -> None:
    """Two gates. What the one hides of the other is not computed, but comes back as 0."""

    def build(g: GraphBuilder) -> str:
        columns = g.op(
            "MatMul", g.input("t", np.float32, ("batch", 64)), g.weight("w", array(64, C))
        )
        if first == "Relu":
            inner = g.op("Unsqueeze", g.op("Relu", columns), g.ints(2, 3))
        else:
            inner = g.op("Relu", g.op("Unsqueeze", columns, g.ints(2, 3)))
        x = g.op(
            "Mul", g.op("Mul", g.input("x", np.float32, BATCH), inner), flag(g, shape=(C, 1, 1))
        )
        return conv(g, x, F, C)

    lowered = lower(built(build, ("batch", F, SIZE, SIZE)))
    assert next(r.lowering for r in lowered.report.nodes if r.op_type == "MatMul") == "packed"
    assert records(lowered)[0].sparse == "operand 0 is 0 where gate[d1, 0, 0] == 0"


@pytest.mark.parametrize("relu", [False, True])
def test_a_result_that_the_body_of_a_loop_reads(relu: bool) -> None:
    def build(g: GraphBuilder) -> str:
        y = conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), C, C)
        y = g.op("Relu", y) if relu else y
        node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
        nodes = [node("Add", ["s", y], ["t"]), node("Identity", ["go"], ["on"])]
        inputs = [info("i", 7, []), info("go", 9, []), info("s", 1, None)]
        body = onnx.helper.make_graph(
            nodes, "body", inputs, [info("on", 9, []), info("t", 1, None)]
        )
        trips = g.input("trips", np.int64, ())
        return g.op("Loop", trips, "", g.input("z", np.float32, BATCH), body=body)

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    for n in (0, 2):
        same(proto, lowered, [{**feeds_of(proto, d), "trips": np.array(n)} for d in DENSITIES])


def test_two_values_that_hide_each_other() -> None:
    """x * y with a gate on either side: one of them may be overwritten, not both."""

    def build(g: GraphBuilder) -> str:
        x = g.input("x", np.float32, BATCH)
        a = g.op("Mul", conv(g, x, C, C), flag(g))
        b = g.op("Mul", conv(g, x, C, C), "gate")
        return g.op("Mul", conv(g, a, C, C), b)

    proto = built(build, BATCH)
    lowered = lower(proto)
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_a_division_by_what_is_overwritten() -> None:
    def build(g: GraphBuilder) -> str:
        y = conv(g, g.input("x", np.float32, BATCH), C, C)
        ratio = g.op("Div", g.input("z", np.float32, BATCH), y)
        return g.op("Where", flag(g, np.bool_), ratio, g.const(0.0))

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert code_of(lowered) is Code.NOT_TOTAL
    same(proto, lowered, [feeds_of(proto, 0.5)])


def test_of_a_divisor_only_channels_of_the_image_are_left_out() -> None:
    def build(g: GraphBuilder) -> str:
        y = conv(g, g.op("Mul", g.input("x", np.float32, BATCH), flag(g)), C, C)
        ratio = g.op("Div", g.input("z", np.float32, BATCH), y)
        return g.op("Where", g.input("gate2", np.bool_, (1, C, 1, 1)), ratio, g.const(0.0))

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert lowerings(lowered) == ["channels"]
    assert "unread" not in records(lowered)[0].sparse
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_the_sign_of_a_zero_is_computed_where_it_is_seen() -> None:
    """0 would be written where the product gives -0.0."""

    def build(g: GraphBuilder) -> str:
        hidden = g.op("Mul", conv(g, g.input("x", np.float32, BATCH), C, C), flag(g))
        negative = g.op("Less", g.op("Reciprocal", hidden), g.const(0.0))
        return g.op("Where", negative, g.const(1.0), g.input("z", np.float32, BATCH))

    proto = built(build, BATCH)
    lowered = lower(proto)
    assert lowerings(lowered) != ["channels"]
    same(proto, lowered, [feeds_of(proto, d) for d in DENSITIES])


def test_old_operator_sets_are_left_alone() -> None:
    proto = gated(GATES["float"])
    proto.opset_import[0].version = 12
    lowered = lower(proto)
    assert code_of(lowered) is Code.NO_LOWERING
    assert "operator set 12" in str(records(lowered)[-1].refusal)


def test_without_prices_everything_stays_dense() -> None:
    lowered = lower(gated(GATES["float"]), sparse=False)
    assert lowerings(lowered) == ["ordinary"]


# ---- prices


def sized(
    channels: int, filters: int, size: int, window: int = 3, batch: int | str = "batch"
) -> onnx.ModelProto:
    g = GraphBuilder("sized")
    x = g.input("x", np.float32, (batch, channels, size, size))
    x = g.op("Mul", x, g.input("gate", np.float32, (batch, channels, 1, 1)))
    weight = g.weight("w", np.zeros((filters, channels, window, window), np.float32))
    y = g.op("Conv", x, weight, pads=[window // 2] * 4)
    y = g.op("Mul", y, g.input("gate2", np.float32, (batch, filters, 1, 1)))
    g.output(y, "y", np.float32, (batch, filters, size, size))
    return g.model()


@pytest.mark.parametrize(
    ("model", "pays"),
    [
        ((128, 128, 28), True),
        ((64, 64, 28), False),
        ((256, 256, 14), True),
        ((16, 16, 28), False),
        ((64, 64, 7), False),
        ((128, 128, 14, 3, 8), True),
        ((512, 512, 7), False),
        ((512, 512, 28, 1), False),
        ((1024, 1024, 14, 1), True),
        ((256, 4, 28), False),
    ],
)
def test_only_large_convolutions_choose(
    model: tuple[Any, ...], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    lowered = lower(sized(*model))
    assert code_of(lowered) is (None if pays else Code.NO_GAIN)


@pytest.mark.parametrize(("look", "code"), [(1 / 2, None), (9 / 16, Code.NO_GAIN)])
def test_a_look_may_take_its_share_of_the_work(
    look: float, code: Code | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = 2 * F * C * SIZE**2 * 3**2
    prices = replace(targets.CPU.channels, look=int(look * work), loss=1 / 2)
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, channels=prices))
    assert code_of(lower(gated(GATES["float"]))) is code


def test_a_convolution_between_two_others_keeps_their_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A choice costs a change of layout where no gate does: only large ones are worth it."""
    monkeypatch.undo()

    def model(channels: int) -> onnx.ModelProto:
        g = GraphBuilder("layout")
        x = g.input("x", np.float32, (1, channels, 28, 28))
        x = g.op("Mul", x, g.input("gate", np.float32, (1, channels, 1, 1)))
        for k in range(2):
            weight = g.weight(f"w{k}", np.zeros((channels, channels, 3, 3), np.float32))
            x = g.op("Relu", g.op("Conv", x, weight, pads=[1] * 4))
        g.output(x, "y", np.float32, (1, channels, 28, 28))
        return g.model()

    assert lowerings(lower(model(128))) == ["ordinary"] * 2
    assert lowerings(lower(model(160))) == ["channels", "ordinary"]


# ---- the whole way
