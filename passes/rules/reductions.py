"""Reductions and operators that look at the order along an axis.

ReduceSum  y[o] = sum_r x[o, r]        ArgMax, TopK, CumSum  read lines, and the order matters
"""

from dataclasses import replace

from pitc.ir.expr import Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import ZERO, dim_index
from pitc.ir.region import Region, position
from pitc.passes.rules import derivatives, values
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import (
    bare,
    dimension,
    dimensions,
    move,
    one_axis,
    over_lines,
    positional,
    whole_lines,
)
from pitc.passes.rules.record import Adjoint, Items, Operator, PackRule, always
from pitc.passes.rules.registry import rule
from pitc.passes.rules.term import Derivative

REDUCERS = {
    "ReduceSum": (Combine.REDUCE, Reducer.SUM),
    "ReduceMean": (Combine.REDUCE, Reducer.MEAN),
    "ReduceMax": (Combine.REDUCE, Reducer.MAX),
    "ReduceMin": (Combine.REDUCE, Reducer.MIN),
    "ReduceProd": (Combine.REDUCE, Reducer.PROD),
    "ReduceL1": (Combine.REDUCE, Reducer.SQUARE),
    "ReduceL2": (Combine.REDUCE, Reducer.SQUARE),
    "ReduceSumSquare": (Combine.REDUCE, Reducer.SQUARE),
    # log of a sum: zeros do not reduce to zero
    "ReduceLogSum": (Combine.OPAQUE, Reducer.SUM),
    "ReduceLogSumExp": (Combine.OPAQUE, Reducer.SUM),
}
REDUCTION = Operator(packs=PackRule.REDUCTION, items=Items.ANY, adjoint=Adjoint.REDUCED)


def _logarithm(derivative: Derivative) -> Operator:
    return Operator(items=Items.ANY, derivative=derivative, adjoint=Adjoint.REDUCED)


PLAIN = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"})


@rule(
    "ReduceProd",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=replace(REDUCTION, value=values.whole_product),
)
@rule(
    "ReduceSum",
    "ReduceMean",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=replace(REDUCTION, kernels=("elementwise",)),
)
@rule("ReduceMax", "ReduceMin", assumes=(Assumes.KNOWN_ARGUMENTS,), has=REDUCTION)
@rule(
    "ReduceL1",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=replace(REDUCTION, derivative=derivatives.sum_of_magnitudes),
)
@rule(
    "ReduceL2",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=replace(REDUCTION, derivative=derivatives.length),
)
@rule(
    "ReduceSumSquare",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=replace(REDUCTION, derivative=derivatives.sum_of_squares),
)
@rule(
    "ReduceLogSum", assumes=(Assumes.KNOWN_ARGUMENTS,), has=_logarithm(derivatives.logarithm_of_sum)
)
@rule(
    "ReduceLogSumExp", assumes=(Assumes.KNOWN_ARGUMENTS,), has=_logarithm(derivatives.log_sum_exp)
)
def reduce(view: NodeView) -> list[TensorExpr]:
    """Reduction over axes given as attribute or input; none given means all, or none at all."""
    shape = view.shape(0)
    given = view.int_list(1, "axes") or []
    if not given and view.attr("noop_with_empty_axes", 0):
        if view.op not in PLAIN:
            raise NoRule("no axes: exporters and runtimes disagree on the result")
        return [move(shape, bare(shape))]
    axes = dimensions(given, len(shape)) if given else list(range(len(shape)))
    keep = bool(view.attr("keepdims", 1))
    return [over_lines(shape, axes, *REDUCERS[view.op], keep)]


@rule(
    "ArgMax",
    "ArgMin",
    assumes=(),
    has=Operator(finite=always, packs=PackRule.BEST_PLACES, items=Items.NAMED),
)
def arg_reduce(view: NodeView) -> list[TensorExpr]:
    """Position of the extreme element: depends on the order along the axis."""
    shape = view.shape(0)
    axis = one_axis(view, len(shape), 0)
    keep = bool(view.attr("keepdims", 1))
    return [over_lines(shape, [axis], Combine.OPAQUE, Reducer.ORDERED, keep)]


@rule(
    "TopK",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(
        finite=always, packs=PackRule.BEST_PLACES, items=Items.ANY, adjoint=Adjoint.ELEMENTS
    ),
)
def top_k(view: NodeView) -> list[TensorExpr]:
    """The k extreme elements of each line and their positions, in order."""
    shape = view.shape(0)
    axis = one_axis(view, len(shape), -1)
    count = (view.sizes(1, "k") or [ZERO])[0]
    out = tuple(count if d == axis else e for d, e in enumerate(shape))
    read = whole_lines(shape, [axis])
    # which elements are extreme does not depend on their order, their positions do
    reducers = Reducer.MAX, Reducer.ORDERED
    ordered = frozenset({axis})
    return [
        TensorExpr(out, (read,), (shape[axis],), Combine.OPAQUE, reducer, ordered=ordered)
        for reducer in reducers
    ]


@rule(
    "CumSum",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.CUMULATED),
)
@rule(
    "CumProd",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, items=Items.ANY),
)
def cumulate(view: NodeView) -> list[TensorExpr]:
    """y[i] = sum of x[j] for j <= i (exclusive: j < i; reverse: j >= i, j > i)."""
    shape = view.shape(0)
    axes = view.int_list(1)
    if axes is None or len(axes) != 1:
        raise NoRule("the axis is not one number")
    axis = dimension(axes[0], len(shape))
    ahead = dim_index(axis, shape[axis]) - dim_index(len(shape), shape[axis])
    ahead = -ahead if view.attr("reverse", 0) else ahead
    tests = Region({position(ahead - int(view.attr("exclusive", 0)))})
    return [positional(shape, [whole_lines(shape, [axis], tests)], (shape[axis],), [axis])]


@rule(
    "Trilu",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(finite=always, elsewhere=lambda _: 0, items=Items.ANY, adjoint=Adjoint.MOVED),
)
def trilu(view: NodeView) -> list[TensorExpr]:
    """The elements on one side of a diagonal; the others are 0 and not read."""
    shape = view.shape(0)
    if len(shape) < 2:
        raise NoRule(f"rank {len(shape)}")
    diagonal = view.ints(1).reshape(-1)[0] if view.has(1) else 0
    row, column = len(shape) - 2, len(shape) - 1
    above = dim_index(column, shape[column]) - dim_index(row, shape[row]) - diagonal
    tests = Region({position(above if view.attr("upper", 1) else -above)})
    read = Read(0, bare(shape), within=tests)
    return [TensorExpr(shape, (read,), combine=Combine.OPAQUE, ordered=frozenset({row, column}))]


@rule(
    "ReverseSequence",
    assumes=(Assumes.FITTING_SIZES, Assumes.INSIDE),
    has=Operator(finite=always, items=Items.ANY, adjoint=Adjoint.MOVED),
)
def reverse_sequence(view: NodeView) -> list[TensorExpr]:
    """The first elements of each sequence in reverse; their number is data."""
    shape = view.shape(0)
    batch, time = int(view.attr("batch_axis", 1)), int(view.attr("time_axis", 0))
    lengths = Read(1, (dim_index(batch, shape[batch]),))
    return [positional(shape, [whole_lines(shape, [time]), lengths], (shape[time],), [time])]


@rule("Det", assumes=(Assumes.FITTING_SIZES,), has=Operator(finite=always, items=Items.ANY))
def determinant(view: NodeView) -> list[TensorExpr]:
    """The determinant of each matrix: changes its sign with the order of rows or columns."""
    shape = view.shape(0)
    if len(shape) < 2:
        raise NoRule(f"rank {len(shape)}")
    matrix = [len(shape) - 2, len(shape) - 1]
    return [over_lines(shape, matrix, Combine.OPAQUE, Reducer.ORDERED, keep=False)]
