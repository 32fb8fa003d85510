"""Quantisation: elementwise, with a scale and a zero point per tensor, per channel or per block.

DequantizeLinear  y = (x - zero) * scale        QuantizeLinear  y = round(x / scale) + zero
"""

from dataclasses import replace

import numpy as np

from pitc.ir.expr import Combine, Read, Reducer, Shape, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ONE, Poly, digit, dim_index, nonneg, poly
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, one_axis
from pitc.passes.rules.elementwise import DEQUANTISING, QUANTISING
from pitc.passes.rules.record import Operator, Packs, always
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
    if dtype not in (np.int8, np.uint8) or scale is None or zero is None or not scale.size:
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
    has=Operator(finite=always, packs=Packs.BY_EXTREMES, extremes_of=0),
)
def dynamic_quantise(view: NodeView) -> list[TensorExpr]:
    """Per point: its element; scale and zero point from the extremes of the whole operand and 0."""
    shape = view.shape(0)
    reads = (Read(0, bare(shape)), Read(0, bare(shape, len(shape))))
    points = TensorExpr(shape, reads, shape, Combine.OPAQUE, Reducer.MAX)
    extremes = TensorExpr((), (Read(0, bare(shape)),), shape, Combine.OPAQUE, Reducer.MAX)
    return [points, extremes, extremes]
