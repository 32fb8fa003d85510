"""Operands with zeros, and whether what a device gives for them is right."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks.gpu.arrays import download, release
from benchmarks.gpu.driver import Array, Device
from benchmarks.gpu.products import Operands, Work
from pitc.codegen import reference

TOLERANCE = 1e-3
"""Norm of the difference over norm, float16 against float64."""
CHECKED_ROWS = 64


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal numbers."""
    return rng.standard_normal(shape, dtype=np.float32).astype(np.float16)


def blocks_of_zeros(
    rng: np.random.Generator, size: int, block: tuple[int, int], zeros: float
) -> Array:
    """A square matrix of normal numbers that are not 0, and of blocks of zeros."""
    a = normal(rng, size, size)
    a[a == 0] = 1
    dead = rng.random((size // block[0], size // block[1])) < zeros
    a[np.repeat(np.repeat(dead, block[0], 0), block[1], 1)] = 0
    return a


def expect(name: str, error: float, tolerance: float = TOLERANCE) -> None:
    """An answer is right.

    Raises:
        AssertionError: It is not.
    """
    if not error <= tolerance:
        raise AssertionError(
            f"{name}: the error is {error:.2e}, at most {tolerance:.0e} is allowed"
        )


def checked(
    device: Device, operands: Operands, work: Work, a: Array, w: Array, activation: str = "none"
) -> float:
    """The error of some rows of a product, after memory of C was overwritten."""
    device.fill(operands.c.address, 0xFF, 2 * operands.c.shape[0] * operands.c.shape[1])
    work()
    c = download(device, operands.c)
    if not np.isfinite(c).all():
        raise AssertionError("not all of C was written")
    some = np.random.default_rng(5).permutation(len(a))[:CHECKED_ROWS]
    none = np.zeros(w.shape[1])
    left, right = (x.astype(np.float64) for x in (a[some], w))
    want = reference.gather_gemm(left, np.arange(len(left)), right, none, None, activation)
    error = float(np.linalg.norm(c[some] - want) / max(np.linalg.norm(want), 1e-30))
    expect("product", error)
    return error


def attention_error(out: Array, operands: tuple[Array, ...], lengths: list[int]) -> float:
    """The error of attention over q, k and v; infinite where the right answer is 0."""
    ends = np.cumsum([0, *lengths])
    wrong = norm = 0.0
    for start, end in pairwise(ends):
        x, y, z = (m[start:end].astype(np.float64).transpose(1, 0, 2) for m in operands)
        scores = x @ y.transpose(0, 2, 1) * x.shape[2] ** -0.5
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        want = weights / weights.sum(axis=2, keepdims=True) @ z
        got = out[start:end].transpose(1, 0, 2)
        wrong += float(((got - want) ** 2).sum())
        norm += float((want**2).sum())
    return float(np.sqrt(wrong / norm)) if norm else float("inf")


def free(device: Device, sets: Sequence[Operands]) -> None:
    """Give the memory of operands back."""
    device.wait()
    for x in sets:
        release(device, x.a, x.rows, x.bias, x.rows_c, x.b, x.c)
