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
from pitc.passes.regions.matrix import dims_of, has_kernels, is_vector, same_dims, type_of


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
    start = ahead(graph, product)
    reader = only_reader(graph, start)
    vector = _other_operand(reader, start)
    if bias and reader is not None and is_vector(vector, n):
        found = replace(found.then(graph, reader.outputs[0]), bias=vector)
    activation = activation_behind(graph, ahead(graph, found.result))
    if activation is not None:
        found = replace(found.then(graph, activation.result), activation=activation.name)
    start = ahead(graph, found.result)
    reader = only_reader(graph, start)
    other = _other_operand(reader, start)
    if reader is None or other is None or other is start or not _can_be_added(graph, start, other):
        return found
    return replace(found.then(graph, reader.outputs[0]), residual=other)


def _other_operand(reader: ir.Node | None, value: ir.Value) -> ir.Value | None:
    """The other operand of an Add that is the only reader of a value."""
    if reader is None or reader.domain or reader.op_type != "Add":
        return None
    return reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]


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
    add = only_reader(graph, split)
    other = _other_operand(add, split)
    if add is None or other is None or add.outputs[0].is_graph_output():
        return None
    tensor = other.const_value if other.is_initializer() and not other.is_graph_input() else None
    if tensor is None or tensor.dtype != type_of(graph, split) or tensor.size != n:
        return None
    rows, *columns = dims_of(graph, split) or (None,)
    made, added = dims_of(graph, product) or (), [int(d) for d in tensor.shape.numpy()]
    if not same_dims([rows], made[:1]) or added[-len(columns) :] != columns:
        return None  # it is added along other dimensions
    ir.convenience.replace_all_uses_with(add.outputs[0], split)
    return other
