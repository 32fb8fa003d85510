"""Gradients of single nodes by graphs, and what they must be: by unit vectors, by differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from pitc.errors import ModelError
from pitc.importer.load import load_model
from pitc.ir.graph import Graph
from pitc.passes.exprs.derive import derive
from pitc.passes.grad.backward import Backward
from pitc.passes.grad.reverse import gradients
from tests.gradient_check import gradient_model

Array = Any
Function = Callable[[Array], Array]
STEP = 1e-5
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Node:
    """A node with one result `y`; operands `x0`, `x1`, .. are inputs unless they are constants.

    Args:
        op: Its operator.
        operands: Numbers; None for an absent one.
        attributes: Its attributes.
        constants: The places of constants.
        symbolic: Extents of operand 0 are symbols, but for the channels.
        opset: Its operator set.
        outputs: Names of its outputs.
        domain: Of the operator.
    """

    op: str
    operands: Sequence[Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    symbolic: bool = False
    opset: int = 21
    outputs: tuple[str, ...] = ("y",)
    domain: str = ""

    @property
    def feeds(self) -> dict[str, Array]:
        """The operands that are inputs."""
        given = {f"x{i}": x for i, x in enumerate(self.operands) if x is not None}
        return {k: x for k, x in given.items() if int(k[1:]) not in self.constants}

    def model(self, rank: int | None = None) -> onnx.ModelProto:
        """The node; with a rank of the result, the sum of the result times `c`."""
        inputs = [_declared(k, x, self.symbolic) for k, x in self.feeds.items()]
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.operands)]
        nodes = [
            helper.make_node(self.op, names, self.outputs, domain=self.domain, **self.attributes)
        ]
        out = "y"
        if rank is not None:
            kind = helper.np_dtype_to_tensor_dtype(self.operands[0].dtype)
            sizes = [f"c{d}" for d in range(rank)]
            inputs.append(helper.make_tensor_value_info("c", kind, sizes))
            nodes.append(helper.make_node("Mul", ["y", "c"], ["t"]))
            nodes.append(helper.make_node("ReduceSum", ["t"], ["loss"], keepdims=0))
            out = "loss"
        weights = [onnx.numpy_helper.from_array(self.operands[i], f"x{i}") for i in self.constants]
        outputs = [onnx.ValueInfoProto(name=out)]
        graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def result(self) -> Array:
        """What ONNX Runtime gives."""
        return run(self.model(), self.feeds)["y"]

    def gradients(self, c: Array, *wrt: int, by: str = "ort") -> list[Array]:
        """Gradients of operands, by the graph."""
        names = [f"x{i}" for i in wrt]
        model, found = gradient_model(self.model(np.ndim(c)), "loss", names)
        results = (run if by == "ort" else run_by_reference)(model, {**self.feeds, "c": c})
        return [results[found.of[name]] for name in names]

    def refusal(self) -> str:
        """Why there is no gradient of operand 0."""
        imported = load_model(self.model())
        graph = Graph(imported)
        derive(graph)
        build = Backward(graph, imported.graph)
        seed = build.number(1, self.operands[0].dtype)
        with pytest.raises(ModelError) as raised:
            gradients(graph, build, {"y": seed}, ["x0"])
        return str(raised.value)

    def by_units(self, c: Array, i: int = 0) -> Array:
        """The gradient of operand i, in which the result is linear: from unit vectors."""
        x = self.operands[i]
        session = session_of(self.model())
        found = np.zeros(x.shape, np.float64)
        for place in np.ndindex(x.shape):
            unit = np.zeros_like(x)
            unit[place] = 1
            column = session.run(None, {**self.feeds, f"x{i}": unit})[0]
            found[place] = np.sum(np.asarray(column, np.float64) * c)
        return found


def _declared(name: str, x: Array, symbolic: bool) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    images = symbolic and name == "x0"
    shape = [f"s{d}" if images and d != 1 else n for d, n in enumerate(x.shape)]
    return helper.make_tensor_value_info(name, kind, shape)


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session of ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Results by ONNX Runtime."""
    results = session_of(model).run(None, dict(feeds))
    return dict(zip((o.name for o in model.graph.output), results, strict=True))


def run_by_reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Results by ONNX's reference."""
    results = ReferenceEvaluator(model).run(None, dict(feeds))
    return dict(zip((o.name for o in model.graph.output), results, strict=True))


def by_differences(function: Function, x: Array, c: Array) -> Array:
    """The gradient of a function's result times `c`, by differences in float64."""
    found = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[place] = STEP
        change = function(x + step) - function(x - step)
        found[place] = np.sum(change * c) / (2 * STEP)
    return found


def windows(x: Array, attributes: Mapping[str, Any], places: Sequence[int], value: float) -> Array:
    """The elements of the window at each place, in the last dimension.

    Args:
        x: Images of channels.
        attributes: Of the pool.
        places: How many there are along each spatial dimension.
        value: Stands in the padding, and behind it.
    """
    kernel = attributes["kernel_shape"]
    n = len(kernel)
    strides, dilations = (attributes.get(a) or [1] * n for a in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * n
    for d, m in enumerate(places):
        at = np.arange(m)[:, None] * strides[d] + np.arange(kernel[d]) * dilations[d] - pads[d]
        inside = (at >= 0) & (at < x.shape[2 + d])
        x = np.take(x, np.where(inside, at, 0), axis=2 + d)
        x = np.where(inside.reshape(*inside.shape, *[1] * (x.ndim - 4 - d)), x, value)
        x = np.moveaxis(x, 3 + d, -1)
    return x.reshape(*x.shape[: 2 + n], -1)
