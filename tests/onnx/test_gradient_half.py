"""Gradients of float16 models against those of the same model in float32.

Both get the same numbers, which float16 has. A gradient is summed in float32 and rounded once, so
it lies within half a unit in the last place: 2^-11 of it, or 2^-25 where float16 is subnormal. What
was rounded on the way adds as much each time.

Scatters that add are not here: ONNX Runtime's CPU runs none in float16, not even forward.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitc.importer.load import load_model
from pitc.passes.grad.loss import Loss, add_loss
from pitc.passes.grad.names import value_of
from tests.gradient_check import Run, gradient_model, reference, runtime

RNG = np.random.default_rng(16)
HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
ROUNDING, SUBNORMAL = 2.0**-11, 2.0**-25
SUMS = 1e-5  # of sums in float32
LOOK_UPS = ("Gather", "GatherElements", "GatherND", "ScatterElements")
Feeds = dict[str, Any]
MANY = 70_000  # more than float16 counts


def f(*shape: int) -> Any:
    """Normal numbers that float16 has."""
    return RNG.normal(size=shape).astype(HALF).astype(SINGLE)


def apart(*shape: int) -> Any:
    """Numbers of which none are equal."""
    size = int(np.prod(shape))
    return (RNG.permutation(size).reshape(shape) - size // 2).astype(SINGLE) / 8


def i(*shape: int, below: int) -> Any:
    """Places, of which some come twice."""
    return np.asarray(RNG.integers(0, below, shape))


@dataclass(frozen=True)
class Case:
    """A node, and the gradient of each of its operands of floats.

    Args:
        op: The operator.
        operands: In float32 where they are floats.
        attributes: Of the node.
        roundings: How often a gradient is rounded at most.
        factors: Of the results in the loss, drawn once where they are not given.
    """

    op: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    roundings: int = 1
    factors: Feeds = field(default_factory=dict)

    @property
    def title(self) -> str:
        shapes = ",".join("x".join(map(str, np.shape(o))) for o in self.operands if o is not None)
        return f"{self.op}({shapes})"


HUNDRED = np.full((1, 1, 1, 1), 100, HALF)
CASES = [
    Case("Gather", (f(50, 8), i(3, 7, below=50))),
    Case("Gather", (f(5, 3), np.full(5000, 2))),  # a sum in float16 stays where 1 is half a unit
    Case("Gather", (f(3, 5, 2), i(4, below=5)), {"axis": 1}),
    Case("Gather", (f(3, 5), i(below=5)), {"axis": 1}),
    Case("Gather", (f(50, 8), i(0, 7, below=50))),
    Case("Gather", (f(1, 1), i(1, below=1))),
    Case("Gather", (f(4, 0), i(2, below=4))),
    Case("GatherElements", (f(6, 4), i(3, 4, below=6))),
    Case("GatherElements", (f(4, 2), np.full((3000, 2), 3))),
    Case("GatherElements", (f(1, 1), i(1, 1, below=1))),
    Case("GatherElements", (f(6, 4), i(0, 4, below=6))),
    Case("GatherND", (f(4, 5, 2), i(6, 2, below=4))),
    Case("GatherND", (f(3, 2), np.full((4000, 1), 1))),
    Case("GatherND", (f(2, 5, 3), i(2, 4, 1, below=5)), {"batch_dims": 1}),
    Case("GatherND", (f(1, 1), i(1, 2, below=1))),
    Case("GatherND", (f(4, 5), i(0, 2, below=4))),
    Case("ScatterElements", (f(6, 4), i(3, 4, below=6), f(3, 4))),
    Case("ScatterElements", (f(1, 1), i(1, 1, below=1), f(1, 1))),
    Case("ScatterElements", (f(6, 4), i(0, 4, below=6), f(0, 4))),
    Case("ScatterND", (f(6, 4), np.array([[1], [4]]), f(2, 4))),
    Case(
        "Slice", (f(7, 5), np.array([1, 0]), np.array([7, 4]), np.array([0, 1]), np.array([2, 1]))
    ),
    Case("Slice", (f(7, 5), np.array([-1]), np.array([-9]), np.array([0]), np.array([-2]))),
    Case("Slice", (f(1, 5), np.array([0]), np.array([1]), np.array([0]), np.array([1]))),
    Case("Slice", (f(7, 5), np.array([3]), np.array([3]), np.array([1]), np.array([1]))),
    Case("ReverseSequence", (f(5, 3), np.array([2, 5, 1]))),
    Case("Trilu", (f(4, 5), np.array(1))),
    Case("Pad", (f(4, 5), np.array([1, 2, 2, 1])), {"mode": "reflect"}),
    Case("TopK", (apart(5, 6), np.array([3]))),
    Case("MaxPool", (apart(1, 2, 9),), {"kernel_shape": [3]}),
    Case("AveragePool", (f(1, 2, 9),), {"kernel_shape": [3], "pads": [1, 1]}, 2),
    Case("AveragePool", (f(1, 1, 300, 300),), {"kernel_shape": [300, 300]}, factors={"c": HUNDRED}),
    Case("GlobalAveragePool", (f(1, 2, 300, 300),)),
    Case("Resize", (f(1, 1, 6), None, None, np.array([1, 1, 4]))),
    Case("Resize", (f(1, 1, 6), None, None, np.array([1, 1, 9])), {"mode": "linear"}),
    Case("ReduceMean", (f(MANY, 2), np.array([0]))),
    Case("ReduceMean", (f(1, 1), np.array([0]))),
    Case("ReduceMean", (f(0, 3), np.array([1]))),
    Case("ReduceMax", (np.zeros((MANY, 2), SINGLE), np.array([0]))),
    Case("ReduceMin", (f(1, 3), np.array([0]))),
    Case("ReduceProd", (f(3, 4), np.array([1])), {}, 4),
    Case("LayerNormalization", (f(3, 8), f(1), f(8)), {}, 4),
    Case("LayerNormalization", (f(3, 8), f(8), f(8)), {}, 3),
]


def with_loss(case: Case, dtype: np.dtype, symbolic: bool) -> tuple[onnx.ModelProto, Feeds]:
    """A model with the loss sum(y * c), and its feeds."""
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    feeds: Feeds = {}
    model = helper.make_model(
        helper.make_graph([], "half", [], []),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    graph = model.graph
    for k, x in enumerate(case.operands):
        if x is None:
            continue
        if x.dtype == SINGLE:
            feeds[f"x{k}"] = x.astype(dtype)
            graph.input.append(declared(f"x{k}", kind, x.shape, symbolic))
        elif case.op in LOOK_UPS:
            feeds[f"x{k}"] = x
            graph.input.append(declared(f"x{k}", TensorProto.INT64, x.shape, False))
        else:
            graph.initializer.append(numpy_helper.from_array(x, f"x{k}"))
    names = ["" if x is None else f"x{k}" for k, x in enumerate(case.operands)]
    results = ["y", "places"] if case.op == "TopK" else ["y"]
    graph.node.append(helper.make_node(case.op, names, results, **case.attributes))
    graph.output.append(onnx.ValueInfoProto(name="y"))
    (y,) = runtime(model, feeds)
    factors = np.ones(y.shape) if y.size > MANY // 20 else RNG.normal(size=y.shape)
    feeds["c"] = case.factors.setdefault("c", factors.astype(HALF)).astype(dtype)
    graph.input.append(declared("c", kind, y.shape, symbolic))
    graph.node.append(helper.make_node("Mul", ["y", "c"], ["t"]))
    graph.node.append(helper.make_node("ReduceSum", ["t"], ["loss"], keepdims=0))
    graph.output[0].name = "loss"
    return model, feeds


def declared(name: str, kind: int, shape: Any, symbolic: bool) -> onnx.ValueInfoProto:
    """An input, of which all sizes may be symbols."""
    sizes = [f"{name}_{d}" if symbolic else n for d, n in enumerate(shape)]
    return helper.make_tensor_value_info(name, kind, sizes)


def gradients_of(
    model: onnx.ModelProto, feeds: Feeds, wrt: list[str], run: Run = runtime
) -> list[Any]:
    """The gradients of the loss."""
    made, found = gradient_model(model, "loss", wrt)
    names = [o.name for o in made.graph.output]
    results = dict(zip(names, run(made, feeds), strict=True))
    return [results[found.of[x]] for x in wrt]


def assert_near(got: Any, single: Any, roundings: int, factor: float = 1.0) -> None:
    """A float16 gradient lies within so many roundings of a float32 one.

    Args:
        got: In float16.
        single: In float32.
        roundings: How often it was rounded.
        factor: The largest number that a rounded one was multiplied with.
    """
    want = single.astype(np.float64)
    # what was rounded before a sum may be larger than the sum
    size = np.max(np.abs(want), initial=0) if roundings > 1 else np.abs(want)
    bound = (
        ((1 + ROUNDING) ** roundings - 1) * size
        + roundings * SUBNORMAL * factor
        + SUMS * np.abs(want)
    )
    assert (got.dtype, got.shape) == (HALF, want.shape)
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound), (got, want)


@pytest.mark.parametrize(
    ("case", "symbolic"),
    list(product(CASES, (False, True))),
    ids=lambda x: getattr(x, "title", "symbolic" if x is True else ""),
)
def test_a_node(case: Case, symbolic: bool) -> None:
    wrt = [f"x{k}" for k, x in enumerate(case.operands) if x is not None and x.dtype == SINGLE]
    wants = gradients_of(*with_loss(case, SINGLE, symbolic), wrt)
    for got, want in zip(gradients_of(*with_loss(case, HALF, symbolic), wrt), wants, strict=True):
        assert_near(got, want, case.roundings)


def test_ties_beyond_what_float16_counts() -> None:
    """By ONNX's reference, which sums float16 in float16."""
    case = Case("ReduceMax", (np.zeros((MANY, 2), SINGLE), np.array([0])))
    (want,) = gradients_of(*with_loss(case, SINGLE, False), ["x0"])
    (got,) = gradients_of(*with_loss(case, HALF, False), ["x0"], reference)
    assert_near(got, want, 1)


def scores_model(dtype: np.dtype, rows: int, loss: Loss) -> onnx.ModelProto:
    """A model that gives scores, with a loss."""
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    inputs = [declared("x", kind, (rows, 3), False)]
    if loss.mask:
        inputs.append(declared(loss.mask, TensorProto.BOOL, (rows, 1), False))
    if loss.weights:
        inputs.append(declared(loss.weights, kind, (3,), False))
    node = helper.make_node("Neg", ["x"], ["scores"])
    graph = helper.make_graph(
        [node], "scores", inputs, [declared("scores", kind, (rows, 3), False)]
    )
    opset = [helper.make_opsetid("", 18)]
    model = load_model(helper.make_model(graph, opset_imports=opset, ir_version=10))
    name = add_loss(model, loss)
    model.graph.outputs[:] = [value_of(model, name)]
    value_of(model, name).name = "loss"
    return ir.to_proto(model)


@pytest.mark.parametrize("run", [runtime, reference])
@pytest.mark.parametrize("rows", [1, 2, MANY])
@pytest.mark.parametrize(
    "loss",
    [
        Loss("cross_entropy", "scores"),
        Loss("cross_entropy", "scores", ignore_index=None),
        Loss("cross_entropy", "scores", weights="weights"),
        Loss("mse", "scores"),
        Loss("mse", "scores", mask="mask"),
    ],
    ids=["classes", "all-classes", "weighted-classes", "numbers", "masked-numbers"],
)
def test_a_mean_over_labels(loss: Loss, rows: int, run: Run) -> None:
    x = f(rows, 3)
    by_class = loss.kind == "cross_entropy"
    labels = i(rows, below=3) if by_class else f(rows, 3)
    if by_class and loss.ignore_index is not None:
        labels[1::3] = loss.ignore_index
    mask = np.arange(rows)[:, None] % 8 != 1
    found = []
    for dtype in (SINGLE, HALF):
        typed = {"x": x, "weights": np.asarray([1, 2, 0.5])} | (
            {} if by_class else {"labels": labels}
        )
        feeds = {k: v.astype(dtype) for k, v in typed.items()} | {"mask": mask}
        feeds.setdefault("labels", labels)
        model = scores_model(dtype, rows, loss)
        given = {k: v for k, v in feeds.items() if k in {x.name for x in model.graph.input}}
        (value,) = run(model, given)
        found.append((value, *gradients_of(model, given, ["x"], run)))
    (want, want_g), (got, got_g) = found
    if run is runtime:  # the reference takes means of float16 in float16
        assert_near(got, want, 3)
    assert_near(got_g, want_g, 4, 1.0 if by_class else 2 * float(np.abs(x + labels).max()))
