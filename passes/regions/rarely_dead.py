"""Domains whose points are rarely dead: where tests have to hold for all of a line."""

from fractions import Fraction
from math import prod

from pitc.ir.constant import is_nonzero, is_zero
from pitc.ir.graph import Graph
from pitc.ir.predicate import Test
from pitc.passes.facts.few_elements import most_elements
from pitc.passes.regions.domain import Domain

MOST_LIVE = Fraction(1, 2)
"""Of the points, where lines are short and next to nothing of what they test is not 0."""


def asks_lines(graph: Graph, domain: Domain) -> bool:
    """True where a point is dead only if some test holds for all of a line, and most may not be.

    one_hot[t, j, e] == 0 for both j    ->    False: at most 2 of 64 experts of a token live
    """
    return domain.rarely_dead and not _few_live(graph, domain)


def _few_live(graph: Graph, domain: Domain) -> bool:
    if not domain.extents or len(domain.dead) != 1:
        return False
    (test,) = domain.dead
    if test.pred != "nz" or test.yes or test.somes:
        return False
    lines = {a.dim: a.extent.as_int() for p in test.idx for a in p.digits() if a.dim < 0}
    sizes = [n for n in lines.values() if n is not None]
    known = len(sizes) == len(lines)
    return known and most_elements(graph, test.src) * prod(sizes) <= MOST_LIVE


def is_rarely_dead(graph: Graph, domain: Domain) -> bool:
    """True where a point is dead only if all of a line is, by what its tests or their values say.

    c[q] != 0, known to be 1 where m[q, k] == 0 for all k   ->   True
    """

    def is_of_lines(test: Test) -> bool:
        facts = (f for f in graph[test.src].fills if test.src not in f.region.sources)
        holds = [f.region for f in facts if (is_nonzero if test.yes else is_zero)(f.constant)]
        return bool(holds) and all(any(t.alls for t in where) for where in holds)

    return asks_lines(graph, domain) or any(t.pred == "nz" and is_of_lines(t) for t in domain.dead)
