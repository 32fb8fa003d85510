"""Sums of products as one MatMul between changes of shape, whatever their operator calls them.

    Einsum "bihd,bjhd->bhij", FusedMatMul with transB, ..  ->  MatMul(Transpose(a), Transpose(b))

The axes of the tensor expression say what each dimension is: *batch*, in both operands and the
output; *row* and *column*, in one operand and the output; *summed*, in both operands only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import NoRule
from pitc.ir.index import bare_dim
from pitc.passes.expand.body import Body

ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
GEMM = ("alpha", "beta", "transA", "transB")


@dataclass(frozen=True, slots=True)
class Factor:
    """One operand: its value, and the axis that each of its dimensions is."""

    value: ir.Value
    axes: tuple[int, ...]


def einsum(body: Body) -> list[ir.Value | None]:
    """A product of two operands whose labels make it one of matrices."""
    return [_product(body)]


def fused_matmul(body: Body) -> list[ir.Value | None]:
    """Matrix product of transposed operands, times a number."""
    view = body.view
    if view.attr("transBatchA", 0) or view.attr("transBatchB", 0):
        result = _product(body)
    else:
        sides = [_turned(body, 0, "transA"), _turned(body, 1, "transB")]
        result = body.op("MatMul", *sides)
    alpha = float(view.attr("alpha", 1.0))
    return [result if alpha == 1.0 else body.op("Mul", result, body.number(alpha))]


def _turned(body: Body, i: int, attribute: str) -> ir.Value:
    """An operand with its last two dimensions swapped where an attribute says so."""
    rank = body.view.rank(i)
    if not body.view.attr(attribute, 0) or rank < 2:  # a vector stays
        return body.input(i)
    return body.transpose(body.input(i), (*range(rank - 2), rank - 1, rank - 2))


def _product(body: Body) -> ir.Value:
    expr = body.expr
    if expr.combine is not Combine.PRODUCT or body.view.n_inputs != 2 or not expr.reduced:
        raise NoRule("it is not a sum of products of two operands")
    a, b = (_factor(body, k) for k in (0, 1))
    out = range(len(expr.shape))
    if not set(a.axes) ^ set(b.axes) <= set(out) or not set(out) <= {*a.axes, *b.axes}:
        raise NoRule("an axis is in one operand only and summed over, or in none")
    ways = [_ordered(a, b, len(out)), _ordered(b, a, len(out))]
    possible = [way for way in ways if way is not None]
    if not possible:
        raise NoRule("an operand has no axis of its own")
    # a weight goes to the right; then the order that needs no Transpose behind
    constants = [body.view.graph.is_constant(way.left.value.name or "") for way in possible]
    rank = [(constant, not way.sorted) for constant, way in zip(constants, possible, strict=True)]
    return _matmul(body, possible[rank.index(min(rank))])


def _factor(body: Body, operand: int) -> Factor:
    (read,) = [r for r in body.expr.reads if r.operand == operand]
    axes = [None if p is None else bare_dim(p) for p in read.index]
    known = [x for x in axes if x is not None]
    if len(known) < len(axes) or len(set(known)) < len(known):
        raise NoRule(f"operand {operand} is read at {read.index}")
    return Factor(body.input(operand), tuple(known))


@dataclass(frozen=True, slots=True)
class Ordered:
    """Two operands with their axes sorted by what they are.

    Args:
        left: The operand with the rows.
        right: The operand with the columns.
        lead: Rows in front of the batch axes: the right operand is the same for all of them.
        batch: Axes of both operands and of the output.
        row: One or no row behind the batch axes.
        summed: Axes of both operands only.
        columns: Axes of the right operand and of the output.
    """

    left: Factor
    right: Factor
    lead: tuple[int, ...]
    batch: tuple[int, ...]
    row: tuple[int, ...]
    summed: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def made(self) -> tuple[int, ...]:
        """Axes of the product, in order."""
        return (*self.lead, *self.batch, *self.row, *self.columns)

    @property
    def sorted(self) -> bool:
        """True where they come as the output has them."""
        return list(self.made) == sorted(self.made)


def _ordered(left: Factor, right: Factor, rank: int) -> Ordered | None:
    """Sort the axes of a product with an output of that rank; None where it is no MatMul."""
    batch = tuple(sorted(x for x in left.axes if x in right.axes and x < rank))
    rows = sorted(x for x in left.axes if x not in right.axes)
    columns = tuple(sorted(x for x in right.axes if x not in left.axes))
    summed = tuple(x for x in right.axes if x >= rank)
    if not rows or (batch and not columns):
        return None
    return Ordered(left, right, tuple(rows[:-1]), batch, tuple(rows[-1:]), summed, columns)


def _matmul(body: Body, it: Ordered) -> ir.Value:
    sizes = [e.as_int() for e in body.expr.extents]

    def merged(axes: Sequence[int]) -> list[int]:
        """Several axes as one dimension of known size."""
        static = [n for x in axes if (n := sizes[x]) is not None and n > 0]
        if len(static) < len(axes):
            raise NoRule("sizes that are joined to one dimension are not numbers")
        return [prod(static)] if static else []

    def arranged(x: Factor, *groups: Sequence[int]) -> ir.Value:
        """The operand with its axes in that order, those of each group as one dimension."""
        order = [a for group in groups for a in group]
        value = body.transpose(x.value, [x.axes.index(a) for a in order])
        if all(len(group) < 2 for group in groups[1:]):
            return value
        return body.reshape(
            value, *[0] * len(groups[0]), *(n for group in groups[1:] for n in merged(group))
        )

    left = arranged(it.left, (*it.lead, *it.batch, *it.row), it.summed)
    right = arranged(it.right, it.batch, it.summed, it.columns)
    result = body.op("MatMul", left, right)
    if len(it.columns) > 1:
        merged(it.columns)
        kept = [0] * (len(it.made) - len(it.columns))
        result = body.reshape(result, *kept, *(sizes[x] or 0 for x in it.columns))
    return body.transpose(result, [it.made.index(x) for x in range(len(it.made))])


def fused_gemm(body: Body) -> list[ir.Value | None]:
    """Gemm and an activation."""
    view = body.view
    activation = str(view.attr("activation", ""))
    if activation not in ACTIVATIONS:
        raise NoRule(f"activation '{activation}'")
    scale: dict[str, Any] = {name: view.attr(name) for name in GEMM if view.attr(name) is not None}
    inputs = [body.input(i) for i in range(view.n_inputs) if view.has(i)]
    rest: dict[str, Any] = {
        name: float(view.attr(f"activation_{name}")) for name in ACTIVATIONS[activation]
    }
    return [body.op(activation, body.op("Gemm", *inputs, **scale), **rest)]
