"""Operators whose output is made of sizes and positions, not of operand elements."""

import numpy as np

from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, nonneg, poly, total_of
from pitc.passes.rules import values
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import rule


@rule("Shape", assumes=(), has=Operator(reads_no_element=True, value=values.sizes, items=Items.ANY))
def shape_of(view: NodeView) -> list[TensorExpr]:
    """The extents of the operand."""
    dims = view.shape(0)[slice(view.attr("start", 0), view.attr("end"))]
    return [TensorExpr((poly(len(dims)),))]


@rule(
    "Size",
    assumes=(),
    has=Operator(reads_no_element=True, value=values.element_count, items=Items.ANY),
)
def size_of(view: NodeView) -> list[TensorExpr]:
    """The number of elements of the operand."""
    return [TensorExpr(())]


@rule(
    "ConstantOfShape",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(value=values.filled, fill=values.fill_of, items=Items.ANY),
)
def constant_of_shape(view: NodeView) -> list[TensorExpr]:
    """The same value everywhere."""
    return [TensorExpr(tuple(view.ints(0).reshape(-1)), combine=Combine.MAP)]


@rule(
    "Range",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, positions=(0, 2), items=Items.ANY),
)
def range_of(view: NodeView) -> list[TensorExpr]:
    """start, start + step, ..: the position itself."""
    try:
        start, limit, step = (view.ints(i).reshape(-1)[0] for i in range(3))
        count = _count(start, limit, step)
    except NoRule:
        count = _count_of_floats(view)
    return [TensorExpr((view.fresh() if count is None else count,), ordered=frozenset({0}))]


def _count(start: Poly, limit: Poly, step: Poly) -> Poly | None:
    """Number of steps; None where it is not known."""
    span, stride = (limit - start).as_int(), step.as_int()
    if span is not None and stride:
        return poly(max(-(-span // stride), 0))
    steps = (limit - start) * (stride or 0)
    return steps if stride in (1, -1) and nonneg(steps) else None


def _count_of_floats(view: NodeView) -> Poly | None:
    """Number of steps between constants, where it is the same in whatever type it is computed: from
    0.1 to 0.4 by 0.1 ONNX Runtime goes 3 steps, and 4 would be next to right.
    """
    ends = [view.array(i) for i in range(3)]
    numbers = [x.reshape(-1)[0] for x in ends if x is not None and x.dtype.kind == "f"]
    if len(numbers) < len(ends):
        return None
    counts = set()
    with np.errstate(all="ignore"):
        for kind in (np.float64, numbers[0].dtype.type):
            start, limit, step = (kind(x) for x in numbers)
            counts |= {(limit - start) / step, np.float64(limit - start) / np.float64(step)}
    if not all(map(np.isfinite, counts)):
        return None
    steps = {max(int(np.ceil(n)), 0) for n in counts}
    return poly(steps.pop()) if len(steps) == 1 else None


@rule("NonZero", assumes=(), has=Operator(finite=always, live_places=True, items=Items.ANY))
def non_zero(view: NodeView) -> list[TensorExpr]:
    """Places of the nonzero elements: how many there are is data."""
    rank = max(view.rank(0), 1)  # of a scalar as of a vector of one element
    count = view.counted(total_of(view.shape(0)))
    return [TensorExpr((poly(rank), count), ordered=frozenset({1}))]


@rule(
    "EyeLike",
    assumes=(),
    has=Operator(finite=always, diagonal=lambda view: int(view.attr("k", 0)), items=Items.ANY),
)
def eye_like(view: NodeView) -> list[TensorExpr]:
    """Ones on a diagonal, in the operand's shape."""
    return [TensorExpr(view.shape(0), ordered=frozenset({0, 1}))]
