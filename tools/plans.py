"""The table of plans in docs/plans.md, from their types: `python -m tools.plans` writes it.

| `detect` | CPU | live; padding, if `padding` | 3 | `padding`?: a name; `rank`: 1..8 |
"""

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from pitc.ir.plans.base import OWN, ROUNDED, WEIGHT, Operand, Plan
from pitc.ir.plans.kinds import Kind, Layout, Lines, Listed, Whole, Word, Words, kinds_of
from pitc.ir.plans.ops import OPS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "plans.md"
BEGIN, END = "<!-- python -m tools.plans -->", "<!-- end -->"
NAMED = ("kernels", "library", "identity")  # the page tells of them once
MACHINES = {"cpu": "CPU", "cuda": "GPU"}


def table() -> str:
    """The lines of the table."""
    head = ["| op | on | inputs | outputs | fields |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_row, OPS.values())])


def page() -> str:
    """The page with today's table.

    Raises:
        ValueError: It has no place for one.
    """
    text = PAGE.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _row(plan: type[Plan]) -> str:
    machines = " ".join(MACHINES[name] for name in plan.machines)
    operands = "; ".join(map(_operand, plan.all_operands)) or "below"
    optional = {f.name for f in fields(plan) if f.default is None}
    told = "; ".join(
        f"`{name}`{'?' if name in optional else ''}: {_type(kind)}"
        for name, kind in sorted(kinds_of(plan).items())
        if name not in NAMED
    )
    only = "".join(_limits(plan))
    return f"| `{plan.op}` | {machines} | {operands} | {plan.outputs} | {told}{only} |"


def _operand(operand: Operand) -> str:
    own = "" if operand.type in (OWN, ROUNDED, WEIGHT, "any") else f" {operand.type}"
    packed = " (packed)" if operand.packed_by else ""
    when = f", if {' or '.join(f'`{name}`' for name in operand.when)}" if operand.when else ""
    return f"{operand.name}{own}{packed}{when}"


def _type(kind: Kind) -> str:
    match kind:
        case Whole(least, most):
            power = most.bit_length() - 1
            return (
                f"{least}..{most}" if most < 1000 or most != 1 << power else f"{least}..2^{power}"
            )
        case Word():
            return ", ".join(f"`{word}`" for word in kind.choices)
        case Words():
            return "some of " + ", ".join(f"`{word}`" for word in kind.choices)
        case Layout():
            return kind.told
        case Listed():
            return f"list, each {_type(kind.kind)}"
        case Lines():
            return "the lines of prices"
        case _:
            return kind.told


def _limits(plan: type[Plan]) -> Iterator[str]:
    for machine, only in plan.only.items():
        told = (f"`{name}={text}`" if text else f"no `{name}`" for name, text in only.items())
        yield f". On a {MACHINES[machine]}: {', '.join(told)}"


def main() -> None:
    """Write the page; with `--check` say whether it is today's."""
    if "--check" in sys.argv:
        sys.exit(
            0 if page() == PAGE.read_text("utf-8") else f"run: {sys.executable} -m tools.plans"
        )
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
