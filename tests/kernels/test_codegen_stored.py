"""Dense contractions whose right operand is read as it is stored, perhaps times a factor."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, panel_count
from tests.codegen_kernels import NEWEST, Array, bits, guarded, normal
from tests.codegen_kernels import newest_library as library

# K and N: one vector or less, whole and broken vectors, panels and pieces of both lengths; several
# panels with several blocks of sums, and more panels than few rows are multiplied by at a time
SIZES = ((1, 1), (5, 3), (16, 16), (17, 65), (128, 64), (130, 130), (300, 48), (1100, 200))
SIZES += ((400, 6_200),)
# rows: in place, few pieces, many, more than share a piece
ROWS = (1, 2, 7, 18, 19, 36, 37, 100, 385, 390, 769, 774)
FORMS = tuple(product(("kn", "nk"), (0, 1)))


def request(k: int, n: int, order: str, factor: int) -> KernelRequest:
    """A kernel; with a factor it has an activation and a residual as well."""
    activation = "relu" if factor else "none"
    return KernelRequest.of(
        "gather_gemm",
        k=k,
        n=n,
        activation=activation,
        residual=factor,
        stored=order,
        factor=factor,
    )


REQUESTS = tuple(request(k, n, *form) for (k, n), form in product(SIZES, FORMS))


class Case:
    """Operands of one kernel, between pages that nobody may touch."""

    def __init__(self, k: int, n: int, order: str, factor: int, rows: int, *, at_end: bool) -> None:
        rng = np.random.default_rng(k * n + rows)
        self.request, self.n, self.at_end = request(k, n, order, factor), n, at_end
        self.a, self.w = normal(rng, rows, k), normal(rng, k, n)
        self.factor = (rng.random((k, n)) < 0.5).astype(np.float32) if factor else None
        self.bias, self.residual = normal(rng, n), normal(rng, rows, n) if factor else None
        self.order = order

    def run(self, level: str, rows: slice = slice(None)) -> Array:
        """The kernel's result for some rows of A; rows and panels in two parts."""

        def put(x: Array) -> Array:
            return guarded(np.ascontiguousarray(x), at_end=self.at_end)

        def stored(x: Array) -> Array:
            return put(x if self.order == "kn" else x.T)

        a, panels = put(self.a[rows]), panel_count(self.n)
        every = put(np.arange(len(a), dtype=np.int32))
        padded = np.zeros(panels * PANEL_WIDTH, np.float32)
        padded[: self.n] = self.bias
        c = put(np.full((len(a), self.n), np.nan, np.float32))
        right = [stored(x) for x in (self.w, self.factor) if x is not None]
        more = [] if self.residual is None else [put(self.residual[rows])]
        operands = [a, every, *right, put(padded), *more, every, c]
        symbol = f"{self.request.symbol}_{level}"
        for i, j in product(_parts(len(a)), _parts(panels)):
            library(*REQUESTS).call(symbol, *operands, *i, *j)
        return c

    def expected(self) -> Array:
        every, factor = np.arange(len(self.a)), 1 if self.factor is None else self.factor
        activation = dict(self.request.params)["activation"]
        return reference.gather_gemm(
            self.a, every, self.w * factor, self.bias, self.residual, str(activation)
        )


def _parts(count: int) -> Sequence[tuple[int, int]]:
    return [(0, count)] if count < 3 else [(0, count // 3), (count // 3, count)]


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize(("order", "factor"), FORMS)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_product(k: int, n: int, order: str, factor: int, level: str) -> None:
    for rows in ROWS:
        case = Case(k, n, order, factor, rows, at_end=rows % 2 == 0)
        np.testing.assert_allclose(case.run(level), case.expected(), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize(("order", "factor"), FORMS)
def test_bits_of_a_row(order: str, factor: int, level: str) -> None:
    """They depend neither on how many rows there are, nor on how the matrix is stored."""
    whole = Case(1100, 200, order, factor, 390, at_end=True)
    (want, other) = (whole.run(level), Case(1100, 200, "kn", factor, 390, at_end=True).run(level))
    np.testing.assert_array_equal(bits(want), bits(other))
    for rows in (1, 2, 7, 18, 19, 37, 100):
        np.testing.assert_array_equal(bits(whole.run(level, slice(rows))), bits(want[:rows]))


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize(("order", "factor"), FORMS)
@pytest.mark.parametrize("rows", [2, 30, 100])
def test_what_is_not_a_number(rows: int, order: str, factor: int, level: str) -> None:
    """It reaches its column, or its row, and no other."""
    case = Case(130, 130, order, factor, rows, at_end=True)
    clean = case.run(level)
    case.w[[3, 129], [0, 129]] = np.nan, np.inf
    if case.factor is not None:
        case.factor[129, 129] = 0  # 0 times infinity
    case.a[1, 129] = np.nan
    got = case.run(level)
    assert not np.isfinite(got[1]).any() and not np.isfinite(got[:, [0, 129]]).any()
    others = np.delete(np.delete(got, 1, 0), [0, 129], 1)
    np.testing.assert_array_equal(others, np.delete(np.delete(clean, 1, 0), [0, 129], 1))
