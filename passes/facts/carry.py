"""Regions of an iteration space, as regions of the operands that are read there."""

from collections.abc import Sequence

from pitc.ir.expr import Read, Shape, TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.index import invert
from pitc.ir.region import Region, for_all, pull, resolve


def carry(view: NodeView, expr: TensorExpr, read: Read, regions: Sequence[Region]) -> list[Region]:
    """Regions of the iteration space where a read is idle, as regions of the operand."""
    shape = view.graph[view.name(read.operand)].shape
    return [] if shape is None else carried(expr, read, regions, shape)


def carried(expr: TensorExpr, read: Read, regions: Sequence[Region], shape: Shape) -> list[Region]:
    """Regions of the iteration space where a read is idle, as regions of what is read.

    An element is idle when every iteration point that reads it is: the dimensions that the index
    does not fix are quantified.

    Args:
        expr: What reads.
        read: How it does.
        regions: Regions of its iteration space.
        shape: Extents of what is read.
    """
    solved = invert(read.index, expr.extents, shape)
    maps = [solved.get(d) for d in range(len(expr.extents))]
    free = [d for d in range(len(expr.extents)) if d not in solved]
    out = list(read.absent)
    for r in regions:
        every = for_all(r, free)
        at = None if every is None else pull(every, maps, expr.extents)
        if at is not None:
            out.append(at)
    return resolve(out)
