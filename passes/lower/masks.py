"""A mask behind a sampled product is taken in: the node leaves 0 where it is dead as it is.

    Mul(Contract(tiles)(a, b, mask), Cast(mask))   ->   Contract(tiles)(a, b, mask)
    Where(mask, OuterProducts(a, b, mask), 0)      ->   OuterProducts(a, b, mask)

The mask has to be the one that the node reads, and a bool: what lives is multiplied by 1.
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.nodes import plan_of
from pitc.ir.plans.ops import Contract
from pitc.ir.plans.whole import OuterProducts
from pitc.passes.lower.packed import Packed, operands_of
from pitc.passes.lower.rows import only_reader
from pitc.passes.regions.matrix import tensor_of, type_of


def fuse_masks(packed: Packed) -> None:
    """Let sampled products take in their masks."""
    for node in packed.nodes():
        plan, out = plan_of(node), node.outputs[0]
        if not (isinstance(plan, OuterProducts) and plan.masked) and not (
            isinstance(plan, Contract) and plan.tiles
        ):
            continue
        operands, reader = operands_of(node), only_reader(packed.graph, out)
        mask = operands["mask"]
        is_bool = type_of(packed.graph, mask) == ir.DataType.BOOL
        if is_bool and reader is not None and _hides(reader, out, mask):
            packed.become(node, plan, operands, reader.outputs[0])


def _hides(reader: ir.Node, product: ir.Value, mask: ir.Value) -> bool:
    """True for a node that gives a product where a mask is set, and 0 elsewhere."""
    if reader.domain:
        return False
    if reader.op_type == "Where":
        condition, _, other = reader.inputs
        return condition is mask and _is_zero(other)
    if reader.op_type != "Mul":
        return False
    cast = next((x.producer() for x in reader.inputs if x is not None and x is not product), None)
    if cast is None or cast.domain or cast.op_type != "Cast":
        return False
    return cast.inputs[0] is mask


def _is_zero(value: ir.Value | None) -> bool:
    """True for a constant number 0, not -0.0."""
    tensor = tensor_of(value)
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 2:
        return False
    number = np.asarray(tensor.numpy()).reshape(())
    return bool(number == 0 and not np.signbit(number))
