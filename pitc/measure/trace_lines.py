"""The lines of a trace: each tells of one decision.

Those of products name live micro-tiles, what each variant was predicted to take, which one ran and
what it took; those of gated convolutions name live channels (`docs/micro-tiles.md`), those of
attention live pairs (`docs/attention.md`), and those of grouped products rows (`docs/experts.md`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked

from pitc.errors import UsageError
from pitc.ir.tiles import Work
from pitc.measure.trace_channels import ChannelDecision
from pitc.measure.trace_groups import GroupRows
from pitc.measure.trace_pairs import LivePairs

_PRODUCT = r"(?:contract(?:_right)?|ffn|attention|grouped)"
_NODE = re.compile(rf"(.+) \[(?:packed )?{_PRODUCT}\](?:\.\d+)?", re.DOTALL)
_BEFORE_0_2 = re.compile(rf"pitc\.(.+)\.{_PRODUCT}(?:\.\d+)?", re.DOTALL)
_Count = Annotated[int, Field(ge=0)]
_Size = Annotated[int, Field(ge=1)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Kind(BaseModel):
    """Any line: each kind but that of products names something that no other one does."""

    channels: Any = None
    live_pairs: Any = None
    hit_groups: Any = None


@checked(config=ConfigDict(strict=True), frozen=True, slots=True)
class Candidate:
    """A variant on offer.

    Args:
        predicted_us: Microseconds that it was predicted to take.
        features: Amounts of `pitc.ir.tiles.FEATURES`.
    """

    predicted_us: _Amount
    features: tuple[_Amount, ...]


@checked(config=ConfigDict(strict=True, extra="ignore"), frozen=True, slots=True)
class Decision:
    """One line of a trace, as far as it is looked at here; it may tell more.

    Args:
        node: The contraction, by its name in the source graph.
        rows: Sizes and counts, here and below, are those of `Work`; of a large operand an estimate
            from a sample.
        threads: For how many its work was cut.
        candidates: The variants on offer.
        chosen: The variant that ran.
        measured_us: What it took, microseconds of wall time.
        cpu_us: What it took, microseconds of the thread's CPU time; None where several worked.
    """

    node: str
    rows: _Size
    k: _Size
    panels: _Size
    row_block: _Size
    k_blocks: _Size
    threads: _Size
    scanned: bool
    counts: dict[str, _Count]
    candidates: dict[str, Candidate]
    chosen: str
    measured_us: _Amount
    cpu_us: _Amount | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Decision":
        if self.chosen not in self.candidates:
            raise ValueError(f"{self.chosen!r} is no candidate")
        if "elements" not in self.counts:
            raise ValueError("no number of live elements")
        if self.counts["elements"] > self.rows * self.k:
            raise ValueError("more live elements than elements")
        return self

    @property
    def work(self) -> Work:
        """What was counted."""
        return Work(**{field.name: getattr(self, field.name) for field in fields(Work)})

    @property
    def predicted_us(self) -> dict[str, float]:
        """Microseconds by variant, for those on offer."""
        return {variant: each.predicted_us for variant, each in self.candidates.items()}

    @property
    def features(self) -> dict[str, tuple[float, ...]]:
        """Amounts of `pitc.ir.tiles.FEATURES`, by variant."""
        return {variant: each.features for variant, each in self.candidates.items()}

    @property
    def live(self) -> int:
        """Elements that are not zero, of the operand that may hold zeros."""
        return self.counts["elements"]

    @property
    def density(self) -> float:
        """Share of elements that are not zero."""
        return self.live / (self.rows * self.k)


def source_node(name: str) -> str:
    """The source graph's name of a contraction; a name that is not ours stays as it is."""
    found = _NODE.fullmatch(name) or _BEFORE_0_2.fullmatch(name)
    return found[1] if found else name


@dataclass(frozen=True, slots=True)
class Trace:
    """The lines of a trace.

    Args:
        products: Decisions of sparse contractions.
        channels: Decisions of gated convolutions.
        pairs: What runs of attention read.
        groups: What runs of grouped products read.
    """

    products: list[Decision]
    channels: list[ChannelDecision]
    pairs: list[LivePairs] = field(default_factory=list)
    groups: list[GroupRows] = field(default_factory=list)


def read_lines(path: Path) -> Trace:
    """Read a trace.

    Raises:
        UsageError: It cannot be read, or a line of it is no decision.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from error
    if not lines[-1]:
        lines.pop()
    found = Trace([], [])
    for number, line in enumerate(lines, 1):
        match _decision(path, number, line):
            case Decision() as decision:
                found.products.append(decision)
            case LivePairs() as pairs:
                found.pairs.append(pairs)
            case GroupRows() as groups:
                found.groups.append(groups)
            case ChannelDecision() as channels:
                found.channels.append(channels)
    return found


_Line = Decision | ChannelDecision | LivePairs | GroupRows
_KINDS: Mapping[str, TypeAdapter[Any]] = {
    "channels": TypeAdapter(ChannelDecision),
    "live_pairs": TypeAdapter(LivePairs),
    "hit_groups": TypeAdapter(GroupRows),
}
_PRODUCTS = TypeAdapter(Decision)


def _decision(path: Path, number: int, text: bytes) -> _Line:
    try:
        told = _Kind.model_validate_json(text).model_fields_set
        kind = next((kind for name, kind in _KINDS.items() if name in told), _PRODUCTS)
        found: _Line = kind.validate_json(text)
        return replace(found, node=source_node(found.node))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{place}: " for place in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        hint = "a trace is what PITC_TRACE or the option trace made"
        text_ = f"line {number} is no decision: {where}{reason}"
        raise UsageError(text_, path=path, hint=hint) from error
