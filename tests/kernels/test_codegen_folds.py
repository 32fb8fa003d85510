"""Long sums: blocks of k, added up alike in every kernel, tile and call."""

import itertools

import numpy as np
import pytest

from pitc.codegen.call import KernelLibrary
from pitc.ir.panels import panel_count
from pitc.ir.variants import FOLD
from tests.codegen_kernels import NEWEST, bits
from tests.codegen_kernels import newest_library as library
from tests.contract_cases import LISTS, ContractCase, sparse

# around one block, and with several blocks of B
SHAPES = [
    (FOLD, 80, "none", 0),
    (FOLD + 1, 17, "relu", 1),
    (2 * FOLD, 130, "none", 1),
    (2 * FOLD + 40, 64, "gelu", 0),
    (8 * FOLD + 100, 80, "none", 1),
]
SIZES = {
    "contract_row": (1 << 20, FOLD, 192, 64, 16),
    "contract_tile": (4, 32),
    "contract_block": (16, 32, 64),
}
DENSITIES = (0, 0.003, 0.1, 1)

in_both = pytest.mark.parametrize("level", NEWEST)
of_all = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    cases = [ContractCase(shape, np.zeros((0, shape[0]), np.float32), 0) for shape in SHAPES]
    return library(*(case.request(family) for case in cases for family in (*SIZES, "gather_gemm")))


def folded(case: ContractCase) -> np.ndarray:
    """Sums as a kernel without epilogue has them: chains of `FOLD` products, added in order."""
    total = np.zeros((case.rows, case.n), np.float32)
    for start in range(0, case.k, FOLD):
        chain = np.zeros((case.rows, case.n), np.float32)
        for k in range(start, min(start + FOLD, case.k)):
            product = case.a[:, k, None].astype(np.float64) * case.w[k].astype(np.float64)
            chain = (chain + product).astype(np.float32)  # of 24 bits each: rounded once
        total = total + chain if start else chain
    return total


@in_both
def test_a_sum_is_one_of_blocks(kernels: KernelLibrary, level: str) -> None:
    """Bit by bit, but where float64 rounds what a fused multiply-add does not: rarely."""
    shape = (8 * FOLD + 100, 80, "none", 1)
    case = ContractCase(shape, sparse(np.random.default_rng(0), 9, shape[0], 1), seed=1)
    case.bias[:] = 0
    got = case.dense(kernels, level)[case.rows_c]
    same = got == folded(case) + case.added
    assert same.mean() > 0.97
    case.check(case.dense(kernels, level))


@in_both
@of_all
def test_every_list_gives_the_bits_of_the_dense_kernel(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    rng = np.random.default_rng(2)
    for family, rows, density in itertools.product(SIZES, (1, 7, 45), DENSITIES):
        a = sparse(rng, rows, shape[0], density)
        a[rows // 2, FOLD // 2 : FOLD + 1] = 0  # nothing of a row in a whole block
        if density < 1:
            a[0, : max(shape[0] - 3, 1)] = 0  # but at its end
        case = ContractCase(shape, a, seed=rows)
        dense = case.dense(kernels, level)
        case.check(dense)
        for size in SIZES[family]:
            got = case.run(kernels, level, family, size)
            np.testing.assert_array_equal(bits(got), bits(dense), err_msg=f"{family} {size}")


@in_both
@of_all
def test_rows_have_the_same_bits_among_any_others(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    """Many row tiles, few, and one take other ways through B."""
    whole = ContractCase(shape, sparse(np.random.default_rng(3), 130, shape[0], 1), seed=3)
    want = whole.dense(kernels, level)[whole.rows_c]
    for rows in (1, 2, 6, 7, 12, 36, 37, 97):
        part = ContractCase(shape, whole.a[:rows], seed=3)
        part.w, part.bias, part.added = whole.w, whole.bias, whole.added[:rows]
        got = part.dense(kernels, level)[part.rows_c]
        np.testing.assert_array_equal(bits(got), bits(want[:rows]))


@in_both
@of_all
def test_panels_one_by_one(kernels: KernelLibrary, shape: tuple, level: str) -> None:
    case = ContractCase(shape, sparse(np.random.default_rng(4), 70, shape[0], 0.2), seed=4)
    dense = case.dense(kernels, level)
    alone = [(j, j + 1) for j in reversed(range(panel_count(shape[1])))]
    for family, sizes in SIZES.items():
        got = case.run(kernels, level, family, sizes[-1], alone)
        np.testing.assert_array_equal(bits(got), bits(dense))


def test_blocks_hold_whole_micro_tiles() -> None:
    """Of all widths; else a block of k would end inside of one."""
    assert all(FOLD % width == 0 for width in (*SIZES["contract_block"], 16, 48, 64))
    assert set(SIZES) == set(LISTS)
