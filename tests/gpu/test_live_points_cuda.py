"""Live points of a mask on a device: emulated, against NumPy, to the bit."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.build.cuda_functions import cuda_functions
from pitc.ir.kernel import KernelRequest
from tests.cuda_budgets import budget_of
from tests.cuda_emulator import Emulated
from tests.detect_reference import Array

POINTS = 4096
REQUEST = KernelRequest.of("live_points", "bool", "cuda")
_built: list[Emulated] = []


def device() -> Emulated:
    """The kernels, built once."""
    if not _built:
        _built.append(Emulated(list(cuda_functions(REQUEST))))
    return _built[0]


def found(live: Array, parts: int = 1, blocks: int = 3) -> Array:
    """The rows that the kernels find; what lies behind them must not have been written."""
    emulated, mask = device(), live.view(np.int8)
    counts = emulated.empty((parts,), np.int32)
    if parts > 1:
        emulated.run("live_counts_cuda", mask, counts, blocks)
        np.testing.assert_array_equal(counts.numpy(), counted(live, parts))
    rows, gate = np.full(len(live), -7, np.int32), np.full(2, -7, np.int32)
    emulated.run("live_points_cuda", mask, counts, rows, gate, blocks)
    count = int(gate[1])
    assert gate[0] == 0 and not np.count_nonzero(rows[count:] != -7)
    return rows[:count]


def counted(live: Array, parts: int) -> Array:
    """Live points of each part of equally many turns."""
    each = -(-max(-(-len(live) // POINTS), 0) // parts) * POINTS
    return np.array([np.count_nonzero(live[p * each : (p + 1) * each]) for p in range(parts)])


def masks(n: int) -> Iterator[Array]:
    rng = np.random.default_rng(n)
    for density in (0.0, 0.02, 0.5, 1.0):
        yield rng.random(n) < density
    for place in {0, n // 2, n - 1} - {-1}:
        one = np.zeros(n, bool)
        one[place : place + 1] = True
        yield one


SIZES = [0, 1, 15, 16, 17, 31, 33, 511, 512, 513, 4095, 4096, 4097, 9001]


@pytest.mark.parametrize("n", SIZES)
def test_finds_live_points(n: int) -> None:
    for live in masks(n):
        for parts in {1, 2, 5}:
            np.testing.assert_array_equal(found(live, parts), np.flatnonzero(live))


@pytest.mark.parametrize(("n", "parts"), [(2**16 + 3, 7), (2**17 - 1, 300), (290 * POINTS, 290)])
def test_many_points(n: int, parts: int) -> None:
    """Also more parts than threads of a block, and some without a point."""
    live = np.random.default_rng(n).random(n) < 0.3
    np.testing.assert_array_equal(found(live, parts, blocks=5), np.flatnonzero(live))


@pytest.mark.parametrize("order", ["backwards", "shuffled"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_order_of_execution_changes_nothing(order: str, blocks: int) -> None:
    live = np.random.default_rng(1).random(13001) < 0.4
    with device().backwards() if order == "backwards" else device().shuffled(3):
        np.testing.assert_array_equal(found(live, 3, blocks), np.flatnonzero(live))
        np.testing.assert_array_equal(found(live, 1, blocks), np.flatnonzero(live))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_mask(data: st.DataObject) -> None:
    """A byte other than 0 lives, whatever it is."""
    n = data.draw(st.integers(0, 9000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    live = rng.integers(0, 256, n).astype(np.uint8)
    live[rng.random(n) < data.draw(st.sampled_from([0.1, 0.5, 0.99]))] = 0
    got = found(live, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5)))
    np.testing.assert_array_equal(got, np.flatnonzero(live))


@pytest.mark.parametrize("byte", [1, 2, 0x7F, 0x80, 0xFF])
def test_every_bit_of_a_byte_counts(byte: int) -> None:
    for place in (0, 3, 15, 31, 32):
        live = np.zeros(33, np.uint8)
        live[place] = byte
        np.testing.assert_array_equal(found(live), [place])


def test_reads_and_writes_neighbours() -> None:
    """The mask once in whole sectors; rows in as many sectors as they lie in, but for ends of
    words.
    """
    live = np.random.default_rng(2).random(8 * POINTS) < 0.5
    rows = found(live)
    (launch,) = device().launches
    used = launch.counts
    assert launch.shared_bytes == budget_of("live_points_cuda").shared_bytes
    assert used.load_sectors * 32 <= 1.02 * live.nbytes
    assert used.store_sectors * 32 <= 1.8 * rows.nbytes
    assert used.shared_wavefronts == used.shared_ideal and not used.atomics
