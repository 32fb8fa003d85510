"""Evaluates terms (`pitc.passes.rules.term`), and writes them as nodes.

    g * (1 - Y * Y)                    ->  Mul(g, Sub(1, Mul(y, y)))
    g * select(X <= 0, 0, 1)           ->  Where(LessOrEqual(x, 0), 0, g)
    g * (X1 * Pow(X, X1 - 1)), X1 = 2  ->  Mul(g, Mul(2, x))

A gradient goes into the choices of a term: where a choice says 0, it is 0 whatever the gradient is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.passes.grad.backward import Backward
from pitc.passes.rules.record import OPERATORS
from pitc.passes.rules.term import Apply, Number, Operand, Result, Term


def evaluate(term: Term, operands: Mapping[int, Any], result: Any) -> Any:
    """What a term is, by the functions of the operators in it.

    Args:
        term: The term.
        operands: Numbers or arrays of the operands, by their places.
        result: Of the result.
    """
    match term:
        case Number(value):
            return np.asarray(value, np.asarray(result).dtype)
        case Operand(place):
            return operands[place]
        case Apply(op, parts):
            function = OPERATORS["", op].function
            assert function is not None and function.evaluate is not None, op
            with np.errstate(all="ignore"):
                return function.evaluate(*(evaluate(p, operands, result) for p in parts))
    return result


def simplified(term: Term, known: Callable[[int], float | None]) -> Term:
    """A term with operands that are known numbers, and what follows from numbers, put in.

    Args:
        term: The term.
        known: The number that all elements of an operand are; None for others.
    """
    match term:
        case Operand(place):
            number = known(place)
            return term if number is None else Number(float(number))
        case Apply(op, parts):
            return _applied(op, tuple(simplified(p, known) for p in parts))
    return term


def _applied(op: str, parts: tuple[Term, ...]) -> Term:
    match op, parts:
        case "Where", (Number(value), then, otherwise):
            return then if value else otherwise
        case ("Mul", (x, Number(1.0))) | ("Mul", (Number(1.0), x)):
            return x
        case ("Add" | "Sub" | "Div" | "Pow", (x, Number(value))) if value == (op in ("Div", "Pow")):
            return x
    if all(isinstance(p, Number) for p in parts):
        found = evaluate(Apply(op, parts), {}, np.float64(0))
        return Number(float(found))
    return Apply(op, parts)


def mentions(term: Term, part: Term) -> bool:
    """True for a term with that part in it."""
    inner = term.operands if isinstance(term, Apply) else ()
    return term == part or any(mentions(p, part) for p in inner)


class TermWriter:
    """Writes terms of one node as nodes.

    Args:
        build: Takes them.
        dtype: Type of the numbers.
        operand: An operand's value, in that type unless it is a bool.
        result: The result's value.
    """

    def __init__(
        self,
        build: Backward,
        dtype: np.dtype,
        operand: Callable[[int], ir.Value],
        result: Callable[[], ir.Value],
    ) -> None:
        self._build, self._dtype, self._operand, self._result = build, dtype, operand, result

    def times(self, g: ir.Value | None, term: Term) -> ir.Value | None:
        """A gradient times a term.

        Args:
            g: The gradient; None: 0.
            term: The term.

        Returns:
            The product; None: 0, as the term says.
        """
        match term:
            case Number(0.0):
                return None
            case Number(1.0):
                return g
            case Number(-1.0):
                return self._op("Neg", g)
            case Apply("Neg", (x,)):
                return self._op("Neg", self.times(g, x))
            case Apply("Mul", (x, y)):
                return self.times(self.times(g, x), y)
            case Apply("Div", (x, y)):
                return self._op("Div", self.times(g, x), self.write(y))
            case Apply("Where", (condition, x, y)):
                parts = [self.times(g, x), self.times(g, y)]
                if parts == [None, None]:
                    return None
                zero = self._build.number(0, self._dtype)
                chosen = [zero if part is None else part for part in parts]
                return self._build.op("Where", [self.write(condition), *chosen])
        return self._op("Mul", g, self.write(term))

    def _op(self, op: str, g: ir.Value | None, *others: ir.Value) -> ir.Value | None:
        return None if g is None else self._build.op(op, [g, *others])

    def write(self, term: Term) -> ir.Value:
        """A term by itself."""
        match term:
            case Number(value):
                return self._build.number(value, self._dtype)
            case Operand(place):
                return self._operand(place)
            case Result():
                return self._result()
            case Apply(op, parts):
                return self._build.op(op, [self.write(part) for part in parts])
        raise TypeError(term)
