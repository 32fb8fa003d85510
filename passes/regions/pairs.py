"""Hidden pairs: which keys a query of attention does not see, as tests that are evaluated for it.

    p[b, h, q, k] == 0 where k - q - 1 >= 0          causal: a test of positions
    p[b, h, q, k] == 0 where seen[b, q, k] == 0      a mask by pair
    p[b, h, q, k] == 0 where q - k - 128 >= 0 and mask[b, q] != 0      .. a window, of live queries

A fact of the softmax's result is a region, a few tests that all hold. What a region says of single
queries, or of single keys, is a domain of these, found as live points are. A region that looks at
anything else (a head, a block of positions that no node computes) hides nothing here: its pairs are
computed, and that is exact, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitc.ir.constant import ZN, is_zero
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, ZERO, Coords, Digit, Poly, atom, sym
from pitc.ir.kernel import MOST_CONSTANT, MOST_FACTOR
from pitc.ir.plans.ops import TESTS
from pitc.ir.region import Region, Test, inside, region
from pitc.ir.sizes import sizes_known
from pitc.passes.regions.domain import Domain, Table, exchange, free_digits
from pitc.passes.regions.live_tests import bytes_touched, can_compute, tests_cost_more

MOST_CASES = 16  # of live pairs, that facts are looked up for
MOST_SIZES = 8  # in a test of positions


@dataclass(frozen=True, slots=True)
class Hidden:
    """Pairs in which the query does not see the key: those at which all of it holds.

    Args:
        positions: Polynomials that are at least 0, linear in the position of the query, `Digit(0)`,
            and in that of the key, `Digit(1)`.
        points: What is dead, by the kind of its points: `keys`, `queries` or `pairs`.
    """

    positions: tuple[Poly, ...]
    points: tuple[tuple[str, Domain], ...]

    @property
    def sources(self) -> set[str]:
        """Names of the values that are looked at."""
        return {name for _, domain in self.points for name in domain.sources()}


@dataclass(frozen=True, slots=True)
class Sight:
    """The space of the pairs of a softmax's result.

    Args:
        graph: The analysed graph.
        queries: Coordinates of the queries, as digits of the value.
        keys: Of the keys; all but the last are those of the queries.
    """

    graph: Graph
    queries: Coords
    keys: Coords

    @property
    def extents(self) -> Shape:
        """Of the coordinates that both have, of queries, and of keys."""
        return tuple(c.extent for c in (*self.queries, self.keys[-1]))

    def hidden(self, fact: Region) -> Hidden | None:
        """A region as tests that can be evaluated; None where one of them cannot be."""
        rank, places = len(self.queries), (*self.queries, self.keys[-1])
        table: Table = {c: atom(Digit(k, ONE, c.extent)) for k, c in enumerate(places)}
        positions, found = list[Poly](), dict[str, list[Test]]()
        for test in fact:
            if not set(free_digits(test)) <= set(places):
                return None
            moved = exchange(test, table)
            line = self._line(moved, rank - 1)
            if line is not None:
                positions.append(line)
                continue
            of_query, of_key = rank - 1 in moved.dims(), rank in moved.dims()
            kind = "pairs" if of_query and of_key else "keys" if of_key else "queries"
            found.setdefault(kind, []).append(moved)
        points = tuple((kind, self._domain(kind, tests)) for kind, tests in sorted(found.items()))
        good = all(can_compute(self.graph, domain) for _, domain in points)
        return Hidden(tuple(positions), points) if good and (positions or points) else None

    def _domain(self, kind: str, tests: Sequence[Test]) -> Domain:
        *lead, query, key = self.extents
        if kind == "pairs":
            return Domain(self.extents, frozenset(tests))
        if kind == "queries":
            return Domain((*lead, query), frozenset(tests))
        table: Table = {Digit(len(lead) + 1, ONE, key): atom(Digit(len(lead), ONE, key))}
        return Domain((*lead, key), frozenset(exchange(t, table) for t in tests))

    def _line(self, test: Test, query: int) -> Poly | None:
        """A test of positions that is linear in those of the query and of the key."""
        if test.pred != "pos" or test.dims() != {query, query + 1}:
            return None
        (p,) = test.idx
        extents = self.extents[-2:]
        mine = [Digit(query + k, ONE, e) for k, e in enumerate(extents)]
        moving = [m for m in p.terms if any(a in p.digits() for a in m)]
        rest = [m for m in p.terms if m not in moving]
        linear = all(len(m) == 1 and m[0] in mine for m in moving) and all(len(m) < 2 for m in rest)
        # Sizes are below 2^31: the sum of so many does not overflow when the model runs.
        small = all(
            abs(f) <= (MOST_FACTOR if m else MOST_CONSTANT >> 1) for m, f in p.terms.items()
        )
        known = sizes_known(self.graph, (sym(a) for a in p.symbols()))
        if not (linear and small and known and len(rest) <= MOST_SIZES):
            return None
        table: Table = {d: atom(Digit(k, ONE, d.extent)) for k, d in enumerate(mine)}
        return exchange(test, table).idx[0]


def hidden_pairs(
    sight: Sight, name: str, dead_keys: Region | None, flops: Callable[[int], int]
) -> list[tuple[Region, Hidden]]:
    """The regions in which a softmax's result is 0, or NaN with the rest of its row.

    Args:
        sight: The pairs.
        name: The result.
        dead_keys: Where keys are dead: pairs of these are left out before. None: nowhere.
        flops: Operations of all pairs, by what unknown sizes are: they have to repay the tests.

    Returns:
        At most as many as a plan takes.
    """
    graph = sight.graph
    found: list[tuple[Region, Hidden]] = []
    for fact in graph[name].fills:
        where, known = fact.region, [h for _, h in found]
        if not (is_zero(fact.constant) or fact.constant == ZN):
            continue
        if dead_keys is not None and inside(where, dead_keys):
            continue
        hidden = sight.hidden(where)
        if hidden is None or hidden in known or not tests_fit([*known, hidden]):
            continue
        if not all(graph.visible(source, name) for source in hidden.sources):
            continue
        touched = sum((bytes_touched(graph, d) for _, d in hidden.points), ZERO)
        if not tests_cost_more(graph, touched, flops):
            found.append((where, hidden))
    return found


def numbered_tests(hidden: Sequence[Hidden]) -> dict[str, dict[Poly | Domain, int]]:
    """The tests of each kind, in the order in which a plan numbers them."""
    kinds: dict[str, dict[Poly | Domain, int]] = {
        kind: {} for kind in ("positions", "keys", "queries", "pairs")
    }
    for each in hidden:
        for line in each.positions:
            kinds["positions"].setdefault(line, len(kinds["positions"]))
        for kind, domain in each.points:
            kinds[kind].setdefault(domain, len(kinds[kind]))
    return kinds


def tests_fit(hidden: Sequence[Hidden]) -> bool:
    """True where a plan takes so many."""
    return all(len(tests) <= TESTS.most for tests in numbered_tests(hidden).values())


def seen_pairs(pairs: Sequence[Region], hidden: Sequence[Region]) -> list[Region]:
    """Regions that together hold every pair of some regions that none of others hides.

    {}, hidden where k > q   ->   k <= q
    """
    left = list(pairs)
    for fact in hidden:
        cases = [t.negate() for t in fact]
        split = [region(Region((*p, c))) for p in left for c in cases if c is not None]
        if None not in cases and len(split) <= MOST_CASES:
            left = [p for p in split if p is not None]
    return left
