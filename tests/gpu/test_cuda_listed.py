"""Contractions over lists on a device, and the whole way from A to them: emulated, exact."""

import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pitc.codegen.families import choose_cuda, contract_cuda, detect_cuda, lists_cuda
from pitc.codegen.families.contract_block_cuda import contract_block, shared_bytes
from pitc.codegen.reference import gather_gemm
from pitc.ir.cuda_target import CUDA_ARCHS, CUDA_TILES, CudaTile
from pitc.ir.cuda_variants import (
    FEATURES,
    GATHERED_TILES,
    LISTED_TILES,
    SUMMED_ROWS,
    TILES_OF_KIND,
    block_count,
    features_of,
    line_of,
)
from pitc.ir.panels import pack_panels, panel_count
from pitc.ir.variants import CUDA_VARIANTS
from tests.cuda_emulator import DeviceMemory, Emulated
from tests.detect_reference import DTYPES, Array, detected, listed, parts_of, words_of

TILE = CUDA_TILES[2]


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel over blocks of k."""

    dtype: str
    engine: int = 0
    rows: int = 128
    k_bytes: int = 128
    activation: str = "none"
    residual: int = 0
    bits: int = 0
    loose: int = 0

    @property
    def tile(self) -> CudaTile:
        return replace(LISTED_TILES[self.engine], k_bytes=self.k_bytes)

    @property
    def width(self) -> int:
        return self.k_bytes // DTYPES[self.dtype].itemsize

    def function(self, symbol: str) -> Any:
        names = ("dtype", "activation", "residual", "bits", "loose")
        params = {name: getattr(self, name) for name in names}
        return contract_block(symbol, params, self.tile, self.rows)


FORMS = (
    Form("float16", activation="relu", residual=1, bits=1),
    Form("bfloat16", rows=256, loose=1, bits=1),
    Form("float32", rows=512),
    Form("float32", engine=1, residual=1),
    Form("float32", engine=1, rows=32, k_bytes=256),
)


@functools.cache
def built_blocks() -> Emulated:
    """Kernels over blocks of k, `block0` and so on."""
    return Emulated([form.function(f"block{i}") for i, form in enumerate(FORMS)])


@pytest.fixture(name="blocks", scope="module")
def _blocks() -> Emulated:
    return built_blocks()


@dataclass(frozen=True, slots=True)
class Work:
    """Operands of a contraction, small integers."""

    a: Array
    w: Array
    bias: Array
    residual: Array
    rows_c: Array

    @classmethod
    def random(cls, seed: int, sizes: tuple[int, int, int], density: float, dtype: str) -> "Work":
        rng = np.random.default_rng(seed)
        t, k, n = sizes
        kind = DTYPES[dtype]
        a = rng.integers(-4, 5, (t, k)) * (rng.random((t, k)) < density)
        w, bias, residual = (rng.integers(-4, 5, s) for s in ((k, n), (n,), (t, n)))
        rows_c = rng.permutation(t + 3)[:t].astype(np.int32)
        return cls(a.astype(kind), w, bias, residual.astype(kind), rows_c)

    def panels(self) -> tuple[Array, Array]:
        """B and bias as kernels take them."""
        n = self.w.shape[1]
        bias = np.zeros(panel_count(n) * 64, np.float32)
        bias[:n] = self.bias
        return pack_panels(self.w, self.a.dtype), bias

    def want(self, form: Form) -> Array:
        """C, rounded once."""
        rows = np.arange(len(self.a))
        residual = self.residual.astype(np.float64) if form.residual else None
        a, bias = self.a.astype(np.float64), self.bias.astype(np.float64)
        c = gather_gemm(a, rows, self.w, bias, residual, form.activation)
        return c.astype(self.a.dtype)


def run_block(blocks: Emulated, form: Form, work: Work, grid: int = 3, gate: int = 2) -> Array:
    """C of a kernel over blocks of k; its rows that nobody may write are checked."""
    t, n = len(work.a), work.w.shape[1]
    lists = listed(work.a, "block", 32, form.width)
    c = np.full((t + 3, n), 7, work.a.dtype)
    bits = np.full((t, 2 * panel_count(n)), 7, np.uint32)
    tail = [
        work.rows_c,
        words_of(c),
        *([bits] if form.bits else []),
        np.array([gate, t], np.int32),
        2,
        grid,
    ]
    residual = [words_of(work.residual)] if form.residual else []
    entries = words_of(lists.values), lists.index.astype(np.int32), lists.places.astype(np.int32)
    b, bias = work.panels()
    blocks.run(f"block{FORMS.index(form)}", *entries, words_of(b), bias, *residual, *tail)
    assert (np.delete(c, work.rows_c, 0) == 7).all()
    if form.bits and gate == 2:
        live = np.zeros((t, panel_count(n) * 64), bool)
        live[:, :n] = c[work.rows_c] != 0
        want = np.packbits(live, axis=1, bitorder="little").view(np.uint32)
        np.testing.assert_array_equal(bits, want.reshape(bits.shape))
    return c


SIZES = [(1, 64, 8), (33, 96, 72), (130, 304, 64), (300, 128, 136)]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.dtype}-{f.engine}-{f.rows}")
def test_blocks_of_k(blocks: Emulated, form: Form) -> None:
    for sizes in SIZES:
        for density in (0.0, 0.01, 0.2, 1.0):
            t, k, n = sizes
            odd = (t, k - 1, n - 1) if form.loose else sizes
            work = Work.random(t, odd, density, form.dtype)
            c = run_block(blocks, form, work, 1 if density == 0.2 else 3)
            np.testing.assert_array_equal(c[work.rows_c], work.want(form))


@pytest.mark.parametrize("sizes", [(0, 64, 64), (3, 0, 64), (5, 64, 0)], ids=str)
def test_blocks_of_nothing(blocks: Emulated, sizes: tuple[int, int, int]) -> None:
    work = Work.random(1, sizes, 1, "float32")
    c = run_block(blocks, FORMS[2], work)
    np.testing.assert_array_equal(c[work.rows_c], work.want(FORMS[2]))


def test_one_live_element(blocks: Emulated) -> None:
    form = FORMS[2]
    work = Work.random(1, (200, 256, 64), 0, form.dtype)
    for row, k in [(0, 0), (127, 63), (128, 64), (199, 255), (31, 100), (32, 31)]:
        work.a[row, k] = 3
        c = run_block(blocks, form, work)
        np.testing.assert_array_equal(c[work.rows_c], work.want(form))
        work.a[row, k] = 0


def test_who_is_not_chosen_leaves(blocks: Emulated) -> None:
    work = Work.random(1, (40, 64, 64), 1, "float16")
    c = run_block(blocks, FORMS[0], work, gate=1)
    assert (c == 7).all()
    assert blocks.launches[0].counts.load_sectors <= 4 * 3 * 4


@pytest.mark.parametrize("form", FORMS[2:4], ids=["tf32", "simt"])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(blocks: Emulated, form: Form) -> None:
    rng = np.random.default_rng(3)
    sizes = (150, 320, 64)
    work = Work.random(3, sizes, 0.2, form.dtype)
    work.a[...] = np.where(work.a == 0, 0, rng.standard_normal(work.a.shape))
    work.w[...] = rng.integers(-1000, 1000, work.w.shape)
    full = run_block(blocks, form, work)
    with blocks.backwards():
        np.testing.assert_array_equal(run_block(blocks, form, work, 1), full)
    with blocks.shuffled(1):
        np.testing.assert_array_equal(run_block(blocks, form, work, 5), full)
    others = np.arange(150) % 7 != 3
    work.a[others] = 0
    few = run_block(blocks, form, work)
    np.testing.assert_array_equal(few[work.rows_c[~others]], full[work.rows_c[~others]])


def test_shared_memory_is_enough_for_the_machine() -> None:
    sizes = [shared_bytes(LISTED_TILES[0], rows) for rows in SUMMED_ROWS]
    assert sizes == [82_688, 115_456, 180_992]
    assert sizes[1] <= CUDA_ARCHS["sm_80"].shared_bytes
    assert sizes[2] <= CUDA_ARCHS["sm_90"].shared_bytes


SQUARES = (
    (GATHERED_TILES[0], "float16", 0),
    (GATHERED_TILES[0], "float32", 1),
    (GATHERED_TILES[-1], "float32", 0),
    (GATHERED_TILES[-1], "float32", 1),
)
"""Steps of a square, and of half a one."""


@functools.cache
def built_squares() -> Emulated:
    """Kernels over squares, `square0` and so on."""
    functions = []
    for i, (tile, dtype, loose) in enumerate(SQUARES):
        params = {"dtype": dtype, "activation": "none", "residual": 0, "loose": loose}
        functions.append(contract_cuda.contract_square(f"square{i}", params, tile))
    return Emulated(functions)


@pytest.fixture(name="squares", scope="module")
def _squares() -> Emulated:
    return built_squares()


@pytest.mark.parametrize("number", range(len(SQUARES)))
def test_squares_of_rows_in_place(squares: Emulated, number: int) -> None:
    tile, dtype, loose = SQUARES[number]
    form = Form(dtype)
    for t, k, n in SIZES[:3]:
        for density in (0.0, 0.003, 1.0):
            odd = (t, k - 1, n - 1) if loose else (t, k, n)
            work = Work.random(t, odd, density, dtype)
            rows = np.random.default_rng(t).permutation(t).astype(np.int32)
            lists = listed(work.a[rows], "square", tile.m, form.width)
            c = np.full((t, odd[2]), 7, work.a.dtype)
            entries = lists.index.astype(np.int32), lists.starts.astype(np.int32)
            gate = np.array([4, t], np.int32)
            b, bias = work.panels()
            squares.run(f"square{number}", work.a, rows, *entries, b, bias, rows, c, gate, 4, 3)
            np.testing.assert_array_equal(c, work.want(form))


# The whole way: three launches that prepare, and every contraction that could be chosen.
STEPS = (1, 1.5, 4, 1.1)
"""Prices of a step of each."""
KERNELS = ("dense", "tile32", "block64", "square32")


@pytest.fixture(name="chain", scope="module", params=[0, 1], ids=["aligned", "loose"])
def _chain(request: pytest.FixtureRequest) -> tuple[Emulated, int]:
    loose: int = request.param
    params = {"dtype": "float16", "width": 64, "height": 32, "loose": loose}
    of_c = {"dtype": "float16", "activation": "relu", "residual": 0, "loose": loose}
    functions = [
        detect_cuda.detect("detect", params),
        choose_cuda.choose("choose", params),
        lists_cuda.lists("lists", params),
        contract_cuda.gather_gemm("dense", of_c, TILE),
        contract_cuda.contract_tile("tile32", of_c, GATHERED_TILES[0]),
        contract_block("block64", of_c, LISTED_TILES[0], 128),
        contract_cuda.contract_square("square32", of_c, GATHERED_TILES[0]),
    ]
    return Emulated(functions), loose


def seen_as(memory: DeviceMemory, *shape: int) -> DeviceMemory:
    """The first elements of device memory as a tensor; `memory` must outlive it."""
    seen = copy.copy(memory)
    seen.shape, seen._live = shape, False
    return seen


def line(name: str) -> tuple[int, ...]:
    """Of the table from which the device chooses."""
    tile = TILE if name == "dense" else TILES_OF_KIND[CUDA_VARIANTS[name].kind][0]
    return line_of(CUDA_VARIANTS[name], tile, "float16", 7, 128 if name == "block64" else 0)


def run_chain(emulated: Emulated, work: Work, rows: Array, forced: int) -> tuple[str, Array]:
    """Who wrote C, and C of the listed rows; memory that nobody has written must not be read."""
    (_, k), n, t = work.a.shape, work.w.shape[1], len(rows)
    groups, parts, words = -(-t // 32), parts_of(t, k), 2 * -(-k // 64)
    pieces = groups * words // 2

    def fresh(name: str, size: int, dtype: Any = np.int32) -> DeviceMemory:
        return emulated.empty((size,), dtype, name)

    table, live = np.array([line(name) for name in KERNELS], np.int32), np.array([t], np.int32)
    prices = np.zeros((4, len(FEATURES)), np.float32)
    prices[:, FEATURES.index("steps")] = STEPS
    bits, counts = (
        emulated.empty((t, words), np.uint32, "bits"),
        fresh("counts", 5 * parts + pieces),
    )
    gate, starts = fresh("gate", 2), fresh("starts", groups + 1)
    places, trace = fresh("places", max(parts, pieces) + 1), fresh("trace", 9, np.float32)
    strips, segments = groups * k, t * words // 2
    values = fresh("values", max(strips * 32, segments * 64), np.float16)
    index = fresh("index", max(strips, segments))
    emulated.run("detect", work.a, rows, live, bits, counts, 5)
    sizes = t, k, n, forced
    emulated.run("choose", counts, live, table, prices, gate, places, starts, trace, *sizes)
    emulated.run("lists", work.a, rows, bits, gate, table, places, values, index, 5)

    b, bias = work.panels()
    c = np.full((t, n), 7, np.float16)
    end = b, bias, np.arange(t, dtype=np.int32), c, gate
    groups_of = seen_as(index, strips), starts
    taken = {
        "dense": (work.a, rows),
        "tile32": (seen_as(values, strips, 32), *groups_of),
        "block64": (seen_as(values, segments, 64), seen_as(index, segments), places),
        "square32": (work.a, rows, *groups_of),
    }
    wrote, written = [], c.copy()
    for number, name in enumerate(KERNELS):
        c[...] = 7
        emulated.run(name, *taken[name], *end, number, 3)
        if (c != 7).any():
            wrote.append(name)
            written = c.copy()
    assert len(wrote) <= 1
    return "".join(wrote), written


@pytest.mark.parametrize("density", [0.0, 0.003, 0.1, 1.0])
def test_from_zeros_to_the_product(chain: tuple[Emulated, int], density: float) -> None:
    """Forced or chosen by prices, C is the same; the host has asked for nothing."""
    emulated, loose = chain
    work = Work.random(5, (73, 333 if loose else 328, 71 if loose else 72), density, "float16")
    rows = np.random.default_rng(1).permutation(73)[:67].astype(np.int32)
    want = gather_gemm(work.a, rows, work.w, work.bias, None, "relu")
    chosen = {}
    for forced in (-1, 0, 1, 2, 3):
        chosen[forced], c = run_chain(emulated, work, rows, forced)
        np.testing.assert_array_equal(c.astype(np.float64), want)
        assert forced < 0 or chosen[forced] == KERNELS[forced]
    totals = detected(work.a[rows], 64).totals(parts_of(67, work.a.shape[1]))
    k, n = work.w.shape
    amounts = [features_of(line(name), totals, (67, k, n), block_count(k, 64)) for name in KERNELS]
    steps = [amount[FEATURES.index("steps")] for amount in amounts]
    assert chosen[-1] == KERNELS[int(np.argmin(np.multiply(steps, STEPS)))]


@pytest.mark.parametrize("sizes", [(0, 64), (3, 0)], ids=str)
def test_a_chain_of_nothing(chain: tuple[Emulated, int], sizes: tuple[int, int]) -> None:
    emulated, _ = chain
    work = Work.random(1, (*sizes, 64), 1, "float16")
    rows = np.arange(sizes[0], dtype=np.int32)
    for forced in (-1, 1):
        wrote, c = run_chain(emulated, work, rows, forced)
        assert wrote == ("dense" if sizes[0] else "")
        np.testing.assert_array_equal(c, gather_gemm(work.a, rows, work.w, work.bias, None, "relu"))
