"""Nodes whose operands have constants, for tests of what the constants say of the result."""

from functools import cache
from typing import Any

import numpy as np
import onnx

from pitc.ir.constant import Constant, Range
from pitc.ir.graph import NodeView
from tests.rule_proof import Const, Sample, analysed

F2, F4, F8, I1, I4, I8, U1, B = (
    *("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"),
)
BRAIN, INT4 = onnx.TensorProto.BFLOAT16, onnx.TensorProto.INT4
HIDDEN, BELOW = Range(-np.inf, -9e3, True), Range(-2e4, -1e4)


@cache
def view(op: str, *types: str, bounds: tuple[float, ...] = (), **attributes: Any) -> NodeView:
    """A node of an operator on operands of some types."""
    extra = tuple(Const(np.array(b, types[0])) for b in bounds)
    like = [np.ones(2, t) for t in (attributes.pop("like", None),) if t is not None]
    operands = (*(np.ones(2, t) for t in types), *extra, *like)
    domain, opset = attributes.pop("domain", ""), attributes.pop("opset", 21)
    graph = analysed(Sample(op, operands, attributes, domain, opset))
    return NodeView(graph, graph.nodes[0])


def to(source: str, target: str | int) -> NodeView:
    """A Cast."""
    number = (
        target
        if isinstance(target, int)
        else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
    )
    return view("Cast", source, to=number)


def same(a: Constant, b: Constant) -> bool:
    """The same constant: bools are no numbers in reports."""
    return repr(a) == repr(b) if isinstance(a, bool) or isinstance(b, bool) else a == b


@cache
def filled(value: Any) -> NodeView:
    """A ConstantOfShape."""
    graph = analysed(
        Sample(
            "ConstantOfShape",
            (np.ones(1, np.int64),),
            {"value": onnx.numpy_helper.from_array(np.array([value]))},
        )
    )
    return NodeView(graph, graph.nodes[0])


def retyped(op: str, *types: str, place: str, dtype: Any, **attributes: Any) -> NodeView:
    """A node one of whose values has an unknown type, or another one."""
    operands = tuple(np.ones(2, t) for t in types)
    graph = analysed(Sample(op, operands, attributes))
    graph[place].dtype = dtype
    return NodeView(graph, graph.nodes[0])
