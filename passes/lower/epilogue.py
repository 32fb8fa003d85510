"""Steps behind a product become its epilogue.

    c = activation(a @ w + bias) + residual

A step is taken while its operand has no other reader: a constant vector added, an activation
(`activation.py`), another value of the same shape added.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import plan_of
from pitc.ir.plans.ops import Contract
from pitc.passes.lower.activation import activation_behind
from pitc.passes.lower.packed import Packed, operands_of
from pitc.passes.lower.panels import padded_bias
from pitc.passes.lower.rows import ahead, only_reader
from pitc.passes.regions.matrix import dims_of, has_kernels, is_vector, same_dims, tensor_of


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Steps behind a product.

    Args:
        result: What the last one gives; the product itself where there is none.
        bias: The vector that is added; None: none is.
        activation: As plans say it.
        residual: The value that is added last; None: none is.
        inside: Values on the way.
    """

    result: ir.Value
    bias: ir.Value | None = None
    activation: str = "none"
    residual: ir.Value | None = None
    inside: tuple[ir.Value, ...] = ()

    def then(self, graph: Graph, result: ir.Value) -> "Epilogue":
        """The same with a later result."""
        passed = (self.result, ahead(graph, self.result))
        return replace(self, result=result, inside=(*self.inside, *passed))


def epilogue_of(graph: Graph, product: ir.Value, n: int, *, bias: bool) -> Epilogue:
    """The steps behind a product of n columns that its node can take.

    Args:
        graph: The analysed graph.
        product: The product.
        n: Its columns.
        bias: A bias may be among them.
    """
    found = Epilogue(product)
    vector, total = _added(graph, ahead(graph, product))
    if bias and is_vector(vector, n):
        found = replace(found.then(graph, total), bias=vector)
    activation = activation_behind(graph, ahead(graph, found.result))
    if activation is not None:
        found = replace(found.then(graph, activation.result), activation=activation.name)
    start = ahead(graph, found.result)
    other, total = _added(graph, start)
    if other is None or not _can_be_added(graph, start, other):
        return found
    return replace(found.then(graph, total), residual=other)


def _added(graph: Graph, value: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    """What the only reader of a value adds to it, and the sum; None and the value: nothing."""
    reader = only_reader(graph, value)
    if reader is None or reader.domain or reader.op_type != "Add":
        return None, value
    other = reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]
    return other, reader.outputs[0]


def _can_be_added(graph: Graph, value: ir.Value, other: ir.Value) -> bool:
    dims = dims_of(graph, value)
    return bool(dims) and same_dims(dims, dims_of(graph, other)) and has_kernels(graph, other)


def fuse_epilogues(packed: Packed) -> None:
    """Let every contraction take the steps behind it."""
    for node, _ in packed.contractions():
        take_epilogue(packed, node)


def take_epilogue(packed: Packed, node: ir.Node) -> None:
    """Let a contraction take the steps behind it."""
    graph, operands, plan = packed.graph, operands_of(node), plan_of(node)
    out = node.outputs[0]
    assert isinstance(plan, Contract)
    split = None if plan.bias else _bias_behind_split(graph, out, plan.n)
    found = epilogue_of(graph, out, plan.n, bias=not plan.bias)
    bias = operands.get("bias") or split or found.bias
    taken = {"bias": _as_read(packed, bias, plan.n), "residual": found.residual}
    operands |= {name: value for name, value in taken.items() if value is not None}
    plan = replace(
        plan,
        bias="bias" in operands,
        activation=found.activation,
        residual=found.residual is not None,
    )
    packed.become(node, plan, operands, found.result, found.inside)


def _as_read(packed: Packed, bias: ir.Value | None, n: int) -> ir.Value | None:
    """A bias of n numbers, or none, as kernels read it: those of a GPU always add one, of float32
    and as long as all panels.
    """
    if packed.graph.target.pads_bias:
        return padded_bias(packed.build, bias, n)
    if bias is None or dims_of(packed.graph, bias) == (n,):
        return bias
    return packed.build.reshape(bias, [n])


def _bias_behind_split(graph: Graph, product: ir.Value, n: int) -> ir.Value | None:
    """A constant added behind the Reshape that splits columns of packed rows into heads: it comes
    in front of that, in place.
    """
    reshape = only_reader(graph, product)
    if graph[product.name or ""].order >= 0 or reshape is None:
        return None
    if reshape.op_type != "Reshape" or reshape.domain:
        return None
    split = reshape.outputs[0]
    other, total = _added(graph, split)
    tensor, rows = tensor_of(other), (dims_of(graph, product) or ())[:1]
    if tensor is None or tensor.size != n:
        return None
    if not same_dims(dims_of(graph, split), (*rows, *tensor.shape.numpy())):
        return None  # it is added along other dimensions
    ir.convenience.replace_all_uses_with(total, split)
    return other
