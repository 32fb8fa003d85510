"""contract_block kernels of a stored matrix: bits of the dense kernel at listed places of C, and
nothing elsewhere.
"""

from typing import Any

import numpy as np
import pytest

from pitc.codegen.call import KernelLibrary
from pitc.codegen.families import contract_block
from pitc.codegen.families.sampled import SIDE, STRETCH
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CPU_LEVELS
from pitc.ir.variants import FOLD
from tests.codegen_kernels import LEVELS, Array, bits, guarded, library, normal

#: (K, N): single ones, tails of every kind, the ends of a stretch and of blocks of sums.
SIZES = [
    (1, 1),
    (7, 70),
    (STRETCH, 64),
    (STRETCH + 3, 130),
    (FOLD, 17),
    (FOLD + 1, 200),
    (2 * FOLD + 133, 75),
]
ROWS = (1, 3, 32, 45)
HEIGHTS = (1, 4, 16, 32, 64)
CANARY = np.float32(-7.5)


def request(k: int, n: int, order: str, family: str = "contract_block") -> KernelRequest:
    plain: dict[str, Any] = {"activation": "none", "residual": 0, "factor": 0}
    return KernelRequest.of(family, k=k, n=n, stored=order, **plain)


def built(order: str) -> KernelLibrary:
    families = ("contract_block", "gather_gemm")
    return library(*(request(k, n, order, family) for k, n in SIZES for family in families))


def lists(live: Array, height: int, first: int = 0) -> tuple[Array, Array]:
    """Columns of each block of rows in which one of them lives, and where lists start."""
    blocks = [live[i : i + height].any(0) for i in range(0, len(live), height)]
    columns = [np.flatnonzero(block) + first for block in blocks]
    starts = np.cumsum([0, *map(len, columns)])
    return np.concatenate(columns).astype(np.int32), starts.astype(np.int32)


def blocks_of(live: Array, height: int) -> Array:
    """What lives together with another one of its block."""
    found = [live[i : i + height].any(0) for i in range(0, len(live), height)]
    return np.repeat(found, height, 0)[: len(live)]


class Case:
    """Operands of a whole product, between pages that nobody may touch."""

    def __init__(self, k: int, n: int, order: str, rows: int) -> None:
        rng = np.random.default_rng(k * n + rows)
        at_end = bool(rows % 2)
        self.k, self.n, self.order = k, n, order
        self.a = guarded(normal(rng, rows, k), at_end=at_end)
        s = normal(rng, k, n)
        self.s = guarded(np.ascontiguousarray(s if order == "kn" else s.T), at_end=at_end)
        self.c = guarded(np.full((rows, n), CANARY), at_end=at_end)

    def dense(self, level: str) -> Array:
        """What the dense kernel makes."""
        every, panels = np.arange(len(self.a), dtype=np.int32), panel_count(self.n)
        c, bias = np.empty_like(self.c), np.zeros(panels * PANEL_WIDTH, np.float32)
        symbol = f"{request(self.k, self.n, self.order, 'gather_gemm').symbol}_{level}"
        ranges = (0, len(every), 0, panels)
        built(self.order).call(symbol, self.a, every, self.s, bias, every, c, *ranges)
        return c

    def run(
        self, level: str, live: Array, height: int, columns: tuple[int, int] | None = None
    ) -> Array:
        """C after a call for some columns; it was full of canaries."""
        self.c[...] = CANARY
        n0, n1 = columns or (0, self.n)
        listed, starts = map(guarded, lists(live[:, n0:n1], height, n0))
        symbol = f"{request(self.k, self.n, self.order).symbol}_{level}"
        operands = (self.a, self.s, listed, starts, self.c)
        built(self.order).call(symbol, *operands, height, n0, n1)
        return self.c


def patterns(rows: int, n: int) -> list[Array]:
    """Masks: everything, some single elements, stretches of columns, whole columns."""
    rng = np.random.default_rng(rows * n)
    single = rng.random((rows, n)) < 0.1
    single[-1, -1] = True  # no list of nothing
    stretch, column = single.copy(), single.copy()
    stretch[rows // 2 :, n // 3 : n // 3 + 40] = True
    column[:, rng.random(n) < 0.2] = True
    return [np.ones((rows, n), bool), single, stretch, column]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ["kn", "nk"])
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_bits_of_the_dense_kernel_where_columns_are_listed(
    k: int, n: int, order: str, level: str
) -> None:
    for rows in ROWS:
        case = Case(k, n, order, rows)
        dense = case.dense(level)
        exact = case.a.astype(np.float64) @ (case.s if order == "kn" else case.s.T)
        np.testing.assert_allclose(dense, exact, rtol=1e-4, atol=2e-4)
        for live in patterns(rows, n):
            for height in HEIGHTS:
                want = np.where(blocks_of(live, height), dense, CANARY)
                got = case.run(level, live, height)
                assert np.array_equal(bits(got), bits(want)), (rows, height)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ["kn", "nk"])
@pytest.mark.parametrize("height", [1, 32])
def test_a_call_for_some_columns(order: str, height: int, level: str) -> None:
    case = Case(FOLD + 1, 200, order, 45)
    live, dense = patterns(45, 200)[1], case.dense(level)
    for n0, n1 in ((0, 64), (64, 128), (128, 200)):
        want = np.where(blocks_of(live, height), dense, CANARY)
        want[:, :n0] = want[:, n1:] = CANARY
        assert np.array_equal(bits(case.run(level, live, height, (n0, n1))), bits(want))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ["kn", "nk"])
@pytest.mark.parametrize("height", [1, 32])
def test_blocks_without_columns(order: str, height: int, level: str) -> None:
    case = Case(7, 70, order, 45)
    live = np.zeros((45, 70), bool)
    live[40, 3] = True
    want = np.where(blocks_of(live, height), case.dense(level), CANARY)
    assert np.array_equal(bits(case.run(level, live, height)), bits(want))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ["kn", "nk"])
@pytest.mark.parametrize("height", [1, 4, 32])
def test_what_is_not_a_number_stays_where_it_is(order: str, height: int, level: str) -> None:
    """In its row of A, or its column of B, however columns are repeated."""
    case = Case(STRETCH + 3, 130, order, 45)
    case.a[5, 0] = 0  # times infinity
    clean = case.dense(level)
    s = case.s if order == "kn" else case.s.T
    case.a[2, 98], s[0, 1], s[98, 129] = np.nan, np.inf, np.nan
    live = patterns(45, 130)[1]
    live[:, [1, 129]] = True
    where = blocks_of(live, height)
    got = case.run(level, live, height).copy()
    assert np.array_equal(np.isnan(got), np.isnan(np.where(where, case.dense(level), CANARY)))
    assert np.isnan(got[5, 1]) and np.isinf(got[0, 1]) and np.isnan(got[2][where[2]]).all()
    spared = np.ones_like(where)
    spared[2], spared[:, [1, 129]] = False, False
    want = np.where(where, clean, CANARY)
    assert np.array_equal(bits(got[spared]), bits(want[spared]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("height", [1, 32])
def test_no_sum_is_minus_zero(height: int, level: str) -> None:
    """A product that underflows: the dense kernel adds a bias of 0."""
    case = Case(1, 1, "nk", 32)
    case.a[...], case.s[...] = -1e-30, 1e-30
    live = np.ones((32, 1), bool)
    assert not bits(case.dense(level)).any()
    assert not bits(case.run(level, live, height)).any()


WRONG = [
    {"k": 0},
    {"n": 0},
    {"stored": "panels"},
    {"activation": "relu"},
    {"residual": 1},
    {"factor": 1},
]


@pytest.mark.parametrize("other", WRONG, ids=str)
def test_what_no_kernel_computes_is_refused(other: dict[str, Any]) -> None:
    params = dict(request(SIDE, SIDE, "nk").params) | other
    with pytest.raises(ValueError, match="no contract_block kernel"):
        contract_block.prim_func("symbol", params, CPU_LEVELS[0])
