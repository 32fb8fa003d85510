"""Whether few channels are live: a node of pitc's own, which counts, compares and tells its choice.

The convolutions of a chain choose together. What lives of them takes the sum of weight * live
channels * live filters, in whole numbers; it pays up to a budget.
"""

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir

from pitc.ir.plans.ops import ChooseChannels
from pitc.passes.lower.builder import Builder

WORK_BITS = 62  # of a sum that the runtime adds up


def choose_channels(
    build: Builder,
    nodes: Sequence[str],
    ends: Sequence[tuple[int, slice | None]],
    prices: Sequence[tuple[int, int]],
    flags: ir.Value,
) -> ir.Value:
    """True where what is live takes at most the budget: bool scalar.

    Args:
        build: Where the node goes.
        nodes: Names of the convolutions, one behind the other.
        ends: How many channels the first one has, then how many filters each; and the place of
            their flags, None where all of them live.
        prices: Of each convolution, what a channel of a filter takes, and what may be taken.
        flags: f32 [all flags], above 0 or NaN where a channel lives.
    """
    pairs = [a * b for (a, _), (b, _) in pairwise(ends)]
    work = sum(weight * n for (weight, _), n in zip(prices, pairs, strict=True))
    shift = max(0, work.bit_length() - WORK_BITS)
    weights = tuple(weight >> shift for weight, _ in prices)
    most = sum(weight * n for weight, n in zip(weights, pairs, strict=True))
    plan = ChooseChannels(
        nodes=tuple(nodes),
        channels=tuple(extent for extent, _ in ends),
        places=tuple(None if place is None else place.start for _, place in ends),
        weights=weights,
        budget=min(most, sum(budget for _, budget in prices) >> shift),
    )
    name = f"{nodes[0]}.choose_channels"
    (few,) = build.kernel(plan, [flags], [(name, ir.DataType.BOOL, [])], nodes[0])
    return few
