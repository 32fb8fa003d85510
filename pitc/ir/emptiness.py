"""What holds only where some dimension is empty.

A size symbol may be 0 (`pitc.ir.poly`), so facts are claimed for that, too: an image of which a
pool keeps no place is unread. Such a fact leaves nothing out of any run that computes something.

    a[n, c, h, w] dead where -p >= 0, p places behind the pool        only where p is 0
    x[b, s] dead where all j: m[b, j] == 0 and all j: m[b, j] != 0    only where there is no j
"""

from collections.abc import Iterable
from functools import lru_cache

from pitc.ir.index import ONE, Digit, Poly, atom, poly, total_of
from pitc.ir.region import Region, Test, region


@lru_cache(maxsize=1 << 14)
def needs_empty(r: Region) -> bool:
    """Whether no point of a region is left where every size is at least 1 (sufficient)."""
    if not any(t.pred == "pos" or t.alls for t in r):
        return False
    tests = [Test(t.src, tuple(map(_grown, t.idx)), t.pred, t.yes) for t in r]
    return region(Region(tests)) is None


def where_left_out(regions: Iterable[Region]) -> list[Region]:
    """The regions of a fact that can leave something out of a run without empty dimensions."""
    return [r for r in regions if not needs_empty(r)]


@lru_cache(maxsize=1 << 14)
def _grown(p: Poly) -> Poly:
    """The polynomial with 1 + s in place of each size s."""
    total = poly(0)
    for m, c in p.terms.items():
        factors = (
            atom(a) + ONE
            if isinstance(a, str)
            else atom(Digit(a.dim, _grown(a.stride), _grown(a.extent)))
            for a in m
        )
        total = total + poly(c) * total_of(factors)
    return total
