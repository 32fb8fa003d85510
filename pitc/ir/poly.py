"""Polynomials over size symbols and index digits.

A point of a tensor has one index per dimension. `Digit(d, stride, extent)` is
`(index_d // stride) % extent`, so a dimension may be seen as a product of factors.

A size symbol is >= 0: nothing says that a dimension has a place. One whose name starts with `?`
(`Graph.fresh`) is not declared by the model. A negative dimension is a bound one: it is quantified
(`pitc.ir.predicate`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, SupportsInt

UNDECLARED = "?"  # first character of symbols that no input declares: a number or a name follows
LARGEST_SIZE = 31  # bits: coordinates of rows are 32-bit integers, which the runtime checks
LARGEST_COUNT = 46  # bits of a product of sizes: it counts elements that lie in memory


class Digit:
    """One factor of an index, immutable: `(index_dim // stride) % extent`.

    Args:
        dim: The dimension whose index it belongs to; negative when quantified.
        stride: Product of the extents of the faster factors.
        extent: Number of values of the digit.
    """

    __slots__ = ("_hash", "dim", "extent", "stride")

    def __init__(self, dim: int, stride: "Poly", extent: "Poly") -> None:
        self.dim, self.stride, self.extent = dim, stride, extent
        self._hash = hash((dim, stride, extent))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Digit) and (self._hash, self.dim, self.stride, self.extent) == (
            other._hash,
            other.dim,
            other.stride,
            other.extent,
        )

    def __str__(self) -> str:
        return f"d{self.dim}" if self.stride == ONE else self.format(f"d{self.dim}")

    __repr__ = __str__

    def format(self, name: str) -> str:
        """The digit's formula.

        Args:
            name: Name of the dimension.
        """
        stride = "" if self.stride == ONE else f"//{_factor(self.stride)}"
        return f"({name}{stride}%{_factor(self.extent)})"

    def overlaps(self, other: "Digit") -> bool:
        """True for digits of one dimension that are not disjoint parts of it: none of the two is a
        slower factor than the other.
        """
        return self.dim == other.dim and _overlap(self, other)


@lru_cache(maxsize=1 << 14)
def _overlap(a: Digit, b: Digit) -> bool:
    slower = a.stride.divide(b.stride * b.extent)
    return slower is None and b.stride.divide(a.stride * a.extent) is None


def _factor(p: "Poly") -> str:
    """The polynomial as a factor: a sum gets brackets."""
    return f"({p})" if len(p.terms) > 1 else str(p)


Atom = str | Digit
Monomial = tuple[Atom, ...]


@lru_cache(maxsize=1 << 14)
def _order(a: Atom) -> tuple[int, str]:
    """A total order of atoms: digits first, then symbols by name."""
    return (1, a) if isinstance(a, str) else (0, f"{a.dim}/{a.stride}/{a.extent}")


class Poly:
    """An immutable polynomial with integer coefficients over size symbols and digits.

    Args:
        terms: Coefficient of each monomial; monomials are tuples of atoms in the order of `_order`.
    """

    __slots__ = ("_digits", "_groups", "_hash", "_symbols", "_text", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = {m: c for m, c in terms.items() if c}
        self._hash = hash(frozenset(self.terms.items()))
        self._text = ""
        self._digits: frozenset[Digit] | None = None
        self._symbols: frozenset[str] | None = None
        self._groups: dict[tuple[Digit, ...], Poly] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: "Poly | SupportsInt") -> "Poly":
        right = poly(other)
        if not right.terms or not self.terms:
            return self if self.terms else right
        total = dict(self.terms)
        for m, c in right.terms.items():
            total[m] = total.get(m, 0) + c
        return Poly(total)

    __radd__ = __add__

    def __neg__(self) -> "Poly":
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: "Poly | SupportsInt") -> "Poly":
        return self + -poly(other)

    def __rsub__(self, other: "Poly | SupportsInt") -> "Poly":
        return poly(other) - self

    def __mul__(self, other: "Poly | SupportsInt") -> "Poly":
        factor = poly(other)
        right = factor.terms
        if len(right) == 1 and () in right:
            scale = right[()]
            return self if scale == 1 else Poly({m: c * scale for m, c in self.terms.items()})
        if len(self.terms) == 1 and self.terms.get(()) == 1:
            return factor
        total: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in right.items():
                k = tuple(sorted(m + n, key=_order)) if m and n else m or n
                total[k] = total.get(k, 0) + c * d
        return Poly(total)

    __rmul__ = __mul__

    def __str__(self) -> str:
        if not self._text:
            self._text = self.format(str)
        return self._text

    __repr__ = __str__

    def format(self, show: Callable[["Atom"], str]) -> str:
        """Canonical text, e.g. `d0*s+d1-3`.

        Args:
            show: Text of an atom.
        """
        parts: list[str] = []
        for m in sorted(self.terms, key=lambda m: (-len(m), [_order(a) for a in m])):
            c = self.terms[m]
            factors = [] if c in (1, -1) and m else [str(abs(c))]
            sign = "-" if c < 0 else "+" if parts else ""
            parts.append(sign + "*".join([*factors, *map(show, m)]))
        return "".join(parts) or "0"

    def as_int(self) -> int | None:
        """The value when the polynomial is constant, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def digits(self) -> frozenset[Digit]:
        """All digits that occur."""
        if self._digits is None:
            found = (a for m in self.terms for a in m if isinstance(a, Digit))
            self._digits = frozenset(found)
        return self._digits

    def symbols(self) -> frozenset[str]:
        """All size symbols that occur, those inside digits left out."""
        if self._symbols is None:
            self._symbols = frozenset(a for m in self.terms for a in m if isinstance(a, str))
        return self._symbols

    def by_digits(self) -> "dict[tuple[Digit, ...], Poly]":
        """The polynomial grouped by digits: `{digits of a product: its coefficient over sizes}`."""
        if self._groups is None:
            groups: dict[tuple[Digit, ...], dict[Monomial, int]] = {}
            for m, c in self.terms.items():
                digits = tuple(a for a in m if isinstance(a, Digit))
                sizes = tuple(a for a in m if isinstance(a, str))
                groups.setdefault(digits, {})[sizes] = c
            self._groups = {d: Poly(terms) for d, terms in groups.items()}
        return dict(self._groups)

    def divide(self, q: "Poly") -> "Poly | None":
        """The exact quotient, or None when there is none (or q is 0)."""
        return _divide(self, q)

    def evaluate(self, sizes: Mapping[str, Any], index: Mapping[int, Any]) -> Any:
        """The value for given sizes and indices.

        Args:
            sizes: Number of each size symbol.
            index: Number or integer array of each dimension's index.

        Raises:
            KeyError: A symbol or dimension has no value.
        """
        total: Any = 0
        for m, c in self.terms.items():
            v: Any = c
            for a in m:
                if isinstance(a, str):
                    v = v * sizes[a]
                else:
                    extent = a.extent.evaluate(sizes, {})
                    v = v * (index[a.dim] // max(a.stride.evaluate(sizes, {}), 1) % max(extent, 1))
            total = total + v
        return total


def poly(x: "Poly | SupportsInt") -> Poly:
    """An integer as a polynomial; a polynomial as it is."""
    return x if isinstance(x, Poly) else _number(int(x))


@lru_cache(maxsize=1 << 12)
def _number(n: int) -> Poly:
    return Poly({(): n})


@lru_cache(maxsize=1 << 14)
def atom(a: Atom) -> Poly:
    """The polynomial of one atom."""
    return Poly({(a,): 1})


def sym(name: str) -> Poly:
    """A size symbol."""
    return atom(name)


ZERO = poly(0)
ONE = poly(1)


@lru_cache(maxsize=1 << 14)
def dim_index(d: int, extent: Poly) -> Poly:
    """The whole index of dimension d: 0 where the extent is 1."""
    return ZERO if extent == ONE else atom(Digit(d, ONE, extent))


def total_of(factors: Iterable[Poly]) -> Poly:
    """Product of extents."""
    product = ONE
    for f in factors:
        product = product * f
    return product


def _leading(p: Poly) -> Monomial:
    return max(p.terms, key=lambda m: (len(m), [_order(a) for a in m]))


@lru_cache(maxsize=1 << 14)
def _divide(p: Poly, q: Poly) -> Poly | None:
    if not q.terms:
        return None
    lead = _leading(q)
    quotient: dict[Monomial, int] = {}
    rest = p
    while rest.terms:  # long division; every step removes the leading monomial
        top = _leading(rest)
        left = list(top)
        for a in lead:
            if a not in left:
                return None
            left.remove(a)
        c, remainder = divmod(rest.terms[top], q.terms[lead])
        if remainder:
            return None
        quotient[tuple(left)] = c
        rest = rest - Poly({tuple(left): c}) * q
    return Poly(quotient)


@lru_cache(maxsize=1 << 16)
def bound(p: Poly, upper: bool) -> Poly:
    """A bound of the value over all digits, as a polynomial of sizes.

    Args:
        p: Any polynomial.
        upper: True for an upper bound, False for a lower one.

    Returns:
        The bound; tight when the digits are independent and every coefficient has one sign.
    """
    total = ZERO
    for digits, coef in p.by_digits().items():
        top = total_of(a.extent - 1 for a in digits)
        terms = coef.terms.items()
        total = total + Poly({m: c for m, c in terms if not digits or (c > 0) == upper}) * top
    return total


@lru_cache(maxsize=1 << 16)
def nonneg(p: Poly) -> bool:
    """True when p, without digits, is proven >= 0 for all sizes, 0 included.

    Sufficient: sizes are >= 0, so a sum of products of sizes is, with coefficients >= 0.
    """
    if any(isinstance(a, Digit) for m in p.terms for a in m):
        return False
    return all(c >= 0 for c in p.terms.values())


@lru_cache(maxsize=1 << 14)
def fits(p: Poly, least: int, most: int) -> bool:
    """True when the value lies between two numbers for all indices and for all sizes that a machine
    can have: an integer of that type does not wrap around.

    Args:
        p: Any polynomial.
        least: Least number of the type.
        most: Greatest number of the type.

    >>> fits(3 * sym("s"), -(2**31), 2**31 - 1), fits(3 * sym("s"), -(2**63), 2**63 - 1)
    (False, True)
    """
    low = high = 0
    for m, c in bound(p, False).terms.items():
        low += min(c, 0) << min(LARGEST_SIZE * len(m), LARGEST_COUNT)
    for m, c in bound(p, True).terms.items():
        high += max(c, 0) << min(LARGEST_SIZE * len(m), LARGEST_COUNT)
    return least <= low and high <= most


def within(p: Poly, n: Poly) -> bool:
    """Proven 0 <= p < n."""
    return nonneg(bound(p, False)) and nonneg(n - 1 - bound(p, True))
