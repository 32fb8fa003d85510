"""Plans as the plug-in has them: `python -m pitc.ir.plans.header FILE` writes a C++ header.

One struct is one operation: its fields, how they are read, and where its operands stand.

    class Detect(Plan):                  struct DetectPlan {
        rank: Whole(1, 8)                  int64_t rank{};
        padding: Name | None               std::optional<std::string> padding;
                                           static DetectPlan Read(Fields& in);
                                           struct Inputs { int live, padding, count; };
                                           Inputs Places() const;
                                         };

Steps of a region, prices, kernels and the library are read by hand (`runtime/ep/plan/plan.cc`).
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from pitc.ir.plan import PLAN_VERSION
from pitc.ir.plans.base import Plan
from pitc.ir.plans.kinds import (
    ElementType,
    Flag,
    Kind,
    Layout,
    Lines,
    Listed,
    Name,
    Place,
    Real,
    Whole,
    Word,
    Words,
    kinds_of,
)
from pitc.ir.plans.ops import OPS, Pairs, Region
from pitc.ir.plans.program import PROGRAM, TESTS

BY_HAND = ("kernels", "library", "identity")


@dataclass(frozen=True, slots=True)
class Member:
    """One field in C++.

    Args:
        name: Of the field.
        type: Of the member.
        read: An expression that reads it from `in`.
        optional: It may be missing.
        flags: It is some flags, none of which is set where it is missing; `read` sets them.
    """

    name: str
    type: str
    read: str
    optional: bool
    flags: bool = False

    @property
    def declared(self) -> str:
        """The member."""
        missing = self.optional and not self.flags
        whole = f"std::optional<{self.type}> {self.name}" if missing else ""
        return whole or f"{self.type} {self.name}{{}}"

    @property
    def given(self) -> str:
        """Whether it says that something is there: a number is 0 where nothing is."""
        if not self.optional:
            return self.name
        number = self.type == "int64_t"
        return f"{self.name}.value_or(0) > 0" if number else f"{self.name}.has_value()"

    @property
    def assigned(self) -> str:
        """What reads it."""
        when = f'if (in.Has("{self.name}")) ' if self.optional else ""
        return f"{when}{self.read};" if self.flags else f"{when}p.{self.name} = {self.read};"


def _member(plan: type[Plan], name: str, kind: Kind, optional: bool) -> Member:
    key = f'"{name}"'
    match kind:
        case Whole(least, most):
            found = "int64_t", f"in.Int({key}, {least}, {most})"
        case Flag():
            found = "bool", f"in.Flag({key})"
        case Real():
            found = "double", f"in.Hex({key})"
        case Name():
            found = "std::string", f"in.Name({key})"
        case ElementType():
            found = "Element", f"static_cast<Element>({_choice(name, kind)})"
        case Word():
            type_name = f"{plan.__name__}Plan::{_pascal(name)}"
            found = _pascal(name), f"static_cast<{type_name}>({_choice(name, kind)})"
        case Words(choices):
            places = ", ".join(f'{{"{word}", &p.{name}.{word}}}' for word in choices)
            return Member(
                name, _pascal(name), f"in.Words({key}, {{{places}}})", optional, flags=True
            )
        case Layout():
            found = "std::vector<DimUse>", f"in.Dims({key})"
        case Listed(Name()):
            found = "std::vector<std::string>", f"in.Names({key})"
        case Listed(Whole(least, most)):
            found = "std::vector<int64_t>", f"in.Ints({key}, {least}, {most})"
        case Listed(Word() as words):
            found = "std::vector<size_t>", f"in.EachWord({key}, {{{_quoted(words.choices)}}})"
        case Listed(Place(most)):
            found = "std::vector<int64_t>", f"in.Places({key}, {most})"
        case _:
            raise TypeError(f"{plan.__name__}.{name}: {kind} has no form in C++")
    return Member(name, *found, optional)


def _choice(name: str, kind: Word) -> str:
    return f'in.Word("{name}", {{{_quoted(kind.choices)}}})'


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _members(plan: type[Plan]) -> Iterator[Member]:
    optional = {f.name for f in fields(plan) if f.default is None}
    for name, kind in kinds_of(plan).items():
        if name not in BY_HAND and not isinstance(kind, Lines):
            yield _member(plan, name, kind, name in optional)


def _enums(plan: type[Plan]) -> Iterator[str]:
    for name, kind in kinds_of(plan).items():
        kind = kind.kind if type(kind) is Listed else kind
        if isinstance(kind, Word) and not isinstance(kind, ElementType):
            words = ", ".join(f"k{_pascal(word)}" for word in kind.choices)
            yield f"enum {_pascal(name)} {{ {words} }};"
        if isinstance(kind, Words):
            words = ", ".join(f"{word}{{}}" for word in kind.choices)
            yield f"struct {_pascal(name)} {{ bool {words}; }};"


def _places(plan: type[Plan]) -> Iterator[str]:
    """Lines that number the operands which a plan asks for."""
    members = {m.name: m for m in _members(plan)}
    for operand in plan.all_operands:
        given = [members[name].given for name in operand.when]
        when = f"if ({' || '.join(given)}) " if given else ""
        yield f"{when}in.{operand.name} = in.count++;"


def _limits(plan: type[Plan]) -> Iterator[str]:
    """Lines that refuse what a machine cannot do, and fields without those beside them."""
    for machine, only in plan.only.items():
        for name, text in only.items():
            call = f'in.Only("{name}", "{text}");' if text else f'in.Without("{name}");'
            yield f"if (in.machine() == Machine::k{machine.capitalize()}) {call}"
    for names in plan.together:
        yield f"in.Together({{{_quoted(names)}}});"


def _struct(plan: type[Plan]) -> Iterator[str]:
    name, members = f"{plan.__name__}Plan", list(_members(plan))
    yield f"struct {name} {{"
    yield from (f"  {line}" for line in _enums(plan))
    yield from (f"  {m.declared};" for m in members)
    if "prices" in kinds_of(plan):
        yield "  Prices prices;"
    if plan is Pairs:
        yield "  enum Order { kEqual, kLess, kLessOrEqual };"
    yield f"  static {name} Read(Fields& in) {{"
    yield f"    {name} p;"
    yield from (f"    {line}" for line in _limits(plan))
    yield from (f"    {m.assigned}" for m in members)
    yield "    return p;"
    yield "  }"
    if plan.all_operands:
        places = ", ".join(f"{operand.name} = -1" for operand in plan.all_operands)
        yield "  // Places among the inputs of a node; -1 of what is not there."
        yield f"  struct Inputs {{ int {places}, count = 0; }};"
        yield "  Inputs Places() const {"
        yield "    Inputs in;"
        yield from (f"    {line}" for line in _places(plan))
        yield "    return in;"
        yield "  }"
    yield f"  static constexpr int kOutputs = {plan.outputs};"
    yield "};"


def header() -> str:
    """The text of the header."""
    lines = [
        "// Generated from pitc/ir/plans: the operations of PIT nodes.",
        "#pragma once",
        "#include <optional>",
        '#include "plan/fields.h"',
        '#include "plan/prices.h"',
        "namespace pitc {",
        f'constexpr const char* kPlanFormat = "pitc-plan {PLAN_VERSION}";  // the first line',
    ]
    for plan in OPS.values():
        lines += [] if plan is Region else _struct(plan)  # its steps are no fields
    lines += [f"constexpr int64_t kMostTests = {TESTS.most};  // of pairs, of a kind"]
    lines += [
        f"constexpr int64_t kProgram{_pascal(f.name)} = {getattr(PROGRAM, f.name)};"
        for f in fields(PROGRAM)
    ]
    lines += ["struct OpMachines { std::string_view op; bool cpu, cuda; };"]
    machines = [
        f'{{"{op}", {_cpp("cpu" in plan.machines)}, {_cpp("cuda" in plan.machines)}}}'
        for op, plan in OPS.items()
    ]
    lines += [f"constexpr OpMachines kOps[] = {{{', '.join(machines)}}};", "}  // namespace pitc"]
    return "\n".join([*lines, ""])


def _cpp(flag: bool) -> str:
    return "true" if flag else "false"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header(), encoding="utf-8")
