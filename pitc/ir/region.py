"""Where a fact holds: tests on run-time values and positions, and regions as sets of tests.

A negative dimension in a test's index is bound: -1 .. -99 means "for ALL values", below -100 "for SOME value" (inside
the alls). Facts are lists of regions (a union); a region is a cube, all its tests hold. Every operation here is
sufficient, never guessing: an implication that cannot be proven is False, a region that cannot be said is None.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Final, Literal

from pitc.ir.index import Digit, Maps, Poly, atom, bound, nonneg, rename, substitute, within

MAX_TESTS = 5  # tests per region
MAX_FACTS = 10  # regions per value
SOME = -100  # bound dimensions below it are "for some", the others "for all"
RESOLVE_ROUNDS = 2

Predicate = Literal["nz", "neg", "pos", "below"]
_SAYS = {
    ("nz", True): "!= 0",
    ("nz", False): "== 0",
    ("neg", True): "<= -1e4",
    ("neg", False): "> -1e4",
}


@dataclass(frozen=True)
class Test:
    """One predicate over a point.

    Args:
        src: Name of the tensor that is looked at; empty for a position test.
        idx: Where it is looked at: an index expression per dimension over the point.
        pred: `nz`: src[idx] != 0. `neg`: src[idx] <= -1e4. `below`: idx[-1] < src[idx[:-1]] (lengths).
            `pos`: idx[0] >= 0, without a tensor.
        yes: True for the predicate, False for its opposite. Always True for `pos`.
    """

    __test__ = False  # not a test case for pytest

    src: str
    idx: tuple[Poly, ...]
    pred: Predicate
    yes: bool

    @cached_property
    def _hash(self) -> int:
        return hash((self.src, self.idx, self.pred, self.yes))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def text(self) -> str:
        """Canonical text, e.g. `all d-1: mask[d0, d-1] == 0`."""
        bound_dims = sorted((*self.alls, *self.somes), reverse=True)
        every = "".join(f"{'some' if d < SOME else 'all'} d{d}: " for d in bound_dims)
        return every + _statement(self, str)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @cached_property
    def _dims(self) -> frozenset[int]:
        return frozenset(a.dim for p in self.idx for a in p.digits())

    def dims(self) -> frozenset[int]:
        """Dimensions of the point that the test looks at, bound ones included."""
        return self._dims

    @cached_property
    def alls(self) -> frozenset[int]:
        """Dimensions bound by "for all"."""
        return frozenset(d for d in self._dims if SOME < d < 0)

    @cached_property
    def somes(self) -> frozenset[int]:
        """Dimensions bound by "for some"."""
        return frozenset(d for d in self._dims if d <= SOME)

    def negate(self) -> "Test | None":
        """The opposite test ("all" becomes "some" and back); None where it cannot be said."""
        return _negate(self)

    def implies(self, other: "Test") -> bool:
        """Sufficient: the same test, a weaker position, an instance of an "all", or a witness of a "some"."""
        if self == other:
            return True
        if (self.src, self.pred, self.yes) != (other.src, other.pred, other.yes):
            return False
        return _implies(self, other)


def _statement(t: Test, show: Callable[[Poly], str]) -> str:
    """The test without its quantifiers, index expressions shown by `show`."""
    places = [show(p) for p in t.idx]
    if t.pred == "pos":
        return f"{places[0]} >= 0"
    if t.pred == "below":
        return f"{places[-1]} {'<' if t.yes else '>='} {t.src}[{', '.join(places[:-1])}]"
    return f"{t.src}[{', '.join(places)}] {_SAYS[t.pred, t.yes]}"


@lru_cache(maxsize=1 << 16)
def _negate(t: Test) -> Test | None:
    if t.alls and t.somes:
        return None
    if t.pred == "pos":
        return None if t.alls or t.somes else position(-t.idx[0] - 1)
    swap = {d: d + SOME for d in t.alls} | {d: d - SOME for d in t.somes}
    return Test(t.src, tuple(rename(p, swap) for p in t.idx), t.pred, not t.yes)


@lru_cache(maxsize=1 << 17)
def _implies(t: Test, u: Test) -> bool:
    if t.pred == "pos":
        if t.alls or t.somes or u.alls or u.somes:
            return False
        return nonneg(bound(u.idx[0] - t.idx[0], False))
    if t.somes and t.alls:
        return False
    # the "some" of t and the "all" of u are fixed but arbitrary; only these two kinds may be chosen
    given, wanted = t.alls, u.somes
    if not given and not wanted:
        return False
    if not (_independent(t, given) and _independent(u, wanted)):
        return False
    for p, q in zip(t.idx, u.idx, strict=True):
        if p == q and all(a.dim >= 0 for a in p.digits()):
            continue
        a, b = _bare(p, given), _bare(q, wanted)
        if not ((a and within(q, a.extent)) or (b and within(p, b.extent))):
            return False
    return True


def _bare(p: Poly, dims: frozenset[int]) -> Digit | None:
    """The digit that p is, when it belongs to one of the given bound dimensions."""
    if len(p.terms) != 1:
        return None
    (m,) = p.terms
    if len(m) != 1 or p.terms[m] != 1:
        return None
    a = m[0]
    return a if isinstance(a, Digit) and a.dim in dims else None


def _independent(t: Test, dims: frozenset[int]) -> bool:
    """True when the digits of the bound dimensions take all their values independently: none is used twice."""
    used = [a for p in t.idx for m in p.terms for a in m if isinstance(a, Digit) and a.dim in dims]
    for k, a in enumerate(used):
        for b in used[:k]:
            if a.dim == b.dim and not (_above(a, b) or _above(b, a)):
                return False
    return True


def _above(a: Digit, b: Digit) -> bool:
    """True when a is a slower factor than b of the same index."""
    return a.stride.divide(b.stride * b.extent) is not None


class Region:
    """Tests that all hold, and what the statement rests on. The empty region is everywhere.

    Iteration is in canonical order, so that results do not depend on hashing.

    Args:
        tests: The tests.
        via: Bit set of the values whose own fill facts the statement rests on (`Graph.bits`).
    """

    __slots__ = ("_hash", "_text", "tests", "via")

    def __init__(self, tests: Iterable[Test] = (), via: int = 0) -> None:
        unique = frozenset(tests)
        ordered = tuple(sorted(unique, key=_text)) if len(unique) > 1 else tuple(unique)
        self.tests: tuple[Test, ...] = ordered
        self.via = via
        self._hash = hash((unique, via))
        self._text = ""

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and (self.tests, self.via) == (other.tests, other.via)

    def __iter__(self) -> Iterator[Test]:
        return iter(self.tests)

    def __len__(self) -> int:
        return len(self.tests)

    def __contains__(self, t: object) -> bool:
        return t in self.tests

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

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def _text(t: Test) -> str:
    return t.text


EVERYWHERE: Final = Region()


def union(regions: Iterable[Region]) -> Region:
    """All tests of all regions: where all of them hold."""
    out = EVERYWHERE
    for r in regions:
        out = out | r
    return out


def position(p: Poly) -> Test:
    """The test p >= 0."""
    return Test("", (p,), "pos", True)


@lru_cache(maxsize=1 << 16)
def truth(t: Test) -> bool | None:
    """The value of a position test that the extents decide, else None."""
    if t.pred != "pos":
        return None
    if nonneg(bound(t.idx[0], False)):
        return True
    return False if nonneg(-bound(t.idx[0], True) - 1) else None


def region(tests: "Iterable[Test] | Region", via: int | None = None) -> Region | None:
    """A normal region: decided tests dropped; None where it is empty.

    Args:
        tests: Tests, or a region.
        via: Provenance; by default that of the given region.
    """
    if via is None:
        via = tests.via if isinstance(tests, Region) else 0
    kept: list[Test] = []
    for t in tests:
        known = truth(t)
        if known is False:
            return None
        if known is None:
            kept.append(t)
    if len(kept) > 1:
        for t in kept:
            n = t.negate()
            if n is not None and any(u.implies(n) for u in kept if u is not t):
                return None
    return tests if isinstance(tests, Region) and len(kept) == len(tests) else Region(kept, via)


def pull(r: Region, maps: Maps, shape: Sequence[Poly] | None = None) -> Region | None:
    """The region in the coordinates of another space.

    Args:
        r: A region over the old dimensions.
        maps: For each old dimension its index over the new ones, or None.
        shape: Extents of the old dimensions (`substitute`).

    Returns:
        The region over the new dimensions; None where it is empty or cannot be said.
    """
    out = []
    for t in r:
        if all(a.dim < 0 for p in t.idx for a in p.digits()):
            out.append(t)
            continue
        idx = []
        for p in t.idx:
            q = substitute(p, maps, shape)
            if q is None:
                return None
            idx.append(q)
        out.append(Test(t.src, tuple(idx), t.pred, t.yes))
    return region(Region(out, r.via))


def for_all(r: Region, dims: Iterable[int]) -> Region | None:
    """The region in which r holds for every value of the given dimensions; None where it is empty."""
    names = frozenset(dims)
    if not names:
        return r
    out = []
    for t in r:
        hit = sorted(t.dims() & names)
        if not hit:
            out.append(t)
        elif t.pred == "pos":  # the least value over those dimensions decides
            moving = {m: c for m, c in t.idx[0].terms.items() if _looks_at(m, hit)}
            rest = {m: c for m, c in t.idx[0].terms.items() if m not in moving}
            # (other digits in the same products are bounded too: a smaller region, still right)
            out.append(position(bound(Poly(moving), False) + Poly(rest)))
        else:
            first = min(t.alls, default=0) - 1
            if first - len(hit) < SOME + 1:
                return None
            swap = {d: first - n for n, d in enumerate(hit)}
            out.append(Test(t.src, tuple(rename(p, swap) for p in t.idx), t.pred, t.yes))
    return region(Region(out, r.via))


def _looks_at(m: Iterable[object], dims: Sequence[int]) -> bool:
    return any(isinstance(a, Digit) and a.dim in dims for a in m)


def for_some(t: Test, dims: Iterable[int]) -> Test:
    """The test "t for some value of the dimensions"."""
    first = min(t.somes, default=SOME) - 1
    swap = {d: first - n for n, d in enumerate(sorted(set(dims) & t.dims()))}
    return Test(t.src, tuple(rename(p, swap) for p in t.idx), t.pred, t.yes)


def cost(r: Region) -> tuple[int, int]:
    """How hard a region is to use: bound dimensions, then tests."""
    return sum(len(t.alls) + len(t.somes) for t in r), len(r)


def _rank(r: Region) -> tuple[tuple[int, int], str, int, int]:
    return cost(r), r.text, r.via.bit_count(), r.via


def prune(regions: Iterable[Region]) -> list[Region]:
    """The regions without those inside others; the few simplest of them."""
    unique = dict.fromkeys(regions)
    if len(unique) == 1:
        return [r for r in unique if len(r) <= MAX_TESTS]
    kept: list[Region] = []
    for r in sorted(unique, key=_rank):
        if len(r) <= MAX_TESTS and not any(inside(r, k) for k in kept):
            kept = [k for k in kept if not inside(k, r)]
            kept.append(r)
    return kept[:MAX_FACTS]


def inside(r: Region, k: Region) -> bool:
    """Proven: region r lies in region k, and k rests on no more."""
    if k.via | r.via != r.via:
        return False
    return all(any(u.implies(t) for u in r.tests) for t in k.tests)


def resolve(regions: Iterable[Region]) -> list[Region]:
    """Add consensus terms: A and t, B and not t together cover A and B. Bridges guards and opt-ins."""
    kept = prune(regions)
    for _ in range(RESOLVE_ROUNDS):
        if len(kept) < 2:
            break
        new = []
        for a, b in product(kept, kept):
            for t, u in product(a.tests, b.tests):
                n = t.negate()
                if n is not None and n.implies(u):
                    joined = a.without(t) | b.without(u)
                    r = region(joined) if len(joined) <= MAX_TESTS else None
                    if r is not None:
                        new.append(r)
        if not new:
            break
        before, kept = kept, prune([*kept, *new])
        if before == kept:
            break
    return kept


def meet(lists: Iterable[Sequence[Region]]) -> list[Region]:
    """Regions that every list covers (intersection over consumers)."""
    out = [EVERYWHERE]
    for regions in lists:
        if len(out) == 1 and out[0] == EVERYWHERE:
            out = prune(regions)
        else:
            joined = (region(a | b) for a, b in product(out, regions))
            out = prune(r for r in joined if r is not None)
        if not out:
            break
    return out


def describe(r: Region, names: Mapping[int, str] | None = None) -> str:
    """Short text for people, e.g. `attention_mask[d0, d1] == 0`.

    Args:
        r: The region.
        names: Names of the free dimensions; `d0`, `d1`, .. by default.
    """
    if not r:
        return "everywhere"
    return " and ".join(_describe(t, names or {}) for t in r)


def _describe(t: Test, names: Mapping[int, str]) -> str:
    letters = dict(zip(sorted((*t.alls, *t.somes), reverse=True), "jklmnopqr", strict=False))
    every = "".join(f"{'all' if d > SOME else 'some'} {x}: " for d, x in letters.items())
    known = {**names, **letters}

    def show(p: Poly) -> str:
        text = str(p)
        # longest numbers first, so that d1 does not cut d10
        for d in sorted({a.dim for a in p.digits()} & known.keys(), key=lambda d: -len(str(d))):
            text = text.replace(f"d{d}", known[d])
        return text

    return every + _statement(t, show)
