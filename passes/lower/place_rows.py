"""Contractions read and give rows in the shape in which they are written.

    Reshape(x [b, s, k] -> [r, k]) -> Contract -> Reshape([r, n] -> [b, s, n])
    becomes    x [b, s, k] -> Contract -> [b, s, n]

Without such a value the result is brought into its shape behind the node.
"""

import onnx_ir as ir

from pitc.ir.plans.ops import Contract
from pitc.ir.sizes import sizes_known
from pitc.passes.lower.builder import declared, lead_of
from pitc.passes.lower.packed import Packed, operands_of
from pitc.passes.lower.rows import behind, with_shape
from pitc.passes.regions.matrix import dims_of, same_dims


def place_rows(packed: Packed) -> None:
    """Let every contraction read rows in the shape of its result, or bring that into its shape."""
    for node, plan in packed.contractions():
        if not plan.gather:
            _choose_source(packed, node, plan)
    for node, plan in packed.contractions():
        if not plan.scatter:
            _bring_into_shape(packed, node, plan)


def _choose_source(packed: Packed, node: ir.Node, plan: Contract) -> None:
    """Read rows in the shape in which they are given, where some value has them so."""
    graph, operands = packed.graph, operands_of(node)
    lead = lead_of(graph, node.outputs[0])
    found = (x for x in behind(graph, operands["a"]) if same_dims(lead_of(graph, x), lead))
    packed.become(node, plan, operands | {"a": next(found, operands["a"])})


def _bring_into_shape(packed: Packed, node: ir.Node, plan: Contract) -> None:
    """Give the result, whose rows are those of the left operand, its shape.

    Without known sizes there was no Reshape on the way, and other dimensions are other names.
    """
    graph, out = packed.graph, node.outputs[0]
    name, dims, lead = out.name or "", dims_of(graph, out), lead_of(graph, operands_of(node)["a"])
    sizes = graph[name].shape
    if sizes is None or not sizes_known(graph, sizes) or dims is None or dims[:-1] == lead:
        return
    like = ir.Value(name=name, type=out.type, shape=out.shape)
    rows = packed.build.unique(f"{name}.rows")
    readers, is_output = list(out.uses()), out.is_graph_output()
    out.name, out.shape = rows, None if lead is None else declared((*lead, plan.n))
    shaped = with_shape(graph, packed.build, out, like)
    for use in readers:
        use.node.replace_input_with(use.idx, shaped)
    if is_output:
        outputs = graph.model.graph.outputs
        outputs[outputs.index(out)] = shaped
    shaped.name = name
    packed.build.rebind(name, shaped)
