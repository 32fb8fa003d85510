"""The CUDA detector: its source for every architecture, and what it computes, emulated."""

import shutil
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen import cuda, tir
from pitc.codegen.cuda import put
from pitc.codegen.families import detect_cuda
from tests.codegen_kernels import Array, bits, guarded, normal
from tests.cuda_emulator import Emulated, EmulationError, kernels

NVCC = shutil.which("nvcc")
STRIP = 32
DENORMAL = np.float32(1e-45)
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, DENORMAL, -DENORMAL], np.float32)
ZEROS = np.array([0.0, -0.0], np.float32)
KERNELS = 11

in_each = pytest.mark.parametrize("arch", cuda.ARCHITECTURES)


@pytest.fixture(name="detector", scope="module")
def _detector() -> Emulated:
    return Emulated(detect_cuda.prim_funcs(), cuda.ARCHITECTURES[0])


@dataclass(frozen=True, slots=True)
class Detected:
    """All that the detector writes."""

    bits: Array
    totals: Array
    row_starts: Array
    row_values: Array
    ks: Array
    block_starts: Array
    block_values: Array
    live: Array


def detect(detector: Emulated, a: Array, rows: Array, *, positive: bool = False) -> Detected:
    """Run all kernels as a runtime would, in memory that ends where the tensors end."""
    count, k = len(rows), a.shape[1]
    groups, blocks = -(-count // STRIP), -(-k // STRIP)

    def fresh(*shape: int, dtype: type = np.int32) -> Array:
        return guarded(np.full(shape, -7 if dtype is not np.uint32 else 7, dtype))

    def scan(counts: Array) -> Array:
        flat = counts.reshape(-1)
        chunks = max(1, -(-flat.size // detect_cuda.SCAN_CHUNK))
        starts = fresh(flat.size + 1)
        detector.run("detect_scan", flat, fresh(chunks), starts)
        return starts

    a, rows = guarded(a), guarded(rows)
    words = fresh(count, 2 * -(-k // 64), dtype=np.uint32)
    detector.run("detect_bits_positive" if positive else "detect_bits", a, rows, words)
    row_counts, segments, totals = fresh(count), fresh(blocks, groups), fresh(5)
    detector.run("detect_counts", words, row_counts, segments, fresh(groups, 5), totals)
    row_starts, places = scan(row_counts), scan(segments)

    entries = int(row_starts[-1])
    values, ks = fresh(entries, dtype=np.float32), fresh(entries)
    detector.run("detect_row_lists", a, rows, words, row_starts, values, ks)

    entries = int(places[-1])
    block_values, live = fresh(entries, STRIP, dtype=np.float32), fresh(entries)
    block_starts = fresh(blocks + 1)
    lists = (block_values, live, block_starts)
    detector.run("detect_block_lists", a, rows, words, places, *lists)
    return Detected(words, totals, row_starts, values, ks, block_starts, block_values, live)


def expected(a: Array, rows: Array, *, positive: bool = False) -> Detected:
    """The same from NumPy."""
    a = a[rows]
    count, k = a.shape
    mask = (a > 0) | np.isnan(a) if positive else a != 0
    words = np.zeros((count, -(-k // 64) * 64), bool)
    words[:, :k] = mask
    halves = np.packbits(words, axis=1, bitorder="little").view(np.uint32)

    groups, blocks = -(-count // STRIP), -(-k // STRIP)
    padded = np.zeros((groups * STRIP, blocks * STRIP), bool)
    padded[:count, :k] = mask
    strips = padded.reshape(groups, STRIP, blocks, STRIP)
    segments = strips.any(axis=3)
    micro_tiles = (strips.any(axis=1), segments, strips.any(axis=(1, 3)))
    totals = np.array([mask.any(axis=1).sum(), mask.sum(), *(m.sum() for m in micro_tiles)])

    listed, ks = np.nonzero(mask)
    live_by_block = segments.reshape(groups * STRIP, blocks)[:count].T
    block, live = np.nonzero(live_by_block)
    wide = np.zeros((count, blocks * STRIP), np.float32)
    wide[:, :k] = a
    return Detected(
        bits=halves,
        totals=totals,
        row_starts=np.append(0, mask.sum(axis=1).cumsum()),
        row_values=a[listed, ks],
        ks=ks,
        block_starts=np.append(0, live_by_block.sum(axis=1).cumsum()),
        block_values=wide.reshape(count, blocks, STRIP)[live, block],
        live=live,
    )


def same(got: Detected, want: Detected) -> None:
    """Equal to the bit."""
    for field in fields(Detected):
        a, b = getattr(got, field.name), getattr(want, field.name)
        assert a.shape == b.shape, field.name
        pair = (bits(a), bits(b)) if a.dtype == np.float32 else (a, b)
        np.testing.assert_array_equal(*pair, err_msg=field.name)


def matrix(rng: np.random.Generator, count: int, k: int, density: float) -> Array:
    """Zeros of both signs, and live elements among which every special value is likely."""
    a = normal(rng, count, k)
    special = rng.random(a.shape) < 0.3
    a[special] = rng.choice(SPECIAL, int(special.sum()))
    dead = rng.random(a.shape) >= density
    a[dead] = rng.choice(ZEROS, int(dead.sum()))
    return a


SHAPES = [(1, 1), (1, 64), (33, 31), (32, 32), (65, 97), (31, 300), (7, 1030)]


@pytest.mark.parametrize("positive", [False, True], ids=["not_zero", "positive"])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_detects(
    detector: Emulated, shape: tuple[int, int], density: float, positive: bool
) -> None:
    rng = np.random.default_rng([*shape, int(100 * density)])
    a = matrix(rng, *shape, density)
    rows = np.arange(shape[0], dtype=np.int32)
    same(detect(detector, a, rows, positive=positive), expected(a, rows, positive=positive))


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0)], ids=str)
def test_detects_nothing_in_nothing(detector: Emulated, shape: tuple[int, int]) -> None:
    a, rows = np.zeros(shape, np.float32), np.arange(shape[0], dtype=np.int32)
    same(detect(detector, a, rows), expected(a, rows))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_detects_in_chosen_rows(detector: Emulated, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stored, k = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 140))
    rows = rng.permutation(stored)[: data.draw(st.integers(0, stored))].astype(np.int32)
    a = matrix(rng, stored, k, data.draw(st.sampled_from([0.01, 0.1, 0.9])))
    same(detect(detector, a, rows), expected(a, rows))


def test_order_of_execution_changes_nothing(detector: Emulated) -> None:
    a = matrix(np.random.default_rng(5), 70, 130, 0.2)
    rows = np.arange(70, dtype=np.int32)
    with detector.backwards():
        got = detect(detector, a, rows)
    same(got, expected(a, rows))


@pytest.mark.parametrize("size", [1023, 1024, 1025, 33_000])
def test_scan_goes_on_from_chunk_to_chunk(detector: Emulated, size: int) -> None:
    counts = np.random.default_rng(size).integers(0, 1000, size, dtype=np.int32)
    sums = guarded(np.zeros(-(-size // detect_cuda.SCAN_CHUNK), np.int32))
    starts = guarded(np.zeros(size + 1, np.int32))
    detector.run("detect_scan", guarded(counts), sums, starts)
    np.testing.assert_array_equal(starts, np.append(0, counts.cumsum()))


@in_each
def test_source(detector: Emulated, arch: str) -> None:
    source = cuda.source(detect_cuda.prim_funcs(), arch)
    assert source == detector.source  # what was emulated
    assert "atomic" not in source
    bodies = {kernel.name: kernel.body for kernel in kernels(source)}
    assert len(bodies) == KERNELS
    assert "__ballot_sync" in bodies["detect_bits_kernel"]
    assert "__ballot_sync" in bodies["detect_block_lists_kernel_1"]
    assert "__popc" in bodies["detect_row_lists_kernel"]
    assert "__shfl_up_sync" in bodies["detect_scan_kernel_2"]


@in_each
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_nvcc_accepts_the_source(arch: str, tmp_path: Path) -> None:
    (tmp_path / "detect.cu").write_text(cuda.source(detect_cuda.prim_funcs(), arch))
    # TVM names what it then writes out once more.
    warnings = ["-Werror", "all-warnings", "--diag-suppress", "177"]
    options = [f"-arch={arch}", *warnings, "-cubin"]
    command = [str(NVCC), *options, "detect.cu", "-o", "detect.cubin"]
    subprocess.run(command, cwd=tmp_path, check=True)


def _parting() -> None:
    """A collective that only some lanes reach, while the others are at the next one."""
    out = tir.tensor("out", (tir.size(),), "int32")
    with cuda.warps(tir.int64(1)) as (_, lane):
        with tir.when(lane < 5):
            tir.assign(out, cuda.total(tir.T.int32(1)), 0)
        put(out, cuda.total(tir.T.int32(2)), lane, 0)


def test_emulator_refuses_lanes_that_part() -> None:
    emulated = Emulated([tir.prim_func("parting", _parting)], cuda.ARCHITECTURES[0])
    with pytest.raises(EmulationError, match="parting_kernel: threads part at a collective"):
        emulated.run("parting", np.zeros(1, np.int32))


def _first_lane() -> None:
    """Which lane takes the first number."""
    taken, out = (
        tir.tensor("taken", (tir.size(),), "int32"),
        tir.tensor("out", (tir.size(),), "int32"),
    )
    with cuda.warps(tir.int64(1)) as (_, lane):
        number = cuda.Register(
            "int32", tir.T.cuda.atomic_add(taken.access_ptr("rw"), tir.T.int32(1))
        )
        with tir.when(number.value == 0):
            tir.assign(out, tir.T.Cast("int32", lane), 0)


def test_emulator_turns_the_order_round() -> None:
    emulated = Emulated([tir.prim_func("first_lane", _first_lane)], cuda.ARCHITECTURES[0])
    out = np.zeros(1, np.int32)
    emulated.run("first_lane", np.zeros(1, np.int32), out)
    assert out == 0
    with emulated.backwards():
        emulated.run("first_lane", np.zeros(1, np.int32), out)
    assert out == cuda.WARP - 1
