"""Quantisation: elementwise, with a scale and a zero point per tensor, per channel or per block.

DequantizeLinear  y = (x - zero) * scale        QuantizeLinear  y = round(x / scale) + zero

QLinearAdd and its like take quantised elements, compute with what they stand for, and quantise.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, Poly, digit, dim_index, nonneg, poly
from pitc.ir.since import Since
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, broadcast_read, broadcast_shape, one_axis, row_normal
from pitc.passes.rules.elementwise import DEQUANTISING, QUANTISING
from pitc.passes.rules.record import Items, Operator, PackRule, always
from pitc.passes.rules.registry import MICROSOFT, rule


def _parameter(view: NodeView, i: int, shape: Shape) -> Read:
    """How a point reads its scale or zero point."""
    own = view.shape(i)
    if not own or own == (ONE,):
        return Read(i, tuple(poly(0) for _ in own))
    axis, block = one_axis(view, len(shape), 1), poly(int(view.attr("block_size", 0)))
    if len(own) == 1 and not block.terms:  # a row of one element counts for all channels
        several = own[0] == shape[axis] or nonneg(own[0] - 2)
        return Read(i, (dim_index(axis, shape[axis]) if several else None,))
    if len(own) != len(shape):
        raise NoRule(f"input {i} of rank {len(own)} is not per tensor, channel or block")
    index: list[Poly | None] = list(bare(shape))
    index[axis] = digit(dim_index(axis, shape[axis]), block, own[axis]) if block.terms else None
    return Read(i, tuple(index))


def dequantised_magnitude(view: NodeView) -> float | None:
    """The most that 8 bits stand for, at a constant scale and zero point.

    uint8, scale 0.1, zero point 128   ->   12.85

    Source: ONNX operator spec, DequantizeLinear.
    """
    dtype, scale = view.graph[view.name(0)].dtype, view.array(1)
    zero = view.array(2) if view.has(2) else np.zeros(1)
    if (
        dtype not in (np.int8, np.uint8)
        or scale is None
        or zero is None
        or not scale.size
        or not zero.size
    ):
        return None
    ends = np.iinfo(dtype)
    widest = np.float64(max(ends.max - zero.min().item(), zero.max().item() - ends.min))
    return float(widest * np.abs(scale.astype(np.float64)).max() * (1 + 2**-8))  # rounding


@rule("QuantizeLinear", assumes=(Assumes.FITTING_SIZES,), has=QUANTISING)
@rule(
    "DequantizeLinear",
    assumes=(Assumes.FITTING_SIZES,),
    has=replace(DEQUANTISING, magnitude=dequantised_magnitude),
)
@rule("QuantizeLinear", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=QUANTISING)
@rule("DequantizeLinear", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=DEQUANTISING)
def quantise(view: NodeView) -> list[TensorExpr]:
    """Per point: its element, scale and zero point."""
    shape = view.shape(0)
    parameters = [_parameter(view, i, shape) for i in (1, 2) if view.has(i)]
    return [TensorExpr(shape, (Read(0, bare(shape)), *parameters), combine=Combine.MAP)]


@rule(
    "DynamicQuantizeLinear",
    assumes=(),
    has=Operator(finite=always, packs=PackRule.BY_EXTREMES, extremes_of=0),
)
def dynamic_quantise(view: NodeView) -> list[TensorExpr]:
    """Per point: its element; scale and zero point from the extremes of the whole operand and 0."""
    shape = view.shape(0)
    reads = (Read(0, bare(shape)), Read(0, bare(shape, len(shape))))
    points = TensorExpr(shape, reads, shape, Combine.OPAQUE, Reducer.MAX)
    extremes = TensorExpr((), (Read(0, bare(shape)),), shape, Combine.OPAQUE, Reducer.MAX)
    return [points, extremes, extremes]


INTEGERS = Operator(finite=always, packs=PackRule.ROWS, items=Items.ANY)


def _numbers(view: NodeView, *places: int) -> list[Read]:
    """The scales and zero points of an operator that takes one for all elements."""
    found = []
    for i in places:
        if view.has(i):
            own = view.shape(i)
            if own not in ((), (ONE,)):
                raise NoRule(f"input {i} of shape {own} is not one number")
            found.append(Read(i, tuple(poly(0) for _ in own)))
    return found


def _of_elements(view: NodeView, operands: Sequence[int], numbers: Sequence[int]) -> TensorExpr:
    """Operands that broadcast, element by element."""
    shape = broadcast_shape([view.shape(i) for i in operands], view.joined)
    reads = [broadcast_read(i, view.shape(i), shape) for i in operands]
    return TensorExpr(shape, (*reads, *_numbers(view, *numbers)), combine=Combine.MAP)


@rule(
    "QLinearAdd",
    "QLinearMul",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=INTEGERS,
)
def qlinear_binary(view: NodeView) -> list[TensorExpr]:
    """Operands: a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero."""
    return [_of_elements(view, [0, 3], [1, 2, 4, 5, 6, 7])]


@rule(
    "QLinearLeakyRelu",
    "QLinearSigmoid",
    domain=MICROSOFT,
    assumes=(Assumes.FITTING_SIZES,),
    has=INTEGERS,
)
def qlinear_unary(view: NodeView) -> list[TensorExpr]:
    """Operands: x, x_scale, x_zero, y_scale, y_zero."""
    return [_of_elements(view, [0], [1, 2, 3, 4])]


@rule("QLinearWhere", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=INTEGERS)
def qlinear_where(view: NodeView) -> list[TensorExpr]:
    """Operands: condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero."""
    return [_of_elements(view, [0, 1, 4], [2, 3, 5, 6, 7, 8])]


@rule("QLinearSoftmax", domain=MICROSOFT, assumes=(Assumes.FITTING_SIZES,), has=INTEGERS)
def qlinear_softmax(view: NodeView) -> list[TensorExpr]:
    """Softmax of what integers stand for: x, x_scale, x_zero, y_scale, y_zero."""
    shape = view.shape(0)
    axis = one_axis(view, len(shape), -1)
    per_axis = int(view.attr("opset", 0)) >= Since.SOFTMAX_OF_AXIS
    axes = [axis] if per_axis else list(range(axis, len(shape)))
    return [row_normal(shape, axes, Combine.NORMALISE, tuple(_numbers(view, 1, 2, 3, 4)))]
