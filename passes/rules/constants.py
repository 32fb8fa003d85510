"""Constants through elementwise operators.

A constant is a number, NEG, ZN, NZ, or TOP (`pitc.ir.constant`). `evaluate_constants` maps the
constants of the operands to one of the result: first by laws that need no arithmetic (0 * x = 0,
Where picks a branch), then by numpy in the operands' own types, where the table trusts it.

Two laws need finite run-time values, as documented: 0 * x = 0 and x + -inf = -inf. A very negative
number plus an unknown one is very negative: scores are bounded (a named assumption of the softmax
that uses it).
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from pitc.ir.branch import CHOOSE
from pitc.ir.constant import NEG, NZ, TOP, ZN, Constant, Number, is_number, is_zero, very_negative
from pitc.ir.graph import NodeView, NoRule
from pitc.passes.rules.elementwise import (
    BOOLEAN,
    COMPARISONS,
    ELEMENTWISE,
    Elementwise,
    data_operands,
)

Constants = Sequence[Constant]


class _Unsettled:
    """The answer of a law that does not apply."""


UNSETTLED = _Unsettled()
Law = Callable[[Constants], "Constant | _Unsettled"]


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
    if op == "ConstantOfShape" and node is not None:
        value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)
        return _python(value[0]) if value.size == 1 else TOP
    if op in ("Identity", "Dropout") and len(constants) == 1:
        return constants[0]
    if not constants:
        return TOP
    if op in ("Cast", "CastLike") and not is_number(constants[0]):
        return _cast(constants[0], to_bool, node)
    law = LAWS.get(op)
    found = UNSETTLED if law is None else law(constants)
    if not isinstance(found, _Unsettled):
        # integers wrap around: what is far below 0 may end up above it
        wraps = found is NEG and node is not None and _is_integer(node)
        return TOP if wraps else found
    if not all(map(is_number, constants)):
        return TOP
    return _compute(op, [c for c in constants if is_number(c)], to_bool, node)


def ignores(op: str, j: int, constants: Constants, node: NodeView | None = None) -> bool:
    """True when the result does not depend on operand j, given constants of the others.

    Args:
        op: Operator type.
        j: Position of the operand among the data operands.
        constants: One constant per data operand; that of j is not looked at.
        node: As for `evaluate_constants`.
    """
    cs = [*constants[:j], TOP, *constants[j + 1 :]]
    if op in ("Where", CHOOSE):
        branch = _truth(cs[0])
        return (
            (j == 1 and branch is False)
            or (j == 2 and branch is True)
            or (j == 0 and is_number(cs[1]) and cs[1] == cs[2])
        )
    result = evaluate_constants(op, cs, op in BOOLEAN, node)
    # whether a product with ZN is 0 or NaN is up to the ZN factor alone
    return is_number(result) or (result is ZN and op == "Mul")


def _truth(c: Constant) -> bool | None:
    """The constant as a condition; None where it may be either."""
    if c is NZ or c is NEG:
        return True
    return bool(c) if is_number(c) else None


def _join(a: Constant, b: Constant) -> Constant:
    """What is known of a value that is one of two."""
    if is_number(a) and is_number(b) and (a == b or (a != a and b != b)):
        return a
    if a is b:
        return a
    if all(c is ZN or is_zero(c) for c in (a, b)):
        return ZN
    if all(very_negative(c) and c != -inf for c in (a, b)):
        return NEG
    return TOP


def _where(cs: Constants) -> Constant:
    branch = _truth(cs[0])
    if branch is None:
        return _join(cs[1], cs[2])
    return cs[1] if branch else cs[2]


def _and(cs: Constants) -> Constant | _Unsettled:
    truths = [_truth(c) for c in cs]
    return 0 if False in truths else TOP if None in truths else 1


def _or(cs: Constants) -> Constant | _Unsettled:
    truths = [_truth(c) for c in cs]
    return 1 if True in truths else TOP if None in truths else 0


def _not(cs: Constants) -> Constant | _Unsettled:
    truth = _truth(cs[0])
    return TOP if truth is None else int(not truth)


def _mul(cs: Constants) -> Constant | _Unsettled:
    a, b = cs
    if is_number(a) and is_number(b):
        return UNSETTLED
    if is_zero(a) or is_zero(b):
        other = b if is_zero(a) else a
        return ZN if other is ZN else 0
    if ZN in cs:
        return ZN
    if NEG in cs and any(is_number(c) and 1 <= c < inf for c in cs):
        return NEG
    return TOP


def _div(cs: Constants) -> Constant | _Unsettled:
    a, b = cs
    if is_number(a) and is_number(b):
        return UNSETTLED
    if is_zero(a):
        return ZN
    if a is ZN and is_number(b) and b != 0:
        return ZN
    if a is NEG and is_number(b) and 0 < b <= 1:
        return NEG
    return TOP


def _add(cs: Constants) -> Constant | _Unsettled:
    if all(map(is_number, cs)):
        return UNSETTLED
    if ZN in cs:
        return ZN if all(c is ZN or is_zero(c) for c in cs) else TOP
    numbers = [c for c in cs if is_number(c)]
    if -inf in numbers or inf in numbers:
        return TOP if inf in numbers else -inf
    if any(map(very_negative, cs)):
        return NEG if all(c <= 0 for c in numbers) else TOP
    return NZ if [c for c in cs if not is_zero(c)] == [NZ] else TOP


def _sub(cs: Constants) -> Constant | _Unsettled:
    a, b = cs
    if is_number(a) and is_number(b):
        return UNSETTLED
    return TOP if b is NEG else _add((a, -b if is_number(b) else b))


def _min(cs: Constants) -> Constant | _Unsettled:
    if all(map(is_number, cs)):
        return UNSETTLED
    if ZN in cs:
        return TOP
    if any(is_number(c) and c == -inf for c in cs):
        return -inf
    return NEG if any(map(very_negative, cs)) else TOP


def _relu(cs: Constants) -> Constant | _Unsettled:
    return 0 if cs[0] is NEG else ZN if cs[0] is ZN else UNSETTLED


def _odd(cs: Constants) -> Constant | _Unsettled:
    """Functions with f(0) = 0 and f(NaN) = NaN."""
    return ZN if cs[0] is ZN else UNSETTLED


def _comparison(op: str) -> Law:
    """NEG against a number that is not negative, and "not 0" against 0."""
    swapped = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual"}.get(op, op)

    def law(cs: Constants) -> Constant | _Unsettled:
        a, b = cs if op == swapped else (cs[1], cs[0])
        if swapped == "Equal":
            low = NEG in cs and any(is_number(c) and c >= 0 for c in cs)
            return 0 if low or (NZ in cs and any(map(is_zero, cs))) else UNSETTLED
        if a is NEG and is_number(b) and b >= 0:
            return 0
        return 1 if b is NEG and is_number(a) and a >= 0 else UNSETTLED

    return law


LAWS: dict[str, Law] = {
    "Where": _where,
    CHOOSE: _where,
    "And": _and,
    "Or": _or,
    "Not": _not,
    "Mul": _mul,
    "Div": _div,
    "Add": _add,
    "Sum": _add,
    "Sub": _sub,
    "Min": _min,
    "Relu": _relu,
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "LeakyRelu", "Gelu", "Tanh", "Erf"), _odd),
    **{op: _comparison(op) for op in COMPARISONS},
}


def _cast(c: Constant, to_bool: bool, node: NodeView | None) -> Constant:
    """The weaker statements through a change of type."""
    if to_bool:
        return 1 if _truth(c) else TOP
    if node is None:
        return TOP
    source, target = _type_of(node, 0), node.out_dtype(0)
    if source is None or target is None:
        return TOP
    if target.kind == "b":
        return 1 if _truth(c) else TOP
    if c is NZ and source.kind in "biu":
        # a nonzero integer stays nonzero when no bit of it is cut off
        wide = target.kind == "f" or target.itemsize >= source.itemsize
        return NZ if wide else TOP
    if source.kind == "f" and target.kind == "f":
        keeps = target.itemsize >= source.itemsize
        return c if keeps or c is ZN else TOP
    return TOP


def _is_integer(node: NodeView) -> bool:
    dtype = node.out_dtype(0)
    return dtype is not None and dtype.kind in "iu"


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


def _compute(op: str, xs: list[Number], to_bool: bool, node: NodeView | None) -> Constant:
    """The operator on numbers, in the operands' own types."""
    found = _description(op, node)
    if found is None or found.evaluate is None or not found.trusted(*xs):
        return TOP
    keywords: dict[str, Any] = {}
    if found.parameters is not None or (node is None and op in INTEGER_ARITHMETIC):
        known = (
            found.parameters(node) if found.parameters is not None and node is not None else None
        )
        if op == "Cast" and known is None and to_bool:
            known = {"to": np.dtype(bool)}
        if known is None or any(v is None for v in known.values()):
            return TOP
        keywords = known
    types = _operand_types(node, len(xs))
    if types is None:
        return TOP
    with np.errstate(all="ignore"):
        try:
            operands = [_typed(x, t) for x, t in zip(xs, types, strict=True)]
            result = found.evaluate(*operands, **keywords)
        except (ArithmeticError, TypeError, ValueError):
            return TOP
    wanted = node.out_dtype(0) if node is not None else None
    if wanted is not None and wanted.kind not in "biuf":
        return TOP
    with np.errstate(all="ignore"):
        return _python(result if wanted is None else np.asarray(result).astype(wanted))


INTEGER_ARITHMETIC = frozenset({"Div", "Mod", "Pow", "Mean", "BitwiseNot", "BitShift"})


def _description(op: str, node: NodeView | None) -> Elementwise | None:
    if node is not None:
        return ELEMENTWISE.get((node.domain, op))
    return ELEMENTWISE.get(("", op))


def _operand_types(node: NodeView | None, count: int) -> list[np.dtype[Any]] | None:
    """Element types of the data operands; None when one is unknown or has no numpy arithmetic."""
    if node is None:
        return [np.dtype(np.float32)] * count
    if (node.domain, node.op) not in ELEMENTWISE:
        return None
    types = [_type_of(node, i) for i in data_operands(node)]
    if len(types) != count:
        return None
    known = [t for t in types if t is not None and t.kind in "biuf"]
    return known if len(known) == count else None


def _typed(x: Number, t: np.dtype[Any]) -> Any:
    """The number in an operand's type.

    Raises:
        ValueError: The type cannot hold it.
    """
    value = np.asarray(x).astype(t)
    if t.kind in "iub" and (x != x or value.item() != x):
        raise ValueError(f"{x} is not a {t}")
    return value
