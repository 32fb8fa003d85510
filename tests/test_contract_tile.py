"""contract_tile and contract_block kernels against float64 and against the dense kernel's bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.call import KernelLibrary
from pitc.codegen.families.swrite import STREAM_BYTES
from pitc.ir.panels import panel_count
from tests.codegen_kernels import LEVELS, Array, bits, library
from tests.contract_cases import CANARY, LISTS, ContractCase, sparse

# (k, n, activation, residual): 1, odd, full panels, tails of every kind
SHAPES = [
    (1, 1, "none", 0),
    (3, 17, "relu", 1),
    (64, 64, "gelu", 0),
    (66, 65, "none", 1),
    (300, 200, "silu", 1),
    (47, 130, "gelu_quick", 0),
    (130, 80, "none", 0),
]
STREAMED = (130, 80, "none", 0)
SIZES = [("contract_tile", g) for g in (4, 8, 32, 64)]
SIZES += [("contract_block", w) for w in (16, 32, 64)]
FAMILIES = ("gather_gemm", "contract_tile", "contract_block")

in_both = pytest.mark.parametrize("level", LEVELS)
in_all = pytest.mark.parametrize(("family", "size"), SIZES)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return built()


def built() -> KernelLibrary:
    """The library of all shapes and families."""
    cases = [ContractCase(shape, np.zeros((0, shape[0]), np.float32), 0) for shape in SHAPES]
    return library(*(case.request(family) for case in cases for family in FAMILIES))


def check(case: ContractCase, c: Array) -> None:
    """The listed rows are right, the others untouched."""
    want, tolerance = case.expected()
    assert (np.abs(c[case.rows_c] - want) <= tolerance).all()
    assert (np.delete(c, case.rows_c, axis=0) == CANARY).all()


@in_both
@in_all
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_of_every_row_count_and_density(
    kernels: KernelLibrary, shape: tuple, family: str, size: int, level: str
) -> None:
    rng = np.random.default_rng(size)
    for rows, density in itertools.product((0, 1, 2, 7, 33, 64), (0, 0.1, 1)):
        case = ContractCase(shape, sparse(rng, rows, shape[0], density), seed=rows)
        check(case, case.run(kernels, level, family, size))


@in_both
@in_all
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_are_those_of_the_dense_kernel_however_the_panels_are_split(
    kernels: KernelLibrary, shape: tuple, family: str, size: int, level: str
) -> None:
    rng = np.random.default_rng(3)
    case = ContractCase(shape, sparse(rng, 71, shape[0], 0.3), seed=size)
    dense = case.dense(kernels, level)
    parts = [(j, j + 1) for j in range(panel_count(shape[1]))]
    rng.shuffle(parts)
    for panels in (None, parts):
        c = case.run(kernels, level, family, size, panels)
        assert np.array_equal(bits(c), bits(dense))


@in_both
@in_all
def test_nan_and_infinity_stay_in_their_rows(
    kernels: KernelLibrary, family: str, size: int, level: str
) -> None:
    for shape in ((66, 65, "none", 1), (64, 64, "gelu", 0)):
        case = ContractCase(shape, sparse(np.random.default_rng(1), 20, shape[0], 0.3), seed=4)
        clean = case.run(kernels, level, family, size)
        for row, value in {3: np.nan, 8: np.inf, 19: -np.inf}.items():
            case.a[row, 33] = value
        c = case.run(kernels, level, family, size)
        want, tolerance = case.expected()
        got = c[case.rows_c]
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
        finite = np.isfinite(want)
        assert (np.abs(got[finite] - want[finite]) <= tolerance[finite]).all()
        others = np.setdiff1d(np.arange(20), (3, 8, 19))
        assert np.array_equal(bits(got[others]), bits(clean[case.rows_c][others]))


@in_both
@in_all
def test_large_results_are_stored_past_the_caches(
    kernels: KernelLibrary, family: str, size: int, level: str
) -> None:
    rows = STREAM_BYTES // (STREAMED[1] * 4) + 1
    memory = np.full(rows * STREAMED[1] + 32, CANARY)
    first = -memory.ctypes.data % 64 // 4
    a = sparse(np.random.default_rng(2), 33, STREAMED[0], 0.2)
    case = ContractCase(STREAMED, a, seed=6, spare=rows - 33)
    want, tolerance = case.expected()
    lists = LISTS[family](a, size)
    for start in (first, first + 1):  # a multiple of 64 bytes, and only one of 4
        memory[:] = CANARY
        case.c = memory[start : start + rows * STREAMED[1]].reshape(rows, -1)
        panels = panel_count(case.n)
        kernels.call(case.symbol(family, level), *case.operands(lists), 0, panels)
        assert (np.abs(case.c[case.rows_c] - want) <= tolerance).all()
        assert (memory != CANARY).sum() == (case.c[case.rows_c] != CANARY).sum()


@in_both
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_lists(level: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    family, size = data.draw(st.sampled_from(SIZES))
    size = data.draw(st.integers(1, 20)) * 4 if family == "contract_tile" else size
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = sparse(rng, data.draw(st.integers(0, 90)), shape[0], data.draw(st.floats(0, 1)))
    a[:, rng.random(shape[0]) < data.draw(st.floats(0, 1))] = 0
    case = ContractCase(shape, a, seed=data.draw(st.integers(0, 99)))
    c = case.run(built(), level, family, size)
    check(case, c)
    assert np.array_equal(bits(c), bits(case.dense(built(), level)))
