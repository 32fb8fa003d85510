"""Norms of rows that rounding nodes read give both: float32, and what these nodes round it to.

    y = LayerNormalization(x, gamma, beta)        y, z = Norm(x, gamma, beta)
    Contract(rounded)(y, w)                  ->   Contract(rounded, stored=a)(z, w)
    Add(y, ..)                                    Add(y, ..)

Other readers see the float32 numbers. An output that is read by no node is not written. A norm that
no such node reads stays with ONNX Runtime.
"""

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import attribute, is_pit_node, node_name
from pitc.ir.plans.whole import Norm
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed, set_plan
from pitc.passes.lower.rounded import Readers
from pitc.passes.regions.matrix import dims_of
from pitc.passes.rules.record import operator_of

EPSILON = 1e-5
"""Where a node has none."""
WIDEST = 1 << 16
"""Columns of a row: it is read three times, and should not come from memory each time."""


def make_norms(packed: Packed) -> None:
    """Make packed nodes of norms that rounding nodes read."""
    if not packed.graph.target.rounds:
        return
    sources = {made: source for source, made in packed.log.made.items()}
    for node in list(packed.graph.model.graph):
        plan = norm_of(packed.graph, node)
        if plan is None:
            continue
        out, rounding = node.outputs[0], list[tuple[ir.Node, int, Readers]]()
        for use in out.uses():
            readers = Readers([])
            taken = readers.add(packed, out, use.node, use.idx)
            if taken and readers.are_all_rounding(packed) and readers.nodes:
                rounding.append((use.node, use.idx, readers))
        if rounding:
            _make(packed, node, plan, sources.get(node, node))
        for reader, place, readers in rounding:
            reader.replace_input_with(place, node.outputs[1])
            readers.store()


def norm_of(graph: Graph, node: ir.Node) -> Norm | None:
    """The plan of a node that norms the last dimension of float32, of a known size; else None."""
    centred = None if is_pit_node(node) else operator_of(node).centres
    if centred is None or len(node.outputs) != 1:
        return None
    x, *factors = (value for value in node.inputs if value is not None)
    n, dims = _extent(factors[0]) if factors else None, dims_of(graph, x)
    fits = n is not None and 1 <= n <= WIDEST and dims is not None and dims[-1] == n
    alike = all(_extent(factor) == n for factor in factors)
    floats = all(value.dtype == ir.DataType.FLOAT for value in (x, *factors))
    rank = len(dims or ())
    last = attribute(node, "axis", -1) in (-1, rank - 1)
    if n is None or not (fits and alike and floats and last):
        return None
    if attribute(node, "stash_type", ir.DataType.FLOAT) != ir.DataType.FLOAT:
        return None
    epsilon = float(attribute(node, "epsilon", EPSILON))
    return Norm(n=n, epsilon=epsilon, centred=centred, bias=len(factors) > 1)


def _extent(factor: ir.Value) -> int | None:
    """How many numbers a vector has."""
    shape = factor.shape
    extent = shape[0] if shape is not None and len(shape) == 1 else None
    return extent if isinstance(extent, int) else None


def _make(packed: Packed, node: ir.Node, plan: Norm, source: ir.Node) -> None:
    """Let a node compute the plan."""
    out, name = node.outputs[0], node_name(source)
    dims = dims_of(packed.graph, out)
    operands = [value for value in node.inputs if value is not None]
    node.name = packed.build.label(name, plan.op if node is source else f"packed {plan.op}")
    node.metadata_props.update({SOURCE: name, RULE: plan.op})
    packed.log.sources[node] = source
    set_plan(node, plan, dict(zip(plan.operands, operands, strict=True)))
    node.resize_outputs(2)
    node.outputs[1].name = packed.build.names.unique(f"{out.name}.bfloat16", 1)
    for value, kind in zip(node.outputs, (ir.DataType.FLOAT, ir.DataType.BFLOAT16), strict=True):
        value.type, value.shape = ir.TensorType(kind), None if dims is None else declared(dims)
