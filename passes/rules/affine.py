"""Affine functions of positions: what operators make of them, the columns `affine` and `order`."""

from collections.abc import Callable
from dataclasses import dataclass

from pitc.ir.index import Poly, bound, nonneg

Affine = Callable[[list[Poly]], Poly | None]


@dataclass(frozen=True, slots=True)
class Order:
    """A comparison x ? y.

    Args:
        less: It holds where x < y; None for neither direction.
        equal: It holds where x == y.
    """

    less: bool | None
    equal: bool

    def nonnegative(self, d: Poly) -> list[Poly]:
        """What must all be at least 0, so that it holds, where d is x - y.

        x < y   ->   y - x - 1 >= 0
        """
        if self.less is None:
            return [d, -d]
        return [(-d if self.less else d) - (not self.equal)]

    def holds(self, x: int, y: int) -> bool:
        """Whether it holds for two numbers."""
        if x == y:
            return self.equal
        return self.less is not None and self.less == (x < y)

    def turned(self) -> "Order":
        """The comparison y ? x that says the same."""
        return Order(self.less if self.less is None else not self.less, self.equal)

    def below(self) -> tuple[int, bool] | None:
        """Of a place and a length: what to add to the place, and whether the comparison holds, or
        does not, where that is less than the length. None where it is none of that kind.

        place <= length   ->   place - 1 < length
        """
        return None if self.less is None else (0 if self.less != self.equal else -1, self.less)


def same(xs: list[Poly]) -> Poly | None:
    """The first operand."""
    return xs[0]


def total(xs: list[Poly]) -> Poly | None:
    """A sum of two."""
    return xs[0] + xs[1]


def difference(xs: list[Poly]) -> Poly | None:
    """A difference of two."""
    return xs[0] - xs[1]


def negative(xs: list[Poly]) -> Poly | None:
    """The number with the other sign."""
    return -xs[0]


def product(xs: list[Poly]) -> Poly | None:
    """A product with at most one factor that moves."""
    return xs[0] * xs[1] if not (xs[0].digits() and xs[1].digits()) else None


def largest(xs: list[Poly]) -> Poly | None:
    """The one that is never smaller than another."""
    return next((x for x in xs if all(nonneg(bound(x - y, False)) for y in xs)), None)


def smallest(xs: list[Poly]) -> Poly | None:
    """The one that is never larger than another."""
    least = largest([-x for x in xs])
    return None if least is None else -least
