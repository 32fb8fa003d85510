"""outer_products kernels: sums of outer products at listed places of C, and nothing elsewhere."""

import numpy as np
import pytest

from pitc.codegen.families import outer_products_dense
from pitc.codegen.families.outer_products import GROUP, STRETCH
from pitc.codegen.families.sampled import SIDE
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, Array, bits, guarded, library, normal
from tests.kernels.test_codegen_sampled import blocks_of, lists, patterns

#: (K, N): single ones, tails of every kind.
SIZES = [(1, 1), (7, 70), (8, 64), (STRETCH, 130), (STRETCH + 1, 17), (384, 200)]
ROWS = (1, 3, 45, 64, 130)
#: Rows of blocks, and whether columns are turned first.
WAYS = [(1, 1), (16, 0), (16, 1), (32, 0), (32, 1), (64, 0), (64, 1)]
REQUEST = KernelRequest.of("outer_products")
DENSE = KernelRequest.of("outer_products_dense")
START = np.float32(0.5)


def in_groups(a: Array, group: int = GROUP) -> Array:
    """A [K, M] as a kernel reads it."""
    k, m = a.shape
    depth, groups = -(-k // SIDE) * SIDE, -(-m // group)
    padded = np.zeros((depth, groups * group), np.float32)
    padded[:k, :m] = a
    return np.ascontiguousarray(padded.reshape(depth, groups, group).transpose(1, 0, 2))


class Case:
    """Operands between pages that nobody may touch."""

    def __init__(self, k: int, n: int, rows: int) -> None:
        rng = np.random.default_rng(k * n + rows)
        at_end = bool(rows % 2)
        self.a, self.b = normal(rng, k, rows), guarded(normal(rng, k, n), at_end=at_end)
        self.c = guarded(np.zeros((rows, n), np.float32), at_end=at_end)

    def run(
        self, level: str, live: Array, way: tuple[int, int], columns: tuple[int, int] | None = None
    ) -> Array:
        """C after a call for some columns; it held `START` everywhere."""
        self.c[...] = START
        height, lines = way
        n0, n1 = columns or (0, self.c.shape[1])
        listed, starts = map(guarded, lists(live[:, n0:n1], height, n0))
        operands = (guarded(in_groups(self.a)), self.b, listed, starts, self.c)
        library(REQUEST).call(f"outer_products_{level}", *operands, height, n0, n1, lines)
        return self.c.copy()

    def run_dense(
        self, level: str, columns: tuple[int, int] | None = None, adds: int = 1, before: float = 0.5
    ) -> Array:
        """C after a call of the dense kernel; it held `before` everywhere."""
        self.c[...] = before
        n0, n1 = columns or (0, self.c.shape[1])
        left = guarded(in_groups(self.a, outer_products_dense.GROUP))
        library(DENSE).call(f"{DENSE.symbol}_{level}", left, self.b, self.c, n0, n1, adds)
        return self.c.copy()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_sums_are_added_where_columns_are_listed(k: int, n: int, level: str) -> None:
    for rows in ROWS:
        case = Case(k, n, rows)
        exact = case.a.T.astype(np.float64) @ case.b + START
        whole = case.run(level, np.ones((rows, n), bool), (64, 0))
        np.testing.assert_allclose(whole, exact, rtol=1e-4, atol=1e-4)
        for live in patterns(rows, n):
            for way in WAYS:
                want = np.where(blocks_of(live, way[0]), whole, START)
                assert np.array_equal(bits(case.run(level, live, way)), bits(want)), (rows, way)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_call_for_some_columns(way: tuple[int, int], level: str) -> None:
    case, live = Case(13, 200, 45), patterns(45, 200)[1]
    whole = case.run(level, np.ones((45, 200), bool), (64, 0))
    for n0, n1 in ((0, 64), (64, 128), (128, 200)):
        want = np.where(blocks_of(live, way[0]), whole, START)
        want[:, :n0] = want[:, n1:] = START
        assert np.array_equal(bits(case.run(level, live, way, (n0, n1))), bits(want))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_blocks_without_columns(way: tuple[int, int], level: str) -> None:
    case, live = Case(7, 70, 130), np.zeros((130, 70), bool)
    live[129, 3] = True
    whole = case.run(level, np.ones((130, 70), bool), (64, 0))
    want = np.where(blocks_of(live, way[0]), whole, START)
    assert np.array_equal(bits(case.run(level, live, way)), bits(want))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_a_number_stays_where_it_is(way: tuple[int, int], level: str) -> None:
    """In its column of A, or of B, however columns and rows are repeated."""
    case = Case(13, 130, 45)
    case.a[-1, 44], case.b[-1, 129] = np.inf, np.nan
    live = patterns(45, 130)[1]
    live[44], live[:, 129] = True, True
    got = case.run(level, live, way)
    listed = blocks_of(live, way[0])
    wrong = np.zeros_like(live)
    wrong[44], wrong[:, 129] = True, True
    assert np.array_equal(~np.isfinite(got), wrong & listed)
    assert np.isinf(got[44, :129]).all() and np.isnan(got[:, 129]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_all_sums_have_the_bits_of_listed_ones(k: int, n: int, level: str) -> None:
    for rows in ROWS:
        case = Case(k, n, rows)
        whole = case.run(level, np.ones((rows, n), bool), (64, 0))
        assert np.array_equal(bits(case.run_dense(level)), bits(whole))
        for n0, n1 in ((0, min(64, n)), (n // 65 * 64, n)):
            want = np.full_like(whole, START)
            want[:, n0:n1] = whole[:, n0:n1]
            assert np.array_equal(bits(case.run_dense(level, (n0, n1))), bits(want))


@pytest.mark.parametrize("level", LEVELS)
def test_what_c_held_is_not_read_where_nothing_is_added(level: str) -> None:
    """Sums that are -0.0 are 0, as where they are added to 0."""
    case = Case(1, 70, 45)
    case.a[...], case.b[...] = -1.0, 0.0
    got = case.run_dense(level, adds=0, before=np.nan)
    assert np.array_equal(bits(got), np.zeros((45, 70), np.uint32))


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_a_number_stays_in_its_row_and_column(level: str) -> None:
    case = Case(13, 130, 45)
    case.a[-1, 44], case.b[-1, 129] = np.inf, np.nan
    got = case.run_dense(level)
    assert np.isinf(got[44, :129]).all() and np.isnan(got[:, 129]).all()
    assert np.isfinite(got[:44, :129]).all()
