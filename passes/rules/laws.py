"""Laws of elementwise operators on constants that need no arithmetic: the column `law`.

    0 * x = 0      x + -inf = -inf      where(true, a, b) = a

The first two need an x without NaN and infinities; who uses them adds that condition
(`pitc.passes.facts.fill`). A 0 stands for both zeros.
"""

from collections.abc import Callable, Sequence
from math import inf

from pitc.ir.constant import (
    NZ,
    TOP,
    ZN,
    Constant,
    Range,
    is_nonzero,
    is_number,
    is_zero,
    range_of,
)

Constants = Sequence[Constant]


class Unsettled:
    """The answer of a law that does not apply."""


UNSETTLED = Unsettled()
Law = Callable[[Constants], Constant | Unsettled]


def truth_of(c: Constant) -> bool | None:
    """The constant as a condition; None where it may be either."""
    if c is NZ or (isinstance(c, Range) and not c.lo <= 0 <= c.hi):
        return True
    return bool(c) if is_number(c) else None


def _join(a: Constant, b: Constant) -> Constant | Unsettled:
    """What is known of a value that is one of two."""
    if is_number(a) and a == b:
        return a
    if a is b and not isinstance(a, Range):
        return a
    if all(c is ZN or is_zero(c) for c in (a, b)):
        return ZN
    return UNSETTLED


def where(cs: Constants) -> Constant | Unsettled:
    """One of two values, where the condition is known or they agree."""
    branch = truth_of(cs[0])
    if branch is None:
        return _join(cs[1], cs[2])
    return cs[1] if branch else cs[2]


def both(cs: Constants) -> Constant | Unsettled:
    """One false operand is enough."""
    truths = [truth_of(c) for c in cs]
    return 0 if False in truths else TOP if None in truths else 1


def either(cs: Constants) -> Constant | Unsettled:
    """One true operand is enough."""
    truths = [truth_of(c) for c in cs]
    return 1 if True in truths else TOP if None in truths else 0


def opposite(cs: Constants) -> Constant | Unsettled:
    """The other truth value."""
    (c,) = cs
    truth = truth_of(c)
    return TOP if truth is None else int(not truth)


def product(cs: Constants) -> Constant | Unsettled:
    """0 * x = 0; with "0 or NaN" it is 0 or NaN."""
    a, b = cs
    if is_number(a) and is_number(b):
        return UNSETTLED
    if is_zero(a) or is_zero(b):
        other = b if is_zero(a) else a
        return ZN if other is ZN else 0
    return ZN if ZN in cs else UNSETTLED


def quotient(cs: Constants) -> Constant | Unsettled:
    """0 / x = 0 or NaN; 0 where x is known not to be 0."""
    a, b = cs
    if is_number(a) and is_number(b):
        return UNSETTLED
    if is_zero(a):
        return 0 if _is_apart(b) else ZN
    if not is_number(b) or b == 0:  # of a range of divisors, corners say nothing
        return TOP
    return ZN if a is ZN else UNSETTLED


def _is_apart(c: Constant) -> bool:
    """True for what is not 0, nor NaN."""
    return is_nonzero(c) or (isinstance(c, Range) and (c.lo > 0 or c.hi < 0))


def total(cs: Constants) -> Constant | Unsettled:
    """-inf swallows every other term but +inf and NaN; 0 changes nothing."""
    if all(map(is_number, cs)):
        return UNSETTLED
    if ZN in cs:
        return ZN if all(c is ZN or is_zero(c) for c in cs) else TOP
    known = [r for r in map(range_of, cs) if r is not None]
    if any(r.hi == inf for r in known):
        return TOP
    if any(r.hi == -inf for r in known):
        return -inf
    return NZ if [c for c in cs if not is_zero(c)] == [NZ] else UNSETTLED


def difference(cs: Constants) -> Constant | Unsettled:
    """The sum with the second operand turned."""
    a, b = cs
    if isinstance(b, Range):  # of a term, a sum asks for the upper end only
        return total((a, Range(-inf, -b.lo)))
    return total((a, -b if is_number(b) else b))


def extreme(cs: Constants) -> Constant | Unsettled:
    """Of "0 or NaN" nothing is known."""
    return TOP if ZN in cs else UNSETTLED


def odd(cs: Constants) -> Constant | Unsettled:
    """Functions with f(0) = 0 and f(NaN) = NaN."""
    return ZN if list(cs) == [ZN] else UNSETTLED


def unequal(cs: Constants) -> Constant | Unsettled:
    """Ranges that are apart, and "not 0" against 0."""
    a, b = map(range_of, cs)
    apart = a is not None and b is not None and (a.hi < b.lo or b.hi < a.lo)
    if apart or (NZ in cs and any(map(is_zero, cs))):
        return 0
    return UNSETTLED if all(map(is_number, cs)) else TOP
