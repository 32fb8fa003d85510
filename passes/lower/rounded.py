"""What attention rounds; and what only rounding nodes read is stored as the numbers they round to.

    Contract(rounded)(x)  -> h: float32       Contract(rounded, stored=result)(x)  -> h: bfloat16
    Contract(rounded)(h)  -> y                Contract(rounded, stored=a)(h)       -> y

The answer is the same: a number is rounded where it is written instead of where it is read. Half as
much is written and read, and no reader converts.

* It is the left operand of products that round it, of an even `k` (rows are words of two numbers),
  or queries, keys or values of attention that rounds them, of even widths, and nothing else.
  Reshapes may stand between: numbers stay beside one another.
* Sums of the product in front stay in registers or near memory, never in its result: its `k` is at
  most `LONGEST_ROUNDED`, and it skips no zeros.

Attention rounds where its queries, keys and values are rows, of even widths: a cache is float32,
and read once for a token. Nor does it round where it imitates steps of a quantised model.
"""

from dataclasses import replace

import onnx_ir as ir

from pitc.ir.kernel import LONGEST_ROUNDED
from pitc.ir.plans.ops import Attention, Contract, Plan, RoundingPlan
from pitc.passes.lower.packed import Packed, operands_of, packed_plan, set_plan
from pitc.passes.lower.rows import is_outside, reads_sizes


def round_attention(packed: Packed) -> None:
    """Let attention round its operands."""
    if not packed.graph.target.rounds:
        return
    for node in packed.nodes():
        plan = packed_plan(node)
        if not isinstance(plan, Attention) or plan.whole or plan.d % 2 or plan.dv % 2:
            continue
        if plan.score_step is None and plan.weight_step is None:
            set_plan(node, replace(plan, rounded="bfloat16"), operands_of(node))


def store_rounded(packed: Packed) -> None:
    """Store as bfloat16 what nodes write for rounding nodes alone."""
    for node in packed.nodes():
        if not _may_store(packed_plan(node)):
            continue
        values, readers = [node.outputs[0]], list[tuple[ir.Node, str]]()
        if not all(_rounds(packed, v, values, readers) for v in values):  # they grow meanwhile
            continue
        _store(node, "result")
        for reader, name in dict.fromkeys(readers):
            _store(reader, name)
        for value in values:
            value.type = ir.TensorType(ir.DataType.BFLOAT16)


def _may_store(plan: Plan | None) -> bool:
    """True where a node can store its result as bfloat16."""
    if isinstance(plan, Contract):
        return bool(plan.rounded) and not plan.skips and plan.k <= LONGEST_ROUNDED
    return isinstance(plan, Attention) and bool(plan.rounded)


def _store(node: ir.Node, name: str) -> None:
    """Let a node store an operand, or its result, as it is rounded."""
    plan = packed_plan(node)
    assert isinstance(plan, RoundingPlan)
    names = {*(plan.stored or ()), name}
    stored = tuple(x for x in (*plan.operands, "result") if x in names)
    set_plan(node, replace(plan, stored=stored), operands_of(node))


def _rounds(
    packed: Packed, value: ir.Value, values: list[ir.Value], readers: list[tuple[ir.Node, str]]
) -> bool:
    """True where all that reads elements of a value rounds them, or moves them.

    Args:
        packed: The graph.
        value: The value.
        values: Gets what Reshapes make of it.
        readers: Gets the nodes that round it, each with the name of the operand.
    """
    graph = packed.graph
    if value.is_graph_output():
        return False
    for use in value.uses():
        node, plan = use.node, packed_plan(use.node)
        if reads_sizes(graph, value, node):
            continue
        if not is_outside(graph, node):
            return False
        if node.op_type == "Reshape" and not node.domain and use.idx == 0:
            values.append(node.outputs[0])
            continue
        if not isinstance(plan, RoundingPlan) or not plan.rounded:
            return False
        name = list(plan.operands)[use.idx]
        if not _reads_words(plan, name):
            return False
        readers.append((node, name))
    return True


def _reads_words(plan: RoundingPlan, name: str) -> bool:
    """True where an operand may be stored as it is rounded."""
    if isinstance(plan, Contract):
        return name == "a" and plan.k % 2 == 0 and not plan.input_relu
    return name in ("q", "k", "v")
