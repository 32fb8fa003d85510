"""Gradients of models of many forms: packed where they can be, and right on ragged batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

import pitc
from models.graph import GraphBuilder
from pitc.passes.analysis import analysis

Arrays = dict[str, Any]
W, F, H, D, V, L = 128, 256, 2, 64, 40, 5  # widths, heads and their size, words, labels
LOW = float(np.finfo(np.float32).min)
FLOAT = TensorProto.FLOAT


class Net(GraphBuilder):
    """A graph over tokens, with weights drawn at random."""

    def __init__(self) -> None:
        super().__init__("form", 18)
        self.rng, self.drawn = np.random.default_rng(0), 0
        self.ids = self.input("ids", np.int64, ("batch", "sequence"))
        self.mask = self.input("mask", np.int64, ("batch", "sequence"))

    def random(self, *shape: int, mean: float = 0.0) -> str:
        self.drawn += 1
        drawn = mean + self.rng.normal(0, shape[0] ** -0.5, shape)
        return self.weight(f"w{self.drawn}", drawn.astype(np.float32))

    def words(self, ids: str = "ids") -> str:
        return self.op("Gather", self.random(V, W), ids, axis=0)

    def linear(self, x: str, size_in: int = W, size_out: int = W) -> str:
        y = self.op("MatMul", x, self.random(size_in, size_out))
        return self.op("Add", y, self.random(size_out))

    def norm(self, x: str) -> str:
        return self.op("LayerNormalization", x, self.random(W, mean=1), self.random(W), axis=-1)

    def root_mean(self, x: str) -> str:
        mean = self.reduce("ReduceMean", self.op("Mul", x, x), -1)
        root = self.op("Sqrt", self.op("Add", mean, self.const(1e-6)))
        return self.op("Mul", self.op("Div", x, root), self.random(W, mean=1))

    def plus(self, *values: str) -> str:
        return self.op("Add", *values)

    def ffn(self, x: str) -> str:
        return self.linear(self.op("Relu", self.linear(x, W, F)), F, W)

    def kept(self, mask: str, *axes: int, to: int = TensorProto.BOOL) -> str:
        seen = self.op("Unsqueeze", mask, self.ints(*axes)) if axes else mask
        return self.op("Cast", seen, to=to)

    def places(self, axis: int) -> str:
        found = self.op("Range", *self.numbers(0), self.size("ids", 1), *self.numbers(1))
        return self.op("Unsqueeze", found, self.ints(axis))

    def numbers(self, *values: int) -> list[str]:
        return [self.const(n, np.int64) for n in values]

    def among(self, seen: str) -> Callable[[str], str]:
        return lambda scores: self.op("Where", seen, scores, self.const(LOW))

    def attend(
        self, x: str, y: str = "", mask: Callable[[str], str] | None = None, heads: int = H
    ) -> str:
        """Attention of x to y; `heads` of keys and values, which queries share."""
        y, mask = y or x, mask or self.among(self.kept("mask", 1, 2))
        parts = [self.linear(x)]  # a bias of keys has the gradient 0, up to rounding
        parts += [self.op("MatMul", y, self.random(W, heads * D)), self.linear(y, W, heads * D)]
        counts = (H, heads, heads)
        rows = [
            self.op("Reshape", p, self.ints(0, 0, n, D)) for p, n in zip(parts, counts, strict=True)
        ]
        q, k, v = (self.op("Transpose", part, perm=[0, 2, 1, 3]) for part in rows)
        if heads != H:
            k, v = (
                self.op("Expand", z, self.dims(self.size(z, 0), H, self.size(z, 2), D))
                for z in (k, v)
            )
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = self.op("Softmax", mask(self.op("Mul", scores, self.const(D**-0.5))), axis=-1)
        z = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", z, self.ints(0, 0, H * D)))

    def loss(self, scores: str, classes: int = L, labels: str = "labels") -> str:
        """The mean of those tokens whose label counts."""
        rows = self.op("Reshape", scores, self.ints(-1, classes))
        flat = self.op("Reshape", labels, self.ints(-1))
        return self.op("SoftmaxCrossEntropyLoss", rows, flat, ignore_index=-100)

    def labelled(self, x: str, labels: str = "labels") -> str:
        return self.loss(self.linear(x, W, L), L, labels)


def gemm(g: Net) -> str:
    x = g.words()
    h = g.op("Gemm", g.op("Reshape", x, g.ints(-1, W)), g.random(F, W), g.random(F), transB=1)
    y = g.op("Gemm", g.op("Relu", h), g.random(W, F), g.random(W), transB=1)
    return g.labelled(g.plus(g.op("Reshape", y, g.dims(g.size(x, 0), g.size(x, 1), W)), x))


def tied(g: Net) -> str:
    """The table of words scores them, too."""
    x = g.words()
    scores = g.op("MatMul", g.plus(x, g.ffn(x)), g.op("Transpose", "w1", perm=[1, 0]))
    return g.loss(scores, V)


def swiglu(g: Net) -> str:
    x = g.words()
    n = g.root_mean(x)
    gate = g.linear(n, W, F)
    h = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), g.linear(n, W, F))
    return g.labelled(g.plus(g.linear(h, F), x))


def post_norm(g: Net) -> str:
    x = g.words()
    x = g.norm(g.plus(x, g.attend(x)))
    return g.labelled(g.norm(g.plus(x, g.ffn(x))))


def pre_norm(g: Net) -> str:
    x = g.words()
    x = g.plus(x, g.attend(g.root_mean(x)))
    return g.labelled(g.root_mean(g.plus(x, g.ffn(g.root_mean(x)))))


def cross(g: Net) -> str:
    """Tokens attend to those of another batch, which has a mask of its own."""
    other, mask = (g.input(n, np.int64, ("batch", "source")) for n in ("other", "other_mask"))
    x = g.words()
    x = g.plus(x, g.attend(x))
    y = g.attend(g.norm(x), g.ffn(g.words(other)), g.among(g.kept(mask, 1, 2)))
    return g.labelled(g.plus(x, y))


def shared_heads(g: Net) -> str:
    x = g.words()
    return g.labelled(g.plus(x, g.attend(x, heads=1)))


def alibi(g: Net) -> str:
    x, keep = g.words(), g.among(g.kept("mask", 1, 2))
    far = g.op("Cast", g.op("Abs", g.op("Sub", g.places(0), g.places(1))), to=FLOAT)
    return g.labelled(g.plus(x, g.attend(x, mask=lambda s: keep(g.op("Sub", s, far)))))


def window(g: Net) -> str:
    x = g.words()
    far = g.op("Abs", g.op("Sub", g.places(0), g.places(1)))
    seen = g.op("And", g.op("LessOrEqual", far, *g.numbers(3)), g.kept("mask", 1, 2))
    return g.labelled(g.plus(x, g.attend(x, mask=g.among(seen))))


def decoder(g: Net) -> str:
    """Places of tokens are counted, so that padding may stand on the left; labels there do not
    count, whatever they are.
    """
    places = g.op("Mul", g.op("CumSum", "mask", *g.numbers(1)), "mask")
    x = g.plus(g.words(), g.op("Gather", g.random(60, W), places, axis=0))
    seen = g.op("And", g.op("LessOrEqual", g.places(0), g.places(1)), g.kept("mask", 1, 2))
    x = g.plus(x, g.attend(g.root_mean(x), mask=g.among(seen)))
    return g.labelled(
        g.plus(x, g.ffn(x)), g.op("Where", g.kept("mask"), "labels", *g.numbers(-100))
    )


def smoothed(g: Net) -> str:
    """Labels with a little of all others; and a weight of each token."""
    x = g.words()
    chances = g.op("LogSoftmax", g.linear(g.plus(x, g.ffn(x)), W, L), axis=-1)
    mine = g.op("Equal", g.op("Unsqueeze", "labels", g.ints(2)), g.ints(*range(L)))
    each = g.op("Mul", g.op("Where", mine, g.const(-0.9), g.const(-0.02)), chances)
    live = g.op("Cast", g.op("GreaterOrEqual", "labels", *g.numbers(0)), to=FLOAT)
    factors = g.op("Mul", live, g.input("factors", np.float32, ("batch", "sequence")))
    total = g.op("Mul", g.op("ReduceSum", each, g.ints(-1), keepdims=0), factors)
    return g.op("ReduceSum", total, keepdims=0)


def contrastive(g: Net) -> str:
    """The mean of real tokens is compared with all anchors."""
    x, real = g.words(), g.kept("mask", 2, to=FLOAT)
    x = g.op("Mul", g.norm(g.plus(x, g.attend(x))), real)
    count = g.op("Max", g.op("ReduceSum", real, g.ints(1), keepdims=0), g.const(1.0))
    mean = g.op("Div", g.op("ReduceSum", x, g.ints(1), keepdims=0), count)
    anchors = g.op("Transpose", g.input("anchors", np.float32, ("batch", W)), perm=[1, 0])
    scores = g.op("Mul", g.op("MatMul", mean, anchors), g.const(0.05))
    own = g.op("Range", *g.numbers(0), g.size(scores, 0), *g.numbers(1))
    return g.op("SoftmaxCrossEntropyLoss", scores, own)


def two_tasks(g: Net) -> str:
    """Classes of sequences by their first token, and labels of tokens."""
    x = g.words()
    x = g.norm(g.plus(x, g.attend(x)))
    first = g.op("Tanh", g.linear(g.op("Gather", x, *g.numbers(0), axis=1)))
    classes = g.input("classes", np.int64, ("batch",))
    other = g.op("SoftmaxCrossEntropyLoss", g.linear(first, W, 3), classes)
    return g.plus(g.labelled(x), g.op("Mul", other, g.const(0.3)))


def pooled(g: Net) -> str:
    """A softmax over tokens says how much each counts."""
    x = g.words()
    x = g.norm(g.plus(x, g.ffn(x)))
    scores = g.op("MatMul", g.op("Tanh", g.linear(x)), g.random(W, 1))
    p = g.op("Softmax", g.among(g.kept("mask", 2))(scores), axis=1)
    y = g.linear(g.op("ReduceSum", g.op("Mul", p, x), g.ints(1), keepdims=0), W, 3)
    return g.op("SoftmaxCrossEntropyLoss", y, g.input("classes", np.int64, ("batch",)))


def experts(g: Net) -> str:
    x = g.words()
    gates = g.ops(2, "Split", g.op("Softmax", g.linear(x, W, 2)), axis=-1, num_outputs=2)
    return g.labelled(g.plus(x, g.plus(*(g.op("Mul", p, g.ffn(x)) for p in gates))))


#: Of each: how many products run whole, at most; and those under masks of all weights, if tested.
FORMS: dict[str, tuple[Callable[[Net], str], int, int | None]] = {
    "Gemm": (gemm, 0, 0),
    "tied words": (tied, 0, None),
    "SwiGLU": (swiglu, 0, 0),
    "norm behind": (post_norm, 0, 2),
    "root mean in front": (pre_norm, 0, None),
    "cross-attention": (cross, 0, None),
    "shared heads": (shared_heads, 0, 2),
    "ALiBi": (alibi, 13, None),
    "window": (window, 12, None),
    "decoder": (decoder, 0, 0),
    "smoothed labels": (smoothed, 0, None),
    "contrastive": (contrastive, 2, None),
    "two tasks": (two_tasks, 6, 6),
    "softmax over tokens": (pooled, 4, None),
    "experts": (experts, 1, 6),
}
CASES = [(n, k == 2) for n, form in FORMS.items() for k in (1, 2) if form[k] is not None]
#: Lengths of sequences, and what they are padded to.
BATCHES = [([20, 20], 20), ([33, 17, 1, 9], 33), ([12], 12), ([1], 1), ([7, 0, 3], 9), ([], 5)]


def feeds(lengths: list[int], sequence: int, left: bool, seed: int = 0) -> Arrays:
    rng, shape = np.random.default_rng(seed), (len(lengths), sequence)
    count = np.array(lengths, int)[:, None]
    mask = (np.arange(sequence) < count).astype(np.int64)[:, :: -1 if left else 1]
    other = (np.arange(sequence + 3) < count + 1).astype(np.int64)
    return {
        "ids": rng.integers(1, V, shape) * mask,
        "mask": np.ascontiguousarray(mask),
        "labels": np.where(mask == 1, rng.integers(0, L, shape), -100),
        "other": rng.integers(1, V, other.shape) * other,
        "other_mask": other,
        "classes": rng.integers(0, 3, len(lengths)),
        "anchors": rng.normal(size=(len(lengths), W)).astype(np.float32),
        "factors": rng.random(shape).astype(np.float32),
    }


@pytest.mark.parametrize(("name", "masked"), CASES)
def test_gradients_are_those_of_onnx_runtime(name: str, masked: bool) -> None:
    build, *most = FORMS[name]
    g = Net()
    g.input("labels", np.int64, ("batch", "sequence"))
    g.output(g.op("Identity", build(g)), "loss", np.float32, ())
    made = pitc.gradient(g.model(), "loss", masks=["w*"] if masked else ())
    compiled = pitc.compile(made, padding="mask", suggest=False)
    products = [n for n in compiled.report.nodes if n.op_type in ("MatMul", "Gemm", "Conv")]
    assert sum(n.lowering == "ordinary" for n in products) <= (most[masked] or 0)
    options, rng = ort.SessionOptions(), np.random.default_rng(1)
    options.log_severity_level = 3
    plain = ort.InferenceSession(ir.to_proto(made).SerializeToString(), options)
    shapes = {x.name: x.shape for x in plain.get_inputs()}
    masks = {n: rng.random(s) < 0.5 for n, s in shapes.items() if n.startswith("mask.")}
    names = [x.name for x in plain.get_outputs()]
    for lengths, sequence in BATCHES:
        given = {**feeds(lengths, sequence, left=name == "decoder"), **masks}
        given = {n: x for n, x in given.items() if n in shapes}
        want = [np.asarray(x) for x in plain.run(names, given)]
        got, sizes = compiled.run(given), [np.abs(np.nan_to_num(x)).max(initial=0) for x in want]
        for key, x, size in zip(names, want, sizes, strict=True):
            y, near = got[key], 1e-5 * max(size, 1e-3 * max(sizes))
            assert x.shape == y.shape and np.array_equal(np.isnan(x), np.isnan(y)), key
            assert np.abs(np.nan_to_num(x - y)).max(initial=0) <= near, (key, lengths)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", [(1, 16, W), (3, 16, W), (1, 16)])
def test_weights_of_the_sizes_of_a_mask_are_whole(batch: int, shape: tuple[int, ...]) -> None:
    """With fixed sizes, learned positions look like an output of one row per token."""
    if batch == 1 and shape[0] > 1:
        pytest.skip("they do not broadcast")
    g = Net.__new__(Net)
    GraphBuilder.__init__(g, "form", 18)
    g.rng, g.drawn = np.random.default_rng(0), 0
    for name in ("ids", "mask", "labels"):
        setattr(g, name, g.input(name, np.int64, (batch, 16)))
    drawn = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    positions = g.weight("pos", drawn)
    x = g.plus(g.words(), positions if len(shape) == 3 else g.op("Unsqueeze", positions, g.ints(2)))
    x = g.plus(x, g.attend(g.plus(x, g.ffn(x))))
    g.output(g.op("Identity", g.labelled(x)), "loss", np.float32, ())
    rng, mask = np.random.default_rng(0), np.zeros((batch, 16), np.int64)
    mask[:, :9] = 1
    labels = np.where(mask, rng.integers(0, L, mask.shape), -100)
    feeds = {"ids": rng.integers(1, V, mask.shape) * mask, "mask": mask, "labels": labels}
    for made, name in (
        (pitc.train_step(g.model(), "loss", optimizer="sgd"), "next.pos"),
        (pitc.gradient(g.model(), "loss"), "grad.pos"),
    ):
        compiled = pitc.compile(made, padding="mask", suggest=False)
        assert not {"next.pos", "grad.pos"} & set(compiled.report.tokens)
        session = ort.InferenceSession(ir.to_proto(made).SerializeToString())
        want = np.asarray(session.run([name], feeds)[0])
        np.testing.assert_allclose(compiled.run(feeds)[name], want, atol=1e-6)
        assert name != "next.pos" or np.all(want != 0)


def test_weights_that_are_trained_are_no_source_of_facts() -> None:
    """A number of a weight may become 0; what prunes it is a mask that is an input."""
    g = Net()
    g.input("labels", np.int64, ("batch", "sequence"))
    x = g.norm(g.words())
    g.output(g.op("Identity", g.labelled(g.plus(x, g.ffn(x)))), "loss", np.float32, ())
    made = pitc.gradient(g.model(), "loss")
    weights = {v.name for v in made.graph.inputs} - {"ids", "mask", "labels"}
    assert len(weights) > 5
    graph = analysis(made, None).graph
    regions = [r for v in graph.values.values() for r in (*v.dead, *(f.region for f in v.fills))]
    sources = {s for r in regions for s in r.sources}
    assert "labels" in sources and not sources & weights
