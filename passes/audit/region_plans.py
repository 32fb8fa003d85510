"""Region nodes of a lowered model: steps that are products, operands that are there, rows that stay
inside.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.plan import REGION_STEPS
from pitc.passes.audit.plan_fields import OWN, kinds_of, wrong_fields

STEP = re.compile(r"step(\d+)\.(.+)")
READ = re.compile(r"(s?)(0|[1-9]\d*)|rows")


@dataclass(frozen=True, slots=True)
class _Step:
    """One product: the fields of its plan, and its operands by name."""

    fields: Mapping[str, str]
    reads: Mapping[str, str]

    @property
    def is_packed(self) -> bool:
        return self.fields["scatter"] == "0"


def wrong_region(
    node: ir.Node, fields: Mapping[str, str], symbols: Collection[str]
) -> Iterator[str]:
    """Violations of a region node.

    Args:
        node: The node.
        fields: Its plan.
        symbols: Kernels that were asked for.
    """
    own = {k: v for k, v in fields.items() if not STEP.match(k)}
    yield from wrong_fields("region", own, symbols)
    found: dict[int, dict[str, str]] = {}
    for key, value in fields.items():
        if (match := STEP.fullmatch(key)) is not None:
            found.setdefault(int(match[1]), {})[match[2]] = value
    if sorted(found) != list(range(len(found))) or fields.get("steps") != str(len(found)):
        yield f"steps={fields.get('steps')}, with fields of {sorted(found)}"
        return
    steps: list[_Step] = []
    for number, told in sorted(found.items()):
        step = _step(told, symbols)
        if isinstance(step, str):
            yield f"step {number}: {step}"
            return
        steps.append(step)
        yield from (f"step {number}: {line}" for line in _wrong_operands(node, steps))
    yield from _wrong_results(node, fields.get("gives", ""), steps)


def _step(own: dict[str, str], symbols: Collection[str]) -> _Step | str:
    """A step; a line of text where it is none."""
    op, reads = own.pop("op", ""), own.pop("reads", "").split(",")
    if op not in REGION_STEPS:
        return f"{op} is no product"
    lines = list(wrong_fields(op, own | {"library": "its.so"}, symbols))
    if "library" in own or lines:
        return next(iter(lines), "it has a library of its own")
    kinds = kinds_of(op, own)
    if len(kinds) != len(reads) or not all(READ.fullmatch(text) for text in reads):
        return f"reads={','.join(reads)}, not {list(kinds)}"
    return _Step(own | {"op": op}, dict(zip(kinds, reads, strict=True)))


def _wrong_operands(node: ir.Node, steps: list[_Step]) -> Iterator[str]:
    """Violations of the operands of the last step."""
    step = steps[-1]
    kinds = kinds_of(step.fields["op"], step.fields)
    packed = {"residual"} | ({"a"} if step.fields["gather"] == "0" else set())
    for name, text in step.reads.items():
        number = int(text.removeprefix("s")) if text != "rows" else 0
        if (name == "rows") != (text == "rows") or (name == "live") != (text == "0"):
            yield f"operand {name} is {text}"
        elif text.startswith("s"):
            if number >= len(steps) - 1:
                yield f"operand {name} is of a later step"
            elif steps[number].is_packed != (name in packed) or name not in ("a", "residual"):
                yield f"operand {name} is packed, or not: {text}"
            else:
                yield from _wrong_widths(step, name, steps[number])
        elif name in packed:
            yield f"operand {name} comes from outside"
        elif text != "rows":
            given = node.inputs[number] if number < len(node.inputs) else None
            kind = kinds[name]
            if kind == OWN:
                kind = ir.DataType.from_numpy(np.dtype(step.fields["dtype"]))
            if given is None:
                yield f"operand {name} is input {number}, which is not there"
            elif given.dtype not in (None, kind):
                yield f"operand {name}, {given.name}, has type {given.dtype}"


def _wrong_widths(step: _Step, name: str, source: _Step) -> Iterator[str]:
    columns = step.fields["n"] if name == "residual" else step.fields.get("inner", step.fields["k"])
    if source.fields["n"] != columns or source.fields["dtype"] != step.fields["dtype"]:
        yield f"operand {name} has {columns} columns, not {source.fields['n']}"


def _wrong_results(node: ir.Node, gives: str, steps: list[_Step]) -> Iterator[str]:
    given = [int(text) for text in gives.split(",")]
    read = {text for step in steps for text in step.reads.values()}
    if given != sorted(set(given)) or given[-1] >= len(steps):
        yield f"gives={gives} of {len(steps)} steps"
        return
    if len(given) != len(node.outputs):
        yield f"gives={gives}, with {len(node.outputs)} outputs"
    for number, step in enumerate(steps):
        if step.is_packed and number in given:
            yield f"packed rows of step {number} are given"
        if number not in given and f"s{number}" not in read:
            yield f"nobody reads step {number}"
    for number, x in enumerate(node.inputs):
        if x is None or (number and str(number) not in read):
            yield f"nobody reads input {number}"
    for output in node.outputs:
        if output.dtype is None or (output.shape is None and not output.is_graph_output()):
            yield f"{output.name} has no type or no shape"
