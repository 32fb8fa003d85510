"""Checks gradients of one-node models against central differences."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pitc.importer.load import load_model
from pitc.passes.grad.gradient import Gradients, add_gradients
from tests.rule_proof import Const, Sample, array_of, node_model

Array = Any
Run = Callable[[onnx.ModelProto, dict[str, Array]], list[Array]]
STEP, WIDE_STEPS = 1e-6, (3e-2, 3e-3)
"""Of differences in float64, and of ones whose results are rounded to float32."""
NEAR, NEAR_32 = 2e-5, 2e-3
"""Relative errors, of which the difference itself makes the most."""


def in_float64(sample: Sample) -> Sample:
    """The sample with its floats in float64."""

    def wide(operand: Any) -> Any:
        if isinstance(operand, Const):
            return Const(wide(operand.value))
        if operand is None or operand.dtype != np.float32:
            return operand
        return operand.astype(np.float64)

    return replace(sample, operands=tuple(map(wide, sample.operands)))


def float_operands(sample: Sample) -> list[int]:
    """The places of the operands of floats."""
    found = enumerate(sample.operands)
    return [i for i, o in found if o is not None and array_of(o).dtype.kind == "f"]


def reference(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The results by ONNX's reference, in any types."""
    with np.errstate(all="ignore"):
        return list(_evaluator(model.SerializeToString()).run(None, feeds))


def runtime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The results by ONNX Runtime, of those feeds that are inputs."""
    session = _session(model.SerializeToString())
    names = {x.name for x in session.get_inputs()}
    return list(session.run(None, {k: v for k, v in feeds.items() if k in names}))


# A difference runs one model hundreds of times.
@functools.lru_cache(maxsize=8)
def _evaluator(model: bytes) -> ReferenceEvaluator:
    return ReferenceEvaluator(model)


@functools.lru_cache(maxsize=8)
def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model, options)


class Differentiated:
    """A sample, summed up with random factors, and its gradients both ways.

    Args:
        sample: The node.
        symbolic: Extents of inputs are symbols.
        run: Computes the node, and differences of it.
    """

    def __init__(self, sample: Sample, symbolic: bool, run: Run) -> None:
        self.sample, self.run = sample, run
        self.wrt = float_operands(sample)
        operands = enumerate(sample.operands)
        constant = [i for i, o in operands if isinstance(o, Const) and i not in self.wrt]
        self.feeds = {
            f"x{i}": array_of(o)
            for i, o in enumerate(sample.operands)
            if o is not None and i not in constant
        }
        self.model = node_model(sample, constant, symbolic)
        self.terms: list[str] = []
        self._sum_up(symbolic, run(node_model(sample, constant, False), self.feeds))

    def _sum_up(self, symbolic: bool, results: list[Array]) -> None:
        """Add the loss: the sum of all float results, each times numbers of its shape."""
        rng, graph = np.random.default_rng(3), self.model.graph
        dtype = array_of(self.sample.operands[self.wrt[0]]).dtype
        del graph.output[:]
        terms = []
        for k, y in enumerate(results):
            if y is None or np.asarray(y).dtype != dtype:
                continue
            shape = [f"m{k}_{d}" if symbolic and n > 1 else n for d, n in enumerate(np.shape(y))]
            kind = helper.np_dtype_to_tensor_dtype(dtype)
            graph.input.append(helper.make_tensor_value_info(f"c{k}", kind, shape))
            graph.node.append(helper.make_node("Mul", [f"y{k}", f"c{k}"], [f"t{k}"]))
            graph.node.append(helper.make_node("ReduceSum", [f"t{k}"], [f"s{k}"], keepdims=0))
            terms.append(f"s{k}")
            self.feeds[f"c{k}"] = rng.normal(size=np.shape(y)).astype(dtype)
        self.terms = terms
        graph.node.append(helper.make_node("Sum", terms, ["loss"]))
        graph.output.append(onnx.ValueInfoProto(name="loss"))

    def gradient(self, i: int, run: Run | None = None, dtype: Any = None) -> Array:
        """The gradient of operand i, by the graph."""
        model, found = gradient_model(self.model, "loss", [f"x{i}"])
        feeds = self.feeds
        return dict(
            zip((o.name for o in model.graph.output), (run or self.run)(model, feeds), strict=True)
        )[found.of[f"x{i}"]]

    def differences(self, i: int, step: float) -> Array:
        """The same by differences of fourth order."""
        name = f"x{i}"
        x = self.feeds[name]
        found = np.zeros(x.shape, np.float64)
        for place in np.ndindex(x.shape):
            values = []
            for k in (-2, -1, 1, 2):
                moved = x.copy()
                moved[place] += k * step
                values.append(float(np.sum(self.run(self.model, {**self.feeds, name: moved})[0])))
            first, second, third, fourth = values
            found[place] = (first - 8 * second + 8 * third - fourth) / (12 * step)
        return found


def gradient_model(
    model: onnx.ModelProto, loss: str, wrt: list[str] | None
) -> tuple[onnx.ModelProto, Gradients]:
    """A model with gradients, as a proto."""
    imported = load_model(model)
    found = add_gradients(imported, loss, wrt)
    return ir.to_proto(imported), found
