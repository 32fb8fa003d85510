"""Adjoints of elementwise operators: the gradient times a derivative, summed over what broadcasts.

y[i, j] = x[i, j] * s[j]   ->   dx = g * s,  ds[j] = sum over i of (g * x)[i, j]
"""

import numpy as np
import onnx_ir as ir

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import NoRule
from pitc.ir.index import ONE
from pitc.ir.index import ZERO as FIRST
from pitc.passes.grad.backward import BOOL, Backward
from pitc.passes.grad.site import NoOperand, Site, bare_axes
from pitc.passes.grad.terms import TermWriter, simplified
from pitc.passes.rules.elementwise import data_operands
from pitc.passes.rules.record import operator_of
from pitc.passes.rules.term import ZERO


def elementwise(site: Site) -> dict[int, ir.Value]:
    """The gradients of the wanted operands, by their places; those that are 0 are left out."""
    view, expr, record = site.view, site.expr, operator_of(site.view)
    if record.converts:
        if 0 not in site.wanted:  # the other operand only tells the type
            return {}
        return {0: site.build.cast(site.g, view.dtype(0))}
    if record.derivative is None:
        raise NoRule("it has no derivative here")
    terms = record.derivative(view)
    if all(term == ZERO for term in terms):  # constant between steps
        return {}
    places = data_operands(view) if record.function is not None else range(view.n_inputs)
    reads = dict(zip(places, expr.reads, strict=True))
    if missing := [i for i in site.wanted if i not in reads or i >= len(terms)]:
        raise NoOperand(missing[0])
    writer = TermWriter(site.build, site.dtype, lambda i: _aligned(site, reads.get(i), i), site.y)
    found = {}
    for i in site.wanted:
        term = simplified(terms[i], lambda k: _number(site, k))
        g = writer.times(site.g, term)
        if g is not None:
            found[i] = summed_like(site.build, g, expr, reads[i], site.x(i))
    return found


def _number(site: Site, i: int) -> float | None:
    return site.view.graph.splat(site.view.name(i)) if site.view.is_constant(i) else None


def _aligned(site: Site, read: Read | None, i: int) -> ir.Value:
    """Operand i as it broadcasts with the result, in the result's type unless it is a bool."""
    x, view = site.x(i), site.view
    if view.dtype(i) != BOOL:
        x = site.build.cast(x, site.dtype)
    axes = [] if read is None else bare_axes(site.expr, read.index)
    if not axes or axes[-1] is None or len(site.expr.shape) == axes[-1] + 1:
        return x
    return site.build.unsqueeze(
        x, *range(len(axes), len(axes) + len(site.expr.shape) - axes[-1] - 1)
    )


def dropout(site: Site) -> dict[int, ir.Value]:
    """Of Dropout in training: what the node kept, by its second result, scaled as it does."""
    site.only(0)
    view, build, g = site.view, site.build, site.g
    if view.n_outputs < 2:
        view.node.resize_outputs(2)
    one = build.number(1, site.dtype)
    ratio = site.x(1) if view.has(1) else build.number(0.5, site.dtype)
    scale = build.op("Div", [one, build.op("Sub", [one, build.cast(ratio, site.dtype)])])
    if view.has(2) and view.graph.splat(view.name(2)) is None:
        scale = build.op("Where", [site.x(2), scale, one])
    elif not view.has(2) or not view.graph.splat(view.name(2)):
        return {0: g}
    kept = site.y(1)
    return {0: build.op("Where", [kept, build.op("Mul", [g, scale]), build.number(0, site.dtype)])}


def summed_like(
    build: Backward, g: ir.Value, expr: TensorExpr, read: Read, x: ir.Value
) -> ir.Value:
    """A gradient in the result's shape, summed over the axes along which an operand broadcasts.

    Where an extent may be 1 or not, the axes are found when the model runs.

    Args:
        build: Takes the nodes.
        g: The gradient of each point of the result.
        expr: How the result reads its operands.
        read: How it reads this one.
        x: The operand; the sum has its shape.
    """
    used, rank = bare_axes(expr, read.index), len(expr.shape)
    if None in read.index:
        return summed_where_1(build, g, rank, x)
    # an extent of 1 has no axis: its place is 0
    gone = [a for a in range(rank) if a not in used and expr.shape[a] != ONE]
    g = build.reduced(g, gone, keep=True)
    same = rank == len(used) and all(
        p == FIRST or a == d for d, (p, a) in enumerate(zip(read.index, used, strict=True))
    )
    return g if same else build.reshape_like(g, x)


def summed_where_1(build: Backward, g: ir.Value, rank: int, x: ir.Value) -> ir.Value:
    """Summed over the dimensions in front of the operand's, and where its extent is 1.

    Args:
        build: Takes the nodes.
        g: The gradient of each point of the result.
        rank: Of the result.
        x: The operand; the sum has its shape.

    Raises:
        NoRule: The operand's rank is unknown.
    """
    shape = build.op("Shape", [x])
    extents = build.extents(x)
    if extents is None:
        raise NoRule(f"the rank of '{x.name}' is unknown")
    front = rank - len(extents)
    ones = build.op("Equal", [shape, build.constant(np.int64(1))])
    places = build.reshape(build.op("NonZero", [ones]), build.ints(-1))
    axes = build.joined(
        [build.ints(*range(front)), build.op("Add", [places, build.constant(np.int64(front))])]
    )
    summed = build.op("ReduceSum", [g, axes], keepdims=1, noop_with_empty_axes=1)
    return build.reshape(summed, shape)
