"""Conditions on operands: for finite results of finite ones (overflow aside), the column `finite`,
and for squares.
"""

from math import isfinite

import numpy as np

from pitc.ir.constant import Number
from pitc.passes.rules.record import Condition, Operands
from pitc.passes.rules.signs import Sign


def divisor(of: Operands) -> bool:
    """X / y: y is positive, or a constant that is never 0; or y stays what it is."""
    x = of.view.name(1)
    return x not in of.changed or of.sign(1) is Sign.POSITIVE or of.has_no_zero(1)


def root(of: Operands) -> bool:
    """A square root: of no negative number."""
    return of.sign(0) >= Sign.NONNEGATIVE


def pole(of: Operands) -> bool:
    """1 / x and log(x): of a positive number."""
    return of.sign(0) is Sign.POSITIVE


def power(of: Operands) -> bool:
    """A power: by a natural number, or of what has no pole and no root there."""
    exponent = of.number(1)
    if exponent is None or not isfinite(exponent):
        return False
    if exponent < 0:
        return of.sign(0) is Sign.POSITIVE
    return float(exponent).is_integer() or of.sign(0) >= Sign.NONNEGATIVE


def scaling(of: Operands) -> bool:
    """A normalisation by a variance, input 4: it stays as it was, or is one it can divide by."""
    variance = of.view.array(4)
    if variance is None:
        return of.view.name(4) not in of.changed
    return bool((variance + np.float32(of.view.attr("epsilon", 1e-5)) > 0).all())


def at_least(**least: tuple[float, float]) -> Condition:
    """While attributes are not too small.

    Args:
        least: For each attribute its default, and what it must be at least.
    """

    def holds(of: Operands) -> bool:
        return all(of.view.attr(n, default) >= low for n, (default, low) in least.items())

    return holds


TINY = 5e-324  # the least number above 0
# they divide by a root of a variance (or mean of squares) plus epsilon
norm: Condition = at_least(epsilon=(1e-5, TINY))
local_norm: Condition = at_least(bias=(1.0, TINY), alpha=(1e-4, 0.0))


def same_factor(of: Operands) -> bool:
    """X * x."""
    return len({of.view.name(i) for i in range(of.view.n_inputs)}) == 1


def even(of: Operands) -> bool:
    """A power by an even number."""
    exponent = of.number(1)
    return exponent is not None and exponent % 2 == 0


def exponent(of: Operands) -> Number | None:
    """The exponent of a power, as a constant."""
    return of.number(1)


def half(_: Operands) -> Number:
    """The exponent of a square root."""
    return 0.5


def minus_one(_: Operands) -> Number:
    """The exponent of 1 / x."""
    return -1


def not_above(of: Operands) -> bool:
    """An exponential: of no positive number, so that it is at most 1."""
    return of.is_not_positive(0)


def negated(of: Operands) -> bool:
    """The opposite of a number that is not negative."""
    return of.sign(0) >= Sign.NONNEGATIVE


def all_fall(of: Operands) -> bool:
    """A sum, or the largest, of numbers that are not positive; what is made of one."""
    return all(of.is_not_positive(i) for i in range(of.view.n_inputs))


def one_falls(of: Operands) -> bool:
    """The smallest of numbers, one of which is not positive."""
    return any(of.is_not_positive(i) for i in range(of.view.n_inputs))


def difference_falls(of: Operands) -> bool:
    """X - y: x is not positive, and y not negative."""
    return of.is_not_positive(0) and of.sign(1) >= Sign.NONNEGATIVE


def product_falls(of: Operands) -> bool:
    """X * y: one of them is not positive, the other one not negative."""
    pairs = ((0, 1), (1, 0)) if of.view.n_inputs == 2 else ()
    return any(of.is_not_positive(i) and of.sign(j) >= Sign.NONNEGATIVE for i, j in pairs)


def quotient_falls(of: Operands) -> bool:
    """X / y: x is not positive, and y positive; or x is not negative, y a negative number."""
    if of.is_not_positive(0) and of.sign(1) is Sign.POSITIVE:
        return True
    return of.sign(0) >= Sign.NONNEGATIVE and of.is_not_positive(1) and of.has_no_zero(1)
