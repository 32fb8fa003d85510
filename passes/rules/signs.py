"""Signs by construction: laws for elementwise operators, the column `sign`.

sign of x * y: not negative where both are known not to be
"""

from collections.abc import Sequence
from enum import IntEnum


class Sign(IntEnum):
    """What is known of every element of a value; a NaN stays what it is."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2  # and no constant so small that 1 divided by it is infinite


Signs = Sequence[Sign]


def product(signs: Signs) -> Sign:
    """Two small factors may underflow to 0."""
    return Sign.NONNEGATIVE if min(signs) > Sign.ANY else Sign.ANY


def quotient(signs: Signs) -> Sign:
    """What is not negative may be -0.0, by which a quotient is minus infinity."""
    dividend, divisor = signs
    known = dividend > Sign.ANY and divisor is Sign.POSITIVE
    return Sign.NONNEGATIVE if known else Sign.ANY


def total(signs: Signs) -> Sign:
    """One positive term is enough, when no other is negative."""
    return max(signs) if min(signs) > Sign.ANY else Sign.ANY


def never_negative(signs: Signs) -> Sign:
    """Whatever the operand is, and a positive number for a positive one."""
    return max(signs[0], Sign.NONNEGATIVE)


def clip(signs: Signs) -> Sign:
    """Bounds that are constants are looked at by `least`, too."""
    if len(signs) < 2:
        return Sign.ANY
    low = max(signs[:2])
    return low if len(signs) == 2 else min(low, signs[2])


def narrowed(signs: Signs) -> Sign:
    """A narrower type may hold 0 instead."""
    return min(*signs, Sign.NONNEGATIVE)


def largest(signs: Signs) -> Sign:
    """One operand that is known is enough."""
    return max(signs)


def chosen(signs: Signs) -> Sign:
    """One of two; the first where the condition holds."""
    condition, *both = signs
    return both[0] if condition is Sign.POSITIVE else min(both)


def smallest(signs: Signs) -> Sign:
    """All operands must be known."""
    return min(signs)
