"""panels kernels: rows of a matrix as columns of panels, and whether all of it is finite."""

import numpy as np
import pytest

from pitc.codegen.families import panels
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CPU_LEVELS
from tests.codegen_kernels import NEWEST, Array, bits, guarded, normal
from tests.codegen_kernels import newest_library as library

K = (1, 5, 16, 31, 64, 70, 128, 300)
ROWS = (1, 2, 15, 16, 63, 64, 65, 130)
REQUESTS = tuple(KernelRequest.of("panels", k=k) for k in K)
ODD = (np.inf, -np.inf, np.nan, -np.nan)
FINITE = np.array([3.4028235e38, -3.4028235e38, 1e-45, -0.0], np.float32)


def packed(level: str, a: Array, *, at_end: bool = True) -> tuple[Array, Array]:
    """All panels, in parts of 64 rows, and for each part whether it has an odd number."""
    k, count = a.shape[1], panel_count(len(a))
    b = guarded(np.full((count, k, PANEL_WIDTH), np.nan, np.float32), at_end=at_end)
    parts = [(j, k0, min(k0 + 64, k)) for j in range(count) for k0 in range(0, k, 64)]
    odd = guarded(np.full(len(parts), 7, np.int32), at_end=at_end)
    x = guarded(a, at_end=at_end)
    for task, part in enumerate(parts):
        library(*REQUESTS).call(f"panels_k{k}_{level}", x, b, odd, task, *part)
    return b, odd


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize("k", K)
def test_panels(k: int, level: str) -> None:
    rng = np.random.default_rng(k)
    for rows in ROWS:
        a = normal(rng, rows, k)
        a.flat[: min(4, a.size)] = FINITE[: a.size]
        b, odd = packed(level, a, at_end=rows % 2 == 0)
        every = np.minimum(np.arange(len(b) * PANEL_WIDTH), rows - 1)
        want = a[every].reshape(len(b), PANEL_WIDTH, k).transpose(0, 2, 1)
        np.testing.assert_array_equal(bits(b), bits(want))
        assert not odd.any()


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize("value", ODD)
def test_a_number_that_is_not_finite(value: float, level: str) -> None:
    """Anywhere: it is seen in its part, and in no other."""
    rows, k = 70, 70
    for row in (0, 7, 8, 15, 16, 63, 64, 69):
        for column in (0, 1, 15, 16, 63, 64, 69):
            a = np.ones((rows, k), np.float32)
            a[row, column] = value
            _, odd = packed(level, a)
            part = row // PANEL_WIDTH * 2 + column // 64
            np.testing.assert_array_equal(odd, np.arange(4) == part)


def test_no_columns() -> None:
    with pytest.raises(ValueError, match="no panels kernel"):
        panels.prim_func("symbol", {"k": 0}, CPU_LEVELS[0])
