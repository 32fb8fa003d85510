"""Checks gradients of one-node models against central differences in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pitc.importer.load import load_model
from pitc.passes.grad.gradient import Gradients, add_gradients
from tests.rule_proof import Const, Sample, array_of, node_model

Array = Any
STEP, TOLERANCE = 1e-6, 2e-7
"""Of a central difference in float64, whose error is about the rounding of results over the step."""
TOLERANCE_32 = 2e-4


def in_float64(sample: Sample) -> Sample:
    """The sample with its floats in float64."""

    def wide(operand: Any) -> Any:
        if isinstance(operand, Const):
            return Const(wide(operand.value))
        is_float = operand is not None and operand.dtype == np.float32
        return operand.astype(np.float64) if is_float else operand

    return replace(sample, operands=tuple(map(wide, sample.operands)))


def loss_model(sample: Sample, symbolic: bool, wrt: list[int]) -> onnx.ModelProto:
    """The node, and the sum of its float results times numbers `c0`, `c1`, .. that are inputs."""
    constant = [i for i, o in enumerate(sample.operands) if isinstance(o, Const) and i not in wrt]
    model = node_model(sample, constant, symbolic)
    dtype = next(array_of(o).dtype for i, o in enumerate(sample.operands) if i in wrt)
    results = ReferenceEvaluator(model).run(None, feeds_of(sample, constant))
    graph, terms = model.graph, []
    del graph.output[:]
    for k, y in enumerate(results):
        if y is None or np.asarray(y).dtype != dtype:
            continue
        shape = [f"m{n}" if symbolic and n > 1 else n for n in np.shape(y)]
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        graph.input.append(helper.make_tensor_value_info(f"c{k}", kind, shape))
        graph.node.append(helper.make_node("Mul", [f"y{k}", f"c{k}"], [f"t{k}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"t{k}"], [f"s{k}"], keepdims=0))
        terms.append(f"s{k}")
    graph.node.append(helper.make_node("Sum", terms, ["loss"]))
    graph.output.append(onnx.ValueInfoProto(name="loss"))
    return model


def feeds_of(sample: Sample, constant: list[int]) -> dict[str, Array]:
    """The operands that are inputs."""
    return {
        f"x{i}": array_of(o)
        for i, o in enumerate(sample.operands)
        if o is not None and i not in constant
    }


def gradient_model(
    model: onnx.ModelProto, loss: str, wrt: list[str] | None
) -> tuple[onnx.ModelProto, Gradients]:
    """A model with gradients, as a proto."""
    imported = load_model(model)
    found = add_gradients(imported, loss, wrt)
    return ir.to_proto(imported), found


def central(model: onnx.ModelProto, loss: str, feeds: dict[str, Array], name: str) -> Array:
    """The gradient of an input by central differences."""
    run = ReferenceEvaluator(model)
    x = feeds[name]
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = x.copy()
            moved[place] += step
            sides.append(run.run([loss], {**feeds, name: moved})[0])
        found[place] = (np.sum(sides[0]) - np.sum(sides[1])) / (2 * STEP)
    return found
