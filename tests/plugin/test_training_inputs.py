"""Training on inputs that are unusual or wrong: right, or refused by a message that says why."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import pitc
from models.graph import GraphBuilder
from pitc.errors import UsageError
from tests.runtime_support import quiet_options

Arrays = dict[str, Any]
W, F, V, L = 128, 256, 40, 5
UP, DOWN = "mask.up", "mask.down"


def two_losses() -> onnx.ModelProto:
    """Of labels of tokens, and of the size of their rows; and the sum of both."""
    rng, g = np.random.default_rng(0), GraphBuilder("losses", 18)
    ids, mask = (g.input(n, np.int64, ("batch", "sequence")) for n in ("ids", "mask"))
    g.input("labels", np.int64, ("batch", "sequence"))

    def drawn(name: str, *shape: int) -> str:
        return g.weight(name, rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    x = g.op("Gather", drawn("words", V, W), ids, axis=0)
    h = g.op("Relu", g.op("Add", g.op("MatMul", x, drawn("up", W, F)), drawn("bias", F)))
    x = g.op("Add", x, g.op("MatMul", h, drawn("down", F, W)))
    rows = g.op("Reshape", g.op("MatMul", x, drawn("head", W, L)), g.ints(-1, L))
    labels = g.op("Reshape", "labels", g.ints(-1))
    first = g.op("SoftmaxCrossEntropyLoss", rows, labels, ignore_index=-100)
    real = g.op("Cast", g.op("Unsqueeze", mask, g.ints(2)), to=TensorProto.FLOAT)
    second = g.op("ReduceSum", g.op("Mul", g.op("Mul", x, x), real), keepdims=0)
    total = g.op("Add", first, second)
    for value, name in ((first, "first"), (second, "second"), (total, "total")):
        g.output(value, name, np.float32, ())
    return g.model()


def batch(lengths: list[int], sequence: int = 9, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    mask = (np.arange(sequence) < np.array(lengths, int)[:, None]).astype(np.int64)
    labels = np.where(mask == 1, rng.integers(0, L, mask.shape), -100)
    return {"ids": rng.integers(1, V, mask.shape) * mask, "mask": mask, "labels": labels}


RAGGED = batch([7, 0, 3])


def masks_of(density: float, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {UP: rng.random((W, F)) < density, DOWN: rng.random((F, W)) < density}


class Both:
    """A graph as ONNX Runtime and as pitc run it."""

    def __init__(self, made: ir.Model) -> None:
        self.plain = ort.InferenceSession(ir.to_proto(made).SerializeToString(), quiet_options())
        self.compiled = pitc.compile(made, padding="mask", suggest=False)
        self.names = [x.name for x in self.plain.get_outputs()]

    def check(self, given: Arrays) -> Arrays:
        """The same numbers, infinities and NaN."""
        got = self.compiled.run(given)
        for name, x in zip(self.names, self.plain.run(self.names, given), strict=True):
            x, y = np.asarray(x), got[name]
            finite = np.isfinite(x)
            assert x.shape == y.shape and np.array_equal(finite, np.isfinite(y)), name
            assert np.array_equal(x[~finite], y[~finite], equal_nan=True), name
            near = 1e-5 * np.abs(x[finite]).max(initial=0)
            assert np.abs(x[finite] - y[finite]).max(initial=0) <= near, name
        return got


@pytest.fixture(name="masked", scope="module")
def _masked() -> Iterator[Both]:
    yield Both(pitc.gradient(two_losses(), "first", masks=["up", "down"]))


@pytest.mark.parametrize(
    ("loss", "keep"), [("total", ()), ("first", ("second", "up")), ("second", ("first", "total"))]
)
def test_a_graph_of_two_losses(loss: str, keep: tuple[str, ...]) -> None:
    """And of a weight that is an output."""
    both = Both(pitc.gradient(two_losses(), loss, keep=keep))
    assert both.names[: 1 + len(keep)] == [loss, *keep]
    both.check(RAGGED)


def test_gradients_of_a_sum_are_the_sum_of_gradients() -> None:
    found = [Both(pitc.gradient(two_losses(), x, ["down"])) for x in ("first", "second", "total")]
    first, second, total = (both.check(RAGGED)["grad.down"] for both in found)
    np.testing.assert_allclose(total, first + second, rtol=1e-5, atol=1e-5 * np.abs(total).max())


def test_a_graph_with_gradients_gets_others_beside_them() -> None:
    once = pitc.gradient(two_losses(), "first", keep=["second"])
    both = Both(pitc.gradient(once, "second", ["up", "down"], keep=["first", "grad.up"]))
    assert both.names == ["second", "first", "grad.up", "grad.up.2", "grad.down.2"]
    got = both.check(RAGGED)
    want = Both(pitc.gradient(two_losses(), "first")).check(RAGGED)
    np.testing.assert_allclose(got["grad.up"], want["grad.up"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("lengths", [[7, 0, 3], [9], [1], [0, 0], []])
def test_masks_and_batches_of_all_kinds(masked: Both, density: float, lengths: list[int]) -> None:
    given = {**batch(lengths), **masks_of(density)}
    got = masked.check(given)
    assert not got["grad.up"][~given[UP]].any()


@pytest.mark.parametrize("sequence", [0, 1])
@pytest.mark.parametrize("lengths", [[1], [1, 0], []])
def test_sequences_of_none_and_of_one(masked: Both, lengths: list[int], sequence: int) -> None:
    masked.check({**batch(lengths, sequence), **masks_of(0.5)})


DEAD = RAGGED["mask"] == 0


@pytest.mark.parametrize(
    "labels",
    [
        np.full((3, 9), -100),
        np.where(DEAD, 2, RAGGED["labels"]),
        np.where(DEAD, -1, RAGGED["labels"]),
        np.where(np.arange(9) % 2, -100, np.where(DEAD, 1, RAGGED["labels"])),
    ],
    ids=["none counts", "padding counts", "padding counts from the end", "some count"],
)
def test_labels_of_padding_and_of_none(masked: Both, labels: Any) -> None:
    """Where none counts, the loss is NaN and gradients are 0."""
    got = masked.check({**RAGGED, "labels": labels, **masks_of(0.5)})
    if (labels == -100).all():
        assert np.isnan(got["first"]) and not any(got[x].any() for x in masked.names[1:])


WRONG = pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("labels", np.full((3, 9), L), "Out of range"),
        ("labels", np.where(DEAD, -L - 1, 0), "Out of range"),
        ("labels", RAGGED["labels"][:, :8], "'sequence' is 9 in 'ids' and 8 in 'labels'"),
        ("labels", RAGGED["labels"].astype(np.int32), "'labels': expected int64, got int32"),
        ("ids", np.full((3, 9), V), "idx=40 must be within"),
        ("mask", RAGGED["mask"].astype(bool), "'mask': expected int64, got bool"),
        (UP, np.ones((W, F), np.float32), f"'{UP}': expected bool, got float32"),
        (UP, np.ones((1, F), bool), rf"'{UP}': expected shape \[128, 256\], got \[1, 256\]"),
        ("up", np.zeros((W, F), np.float16), "'up': expected float32, got float16"),
        ("up", np.zeros((W, F)), "'up': expected float32, got float64"),
        ("up", np.zeros((F, W), np.float32), r"'up': expected shape \[128, 256\]"),
        ("other", np.zeros(3), "input 'other' is not of the model .it has ids"),
    ],
)


@WRONG
def test_what_is_refused(masked: Both, name: str, value: Any, text: str) -> None:
    """At once, and the next run is right."""
    with pytest.raises(UsageError, match=text):
        masked.compiled.run({**RAGGED, **masks_of(0.5), name: value})
    masked.check({**RAGGED, **masks_of(0.5)})


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_overflow_under_masks_and_padding_is_left_out(optimizer: str) -> None:
    step = pitc.train_step(
        two_losses(), "first", optimizer=optimizer, loss_scale=True, masks=["up", "down"], clip=1.0
    )
    trainer = pitc.Trainer(pitc.compile(step, padding="mask", suggest=False))
    given = {**RAGGED, **masks_of(0.4)}
    losses = [trainer.step({**given, "loss_scale": np.float32(512)})["first"]]
    for scale in (np.inf, -np.inf, np.nan):
        before = trainer.get()
        found = trainer.step({**given, "loss_scale": np.float32(scale)})
        assert found["skipped"] and np.isfinite(found["first"])
        for name, x in trainer.get().items():
            assert np.array_equal(x, before[name]), name
    for _ in range(3):
        found = trainer.step(given)
        losses.append(found["first"])
        assert not found["skipped"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.fixture(name="trainer", scope="module")
def _trainer() -> Iterator[pitc.Trainer]:
    step = pitc.train_step(two_losses(), "first", optimizer="adam", masks=["up", "down"])
    trainer = pitc.Trainer(pitc.compile(step, padding="mask", suggest=False))
    trainer.step({**RAGGED, **masks_of(0.5)})
    yield trainer


@contextmanager
def refused(trainer: pitc.Trainer, text: str) -> Iterator[None]:
    """An error of ours, which leaves all as it was."""
    before = trainer.get()
    with pytest.raises(UsageError, match=text):
        yield
    after = trainer.get()
    assert all(np.array_equal(x, after[name]) for name, x in before.items())


@WRONG
def test_what_a_step_refuses(trainer: pitc.Trainer, name: str, value: Any, text: str) -> None:
    with refused(trainer, text):
        trainer.step({**RAGGED, **masks_of(0.5), name: value})
    assert np.isfinite(trainer.step({**RAGGED, **masks_of(0.5)})["first"])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("up", np.zeros((W, F), np.float16), "'up': expected float32, got float16"),
        ("mean.up", np.zeros((W, F)), "'mean.up': expected float32, got float64"),
        ("mean.up", np.zeros((F, W), np.float32), r"expected shape \[128, 256\], got \[256, 128\]"),
        ("step", np.zeros(1, np.int64), r"'step': expected shape \[\], got \[1\]"),
        ("step", 2.0, "'step': expected int64, got float64"),
    ],
)
def test_what_state_is_refused(
    trainer: pitc.Trainer, tmp_path: Path, name: str, value: Any, text: str
) -> None:
    """All of it, where one array does not fit."""
    wrong = {**{n: x + 1 for n, x in trainer.get().items()}, name: value}
    with refused(trainer, text):
        trainer.put(wrong)
    np.savez(tmp_path / "wrong.npz", **wrong)
    with refused(trainer, rf"wrong\.npz: .*{text}"):
        trainer.load(tmp_path / "wrong.npz")


def test_state_is_copied(trainer: pitc.Trainer) -> None:
    bias = np.ones(F, np.float32)
    trainer.put({"bias": bias})
    bias[:] = 2
    trainer.get()["bias"][:] = 3
    assert np.array_equal(trainer.get()["bias"], np.ones(F))


@pytest.mark.parametrize("kind", [float, int, np.float16, np.float64, np.array])
def test_a_rate_is_any_number(trainer: pitc.Trainer, kind: Any) -> None:
    """0 moves no weight, 1 does."""
    given, before = {**RAGGED, **masks_of(0.5)}, trainer.get()
    trainer.step({**given, "learning_rate": kind(0.0)})
    assert np.array_equal(trainer.get()["head"], before["head"])
    trainer.step({**given, "learning_rate": kind(1.0)})
    assert not np.array_equal(trainer.get()["head"], before["head"])
    trainer.put(before)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (np.ones(1, np.float32), r"expected shape \[\], got \[1\]"),
        (np.ones((), np.int64), "expected float32, got int64"),
        (True, "expected float32, got bool"),
    ],
)
def test_what_is_no_rate(trainer: pitc.Trainer, rate: Any, text: str) -> None:
    with refused(trainer, f"'learning_rate': {text}"):
        trainer.step({**RAGGED, **masks_of(0.5), "learning_rate": rate})


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_whole_numbers_are_not_trained(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = helper.make_tensor("w", kind, [W, L], np.ones(W * L, dtype))
    ends = [helper.make_tensor_value_info(n, kind, ["n", s]) for n, s in (("x", W), ("y", L))]
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "whole", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(UsageError, match="'y' are no scores: int"):
        pitc.gradient(model, pitc.Loss("cross_entropy", "y"))
