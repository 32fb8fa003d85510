"""How much a node computes, from its tensor expression, at example sizes.

    y[b, s, n] = sum over k of x[b, s, k] * w[k, n]

with w [768, 3072] and sizes b and s that are not known takes 2 * 64 * 64 * 3072 * 768 operations.
"""

from collections import defaultdict
from collections.abc import Iterable
from math import prod

from pitc.ir.expr import PRODUCTS, Combine, Reducer, TensorExpr
from pitc.ir.index import Poly

#: What a size without a number counts for, wherever work is estimated.
EXAMPLE_SIZE = 64


def contracts(expr: TensorExpr) -> bool:
    """True for a sum over products; quantised ones are no plain products of their operands."""
    if expr.combine is not Combine.OPAQUE or expr.reducer is not Reducer.SUM:
        return expr.combine in PRODUCTS
    return len(_along_sums(expr)) > 1


def example_flops(expr: TensorExpr) -> int | None:
    """Operations that computing an output takes: two for every product that is summed, one for any
    other element that is computed or reduced, none where data only moves.

    Each size symbol counts `EXAMPLE_SIZE`, so b*s counts its square: shares of work are those of a
    batch of 64 sequences of 64 tokens.

    Args:
        expr: How the output is computed.

    Returns:
        The operations; None where the expression does not say how many they are.
    """
    if expr.combine in (Combine.MOVE, Combine.SCATTER):
        return 0
    free = [e for d, e in enumerate(expr.shape) if d not in expr.ordered]
    if contracts(expr):
        return 2 * _example_count((*free, *expr.reduced))
    if expr.combine is Combine.OPAQUE and len(_along_sums(expr)) > 1:
        return None  # attention, recurrent cells: not every operand meets every other one
    return max([_example_count(expr.shape), *_read_counts(expr)])


def _read_counts(expr: TensorExpr) -> list[int]:
    """For each read how many elements it takes part in: points along the axes that it uses. What is
    the same for all points, such as the scale of all elements, counts once.
    """
    counts = []
    for read in expr.reads:
        axes = {a.dim for p in read.index if p is not None for a in p.digits()}
        if expr.reducer.commutes:
            counts.append(_example_count(expr.extents[a] for a in axes if a >= 0))
    return counts


def _along_sums(expr: TensorExpr) -> set[int]:
    """The operands that are read along reduction axes."""
    first = len(expr.shape)
    places = ((r.operand, p) for r in expr.reads for p in r.index if p is not None)
    return {operand for operand, p in places if any(a.dim >= first for a in p.digits())}


def _example_count(extents: Iterable[Poly]) -> int:
    sizes: defaultdict[str, int] = defaultdict(lambda: EXAMPLE_SIZE)
    return prod(max(0, int(e.evaluate(sizes, {}))) for e in extents)
