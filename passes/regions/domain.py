"""Domains: what one packed axis ranges over, found from dead facts alone.

A dead fact of a value T, e.g. `mask[d0, d2] == 0` on K of shape [b, h, s, d], names the digits of
T's index that it looks at (d0 and d2). Those digits are *coordinates*: renamed in a canonical
order, the fact becomes a `Domain` that no longer speaks of T. Values of one domain can share one
packed axis, however their dimensions are arranged.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Final

from pitc.ir.expr import Shape
from pitc.ir.index import ONE, ZERO, Atom, Coords, Digit, Poly, atom, poly, total_of
from pitc.ir.region import Region, Test, covers, position, region

Table = Mapping[Atom, Poly]  # digits, and what stands in their place
MAX_RANK = 4
MOST_PLACES = 1024  # of a coordinate, that are looked at one by one
NEVER: Final = position(poly(-1))


@dataclass(frozen=True, slots=True)
class Domain:
    """A coordinate space and the part of it that is dead.

    Args:
        extents: Extents of the coordinates, e.g. (batch, sequence).
        dead: Tests over `Digit(k, 1, extents[k])`; a point where all of them hold is dead. Every
            other point is live.
    """

    extents: Shape
    dead: frozenset[Test]

    @property
    def rank(self) -> int:
        """Number of coordinates."""
        return len(self.extents)

    def sources(self) -> set[str]:
        """Names of the values that the tests look at."""
        return {t.src for t in self.dead if t.src}

    @property
    def rarely_dead(self) -> bool:
        """True where a point is dead only if some test holds for all of a bound dimension, or all
        of the value is.
        """
        return not self.extents or any(t.alls for t in self.dead)

    @property
    def lives_everywhere(self) -> bool:
        """True for a domain without dead points (`all_live`)."""
        return NEVER in self.dead

    @property
    def most_dead(self) -> float:
        """Share of the points that is dead at most: position tests of one coordinate of known
        extent hold at some of its places.

        extents (n, 4), dead where mask[d0, 2] == 0 and -d1 >= 0   ->   0.25
        """
        share = 1.0
        for k, extent in enumerate(self.extents):
            size, tests = extent.as_int(), self._positions_of(k)
            if size is not None and 0 < size <= MOST_PLACES and tests:
                holds = [all(p.evaluate({}, {k: i}) >= 0 for p in tests) for i in range(size)]
                share *= sum(holds) / size
        return share

    def _positions_of(self, k: int) -> list[Poly]:
        """What is at least 0 where a point is dead, of those that coordinate alone."""
        return [
            t.idx[0]
            for t in self.dead
            if t.pred == "pos" and t.dims() == {k} and not t.idx[0].symbols()
        ]

    def at(self, coords: Coords) -> Region:
        """The dead region in the index space of a value whose coordinates are `coords`."""
        table: Table = {Digit(k, ONE, self.extents[k]): atom(c) for k, c in enumerate(coords)}
        return Region(exchange(t, table) for t in self.dead)

    def live_cases(self, coords: Coords) -> list[Test] | None:
        """Tests of which at least one holds at every live point; None where one has no opposite."""
        dead = self.at(coords)
        cases = [c for t in dead if (c := t.negate()) is not None]
        return cases if len(cases) == len(dead) else None


def all_live(extents: Shape) -> Domain:
    """The domain of all points: rows in their own order, of which none is left out."""
    return Domain(extents, frozenset({NEVER}))


def exchange(test: Test, table: Table) -> Test:
    """The test with other index expressions in the place of some digits."""
    return Test(test.src, tuple(_exchange(p, table) for p in test.idx), test.pred, test.yes)


def _exchange(p: Poly, table: Table) -> Poly:
    terms = (factor * total_of(table.get(a, atom(a)) for a in m) for m, factor in p.terms.items())
    return sum(terms, ZERO)


def free_digits(test: Test) -> list[Digit]:
    """Digits of the value's own dimensions in the test, in order of appearance."""
    found: dict[Digit, None] = {}
    for p in test.idx:
        for a in sorted((a for a in p.digits() if a.dim >= 0), key=lambda a: (a.dim, repr(a))):
            found.setdefault(a)
    return list(found)


def _order(test: Test) -> tuple[bool, bool, int, str, str, bool]:
    """Tests of values before tests of positions, and those without a quantifier first."""
    bound = any(d < 0 for d in test.dims())
    return (test.pred == "pos", bound, -len(test.idx), test.src, test.pred, test.yes)


def domain_of(region: Region) -> tuple[Domain, Coords] | None:
    """The domain that a dead region speaks of, and the value's digits that are its coordinates.

    Returns:
        None where the region looks at overlapping digits, at more than MAX_RANK of them, or at
        none: but where a tensor is looked at in its only place (a mask of extents 1, no scalar),
        all of the value is dead or nothing.
    """
    if why_no_domain(region):
        return None
    coords = _coordinates(region)
    if not coords and not any(t.src and t.idx and not t.dims() for t in region):
        return None
    table: Table = {a: atom(Digit(k, ONE, a.extent)) for k, a in enumerate(coords)}
    dead = frozenset(exchange(t, table) for t in region)
    return Domain(tuple(a.extent for a in coords), dead), tuple(coords)


def why_no_domain(region: Region) -> str:
    """Why what a dead region looks at is no domain; empty where it is one, or is everything."""
    coords = _coordinates(region)
    if len(coords) > MAX_RANK:
        return f"live points have {len(coords)} coordinates, and at most {MAX_RANK} are packed"
    if any(a.overlaps(b) for a, b in combinations(coords, 2)):
        return f"live points depend on overlapping digits: {', '.join(map(str, coords))}"
    return ""


def _coordinates(region: Region) -> dict[Digit, None]:
    """The digits of the value's own dimensions in a region, in a canonical order."""
    coords: dict[Digit, None] = {}
    for test in sorted(region, key=_order):
        for a in free_digits(test):
            coords.setdefault(a)
    return coords


def named_coords(domain: Domain, dead: Iterable[Region]) -> Iterator[Coords]:
    """The coordinates that a value's own dead regions name, where each test is one of the domain's.

    Args:
        domain: The domain.
        dead: Dead regions of the value.

    Yields:
        Full sets of coordinates: digits of the value's dimensions.
    """
    axes = [Digit(k, ONE, e) for k, e in enumerate(domain.extents)]
    for proof in dead:
        for table in _unify(sorted(proof, key=_order), domain, {}):
            coords = tuple(table[a] for a in axes if a in table)
            if len(coords) == domain.rank == len(set(coords)):
                yield coords


def covering(domain: Domain, coords: Coords, dead: Iterable[Region]) -> Region | None:
    """The dead region that holds at every dead point of the domain, seen at these coordinates;
    None if none does.
    """
    where = region(domain.at(coords))
    if where is None:
        return None
    return next((k for k in dead if covers(k, where)), None)


def _unify(
    tests: list[Test], domain: Domain, table: dict[Digit, Digit]
) -> Iterator[dict[Digit, Digit]]:
    """Extend a table of digits by coordinates so that every test is one of the domain's.

    tests mask[x0, x2%s] == 0, domain dead where mask[d0, d1] == 0   ->   {d0: x0, d1: x2%s}
    """
    if not tests:
        yield table
        return
    first, rest = tests[0], tests[1:]
    for model in domain.dead:
        if (model.src, model.pred, model.yes, len(model.idx)) != (
            first.src,
            first.pred,
            first.yes,
            len(first.idx),
        ):
            continue
        ours, theirs = free_digits(first), free_digits(model)
        if len(ours) != len(theirs):
            continue
        for order in permutations(ours):
            extended = dict(table)
            if any(
                extended.setdefault(m, a) != a or m.extent != a.extent
                for m, a in zip(theirs, order, strict=True)
            ):
                continue
            if exchange(model, {k: atom(a) for k, a in extended.items()}) == first:
                yield from _unify(rest, domain, extended)
