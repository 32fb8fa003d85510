"""contract_row kernels against float64 and against the dense kernel's bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.call import KernelLibrary
from pitc.codegen.families import contract_row
from pitc.codegen.families.swrite import STREAM_BYTES
from pitc.codegen.targets import TARGETS, target_of
from pitc.ir.panels import PANEL_WIDTH, panel_count
from tests.codegen_kernels import LEVELS, Array, bits, library
from tests.contract_cases import CANARY, ContractCase, sparse

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
BLOCKS = (1, 3, 7)

in_both = pytest.mark.parametrize("level", LEVELS)
in_all = pytest.mark.parametrize("shape", SHAPES, ids=str)


def row_lists(a: Array, blocks: int) -> tuple[Array, Array, Array]:
    """(values, ks, starts): for each block of k, for each row, the elements that are not 0."""
    t, k = a.shape
    width = -(-k // blocks)
    rows, ks = np.nonzero(a)
    runs = ks // width * t + rows
    order = np.lexsort((ks, runs))
    starts = np.zeros(t * blocks + 1, np.int32)
    starts[1:] = np.cumsum(np.bincount(runs, minlength=t * blocks))
    return a[rows, ks][order], ks[order].astype(np.int32), starts


def built() -> KernelLibrary:
    """The library of all shapes, sparse and dense."""
    cases = [ContractCase(shape, np.zeros((0, shape[0]), np.float32), 0) for shape in SHAPES]
    families = ("contract_row", "gather_gemm")
    return library(*(case.request(family) for case in cases for family in families))


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return built()


def run(
    case: ContractCase,
    kernels: KernelLibrary,
    level: str,
    blocks: int,
    panels: list[tuple[int, int]] | None = None,
) -> Array:
    """The whole of C after a call for each panel range."""
    parts = [(blocks, *part) for part in panels or [(0, panel_count(case.n))]]
    return case.call(kernels, level, "contract_row", row_lists(case.a, blocks), parts)


def check(case: ContractCase, c: Array) -> None:
    """The listed rows are right, the others untouched."""
    want, tolerance = case.expected()
    assert (np.abs(c[case.rows_c] - want) <= tolerance).all()
    assert (np.delete(c, case.rows_c, axis=0) == CANARY).all()


@in_both
@in_all
def test_values_of_every_row_count_and_density(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    rng = np.random.default_rng(1)
    for rows, density in itertools.product((0, 1, 2, 7, 33), (0, 0.1, 1)):
        case = ContractCase(shape, sparse(rng, rows, shape[0], density), seed=rows)
        case.a[rows // 2 : rows // 2 + 2] = 0
        for blocks in BLOCKS:
            check(case, run(case, kernels, level, blocks))


@in_both
@in_all
def test_bits_are_those_of_the_dense_kernel_in_any_split_of_panels_and_of_k(
    kernels: KernelLibrary, shape: tuple, level: str
) -> None:
    rng = np.random.default_rng(3)
    case = ContractCase(shape, sparse(rng, 71, shape[0], 0.3), seed=2)
    dense = case.dense(kernels, level)
    count = panel_count(shape[1])
    alone = [(j, j + 1) for j in rng.permutation(count).tolist()]
    middle = count // 2
    uneven = [(middle, count), (0, middle)] if middle else [(0, count)]
    for blocks, parts in itertools.product(BLOCKS, (None, alone, uneven)):
        assert np.array_equal(bits(run(case, kernels, level, blocks, parts)), bits(dense))


@in_both
def test_a_panel_range_leaves_other_columns_alone(kernels: KernelLibrary, level: str) -> None:
    shape = (300, 200, "silu", 1)
    case = ContractCase(shape, sparse(np.random.default_rng(4), 9, shape[0], 0.2), seed=3)
    want, tolerance = case.expected()
    for j0, j1 in itertools.combinations(range(panel_count(shape[1]) + 1), 2):
        c = run(case, kernels, level, 2, [(j0, j1)])[case.rows_c]
        here = slice(j0 * PANEL_WIDTH, j1 * PANEL_WIDTH)
        assert (np.abs(c[:, here] - want[:, here]) <= tolerance[:, here]).all()
        assert (np.delete(c, np.r_[here][np.r_[here] < case.n], axis=1) == CANARY).all()


@in_both
@pytest.mark.parametrize("blocks", BLOCKS)
def test_nan_and_infinity_stay_in_their_rows(
    kernels: KernelLibrary, blocks: int, level: str
) -> None:
    for shape in ((66, 65, "none", 1), (64, 64, "gelu", 0)):
        case = ContractCase(shape, sparse(np.random.default_rng(1), 20, shape[0], 0.3), seed=4)
        clean = run(case, kernels, level, blocks)
        marked = {3: np.nan, 8: np.inf, 19: -np.inf}
        for row, value in marked.items():
            case.a[row, 33] = value
        got = run(case, kernels, level, blocks)[case.rows_c]
        want, tolerance = case.expected()
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
        finite = np.isfinite(want)
        assert (np.abs(got[finite] - want[finite]) <= tolerance[finite]).all()
        others = np.setdiff1d(np.arange(20), list(marked))
        assert np.array_equal(bits(got[others]), bits(clean[case.rows_c][others]))


@in_both
def test_denormals_count(kernels: KernelLibrary, level: str) -> None:
    a = np.full((5, 66), 1e-40, np.float32)
    case = ContractCase((66, 65, "none", 1), a, seed=5)
    case.bias[:] = 0
    case.added[:] = 0
    assert np.array_equal(bits(run(case, kernels, level, 3)), bits(case.dense(kernels, level)))
    assert (run(case, kernels, level, 3)[case.rows_c] != 0).any()


@in_both
@pytest.mark.parametrize("blocks", (1, 4))
def test_large_results_are_stored_past_the_caches(
    kernels: KernelLibrary, blocks: int, level: str
) -> None:
    rows = STREAM_BYTES // (STREAMED[1] * 4) + 1
    memory = np.full(rows * STREAMED[1] + 32, CANARY)
    first = -memory.ctypes.data % 64 // 4
    a = sparse(np.random.default_rng(2), 33, STREAMED[0], 0.2)
    case = ContractCase(STREAMED, a, seed=6, spare=rows - 33)
    want, tolerance = case.expected()
    for start in (first, first + 1):  # a multiple of 64 bytes, and only one of 4
        memory[:] = CANARY
        case.c = memory[start : start + rows * STREAMED[1]].reshape(rows, -1)
        symbol = case.symbol("contract_row", level)
        operands = case.operands(row_lists(a, blocks))
        kernels.call(symbol, *operands, blocks, 0, panel_count(case.n))
        assert (np.abs(case.c[case.rows_c] - want) <= tolerance).all()
        assert (memory != CANARY).sum() == (case.c[case.rows_c] != CANARY).sum()


@in_both
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_lists(level: str, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = sparse(rng, data.draw(st.integers(0, 90)), shape[0], data.draw(st.floats(0, 1)))
    a[:, rng.random(shape[0]) < data.draw(st.floats(0, 1))] = 0
    a[rng.random(len(a)) < data.draw(st.floats(0, 1))] = 0
    case = ContractCase(shape, a, seed=data.draw(st.integers(0, 99)))
    c = run(case, built(), level, data.draw(st.integers(1, 9)))
    check(case, c)
    assert np.array_equal(bits(c), bits(case.dense(built(), level)))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.level)
def test_register_tile_fits_and_is_no_wider_than_c(target) -> None:
    for n in (1, 64, 65, 300):
        tile = contract_row.variant({"n": n}, target).dense_tile
        accumulators = tile["n"] // target.vector_lanes
        assert tile["n"] % PANEL_WIDTH == 0
        assert tile["n"] <= panel_count(n) * PANEL_WIDTH
        assert accumulators + 2 <= target.vector_registers


@pytest.mark.parametrize("params", [{"k": 0}, {"n": 0}, {"activation": "tanh"}])
def test_impossible_kernels_are_refused(params: dict) -> None:
    good = {"k": 4, "n": 4, "activation": "none", "residual": 0}
    with pytest.raises(ValueError, match="no contraction kernel"):
        contract_row.prim_func("f", good | params, target_of("v4"))
