"""Concrete values for proofs by evaluation, and which of them an abstract constant stands for."""

from typing import Any

import numpy as np

from pitc.ir.constant import NEG, NZ, SCORE, TAME, TOP, ZN, Constant, Range, is_number

Array = Any

# each with both neighbours and both signs; one is a tie of half precision
LANDMARKS = (0.5, 1.0, 1 + 2**-11, 1e3, 1e4)
NUMBERS = (0.0, 0.1, 2.0, 3.0, 7.0)
INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 9999, 10_000, 10_001, 2**15, 2**24 - 1, 2**24)
WIDE_INTEGERS = (2**24 + 1, 2**30, 2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1)


def boundary(dtype: Any) -> Array:
    """Values of a type at which laws change, about 50; both bools."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return every(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        found = {s * n + k for n in (*INTEGERS, *WIDE_INTEGERS) for s in (1, -1) for k in (0, -1)}
        return np.array(sorted(n for n in found if info.min <= n <= info.max), dtype)
    info = np.finfo(dtype)
    middle = np.array([*LANDMARKS, 2.0 ** (info.nmant + 1)], dtype)
    limits = [info.smallest_subnormal, info.tiny, np.nextafter(info.tiny, dtype.type(0)), info.max]
    positive = np.concatenate(
        [
            np.array([*NUMBERS, *limits, np.inf], dtype),
            *(middle, np.nextafter(middle, dtype.type(0)), np.nextafter(middle, info.max)),
        ]
    )
    return np.concatenate([positive, -positive, np.array([np.nan], dtype)])


def every(dtype: Any) -> Array:
    """All values of a type of at most 16 bits, else its boundary."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.itemsize > 2:
        return boundary(dtype)
    return np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)


def numbers_of(x: Array) -> list[float | int]:
    """Values as constants; both zeros, and no NaN."""
    return [int(v) if isinstance(v, bool) else v for v in x.tolist() if v == v]


def stands_for(c: Constant, x: Array) -> Array:
    """Where a constant may stand for a value: the meaning of an abstract constant.

    The number 0 stands for both zeros; a number is compared exactly, whatever the type is.
    """
    x = np.asarray(x)
    if c is TOP:
        return np.ones(x.shape, bool)
    if is_number(c):
        if x.dtype.kind == "f":
            return x.astype(np.float64) == c
        whole = np.isfinite(c) and int(c) == c
        return x == int(c) if whole else np.zeros(x.shape, bool)
    if isinstance(c, Range):
        return (c.lo <= x) & (x <= c.hi)
    if c is ZN:
        return (x == 0) | np.isnan(x)
    if c is NZ:
        return x != 0
    raise TypeError(f"the values of {c!r} are not described")


RANGES = (
    *(NEG, TAME, SCORE, Range(-np.inf, -9000.0, assumed=True), Range(0.0, np.inf)),
    *(Range(-3.0, -0.5), Range(-2.0, 0.0), Range(-1.0, 3.0), Range(0.5, 7.0), Range(9e3, 1e4)),
)


def specials(dtype: Any) -> tuple[Constant, ...]:
    """The constants besides numbers that values of a type may have."""
    return (*RANGES, ZN, NZ, TOP) if np.dtype(dtype).kind == "f" else (NZ, TOP)
