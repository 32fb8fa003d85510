"""Detection, choice and lists on a device: emulated, against NumPy, to the bit."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitc.codegen.build.cuda_module import cuda_module
from pitc.codegen.families import choose_cuda, detect_cuda, lists_cuda
from pitc.ir.cuda_target import CUDA_TILES
from pitc.ir.cuda_variants import (
    COLUMNS,
    FEATURES,
    GATHERED_TILES,
    KINDS,
    LISTED_TILES,
    block_count,
    features_of,
    line_of,
)
from pitc.ir.variants import CUDA_VARIANTS
from tests.cuda_emulator import Emulated
from tests.detect_reference import (
    DTYPES,
    Array,
    Detected,
    Lists,
    detected,
    listed,
    parts_of,
    words_of,
)

NVCC = shutil.which("nvcc")
ZEROS = [0.0, -0.0]
DENORMALS = {"float16": 6e-8, "bfloat16": 1e-40, "float32": 1e-45}
TILE, BLOCK = CUDA_TILES[2], LISTED_TILES[0]


@dataclass(frozen=True, slots=True)
class Form:
    """Which kernels."""

    dtype: str
    width: int
    loose: int = 0

    def functions(self) -> list[object]:
        params = {"dtype": self.dtype, "width": self.width, "loose": self.loose}
        lists = [
            lists_cuda.lists(f"lists{height}", {**params, "height": height}) for height in (16, 32)
        ]
        return [
            detect_cuda.detect("detect", params),
            detect_cuda.detect("count", {**params, "dtype": "bits"}),
            choose_cuda.choose("choose", {"width": self.width}),
            *lists,
        ]

    def table(self) -> list[tuple[int, ...]]:
        """Lines of one variant of each kind."""
        names = ("dense", "tile32", f"block{self.width}", "square32")
        tiles = (TILE, GATHERED_TILES[0], BLOCK, GATHERED_TILES[0])
        rows = (0, 0, 128, 0)
        return [
            line_of(CUDA_VARIANTS[name], tile, self.dtype, 7, r)
            for name, tile, r in zip(names, tiles, rows, strict=True)
        ]


FORMS = (
    Form("float16", 64),
    Form("float32", 32),
    Form("bfloat16", 64, 1),
    Form("float32", 64, 1),
    Form("float16", 32, 1),
)
_built: dict[Form, Emulated] = {}


def built(form: Form) -> Emulated:
    """The kernels of a form."""
    if form not in _built:
        _built[form] = Emulated(form.functions())
    return _built[form]


@pytest.fixture(name="form", params=FORMS, ids=lambda f: f"{f.dtype}-{f.width}-{f.loose}")
def _form(request: pytest.FixtureRequest) -> Iterator[Form]:
    form: Form = request.param
    built(form)
    yield form


def matrix(rng: np.random.Generator, form: Form, count: int, k: int, density: float) -> Array:
    """Zeros of both signs, and live elements among which every special value is likely."""
    a = rng.standard_normal((count, k)).astype(np.float32)
    tiny = DENORMALS[form.dtype]
    special = rng.random(a.shape) < 0.3
    a[special] = rng.choice([np.nan, np.inf, -np.inf, tiny, -tiny], int(special.sum()))
    dead = rng.random(a.shape) >= density
    a[dead] = rng.choice(ZEROS, int(dead.sum()))
    return a.astype(DTYPES[form.dtype])


def detect(form: Form, a: Array, rows: Array, count: int, blocks: int = 3) -> Detected:
    """Run the detector."""
    emulated = built(form)
    k, live = a.shape[1], np.array([count], np.int32)
    words = 2 * -(-k // 64)
    groups = -(-len(rows) // 32)
    bits = emulated.empty((len(rows), words), np.uint32)
    counted = 5 * parts_of(len(rows), k) + groups * words * 32 // form.width
    counts, again = (emulated.empty((counted,), np.int32) for _ in range(2))
    emulated.run("detect", words_of(a), rows, live, bits, counts, blocks)
    emulated.run("count", live, bits, again, blocks)
    np.testing.assert_array_equal(again.numpy(), counts.numpy())
    return Detected(bits.numpy(), counts.numpy())


def make(
    form: Form, a: Array, rows: Array, found: Detected, number: int, *, height: int = 32
) -> tuple[Lists, Array]:
    """Choose a variant by force, and make its lists in memory that nobody has written."""
    emulated = built(form)
    count, k = len(rows), a.shape[1]
    table = np.array(form.table(), np.int32)
    groups, parts = -(-count // 32), parts_of(count, k)
    lists = max(parts, groups * 2 * -(-k // 64) * 32 // form.width)
    gate, starts = emulated.empty((2,), np.int32), emulated.empty((groups + 1,), np.int32)
    places = emulated.empty((lists + 1,), np.int32)
    trace = np.zeros(9, np.float32)
    prices = np.ones((4, len(FEATURES)), np.float32)
    live = np.array([count], np.int32)
    sizes = (count, k, 300, number)
    emulated.run("choose", found.counts, live, table, prices, gate, places, starts, trace, *sizes)
    assert list(gate.numpy()) == [number if parts else 0, count]
    kind = KINDS[number]
    want = listed(a[rows], kind, height, form.width) if number else None
    size, z = (want.values.size, want.index.size) if want else (64, 64)
    values = emulated.empty((size,), words_of(a).dtype)
    index = emulated.empty((z,), np.int32)
    bits = np.array(found.bits)
    emulated.run(f"lists{height}", words_of(a), rows, bits, gate, table, places, values, index, 4)
    none = np.zeros(0, np.int32)
    if want is None or not parts:
        return Lists(none, none, none, none), trace
    shape = want.values.shape
    begin = starts.numpy() if want.starts.size else none
    first = places.numpy()[: len(want.places)]
    return Lists(first, begin, values.numpy().view(a.dtype).reshape(shape), index.numpy()), trace


def patterns(x: Array) -> Array:
    """What can be compared to the bit; zeros have no sign, as no list keeps it."""
    if x.dtype.kind in "iu":
        return x
    wide = np.asarray(x.astype(np.float32) if x.dtype.itemsize == 2 else x)
    return np.where(wide == 0, np.float32(0), wide).view(np.uint32)


def same(got: Detected | Lists, want: Detected | Lists) -> None:
    """Equal to the bit."""
    for field in fields(want):
        a, b = getattr(got, field.name), getattr(want, field.name)
        assert a.shape == b.shape, field.name
        np.testing.assert_array_equal(patterns(a), patterns(b), err_msg=field.name)


SHAPES = [(1, 8), (33, 40), (65, 96), (31, 304), (7, 1032)]
LOOSE = [(1, 1), (33, 31), (65, 97), (32, 300)]


@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_detects_and_lists(form: Form, density: float) -> None:
    for shape in LOOSE if form.loose else SHAPES:
        rng = np.random.default_rng([*shape, int(100 * density)])
        a = matrix(rng, form, *shape, density)
        rows = rng.permutation(shape[0]).astype(np.int32)
        found = detect(form, a, rows, len(rows))
        same(found, detected(a[rows], form.width))
        for number in range(1, 4):
            got, _ = make(form, a, rows, found, number)
            same(got, listed(a[rows], KINDS[number], 32, form.width))


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0)], ids=str)
def test_detects_nothing_in_nothing(form: Form, shape: tuple[int, int]) -> None:
    a, rows = np.zeros(shape, DTYPES[form.dtype]), np.arange(shape[0], dtype=np.int32)
    found = detect(form, a, rows, len(rows))
    same(found, detected(a, form.width))
    got, _ = make(form, a, rows, found, 1)
    assert not got.index.size


@pytest.mark.parametrize("count", [1, 9, 16])
def test_few_rows_make_a_group_of_16(form: Form, count: int) -> None:
    rng = np.random.default_rng(count)
    a = matrix(rng, form, count, 261 if form.loose else 264, 0.1)
    rows = np.arange(count, dtype=np.int32)
    found = detect(form, a, rows, count)
    got, _ = make(form, a, rows, found, 1, height=16)
    same(got, listed(a, "tile", 16, form.width))


def test_one_live_element_in_any_place(form: Form) -> None:
    """A bit that a neighbour's shift loses would be seen here."""
    k = 259 if form.loose else 264
    a = np.zeros((34, k), DTYPES[form.dtype])
    rows = np.arange(34, dtype=np.int32)
    for row, column in [(0, 0), (31, 255), (32, 256), (33, k - 1), (5, 63), (5, 64), (17, 127)]:
        a[row, column] = 1
        found = detect(form, a, rows, 34)
        same(found, detected(a, form.width))
        got, _ = make(form, a, rows, found, 2)
        same(got, listed(a, "block", 32, form.width))
        a[row, column] = 0


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_detects_in_chosen_rows(data: st.DataObject) -> None:
    form = FORMS[3]
    built(form)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stored, k = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 140))
    rows = rng.permutation(stored)[: data.draw(st.integers(0, stored))].astype(np.int32)
    a = matrix(rng, form, stored, k, data.draw(st.sampled_from([0.01, 0.1, 0.9])))
    found = detect(form, a, rows, len(rows))
    same(found, detected(a[rows], form.width))
    number = data.draw(st.integers(1, 3))
    got, _ = make(form, a, rows, found, number)
    if len(rows):
        same(got, listed(a[rows], KINDS[number], 32, form.width))


def test_how_many_rows_live_is_known_on_the_device_only(form: Form) -> None:
    """Rows behind them are not read, and count as zeros."""
    rng = np.random.default_rng(4)
    a = matrix(rng, form, 70, 80, 0.3)
    rows = np.full(70, 1 << 30, np.int32)
    rows[:37] = rng.permutation(70)[:37]
    found = detect(form, a, rows, 37)
    alone = np.zeros_like(a)
    alone[:37] = a[rows[:37]]
    want = detected(alone, form.width)
    np.testing.assert_array_equal(found.counts, want.counts)
    np.testing.assert_array_equal(found.bits[:37], want.bits[:37])


@pytest.mark.parametrize("order", ["backwards", "shuffled"])
def test_order_of_execution_changes_nothing(form: Form, order: str) -> None:
    emulated = built(form)
    rng = np.random.default_rng(5)
    a = matrix(rng, form, 70, 328, 0.2)
    rows = np.arange(70, dtype=np.int32)
    with emulated.backwards() if order == "backwards" else emulated.shuffled(3):
        found = detect(form, a, rows, 70, blocks=5)
        same(found, detected(a, form.width))
        for number in range(1, 4):
            same(make(form, a, rows, found, number)[0], listed(a, KINDS[number], 32, form.width))


def choice(
    table: list[tuple[int, ...]], counts: Mapping[str, int], sizes: tuple[int, int, int], width: int
) -> Array:
    """Features of each line."""
    blocks = block_count(sizes[1], width)
    return np.array([features_of(line, counts, sizes, blocks) for line in table])


@pytest.mark.parametrize("rows", [1, 40, 4100])
def test_chooses_the_cheapest(rows: int) -> None:
    """Counts of any size, of which the lists' places go on from warp to warp."""
    form = FORMS[0]
    emulated = built(form)
    rng = np.random.default_rng(rows)
    k, n = 3000, 520
    parts, groups = parts_of(rows, k), -(-rows // 32)
    pieces = rng.integers(0, 32, 2 * -(-k // 64) * 32 // 64 * groups)
    counts = np.append(rng.integers(0, 9000, 5 * parts), pieces).astype(np.int32)
    totals = Detected(np.zeros(0), counts).totals(parts)
    table = form.table()
    amounts = choice(table, totals, (rows, k, n), form.width)
    chosen = set()
    for trial in range(12):
        prices = (rng.random((4, len(FEATURES))) ** 3 / amounts.mean(axis=0)).astype(np.float32)
        want = (amounts * prices).sum(axis=1)
        forced = -1 if trial < 10 else trial - 8
        gate, places = np.zeros(2, np.int32), np.zeros(max(parts, pieces.size) + 1, np.int32)
        starts, trace = np.zeros(groups + 1, np.int32), np.zeros(9, np.float32)
        live = np.array([rows], np.int32)
        emulated.run(
            "choose", counts, live, np.array(table, np.int32), prices, gate, places, starts, trace,
            rows, k, n, forced,
        )  # fmt: skip
        np.testing.assert_allclose(trace[5:], want, rtol=1e-5)
        np.testing.assert_allclose(trace[:5], list(totals.values()), rtol=1e-6)
        number = int(want.argmin()) if forced < 0 else forced
        assert list(gate) == [number, rows]
        chosen.add(number)
        of_parts = counts[: 5 * parts].reshape(5, parts)
        scanned = (of_parts[1], pieces, of_parts[4])[number - 1] if number else counts[:0]
        if number:
            sums = np.append(0, scanned.cumsum())
            np.testing.assert_array_equal(places[: len(sums)], sums)
            if number != 2:
                np.testing.assert_array_equal(starts, sums[:: parts // groups])
    assert len(chosen) > 2


def test_of_equal_times_the_lowest_number_wins() -> None:
    form = FORMS[0]
    emulated = built(form)
    counts = np.zeros(5 + 4, np.int32)
    for prices, want in (
        ([2, 1, 1, 1], 1),
        ([1, 1, 1, 1], 0),
        ([np.inf, np.nan, 3, 3], 2),
        ([np.inf] * 4, 0),
    ):
        table = np.array(form.table(), np.int32)
        offered = np.zeros((4, len(FEATURES)), np.float32)
        offered[:, 0] = prices
        gate, live = np.zeros(2, np.int32), np.ones(1, np.int32)
        rest = (np.zeros(5, np.int32), np.zeros(2, np.int32), np.zeros(9, np.float32))
        emulated.run("choose", counts, live, table, offered, gate, *rest, 1, 256, 64, -1)
        assert gate[0] == want


def test_table_of_variants() -> None:
    """Micro-tiles follow from dense tiles; no piece along memory is shorter than a sector."""
    want = {"tile16": (16, 1), "tile32": (32, 1), "square32": (32, 32)}
    want |= {"block32": (1, 32), "block64": (1, 64)}
    for name, (m, k) in want.items():
        micro = CUDA_VARIANTS[name].micro_tile("float16")
        assert (micro.m, micro.k) == (m, k)
    assert next(iter(CUDA_VARIANTS)) == "dense"
    assert len(FORMS[0].table()[0]) == len(COLUMNS)
    # the example of the module
    totals = {"strips": 24, "segments": 0, "squares": 0}
    lines = [line_of(CUDA_VARIANTS[name], TILE, "float16", 108) for name in ("dense", "tile32")]
    amounts = [features_of(line, totals, (64, 256, 1024), 4) for line in lines]
    assert amounts == [(1, 0, 64, 4), (1, 24 * 64, 11, 0.6875)]


@pytest.mark.here
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_nvcc_accepts_the_source(tmp_path: Path) -> None:
    form = FORMS[0]
    (tmp_path / "detect.cu").write_text(cuda_module(form.functions(), "sm_90").source)
    # TVM names what it then writes out once more.
    warnings = ["-Werror", "all-warnings", "--diag-suppress", "177"]
    options = ["-arch=sm_90", "-Xptxas", "-v", *warnings, "-cubin"]
    command = [str(NVCC), *options, "detect.cu", "-o", "detect.cubin"]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
    assert said.count("0 bytes spill stores") == len(form.functions())
    assert "atomic" not in (tmp_path / "detect.cu").read_text()
