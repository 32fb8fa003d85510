"""Kernels of contractions over listed micro-tiles against float64 and the dense kernel's bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.call import KernelLibrary
from pitc.codegen.families import contract_block, contract_row, contract_tile
from pitc.codegen.families.swrite import FAR_BYTES, STREAM_BYTES
from pitc.ir.panels import PANEL_WIDTH, panel_count
from pitc.ir.target import CPU_LEVELS, cpu_level_of
from tests.codegen_kernels import LEVELS, bits, library
from tests.contract_cases import CANARY, LISTS, ContractCase, sparse

# (k, n, activation, residual): 1, odd, one to four panels with tails of every kind
SHAPES = [
    (1, 1, "none", 0),
    (3, 17, "relu", 1),
    (64, 64, "gelu", 0),
    (66, 65, "none", 1),
    (300, 200, "silu", 1),
    (47, 130, "gelu_quick", 0),
    (31, 256, "gelu_tanh", 1),
    (130, 80, "none", 0),
]
STREAMED = (130, 80, "none", 0)
ALL = 1 << 20  # k in one block
#: k of a block, rows of a group, k of a block.
SIZES = {
    "contract_row": (16, 192, ALL),
    "contract_tile": (4, 8, 32, 64),
    "contract_block": (16, 32, 64),
}
RANDOM_SIZES = SIZES | {
    "contract_row": (16, 48, 64, 96, 128, 192, 384, ALL),
    "contract_tile": tuple(range(4, 84, 4)),
}

in_both = pytest.mark.parametrize("level", LEVELS)
in_all = pytest.mark.parametrize(
    ("family", "size"), [(family, size) for family, sizes in SIZES.items() for size in sizes]
)
of_all = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    """The library of all shapes, sparse and dense."""
    cases = [ContractCase(shape, np.zeros((0, shape[0]), np.float32), 0) for shape in SHAPES]
    return library(*(case.request(family) for case in cases for family in (*SIZES, "gather_gemm")))


@in_both
@in_all
@of_all
def test_values_of_every_row_count_and_density(
    kernels: KernelLibrary, shape: tuple, family: str, size: int, level: str
) -> None:
    rng = np.random.default_rng(size)
    for rows, density in itertools.product((0, 1, 2, 7, 33, 64), (0, 0.1, 1)):
        case = ContractCase(shape, sparse(rng, rows, shape[0], density), seed=rows)
        case.a[rows // 2 : rows // 2 + 2] = 0
        case.check(case.run(kernels, level, family, size))


@in_both
@in_all
@of_all
def test_bits_are_those_of_the_dense_kernel_however_the_panels_are_split(
    kernels: KernelLibrary, shape: tuple, family: str, size: int, level: str
) -> None:
    rng = np.random.default_rng(3)
    case = ContractCase(shape, sparse(rng, 71, shape[0], 0.3), seed=size)
    dense = case.dense(kernels, level)
    count = panel_count(shape[1])
    middle = count // 2
    alone = [(j, j + 1) for j in rng.permutation(count).tolist()]
    uneven = [(j0, j1) for j0, j1 in ((middle, count), (0, middle)) if j0 < j1]
    for panels in ([(0, count)], alone, uneven):
        assert np.array_equal(bits(case.run(kernels, level, family, size, panels)), bits(dense))


@in_both
@in_all
def test_a_panel_range_leaves_other_columns_alone(
    kernels: KernelLibrary, family: str, size: int, level: str
) -> None:
    shape = (300, 200, "silu", 1)
    case = ContractCase(shape, sparse(np.random.default_rng(4), 9, shape[0], 0.2), seed=3)
    want, tolerance = case.expected()
    for j0, j1 in itertools.combinations(range(panel_count(case.n) + 1), 2):
        c = case.run(kernels, level, family, size, [(j0, j1)])[case.rows_c]
        here = np.arange(j0 * PANEL_WIDTH, min(j1 * PANEL_WIDTH, case.n))
        assert (np.abs(c - want) <= tolerance)[:, here].all()
        assert (np.delete(c, here, axis=1) == CANARY).all()


@in_both
@in_all
def test_nan_and_infinity_stay_in_their_rows(
    kernels: KernelLibrary, family: str, size: int, level: str
) -> None:
    for shape in ((66, 65, "none", 1), (64, 64, "gelu", 0)):
        case = ContractCase(shape, sparse(np.random.default_rng(1), 20, shape[0], 0.3), seed=4)
        clean = case.run(kernels, level, family, size)
        marked = {3: np.nan, 8: np.inf, 19: -np.inf}
        for row, value in marked.items():
            case.a[row, 33] = value
        got = case.run(kernels, level, family, size)[case.rows_c]
        want, tolerance = case.expected()
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
        finite = np.isfinite(want)
        assert (np.abs(got[finite] - want[finite]) <= tolerance[finite]).all()
        others = np.setdiff1d(np.arange(20), list(marked))
        assert np.array_equal(bits(got[others]), bits(clean[case.rows_c][others]))


RELU_SHAPES = [(66, 65, "none", 1), (31, 256, "gelu_tanh", 0), (400, 70, "none", 0)]


@pytest.fixture(name="relu_kernels", scope="module")
def _relu_kernels() -> KernelLibrary:
    """Dense kernels to which numbers of A below 0 are 0, and the others."""
    found = []
    for shape, flags in itertools.product(RELU_SHAPES, ({}, {"input_relu": 1})):
        case = ContractCase(shape, np.zeros((0, shape[0]), np.float32), 0, **flags)
        found.append(case.request("gather_gemm"))
    return library(*found)


@in_both
@pytest.mark.parametrize("shape", RELU_SHAPES, ids=str)
def test_numbers_below_zero_count_as_zero(
    relu_kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    """The bits of the product of A's ReLU."""
    for rows in (1, 2, 3, 4, 5, 6, 9, 37, 251):
        a = sparse(np.random.default_rng(rows), rows, shape[0], 0.6)
        a[rows // 2, [3, 4, 5, 6]] = np.nan, -np.inf, -0.0, -np.nan
        relu = np.where(a < 0, np.float32(0), a)
        want = ContractCase(shape, relu, 3).dense(relu_kernels, level)
        case = ContractCase(shape, a, 3, input_relu=1)
        assert np.isnan(want[case.rows_c[rows // 2]]).all()
        assert np.array_equal(bits(case.dense(relu_kernels, level)), bits(want)), rows


@in_both
@in_all
def test_denormals_count(kernels: KernelLibrary, family: str, size: int, level: str) -> None:
    case = ContractCase((66, 65, "none", 1), np.full((5, 66), 1e-40, np.float32), seed=5)
    case.bias[:] = 0
    case.added[:] = 0
    c = case.run(kernels, level, family, size)
    assert np.array_equal(bits(c), bits(case.dense(kernels, level)))
    assert (c[case.rows_c] != 0).any()


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
    (part,) = case.parts(family, size)
    for start in (first, first + 1):  # a multiple of 64 bytes, and only one of 4
        memory[:] = CANARY
        case.c = memory[start : start + rows * STREAMED[1]].reshape(rows, -1)
        operands = case.operands(LISTS[family](a, size))
        kernels.call(case.symbol(family, level), *operands, *part)
        assert (np.abs(case.c[case.rows_c] - want) <= tolerance).all()
        assert (memory != CANARY).sum() == (case.c[case.rows_c] != CANARY).sum()


@in_both
@pytest.mark.parametrize("shape", [(66, 65, "none", 1), (31, 256, "gelu_tanh", 1)], ids=str)
def test_results_whose_lines_are_asked_for(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    spare = FAR_BYTES // (shape[1] * 4) + 1
    for rows in (0, 1, contract_tile.ASKED_ROWS, contract_tile.ASKED_ROWS + 37):
        a = sparse(np.random.default_rng(rows), rows, shape[0], 0.2)
        case = ContractCase(shape, a, seed=7, spare=spare)
        c = case.run(kernels, level, "contract_tile", 8)
        assert np.array_equal(bits(c), bits(case.dense(kernels, level)))


@pytest.mark.parametrize("target", CPU_LEVELS, ids=lambda t: t.level)
@pytest.mark.parametrize(("n", "lines"), [(256, 4), (260, 5)])
def test_lines_of_a_strip_are_asked_for(target, n: int, lines: int) -> None:
    params = {"k": 31, "n": n, "activation": "none", "residual": 0}
    kernel = contract_tile.prim_func("kernel", params, target).script()
    assert kernel.count("prefetch(T.address_of(c[") == lines * target.listed_tile[0]


@in_both
@pytest.mark.parametrize("family", SIZES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_lists(kernels: KernelLibrary, family: str, level: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    size = data.draw(st.sampled_from(RANDOM_SIZES[family]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = sparse(rng, data.draw(st.integers(0, 90)), shape[0], data.draw(st.floats(0, 1)))
    a[:, rng.random(shape[0]) < data.draw(st.floats(0, 1))] = 0
    a[rng.random(len(a)) < data.draw(st.floats(0, 1))] = 0
    case = ContractCase(shape, a, seed=data.draw(st.integers(0, 99)))
    c = case.run(kernels, level, family, size)
    case.check(c)
    assert np.array_equal(bits(c), bits(case.dense(kernels, level)))


@pytest.mark.parametrize("target", CPU_LEVELS, ids=lambda t: t.level)
def test_register_tile_fits_and_is_no_wider_than_c(target) -> None:
    for n in (1, 64, 65, 300):
        panels = contract_row.panels_at_once(n, target)
        assert 1 <= panels <= panel_count(n)
        assert panels * PANEL_WIDTH // target.vector_lanes + 2 <= target.vector_registers


@pytest.mark.parametrize("family", [contract_row, contract_tile, contract_block])
@pytest.mark.parametrize("params", [{"k": 0}, {"n": 0}, {"activation": "tanh"}])
def test_impossible_kernels_are_refused(family, params: dict) -> None:
    good = {"k": 4, "n": 4, "activation": "none", "residual": 0}
    with pytest.raises(ValueError, match="no contraction kernel"):
        family.prim_func("f", good | params, cpu_level_of("v4"))
