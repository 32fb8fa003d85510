"""How terms of a bias are rounded: what shows in a row of hidden keys alone."""

from collections.abc import Sequence
from math import inf

import numpy as np

from pitc.ir.constant import SMALL, range_of
from pitc.ir.graph import Graph
from pitc.passes.regions.form import BiasTerm

SWALLOWING = -1e11  # beside it bounded scores and small terms are nothing, in whatever order
FINE = 2 * SMALL  # a small term and what is added to it: beside it scores keep their digits
DROWNING = -1e9  # beside it float32 scores are rounded to multiples of 64


def shows_rounding(graph: Graph, name: str, bias: Sequence[BiasTerm], *, last_bits: bool) -> bool:
    """True where the weights of a row of hidden keys alone may hang on how its scores are rounded.

    Where a row has other keys that does not show, as the weights of hidden ones are 0.

    * Two terms are added in another order here, and a half type rounds more than the kernel does:
      a mask has to absorb the other terms and the score.
    * One float32 term is added as it was. Beside -1e4 a score is rounded to 1e-3, this way or that
      as its last bits are: so do two levels of optimisation of ONNX Runtime differ.
    * What -inf replaces comes out the same in any order.

    Args:
        graph: The graph.
        name: The scores, at the first contraction.
        bias: What is added to them.
        last_bits: What hangs on the last bits of a score counts, too, and so does a term that
            nobody bounds.
    """
    terms = [t for t in bias if t.low != -inf]
    alone = len(terms) == 1 and graph.dtype(name) == np.float32
    if alone and not last_bits:
        return False
    large = [t for t in terms if not _is_small(graph, t)]
    if last_bits and len(large) > 1:
        return True
    highest = DROWNING if alone else SWALLOWING
    return any(
        r is not None and not (r.lo >= -FINE and r.hi <= FINE) and not r.hi <= highest
        for t in large
        if t.low is None
        for r in (range_of(f.constant) for f in graph[t.name].fills)
    )


def _is_small(graph: Graph, term: BiasTerm) -> bool:
    return term.low is None and any(
        r is not None and r.lo >= -SMALL and r.hi <= SMALL
        for r in (range_of(f.constant) for f in graph[term.name].fills if not f.region.tests)
    )
