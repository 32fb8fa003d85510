"""Constants through elementwise operators.

A constant is a number, a `Range`, ZN, NZ, or TOP (`pitc.ir.constant`). `evaluate_constants` maps
the constants of the operands to one of the result: first by laws that need no arithmetic (0 * x =
0, Where picks a branch), then by numpy in the operands' own types: on numbers where the table
trusts it, on the corners of a box of ranges where the operator is monotone in each operand
(rounding is monotone too, so the corners bound every result).

    score + mask     SCORE + NEG = -1000..1000 + -inf..-10000 = -inf..-9000 (assumed)
    x + mask         TOP + NEG = TOP

A 0 stands for both zeros: a function that tells them apart (1 / x) has no value there. The laws
0 * x = 0 and x + -inf = -inf need an x without NaN and infinities; who uses them adds that
condition (`pitc.passes.facts.fill`).
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import inf, isfinite
from typing import Any

import numpy as np

from pitc.ir.constant import (
    NZ,
    TOP,
    ZN,
    Constant,
    Number,
    Range,
    is_assumed,
    is_hidden,
    is_number,
    range_of,
)
from pitc.ir.graph import NodeView, NoRule
from pitc.passes.rules.elementwise import data_operands
from pitc.passes.rules.laws import Constants, Unsettled, truth_of
from pitc.passes.rules.record import (
    OPERATORS,
    UNKNOWN,
    Elementwise,
    Operator,
    Parameters,
)


def evaluate_constants(
    op: str, constants: Constants, to_bool: bool = False, node: NodeView | None = None
) -> Constant:
    """What is known of an elementwise result when this is known of its operands.

    Args:
        op: Operator type.
        constants: One constant per data operand, in operand order (`data_operands`).
        to_bool: The result's type is bool.
        node: The node, for element types and attributes. Without it, operands count as float32, and
            operators with attributes or integer arithmetic of their own give no number.

    Returns:
        The constant, TOP where nothing is known.
    """
    operator = _record(op, node)
    if not constants:
        fill = None if operator.fill is None or node is None else operator.fill(node)
        return _python(fill)
    if operator.law is not None:
        found = operator.law(constants)
        if not isinstance(found, Unsettled):
            return found
    numbers = [c for c in constants if is_number(c)]
    if len(numbers) == len(constants):
        return _compute(op, numbers, node, to_bool)
    if operator.converts:
        (only,) = constants
        return _cast(op, only, to_bool, node)
    return _spanned(op, constants, node)


def ignores(op: str, j: int, constants: Constants, node: NodeView | None = None) -> bool:
    """True when the result does not depend on operand j, given constants of the others.

    Args:
        op: Operator type.
        j: Position of the operand among the data operands.
        constants: One constant per data operand; that of j is not looked at.
        node: As for `evaluate_constants`.
    """
    cs = [*constants[:j], TOP, *constants[j + 1 :]]
    operator = _record(op, node)
    if operator.chooses and j > 0:
        return truth_of(cs[0]) is (j == 2)
    result = evaluate_constants(op, cs, node=node)
    # whether a product with ZN is 0 or NaN is up to the ZN factor alone
    return is_number(result) or (result is ZN and operator.multiplies)


ANYTHING = Range(-inf, inf)
MOST_APART = 3  # operands of an operator that does not treat all alike


def _spanned(op: str, constants: Constants, node: NodeView | None) -> Constant:
    """What ranges of the operands say of the result, in floating-point types.

    An operand of which nothing is known counts as any number: that it is no NaN is a condition that
    the caller adds. What is bounded on neither side, or from below only, is of no use.
    """
    operator = _record(op, node)
    found = operator.function
    if found is None or ZN in constants or NZ in constants or not _all_float(node):
        return TOP
    if operator.chooses:
        branches = constants[1:]
        joint = _useful([x for c in branches for x in _ends(c)], branches)
        return joint if is_hidden(joint) else TOP
    if found.image is not None:  # which is of finite numbers: sin(-inf) is NaN
        (only,) = constants
        return Range(*found.image) if only is TOP or _is_finite(only) else TOP
    if not found.monotone or all(c is TOP for c in constants):
        return TOP
    computed = [_compute(op, xs, node) for xs in corners([_ends(c) for c in constants])]
    numbers = [c for c in computed if is_number(c)]
    if len(numbers) < len(computed):
        return TOP
    joint = _useful(numbers, constants)
    return joint if is_number(joint) or not found.boolean else TOP


def corners(ends: Sequence[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    """The corners of a box at which a monotone function is least and most.

    An operator of many operands treats all alike: it is so where all are least, or all most.
    """
    if len(ends) <= MOST_APART:
        return product(*ends)
    return [tuple(e[0] for e in ends), tuple(e[-1] for e in ends)]


def _ends(c: Constant) -> tuple[float, ...]:
    known = range_of(c) or ANYTHING
    return (known.lo,) if known.lo == known.hi else (known.lo, known.hi)


def _is_finite(c: Constant) -> bool:
    return all(map(isfinite, _ends(c)))


def _useful(ends: Sequence[Number], operands: Constants) -> Constant:
    """The range that has these ends inside, as far as it says something."""
    lo, hi = min(ends), max(ends)
    if lo == hi:
        return lo
    joint = Range(lo, hi, any(map(is_assumed, operands)))
    return joint if hi < 0 or _is_finite(joint) else TOP


def _all_float(node: NodeView | None) -> bool:
    """True where ranges can be followed: the type does not wrap; a condition's is another one."""
    if node is None:
        return True
    dtype = _type_of(node, data_operands(node)[-1])
    return dtype is not None and dtype.kind == "f"


def _cast(op: str, c: Constant, to_bool: bool, node: NodeView | None) -> Constant:
    """The weaker statements through a change of type."""
    source, target = (None, None) if node is None else (_type_of(node, 0), node.out_dtype())
    if to_bool or (target is not None and target.kind == "b"):
        return 1 if truth_of(c) else TOP
    if source is None or target is None:
        return TOP
    if c is NZ and source.kind in "biu":
        # a nonzero integer stays nonzero when no bit of it is cut off (numpy counts 4 bits as 8)
        wide = target.kind in "iu" and target.itemsize >= source.itemsize
        return NZ if wide or target.kind == "f" else TOP
    if source.kind != "f" or target.kind != "f":
        return TOP
    if isinstance(c, Range):
        ends = [_compute(op, [x], node) for x in (c.lo, c.hi)]
        numbers = [x for x in ends if is_number(x)]
        return _useful(numbers, [c]) if len(numbers) == len(ends) else TOP
    return c if target.itemsize >= source.itemsize or c is ZN else TOP


def _type_of(node: NodeView, i: int) -> np.dtype[Any] | None:
    try:
        return node.dtype(i)
    except NoRule:
        return None


def _python(x: Any) -> Constant:
    """A numpy scalar as a constant; NaN is no constant, bools are 0 and 1."""
    value = np.asarray(x).item()
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, (int, float)) or value != value:
        return TOP
    return value


def _compute(
    op: str, xs: Sequence[Number], node: NodeView | None, to_bool: bool = False
) -> Constant:
    """The operator on numbers, in the operands' own types."""
    operator = _record(op, node)
    found = operator.function
    if found is None or found.evaluate is None or not found.trusted(*xs):
        return TOP
    results = set()
    with np.errstate(all="ignore"):
        try:
            keywords = _parameters(found, node)
            if operator.converts and to_bool:
                keywords = {"to": np.dtype(bool)}
            types = _operand_types(node, len(xs))
            operands = [_typed(x, t) for x, t in zip(xs, types, strict=True)]
            for zeros in corners([_zeros(x) for x in operands]):
                results.add(_python(found.evaluate(*zeros, **keywords)))
        except (ArithmeticError, NoRule, TypeError, ValueError):
            return TOP
    return results.pop() if len(results) == 1 else TOP


def _parameters(found: Elementwise, node: NodeView | None) -> Parameters:
    """Keyword arguments of the function; without a node none (which it may miss: a TypeError).

    Raises:
        NoRule: They are not known.
    """
    if node is None:
        if found.typed:
            raise NoRule("the types decide")
        return {}
    known = {} if found.parameters is None else found.parameters(node)
    if known is None:
        raise NoRule("an attribute or a bound is not known")
    return known


def _zeros(x: Any) -> tuple[Any, ...]:
    """What an operand may be: a 0 of a floating-point type has either sign."""
    return (np.abs(x), -np.abs(x)) if x.dtype.kind == "f" and x == 0 else (x,)


def _record(op: str, node: NodeView | None) -> Operator:
    return OPERATORS.get(("" if node is None else node.domain, op), UNKNOWN)


def _operand_types(node: NodeView | None, count: int) -> list[np.dtype[Any]]:
    """Element types of the data operands.

    Raises:
        NoRule: One is unknown or has no numpy arithmetic.
    """
    if node is None:
        return [np.dtype(np.float32)] * count
    types = [node.dtype(i) for i in data_operands(node)]
    if any(t.kind not in "biuf" for t in types):
        raise NoRule("numpy computes in another way")
    return types


def _typed(x: Number, t: np.dtype[Any]) -> Any:
    """The number in an operand's type.

    Raises:
        ValueError: The type cannot hold it.
    """
    value = np.asarray(x).astype(t)
    if t.kind in "iub" and value.item() != x:
        raise ValueError(f"{x} is not a {t}")
    return value
