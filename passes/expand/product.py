"""Sums of products as one MatMul between changes of shape, whatever their operator calls them.

    Einsum "bihd,bjhd->bhij", Gemm with transA, ..  ->  MatMul(Transpose(a), Transpose(b))

The axes of the tensor expression say what each dimension is: *batch*, in both operands and the
output; *row* and *column*, in one operand and the output; *summed*, in both operands only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import NoRule
from pitc.ir.index import bare_dim
from pitc.ir.nodes import is_plain_product
from pitc.passes.expand.body import Body
from pitc.passes.rules.registry import MICROSOFT

ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
GEMM = ("alpha", "beta", "transA", "transB")
LARGE = 2.0**20
"""Constants are multiplied by smaller factors than that, and stay as far inside their type."""
TINY, HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Factor:
    """One operand: its value, and the axis that each of its dimensions is."""

    value: ir.Value
    axes: tuple[int, ...]


def einsum(body: Body) -> list[ir.Value | None]:
    """A product of two operands whose labels make it one of matrices."""
    return [_product(body)]


def gemm(body: Body) -> list[ir.Value | None]:
    """A scaled or transposed one; a plain one stays, as kernels know it.

        alpha * A' @ B' + beta * C  ->  Add(MatMul(Transpose(A), alpha * B'), beta * C)

    A number goes into a constant operand; behind the product where B is none.
    """
    view = body.view
    alpha, beta = (float(view.attr(name, 1.0)) for name in ("alpha", "beta"))
    if is_plain_product(view.node) or alpha == 0:
        raise NoRule("it is plain, or no product")
    left = _turned(body, body.input(0), 0, "transA")
    scaled = _scaled(body, 1, alpha)
    right = _turned(body, scaled or body.input(1), 1, "transB")
    result = _times(body, body.op("MatMul", left, right), 1.0 if scaled else alpha)
    if view.has(2) and beta != 0:  # ONNX Runtime does not read C otherwise, NaN or not
        result = body.op("Add", result, _scaled(body, 2, beta) or _times(body, body.input(2), beta))
    return [result]


def fused_matmul(body: Body) -> list[ir.Value | None]:
    """Matrix product of transposed operands, times a number."""
    view = body.view
    if view.attr("transBatchA", 0) or view.attr("transBatchB", 0):
        result = _product(body)
    else:
        sides = [_turned(body, body.input(i), i, f"trans{'AB'[i]}") for i in (0, 1)]
        result = body.op("MatMul", *sides)
    return [_times(body, result, float(view.attr("alpha", 1.0)))]


def dynamic_matmul(body: Body) -> list[ir.Value | None]:
    """Rows as 8 bits, by a matrix of 8 bits.

    DynamicQuantizeMatMul(a, b, ..)  ->  MatMulIntegerToFloat(DynamicQuantizeLinear(a), b, ..)
    """
    left = body.parts(3, "DynamicQuantizeLinear", body.input(0))
    numbers = [body.optional(i) for i in (2, 3, 4)]
    operands = [left[0], body.input(1), left[1], numbers[0], left[2], numbers[1], numbers[2]]
    while operands[-1] is None:
        operands.pop()
    return [body.op("MatMulIntegerToFloat", *operands, domain=MICROSOFT)]


def _times(body: Body, x: ir.Value, factor: float) -> ir.Value:
    return x if factor == 1.0 else body.op("Mul", x, body.number(factor))


def _scaled(body: Body, i: int, factor: float) -> ir.Value | None:
    """A constant operand times a number; None where it is none, or leaves the range of its type."""
    x = body.view.array(i)
    if x is None or not 1 / LARGE < abs(factor) < LARGE:
        return None
    if factor == 1.0:
        return body.input(i)
    size = np.abs(x[x != 0])
    if not ((size > TINY * LARGE) & (size < HUGE / LARGE)).all():
        return None
    return body.constant(x * np.float32(factor))


def _turned(body: Body, x: ir.Value, i: int, attribute: str) -> ir.Value:
    """Operand i with its last two dimensions swapped where an attribute says so."""
    rank = body.view.rank(i)
    if not body.view.attr(attribute, 0) or rank < 2:  # a vector stays
        return x
    return body.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


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
    def arranged(x: Factor, *groups: Sequence[int]) -> ir.Value:
        """The operand with its axes in that order, those of each group but the first joined."""
        order = [a for group in groups for a in group]
        value = body.transpose(x.value, [x.axes.index(a) for a in order])
        if all(len(group) < 2 for group in groups[1:]):
            return value
        sizes = [_joined(body, x, group) for group in groups[1:] if group]
        return body.joined(value, len(groups[0]), sizes)

    left = arranged(it.left, (*it.lead, *it.batch, *it.row), it.summed)
    right = arranged(it.right, it.batch, it.summed, it.columns)
    result = body.op("MatMul", left, right)
    if len(it.columns) > 1:
        split = [_joined(body, it.right, [axis]) for axis in it.columns]
        result = body.joined(result, len(it.made) - len(it.columns), split)
    return body.transpose(result, [it.made.index(x) for x in range(len(it.made))])


def _joined(body: Body, x: Factor, axes: Sequence[int]) -> int | ir.Value:
    """The size of several axes as one: a number, or computed from the operand that has them."""
    static = [body.expr.extents[a].as_int() for a in axes]
    known = [n for n in static if n is not None]
    if len(known) == len(static) and 0 not in known:
        return prod(known)
    shape = body.share(("shape", x.value), lambda: body.op("Shape", x.value))
    sizes = [body.op("Gather", shape, body.ints(x.axes.index(a)), axis=0) for a in axes]
    return reduce(partial(body.op, "Mul"), sizes)


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
