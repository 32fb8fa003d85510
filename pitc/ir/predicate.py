"""Tests: predicates over one point that look at a run-time value or at a position.

A negative dimension in a test's index is bound: -1 .. -99 means "for ALL values", below -100 "for
SOME value" (inside the alls). Every answer here is sufficient, never guessed: an implication that
cannot be proven is False.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Literal

from pitc.ir.index import ONE, Atom, Digit, Poly, bound, nonneg, poly, rename, within

SOME = -100  # bound dimensions below it are "for some", the others "for all"

Predicate = Literal["nz", "neg", "small", "pos", "below"]
_SAYS = {
    ("nz", True): "!= 0",
    ("nz", False): "== 0",
    ("neg", True): "<= -1e4",
    ("neg", False): "> -1e4",
    ("small", True): "within 1e3",
    ("small", False): "not within 1e3",
}
OF_ELEMENTS = frozenset(pred for pred, _ in _SAYS)  # they look at one element of a value
# of one element: what the first says, the second says too (a NaN is neither `neg` nor `small`)
_FOLLOWS = {
    (("neg", True), ("small", False)),
    (("small", True), ("neg", False)),
    (("neg", True), ("nz", True)),
    (("nz", False), ("small", True)),
    (("nz", False), ("neg", False)),
    (("small", False), ("nz", True)),
}


@dataclass(frozen=True)
class Test:
    """One predicate over a point.

    Args:
        src: Name of the tensor that is looked at; empty for a position test.
        idx: Where it is looked at: an index expression per dimension over the point.
        pred: `nz`: src[idx] != 0. `neg`: src[idx] <= -1e4. `small`: |src[idx]| < 1e3. `below`:
            idx[-1] < src[idx[:-1]] (lengths). `pos`: idx[0] >= 0, without a tensor.
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
        return frozenset(d for d in self._dims if d < SOME)

    def negate(self) -> "Test | None":
        """The opposite test ("all" becomes "some" and back); None where it cannot be said."""
        return _negate(self)

    def implies(self, other: "Test") -> bool:
        """Whether the other test holds wherever this one does (sufficient).

        It is the same test, a weaker position, an instance of an "all", or a witness of a "some".
        """
        if self.src != other.src:
            return False
        if self == other:
            return True
        if (self.pred, self.yes) != (other.pred, other.yes):
            follows = ((self.pred, self.yes), (other.pred, other.yes)) in _FOLLOWS
            return follows and self.idx == other.idx
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
    blank = t.alls or u.somes  # of no values, "all" is true and "some" is false
    if t.pred == "pos":
        return not blank and nonneg(bound(u.idx[0] - t.idx[0], False))
    if t.somes and t.alls:
        return False
    if t.pred == "below" and t.idx[:-1] == u.idx[:-1] and not blank:
        nearer, farther = (u, t) if t.yes else (t, u)
        return nonneg(bound(farther.idx[-1] - nearer.idx[-1], False))
    # the "some" of t and the "all" of u are fixed but arbitrary; only these two kinds may be chosen
    given, wanted = t.alls, u.somes
    if not (_independent(t, given) and _independent(u, wanted)):
        return False
    chosen: set[Digit] = set()  # at will, so there has to be a value
    for p, q in zip(t.idx, u.idx, strict=True):
        if p == q and all(a.dim >= 0 for a in p.digits()):
            continue
        a, b = _bare(p, given), _bare(q, wanted)
        if a and within(q, a.extent):
            chosen |= {c for c in q.digits() if c.dim in wanted}
        elif b and within(p, b.extent):
            chosen |= {c for c in p.digits() if c.dim in given}
        else:
            return False
    return all(nonneg(c.extent - 1) for c in chosen)


def _bare(p: Poly, dims: frozenset[int]) -> Digit | None:
    """The digit that p is, when it belongs to one of the given bound dimensions."""
    match list(p.terms.items()):
        case [((Digit() as a,), 1)] if a.dim in dims:
            return a
    return None


def _independent(t: Test, dims: frozenset[int]) -> bool:
    """True when the digits of the bound dimensions take all values independently, none twice."""
    used = [a for p in t.idx for a in p.digits() if a.dim in dims]
    return not any(a.overlaps(b) for a, b in combinations(used, 2))


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


def least_or_last(t: Test, dims: Iterable[int], every: bool) -> Test | None:
    """A comparison with a length for every or for some place of its own dimension: the first or the
    last place decides; None for other tests.

    Of no places at all, "every" is true and says no more than is claimed; "some" is false, so there
    has to be a place.
    """
    bound_dims = frozenset(dims) & t.dims()
    place = _bare(t.idx[-1], bound_dims) if t.pred == "below" else None
    if place is None or any(a.dim in bound_dims for p in t.idx[:-1] for a in p.digits()):
        return None
    if place.stride != ONE:
        return None
    decides = place.extent - 1 if every == t.yes else poly(0)
    return Test(t.src, (*t.idx[:-1], decides), t.pred, t.yes)


def for_some(t: Test, dims: Iterable[int]) -> Test:
    """The test "t for some value of the dimensions".

    Args:
        t: A test.
        dims: The dimensions. What is said is said of a point along them, so none of them is empty.
    """
    decided = least_or_last(t, dims, every=False)
    if decided is not None:
        return decided
    first = min(t.somes, default=SOME) - 1
    swap = {d: first - n for n, d in enumerate(sorted(set(dims) & t.dims()))}
    return Test(t.src, tuple(rename(p, swap) for p in t.idx), t.pred, t.yes)


def describe_test(t: Test, names: Mapping[int, str], split: frozenset[int]) -> str:
    """One test; a dimension in `split` is seen in parts, so its last part is written as one too."""
    letters = dict(zip(sorted((*t.alls, *t.somes), reverse=True), "jklmnopqr", strict=False))
    every = "".join(f"{'all' if d > SOME else 'some'} {x}: " for d, x in letters.items())
    known = {**names, **letters}

    def show(a: Atom) -> str:
        if isinstance(a, str):
            return a
        name = known.get(a.dim, f"d{a.dim}")
        return a.format(name) if a.dim in split else name

    return every + _statement(t, lambda p: p.format(show))
