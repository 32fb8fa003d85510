"""Where a fact holds: regions, sets of tests that all hold.

Facts are lists of regions (a union); a region is a cube. Every operation here is sufficient, never
guessing: a region that cannot be said is None.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from operator import attrgetter
from typing import Final

from pitc.ir.index import ONE, Digit, Maps, Poly, bound, dim_index, rename, substitute
from pitc.ir.predicate import (
    OF_ELEMENTS,
    SOME,
    Predicate,
    Test,
    describe_test,
    for_some,
    least_or_last,
    position,
    truth,
)

__all__ = [
    "EVERYWHERE",
    "SOME",
    "Predicate",
    "Region",
    "Test",
    "all_hold",
    "cost",
    "covered",
    "covers",
    "describe",
    "for_all",
    "for_some",
    "inside",
    "intersection",
    "meet",
    "position",
    "prune",
    "pull",
    "region",
    "resolve",
    "truth",
    "union",
]

MAX_TESTS = 5  # tests per region
MAX_FACTS = 10  # regions per value
RESOLVE_ROUNDS = 2
TEXT = attrgetter("text")
CACHED = 1 << 12  # lists of regions: neighbours in a graph often have the same


class Region:
    """Tests that all hold, and what the statement rests on. The empty region is everywhere.

    Iteration is in canonical order, so that results do not depend on hashing.

    Args:
        tests: The tests.
        via: Bit set of the values whose own fill facts the statement rests on (`Graph.bits`).

    Attributes:
        sources: What the tests look at. A test implies only tests that look at the same.
        normal: It is known to be normal (`region`).
    """

    __slots__ = ("_hash", "_rank", "_text", "normal", "sources", "tests", "via")

    def __init__(self, tests: Iterable[Test] = (), via: int = 0) -> None:
        unique = frozenset(tests)
        ordered = tuple(sorted(unique, key=TEXT)) if len(unique) > 1 else tuple(unique)
        self.tests: tuple[Test, ...] = ordered
        self.sources = frozenset([t.src for t in ordered])
        self.via = via
        self._hash = hash((unique, via))
        self.normal = not self.tests
        self._text = ""
        self._rank: tuple[tuple[int, int], str, int, int] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and (self.tests, self.via) == (other.tests, other.via)

    def __iter__(self) -> Iterator[Test]:
        return iter(self.tests)

    def __len__(self) -> int:
        return len(self.tests)

    def __or__(self, other: "Region") -> "Region":
        if not other.tests and not other.via:
            return self
        if not self.tests and not self.via:
            return other
        return Region((*self.tests, *other.tests), self.via | other.via)

    def without(self, t: Test) -> "Region":
        """The region with one test dropped."""
        return Region((u for u in self.tests if u != t), self.via)

    @property
    def text(self) -> str:
        """Canonical text of the tests."""
        if not self._text:
            self._text = " and ".join(t.text for t in self.tests) or "everywhere"
        return self._text

    def rank(self) -> tuple[tuple[int, int], str, int, int]:
        """A total order: what is easy to use comes first."""
        if self._rank is None:
            self._rank = cost(self), self.text, self.via.bit_count(), self.via
        return self._rank

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


EVERYWHERE: Final = Region()


def union(regions: Iterable[Region]) -> Region:
    """All tests of all regions: where all of them hold."""
    out = EVERYWHERE
    for r in regions:
        out = out | r
    return out


def region(tests: "Iterable[Test] | Region") -> Region | None:
    """A normal region: decided and implied tests dropped; None where it is empty."""
    given = tests if isinstance(tests, Region) else Region(tests)
    if given.normal:
        return given
    kept: list[Test] = []
    for t in given.tests:
        known = truth(t)
        if known is False:
            return None
        if known is None:
            kept.append(t)
    if len(kept) > len({t.src for t in kept}):  # two look at the same
        if any(u.implies(n) for t in kept for n in [t.negate()] if n for u in kept):
            return None
        apart = _apart(kept)
        if apart is None:
            return None
        kept = _without_implied(apart)
    out = given if tuple(kept) == given.tests else Region(kept, given.via)
    out.normal = True
    return out


def _apart(tests: list[Test]) -> list[Test] | None:
    """The tests, weaker ones of positions where others say that these are not the same, as a value
    passes a test at one of them only; None where they were.

    mask[i] != 0 and mask[j] == 0 and i - j - 1 >= 0   ->   .. and i - j >= 0
    """
    steps = {t.idx[0] for t in tests if t.pred == "pos"}
    found: list[Poly] = []
    for t, u in combinations(tests, 2) if steps else ():
        bound_dims = t.alls | t.somes | u.alls | u.somes
        alike = (t.src, t.pred) == (u.src, u.pred) and t.pred in OF_ELEMENTS
        if alike and t.yes != u.yes and not bound_dims:
            other = [p - q for p, q in zip(t.idx, u.idx, strict=True) if p != q]
            found += [*other, -other[0]] if len(other) == 1 else []
    weaker = {d - 1: d for d in found} if found else {}
    if steps.isdisjoint({*weaker, *found}):
        return tests
    held = {weaker.get(p, p) for p in steps}
    if any(d in held and -d in held for d in found):
        return None
    return [position(weaker.get(t.idx[0], t.idx[0])) if t.pred == "pos" else t for t in tests]


def _without_implied(tests: list[Test]) -> list[Test]:
    """The tests without those that others imply."""
    kept = list(tests)
    for t in tests:
        if any(u.implies(t) for u in kept if u is not t):
            kept.remove(t)
    return kept


def covers(known: Region, where: Region) -> bool:
    """True where each test of the first region follows from a test of the second one."""
    return all(any(t.implies(u) for t in where) for u in known)


def pull(r: Region, maps: Maps, shape: Sequence[Poly] | None = None) -> Region | None:
    """The region in the coordinates of another space.

    Args:
        r: A region over the old dimensions.
        maps: For each old dimension its index over the new ones, or None.
        shape: Extents of the old dimensions (`substitute`).

    Returns:
        The region over the new dimensions; None where it is empty or cannot be said.
    """
    if shape is not None and _is_same(maps, shape):
        return region(r)
    out = []
    for t in r:
        idx = []
        for p in t.idx:
            q = substitute(p, maps, shape)
            if q is None:
                return None
            idx.append(q)
        out.append(Test(t.src, tuple(idx), t.pred, t.yes))
    return region(Region(out, r.via))


def _is_same(maps: Maps, shape: Sequence[Poly]) -> bool:
    """True where the new dimensions are the old ones."""
    return len(maps) == len(shape) and all(maps[d] == dim_index(d, e) for d, e in enumerate(shape))


def for_all(r: Region, dims: Iterable[int]) -> Region | None:
    """The region in which r holds for every value of the dimensions; None where it is empty."""
    names = frozenset(dims)
    if not names:
        return region(r)
    out = []
    for t in r:
        hit = sorted(t.dims() & names)
        if not hit:
            out.append(t)
        elif decided := least_or_last(t, hit, every=True):
            out.append(decided)
        elif t.pred == "pos":  # the least value over those dimensions decides
            moving = {m: c for m, c in t.idx[0].terms.items() if _looks_at(m, hit)}
            rest = {m: c for m, c in t.idx[0].terms.items() if m not in moving}
            # (other digits in the same products are bounded too: a smaller region, still right)
            out.append(position(bound(Poly(moving), False) + Poly(rest)))
        else:
            first = min(t.alls, default=0) - 1
            if first - len(hit) < SOME:  # no names are left
                return None
            swap = {d: first - n for n, d in enumerate(hit)}
            out.append(Test(t.src, tuple(rename(p, swap) for p in t.idx), t.pred, t.yes))
    return region(Region(out, r.via))


def _looks_at(m: Iterable[object], dims: Sequence[int]) -> bool:
    return any(isinstance(a, Digit) and a.dim in dims for a in m)


def cost(r: Region) -> tuple[int, int]:
    """How hard a region is to use: bound dimensions, then tests."""
    return sum(len(t.alls) + len(t.somes) for t in r), len(r)


def prune(regions: Iterable[Region]) -> list[Region]:
    """The regions without those inside others; the few simplest of them."""
    return list(_pruned(tuple(regions)))


@lru_cache(maxsize=CACHED)
def _pruned(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    unique = dict.fromkeys(regions)
    kept: dict[Region, None] = {}
    near: dict[str | None, list[Region]] = {}  # those that look at a value; None: at nothing
    for r in sorted((r for r in unique if len(r) <= MAX_TESTS), key=Region.rank):
        others = [k for x in (None, *r.sources) for k in near.get(x, ()) if k in kept]
        if any(inside(r, k) for k in others):
            continue
        for k in others:
            if inside(k, r):
                kept.pop(k, None)
        kept[r] = None
        for x in r.sources or (None,):
            near.setdefault(x, []).append(r)
    return tuple(kept)[:MAX_FACTS]


def inside(r: Region, k: Region) -> bool:
    """Proven: region r lies in region k, and k rests on no more."""
    if not k.sources <= r.sources or k.via & ~r.via:
        return False
    return all(any(u.implies(t) for u in r.tests) for t in k.tests)


def resolve(regions: Iterable[Region]) -> list[Region]:
    """Add consensus terms: A and t, B and not t together cover A and B.

    This bridges guards and opt-ins.
    """
    return list(_resolved(tuple(regions)))


@lru_cache(maxsize=CACHED)
def _resolved(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    kept = prune(regions)
    for _ in range(RESOLVE_ROUNDS):
        looks: dict[str, list[tuple[Region, Test]]] = {}
        for r in kept:
            for t in r.tests:
                looks.setdefault(t.src, []).append((r, t))
        new = []
        for a in kept:
            for t in a.tests:
                n = t.negate()
                for b, u in looks[t.src]:
                    if n is not None and n.implies(u):
                        new.append(region(a.without(t) | b.without(u)))
        before, kept = kept, prune([*kept, *(r for r in new if r is not None)])
        if before == kept:
            break
    return tuple(kept)


def intersection(first: Sequence[Region], second: Sequence[Region]) -> list[Region]:
    """Where a region of each of two lists holds.

    That is every pair of them. But a region that lies in one of the other list stands for all of
    its pairs: of {p, q} and {p, r} only p and q and r are left of four.
    """
    if len(first) == 1 and first[0] == EVERYWHERE:
        return [r for r in map(region, second) if r is not None]
    inner = [[inside(a, b) for b in second] for a in first]
    outer = [[inside(b, a) for a in first] for b in second]
    rows, columns = list(map(any, inner)), list(map(any, outer))
    joined = (
        region(a | b)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if inner[i][j] or outer[j][i] or not (rows[i] or columns[j])
    )
    return [r for r in joined if r is not None]


def all_hold(lists: Iterable[Sequence[Region]]) -> list[Region]:
    """Where a region of each list holds."""
    out = [EVERYWHERE]
    for regions in lists:
        out = intersection(out, regions)
    return out


def covered(regions: Sequence[Sequence[Test]], splits: int) -> bool:
    """True when regions, as lists of tests, cover every point: one does, or all of both cases.

    Args:
        regions: The regions.
        splits: How many tests may be looked at one after the other.

    >>> x = Test("x", (), "nz", True)
    >>> covered([[x]], 1), covered([[x], [Test("x", (), "nz", False)]], 1)
    (False, True)
    """
    if any(not tests for tests in regions):
        return True
    if not regions or not splits:
        return False
    test = min(regions, key=len)[0]
    opposite = test.negate()
    if opposite is None:
        return False
    return all(covered(_given(regions, t), splits - 1) for t in (test, opposite))


def _given(regions: Sequence[Sequence[Test]], fact: Test) -> list[list[Test]]:
    """What is left to test where a test holds."""
    possible = (tests for tests in regions if not any(_excludes(fact, t) for t in tests))
    return [[t for t in tests if not fact.implies(t)] for tests in possible]


def _excludes(fact: Test, test: Test) -> bool:
    opposite = test.negate()
    return opposite is not None and fact.implies(opposite)


def meet(lists: Iterable[Sequence[Region]]) -> list[Region]:
    """Regions that every list covers (intersection over consumers)."""
    out = [EVERYWHERE]
    for regions in lists:
        out = prune(intersection(out, regions))
    return out


def describe(r: Region, names: Mapping[int, str] | None = None) -> str:
    """Short text for people, e.g. `attention_mask[d0, d1] == 0`.

    Args:
        r: The region.
        names: Names of the free dimensions; `d0`, `d1`, .. by default.
    """
    if not r:
        return "everywhere"
    digits = {a for t in r for p in t.idx for a in p.digits()}
    split = frozenset(a.dim for a in digits if a.stride != ONE)
    return " and ".join(describe_test(t, names or {}, split) for t in r)
