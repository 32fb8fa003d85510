"""swrite_columns kernels: values, bits of the dense kernel, and what they must not touch."""

import ctypes
import itertools
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.codegen.families import swrite_columns
from pitc.codegen.families.swrite import STREAM_BYTES
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, TURNED_COLUMNS, pack_panels, panel_count
from pitc.ir.target import CPU_LEVELS
from pitc.ir.variants import FOLD
from tests.codegen_kernels import NEWEST, Array, bits, guarded, normal, untouched
from tests.codegen_kernels import newest_library as library
from tests.contract_cases import CANARY, LISTS, sparse

# (n, activation, residual): below, at and above a vector and a piece, tails of every kind
SHAPES = [
    (1, "none", 0),
    (5, "relu", 1),
    (16, "none", 0),
    (48, "gelu", 0),
    (17, "silu", 1),
    (128, "none", 1),
    (200, "gelu_tanh", 1),
    (259, "gelu_quick", 0),
    (320, "none", 0),
]
ROWS = (0, 1, 15, 16, 17, 127, 128, 129, 300)
#: A page of a panel is 16 k: a whole panel can be made inaccessible.
K = 304
CHAIN = (200, "gelu_tanh", 1)
SIZES = {"contract_row": 16, "contract_tile": 8, "contract_block": 32}
Shape = tuple[int, str, int]

in_both = pytest.mark.parametrize("level", NEWEST)
of_all = pytest.mark.parametrize("shape", SHAPES, ids=str)


def request_of(shape: Shape) -> KernelRequest:
    n, activation, residual = shape
    return KernelRequest.of("swrite_columns", n=n, activation=activation, residual=residual)


def gemm_of(k: int, shape: Shape) -> KernelRequest:
    n, activation, residual = shape
    return KernelRequest.of("gather_gemm", k=k, n=n, activation=activation, residual=residual)


def list_of(family: str) -> KernelRequest:
    return KernelRequest.of(family, k=K, n=TURNED_COLUMNS, activation="none", residual=0)


def built() -> KernelLibrary:
    """The library of all shapes, the kernels in front, and the dense ones."""
    return library(
        *map(request_of, SHAPES),
        *(gemm_of(1, shape) for shape in SHAPES),
        gemm_of(K, CHAIN),
        *map(list_of, SIZES),
    )


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return built()


class Case:
    """Sums of a whole C `[T, n]`, and calls that write parts of it.

    Args:
        shape: (n, activation, residual).
        rows: T.
        seed: Of the operands.
    """

    def __init__(self, shape: Shape, rows: int, seed: int) -> None:
        self.shape = shape
        self.n, self.activation, has_residual = shape
        self.symbol = request_of(shape).symbol
        rng = np.random.default_rng(seed)
        self.rows = rows
        self.sums = normal(rng, self.n, rows)
        self.bias = np.zeros(panel_count(self.n) * PANEL_WIDTH, np.float32)
        self.bias[: self.n] = normal(rng, self.n)
        self.residual = guarded(normal(rng, rows, self.n)) if has_residual else None
        self.guarded_bias = guarded(self.bias)
        self.c = guarded(np.full((rows, self.n), CANARY), at_end=bool(seed % 2))

    def expected(self) -> Array:
        """The whole of C, f64."""
        with np.errstate(all="ignore"):
            bias = self.bias[: self.n]
            return reference.swrite_columns(self.sums, bias, self.residual, self.activation)

    def write(
        self, kernels: KernelLibrary, level: str, columns: tuple[int, int], first: int
    ) -> None:
        """Call the kernel for columns n0..n1-1 and up to `TURNED_COLUMNS` rows from `first` on."""
        n0, n1 = columns
        sums = np.full((n1 - n0, TURNED_COLUMNS), np.nan, np.float32)
        here = self.sums[n0:n1, first : first + TURNED_COLUMNS]
        sums[:, : here.shape[1]] = here
        memory = guarded(sums)
        added = [] if self.residual is None else [self.residual]
        kernels.call(f"{self.symbol}_{level}", memory, self.guarded_bias, *added, self.c, n0, first)
        assert np.array_equal(bits(memory), bits(sums))

    def write_all(self, kernels: KernelLibrary, level: str, step: int) -> Array:
        """The whole of C after calls of `step` columns, in an order of no meaning."""
        starts = itertools.product(range(0, self.n, step), range(0, self.rows, TURNED_COLUMNS))
        for n0, first in sorted(starts, key=lambda at: (at[0] * 7 + at[1] * 3) % 11):
            self.write(kernels, level, (n0, min(n0 + step, self.n)), first)
        return self.c

    def check(self, c: Array, want: Array) -> None:
        """Float32 roundings of a sum and of an activation, relative to what was added."""
        size = np.abs(self.sums.T) + np.abs(self.bias[: self.n]) + np.abs(want)
        assert (np.abs(c - want) <= 1e-6 * size + 1e-7).all()


@in_both
@of_all
def test_values_of_every_row_count_and_split(
    kernels: KernelLibrary, shape: Shape, level: str
) -> None:
    for rows, step in itertools.product(ROWS, (16, 144, 512)):
        case = Case(shape, rows, seed=rows)
        case.check(case.write_all(kernels, level, step), case.expected())


@in_both
@of_all
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_call_leaves_the_rest_of_c_alone(shape: Shape, level: str, data: st.DataObject) -> None:
    case = Case(shape, data.draw(st.integers(0, 400)), seed=data.draw(st.integers(0, 9)))
    n0 = 16 * data.draw(st.integers(0, case.n // 16))
    n1 = min(case.n, n0 + 16 * data.draw(st.integers(0, 24)))
    first = data.draw(st.integers(0, case.rows))
    case.write(built(), level, (n0, n1), first)
    last = min(first + TURNED_COLUMNS, case.rows)
    want = np.full((case.rows, case.n), CANARY, np.float64)
    want[first:last, n0:n1] = case.expected()[first:last, n0:n1]
    case.check(case.c, want)
    untouched = np.ones_like(want, bool)
    untouched[first:last, n0:n1] = False
    assert (case.c[untouched] == CANARY).all()


@in_both
@of_all
def test_bits_are_those_of_the_dense_kernel(
    kernels: KernelLibrary, shape: Shape, level: str
) -> None:
    case = Case(shape, 77, seed=5)
    rng = np.random.default_rng(6)
    x, w = normal(rng, 77, 1), normal(rng, 1, shape[0])
    case.sums = (x * w).T
    assert np.array_equal(
        bits(case.write_all(kernels, level, 32)), dense_bits(kernels, case, level, x, w)
    )


def dense_bits(kernels: KernelLibrary, case: Case, level: str, x: Array, w: Array) -> Array:
    """What the dense kernel makes of x `[T, k]` and w `[k, n]`."""
    rows = np.arange(case.rows, dtype=np.int32)
    c = np.full((case.rows, case.n), CANARY)
    added = [] if case.residual is None else [case.residual]
    operands = (x, rows, pack_panels(w), case.bias, *added, rows, c)
    symbol = f"{gemm_of(len(w), case.shape).symbol}_{level}"
    kernels.call(symbol, *operands, 0, case.rows, 0, panel_count(case.n))
    return bits(c)


@in_both
@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("rows", [1, 40, 64, 100, 128])
def test_a_product_by_a_sparse_right_operand_has_the_bits_of_the_dense_one(
    kernels: KernelLibrary, family: str, rows: int, level: str
) -> None:
    rng = np.random.default_rng(rows)
    case = Case(CHAIN, rows, seed=rows)
    x, s = normal(rng, rows, K), sparse(rng, K, case.n, 0.1)
    wide = np.zeros((K, TURNED_COLUMNS), np.float32)
    wide[:, :rows] = x.T
    panels, parts = guarded(pack_panels(wide), at_end=False), panel_count(rows)
    if parts == 1:
        forbid(panels[1])
    blocks = (-(-K // 16), FOLD // 16) if family == "contract_row" else ()
    for n0, n1 in ((0, 96), (96, case.n)):
        lists = LISTS[family](np.ascontiguousarray(s.T[n0:n1]), SIZES[family])
        sums = guarded(np.full((n1 - n0, TURNED_COLUMNS), CANARY))
        itself = np.arange(n1 - n0, dtype=np.int32)
        zero = guarded(np.zeros(TURNED_COLUMNS, np.float32))
        symbol = f"{list_of(family).symbol}_{level}"
        kernels.call(symbol, *map(guarded, lists), panels, zero, itself, sums, *blocks, 0, parts)
        assert (sums[:, parts * PANEL_WIDTH :] == CANARY).all()
        case.sums[n0:n1] = sums[:, :rows]
        case.write(kernels, level, (n0, n1), 0)
    assert np.array_equal(bits(case.c), dense_bits(kernels, case, level, x, s))


def forbid(part: Array) -> None:
    """Make whole pages inaccessible."""
    assert part.ctypes.data % mmap.PAGESIZE == part.nbytes % mmap.PAGESIZE == 0
    no_access = 0
    libc = ctypes.CDLL(None, use_errno=True)
    place, size = ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(part.nbytes)
    if libc.mprotect(place, size, no_access):
        raise OSError(ctypes.get_errno(), "mprotect")


@in_both
@of_all
def test_nan_and_infinity_stay_where_they_are(
    kernels: KernelLibrary, shape: Shape, level: str
) -> None:
    case, clean = Case(shape, 37, seed=2), Case(shape, 37, seed=2)
    places = {(0, 36): np.nan, (shape[0] - 1, 3): np.inf, (shape[0] // 2, 17): -np.inf}
    for at, value in places.items():
        case.sums[at] = value
    got = case.write_all(kernels, level, 64)
    np.testing.assert_allclose(got, case.expected(), rtol=1e-5, atol=1e-5)
    same = np.ones_like(got, bool)
    for i, j in places:
        same[j, i] = False
    other = clean.write_all(kernels, level, 64)
    assert np.array_equal(bits(got[same]), bits(other[same]))


@in_both
def test_large_results_are_stored_past_the_caches(kernels: KernelLibrary, level: str) -> None:
    shape = (320, "none", 0)
    rows = STREAM_BYTES // (shape[0] * 4) + 1
    memory = np.full(rows * shape[0] + 32, CANARY)
    aligned = -memory.ctypes.data % 64 // 4
    case = Case(shape, rows, seed=3)
    want = case.expected()
    for start in (aligned, aligned + 1):  # a multiple of 64 bytes, and only one of 4
        memory[:] = CANARY
        case.c = memory[start : start + want.size].reshape(want.shape)
        case.check(case.write_all(kernels, level, 320), want)
        assert (np.delete(memory, np.r_[start : start + want.size]) == CANARY).all()


@in_both
def test_rows_beyond_two_to_the_31_elements(kernels: KernelLibrary, level: str) -> None:
    rows = 2**31 // 16 + 9
    c = untouched(rows, 16)
    sums = normal(np.random.default_rng(1), 16, TURNED_COLUMNS)
    bias = np.zeros(PANEL_WIDTH, np.float32)
    kernels.call(f"{request_of((16, 'none', 0)).symbol}_{level}", sums, bias, c, 0, rows - 9)
    assert np.array_equal(c[rows - 9 :], sums[:, :9].T)


@pytest.mark.parametrize("n, activation", [(0, "none"), (4, "tanh")])
def test_what_no_kernel_computes_is_refused(n: int, activation: str) -> None:
    params = {"n": n, "activation": activation, "residual": 0}
    with pytest.raises(ValueError, match="no swrite_columns kernel"):
        swrite_columns.prim_func("symbol", params, CPU_LEVELS[0])
