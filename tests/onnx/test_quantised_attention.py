"""Attention between two quantisations: which pairs of QuantizeLinear and DequantizeLinear run
inside the node, and which are refused; answers beside ONNX Runtime's, which rewrites nothing here.

Queries and keys are small integers and score steps powers of two, so scores are exact, halves of a
step among them. Of the weights of a model none lies at half a step, but for equal ones, whose
quotients are the same numbers in both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

from models.graph import GraphBuilder
from pitc.ir import target as targets
from pitc.ir.nodes import is_pit_node
from pitc.ir.refusal import Code
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lower_support import plans
from tests.plan_reference import run_lowered

HEADS, SIZE = 4, 16
HIDDEN = HEADS * SIZE
Step = Callable[[GraphBuilder, str], str]
MICROSOFT = "com.microsoft"


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack wherever it is sound, in small models too."""
    monkeypatch.setattr(targets, "CPU", replace(targets.CPU, flops_per_byte=0))
    monkeypatch.setattr(targets, "CUDA", replace(targets.CUDA, flops_per_byte=0))


@dataclass(frozen=True)
class Pair:
    """QuantizeLinear and DequantizeLinear."""

    scale: npt.ArrayLike
    zero: int | None = 0
    dtype: npt.DTypeLike = np.uint8
    back: tuple[float, int] | None = None  # other numbers of the second
    domain: str = ""
    axis: int | None = None

    def __call__(self, g: GraphBuilder, x: str) -> str:
        axis = {} if self.axis is None else {"axis": self.axis}
        scale = np.asarray(self.scale)
        zero = [] if self.zero is None else [np.full(scale.shape, self.zero)]
        names = [g.const(scale), *(g.const(z, self.dtype) for z in zero)]
        q = g.op("QuantizeLinear", x, *names, domain=self.domain, **axis)
        if self.back is not None:
            names = [g.const(self.back[0]), g.const(self.back[1], self.dtype)]
        return g.op("DequantizeLinear", q, *names, domain=self.domain, **axis)


def heads(g: GraphBuilder, x: str, name: str) -> str:
    rng = np.random.default_rng(sum(map(ord, name)))
    matrix = (rng.random((HIDDEN, HIDDEN)) < 0.1) * rng.integers(-1, 2, (HIDDEN, HIDDEN))
    rows = g.op("MatMul", x, g.weight(name, matrix.astype(np.float32)))
    return g.op("Transpose", g.op("Reshape", rows, g.ints(0, 0, HEADS, SIZE)), perm=[0, 2, 1, 3])


def attention(
    *steps: Step,
    after: Step | None = None,
    sides: Step | None = None,
    low: float = -1e9,
    opset: int = 21,
) -> onnx.ModelProto:
    """Attention over a padding mask.

    Args:
        steps: What scores go through, in front of the mask.
        after: What weights go through.
        sides: What queries, keys and values go through.
        low: What the mask replaces scores by.
        opset: Of the model.
    """
    g = GraphBuilder("attention", opset)
    x, mask = g.input("x", np.float32, ("b", "s", HIDDEN)), g.input("mask", np.int64, ("b", "s"))
    for name in ("bias", "scale"):
        g.input(name, np.float32, ("b", 1, "s", "s") if name == "bias" else ())
    g.input("keep", np.bool_, ("b", 1, "s", "s"))
    g.op("Unsqueeze", g.op("Cast", mask, to=TensorProto.BOOL), g.ints(1, 2))
    g._nodes[-1].output[0] = "live"
    q, k, v = (heads(g, x, n) for n in ("query", "key", "value"))
    if sides is not None:
        q, k, v = (sides(g, side) for side in (q, k, v))
    s = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    for step in steps:
        s = step(g, s)
    p = g.op("Softmax", g.op("Where", "live", s, g.const(low)), axis=-1)
    rows = g.op("MatMul", after(g, p) if after else p, v)
    rows = g.op("Reshape", g.op("Transpose", rows, perm=[0, 2, 1, 3]), g.ints(0, 0, HIDDEN))
    g.output(rows, "y", np.float32, ("b", "s", HIDDEN))
    return g.model()


def by(factor: float) -> Step:
    return lambda g, s: g.op("Mul", s, g.const(factor))


def tanh(g: GraphBuilder, s: str) -> str:
    return g.op("Tanh", s)


def biased(g: GraphBuilder, s: str) -> str:
    return g.op("Add", s, "bias")


def kept(g: GraphBuilder, s: str) -> str:
    return g.op("Where", "keep", s, g.const(-np.inf))


def both(*steps: Step) -> Step:
    def each(g: GraphBuilder, x: str) -> str:
        for step in steps:
            x = step(g, x)
        return x

    return each


def live_keys(g: GraphBuilder, p: str) -> str:
    return g.op("Where", "live", p, g.const(0))


def guarded(g: GraphBuilder, p: str) -> str:
    return g.op("Where", g.op("IsNaN", p), g.const(0), p)


def lower(model: onnx.ModelProto, kind: str = "cpu") -> Lowered:
    options = LowerOptions(padding="mask", check=True, target=targets.target_of(kind))
    return run_passes(ir.serde.deserialize_model(model), options)


def feeds_of(mask: npt.NDArray[np.int64], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    b, s = mask.shape
    keep = rng.random((b, 1, s, s)) < 0.7
    keep[:, :, 0] = False  # a row that keeps nothing
    return {
        "x": rng.integers(-1, 2, (b, s, HIDDEN)).astype(np.float32),
        "mask": mask,
        "bias": rng.integers(-2, 3, (b, 1, s, s)).astype(np.float32),
        "scale": np.asarray(0.01, np.float32),
        "keep": keep,
    }


MASKS = [
    np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]),
    np.array([[0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]),
    np.ones((2, 9), int),
    np.ones((0, 4), int),
]
WEIGHTS = Pair(1 / 255)
SCORES = Pair(0.25, 128)


def agrees(model: onnx.ModelProto, lowered: Lowered) -> bool:
    """Whether live rows are those of ONNX Runtime, which rewrites nothing."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    run = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    proto, given = ir.serde.serialize_model(lowered.model), {i.name for i in model.graph.input}
    good = True
    for mask in MASKS:
        feeds = {n: x for n, x in feeds_of(mask).items() if n in given}
        (got,), (want,) = run_lowered(proto, feeds), run.run(None, feeds)
        live = mask != 0
        good &= np.allclose(got[live], np.asarray(want)[live], 1e-5, 1e-5)
        good &= not got[~live].any()
    return good


# what scores and weights go through, and fields of the plan
PACKED: dict[str, tuple[list[Step], Step | None, dict[str, float]]] = {
    "uint8 weights": (
        [],
        WEIGHTS,
        {"weight_above": 255, "weight_step": float(np.float32(1 / 255))},
    ),
    "no zero point": ([], replace(WEIGHTS, zero=None), {"weight_above": 255}),
    "a zero point": ([], replace(WEIGHTS, zero=100), {"weight_above": 155}),
    "the last zero point": ([], replace(WEIGHTS, zero=255), {"weight_above": 0}),
    "int8 weights": ([], Pair(1 / 127, 0, np.int8), {"weight_above": 127}),
    "int8 weights from -128 on": ([], Pair(1 / 255, -128, np.int8), {"weight_above": 255}),
    "weights that are cut": ([], Pair(0.002), {"weight_above": 255}),
    "uint16 weights": ([], Pair(1 / 4000, 7, np.uint16), {"weight_above": 65528}),
    "int16 weights": ([], Pair(1 / 4000, 0, np.int16), {"weight_above": 32767}),
    "Microsoft's": ([], replace(WEIGHTS, domain=MICROSOFT), {"weight_above": 255}),
    "one number": ([], replace(WEIGHTS, scale=[1 / 255]), {"weight_above": 255}),
    "equal numbers": ([], replace(WEIGHTS, scale=[1 / 255] * 4, axis=1), {"weight_above": 255}),
    "guarded, -inf": ([kept], both(guarded, WEIGHTS), {"weight_above": 255, "nan_to_zero": 1}),
    "scores": ([SCORES], None, {"score_above": 127, "score_below": 128, "score_step": 0.25}),
    "int8 scores": ([Pair(0.5, 3, np.int8)], None, {"score_above": 124, "score_below": 131}),
    "scores that are cut": ([Pair(0.25, 4)], None, {"score_above": 251, "score_below": 4}),
    "scaled scores": (
        [by(0.5), SCORES, by(0.25), by(3)],
        None,
        {"scale": 0.5, "score_scale": 0.75, "score_step": 0.25},
    ),
    "scores and a bias, -inf": ([SCORES, biased], None, {"bias": 1, "score_scale": 1}),
    "scores that a mask hides, -inf": ([SCORES, kept], both(guarded, WEIGHTS), {"bias": 0}),
    "masked again, -inf": ([], both(live_keys, WEIGHTS), {"no_keys_to_zero": 1}),
    "scores that are capped": ([by(0.25), tanh, by(3)], None, {"scale": 0.25, "score_cap": 3}),
    "a cap and a bias, -inf": ([tanh, biased], None, {"bias": 1, "score_cap": 1}),
    "a cap, and weights": ([tanh, by(-2)], WEIGHTS, {"weight_above": 255, "score_cap": -2}),
    "both": ([SCORES, by(0.25)], WEIGHTS, {"weight_above": 255, "score_scale": 0.25}),
}


def low_of(case: str) -> float:
    """What scores of dead keys become."""
    return -np.inf if "-inf" in case else -1e9


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", PACKED)
def test_pairs_run_inside_the_node(case: str) -> None:
    steps, after, fields = PACKED[case]
    model = attention(*steps, after=after, low=low_of(case))
    lowered = lower(model)
    (plan,) = (p for p in plans(lowered) if p["op"] == "attention")
    for key, value in fields.items():
        text = plan[key]
        assert (float.fromhex(text) if "x" in text else int(text)) == value, key
    assert ("weight_step" in plan) == (after is not None)
    assert ("score_step" in plan) == any(isinstance(s, Pair) for s in steps)
    left = {n.op_type for n in lowered.model.graph}
    assert left.isdisjoint({"QuantizeLinear", "DequantizeLinear", "Softmax"})
    assert agrees(model, lowered)


def test_quantised_sides_are_packed_like_other_values() -> None:
    model = attention(SCORES, after=WEIGHTS, sides=Pair(1.0, 128))
    lowered = lower(model)
    assert "attention" in [p["op"] for p in plans(lowered)]
    nodes = list(lowered.model.graph)
    results = {o for n in nodes if is_pit_node(n) for o in n.outputs}
    quantised = [n for n in nodes if n.op_type == "QuantizeLinear"]
    assert len(quantised) == 6  # of each two, one is early (`early_quantise.py`)
    assert sum(n.inputs[0] in results for n in quantised) == 3
    assert agrees(model, lowered)


def by_input(g: GraphBuilder, x: str) -> str:
    """By a step that is known when the model runs."""
    zero = g.const(0, np.uint8)
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, "scale", zero), "scale", zero)


def by_size(g: GraphBuilder, s: str) -> str:
    """Divided by a number that is computed of a size."""
    size = g.op("Add", g.size("x", 1), g.const(4, np.int64))
    return g.op("Div", s, g.op("Sqrt", g.op("Cast", size, to=TensorProto.FLOAT)))


def twisted(g: GraphBuilder, x: str) -> str:
    """Another step between the two."""
    names = g.const(1 / 255), g.const(0, np.uint8)
    q = g.op("QuantizeLinear", x, *names)
    return g.op("DequantizeLinear", g.op("Reshape", q, g.op("Shape", q)), *names)


def eighths(g: GraphBuilder, x: str) -> str:
    """Numbers of 8 bits with a fraction."""
    names = g.const(1 / 16), g.weight("f8", np.zeros((), ir.DataType.FLOAT8E4M3FN.numpy()))
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, *names), *names)


NO_ZEROS = (Code.NO_KERNEL, "a product by groups of rows (e x m) has no kernel")
"""What is said where no fact names dead keys: a quantised 0 is not known to be 0."""
REFUSED: dict[str, tuple[list[Step], Step | None, Code, str]] = {
    "another step": (
        *([], replace(WEIGHTS, back=(1 / 256, 0)), Code.NO_LOWERING),
        "DequantizeLinear of weights is by another step or zero point than its QuantizeLinear",
    ),
    "another zero point": ([], replace(WEIGHTS, back=(1 / 255, 1)), *NO_ZEROS),
    "a step for each head": ([], Pair([0.01, 0.01, 0.02, 0.01], axis=1), *NO_ZEROS),
    "a fraction of 8 bits": ([], eighths, *NO_ZEROS),
    "another zero point of scores": (
        *([replace(SCORES, back=(0.25, 127))], None, Code.NO_LOWERING),
        "DequantizeLinear of scores is by another step or zero point than its QuantizeLinear",
    ),
    "a step of scores that is an input, -inf": (
        *([by_input], None, Code.NO_LOWERING),
        "DequantizeLinear of scores is not by one constant step and one zero point",
    ),
    "scores of a fraction of 8 bits, -inf": (
        *([eighths], None, Code.NO_LOWERING),
        "is of float8_e4m3fn and not of 8 or 16 bits, from and to float32",
    ),
    "something between": (
        *([], twisted, Code.NO_LOWERING),
        "DequantizeLinear of weights is of a value that no QuantizeLinear gives",
    ),
    "tiny steps": ([], Pair(1e-9), Code.NO_LOWERING, "of weights has steps of 9.99"),
    "weights twice": (
        *([], both(WEIGHTS, Pair(0.01)), Code.NO_LOWERING),
        "weights are quantised twice",
    ),
    "scores that a size scales behind that, -inf": (
        *([SCORES, by_size], None, Code.NO_LOWERING),
        "scores are quantised and then scaled by 'sqrt_",
    ),
    "a bias that is capped, -inf": (
        *([biased, tanh], None, Code.NO_LOWERING),
        "scores are capped together with a bias",
    ),
    "a size behind a cap, -inf": (
        *([tanh, by_size], None, Code.NO_LOWERING),
        "scores are capped and then scaled by 'sqrt_",
    ),
    "capped twice": ([tanh, tanh], None, Code.NO_LOWERING, "scores are capped twice"),
    "capped and rounded": (
        *([tanh, SCORES], None, Code.NO_LOWERING),
        "scores are capped and then quantised",
    ),
    "scores twice": ([SCORES, Pair(1.0, 9)], None, Code.NO_LOWERING, "scores are quantised twice"),
    "scores with a bias, -inf": (
        *([biased, SCORES], None, Code.NO_LOWERING),
        "scores are quantised together with a bias",
    ),
    "scores that another mask hides, -inf": (
        *([kept, SCORES], None, Code.NO_FACT),
        "scores may be NaN where they are quantised",
    ),
    "weights that may be NaN, -inf": (
        *([kept], both(live_keys, WEIGHTS), Code.NO_FACT),
        "weights may be NaN where they are quantised",
    ),
    "scores that may be NaN, -inf": (
        *([lambda g, s: g.op("Log", s), SCORES], None, Code.NO_FACT),
        "scores may be NaN where they are quantised",
    ),
}


def refusals(lowered: Lowered) -> set[tuple[Code, str]]:
    """Why contractions stay, with second reasons."""
    first = [r.refusal for r in lowered.report.nodes if r.refusal is not None]
    return {(r.code, r.reason) for each in first for r in (each, each.also) if r is not None}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_other_pairs_are_refused(case: str) -> None:
    steps, after, code, text = REFUSED[case]
    lowered = lower(attention(*steps, after=after, low=low_of(case)))
    assert "attention" not in [p["op"] for p in plans(lowered)]
    found = {reason for kind, reason in refusals(lowered) if kind is code}
    assert any(text in reason for reason in found), refusals(lowered)


def test_weights_of_a_row_without_keys_may_be_nan() -> None:
    """A mask of -inf gives 0 or NaN at dead keys, and what a quantised NaN is nobody says; but a
    live query sees its own key, if keys are not packed.
    """
    model = attention(after=WEIGHTS, low=-np.inf)
    lowered = lower(model)
    (plan,) = (p for p in plans(lowered) if p["op"] == "attention")
    assert (plan["nan_to_zero"], plan["pairs"]) == ("0", "1")
    assert agrees(model, lowered)
    model = attention(after=both(guarded, WEIGHTS), low=-np.inf)
    lowered = lower(model)
    (plan,) = (p for p in plans(lowered) if p["op"] == "attention")
    assert plan["nan_to_zero"] == "1"
    assert agrees(model, lowered)


@pytest.mark.parametrize(
    ("steps", "after", "what"),
    [
        ([], WEIGHTS, "weights are quantised"),
        ([SCORES], None, "scores are quantised"),
        ([tanh], None, "scores are capped"),
    ],
)
def test_a_gpu_refuses_them(steps: list[Step], after: Step | None, what: str) -> None:
    lowered = lower(attention(*steps, after=after), "cuda")
    assert "attention" not in [p["op"] for p in plans(lowered)]
    assert (Code.NO_LOWERING, f"{what}, on cuda") in refusals(lowered)
