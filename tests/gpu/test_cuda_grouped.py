"""Grouped products on a device: lists of whole tiles, and tiles that name a matrix; emulated."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.build.cuda_functions import cuda_functions
from pitc.codegen.families.contract_cuda import gather_gemm
from pitc.ir.cuda_target import CudaTile
from pitc.ir.cuda_variants import offers_of
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from tests.cuda_budgets import budget_of
from tests.cuda_emulator import Emulated
from tests.cuda_kernels import CANARY, DTYPES, emulated, integers, words
from tests.detect_reference import Array

REQUEST = KernelRequest.of("group_rows", "int64", "cuda")


@cache
def lists() -> Emulated:
    return Emulated(list(cuda_functions(REQUEST)))


def listed(
    group: Array, groups: int, each: int, sharing: int, unit: int, blocks: int = 3
) -> tuple[Array, Array, Array]:
    """Rows of A and of C, and the group of each tile, as the kernels list them."""
    device, hit = lists(), min(groups, len(group))
    room = -(-len(group) * each // unit) * unit + hit * unit
    counts = np.full(groups, CANARY, np.int32)
    device.run("group_counts_cuda", group, counts, blocks)
    known = np.where(group < 0, group + groups, group)
    np.testing.assert_array_equal(counts, [np.count_nonzero(known == g) for g in range(groups)])
    rows_a, rows_c = (np.full(room, -7, np.int32) for _ in range(2))
    of_tile, gate = np.full(room // unit, -7, np.int32), np.full(2, -7, np.int32)
    operands = (group, counts, rows_a, rows_c, of_tile, gate, each, sharing, unit, blocks)
    device.run("group_rows_cuda", *operands)
    count = int(gate[1])
    assert gate[0] == 0 and count % unit == 0
    for x, end in ((rows_a, count), (rows_c, count), (of_tile, count // unit)):
        assert not np.count_nonzero(x[end:] != -7)
    return rows_a[:count], rows_c[:count], of_tile[: count // unit]


def expected(
    group: Array, groups: int, each: int, sharing: int, unit: int
) -> Iterator[tuple[int, Array, Array]]:
    """For each tile its group, and its rows."""
    known = np.where(group < 0, group + groups, group)
    for g in range(groups):
        points = np.flatnonzero(known == g)
        to = (points[:, None] * each + np.arange(each)).reshape(-1)
        rows = (points[:, None] // sharing * each + np.arange(each)).reshape(-1)
        for first in range(0, len(to), unit):
            filled = np.minimum(np.arange(first, first + unit), len(to) - 1)
            yield g, rows[filled], to[filled]


def check(group: Array, groups: int, each: int, sharing: int, unit: int, blocks: int = 3) -> None:
    rows_a, rows_c, of_tile = listed(group, groups, each, sharing, unit, blocks)
    tiles = list(expected(group, groups, each, sharing, unit))
    np.testing.assert_array_equal(of_tile, [g for g, *_ in tiles])
    for found, place in ((rows_a, 1), (rows_c, 2)):
        want = np.concatenate([tile[place] for tile in tiles]) if tiles else []
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("points", [0, 1, 31, 32, 33, 255, 256, 257, 700])
@pytest.mark.parametrize("groups", [1, 3, 300])
def test_rows_of_groups_stand_in_whole_tiles(points: int, groups: int) -> None:
    rng = np.random.default_rng([points, groups])
    check(rng.integers(-groups, groups, points), groups, 1, 2, 64)
    check(np.zeros(points, np.int64), groups, 2, 1, 16, blocks=1)


def test_what_is_no_group_is_listed_nowhere() -> None:
    group = np.array([0, 5, -6, 1 << 40, -1, 4, -(1 << 62)])
    check(group, 5, 1, 1, 4)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_groups(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 9))
    drawn = data.draw(st.lists(st.integers(-groups, groups - 1), max_size=90))
    each, sharing, unit = (data.draw(st.sampled_from([1, 2, 3, 16])) for _ in range(3))
    blocks = data.draw(st.integers(1, 5))
    check(np.array(drawn, np.int64), groups, each, sharing, unit, blocks)


TILES = {
    dtype: [o.tile for o in offers_of(dtype) if o.variant.family == "gather_gemm"]
    for dtype in ("float16", "float32")
}


@pytest.mark.parametrize(
    ("dtype", "tile"), [(d, t) for d, tiles in TILES.items() for t in tiles], ids=str
)
@pytest.mark.parametrize(("k", "n"), [(64, 128), (40, 72), (33, 5)])
def test_each_tile_is_multiplied_by_its_matrix(dtype: str, tile: CudaTile, k: int, n: int) -> None:
    rng, groups = np.random.default_rng([k, n]), 4
    group = rng.choice([0, 1, 3, -1], 150)  # nothing of the third one
    a = integers(rng, (150, k), dtype)
    w = [integers(rng, (k, n), dtype) for _ in range(groups)]
    rows_a, rows_c, of_tile = listed(group, groups, 1, 1, tile.m)
    params = {"dtype": dtype, "activation": "none", "residual": 0, "grouped": 1}
    device = emulated(gather_gemm, tile, kernel=params | {"loose": int(n % 8 > 0 or k % 8 > 0)})
    panels = np.concatenate([pack_panels(x, DTYPES[dtype]) for x in w])
    c = np.full((150, n), CANARY, DTYPES[dtype])
    bias = np.zeros(panel_count(n) * PANEL_WIDTH, np.float32)
    gate = np.array([0, len(rows_a)], np.int32)
    operands = (words(a), rows_a, words(panels), of_tile, bias, rows_c, words(c), gate, 0, 3)
    device.run("kernel", *operands)
    want = np.stack([x.astype(np.float64) @ w[g] for x, g in zip(a, group, strict=True)])
    np.testing.assert_array_equal(c.astype(np.float64), want)


def test_reads_and_writes_neighbours() -> None:
    """Groups in whole sectors, once for each group; each list once."""
    group = np.random.default_rng(2).integers(0, 8, 4096)
    rows_a, rows_c, of_tile = listed(group, 8, 1, 2, 64)
    (launch,) = lists().launches
    used = launch.counts
    assert launch.shared_bytes == budget_of("group_rows_cuda").shared_bytes
    assert used.load_sectors * 32 <= 1.05 * 8 * group.nbytes
    written = rows_a.nbytes + rows_c.nbytes + of_tile.nbytes
    assert used.store_sectors * 32 <= 9 * written  # one in eight points is of a group
    assert not used.atomics
