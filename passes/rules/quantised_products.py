"""Products of quantised operands: sums of (a - a_zero) * (b - b_zero), times scales.

    MatMulInteger         int32     a, b, a_zero, b_zero
    MatMulIntegerToFloat  float     a, b, a_scale, b_scale, a_zero, b_zero, bias
    QLinearMatMul, QGemm  quantised a, a_scale, a_zero, b, b_scale, b_zero, .., y_scale, y_zero
    DynamicQuantizeMatMul float     a in float, quantised by extremes of all of it
    MatMulNBits           float     a in float, b in blocks of few bits

Scales and zero points are one for all, or one for each row of a or column of b. An integer stands
for 0 where it is the zero point, so such a product is one of zeros only without zero points.
"""

from dataclasses import replace

import numpy as np

from pitc.ir.expr import Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, digit, dim_index, nonneg, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, broadcast_read, check_finite, joint_extent
from pitc.passes.rules.contraction import (
    ROWS_AND_COLUMNS,
    Operand,
    contract,
    matrices,
    matrix_labels,
)
from pitc.passes.rules.record import Items, Operator, PackRule, always
from pitc.passes.rules.registry import MICROSOFT, rule

PRODUCT = Operator(finite=always, packs=PackRule.ROWS, items=Items.ANY)
BYTE_WIDTHS = (2, 4, 8)  # bits of numbers none of which lies in two bytes


def one_or_each(view: NodeView, i: int, of: Operand | None, own: str) -> list[Operand]:
    """A zero point or scale: one for all, or one per row or column.

    A row of one element counts for all, however many rows there are.
    """
    if not view.has(i):
        return []
    shape = view.shape(i)
    if not shape or shape == (ONE,):
        return [Operand(i, tuple(f"one{i}" for _ in shape), shape)]
    size = of.shape[of.labels.index(own)] if of is not None and own in of.labels else None
    if len(shape) == 1 and size is not None and (shape[0] == size or nonneg(shape[0] - 2)):
        return [Operand(i, (own,), shape)]
    raise NoRule(f"input {i} is not known to be per tensor or per row: its shape is {shape}")


@rule("MatMulInteger", assumes=(Assumes.FITTING_SIZES,), has=PRODUCT)
def matmul_integer(view: NodeView) -> list[TensorExpr]:
    """Without zero points a product like any other."""
    out, operands = matrices(view)
    a, b = operands
    points = [*one_or_each(view, 2, a, "m"), *one_or_each(view, 3, b, "n")]
    combine = Combine.OPAQUE if points else Combine.PRODUCT
    return [contract(view, out, [*operands, *points], combine, ROWS_AND_COLUMNS)]


@rule("MatMulIntegerToFloat", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=PRODUCT)
def matmul_integer_to_float(view: NodeView) -> list[TensorExpr]:
    """MatMulInteger, times scales, plus a row."""
    out, operands = matrices(view)
    a, b = operands
    numbers = [p for i in (2, 4) for p in one_or_each(view, i, a, "m")]
    numbers += [p for i in (3, 5) for p in one_or_each(view, i, b, "n")]
    bias = [Operand(6, ("n",), view.shape(6))] if view.has(6) else []
    factors = [*operands, *numbers, *bias]
    return [contract(view, out, factors, Combine.OPAQUE, ROWS_AND_COLUMNS)]


@rule("QLinearMatMul", assumes=(Assumes.FITTING_SIZES,), has=PRODUCT)
def qlinear_matmul(view: NodeView) -> list[TensorExpr]:
    """Quantised product: a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero."""
    ranks = [view.rank(0), view.rank(3)]
    batch = [f"b{k}" for k in range(max(*ranks, 2) - 2)]
    a = matrix_labels(ranks[0], "m", True, batch)
    b = matrix_labels(ranks[1], "n", False, batch)
    out = [*batch, *(["m"] if "m" in a else []), *(["n"] if "n" in b else [])]
    left, right = Operand(0, a, view.shape(0)), Operand(3, b, view.shape(3))
    points = [p for i in (1, 2) for p in one_or_each(view, i, left, "m")]
    points += [p for i in (4, 5) for p in one_or_each(view, i, right, "n")]
    points += [p for i in (6, 7) for p in one_or_each(view, i, None, "")]
    return [contract(view, out, [left, right, *points], Combine.OPAQUE, ROWS_AND_COLUMNS)]


@rule(
    "QGemm",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=replace(PRODUCT, packs=None),
)
def qgemm(view: NodeView) -> list[TensorExpr]:
    """Quantised product of matrices: a, its numbers, b, its numbers, bias, y_scale, y_zero."""
    check_finite(view, "alpha")
    if view.rank(0) != 2 or view.rank(3) != 2:
        raise NoRule("operands are not matrices")
    a = Operand(0, ("k", "m") if view.attr("transA", 0) else ("m", "k"), view.shape(0))
    b = Operand(3, ("n", "k") if view.attr("transB", 0) else ("k", "n"), view.shape(3))
    points = [p for i in (1, 2) for p in one_or_each(view, i, a, "m")]
    points += [p for i in (4, 5) for p in one_or_each(view, i, b, "n")]
    points += [p for i in (7, 8) for p in one_or_each(view, i, None, "")]
    expr = contract(view, ["m", "n"], [a, b, *points], Combine.OPAQUE, ROWS_AND_COLUMNS)
    if not view.has(6):
        return [expr]
    return [replace(expr, reads=(*expr.reads, broadcast_read(6, view.shape(6), expr.shape)))]


@rule(
    "DynamicQuantizeMatMul",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=Operator(finite=always, extremes_of=0),
)
def dynamic_matmul(view: NodeView) -> list[TensorExpr]:
    """A product of rows as 8 bits: a, b, b_scale, b_zero, bias."""
    out, operands = matrices(view)
    points = [p for i in (2, 3) for p in one_or_each(view, i, operands[1], "n")]
    bias = [Operand(4, ("n",), view.shape(4))] if view.has(4) else []
    factors = [*operands, *points, *bias]
    expr = contract(view, out, factors, Combine.OPAQUE, ROWS_AND_COLUMNS)
    extremes = Read(0, bare(view.shape(0), len(expr.extents)))
    reduced = (*expr.reduced, *view.shape(0))
    return [replace(expr, reads=(*expr.reads, extremes), reduced=reduced)]


@rule(
    "MatMulNBits",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=PRODUCT,
)
def matmul_nbits(view: NodeView) -> list[TensorExpr]:
    """Product with a weight in blocks: sum_k a[.., k] * (b - b_zero)[n, k] * scale[n, block of k].

    A byte of b holds 8 / bits numbers along k. Scales and zero points may be flat, then an index of
    theirs is n * blocks + block.
    """
    if view.has(4):
        raise NoRule("the weight is reordered by a group index")
    a, b = view.shape(0), view.shape(1)
    size, bits = int(view.attr("block_size", 0)), int(view.attr("bits", 4))
    if b[0].as_int() != int(view.attr("N", 0)) or len(b) != 3:
        raise NoRule(f"weight of shape {b} is not [N, blocks, bytes]")
    if bits not in BYTE_WIDTHS or size < 8 or size % 8:
        raise NoRule(f"blocks of {size} numbers of {bits} bits")
    rows, (columns, blocks, width) = len(a) - 1, b
    out = (*a[:-1], columns)
    length = joint_extent([a[-1], poly(int(view.attr("K", 0)))])
    if length != blocks * size:
        raise NoRule(f"{length} numbers in {blocks} blocks of {size}")
    n, k = dim_index(rows, columns), dim_index(rows + 1, length)
    block = digit(k, poly(size), blocks)
    reads = [
        Read(0, (*bare(a[:-1]), k)),
        Read(1, (n, block, digit(k, poly(8 // bits), width))),
    ]
    for i in (2, 3):
        if not view.has(i):
            continue
        shape, within = view.shape(i), block
        if i == 3 and view.dtype(i) == np.uint8:  # as many to a byte as in the weight
            per = poly(-(-(blocks.as_int() or 0) * bits // 8))
            within, each = digit(k, poly(size * 8 // bits), per), per
        else:
            each = blocks
        if len(shape) > 1:
            reads.append(Read(i, (n, within)))
        else:
            reads.append(Read(i, (None if within is None else n * each + within,)))
    if view.has(5):
        reads.append(broadcast_read(5, view.shape(5), out))
    return [TensorExpr(out, tuple(reads), (length,), Combine.OPAQUE, Reducer.SUM)]
