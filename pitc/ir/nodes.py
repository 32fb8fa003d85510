"""Small questions about `onnx_ir` nodes."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from pitc.ir.index import poly
from pitc.ir.plan import PROVIDERS
from pitc.ir.plans.base import Plan
from pitc.ir.plans.ops import parse

Array = npt.NDArray[Any]

#: A loop's body first takes the number of the trip and a condition; it gives a condition first.
FIXED = 2
PACKED, PLAN = "pitc", "pitc.plan"
"""The domain of packed nodes, and the key of their plan in `meta` (`passes/lower/packed.py`)."""
WHOLE = "pitc.whole"  # key in `meta` of a fused node: why it is not taken apart
REPEATS = "pitc.repeats"  # key in `meta` of a scatter that adds: several rows may go to one
#: Key in `meta` of a constant `[groups, rows, ..]`: the constant whose rows it holds, and which row
#: of that one each is.
ORDERED = "pitc.ordered"
PARTS = "pitc.parts"  # key in `meta` of a constant: names of the matrices that it holds, in order
EXPANDED = "pitc.expansions"  # key in `meta` of a model: its fused nodes that were taken apart
OVERRIDABLE_SINCE = 4  # IR version from which a caller may override initializers listed as inputs


def output_names(node: ir.Node) -> list[str]:
    """Names of the outputs that exist."""
    return [o.name for o in node.outputs if o.name]


def input_names(node: ir.Node) -> list[str]:
    """Names of the operands that are given."""
    return [x.name for x in node.inputs if x is not None and x.name]


def first_input(node: ir.Node) -> str:
    """Name of the first operand that is given; empty where there is none."""
    return next(iter(input_names(node)), "")


def first_output(node: ir.Node) -> str:
    """Name of the first output; empty where it is left out."""
    return node.outputs[0].name or ""


def node_name(node: ir.Node) -> str:
    """The node's name, or that of its first output."""
    return node.name or next(iter(output_names(node)), node.op_type)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """An attribute as int, float, str, list, numpy array or graph; the default when not set."""
    attr = node.attributes.get(name)
    if attr is None:
        return default
    match attr.type:
        case ir.AttributeType.TENSOR:
            return attr.as_tensor().numpy()
        case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
            return list(attr.value)
    return attr.value


def opset_of(graph: ir.Graph | ir.Model) -> int:
    """The version of the standard operators; 1 for a graph that imports none."""
    return graph.opset_imports.get("", 1)


def fused_parts(model: ir.Model) -> frozenset[ir.Node]:
    """The nodes that stand for the fused nodes of the source (`pitc.passes.expand`)."""
    return frozenset(node for found in model.meta.get(EXPANDED, ()) for node in found.members)


def is_plain_product(node: ir.Node) -> bool:
    """True for MatMul, and for a Gemm that neither scales nor transposes its left operand."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return False
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return all(attribute(node, k, v) == v for k, v in plain.items())


def is_pit_node(node: ir.Node) -> bool:
    """True for a node that one of pitc's execution providers runs, emitted or not."""
    if PLAN in node.meta:
        return True
    source = node.attributes.get("source")
    return node.op_type == "EPContext" and source is not None and source.value in PROVIDERS


def plan_of(node: ir.Node) -> Plan:
    """The plan of a PIT node: its text says it once the node is emitted.

    Raises:
        WrongPlanError: It has none.
    """
    if PLAN in node.meta:
        return cast(Plan, node.meta[PLAN])
    text = node.attributes.get("ep_cache_context")
    return parse("" if text is None else text.as_string())


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node; None for other nodes, sparse values and strings."""
    if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return None
    (attr,) = node.attributes.values()
    name = node.outputs[0].name
    match attr.name:
        case "value" if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
            # `as_tensor` asks whether it keeps a protocol, member by member: a millisecond
            return cast(ir.TensorProtocol, attr.value)
        case "value_int" | "value_ints":
            return ir.tensor(np.array(attr.value, np.int64), name=name)
        case "value_float" | "value_floats":
            return ir.tensor(np.array(attr.value, np.float32), name=name)
    return None


def is_if(node: ir.Node) -> bool:
    """True for an If node."""
    return node.op_type == "If" and not node.domain


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The bodies of a control-flow node."""
    for attr in node.attributes.data.values():  # those of a UserDict itself take several steps
        if attr.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) or attr.is_ref():
            continue
        if attr.type == ir.AttributeType.GRAPH:
            yield attr.as_graph()
        else:
            yield from attr.as_graphs()


def captures(node: ir.Node) -> Iterator[str]:
    """Names of outer values that the node's bodies mention."""
    for body in bodies(node):
        inner = {o for n in body for o in output_names(n)}
        inner.update(v.name or "" for v in (*body.inputs, *body.initializers.values()))
        for n in body:
            yield from (x.name for x in n.inputs if x is not None and x.name not in inner)  # type: ignore[misc]
            yield from (x for x in captures(n) if x not in inner)
        yield from (o.name for o in body.outputs if o.name and o.name not in inner)


def poly_array(x: Array) -> Array:
    """An integer array as an object array of polynomials."""
    out = np.empty(x.shape, object)
    for i in np.ndindex(x.shape):
        out[i] = poly(x[i])
    return out
