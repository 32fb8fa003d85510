"""A small builder of ONNX graphs: every call adds one node and returns the name of its result."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
Array = npt.NDArray[Any]

MIN_OPSET = 13


def element_type(dtype: npt.DTypeLike) -> int:
    """The ONNX number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class GraphBuilder:
    """Builds one ONNX graph, node by node, in topological order.

    Args:
        name: Graph name.
        opset: Version of the default operator set, 13 or newer.
        constant_nodes: Small constants become `Constant` nodes, as tracing exporters write them,
            instead of initializers.
    """

    def __init__(self, name: str, opset: int = 17, constant_nodes: bool = False) -> None:
        if opset < MIN_OPSET:
            raise ValueError(f"opset {opset} is older than {MIN_OPSET}")
        self.name, self.opset, self.constant_nodes = name, opset, constant_nodes
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._domains: set[str] = set()

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[Dim, ...]) -> str:
        """Declare a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type(dtype), shape))
        return name

    def output(self, value: str, name: str, dtype: npt.DTypeLike, shape: tuple[Dim, ...]) -> str:
        """Make a node's result a graph output, under the output's name everywhere."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, known in enumerate(names):
                    if known == value:
                        names[i] = name
        self._outputs.append(helper.make_tensor_value_info(name, element_type(dtype), shape))
        return name

    def weight(self, name: str, array: Array) -> str:
        """Add an initializer, or use the one of that name again."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """A small constant; equal ones are shared, as exporters share them."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            if self.constant_nodes:
                tensor = numpy_helper.from_array(array)
                self._nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
            else:
                self.weight(name, array)
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A constant int64 vector: axes, shapes, bounds."""
        return self.const(values, np.int64)

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.ops(1, op_type, *inputs, domain=domain, **attributes)[0]

    def ops(
        self, count: int, op_type: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with some outputs and return their names."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        outputs = [name, *(f"{name}.{k}" for k in range(1, count))]
        self._domains.add(domain)
        node = helper.make_node(op_type, inputs, outputs, name, domain=domain, **attributes)
        self._nodes.append(node)
        return outputs

    def size(self, value: str, axis: int) -> str:
        """The run-time size of one dimension, as an int64 scalar."""
        return self.op("Gather", self.op("Shape", value), self.const(axis, np.int64), axis=0)

    def dims(self, *sizes: Dim) -> str:
        """An int64 shape vector from numbers and scalar values."""
        if all(isinstance(size, int) for size in sizes):
            return self.const(sizes, np.int64)
        parts = [
            self.ints(size) if isinstance(size, int) else self.op("Unsqueeze", size, self.ints(0))
            for size in sizes
        ]
        return self.op("Concat", *parts, axis=0)

    def reduce(self, op_type: str, value: str, axis: int, keepdims: int = 1) -> str:
        """Reduce one axis; ReduceSum has axes as an input since opset 13, others since 18."""
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.op(op_type, value, self.ints(axis), keepdims=keepdims)
        return self.op(op_type, value, axes=[axis], keepdims=keepdims)

    def model(self) -> onnx.ModelProto:
        """The finished model, checked by the ONNX checker."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._weights.values())
        )
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(domain, 1) for domain in sorted(self._domains - {""})]
        version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
        model = helper.make_model(graph, opset_imports=imports, ir_version=version)
        onnx.checker.check_model(model)
        return model
