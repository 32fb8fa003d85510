"""Names of a model that trains: those that are taken, and what names and patterns choose."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.errors import UsageError
from tests.gradient_check import runtime

FLOAT = TensorProto.FLOAT
OPTIONS: dict[str, Any] = {"loss_scale": True, "masks": ["w"]}


def model(*, weight: str = "w", value: str = "a", feed: str = "x") -> onnx.ModelProto:
    """loss = sum(clip(x @ w, 0, 6) * scale + floor(steps)), sizes 3 and 2."""
    nodes = [
        helper.make_node("MatMul", [feed, weight], [value]),
        helper.make_node("Clip", [value, "low", "high"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        helper.make_node("Floor", ["steps"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("ReduceSum", ["e"], ["loss"], keepdims=0),
    ]
    numbers = {
        weight: np.arange(6).reshape(3, 2) / 6,
        "low": 0,
        "high": 6,
        "scale": 0.5,
        "steps": np.ones(2),
    }
    graph = helper.make_graph(
        nodes,
        "named",
        [helper.make_tensor_value_info(n, FLOAT, ["n", 3]) for n in (feed, "unread")],
        [helper.make_tensor_value_info("loss", FLOAT, [])],
        [numpy_helper.from_array(np.asarray(x, np.float32), n) for n, x in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def outputs(made: ir.Model) -> list[str]:
    return [x.name or "" for x in made.graph.outputs]


@pytest.mark.parametrize("place", ["value", "feed"])
@pytest.mark.parametrize(
    "name",
    ["step", "learning_rate", "loss_scale", "skipped", "mean.w", "next.w", "next.mean.w", "mask.w"],
)
def test_a_name_that_is_taken(name: str, place: str) -> None:
    with pytest.raises(UsageError, match=f"value '{name}' already .* rename the value"):
        pitc.train_step(model(**{place: name}), "loss", ["w"], **OPTIONS)


@pytest.mark.parametrize("name", ["step", "learning_rate", "loss_scale", "skipped"])
def test_a_weight_whose_name_is_taken(name: str) -> None:
    with pytest.raises(UsageError, match=f"value '{name}' already"):
        pitc.train_step(model(weight=name), "loss", [name], loss_scale=True)


def test_what_is_there_twice() -> None:
    once = pitc.gradient(model(), "loss", masks=["w"])
    with pytest.raises(UsageError, match=r"value 'mask.w' already .the mask of 'w' would have"):
        pitc.gradient(once, "loss", masks=["w"])
    with pytest.raises(UsageError, match="is a training step already"):
        pitc.train_step(pitc.train_step(model(), "loss"), "loss")


@pytest.mark.parametrize("name", ["matmul", "cast", "mul", "w.grad"])
def test_names_of_new_nodes_give_way(name: str) -> None:
    """To those of what callers know: a weight's gradient, its mask, labels."""
    made = pitc.gradient(model(weight=name), "loss", masks=[name])
    assert outputs(made) == ["loss", f"grad.{name}"]
    onnx.checker.check_model(ir.to_proto(made))
    loss = pitc.Loss("mse", "e", labels="loss.mul")
    onnx.checker.check_model(ir.to_proto(pitc.gradient(model(), loss)))


def test_weights_that_are_inputs_are_weights() -> None:
    """As old exporters write them, and gradients: they have a default."""
    old = model()
    for x in old.graph.initializer:
        old.graph.input.append(helper.make_tensor_value_info(x.name, FLOAT, x.dims))
    feeds = {n: np.ones((4, 3), np.float32) for n in ("x", "unread")}
    want = runtime(ir.to_proto(pitc.gradient(model(), "loss")), feeds)
    made = pitc.gradient(old, "loss")
    assert outputs(made) == ["loss", "grad.w"]
    assert all(map(np.array_equal, runtime(ir.to_proto(made), feeds), want))
    assert outputs(pitc.gradient(made, "loss")) == ["loss", "grad.w.2"]
    for dim in old.graph.input[2].type.tensor_type.shape.dim:
        dim.dim_param = "size"  # whatever they declare, numbers have a shape
    step = pitc.train_step(old, "loss")
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    trainer.step(feeds)
    assert trainer.get()["mean.w"].shape == (3, 2)
    with pytest.raises(UsageError, match=r"'w': expected shape \[3, 2\], got \[4, 2\]"):
        trainer.put({"w": np.ones((4, 2), np.float32)})


@pytest.mark.parametrize(
    ("wrt", "found"),
    [
        (None, ["w"]),
        (["*"], ["x", "w", "scale"]),
        (["s*"], ["scale"]),
        (["?", "*e"], ["x", "w", "scale"]),
    ],
)
def test_a_pattern_takes_what_has_a_derivative(wrt: Any, found: list[str]) -> None:
    assert outputs(pitc.gradient(model(), "loss", wrt)) == ["loss", *(f"grad.{x}" for x in found)]


def test_a_pattern_takes_the_weights_of_a_step() -> None:
    """Not its inputs, the factor of its loss, nor the constants of a loss that is added."""
    loss = pitc.Loss("bce", "e")
    made = pitc.train_step(model(), loss, ["*"], optimizer="sgd", loss_scale=True)
    assert outputs(made) == ["loss.2", "skipped", "next.w", "next.scale"]
    onnx.checker.check_model(ir.to_proto(made))


@pytest.mark.parametrize(
    ("wrt", "text"),
    [
        (["w", "steps"], "does not depend on 'steps' by a derivative"),
        (["unread"], "does not depend on 'unread' by a derivative"),
        (["st*"], "depends on no weight of floats"),
        (["v*"], r"no input or weight 'v\*'"),
    ],
)
def test_what_has_no_derivative(wrt: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        pitc.gradient(model(), "loss", wrt)


def test_an_operand_without_a_derivative_by_its_name() -> None:
    with pytest.raises(pitc.PitcError, match="no gradient of Clip: its input 1 has no derivative"):
        pitc.gradient(model(), "loss", ["low"])
