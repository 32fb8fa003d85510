"""The operations of PIT nodes, as typed plans: `docs/plans.md` says what each computes.

    Detect(rank=2, padding="mask").text()    pitc-plan 4, op=detect, padding=mask, rank=2
    parse(text)                              Detect(rank=2, padding="mask")

One class is one operation: its operands in order, and its fields, each with its type. Text, parser
and checks follow from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

from pitc.ir.plan import PLAN_VERSION
from pitc.ir.plans.kinds import Flag, Lines, Listed, Name, Place, Real, Whole, Word, kinds_of

EXTENT = Whole(1, 1 << 24)
COUNT = Whole(0, 1 << 62)
HEADS, HEAD = Whole(1, 1 << 16), Whole(0, 1 << 16)
STEPS = Whole(0, (1 << 16) - 1)
CODES = Listed(Word(("0", "l", "r", *(f"c{k}" for k in range(8)))))
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "gelu_quick", "silu")
Table = tuple[tuple[str, tuple[int, ...]], ...]
"""Lines of prices: keys and numbers."""

ANY, OWN, FLOAT32, INT32 = "any", "own", "float32", "int32"
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
    """What one PIT node does."""

    op: ClassVar[str]
    all_operands: ClassVar[tuple[Operand, ...]] = ()
    outputs: ClassVar[int] = 1

    @property
    def operands(self) -> dict[str, Operand]:
        """The operands that this plan asks for, in order, by name."""
        wanted = self.all_operands
        return {x.name: x for x in wanted if not x.when or any(getattr(self, f) for f in x.when)}

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
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Detect(Plan):
    """The live points of a domain: rows, coordinates, and where sequences begin."""

    op = "detect"
    all_operands = (Operand("live", ANY), Operand("padding", ANY, ("padding",)))
    outputs = 3

    rank: Annotated[int, Whole(1, 8)]
    padding: Annotated[str | None, Name()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan(Plan):
    """An operation that a kernel computes."""

    dtype: Annotated[str, Word(("float32", "float16", "bfloat16"))]
    kernel: Annotated[str, Word()] = ""
    library: Annotated[str, Word()] = ""
    identity: Annotated[str | None, Word()] = None


_POINTS = (Operand("rows", INT32), Operand("coords", INT32), Operand("live", ANY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(KernelPlan):
    """A move of rows of words."""

    dims: Annotated[tuple[str, ...], CODES]
    dtype: Annotated[str, Word(("int32", "int8"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Move):
    """SRead: one row for each live point."""

    op = "pack"
    all_operands = (Operand("x", ANY), *_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack(Move):
    """SWrite: rows back to their places, 0 elsewhere."""

    op = "unpack"
    all_operands = (Operand("x", ANY, packed_by="rows"), *_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(KernelPlan):
    """act(a @ B + bias) + residual."""

    activation: Annotated[str, Word(ACTIVATIONS)]
    bias: Annotated[bool, Flag()]
    k: Annotated[int, EXTENT]
    n: Annotated[int, EXTENT]
    residual: Annotated[bool, Flag()]
    prices: Annotated[Table, Lines(r"(cost|shape)_\w+_v\d|(clocks|price_\w+)_sm_\d+")] = ()

    @property
    def columns(self) -> int:
        """Of `a`."""
        return self.k


_BIAS, _RESIDUAL = Operand("bias", FLOAT32, ("bias",)), Operand("residual", OWN, ("residual",))
_EITHER = ("gather", "scatter")
_MOVED = (Operand("rows", INT32, _EITHER), Operand("live", ANY, _EITHER))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPanels(Product):
    """A product by panels, of rows that are listed, or all."""

    all_operands: ClassVar[tuple[Operand, ...]] = (
        *(Operand("a"), Operand("b"), _BIAS, _RESIDUAL),
        *_MOVED,
    )

    gather: Annotated[bool, Flag()]
    scatter: Annotated[bool, Flag()]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherGemm(ByPanels):
    """Its left operand is dense."""

    op = "gather_gemm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(ByPanels):
    """Its left operand may hold many zeros."""

    op = "contract"

    input_relu: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn(ByPanels):
    """Two products, between which ReLU makes zeros."""

    op = "ffn"
    all_operands = (
        *(Operand("a"), Operand("b1"), Operand("bias1", FLOAT32, ("inner_bias",))),
        *(Operand("b2"), _BIAS, _RESIDUAL, *_MOVED),
    )

    inner: Annotated[int, EXTENT]
    inner_activation: Annotated[str, Word(("relu",))]
    inner_bias: Annotated[bool, Flag()]

    @property
    def columns(self) -> int:
        """Of `a`."""
        return self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRight(Product):
    """A product by a matrix that is computed when the model runs, and may hold many zeros."""

    op = "contract_right"
    all_operands = (
        *(Operand("a"), Operand("s"), Operand("factor", OWN, ("factor",))),
        *(_BIAS, _RESIDUAL),
    )

    factor: Annotated[int, Whole(0, 2)]
    stored: Annotated[str, Word(("kn", "nk"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(KernelPlan):
    """Softmax over the live keys of each sequence, and the sum of values by it."""

    op = "attention"
    all_operands = (
        Operand("q", packed_by="q_offsets"),
        Operand("k", packed_by="k_offsets"),
        Operand("v", packed_by="k_offsets"),
        *(Operand("q_offsets", INT32), Operand("k_offsets", INT32), _BIAS),
        *(Operand("q_coords", INT32, ("bias",)), Operand("k_coords", INT32, ("bias", "whole"))),
        Operand("live", ANY, ("whole",)),
    )

    d: Annotated[int, EXTENT]
    dv: Annotated[int, EXTENT]
    heads: Annotated[int, HEADS]
    scale: Annotated[float, Real()]
    bias: Annotated[bool, Flag()]
    nan_to_zero: Annotated[bool, Flag()]
    no_keys_to_zero: Annotated[bool, Flag()]
    q_head: Annotated[int, HEAD] = 0
    k_head: Annotated[int, HEAD] = 0
    v_head: Annotated[int, HEAD] = 0
    whole: Annotated[bool | None, Flag()] = None
    score_step: Annotated[float | None, Real()] = None
    score_scale: Annotated[float | None, Real()] = None
    score_below: Annotated[int | None, STEPS] = None
    score_above: Annotated[int | None, STEPS] = None
    weight_step: Annotated[float | None, Real()] = None
    weight_above: Annotated[int | None, STEPS] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseChannels(Plan):
    """Whether few channels of some convolutions live."""

    op = "choose_channels"
    all_operands = (Operand("flags", FLOAT32),)

    nodes: Annotated[tuple[str, ...], Listed(Name())]
    channels: Annotated[tuple[int, ...], Listed(EXTENT)]
    places: Annotated[tuple[int | None, ...], Listed(Place(EXTENT.most))]
    weights: Annotated[tuple[int, ...], Listed(COUNT)]
    budget: Annotated[int, COUNT]


@dataclass(frozen=True, slots=True)
class Step:
    """One product of a region.

    Args:
        plan: What it does.
        reads: Its operands: `2`, an input of the region's node; `rows`, those that live; `s1`, what
            step 1 gives.
    """

    plan: ByPanels
    reads: tuple[str, ...]


_READ = Listed(Word())


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(Plan):
    """Products one behind the other, for the live points that a GPU finds."""

    op = "region"

    gives: Annotated[tuple[int, ...], Listed(Whole(0, 7))]
    kernel: Annotated[str, Word()]
    library: Annotated[str, Word()]
    steps: tuple[Step, ...]
    identity: Annotated[str | None, Word()] = None

    def lines(self) -> dict[str, str]:
        """The text of each field, by key; those of step N begin with `stepN.`."""
        found = Plan.lines(self) | {"steps": str(len(self.steps))}
        for number, step in enumerate(self.steps):
            own = step.plan.lines() | {"reads": _READ.text(step.reads)}
            del own["library"]
            found |= {f"step{number}.{key}": value for key, value in own.items()}
        return found

    @classmethod
    def of(cls, lines: Mapping[str, str]) -> Self:
        """The plan that fields say."""
        own, parts = dict[str, str](), dict[int, dict[str, str]]()
        for key, value in lines.items():
            match = re.fullmatch(r"step(\d)\.(\w+)", key)
            target = own if match is None else parts.setdefault(int(match[1]), {})
            target[key if match is None else match[2]] = value
        count = own.pop("steps", "")
        if sorted(parts) != list(range(len(parts))) or count != str(len(parts)):
            raise WrongPlanError(f"region: steps={count}, with fields of {sorted(parts)}")
        found = cls.values(own)
        steps = (_step(n, part, found["library"]) for n, part in sorted(parts.items()))
        return cls(steps=tuple(steps), **found)


def _step(number: int, lines: Mapping[str, str], library: str) -> Step:
    left = dict(lines)
    kind = OPS.get(op := left.pop("op", ""))
    if kind is None or not issubclass(kind, ByPanels):
        raise WrongPlanError(f"step {number}: {op!r} is no product by panels")
    if "library" in left:
        raise WrongPlanError(f"step {number}: its library is that of the region")
    reads = left.pop("reads", "")
    try:
        return Step(kind.of(left | {"library": library}), _READ.parse(reads))
    except ValueError as why:
        raise WrongPlanError(f"step {number}: {why}") from None


OPS: Mapping[str, type[Plan]] = {
    kind.op: kind
    for kind in (
        *(Detect, Pack, Unpack, GatherGemm, Contract, Ffn, ContractRight, Attention),
        *(ChooseChannels, Region),
    )
}
"""Every operation, by name."""


@lru_cache(256)
def parse(text: str) -> Plan:
    """The plan that a text says.

    Raises:
        WrongPlanError: It says none.
    """
    first, *rest = text.split("\n")
    if first != f"pitc-plan {PLAN_VERSION}" or rest[-1:] != [""] or rest[:-1] != sorted(rest[:-1]):
        raise WrongPlanError(f"{text!r} is no plan")
    pairs = [line.partition("=") for line in rest[:-1]]
    found = {key: value for key, _, value in pairs}
    if len(found) < len(pairs) or not all(sign for _, sign, _ in pairs):
        raise WrongPlanError(f"{text!r} has fields without a value, or twice")
    kind = OPS.get(op := found.pop("op", ""))
    if kind is None:
        raise WrongPlanError(f"the operation {op!r} is unknown")
    return kind.of(found)
