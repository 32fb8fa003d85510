"""Values that only rounding products read are stored as the numbers that these round them to.

    Contract(rounded)(x)  -> h: float32       Contract(rounded, stored=result)(x)  -> h: bfloat16
    Contract(rounded)(h)  -> y                Contract(rounded, stored=left)(h)    -> y

The answer is the same: a number is rounded where it is written instead of where it is read. Half as
much is written and read, and no reader converts.

* It is the left operand of products that round it, of an even `k` (rows are words of two numbers),
  and of nothing else. Reshapes that keep rows may stand between.
* Sums of the product in front stay in registers or near memory, never in its result: its `k` is at
  most `LONGEST_ROUNDED`, and it skips no zeros.
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.kernel import LONGEST_ROUNDED
from pitc.ir.plans.ops import Contract
from pitc.passes.lower.packed import Packed, operands_of, packed_plan, set_plan
from pitc.passes.lower.rows import is_outside, keeps_rows, reads_sizes


def store_rounded(packed: Packed) -> None:
    """Store as bfloat16 what products write for rounding products alone."""
    for node, plan in packed.contractions():
        result = node.outputs[0]
        if not plan.rounded or plan.skips or plan.k > LONGEST_ROUNDED:
            continue
        values, readers = [result], list[ir.Node]()  # values grow while they are looked at
        if not all(_rounds(packed, value, values, readers) for value in values):
            continue
        _store(node, "result")
        for reader in dict.fromkeys(readers):
            _store(reader, "left")
        for value in values:
            value.type = ir.TensorType(ir.DataType.BFLOAT16)


def _store(node: ir.Node, what: str) -> None:
    """Let a contraction store its left operand, or its result, as it is rounded."""
    plan = packed_plan(node)
    assert isinstance(plan, Contract)
    stored = what if plan.stored in (None, what) else "both"
    set_plan(node, replace(plan, stored=stored), operands_of(node))


def _rounds(
    packed: Packed, value: ir.Value, values: list[ir.Value], readers: list[ir.Node]
) -> bool:
    """True where all that reads elements of a value rounds them, or moves them.

    Args:
        packed: The graph.
        value: The value.
        values: Gets what Reshapes make of it.
        readers: Gets the products.
    """
    graph = packed.graph
    if value.is_graph_output():
        return False
    for use in value.uses():
        node, plan = use.node, packed_plan(use.node)
        if reads_sizes(graph, value, node):
            continue
        if is_outside(graph, node) and keeps_rows(graph, node):
            values.append(node.outputs[0])
        elif isinstance(plan, Contract) and is_outside(graph, node):
            place = list(plan.operands)[use.idx]
            if place != "a" or not plan.rounded or plan.k % 2 or plan.input_relu:
                return False
            readers.append(node)
        else:
            return False
    return True
