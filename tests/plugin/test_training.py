"""Gradients and training steps as users make them: options, errors, optimizers, checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.errors import PitcError
from tests.gradient_check import runtime

Arrays = dict[str, Any]
LOSS = pitc.Loss("cross_entropy", "logits")


def mlp(dtype: Any = np.float32, opset: int = 20) -> onnx.ModelProto:
    """Scores of 4 classes: x, w1, b1, relu, w2, b2."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(8, 16)).astype(dtype) / 3,
        "b1": np.zeros(16, dtype),
        "w2": rng.normal(size=(16, 4)).astype(dtype) / 3,
        "b2": np.zeros(4, dtype),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["c"]),
        helper.make_node("Add", ["c", "b2"], ["logits"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", kind, ["n", 8])],
        [helper.make_tensor_value_info("logits", kind, ["n", 4])],
        [numpy_helper.from_array(x, name) for name, x in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def weights_of(model: onnx.ModelProto) -> Arrays:
    return {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}


def batch(seed: int, dtype: Any = np.float32) -> Arrays:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 12)
    labels[::5] = -100
    return {"x": rng.normal(size=(12, 8)).astype(dtype), "labels": labels}


class Reference:
    """The optimizers as their definitions say, in float64."""

    def __init__(self, name: str, weights: Arrays, options: Arrays) -> None:
        self.name, self.options = name, options
        self.weights = {k: v.astype(np.float64) for k, v in weights.items()}
        self.first = {k: np.zeros_like(v) for k, v in self.weights.items()}
        self.second = {k: np.zeros_like(v) for k, v in self.weights.items()}
        self.count = 0

    def step(self, gradients: Arrays, rate: float) -> None:
        self.count += 1
        clip = self.options.get("clip")
        if clip is not None:
            norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
            gradients = {k: g * min(1, clip / (norm + 1e-6)) for k, g in gradients.items()}
        for k, g in gradients.items():
            decay = 0.0 if k in self.options.get("no_decay", ()) else self.options.get("decay", 0.0)
            self._update(k, g.astype(np.float64), rate, decay)

    def _update(self, k: str, g: Any, rate: float, decay: float) -> None:
        w = self.weights[k]
        if self.name == "adamw":
            w = w * (1 - rate * decay)
        else:
            g = g + decay * w
        if self.name == "sgd":
            self.weights[k] = w - rate * g
        elif self.name == "momentum":
            self.first[k] = self.options.get("momentum", 0.9) * self.first[k] + g
            self.weights[k] = w - rate * self.first[k]
        else:
            self.first[k] = 0.9 * self.first[k] + 0.1 * g
            self.second[k] = 0.999 * self.second[k] + 0.001 * g * g
            mean = self.first[k] / (1 - 0.9**self.count)
            size = np.sqrt(self.second[k] / (1 - 0.999**self.count)) + 1e-8
            self.weights[k] = w - rate * mean / size


def gradients_at(model: onnx.ModelProto, weights: Arrays, feeds: Arrays) -> Arrays:
    """The loss and its gradients by ONNX Runtime, at other weights."""
    made = ir.to_proto(pitc.gradient(model, LOSS))
    fed = {k: v.astype(np.float32) for k, v in weights.items()}
    names = [x.name for x in made.graph.output]
    session = ort.InferenceSession(made.SerializeToString())
    return dict(zip(names, session.run(None, {**feeds, **fed}), strict=True))


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {}),
        ("sgd", {"decay": 0.05, "no_decay": ["b1", "b2"]}),
        ("momentum", {"momentum": 0.7, "decay": 0.01}),
        ("adam", {"decay": 0.05}),
        ("adamw", {"decay": 0.1, "no_decay": ["b1"], "clip": 0.3}),
    ],
)
def test_optimizers_follow_their_definitions(optimizer: str, options: Arrays) -> None:
    model = mlp()
    step = pitc.train_step(model, LOSS, optimizer=optimizer, learning_rate=0.5, **options)
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    reference = Reference(optimizer, weights_of(model), options)
    for k in range(12):
        rate = 0.05 / (1 + k)  # a schedule: the default is never used
        feeds = batch(k)
        loss = trainer.step({**feeds, "learning_rate": np.float32(rate)})["loss"]
        found = gradients_at(model, reference.weights, feeds)
        assert abs(loss - found["loss"]) < 2e-5
        reference.step({name: found[f"grad.{name}"] for name in reference.weights}, rate)
    for name, want in reference.weights.items():
        np.testing.assert_allclose(trainer.get()[name], want, rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_weights_of_float16_are_updated_in_float32(optimizer: str) -> None:
    """Adam's epsilon is 0 in float16, and so are squares of gradients."""
    half = mlp(np.float16)
    kept = {name: x.copy() for name, x in weights_of(half).items()}
    kept["w1"][:, 3] = 0
    kept["b1"][3] = -1  # a unit that never fires: its gradients are 0
    single = mlp()
    for model in (half, single):
        for x in model.graph.initializer:
            numbers = kept[x.name].astype(numpy_helper.to_array(x).dtype)
            x.CopyFrom(numpy_helper.from_array(numbers, x.name))
    options: Arrays = {"optimizer": optimizer, "learning_rate": 2e-3, "clip": 1.0}
    found = []
    for model, scaled in ((single, False), (half, False), (half, True)):
        step = ir.to_proto(pitc.train_step(model, LOSS, loss_scale=scaled, **options))
        trainer = pitc.Trainer(ort.InferenceSession(step.SerializeToString()))
        dtype = numpy_helper.to_array(model.graph.initializer[0]).dtype
        scale = {"loss_scale": np.float32(1024)} if scaled else {}
        feeds = batch(0, np.float16)
        made = trainer.step({**feeds, "x": feeds["x"].astype(dtype), **scale})
        assert not made.get("skipped")
        found.append(trainer.get())
    want, *others = found
    for name in kept:
        for got in others:
            assert got[name].dtype == np.float16
            # a weight is rounded once, and the gradient on its way
            near = 2.0**-10 * np.abs(want[name]) + 2e-2 * 2e-3
            assert (np.abs(got[name] - want[name]) <= near).all(), (optimizer, name)


def test_the_default_rate_is_the_one_that_was_asked_for() -> None:
    model, feeds = mlp(), batch(1)
    step = pitc.train_step(model, LOSS, ["b2"], optimizer="sgd", learning_rate=0.25)
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    trainer.step(feeds)
    g = gradients_at(model, weights_of(model), feeds)["grad.b2"]
    np.testing.assert_allclose(trainer.get()["b2"], -0.25 * g, rtol=1e-5)


def test_a_step_that_overflows_is_left_out() -> None:
    step = pitc.train_step(mlp(), LOSS, optimizer="adam", loss_scale=True)
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    plain = pitc.Trainer(
        pitc.compile(pitc.train_step(mlp(), LOSS, optimizer="adam"), suggest=False)
    )
    assert not trainer.step({**batch(0), "loss_scale": np.float32(1024)})["skipped"]
    plain.step(batch(0))
    for name, want in plain.get().items():
        np.testing.assert_allclose(trainer.get()[name], want, rtol=1e-5, atol=1e-7)
    before = trainer.get()
    found = trainer.step({**batch(1), "loss_scale": np.float32(np.inf)})
    assert found["skipped"] and np.isfinite(found["loss"])
    for name, x in before.items():
        np.testing.assert_array_equal(trainer.get()[name], x)
    assert not trainer.step(batch(1))["skipped"]
    assert trainer.get()["step"] == before["step"] + 1


def test_masks_are_inputs_that_may_change() -> None:
    step = pitc.train_step(mlp(), LOSS, optimizer="sgd", learning_rate=0.1, masks=["w*"])
    trainer = pitc.Trainer(pitc.compile(step, suggest=False))
    start = weights_of(mlp())["w1"]
    for k in range(3):
        mask = np.arange(8 * 16).reshape(8, 16) % 3 == k
        feeds = {**batch(k), "mask.w1": mask, "mask.w2": np.ones((16, 4), bool)}
        trainer.step(feeds)
        now = trainer.get()["w1"]
        np.testing.assert_array_equal(now[mask == 0], start[mask == 0])
        assert (now[mask == 1] != start[mask == 1]).any()
        start = now


def test_a_checkpoint_goes_on_where_it_was(tmp_path: Path) -> None:
    step = pitc.train_step(mlp(), LOSS, keep=["logits"])
    compiled = pitc.compile(step, suggest=False)
    first = pitc.Trainer(compiled)
    with pytest.raises(PitcError, match="before the first step"):
        first.save(tmp_path / "early.npz")
    first.step(batch(0))
    first.save(tmp_path / "c.npz")
    with pytest.raises(PitcError, match=r"does not end in .npz"):
        first.save(tmp_path / "c.bin")
    want = first.step(batch(1))
    second = pitc.Trainer(compiled)
    second.load(tmp_path / "c.npz")
    assert second.get()["step"].shape == () and second.get()["step"] == 1
    found = second.step(batch(1))
    assert sorted(found) == ["logits", "loss"]
    for name, x in want.items():
        np.testing.assert_array_equal(found[name], x)
    np.savez(tmp_path / "other.npz", w1=np.zeros((8, 16), np.float32))
    (tmp_path / "half.npz").write_bytes((tmp_path / "c.npz").read_bytes()[:100])
    for file, message in (
        ("other.npz", "the checkpoint has no 'step'"),
        ("half.npz", "cannot be read"),
        ("none.npz", "cannot be read: No such file"),
    ):
        with pytest.raises(PitcError, match=message):
            second.load(tmp_path / file)
    assert sorted(second.get()) == sorted(first.get())


def test_what_a_trainer_refuses() -> None:
    trainer = pitc.Trainer(pitc.compile(pitc.train_step(mlp(), LOSS), suggest=False))
    with pytest.raises(PitcError, match="inputs are missing: labels"):
        trainer.step({"x": batch(0)["x"]})
    with pytest.raises(PitcError, match="'w1' is kept by the trainer"):
        trainer.step({**batch(0), "w1": np.zeros((8, 16), np.float32)})
    with pytest.raises(PitcError, match="trains no 'x'"):
        trainer.put({"x": 1})
    with pytest.raises(PitcError, match="no training step"):
        pitc.Trainer(pitc.compile(mlp(), suggest=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "lion"}, "no optimizer is named 'lion' .there are sgd"),
        ({"optimizer": "sgd", "momentum": 0.9}, "sgd has no setting 'momentum' .it has none"),
        ({"clip": 0.0}, "clip is 0.0, expected a positive number"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"decay": -0.1}, "decay is -0.1, expected a number that is finite and not negative"),
        ({"decay": float("inf")}, "decay is inf"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast', expected a number"),
        ({"learning_rate": True}, "learning_rate is True, expected a number"),
        ({"beta1": 1.0}, "beta1 is 1.0, expected a number from 0 on, below 1"),
        ({"no_decay": ["bias*"]}, "no_decay names 'bias.', which is no trained weight"),
        ({"no_decay": "b*"}, "no_decay is the text 'b.', not a list of names"),
        ({"masks": "w1"}, "masks is the text 'w1'"),
        ({"keep": "logits"}, "keep is the text 'logits'"),
        ({"wrt": ["x"]}, "'x' is an input, no weight"),
        ({"masks": ["w3"]}, "no weight 'w3'"),
        ({"masks": ["w1"], "wrt": ["w2"]}, "'w1' has a mask, but is not trained"),
    ],
)
def test_what_a_training_step_refuses(arguments: Arrays, message: str) -> None:
    with pytest.raises(PitcError, match=message):
        pitc.train_step(mlp(), LOSS, **arguments)


@pytest.mark.parametrize(
    ("loss", "wrt", "message"),
    [
        ("logits", None, r"the loss 'logits' is not one number: its shape is \[n, 4\]"),
        ("los", None, "the model has no value 'los'"),
        (LOSS, ["w3"], "no input or weight 'w3' .there are w2, w1"),
        (LOSS, ["labels"], "'labels' is of type int64: only floats"),
        (LOSS, "w1", "wrt is the text 'w1'"),
        (["logits"], None, "loss is a list, no name of a value and no pitc.Loss"),
        (LOSS, [], "no weight of floats"),
        (pitc.Loss("mae", "logits"), None, "no loss is named 'mae' .losses: cross_entropy"),
        (pitc.Loss("mse", "logit"), None, "the model has no value 'logit' .there are logits"),
        (pitc.Loss("mse", "logits", labels="x"), None, "has a value 'x' already"),
        (pitc.Loss("mse", "logits", weights="b2"), None, "no classes, so no weights"),
        (pitc.Loss("cross_entropy", "logits", mask="x"), None, "the mask 'x' is of shape"),
        (
            pitc.Loss("cross_entropy", "logits", mask="x", ignore_index=None),
            None,
            "a mask needs an ignore_index",
        ),
        (pitc.Loss("cross_entropy", "b2"), None, "are no scores"),
    ],
)
def test_what_a_gradient_refuses(loss: Any, wrt: Any, message: str) -> None:
    with pytest.raises(PitcError, match=message):
        pitc.gradient(mlp(), loss, wrt)


def test_the_model_is_kept_and_written_whole(tmp_path: Path) -> None:
    model = mlp()
    before, file = model.SerializeToString(), tmp_path / "g.onnx"
    made = pitc.gradient(model, LOSS, ["w*"], keep=["logits"], output=file)
    assert model.SerializeToString() == before
    names = [x.name for x in onnx.load(file).graph.output]
    assert names == [x.name for x in made.graph.outputs]
    assert names == ["loss", "logits", "grad.w1", "grad.w2"]
    with pytest.raises(PitcError, match="the output exists"):
        pitc.gradient(model, LOSS, output=file)
    pitc.gradient(model, LOSS, output=file, force=True)
    assert len(onnx.load(file).graph.output) == 5


def test_labels_that_do_not_count() -> None:
    """Of no label at all the loss is NaN, as ONNX says, and the gradient 0, as PyTorch says."""
    model, feeds = mlp(), batch(0)
    found = gradients_at(model, weights_of(model), {**feeds, "labels": np.full(12, -100)})
    assert np.isnan(found.pop("loss"))
    assert all((g == 0).all() for g in found.values())
    some = gradients_at(model, weights_of(model), feeds)
    live = feeds["labels"] != -100
    fewer = {"x": feeds["x"][live], "labels": feeds["labels"][live]}
    for name, g in gradients_at(model, weights_of(model), fewer).items():
        np.testing.assert_allclose(some[name], g, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("n", [0, 1])
def test_batches_of_none_and_of_one(n: int) -> None:
    made = ir.to_proto(pitc.gradient(mlp(), pitc.Loss("mse", "logits")))
    x, labels = np.ones((n, 8), np.float32), np.ones((n, 4), np.float32)
    loss, *gradients = runtime(made, {"x": x, "labels": labels})
    assert np.isfinite(loss)
    assert all(np.isfinite(g).all() and (g.any() or n == 0) for g in gradients[2:])
    shapes = [w.shape for w in weights_of(mlp()).values()]
    assert [g.shape for g in gradients] == shapes


@pytest.mark.parametrize("kind", ["mse", "bce", "bce_with_logits", "nll"])
@pytest.mark.parametrize("masked", [False, True])
def test_other_losses(kind: str, masked: bool) -> None:
    """Against differences in float64; ONNX Runtime has Softplus in float32 only."""
    if kind == "nll" and masked:
        return
    single = kind == "bce_with_logits"
    dtype, width, near = (np.float32, 1e-2, 2e-3) if single else (np.float64, 1e-5, 1e-4)
    model = mlp(dtype)
    graph, scores = model.graph, "logits"
    if kind == "bce":
        graph.node.append(helper.make_node("Sigmoid", ["logits"], ["p"]))
        scores = "p"
    if kind == "nll":
        graph.node.append(helper.make_node("LogSoftmax", ["logits"], ["p"]))
        scores = "p"
    rng = np.random.default_rng(2)
    feeds: Arrays = {"x": rng.normal(size=(5, 8)).astype(dtype)}
    chances = rng.random((5, 4)).astype(dtype)
    feeds["labels"] = rng.integers(0, 4, 5) if kind == "nll" else chances
    if masked:
        graph.input.append(helper.make_tensor_value_info("counts", TensorProto.INT64, ["n", 1]))
        feeds["counts"] = np.array([1, 0, 2, 0, 1])[:, None]
    loss = pitc.Loss(kind, scores, mask="counts" if masked else None)
    made = ir.to_proto(pitc.gradient(model, loss, ["b2"]))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(made.SerializeToString(), options)

    def value(b2: Any) -> tuple[float, Any]:
        total, g = map(np.asarray, session.run(None, {**feeds, "b2": b2}))
        return float(total), g

    start = rng.normal(size=4).astype(dtype)
    total, g = value(start)
    logits = session_scores(model, feeds["x"], start)
    np.testing.assert_allclose(total, by_hand(kind, logits, feeds), rtol=1e-5)
    for k in range(4):
        step = np.eye(4, dtype=dtype)[k] * dtype(width)
        difference = (value(start + step)[0] - value(start - step)[0]) / (2 * width)
        np.testing.assert_allclose(g[k], difference, rtol=near, atol=near / 100)


def test_logits_of_zero_have_a_slope() -> None:
    """A half less the label, not the slope of one side of a corner."""
    made = ir.to_proto(pitc.gradient(mlp(), pitc.Loss("bce_with_logits", "logits"), ["b2"]))
    x, labels = np.zeros((1, 8), np.float32), np.array([[0, 1, 0.5, 0.25]], np.float32)
    np.testing.assert_allclose(runtime(made, {"x": x, "labels": labels})[1], (0.5 - labels[0]) / 4)


def session_scores(model: onnx.ModelProto, x: Any, b2: Any) -> Any:
    w = weights_of(model)
    return np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"] + b2


def by_hand(kind: str, logits: Any, feeds: Arrays) -> Any:
    """The loss by its definition."""
    t, counts = feeds["labels"], feeds.get("counts", 1.0)
    if kind == "nll":
        chances = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return -chances[np.arange(len(t)), t].mean()
    p = 1 / (1 + np.exp(-logits))
    each = (logits - t) ** 2 if kind == "mse" else -(t * np.log(p) + (1 - t) * np.log(1 - p))
    counts = np.broadcast_to(counts, each.shape)
    return (each * counts).sum() / counts.sum()


def test_old_operator_sets_are_refused() -> None:
    with pytest.raises(PitcError, match="operator set 11 is too old for gradients"):
        pitc.gradient(mlp(opset=11), "logits")


def test_the_gradient_of_a_gradient() -> None:
    """Of sum(x ** 3) twice: 6 * x."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Mul", ["a", "x"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["loss"], keepdims=0),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "cubes",
        [info("x", TensorProto.DOUBLE, ["n"])],
        [info("loss", TensorProto.DOUBLE, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    once = ir.to_proto(pitc.gradient(model, "loss", ["x"]))
    once.graph.node.append(helper.make_node("ReduceSum", ["grad.x"], ["total"], keepdims=0))
    once.graph.output.append(info("total", TensorProto.DOUBLE, []))
    twice = ir.to_proto(pitc.gradient(once, "total", ["x"]))
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(runtime(twice, {"x": x})[1], 6 * x)
