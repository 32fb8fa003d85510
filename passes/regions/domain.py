"""Domains: what one packed axis ranges over, found from dead facts alone.

A dead fact of a value T, e.g. `mask[d0, d2] == 0` on K of shape [b, h, s, d], names the digits of
T's index that it looks at (d0 and d2). Those digits are *coordinates*: renamed in a canonical
order, the fact becomes a `Domain` that no longer speaks of T. Values of one domain can share one
packed axis, however their dimensions are arranged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

from pitc.ir.expr import Shape
from pitc.ir.index import ONE, Digit, Poly, atom, poly
from pitc.ir.region import Region, Test, region

Coords = tuple[Digit, ...]
MAX_RANK = 3


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

    def at(self, coords: Coords) -> Region:
        """The dead region in the index space of a value whose coordinates are `coords`."""
        table = {k: atom(c) for k, c in enumerate(coords)}
        return Region(rename(t, table) for t in self.dead)

    def live_cases(self, coords: Coords) -> list[Test] | None:
        """Tests of which at least one holds at every live point; None where one has no opposite."""
        cases = [t.negate() for t in self.at(coords)]
        return None if any(c is None for c in cases) else [c for c in cases if c is not None]


def rename(test: Test, table: dict[int, Poly]) -> Test:
    """The test with the whole digits of some dimensions replaced by other index expressions."""
    return Test(test.src, tuple(_rename_poly(p, table) for p in test.idx), test.pred, test.yes)


def _rename_poly(p: Poly, table: dict[int, Poly]) -> Poly:
    total = poly(0)
    for monomial, factor in p.terms.items():
        value = poly(factor)
        for a in monomial:
            known = isinstance(a, Digit) and a.dim in table
            value = value * (table[a.dim] if known and isinstance(a, Digit) else atom(a))
        total = total + value
    return total


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
    coords: dict[Digit, None] = {}
    for test in sorted(region, key=_order):
        for a in free_digits(test):
            coords.setdefault(a)
    if len(coords) > MAX_RANK or _overlap(list(coords)):
        return None
    if not coords and not any(t.src and t.idx and not t.dims() for t in region):
        return None
    names = list(coords)
    extents = tuple(a.extent for a in names)
    dead = frozenset(_to_coordinates(t, names, extents) for t in region)
    return Domain(extents, dead), tuple(names)


def _to_coordinates(test: Test, names: list[Digit], extents: Shape) -> Test:
    number = {a: Digit(k, poly(1), e) for k, (a, e) in enumerate(zip(names, extents, strict=True))}
    idx = []
    for p in test.idx:
        total = poly(0)
        for monomial, factor in p.terms.items():
            value = poly(factor)
            for a in monomial:
                value = value * atom(number.get(a, a) if isinstance(a, Digit) else a)
            total = total + value
        idx.append(total)
    return Test(test.src, tuple(idx), test.pred, test.yes)


def _overlap(digits: list[Digit]) -> bool:
    """True where two digits of one dimension are not disjoint parts of it."""
    for a in digits:
        for b in digits:
            if a is b or a.dim != b.dim:
                continue
            upper, lower = (
                a.stride.divide(b.stride * b.extent),
                b.stride.divide(a.stride * a.extent),
            )
            if upper is None and lower is None:
                return True
    return False


def named_coords(domain: Domain, dead: Iterable[Region]) -> Iterator[Coords]:
    """The coordinates that a value's own dead regions name, where each test is one of the domain's.

    Args:
        domain: The domain.
        dead: Dead regions of the value.

    Yields:
        Full sets of coordinates: digits of the value's dimensions.
    """
    for proof in dead:
        for table in _unify(sorted(proof, key=_order), domain, {}):
            coords = tuple(table[k] for k in range(domain.rank) if k in table)
            if len(coords) == domain.rank == len(set(coords)):
                yield coords


def covering(domain: Domain, coords: Coords, dead: Iterable[Region]) -> Region | None:
    """The dead region that holds at every dead point of the domain, seen at these coordinates;
    None if none does.
    """
    where = region(domain.at(coords))
    if where is None:
        return None
    return next((k for k in dead if all(any(t.implies(u) for t in where) for u in k)), None)


def lift(domain: Domain, onto: Domain) -> Iterator[Domain]:
    """The domain with more coordinates: those of another domain, of which its own are some.

    d0 < b, dead where c[d0] == 0, onto [b, s]   ->   [b, s], dead where c[d0] == 0 (any d1)
    """
    for places in permutations(range(onto.rank), domain.rank):
        if all(onto.extents[p] == e for p, e in zip(places, domain.extents, strict=True)):
            table = {
                k: atom(Digit(p, ONE, e))
                for k, (p, e) in enumerate(zip(places, domain.extents, strict=True))
            }
            yield Domain(onto.extents, frozenset(rename(t, table) for t in domain.dead))


def _unify(
    tests: list[Test], domain: Domain, table: dict[int, Digit]
) -> Iterator[dict[int, Digit]]:
    """Extend a coordinate -> digit table so that every test is one of the domain's.

    tests mask[x0, x2%s] == 0, domain dead where mask[d0, d1] == 0   ->   {0: x0, 1: x2%s}
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
                extended.setdefault(m.dim, a) != a or m.extent != a.extent
                for m, a in zip(theirs, order, strict=True)
            ):
                continue
            if rename(model, {k: atom(a) for k, a in extended.items()}) == first:
                yield from _unify(rest, domain, extended)
