"""Index arithmetic: what movement operators do to indices.

With digits (`pitc.ir.poly`), Reshape, Flatten, Gather by affine indices and Slice are one idea:
substitution of index expressions. Everything is exact for symbolic sizes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from pitc.ir.poly import (
    ONE,
    UNDECLARED,
    ZERO,
    Atom,
    Digit,
    Poly,
    atom,
    bound,
    dim_index,
    fits,
    nonneg,
    poly,
    sym,
    total_of,
    within,
)

__all__ = [
    "ONE",
    "UNDECLARED",
    "ZERO",
    "Atom",
    "Coords",
    "Digit",
    "Maps",
    "Poly",
    "atom",
    "bound",
    "digit",
    "dim_index",
    "fits",
    "invert",
    "nonneg",
    "poly",
    "rename",
    "reshape_map",
    "substitute",
    "sym",
    "total_of",
    "within",
]
Coords = tuple[Digit, ...]
"""Places of a domain's coordinates among the digits of a value's index."""


def _split(p: Poly, unit: Poly) -> tuple[Poly, Poly] | None:
    """Parts (high, low) with p = high * unit + low and 0 <= low < unit; None if unknown.

    One digit that straddles the unit is split in two.

        64*d0 + d1 [d1 < 64], unit 64   ->   d0, d1
        d0 [d0 < 8*c], unit c           ->   d0//c%8, d0%c
    """
    high, low = ZERO, ZERO
    groups = p.by_digits()
    for digits, coef in groups.items():
        factor = total_of(map(atom, digits))
        q = coef.divide(unit)
        if q is None:
            low = low + coef * factor
        else:
            high = high + q * factor
    if within(low, unit):
        return high, low
    for digits, coef in low.by_digits().items():
        if len(digits) != 1:
            continue
        (a,) = digits
        rest = low - coef * atom(a)
        inner = unit.divide(coef)
        if inner is None or not within(rest, coef):
            continue
        outer = a.extent.divide(inner)
        if outer is None:
            continue
        # a = (a // inner) * inner + a % inner: two digits, since inner divides the extent
        top = dim_digit(a.dim, a.stride * inner, outer)
        return high + top, coef * dim_digit(a.dim, a.stride, inner) + rest
    return None


def dim_digit(d: int, stride: Poly, extent: Poly) -> Poly:
    """The digit as a polynomial: 0 where the extent is 1."""
    return ZERO if extent == ONE else atom(Digit(d, stride, extent))


@lru_cache(maxsize=1 << 16)
def digit(p: Poly, stride: Poly, extent: Poly) -> Poly | None:
    """`(p // stride) % extent` as a polynomial, or None when it is not one that can be found."""
    if extent == ONE:
        return ZERO
    slow = _split(p, stride)
    parts = slow and _split(slow[0], extent)
    return parts[1] if parts else None


Maps = Sequence[Poly | None] | Mapping[int, Poly | None]


def substitute(p: Poly, maps: Maps, shape: Sequence[Poly] | None = None) -> Poly | None:
    """Replace every digit of a free dimension d by the same digit of `maps[d]`.

    Args:
        p: An index expression over the old dimensions.
        maps: For each old dimension its index over the new ones, or None where that is unknown.
        shape: Extents of the old dimensions. When given, `maps[d]` is taken to be in range of
            `shape[d]`, so that a digit that is the whole dimension is replaced as it is.

    Returns:
        The index expression over the new dimensions, or None when some part is unknown.
    """
    total = ZERO
    for m, c in p.terms.items():
        v = poly(c)
        for a in m:
            if isinstance(a, str) or a.dim < 0:
                v = v * atom(a)
                continue
            x = maps[a.dim]
            if x is None:
                return None
            if shape is None or a.stride != ONE or a.extent != shape[a.dim]:
                x = digit(x, a.stride, a.extent)
                if x is None:
                    return None
            v = v * x
        total = total + v
    return total


def rename(p: Poly, names: Mapping[int, int]) -> Poly:
    """The polynomial with dimensions renamed."""
    total = ZERO
    for m, c in p.terms.items():
        v = poly(c)
        for a in m:
            if isinstance(a, Digit):
                v = v * atom(Digit(names.get(a.dim, a.dim), a.stride, a.extent))
            else:
                v = v * atom(a)
        total = total + v
    return total


def reshape_map(out_shape: Sequence[Poly], in_shape: Sequence[Poly]) -> tuple[Poly | None, ...]:
    """Index expressions of a reshape's input over its output's dimensions, row-major.

    Returns:
        One per input dimension; None where it cannot be said.
    """
    linear, stride = ZERO, ONE
    for d in reversed(range(len(out_shape))):
        linear = linear + dim_index(d, out_shape[d]) * stride
        stride = stride * out_shape[d]
    maps: list[Poly | None] = []
    stride = ONE
    for e in reversed(in_shape):
        maps.append(digit(linear, stride, e))
        stride = stride * e
    return tuple(reversed(maps))


def invert(
    maps: Sequence[Poly | None], extents: Sequence[Poly], shape: Sequence[Poly]
) -> dict[int, Poly]:
    """Solve `operand index = maps(iteration point)` for the iteration dimensions.

    Args:
        maps: Per operand dimension one index expression over the iteration space, or None.
        extents: Extents of the iteration space.
        shape: Extents of the operand.

    Returns:
        For each solved iteration dimension its index over the operand's dimensions. It is right at
        every point that reads the operand's element; where no point reads it, it may be out of
        range. A dimension that is absent is free.

    Example:
        x[d1, 64*d0 + d2] over extents (h, s, 64), x of shape [s, 64*h]
        -> d0 = x1//64%h, d1 = x0, d2 = x1%64
    """
    return dict(_invert(tuple(maps), tuple(extents), tuple(shape)))


@lru_cache(maxsize=1 << 14)
def _invert(
    maps: tuple[Poly | None, ...], extents: tuple[Poly, ...], shape: tuple[Poly, ...]
) -> dict[int, Poly]:
    found: dict[int, dict[Poly, tuple[Poly, Poly]]] = {}
    for j, p in enumerate(maps):
        if p is None:
            continue
        groups = p.by_digits()
        offset = groups.pop((), ZERO)
        whole = dim_index(j, shape[j])
        for digits, coef in groups.items():
            if len(digits) != 1:
                continue
            (a,) = digits
            if len(groups) == 1 and coef == ONE:
                found.setdefault(a.dim, {}).setdefault(a.stride, (a.extent, whole - offset))
                continue
            if offset.terms:
                continue
            # other terms are multiples of this digit's full range, or stay below its coefficient
            low = ZERO
            for other, k in groups.items():
                if other != digits and k.divide(coef * a.extent) is None:
                    low = low + k * total_of(map(atom, other))
            if not within(low, coef):
                continue
            value = digit(whole, coef, a.extent)
            if value is not None:
                found.setdefault(a.dim, {}).setdefault(a.stride, (a.extent, value))
    solved: dict[int, Poly] = {}
    for d, extent in enumerate(extents):
        if extent == ONE:
            solved[d] = ZERO
            continue
        at, value, parts = ONE, ZERO, found.get(d, {})
        while at in parts:
            size, part = parts[at]
            value, at = value + part * at, at * size
        if at == extent:
            solved[d] = value
    return solved


def bare_dim(p: Poly) -> int | None:
    """The dimension that an index expression is, whole and alone; None otherwise."""
    match list(p.terms.items()):
        case [((Digit() as a,), 1)] if a.stride == ONE:
            return a.dim
    return None
