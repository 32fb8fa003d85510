"""Contractions by a matrix, with the steps behind them that their node takes in.

    c = activation(a @ w + bias) + residual

A step is taken while its input is read by nothing else: a constant vector added, an activation
(`activation.py`), another value of the same shape added. A pack node in front is taken in as SRead
when only such contractions read it, an unpack node behind as SWrite; neither where the matrix is
computed when the model runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import is_pit_node, plan_of
from pitc.ir.plans.ops import Pack, Plan, Unpack
from pitc.passes.lower.activation import activation_behind
from pitc.passes.lower.builder import dims_of, has_kernels, same_dims, type_of
from pitc.passes.lower.rows import ahead, only_reader
from pitc.passes.lower.weight import (
    ComputedMatrix,
    Weight,
    bias_row,
    computed_matrix,
    constant_matrix,
    has_bias,
    is_large,
    is_vector,
)


@dataclass(slots=True)
class Gemm:
    """One contraction and what was taken into its node."""

    node: ir.Node
    source: ir.Value
    weight: Weight | ComputedMatrix
    result: ir.Value
    bias: ir.Value | None = None
    activation: str = "none"
    residual: ir.Value | None = None
    gather: ir.Node | None = None
    scatter: ir.Node | None = None
    input_relu: bool = False
    inside: list[ir.Value] = field(default_factory=list)

    @property
    def computed(self) -> bool:
        """True where the matrix is computed when the model runs."""
        return isinstance(self.weight, ComputedMatrix)

    @property
    def points(self) -> ir.Node | None:
        """The node whose rows are gathered or scattered."""
        return self.scatter or self.gather


def match_gemm(
    graph: Graph, node: ir.Node, taken: set[ir.Node], source_node: ir.Node | None = None
) -> Gemm | None:
    """What a contraction's node would compute; None where it stays as it is.

    Args:
        graph: The analysed graph, for the types and shapes of its own values.
        node: A MatMul or Gemm, of the source graph or made by the rewrite.
        taken: Additions that are part of another contraction's node; this one's is added.
        source_node: Where zeros are skipped, the contraction of the source graph; only there may
            the matrix be computed when the model runs.
    """
    source = node.inputs[0]
    weight: Weight | ComputedMatrix | None = constant_matrix(node)
    if weight is None and source_node is not None:
        weight = computed_matrix(graph, node, source_node)
    if (
        source is None
        or weight is None
        or not is_large(graph, weight)
        or not has_kernels(graph, source)
        or not _same_type(graph, source, weight.value)
    ):
        return None
    gemm = Gemm(node, source, weight, node.outputs[0])
    if has_bias(node):
        gemm.bias = bias_row(node, weight.n)
        if gemm.bias is None:
            return None
    else:
        _take_bias(graph, gemm)
    found = activation_behind(graph, ahead(graph, gemm.result))
    if found is not None:
        gemm.activation = found.name
        _take(graph, gemm, found.result)
    _take_residual(graph, gemm, taken)
    reader = None if gemm.computed else only_reader(graph, gemm.result)
    plan = _plan(reader)
    if reader is not None and isinstance(plan, Unpack) and _in_order(reader, plan.dims):
        gemm.scatter = reader
    return gemm


def _take(graph: Graph, gemm: Gemm, result: ir.Value) -> None:
    """Make a later value the result."""
    gemm.inside += [gemm.result, ahead(graph, gemm.result)]
    gemm.result = result


def _other_operand(reader: ir.Node | None, value: ir.Value) -> ir.Value | None:
    """The other operand of an Add that is the only reader of a value."""
    if reader is None or reader.domain or reader.op_type != "Add" or len(reader.inputs) != 2:
        return None
    return reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]


def _take_bias(graph: Graph, gemm: Gemm) -> None:
    start = ahead(graph, gemm.result)
    reader = only_reader(graph, start)
    other = _other_operand(reader, start)
    if reader is not None and is_vector(other, gemm.weight.n):
        gemm.bias = other
        _take(graph, gemm, reader.outputs[0])
        return
    packed = graph[gemm.result.name or ""].order < 0
    if packed and reader is not None and reader.op_type == "Reshape" and not reader.domain:
        _take_split_bias(graph, gemm, reader.outputs[0])


def _take_split_bias(graph: Graph, gemm: Gemm, split: ir.Value) -> None:
    """A constant added behind the Reshape that splits columns into heads comes in front of it."""
    add = only_reader(graph, split)
    other = _other_operand(add, split)
    if add is None or other is None or add.outputs[0].is_graph_output():
        return
    tensor = other.const_value if other.is_initializer() and not other.is_graph_input() else None
    if tensor is None or tensor.dtype != type_of(graph, split) or tensor.size != gemm.weight.n:
        return
    rows, *columns = dims_of(graph, split) or (None,)
    made, added = dims_of(graph, gemm.result) or (), [int(d) for d in tensor.shape.numpy()]
    if not same_dims([rows], made[:1]) or added[-len(columns) :] != columns:
        return  # it is added along other dimensions
    gemm.bias = other
    ir.convenience.replace_all_uses_with(add.outputs[0], split)


def _take_residual(graph: Graph, gemm: Gemm, taken: set[ir.Node]) -> None:
    start = ahead(graph, gemm.result)
    reader = only_reader(graph, start)
    other = _other_operand(reader, start)
    if reader is None or reader in taken or other is None or other is start:
        return
    dims = dims_of(graph, start)
    if (
        dims
        and same_dims(dims, dims_of(graph, other))
        and has_kernels(graph, other)
        and _same_type(graph, other, start)
    ):
        gemm.residual = other
        taken.add(reader)
        _take(graph, gemm, reader.outputs[0])


def _same_type(graph: Graph, x: ir.Value, y: ir.Value) -> bool:
    return type_of(graph, x) == type_of(graph, y)


def _plan(node: ir.Node | None) -> Plan | None:
    return plan_of(node) if node is not None and is_pit_node(node) else None


def _in_order(node: ir.Node, dims: tuple[str, ...]) -> bool:
    """True where all coordinates come first, in order, and one dimension is left."""
    coords = node.inputs[2]
    assert coords is not None and coords.shape is not None
    rank = coords.shape[0]
    return isinstance(rank, int) and dims == (*(f"c{k}" for k in range(rank)), "r")


def take_gathers(found: Sequence[Gemm]) -> None:
    """SRead: skip a pack node that only such contractions read."""
    takers = [g for g in found if not g.computed]
    first = {g.node for g in takers}
    for gemm in takers:
        pack = gemm.source.producer()
        plan = _plan(pack)
        if pack is None or not isinstance(plan, Pack) or not _in_order(pack, plan.dims):
            continue
        if all(u.node in first and u.idx == 0 for u in gemm.source.uses()):
            gemm.gather = pack
