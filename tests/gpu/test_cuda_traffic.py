"""What kernels of GPUs make memory do, counted on the emulator: as planned, whatever the shape."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from pitc.codegen.engines import mma, ring
from pitc.codegen.engines.attend_grad import GradientPieces
from pitc.codegen.families import attention_cuda, contract_cuda, lists_cuda, pack_cuda
from pitc.ir.attention_tile import GradientTile
from pitc.ir.cuda_target import CUDA_TILES, CudaTile
from pitc.ir.cuda_variants import GROUP, KINDS
from tests import cuda_traffic as planned
from tests.cuda_budgets import MOST, budget_of
from tests.cuda_emulator import Emulated
from tests.cuda_emulator.device import Launch
from tests.cuda_kernels import Product, emulated
from tests.detect_reference import Array, listed, parts_of, words_of
from tests.gpu import (
    test_cuda_attention,
    test_cuda_attention_grad,
    test_cuda_contract,
    test_cuda_elementwise,
    test_cuda_listed,
    test_detect_cuda,
)

ROWS = (128, 200)
"""Whole dense tiles; and a part of one."""
Plan = Mapping[str, float]


def over(launch: Launch, plan: Plan) -> list[str]:
    """What of a budget a launch exceeds; a plan that is too generous is one, too."""
    counts, sectors = launch.counts, sum(plan.values())
    touched = counts.load_sectors + counts.store_sectors
    found = []
    if counts.shared_wavefronts > MOST * counts.shared_ideal:
        found.append(f"{counts.shared_wavefronts} wavefronts, {counts.shared_ideal} needed")
    if not sectors <= MOST * touched <= MOST * MOST * sectors:
        found.append(f"{touched} sectors, {sectors:.0f} planned: {dict(plan)}")
    return found


def shapes(dtype: str, *, loose: bool = False, k: int = 512) -> list[tuple[int, int, int]]:
    """One of whole sectors, and one whose rows begin inside of some."""
    more, n = (8, 200) if dtype != "float32" else (4, 196)
    return [(ROWS[0], k, 256), (ROWS[1], k + more - loose, n - loose)]


def dense(tile: CudaTile, dtype: str, variant: str) -> None:
    """gather_gemm."""
    stored = variant if variant != "plain" else ""
    for shape in shapes(dtype, k=128):  # C counts for much
        test_cuda_contract.multiply(Product(*shape, dtype), tile, variant)
        (launch,) = test_cuda_contract.kernels(tile, dtype).launches
        assert over(launch, planned.dense(tile, dtype, *shape, stored)) == [], shape
        assert launch.shared_bytes == budget_of(f"gather_gemm_x_{tile.name}_cuda").shared_bytes


@pytest.mark.parametrize(("tile", "dtype"), test_cuda_contract.ALL, ids=test_cuda_contract.TILE_IDS)
def test_dense_tiles(tile: CudaTile, dtype: str) -> None:
    dense(tile, dtype, "plain")


@pytest.mark.parametrize("stored", ["kn", "nk"])
@pytest.mark.parametrize(("tile", "dtype"), test_cuda_contract.FULL[::2])
def test_stored_matrices(tile: CudaTile, dtype: str, stored: str) -> None:
    dense(tile, dtype, stored)


def strips(a: Array, height: int) -> tuple[Array, Array, Array]:
    """Values, k and starts of the lists of groups of rows."""
    groups = -(-len(a) // height)
    padded = np.zeros((groups * height, a.shape[1]), a.dtype)
    padded[: len(a)] = a
    pieces = padded.reshape(groups, height, -1)
    live = (pieces != 0).any(axis=1)
    group, ks = np.nonzero(live)
    values = np.ascontiguousarray(pieces.transpose(0, 2, 1)[group, ks])
    return values, ks.astype(np.int32), np.append(0, live.sum(axis=1).cumsum()).astype(np.int32)


@pytest.mark.parametrize(("tile", "dtype"), test_cuda_contract.LISTED)
def test_lists_of_k(tile: CudaTile, dtype: str) -> None:
    device = test_cuda_contract.listed_kernels(tile, dtype)
    for shape, density in zip(shapes(dtype), (0.02, 1), strict=True):
        product = Product(*shape, dtype)
        dead = np.random.default_rng(1).random(product.a.shape) >= density
        product.a[dead] = 0
        lists = strips(product.a[product.rows_a], tile.m)
        product.run(functools.partial(device.run, "plain", *lists, product.panels))
        (launch,) = device.launches
        assert over(launch, planned.listed_k(tile, dtype, *shape, len(lists[1]))) == [], shape
        assert launch.shared_bytes == budget_of(f"contract_tile_x_{tile.name}_cuda").shared_bytes


@pytest.mark.parametrize("number", range(len(test_cuda_listed.SQUARES)))
def test_squares(number: int) -> None:
    tile, dtype, loose = test_cuda_listed.SQUARES[number]
    device = test_cuda_listed.built_squares()
    for shape, density in zip(shapes(dtype, loose=bool(loose)), (0.005, 1), strict=True):
        rows, _, n = shape
        work = test_cuda_listed.Work.random(rows, shape, density, dtype)
        order = np.random.default_rng(rows).permutation(rows).astype(np.int32)
        lists = listed(work.a[order], "square", tile.m, 64)
        entries = lists.index.astype(np.int32), lists.starts.astype(np.int32)
        c, gate = np.zeros((rows, n), work.a.dtype), np.array([4, rows], np.int32)
        device.run(f"square{number}", work.a, order, *entries, *work.panels(), order, c, gate, 4, 3)
        (launch,) = device.launches
        plan = planned.squares(tile, dtype, *shape, len(lists.index), loose=bool(loose))
        assert over(launch, plan) == [], (shape, density)
        symbol = f"contract_square_x_{tile.name}_cuda"
        assert launch.shared_bytes == budget_of(symbol).shared_bytes


def block_lists(form: test_cuda_listed.Form, a: Array) -> planned.Lists:
    """How much a kernel over blocks of k goes through."""
    lists, groups = listed(a, "block", GROUP, form.width), -(-len(a) // GROUP)
    sizes = np.diff(lists.places).reshape(-1, groups)
    above = range(0, groups, form.rows // GROUP)
    pieces = sum((-(-sizes[:, g : g + form.rows // GROUP].sum(1) // 64)).sum() for g in above)
    return planned.Lists(len(lists.index), int(pieces), len(above))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("density", [0.003, 0.05, 1])
def test_blocks_of_k(number: int, density: float) -> None:
    """Rows that a list skips may lie anywhere."""
    form, device = test_cuda_listed.FORMS[number], test_cuda_listed.built_blocks()
    for rows, k, n in shapes(form.dtype, loose=bool(form.loose)):
        work = test_cuda_listed.Work.random(1, (rows, k, n), density, form.dtype)
        test_cuda_listed.run_block(device, form, work, 1)
        lists, loose = block_lists(form, work.a), bool(form.loose)
        plan = planned.blocks_of_k(form.tile, form.dtype, rows, k, n, lists, loose=loose)
        for name in ("residual", "bits"):
            if not getattr(form, name):
                del plan[name]
        (launch,) = device.launches
        assert over(launch, plan) == [], (rows, k, n)
        symbol = f"contract_block_x_{form.tile.name}_r{form.rows}_cuda"
        assert launch.shared_bytes == budget_of(symbol).shared_bytes


@pytest.mark.parametrize("number", range(4))
def test_detector_and_lists(number: int) -> None:
    form = test_detect_cuda.FORMS[number]
    device, loose, dtype = test_detect_cuda.built(form), bool(form.loose), form.dtype
    tag = "f32" if dtype == "float32" else "f16"
    for rows, k in ((128, 1024), (125, 1000 - loose)):
        a = np.ones((rows, k), test_detect_cuda.DTYPES[dtype])
        order, live = np.arange(rows, dtype=np.int32), np.array([rows], np.int32)
        words, parts = 2 * -(-k // 64), parts_of(rows, k)
        counted = 5 * parts + -(-rows // GROUP) * words * 32 // form.width
        bits, counts = np.zeros((rows, words), np.uint32), np.zeros(counted, np.int32)
        device.run("detect", words_of(a), order, live, bits, counts, 3)
        (launch,) = device.launches
        assert over(launch, planned.detector(dtype, rows, k, form.width, loose=loose)) == []
        assert launch.shared_bytes == budget_of("detect_f16_cuda").shared_bytes
        found = test_detect_cuda.detect(form, a, order, rows)
        for kind in (1, 2, 3):
            test_detect_cuda.make(form, a, order, found, kind)
            entries = len(listed(a, KINDS[kind], GROUP, form.width).index)
            size = {"tile": GROUP, "block": form.width, "square": 0}[KINDS[kind]]
            plan = planned.listing(dtype, rows, k, size * a.itemsize, entries, loose=loose)
            (launch,) = device.launches
            assert over(launch, plan) == [], KINDS[kind]
            assert launch.shared_bytes == budget_of(f"lists_{tag}_h32_cuda").shared_bytes


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("density", [0.0005, 0.003, 0.05, 0.5])
def test_lists_of_any_columns_meet_in_no_bank(number: int, height: int, density: float) -> None:
    form = test_detect_cuda.FORMS[number]
    a = np.random.default_rng(1).random((height, 1024)) < density
    a = a.astype(test_detect_cuda.DTYPES[form.dtype])
    device, order = test_detect_cuda.built(form), np.arange(height, dtype=np.int32)
    found = test_detect_cuda.detect(form, a, order, height)
    test_detect_cuda.make(form, a, order, found, 1, height=height)
    counts = device.launches[0].counts
    assert counts.shared_wavefronts == counts.shared_ideal
    assert counts.store_sectors <= MOST * counts.unique_written / 32 + 64


@pytest.mark.parametrize("kind", test_cuda_attention.SMALL, ids=test_cuda_attention.name)
def test_attention(kind: test_cuda_attention.Kind) -> None:
    engine, dtype, d, dv, bias = kind
    tile, pieces = attention_cuda.ENGINES[engine].plan(dtype, d, dv, bias=bool(bias))
    for queries, keys in ((256, 256), (250, 244)):
        some = test_cuda_attention.case(kind, [(queries, keys)], heads=1)
        for positions in some.positions:
            positions[:] = np.arange(len(positions))
        if bias:
            some.bias = some.normal(1, 1, 256, 256)
        test_cuda_attention.run(kind, some)
        (launch,) = test_cuda_attention.kernel(kind).launches
        plan = planned.attending(engine, tile.m, dtype, queries, keys, d, dv, bias=bool(bias))
        assert over(launch, plan) == [], (queries, keys)
        assert launch.shared_bytes == pieces.size


@pytest.mark.parametrize(
    "kind", test_cuda_attention_grad.COUNTED, ids=test_cuda_attention_grad.name
)
def test_gradients_of_attention(kind: test_cuda_attention_grad.Kind) -> None:
    d, dv, bias, _ = kind
    tile, device = GradientTile(d, dv), test_cuda_attention_grad.kernels(kind)
    for queries, keys in ((256, 256), (250, 244)):
        some = test_cuda_attention_grad.made(kind, [(queries, keys)])
        some.heads = 1
        for positions in some.positions:
            positions[:] = np.arange(len(positions))
        if bias:
            some.bias = some.normal(1, 1, 256, 256)
        plans = planned.attending_backwards(tile.m, queries, keys, d, dv, bias=bool(bias))
        for first, plan in zip((True, False), plans, strict=True):
            some.gradients(device, test_cuda_attention_grad.name(kind), first=first)
            (launch,) = device.launches
            assert over(launch, plan) == [], (queries, keys, first)
            pieces = GradientPieces.of(tile)
            assert launch.shared_bytes == pieces.size(numbers=not first)


@functools.cache
def copies() -> Emulated:
    """All kernels that pack and unpack rows."""
    made = {"pack": pack_cuda.pack_func, "unpack": pack_cuda.unpack_func}
    functions = [
        emit(f"{name}_b{size}_cuda", {"bytes": size})
        for size in pack_cuda.WORDS
        for name, emit in made.items()
    ]
    return Emulated(functions)


@pytest.mark.parametrize("size", pack_cuda.WORDS)
@pytest.mark.parametrize("words", [48, 37])
def test_rows_are_copied_once(size: int, words: int) -> None:
    x = np.zeros((96, words * size // min(size, 4)), f"int{8 * min(size, 4)}")
    packed, index = x[:64].copy(), np.random.default_rng(2).permutation(96)[:64].astype(np.int32)
    for name, first, last in (("pack", x, packed), ("unpack", packed, x)):
        copies().run(f"{name}_b{size}_cuda", first, index, last, 3)
        assert over(copies().launches[0], planned.moved(64, words * size, size)) == []


@pytest.mark.parametrize("name", ["comparisons", "flags"])
@pytest.mark.parametrize("n", [6000, 5999])
def test_elements_are_read_and_written_once(name: str, n: int) -> None:
    case = test_cuda_elementwise.FLAT[name]
    formula = test_cuda_elementwise.formula_of(case)
    given = test_cuda_elementwise.operands(formula, 1, n)
    test_cuda_elementwise.run(case, given, 1, n, 3)
    assert (
        over(test_cuda_elementwise.kernel(case).launches[0], planned.elementwise(formula, 1, n))
        == []
    )


@pytest.mark.parametrize(("name", "passes"), [("norm", 2), ("no sums", 1), ("a sum of flags", 1)])
@pytest.mark.parametrize(
    ("rows", "n", "warps"), [(24, 512, 1), (9, 1992, 4), (9, 1999, 4), (4, 4096, 8)]
)
def test_rows_are_read_once_for_all_levels_of_sums(
    name: str, passes: int, rows: int, n: int, warps: int
) -> None:
    case = test_cuda_elementwise.ROWS[name]
    formula = test_cuda_elementwise.formula_of(case)
    given = test_cuda_elementwise.operands(formula, rows, n)
    test_cuda_elementwise.run(case, given, rows, n, 3)
    (launch,) = test_cuda_elementwise.kernel(case).launches
    assert over(launch, planned.elementwise(formula, rows, n, warps, passes)) == []
    assert launch.shared_bytes <= budget_of("elementwise_x_cuda").shared_bytes


# Kernels that are wrong in one way: each is over one budget.
Twin = tuple[Any, str, Any]


def product_of(tile: CudaTile, **params: int | str) -> Callable[[], Launch]:
    """A product on a kernel that is built now."""

    def run() -> Launch:
        built = emulated(contract_cuda.gather_gemm, tile, x={**test_cuda_contract.PLAIN, **params})
        product = Product(128, 128, 256, str(params["dtype"]))
        product.run(lambda *last: built.run("x", product.a, product.rows_a, product.panels, *last))
        return built.launches[0]

    return run


HALF = product_of(CUDA_TILES[1], dtype="float16")
TWINS: dict[str, tuple[Twin, str]] = {
    "chunks_stay_where_they_are": (
        (ring.Piece, "at", lambda s, row, chunk: s.offset + row * s.row_bytes + chunk * 16),
        "wavefronts",
    ),
    "half_of_a_sector_is_stored": ((mma.Fragments, "_exchanged", mma.Fragments._own), "sectors"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_are_over_their_budget(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner, name, wrong), what = TWINS[twin]
    monkeypatch.setattr(owner, name, wrong)
    (found,) = over(HALF(), planned.dense(CUDA_TILES[1], "float16", 128, 128, 256))
    assert what in found


def test_a_smaller_tile_reads_more_than_is_planned() -> None:
    launch = product_of(CUDA_TILES[2], dtype="float16")()
    (found,) = over(launch, planned.dense(CUDA_TILES[1], "float16", 128, 128, 256))
    assert "sectors" in found and launch.shared_bytes > CUDA_TILES[1].shared_bytes


def test_sums_that_do_not_change_places_meet_in_banks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mma.Fragments, "_turned", mma.Fragments._own)
    form = test_cuda_listed.FORMS[2]
    device = Emulated([form.function("block2")])
    work = test_cuda_listed.Work.random(1, (128, 512, 256), 0.05, form.dtype)
    test_cuda_listed.run_block(device, form, work, 1)
    counts = device.launches[0].counts
    assert counts.shared_wavefronts > MOST * counts.shared_ideal


def test_columns_of_one_class_meet_in_banks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows of zeros in front of each shift all chunks by the same number of banks."""
    monkeypatch.setattr(
        lists_cuda._Lists,
        "_turned",
        lambda s, row, column: row * 256 + column + lists_cuda._TURNED // s._item,
    )
    form = test_detect_cuda.FORMS[0]
    a = np.ones((GROUP, 1024), np.float16)
    order = np.arange(GROUP, dtype=np.int32)
    monkeypatch.setitem(test_detect_cuda._built, form, Emulated(form.functions()))
    found = test_detect_cuda.detect(form, a, order, GROUP)
    test_detect_cuda.make(form, a, order, found, 1)
    counts = test_detect_cuda.built(form).launches[0].counts
    assert counts.shared_wavefronts > MOST * counts.shared_ideal
