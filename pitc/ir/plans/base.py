"""What the operations of PIT nodes have in common: operands, fields, text, parser and checks.

    Detect(rank=2, padding="mask").text()    pitc-plan 9, op=detect, padding=mask, rank=2

One class is one operation: its operands in order, and its fields, each with its type.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from pitc.ir.plan import PLAN_VERSION
from pitc.ir.plans.kinds import ElementType, FileName, Identity, Lines, Symbols, Word, kinds_of

Limits = Mapping[str, Mapping[str, str]]
"""By machine, what fields must be there; empty: they must be missing."""
Kernels = tuple[tuple[str, str], ...]
"""Symbols of kernels, each behind what it is for."""

Table = tuple[tuple[str, tuple[int, ...]], ...]
"""Lines of prices: keys and numbers."""
PRICES = Lines(r"(cost|shape)_\w+_v\d(_amx)?|(clocks|price_\w+)_sm_\d+")

ANY, OWN, FLOAT32, INT32, INT64 = "any", "own", "float32", "int32", "int64"
ROUNDED = "rounded"  # own, or bfloat16 where `stored` names it
WEIGHT = "weight"  # own, or bfloat16 where a plan says `rounded`
"""Types of operands: anything, that of the plan's `dtype`, or a type by name."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an operation.

    Args:
        name: As in `docs/plans.md`; `rows`, `.._coords` and `.._offsets` are a detector's outputs.
        type: Of its elements.
        when: Fields of which one must be set for it to be there; empty: it always is.
        packed_by: The operand that says over which live points it is packed; empty: it is not.
    """

    name: str
    type: str = OWN
    when: tuple[str, ...] = ()
    packed_by: str = ""


class WrongPlanError(ValueError):
    """A text that is no plan, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one PIT node does.

    Attributes:
        op: Name of the operation.
        machines: Whose plug-in runs it.
        only: What fields must be on a machine.
        together: Fields that stand together or not at all.
        all_operands: In order.
        outputs: How many, where that depends on no field.
    """

    op: ClassVar[str]
    machines: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    only: ClassVar[Limits] = {}
    together: ClassVar[tuple[tuple[str, ...], ...]] = ()
    all_operands: ClassVar[tuple[Operand, ...]] = ()
    outputs: ClassVar[int] = 1

    @property
    def operands(self) -> dict[str, Operand]:
        """The operands that this plan asks for, in order, by name."""
        wanted = self.all_operands
        return {x.name: x for x in wanted if not x.when or any(getattr(self, f) for f in x.when)}

    @property
    def output_count(self) -> int:
        """How many outputs a node with this plan has."""
        return self.outputs

    def lines(self) -> dict[str, str]:
        """The text of each field, by key.

        Raises:
            ValueError: A field has a value that is none of its type.
        """
        found: dict[str, str] = {"op": self.op}
        for name, kind in kinds_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(kind, Lines):
                found |= kind.lines(value)
            elif value is not None:
                found[name] = kind.text(value)
        return found

    def text(self) -> str:
        """The plan as the runtime reads it."""
        lines = (f"{key}={value}" for key, value in sorted(self.lines().items()))
        return "\n".join([f"pitc-plan {PLAN_VERSION}", *lines, ""])

    @classmethod
    def of(cls, lines: Mapping[str, str]) -> Self:
        """The plan that fields say.

        Args:
            lines: Their texts, by key, without the operation.

        Raises:
            WrongPlanError: One is missing, unknown, or no value of its type.
        """
        return cls(**cls.values(lines))

    @classmethod
    def values(cls, lines: Mapping[str, str]) -> dict[str, Any]:
        """What fields say, by name; raises as `of` does."""
        left, found = dict(lines), dict[str, Any]()
        for name, kind in kinds_of(cls).items():
            if isinstance(kind, Lines):
                found[name] = kind.found(left)
                left = {k: v for k, v in left.items() if not re.fullmatch(kind.keys, k)}
            elif name in left:
                try:
                    found[name] = kind.parse(left.pop(name))
                except ValueError as why:
                    raise WrongPlanError(f"{cls.op}: {name}: {why}") from None
        optional = {f.name for f in fields(cls) if f.default is None}
        wanted = kinds_of(cls).keys() - optional
        if left or not wanted <= found.keys():
            lacking = sorted(wanted - found.keys())
            raise WrongPlanError(f"{cls.op} lacks {lacking}, and has {sorted(left)} too many")
        for names in cls.together:
            there = [name for name in names if name in found]
            lacking = [name for name in names if there and name not in found]
            if lacking:
                raise WrongPlanError(f"{cls.op}: {there[0]} without {lacking[0]}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan(Plan):
    """An operation that kernels compute.

    Args:
        dtype: What they compute with.
        kernels: Their symbols without CPU level or tile, each under what it is for.
        library: The file that they are in.
        identity: Of that file; None until it is built.
    """

    dtype: Annotated[str, ElementType()]
    kernels: Annotated[Kernels, Symbols()] = ()
    library: Annotated[str, FileName()] = ""
    identity: Annotated[str | None, Identity()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingPlan(KernelPlan):
    """An operation that may round what it multiplies.

    Args:
        rounded: What operands are rounded to. None: they are not.
    """

    rounded: Annotated[str | None, Word(("bfloat16",))] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringPlan(RoundingPlan):
    """One that may read and write what is rounded already.

    Args:
        stored: Which operands are stored so, and whether the result is. None: none.
    """

    stored: tuple[str, ...] | None = None

    def type_of(self, name: str) -> str:
        """Type of an operand, or of the `result`."""
        return self.rounded or self.dtype if name in (self.stored or ()) else self.dtype
