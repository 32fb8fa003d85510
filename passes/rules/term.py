"""Terms: formulas of an operator's operands and result, as data.

    1 - Y * Y   ->   Apply("Sub", (Number(1), Apply("Mul", (Y, Y))))

They name ONNX operators, so one term is both evaluated with the records' functions and written as
nodes (`pitc.passes.grad.terms`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitc.ir.graph import NodeView


class Term:
    """A formula; arithmetic operators make larger ones."""

    __slots__ = ()

    def __add__(self, other: "Term | float") -> "Term":
        return apply("Add", self, other)

    def __sub__(self, other: "Term | float") -> "Term":
        return apply("Sub", self, other)

    def __rsub__(self, other: "Term | float") -> "Term":
        return apply("Sub", other, self)

    def __mul__(self, other: "Term | float") -> "Term":
        return apply("Mul", self, other)

    def __rmul__(self, other: "Term | float") -> "Term":
        return apply("Mul", other, self)

    def __truediv__(self, other: "Term | float") -> "Term":
        return apply("Div", self, other)

    def __rtruediv__(self, other: "Term | float") -> "Term":
        return apply("Div", other, self)

    def __neg__(self) -> "Term":
        return apply("Neg", self)


@dataclass(frozen=True, slots=True)
class Number(Term):
    """A number, of the type of the result."""

    value: float


@dataclass(frozen=True, slots=True)
class Operand(Term):
    """An operand of the operator, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class Result(Term):
    """The result of the operator."""


@dataclass(frozen=True, slots=True)
class Apply(Term):
    """A standard operator without attributes, applied to terms."""

    op: str
    operands: tuple[Term, ...]


def apply(op: str, *operands: Term | float) -> Term:
    """A standard operator applied to terms and numbers."""
    return Apply(op, tuple(x if isinstance(x, Term) else Number(x) for x in operands))


def select(condition: Term, then: Term | float, otherwise: Term | float) -> Term:
    """The one term or the other."""
    return apply("Where", condition, then, otherwise)


X, X1, Y = Operand(0), Operand(1), Result()
ZERO, ONE = Number(0.0), Number(1.0)

#: By a node: for each operand the derivative of the result with respect to it.
Derivative = Callable[["NodeView"], Sequence[Term]]


def always(*terms: Term) -> Derivative:
    """Derivatives that do not depend on the node."""
    return lambda _: terms
