"""Region nodes of a lowered model: steps that are products, operands that are there, rows that stay
inside.
"""

from collections.abc import Collection, Iterator

import onnx_ir as ir

from pitc.ir.plans.base import (
    ANY,
    OWN,
    ROUNDED,
    WEIGHT,
    KernelPlan,
    Plan,
    RoundingPlan,
    StoringPlan,
)
from pitc.ir.plans.ops import LIVE_COUNTS, Region, Step

TYPES = {
    **{"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16},
    **{"bfloat16": ir.DataType.BFLOAT16, "int32": ir.DataType.INT32, "int64": ir.DataType.INT64},
}


def wrong_kernel(plan: Plan, symbols: Collection[str] | None) -> Iterator[str]:
    """Says where a plan names a kernel that was not asked for, where that is known."""
    if symbols is not None and isinstance(plan, KernelPlan | Region):
        for role, symbol in plan.kernels:
            comes_along = (role, symbol) == ("counts", LIVE_COUNTS)
            if symbol not in symbols and not comes_along:
                yield f"nobody asked for the kernel {symbol}"


def type_of_operand(plan: Plan, name: str) -> ir.DataType | None:
    """The type that an operand must have; None where it may have any."""
    kind = plan.operands[name].type
    if kind == ROUNDED and isinstance(plan, StoringPlan):
        kind = plan.type_of(name)
    elif kind == WEIGHT and isinstance(plan, RoundingPlan):
        kind = plan.rounded or plan.dtype
    elif kind == OWN and isinstance(plan, KernelPlan):
        kind = plan.dtype
    return None if kind == ANY else TYPES[kind]


def wrong_region(node: ir.Node, plan: Region, symbols: Collection[str] | None) -> Iterator[str]:
    """Violations of a region node.

    Args:
        node: The node.
        plan: Its plan.
        symbols: Kernels that were asked for.
    """
    yield from wrong_kernel(plan, symbols)
    for number, step in enumerate(plan.steps):
        lines = [*wrong_kernel(step.plan, symbols)]
        wanted = step.plan.operands
        if len(wanted) != len(step.reads):
            lines.append(f"reads={','.join(step.reads)}, not {list(wanted)}")
        else:
            lines += _wrong_operands(node, plan.steps[: number + 1])
        yield from (f"step {number}: {line}" for line in lines)
    yield from _wrong_results(node, plan)


def _wrong_operands(node: ir.Node, steps: tuple[Step, ...]) -> Iterator[str]:
    """Violations of the operands of the last step."""
    step = steps[-1]
    packed = {"residual"} if step.plan.gather else {"a", "residual"}
    for name, text in zip(step.plan.operands, step.reads, strict=True):
        number = int(text.removeprefix("s")) if text != "rows" else 0
        if (name == "rows") != (text == "rows") or (name == "live") != (text == "0"):
            yield f"operand {name} is {text}"
        elif text.startswith("s"):
            if number >= len(steps) - 1:
                yield f"operand {name} is of a later step"
            elif steps[number].plan.scatter == (name in packed) or name not in ("a", "residual"):
                yield f"operand {name} is packed, or not: {text}"
            else:
                yield from _wrong_widths(step, name, steps[number])
        elif name in packed:
            yield f"operand {name} comes from outside"
        elif text != "rows":
            given = node.inputs[number] if number < len(node.inputs) else None
            kind = type_of_operand(step.plan, name)
            if given is None:
                yield f"operand {name} is input {number}, which is not there"
            elif given.dtype not in (None, kind):
                yield f"operand {name}, {given.name}, has type {given.dtype}"


def _wrong_widths(step: Step, name: str, source: Step) -> Iterator[str]:
    columns = step.plan.n if name == "residual" else step.plan.columns
    if source.plan.n != columns or source.plan.dtype != step.plan.dtype:
        yield f"operand {name} has {columns} columns, not {source.plan.n}"


def _wrong_results(node: ir.Node, plan: Region) -> Iterator[str]:
    given, gives, steps = list(plan.gives), ",".join(map(str, plan.gives)), plan.steps
    read = {text for step in steps for text in step.reads}
    if given != sorted(set(given)) or given[-1] >= len(steps):
        yield f"gives={gives} of {len(steps)} steps"
        return
    if len(given) != len(node.outputs):
        yield f"gives={gives}, with {len(node.outputs)} outputs"
    for number, step in enumerate(steps):
        if not step.plan.scatter and number in given:
            yield f"packed rows of step {number} are given"
        if number not in given and f"s{number}" not in read:
            yield f"nobody reads step {number}"
    for number, x in enumerate(node.inputs):
        if x is None or (number and str(number) not in read):
            yield f"nobody reads input {number}"
    for output in node.outputs:
        if output.dtype is None or (output.shape is None and not output.is_graph_output()):
            yield f"{output.name} has no type or no shape"
