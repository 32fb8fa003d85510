"""Functions of one variable in a form in which equal ones look alike.

    x * (erf(x / 1.4142135) + 1) * 0.5   ->   0.5 x + 0.5 x erf(0.70710678 x)

A formula is a sum of terms: a number times a power of x times functions of formulas. Sums, products
and the few divisions that activations need are multiplied out. What would not compute the same in
float32, because terms cancel or a factor leaves the usual range, is no formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pitc.passes.regions.steps import LEAST, MOST

TOLERANCE = 1e-6  # relative: models hold constants such as sqrt(1/2) in float32
CANCELLED = 0.25  # a sum of two numbers below this part of the larger one has lost digits
MAX_TERMS = 16

Factors = tuple[int, tuple["Function", ...]]  # the power of x, functions in order
ODD = frozenset({"erf", "tanh"})
UNIT: Factors = (0, ())


class NoFormula(Exception):
    """A step makes something that is not written as a formula."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a formula.

    Args:
        name: `erf`, `tanh`, `sigmoid`, `exp` or `relu`.
        of: The formula.
    """

    name: str
    of: "Formula"


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of terms.

    Args:
        terms: What each consists of, and its number; in a fixed order, none is 0.
    """

    terms: tuple[tuple[Factors, float], ...]

    @property
    def number(self) -> float | None:
        """The number that a formula without x is."""
        if not self.terms:
            return 0.0
        (factors, first), *rest = self.terms
        return first if not rest and factors == UNIT else None


X = Formula((((1, ()), 1.0),))


def _formula(terms: Mapping[Factors, float]) -> Formula:
    kept = {f: c for f, c in terms.items() if c}
    if len(kept) > MAX_TERMS or not all(
        isfinite(c) and LEAST <= abs(c) <= MOST for c in kept.values()
    ):
        raise NoFormula
    return Formula(tuple(sorted(kept.items(), key=repr)))


def number(value: float) -> Formula:
    """A formula without x."""
    return _formula({UNIT: value})


def plus(a: Formula, b: Formula) -> Formula:
    """The sum."""
    terms = dict(a.terms)
    for factors, more in b.terms:
        known = terms.get(factors, 0.0)
        if abs(known + more) < CANCELLED * max(abs(known), abs(more)):
            raise NoFormula
        terms[factors] = known + more
    return _formula(terms)


def times(a: Formula, b: Formula) -> Formula:
    """The product."""
    total = Formula(())
    for (power, functions), x in a.terms:
        for (more, others), y in b.terms:
            factors = (power + more, tuple(sorted((*functions, *others), key=repr)))
            total = plus(total, _formula({factors: x * y}))
    return total


def scaled(a: Formula, factor: float) -> Formula:
    """The product with a number."""
    return times(a, number(factor))


def raised(a: Formula, exponent: float | None) -> Formula:
    """A small whole power."""
    if exponent not in (1, 2, 3):
        raise NoFormula
    result = a
    for _ in range(int(exponent) - 1):
        result = times(result, a)
    return result


def reciprocal(a: Formula) -> Formula:
    """One by a number, or by `c + c exp(-z)`, which is `sigmoid(z) / c`."""
    if a.number:
        return number(1 / a.number)
    terms = dict(a.terms)
    c = terms.pop(UNIT, 0.0)
    if not c or len(terms) != 1:
        raise NoFormula
    (((power, functions), again),) = terms.items()
    if power or again != c or [f.name for f in functions] != ["exp"]:
        raise NoFormula
    return scaled(applied("sigmoid", scaled(functions[0].of, -1)), 1 / c)


def applied(name: str, a: Formula) -> Formula:
    """A function of a formula; an odd one of the formula whose first term is positive."""
    sign = -1.0 if name in ODD and a.terms and a.terms[0][1] < 0 else 1.0
    of = Formula(tuple((f, sign * c) for f, c in a.terms))
    return Formula((((0, (Function(name, of),)), sign),))


def alike(a: Formula, b: Formula, tolerance: float = TOLERANCE) -> bool:
    """True for the same formula up to the rounding of its constants.

    Args:
        a: A formula.
        b: A formula no two terms of which are alike.
        tolerance: How far a factor may be off, relative to it.
    """
    pairs = [[_alike_terms(x, y, tolerance) for y in b.terms] for x in a.terms]
    onto = all(any(row) for row in pairs) and all(any(c) for c in zip(*pairs, strict=True))
    return len(a.terms) == len(b.terms) and onto


def _alike_terms(a: tuple[Factors, float], b: tuple[Factors, float], tolerance: float) -> bool:
    ((power, functions), x), ((more, others), y) = a, b
    if power != more or len(functions) != len(others) or abs(x - y) > tolerance * abs(y):
        return False
    pairs = zip(functions, others, strict=True)
    return all(f.name == g.name and alike(f.of, g.of, tolerance) for f, g in pairs)
