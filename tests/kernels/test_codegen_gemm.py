"""gather_gemm kernels against float64, on both CPU levels, with guarded memory."""

import itertools
import mmap

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.codegen.families.gather_gemm import k_block
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from pitc.ir.target import cpu_level_of
from pitc.ir.variants import FOLD
from tests.codegen_kernels import LEVELS, Array, bits, guarded, library, normal

# (k, n, activation, residual): 1, odd, full panels, tails of every kind, and k in several blocks
SHAPES = [
    (1, 1, "none", 0),
    (3, 5, "relu", 1),
    (16, 64, "gelu", 0),
    (64, 130, "gelu", 1),
    (33, 16, "none", 1),
    (50, 95, "relu", 0),
    (40, 66, "gelu_tanh", 0),
    (20, 33, "gelu_quick", 1),
    (128, 192, "silu", 0),
    (3100, 70, "gelu", 1),
    (6150, 64, "none", 0),
]
REQUESTS = tuple(
    KernelRequest.of("gather_gemm", k=k, n=n, activation=a, residual=r) for k, n, a, r in SHAPES
)
# Tails of every kind with bits; k in one stretch, in short stretches, in blocks
BITS = [(1, 1, "none", 0), (50, 95, "relu", 0), (200, 130, "relu", 0), (3100, 70, "relu", 1)]
BITS_REQUESTS = tuple(
    KernelRequest.of("gather_gemm", k=k, n=n, activation=a, residual=r, bits=1)
    for k, n, a, r in BITS
)
CANARY = np.float32(7.25)

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(*REQUESTS, *BITS_REQUESTS)


class Case:
    """Random operands of one kernel, and calls of it."""

    def __init__(self, shape: tuple[int, int, str, int], level: str, rows: int, seed: int) -> None:
        self.k, self.n, self.activation, self.residual = shape
        self.symbol = REQUESTS[SHAPES.index(shape)].symbol + f"_{level}"
        rng = np.random.default_rng(seed)
        self.rows = rows
        self.a = normal(rng, rows + 3, self.k)
        self.w = normal(rng, self.k, self.n) / np.float32(np.sqrt(self.k))
        self.bias = np.zeros(panel_count(self.n) * PANEL_WIDTH, np.float32)
        self.bias[: self.n] = normal(rng, self.n)
        self.rows_a = np.sort(rng.permutation(rows + 3)[:rows]).astype(np.int32)
        self.rows_c = np.sort(rng.permutation(rows + 5)[:rows]).astype(np.int32)
        self.added = normal(rng, rows, self.n)
        self.c = np.full((rows + 5, self.n), CANARY)

    def expected(self) -> tuple[Array, Array]:
        """Values and tolerances of the listed rows.

        The tolerance is 1e-6 of the sum of absolute products, and 4e-7 of the value for erf.
        """
        added = self.added if self.residual else None
        bias = self.bias[: self.n]
        with np.errstate(all="ignore"):
            want = reference.gather_gemm(self.a, self.rows_a, self.w, bias, added, self.activation)
            size = np.abs(self.a[self.rows_a]) @ np.abs(self.w) + np.abs(bias)
        return want, 1.2e-6 * size + 4e-7 * np.abs(want) + 1e-7

    def run(
        self, kernels: KernelLibrary, parts: list[tuple[int, int, int, int]] | None = None
    ) -> Array:
        """The whole of C after calling the kernel for each (i0, i1, j0, j1)."""
        flip = [bool(int(x)) for x in f"{self.k + self.n + self.rows:08b}"]
        operands = [self.a, self.rows_a, pack_panels(self.w), self.bias]
        operands += [self.added] if self.residual else []
        operands += [self.rows_c, self.c]
        memory = [guarded(x, at_end=not flip[i]) for i, x in enumerate(operands)]
        for part in parts or [(0, self.rows, 0, panel_count(self.n))]:
            kernels.call(self.symbol, *memory, *part)
        for before, after in zip(operands[:-1], memory[:-1], strict=True):
            assert np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
        return memory[-1].copy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_of_every_row_count(kernels: KernelLibrary, shape: tuple, level: str) -> None:
    counts = [*range(18), 19, 37, 40, 97, 203, 251]  # each lone row tile, few, many, two blocks
    counts = counts if shape[0] < 3000 else [0, *range(2, 8), 13, 24, 40, 99, 251]
    for rows in counts:
        case = Case(shape, level, rows, seed=rows)
        c = case.run(kernels)
        want, tolerance = case.expected()
        assert (np.abs(c[case.rows_c] - want) <= tolerance).all(), rows
        assert (np.delete(c, case.rows_c, axis=0) == CANARY).all(), rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_the_split(kernels: KernelLibrary, shape: tuple, level: str) -> None:
    rng = np.random.default_rng(5)
    panels = panel_count(shape[1])
    for rows in (1, 5, 40, 130):
        case = Case(shape, level, rows, seed=100 + rows)
        whole = case.run(kernels)
        for _ in range(3):
            cuts = [0, *np.sort(rng.integers(0, rows + 1, 4)).tolist(), rows]
            parts = [(a, b, j, j + 1) for a, b in itertools.pairwise(cuts) for j in range(panels)]
            rng.shuffle(parts)
            assert np.array_equal(bits(case.run(kernels, parts)), bits(whole))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nan_and_infinity_stay_in_their_rows(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    case = Case(shape, level, 20, seed=9)
    clean = case.run(kernels)
    marked = {case.rows_a[3]: np.nan, case.rows_a[8]: np.inf, case.rows_a[19]: -np.inf}
    for row, value in marked.items():
        case.a[row, case.k // 2] = value
    c = case.run(kernels)
    want, tolerance = case.expected()
    got = c[case.rows_c]
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    finite = np.isfinite(want)
    assert (np.abs(got[finite] - want[finite]) <= tolerance[finite]).all()
    others = np.isin(case.rows_a, list(marked), invert=True)
    assert np.array_equal(bits(got[others]), bits(clean[case.rows_c][others]))


@pytest.mark.parametrize("shape", BITS, ids=str)
def test_bits_say_which_stored_values_are_not_zero(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    k, n, _, residual = shape
    panels = panel_count(n)
    for rows in (0, 1, 2, 4, 6, 7, 8, 11, 15, 20, 101):
        rng = np.random.default_rng(rows)
        a, added = normal(rng, rows, k), normal(rng, rows, n)
        a[1::3] = 0
        a[3:5] = np.nan
        w = normal(rng, k, n)
        if n >= 3:  # +0, -0 and a denormal at the start of every row
            w[:, :3], added[:, :3] = 0, [0, -0.0, 1e-42]
        added[1::3] = np.where(rng.random(added[1::3].shape) < 0.5, added[1::3], -0.0)
        order = np.arange(rows, dtype=np.int32)
        rows_c = rng.permutation(rows + 2)[:rows].astype(np.int32)
        c = guarded(np.full((rows + 2, n), CANARY))
        words = guarded(np.full((rows, panels), -1, np.int64), at_end=bool(rows % 2))
        operands = [a, order, pack_panels(w), np.zeros(panels * PANEL_WIDTH, np.float32)]
        operands += [added] if residual else []
        symbol = BITS_REQUESTS[BITS.index(shape)].symbol
        half = rows // 2
        for part in [(0, half), (half, rows)]:
            for j in range(panels):
                outputs = (rows_c, c, words, *part, j, j + 1)
                kernels.call(f"{symbol}_{level}", *operands, *outputs)
        live = np.zeros((rows, panels * PANEL_WIDTH), bool)
        live[:, :n] = c[rows_c] != 0
        assert np.array_equal(np.packbits(live, axis=1, bitorder="little"), words.view(np.uint8))
        plain = np.full_like(c, CANARY)
        symbol = symbol.removesuffix("_bits")
        if symbol in {request.symbol for request in REQUESTS}:
            kernels.call(f"{symbol}_{level}", *operands, rows_c, plain, 0, rows, 0, panels)
            assert np.array_equal(bits(plain), bits(c)), rows


def test_rows_beyond_two_to_the_31_elements(kernels: KernelLibrary, level: str) -> None:
    shape = (128, 192, "silu", 0)
    case = Case(shape, level, 7, seed=1)
    many = 2**31 // 128 + 50
    memory = mmap.mmap(-1, many * 192 * 4, flags=mmap.MAP_PRIVATE | 0x4000)  # MAP_NORESERVE
    a = np.frombuffer(memory, np.float32, count=many * 128).reshape(many, 128)
    other = mmap.mmap(-1, many * 192 * 4, flags=mmap.MAP_PRIVATE | 0x4000)
    c = np.frombuffer(other, np.float32).reshape(many, 192)
    rows = np.arange(many - 7, many, dtype=np.int32)
    a[rows] = case.a[:7]
    operands = (a, rows, pack_panels(case.w), case.bias, rows, c)
    kernels.call(case.symbol, *operands, 0, 7, 0, panel_count(192))
    case.rows_a = np.arange(7, dtype=np.int32)
    want, tolerance = case.expected()
    assert (np.abs(c[rows] - want) <= tolerance).all()


@pytest.mark.parametrize("k", [1, 17, 768, 769, 1536, 1537, 3072, 4096, 6150, 50_000])
def test_k_blocks_cover_k_evenly(k: int, level: str) -> None:
    most = cpu_level_of(level).block_k
    block = k_block(k, most)
    count = -(-k // block)
    assert block == k if k <= most else block <= most and block % FOLD == 0
    assert 0 < k - (count - 1) * block <= block
