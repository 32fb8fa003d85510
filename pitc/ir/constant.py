"""What a value may be known to be: a number, or one of three weaker statements, or nothing."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeGuard

from pitc.ir.region import Region


class Special(Enum):
    """Statements that are weaker than a number."""

    NEG = "very negative"  # finite and <= VERY_NEGATIVE
    ZN = "0 or NaN"
    NZ = "not 0"

    def __repr__(self) -> str:
        return self.name


NEG: Final = Special.NEG
ZN: Final = Special.ZN
NZ: Final = Special.NZ
TOP: Final = None  # nothing is known

Number = float | int
Constant = Number | Special | None

VERY_NEGATIVE = -1e4  # the weakest score that masks use


def is_number(c: Constant) -> TypeGuard[Number]:
    """True for an exactly known value (bools count as 0 and 1)."""
    return isinstance(c, (int, float))


def is_zero(c: Constant) -> bool:
    """True when the value is exactly 0."""
    return is_number(c) and c == 0


def annihilates(c: Constant) -> bool:
    """True when a product with the value does not depend on the other, finite operand."""
    return c is ZN or is_zero(c)


def very_negative(c: Constant) -> bool:
    """True for NEG, for numbers <= -1e4, and for minus infinity."""
    return c is NEG or (is_number(c) and c <= VERY_NEGATIVE)


@dataclass(frozen=True, slots=True)
class FillFact:
    """In `region`, at every point, the value is `constant`.

    Args:
        region: Where, in the coordinates of the value.
        constant: What is known there.
    """

    region: Region
    constant: Constant
