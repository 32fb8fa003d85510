"""Products of few terms become packed nodes.

MatMul(a, b)                       ->    SparseProduct(a, b)
MatMul(Transpose(a), b)            ->    SparseProduct(turned)(a, b)      k comes first in a
"""

from collections.abc import Mapping

import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.metadata import RULE, SOURCE
from pitc.ir.nodes import attribute, node_name
from pitc.ir.plans.whole import SparseProduct
from pitc.passes.lower.builder import declared
from pitc.passes.lower.packed import Packed
from pitc.passes.regions.few_terms import FewTerms
from pitc.passes.regions.form import Skip
from pitc.passes.regions.matrix import dims_of


def sum_few_terms(packed: Packed, skips: Mapping[ir.Node, Skip]) -> None:
    """Make packed nodes of products whose left operand holds few elements.

    Args:
        packed: Where they stand.
        skips: What nodes leave out.
    """
    for source in (n for n, skip in skips.items() if isinstance(skip, FewTerms)):
        node = packed.log.made.get(source, source)  # over live rows only, or as it was
        if node.op_identifier() != ("", "MatMul", ""):
            continue
        a, b = node.inputs
        assert a is not None and b is not None
        if node is not source and (b.shape is None or len(b.shape) != 2):
            continue  # columns of b are packed
        before, turned = a.producer(), False
        if before is not None and before.op_identifier() == ("", "Transpose", ""):
            order = attribute(before, "perm", None)
            x = before.inputs[0]
            if x is not None and order is not None and [*order] == [*range(1, len(order)), 0]:
                a, turned = x, True
        plan, name = SparseProduct(turned=turned), node_name(source)
        node.name = packed.build.label(name, plan.op if node is source else f"packed {plan.op}")
        node.metadata_props.pop(BRANCH, None)  # its readers decide where it stands
        node.metadata_props.update({SOURCE: name, RULE: plan.op})
        packed.log.sources[node] = source
        out, dims = node.outputs[0], dims_of(packed.graph, node.outputs[0])
        out.type = ir.TensorType(ir.DataType.FLOAT)
        out.shape = None if dims is None else declared(dims)
        packed.become(node, plan, {"a": a, "b": b})
