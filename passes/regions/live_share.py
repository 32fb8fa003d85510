"""How much of a domain lives, as far as that is known before any run: little of it where lines hold
few elements that are not 0, and most of it where tests have to hold for all of a line.
"""

from enum import Enum, auto
from fractions import Fraction
from math import prod

from pitc.ir.constant import is_nonzero, is_zero
from pitc.ir.graph import Graph
from pitc.ir.predicate import Test
from pitc.passes.facts.few_elements import most_elements
from pitc.passes.regions.domain import Domain

FEW = Fraction(1, 2)
"""Of the points, at most, where next to nothing of what they test is not 0."""


class Lives(Enum):
    """How much of a domain lives."""

    FEW = auto()
    """At most a known part, whatever the input is."""
    SOME = auto()
    """The input says how much."""
    MOST = auto()
    """Nearly everything."""


def lives(graph: Graph, domain: Domain) -> Lives:
    """How much of a domain lives, as far as that is known."""
    if most_live(graph, domain) <= FEW:
        return Lives.FEW
    return Lives.MOST if _is_rarely_dead(graph, domain) else Lives.SOME


def most_live(graph: Graph, domain: Domain) -> Fraction:
    """At most which share of the points lives; 1 where that is not known.

    one_hot[t, j, e] == 0 for both j    ->    1/32: at most 2 of 64 experts of a token live
    """
    if not domain.extents or len(domain.dead) != 1:
        return Fraction(1)
    (test,) = domain.dead
    if test.pred != "nz" or test.yes or test.somes:
        return Fraction(1)
    lines = {a.dim: a.extent.as_int() for p in test.idx for a in p.digits() if a.dim < 0}
    sizes = [n for n in lines.values() if n is not None]
    if len(sizes) < len(lines):
        return Fraction(1)
    return min(Fraction(1), most_elements(graph, test.src) * prod(sizes))


def asks_lines(graph: Graph, domain: Domain) -> bool:
    """True where a point is dead only if some test holds for all of a line, and most may not be."""
    return domain.rarely_dead and most_live(graph, domain) > FEW


def _is_rarely_dead(graph: Graph, domain: Domain) -> bool:
    """True where a point is dead only if all of a line is, by what its tests or their values say.

    c[q] != 0, known to be 1 where m[q, k] == 0 for all k   ->   True
    """

    def is_of_lines(test: Test) -> bool:
        facts = (f for f in graph[test.src].fills if test.src not in f.region.sources)
        holds = [f.region for f in facts if (is_nonzero if test.yes else is_zero)(f.constant)]
        return bool(holds) and all(any(t.alls for t in where) for where in holds)

    return asks_lines(graph, domain) or any(t.pred == "nz" and is_of_lines(t) for t in domain.dead)
