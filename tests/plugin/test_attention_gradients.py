"""Gradients of attention over padded batches: one packed node, equal to ONNX Runtime's numbers."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import pitc
from models.bert import BertConfig, bert
from models.graph import GraphBuilder
from models.opt import OptConfig, opt
from pitc.ir.report import Report

Arrays = dict[str, Any]
Scores = Callable[[GraphBuilder, str], str]
MASK = "attention_mask"
WIDTH, HEADS, SIZE, LABELS = 256, 4, 64, 5
LOSS = pitc.Loss("cross_entropy", "logits")
MASKED = pitc.Loss("cross_entropy", "logits", mask="mask")


def keys_of(g: GraphBuilder, dtype: Any = bool) -> str:
    """[batch, 1, 1, sequence]: where a key exists."""
    kept = g.op("Unsqueeze", "mask", g.ints(1, 2))
    return g.op("Cast", kept, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def added(g: GraphBuilder, scores: str) -> str:
    """A large negative number is added at padding, as BERT does it."""
    missing = g.op("Sub", g.const(1.0), keys_of(g, np.float32))
    return g.op("Add", scores, g.op("Mul", missing, g.const(np.finfo(np.float32).min)))


def chosen(g: GraphBuilder, scores: str) -> str:
    """Scores at padding are replaced."""
    return g.op("Where", keys_of(g), scores, g.const(np.finfo(np.float32).min))


def infinite(g: GraphBuilder, scores: str) -> str:
    """They are replaced by -inf."""
    return g.op("Where", keys_of(g), scores, g.const(-np.inf))


def causal(g: GraphBuilder, scores: str) -> str:
    """A query sees no later key."""
    length = g.size("x", 1)
    places = g.op("Range", g.const(0, np.int64), length, g.const(1, np.int64))
    later = g.op("Greater", places, g.op("Unsqueeze", places, g.ints(1)))
    seen = g.op("And", g.op("Not", later), keys_of(g))
    return g.op("Where", seen, scores, g.const(np.finfo(np.float32).min))


def biased(g: GraphBuilder, scores: str) -> str:
    """Pairs of each head have a bias, and real tokens see each other."""
    bias = g.input("bias", np.float32, (1, HEADS, "sequence", "sequence"))
    queries = g.op("Unsqueeze", "mask", g.ints(1, 3))
    seen = g.op("Mul", g.op("Cast", queries, to=onnx.TensorProto.FLOAT), keys_of(g, np.float32))
    low = g.op("Mul", g.op("Sub", g.const(1.0), seen), g.const(np.finfo(np.float32).min))
    return g.op("Add", g.op("Add", scores, bias), low)


def attention(
    mask: Scores, scale: str = "scores", d: int = SIZE, factor: float = 1.0
) -> onnx.ModelProto:
    """One layer of attention and a classifier of tokens.

    Args:
        mask: What is done with scores.
        scale: What is scaled: `scores`, or `both` queries and keys.
        d: Width of a head of queries.
        factor: A second number that scores are multiplied by.
    """
    rng, g = np.random.default_rng(0), GraphBuilder("attention")
    x = g.input("x", np.float32, ("batch", "sequence", WIDTH))
    g.input("mask", np.int64, ("batch", "sequence"))

    def linear(value: str, name: str, size_in: int, size_out: int) -> str:
        drawn = rng.normal(0, size_in**-0.5, (size_in, size_out)).astype(np.float32)
        y = g.op("MatMul", value, g.weight(f"{name}.weight", drawn))
        return g.op("Add", y, g.weight(f"{name}.bias", np.zeros(size_out, np.float32)))

    def heads(name: str, size: int, order: list[int]) -> str:
        shape = g.dims(g.size(x, 0), g.size(x, 1), HEADS, size)
        rows = linear(x, name, WIDTH, HEADS * size)
        return g.op("Transpose", g.op("Reshape", rows, shape), perm=order)

    q, k = heads("query", d, [0, 2, 1, 3]), heads("key", d, [0, 2, 3, 1])
    v = heads("value", SIZE, [0, 2, 1, 3])
    if scale == "both":
        q, k = (g.op("Mul", y, g.const(d**-0.25)) for y in (q, k))
    scores = g.op("MatMul", q, k)
    if scale == "scores":
        scores = g.op("Div", scores, g.const(d**0.5))
    if factor != 1.0:
        scores = g.op("Mul", scores, g.const(factor))
    weights = g.op("Softmax", mask(g, scores), axis=-1)
    y = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    y = g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), HEADS * SIZE))
    y = linear(
        g.op("Add", linear(y, "output", HEADS * SIZE, WIDTH), x), "classifier", WIDTH, LABELS
    )
    g.output(g.op("Identity", y), "logits", np.float32, ("batch", "sequence", LABELS))
    return g.model()


def batch(lengths: list[int], sequence: int, seed: int = 0) -> Arrays:
    """Padding on the right; no label there counts."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(sequence) < np.array(lengths)[:, None]).astype(np.int64)
    x = rng.normal(size=(len(lengths), sequence, WIDTH)).astype(np.float32)
    labels = np.where(mask == 1, rng.integers(0, LABELS, mask.shape), -100)
    return {"x": x, "mask": mask, "labels": labels}


BATCHES = (
    batch([9, 1, 33, 0, 40], 40),
    batch([70, 65], 70),
    batch([1], 1),
    batch([0, 0], 7),
    batch([], 5),
)


def options(threads: int = 1) -> ort.SessionOptions:
    found = ort.SessionOptions()
    found.intra_op_num_threads = threads
    found.log_severity_level = 3
    return found


class Compiled:
    """A model with gradients, as ONNX Runtime and pitc run it."""

    def __init__(self, model: onnx.ModelProto, threads: int = 1, loss: pitc.Loss = LOSS) -> None:
        made = pitc.gradient(model, loss)
        self.plain = ort.InferenceSession(ir.to_proto(made).SerializeToString(), options())
        self.names = [x.name for x in self.plain.get_outputs()]
        compiled = pitc.compile(made, padding="mask", suggest=False)
        self.report: Report = compiled.report
        self.packed = compiled.session(options(threads))

    def products(self, lowering: str) -> int:
        found = (n for n in self.report.nodes if n.op_type == "MatMul")
        return sum(n.lowering == lowering for n in found)

    def check(self, feeds: Arrays) -> None:
        """The loss and all gradients are equal, to the rounding of float32."""
        if "bias" in [x.name for x in self.plain.get_inputs()]:
            length = feeds["mask"].shape[1]
            drawn = np.random.default_rng(1).normal(size=(1, HEADS, length, length))
            feeds = {**feeds, "bias": drawn.astype(np.float32)}
        want, got = (
            [np.asarray(x) for x in session.run(self.names, feeds)]
            for session in (self.plain, self.packed)
        )
        largest = max(np.abs(np.nan_to_num(x)).max(initial=0) for x in want)
        for name, a, b in zip(self.names, want, got, strict=True):
            assert np.array_equal(np.isnan(a), np.isnan(b)), name
            assert np.abs(np.nan_to_num(a - b)).max(initial=0) <= 2e-6 * max(largest, 1e-3), name


@pytest.mark.parametrize(
    ("mask", "loss"),
    [(added, LOSS), (chosen, LOSS), (added, MASKED), (causal, MASKED)],
)
def test_all_products_are_packed_and_right(mask: Scores, loss: pitc.Loss) -> None:
    compiled = Compiled(attention(mask), loss=loss)
    assert compiled.products("attention_grad") == 3 and compiled.products("ordinary") == 0
    for feeds in BATCHES:
        compiled.check(feeds)


@pytest.mark.parametrize("mask", [infinite, biased])
def test_some_run_whole(mask: Scores) -> None:
    """A row of -inf is NaN; one of a bias and of masked scores shows how they round."""
    compiled = Compiled(attention(mask), loss=MASKED)
    assert compiled.products("ordinary") > 0
    for feeds in BATCHES:
        compiled.check(feeds)


@pytest.mark.parametrize(("scale", "d"), [("both", 64), ("scores", 48), ("none", 64)])
def test_scaled_operands_and_other_widths(scale: str, d: int) -> None:
    compiled = Compiled(attention(added, scale, d, 1.0 if scale != "none" else 0.3))
    assert compiled.products("attention_grad") == 3
    for feeds in BATCHES:
        compiled.check(feeds)


def test_a_label_at_padding_counts() -> None:
    compiled = Compiled(attention(added))
    feeds = batch([12, 3, 0], 20)
    feeds["labels"][0, 15] = feeds["labels"][2, 4] = 1
    compiled.check(feeds)


def test_bits_do_not_depend_on_threads() -> None:
    model, feeds = attention(causal), batch([100, 37, 64, 1], 100)
    first, second = (Compiled(model, threads, MASKED) for threads in (1, 2))
    for a, b in zip(*(c.packed.run(c.names, feeds) for c in (first, second)), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def models() -> dict[str, tuple[onnx.ModelProto, pitc.Loss, str]]:
    """Two layers each: an encoder that labels tokens, a decoder that guesses the next one."""
    rng = np.random.default_rng(0)
    sizes: dict[str, Any] = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 500}
    loss = pitc.Loss("cross_entropy", "logits")
    return {
        "encoder": (bert(BertConfig(**sizes, head="tokens"), rng), loss, "right"),
        "decoder": (opt(OptConfig(**sizes), rng, head=True), replace(loss, mask=MASK), "left"),
    }


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_all_products_of_a_step_are_packed(name: str) -> None:
    model, loss, side = models()[name]
    made = pitc.gradient(model, loss)
    compiled = pitc.compile(made, padding=MASK, suggest=False)
    products = [n for n in compiled.report.nodes if n.op_type in ("MatMul", "Gemm")]
    found = Counter(n.lowering for n in products)
    assert found["ordinary"] == 0 and found["attention_grad"] == 6 and found["attention"] == 2
    plain = ort.InferenceSession(ir.to_proto(made).SerializeToString(), options())
    packed, names = compiled.session(options()), [x.name for x in plain.get_outputs()]
    for lengths in ([40, 1, 17], [33], [64, 64]):
        rng = np.random.default_rng(len(lengths))
        places = np.arange(max(lengths))
        mask = (places < np.array(lengths)[:, None]).astype(np.int64)
        mask = mask if side == "right" else mask[:, ::-1].copy()
        feeds = {"input_ids": rng.integers(1, 500, mask.shape) * mask, MASK: mask}
        feeds |= {"token_type_ids": 0 * mask} if name == "encoder" else {}
        feeds["labels"] = np.where(mask == 1, rng.integers(0, 2, mask.shape), -100)
        want, got = ([np.asarray(x) for x in s.run(names, feeds)] for s in (plain, packed))
        largest = max(np.abs(x).max() for x in want)
        for which, a, b in zip(names, want, got, strict=True):
            assert np.abs(a - b).max() <= 3e-6 * largest, which
