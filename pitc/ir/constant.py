"""What a value may be known to be: a number, a range, one of two weaker statements, or nothing."""

from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite
from typing import Final, TypeGuard

from pitc.ir.region import Region

MASKED = -1e4
"""The weakest score that masks use: the test `<= -1e4`."""
SMALL = 1e3
"""What is added to a score and is no mask stays below it: the test `|x| < 1e3`."""
SCORE_LIMIT = 1e3
"""Raw scores are assumed to be at most this large, before and after scaling."""
BOUNDED = "attention scores, as the softmax gets them, are at most 1000 in magnitude"
"""An assumption, as reports name it: without it a finite mask proves nothing."""
FINITE = "run-time values are finite: inputs hold no NaN or infinity, and nothing overflows"
"""The other one: without it 0 * x is not 0."""
FILLED = "no two sizes that do not depend on each other are 0 in one run"
"""And of shapes: there Reshape, which copies what it is told is 0, gives another empty shape."""
HIDDEN = -5750.0
"""A term of a softmax at most this large gives 0 beside a kept one: exp(-750) is 0 in float64."""
KEPT = -5000.0
"""A term at least this large is kept."""


class Special(Enum):
    """Statements that no range says."""

    ZN = "0 or NaN"
    NZ = "not 0"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Range:
    """The value is no NaN and lies between two ends, which belong to the range.

    Args:
        lo: Lower end, perhaps -inf.
        hi: Upper end, perhaps inf.
        assumed: It rests on the assumption that raw scores are bounded (`SCORE_LIMIT`).
    """

    lo: float
    hi: float
    assumed: bool = False

    def __repr__(self) -> str:
        name = NAMES.get(self)
        return name or f"{self.lo:g}..{self.hi:g}{' (assumed)' * self.assumed}"


ZN: Final = Special.ZN
NZ: Final = Special.NZ
TOP: Final = None  # nothing is known
NEG: Final = Range(-inf, MASKED)
TAME: Final = Range(-SMALL, SMALL)
SCORE: Final = Range(-SCORE_LIMIT, SCORE_LIMIT, assumed=True)
NAMES: Final = {NEG: "NEG", TAME: "TAME", SCORE: "SCORE"}

Number = float | int
Constant = Number | Range | Special | None


def is_number(c: Constant) -> TypeGuard[Number]:
    """True for an exactly known value (bools count as 0 and 1)."""
    return isinstance(c, (int, float))


def is_zero(c: Constant) -> bool:
    """True when the value is exactly 0, or -0.0."""
    return c == 0


def is_nonzero(c: Constant) -> bool:
    """True when the value is not 0; NaN is not."""
    return c is NZ or (is_number(c) and c != 0)


def annihilates(c: Constant) -> bool:
    """True when a product with the value does not depend on the other, finite operand."""
    return c is ZN or is_zero(c)


def range_of(c: Constant) -> Range | None:
    """The ends of what is known; None where nothing bounds the value."""
    if isinstance(c, Range):
        return c
    return Range(c, c) if is_number(c) else None


def is_hidden(c: Constant, limit: float = HIDDEN) -> bool:
    """True when a softmax gives exactly 0 for the value, in a row that keeps a key."""
    known = range_of(c)
    return known is not None and known.hi <= limit


def is_kept(c: Constant) -> bool:
    """True when hidden values are 0 beside this one."""
    known = range_of(c)
    return known is not None and known.lo >= KEPT


def is_bounded(c: Constant) -> bool:
    """True when the value is known to be hidden, or to lie between two numbers."""
    known = range_of(c)
    return known is not None and (is_hidden(c) or (isfinite(known.lo) and isfinite(known.hi)))


def is_score(c: Constant) -> bool:
    """True for what is only assumed of a value, that it is a bounded score: whatever a dead element
    of it is replaced by is one too.
    """
    return isinstance(c, Range) and c.assumed and isfinite(c.lo) and isfinite(c.hi)


def is_assumed(c: Constant) -> bool:
    """True for a statement that rests on the assumption about raw scores."""
    return isinstance(c, Range) and c.assumed


@dataclass(frozen=True, slots=True)
class FillFact:
    """In `region`, at every point, the value is `constant`.

    Args:
        region: Where, in the coordinates of the value.
        constant: What is known there.
    """

    region: Region
    constant: Constant
