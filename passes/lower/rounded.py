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

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from pitc.ir.kernel import LONGEST_ROUNDED
from pitc.ir.plans.base import Plan, StoringPlan
from pitc.ir.plans.ops import Attention, Contract
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
        readers = Readers([node.outputs[0]])
        if readers.are_all_rounding(packed):
            _store(node, "result")
            readers.store()


def _may_store(plan: Plan | None) -> bool:
    """True where a node can store its result as bfloat16."""
    if isinstance(plan, Contract):
        return bool(plan.rounded) and not plan.skips and plan.k <= LONGEST_ROUNDED
    return isinstance(plan, Attention) and bool(plan.rounded)


@dataclass(slots=True)
class Readers:
    """What reads some values.

    Args:
        values: The values, and what Reshapes make of them.
        nodes: Nodes that round them, each with the name of the operand.
    """

    values: list[ir.Value]
    nodes: dict[tuple[ir.Node, str], None] = field(default_factory=dict)

    def are_all_rounding(self, packed: Packed) -> bool:
        """True where all that reads elements of the values rounds them, or moves them."""
        return all(  # values grow while they are looked at
            not value.is_graph_output()
            and all(self.add(packed, value, use.node, use.idx) for use in value.uses())
            for value in self.values
        )

    def add(self, packed: Packed, value: ir.Value, node: ir.Node, place: int) -> bool:
        """Add a node that reads a value at a place of its inputs; False where it neither rounds
        elements nor moves them.
        """
        graph, plan = packed.graph, packed_plan(node)
        if reads_sizes(graph, value, node):
            return True
        if not is_outside(graph, node):
            return False
        if node.op_type == "Reshape" and not node.domain and place == 0:
            self.values.append(node.outputs[0])
            return True
        if not isinstance(plan, StoringPlan) or not plan.rounded:
            return False
        name = list(plan.operands)[place]
        if not _reads_words(plan, name):
            return False
        self.nodes[node, name] = None
        return True

    def store(self) -> None:
        """Let them read bfloat16."""
        for node, name in self.nodes:
            _store(node, name)
        for value in self.values:
            value.type = ir.TensorType(ir.DataType.BFLOAT16)


def _store(node: ir.Node, name: str) -> None:
    """Let a node store an operand, or its result, as it is rounded."""
    plan = packed_plan(node)
    assert isinstance(plan, StoringPlan)
    names = {*(plan.stored or ()), name}
    stored = tuple(x for x in (*plan.operands, "result") if x in names)
    set_plan(node, replace(plan, stored=stored), operands_of(node))


def _reads_words(plan: StoringPlan, name: str) -> bool:
    """True where an operand may be stored as it is rounded."""
    if isinstance(plan, Contract):
        return name == "a" and plan.k % 2 == 0 and not plan.input_relu
    return name in ("q", "k", "v")
