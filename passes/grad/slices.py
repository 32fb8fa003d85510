"""Adjoint of slices: the gradient among zeros.

x[1::2] of 6 places   ->   g0 0, g1 0, g2 0 behind one 0, without the last 0
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from pitc.ir.index import ONE, ZERO, dim_index
from pitc.passes.grad.backward import Backward
from pitc.passes.grad.site import Site


@dataclass(frozen=True, slots=True)
class Cut:
    """What a slice takes of a dimension. `before` or `after` is a number.

    Args:
        step: It takes every `step`th place.
        before: How many places lie in front of the first one.
        after: How many lie behind the last step.
    """

    step: int = 1
    before: int | None = 0
    after: int | None = 0


def cut_of(site: Site, d: int) -> Cut | None:
    """What a slice takes of dimension d of operand 0; None where it goes back, or nobody knows."""
    p, extent = site.expr.reads[0].index[d], site.expr.shape[d]
    size = site.view.shape(0)[d]
    if p is None:
        return None
    first = p.by_digits().get((), ZERO)
    steps = [1] if extent == ONE else [c.as_int() for k, c in p.by_digits().items() if k]
    step = steps[0] if len(steps) == 1 else None
    if step is None or step < 1 or p != dim_index(d, extent) * step + first:
        return None
    before, after = first.as_int(), (size - first - extent * step).as_int()
    return None if before is None and after is None else Cut(step, before, after)


def among_zeros(site: Site, cuts: Sequence[Cut]) -> ir.Value:
    """Of a slice: the gradient with zeros where nothing was taken.

    Args:
        site: The node.
        cuts: What it takes of each dimension.
    """
    build, g, rank = site.build, site.g, len(cuts)
    sizes = build.sizes(site.y(), range(rank))
    for d, cut in enumerate(cuts):
        if cut.step > 1:
            pads = [0] * (rank + 1) * 2
            pads[rank + 1 + d + 1] = cut.step - 1
            apart = build.op("Pad", [build.unsqueeze(g, d + 1), build.ints(*pads)])
            steps = build.ints(*(cut.step if k == d else 1 for k in range(rank)))
            sizes = build.arithmetic("Mul", sizes, steps)
            g = build.reshape(apart, sizes)
    rest = build.arithmetic("Sub", build.sizes(site.x(), range(rank)), sizes)
    return _surrounded(build, g, rest, cuts)


def one_place(site: Site, axis: int, at: Cut) -> ir.Value:
    """Of one place along a dimension of operand 0: its gradient among zeros.

    Args:
        site: The node; its result has that dimension with an extent of 1, or does not have it.
        axis: The dimension.
        at: The place.
    """
    build, rank = site.build, site.view.rank(0)
    g = site.g if len(site.expr.shape) == rank else build.unsqueeze(site.g, axis)
    others = [build.ints(*[0] * n) for n in (axis, rank - axis - 1)]
    rest = build.arithmetic("Sub", build.sizes(site.x(), [axis]), build.ints(1))
    cuts = [at if d == axis else Cut() for d in range(rank)]
    return _surrounded(build, g, build.joined([others[0], rest, others[1]]), cuts)


def _surrounded(build: Backward, g: ir.Value, rest: ir.Value, cuts: Sequence[Cut]) -> ir.Value:
    """With zeros in front of what was taken, and behind it: `rest` along each dimension."""
    if all(cut.before == cut.after == 0 for cut in cuts):
        return g
    front, back = ([getattr(cut, side) for cut in cuts] for side in ("before", "after"))
    before, behind = (build.ints(*(n or 0 for n in side)) for side in (front, back))
    if None in front:
        remains = build.arithmetic("Sub", rest, behind)
        told = build.constant(np.asarray([n is not None for n in front]))
        before = build.op("Where", [told, before, remains]) if None in back else remains
    return build.op("Pad", [g, build.joined([before, build.arithmetic("Sub", rest, before)])])
