"""gather_gemm over bfloat16: every level, and models of the instructions that any machine runs."""

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.build.library import levels_of, object_code
from pitc.codegen.build.link import Part, link_library
from pitc.codegen.call import KernelLibrary
from pitc.host.machine import bfloat16_unit
from pitc.ir.kernel import LONGEST_ROUNDED, KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pair_panels, panel_count
from pitc.ir.target import V4_AMX, V4_BF16, CpuLevel, cpu_level_of
from tests.codegen_kernels import IS_EMULATED, LEVELS, Array, guarded, normal

if IS_EMULATED:
    pytest.skip("of x86-64", allow_module_level=True)

MODEL = replace(V4_BF16, level="model", mcpu="x86-64-v3", features=())
"""What AVX512-BF16 computes, in steps that every machine has."""
MODEL_OF_TILES = replace(V4_AMX, level="model_amx", mcpu="x86-64-v3", features=())
"""What AMX computes."""
#: k, n, activation, residual, input_relu: tails of every kind, k in one stretch and in blocks
SHAPES = [
    *((1, 1, "none", 0, 0), (3, 5, "relu", 1, 0), (33, 70, "none", 0, 1), (64, 64, "gelu", 1, 0)),
    *((95, 130, "none", 1, 0), (1001, 66, "none", 0, 1), (3100, 64, "gelu", 1, 0)),
]
LONG_SHAPES = [(1300, 840, "relu", 1, 1), (70, 100, "none", 0, 0)]
"""Of several stretches of k and groups of columns, and of one."""
COUNTS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 97)
Shape = tuple[int, int, str, int, int]
STORED: tuple[dict[str, int], ...]
STORED = ({}, {"left_words": 1}, {"left_words": 1, "rounds_result": 1})
"""What is stored as bfloat16."""
STORED_SHAPES: list[Shape] = [
    *((2, 1, "relu", 0, 0), (96, 130, "gelu", 0, 0)),
    *((1002, 66, "none", 0, 0), (3072, 64, "none", 1, 0)),
]


def request(shape: Shape, more: Mapping[str, int] | None = None) -> KernelRequest:
    k, n, activation, residual, relu = shape
    more = dict(more or {}) | ({"input_relu": 1} if relu else {})
    return KernelRequest.of(
        *("gather_gemm", "bfloat16"), k=k, n=n, activation=activation, residual=residual, **more
    )


def levels() -> list[CpuLevel]:
    """Those of this machine, and the model."""
    machine = Path("/proc/cpuinfo").read_text()
    here = [cpu_level_of(name) for name in LEVELS]
    native = [V4_BF16] if "avx512_bf16" in machine else []
    native += [V4_AMX] if bfloat16_unit() == "AMX" else []
    return [*native, *here, MODEL, MODEL_OF_TILES]


@functools.cache
def kernels() -> KernelLibrary:
    folder = tempfile.mkdtemp(prefix="pitc-test-bf16-")
    wanted = [request(s) for s in (*SHAPES, *LONG_SHAPES)]
    wanted += [request(s, more) for s in STORED_SHAPES for more in STORED]
    objects = {
        f"{r.symbol}_{level.level}": object_code(r, level) for r in wanted for level in levels()
    }
    path = Path(folder) / "kernels.so"
    link_library([Part(objects, ("__TVMBackend*",))], path)
    return KernelLibrary(path)


def near(x: Array) -> Array:
    """The nearest bfloat16 numbers."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def words(w: Array) -> Array:
    """Panels as kernels see them."""
    pairs = pair_panels(w)
    return pairs.view(np.uint32).view(np.float32).reshape(*pairs.shape[:2], PANEL_WIDTH)


def run(
    shape: Shape,
    level: CpuLevel,
    operands: Mapping[str, Array],
    rows: int,
    more: Mapping[str, int] | None = None,
    part: tuple[int, int, int, int] | None = None,
) -> Array:
    """C of one call, whose operands end at pages that nobody may touch; of all rows and panels, or
    of those that are named.
    """
    more = more or {}
    k, n, _, residual, _ = shape
    bias = np.zeros(panel_count(n) * PANEL_WIDTH, np.float32)
    bias[:n] = operands["bias"]
    c = np.full((rows + 2, n), 7.25, np.float32)
    a = operands["a"]
    if "left_words" in more:
        a = a.astype(ml_dtypes.bfloat16).view(np.uint32).view(np.float32)
    if "rounds_result" in more:
        c = c.astype(ml_dtypes.bfloat16).view(np.uint16)
    every = [a, operands["rows_a"], words(operands["w"]), bias]
    every += [operands["added"]] if residual else []
    every += [operands["rows_c"], c]
    memory = [guarded(x, at_end=bool((i + k) % 2)) for i, x in enumerate(every)]
    symbol = f"{request(shape, more).symbol}_{level.level}"
    kernels().call(symbol, *memory, *(part or (0, rows, 0, panel_count(n))))
    c = memory[-1].copy()
    return c.view(ml_dtypes.bfloat16).astype(np.float32) if "rounds_result" in more else c


def operands_of(shape: Shape, rows: int) -> dict[str, Array]:
    k, n, *_ = shape
    rng = np.random.default_rng(rows)
    return {
        "a": normal(rng, rows + 1, k),
        "w": normal(rng, k, n) / np.float32(np.sqrt(k)),
        "bias": normal(rng, n),
        "added": normal(rng, rows, n),
        "rows_a": np.sort(rng.permutation(rows + 1)[:rows]).astype(np.int32),
        "rows_c": np.sort(rng.permutation(rows + 2)[:rows]).astype(np.int32),
    }


@pytest.mark.parametrize("level", levels(), ids=lambda x: x.level)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_of_rounded_numbers(shape: Shape, level: CpuLevel) -> None:
    """Of B always, of A where the machine multiplies such; nothing else is rounded."""
    for rows in COUNTS:
        x = operands_of(shape, rows)
        a = np.maximum(x["a"], 0) if shape[4] else x["a"]
        a = near(a) if level.multiplies_pairs else a
        added = x["added"] if shape[3] else None
        w = near(x["w"])
        want = reference.gather_gemm(a, x["rows_a"], w, x["bias"], added, shape[2])
        size = np.abs(a[x["rows_a"]]) @ np.abs(w) + np.abs(x["bias"])
        c = run(shape, level, x, rows)
        assert (np.abs(c[x["rows_c"]] - want) <= 2e-6 * size + 4e-7 * np.abs(want) + 1e-7).all()
        assert (np.delete(c, x["rows_c"], axis=0) == np.float32(7.25)).all()


@pytest.mark.parametrize("level", levels(), ids=lambda x: x.level)
@pytest.mark.parametrize("shape", STORED_SHAPES, ids=str)
def test_what_is_stored_is_rounded_where_it_is_written(shape: Shape, level: CpuLevel) -> None:
    """The bits of the left operand, and of the result, are those of rounding before and behind."""
    for rows in COUNTS:
        x = operands_of(shape, rows)
        plain = run(shape, level, x | {"a": near(x["a"])}, rows)
        for more in STORED:
            if more:
                wanted = near(plain) if "rounds_result" in more else plain
                given = x if "left_words" in more else x | {"a": near(x["a"])}
                np.testing.assert_array_equal(run(shape, level, given, rows, more), wanted)


@pytest.mark.parametrize("level", levels(), ids=lambda x: x.level)
def test_odd_numbers_are_stored(level: CpuLevel) -> None:
    """NaN, infinities, what rounds to one, and halves between two numbers."""
    shape = STORED_SHAPES[-1]
    x = operands_of(shape, 3)
    odd = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, -0.0, 1e-20]
    x["w"][:] = 0
    x["bias"][: len(odd)] = odd
    x["added"][:] = 0
    found = run(shape, level, x, 3, STORED[-1])[x["rows_c"]]
    np.testing.assert_array_equal(found, np.tile(near(x["bias"]), (3, 1)))


def test_what_no_kernel_stores() -> None:
    """Sums of long rows stand in the result."""
    with pytest.raises(ValueError, match="stand in C"):
        object_code(request((LONGEST_ROUNDED + 2, 64, "none", 0, 0), {"rounds_result": 1}), V4_BF16)
    object_code(request((LONGEST_ROUNDED, 64, "none", 0, 0), {"rounds_result": 1}), V4_BF16)


@pytest.mark.skipif(V4_BF16 not in levels(), reason="needs AVX512-BF16")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_machine_does_what_the_model_says(shape: Shape) -> None:
    """To the bit, but for denormals, which the instruction takes for 0."""
    x = operands_of(shape, 13)
    for scale, odd in ((1, False), (1e19, False), (1, True)):
        some = x | {"a": x["a"] * np.float32(scale), "w": x["w"] * np.float32(scale)}
        if odd:
            some["a"].flat[[0, -1]] = np.nan, np.inf
            some["w"].flat[-1] = -np.inf
        np.testing.assert_array_equal(run(shape, V4_BF16, some, 13), run(shape, MODEL, some, 13))


def test_rows_do_not_depend_on_the_tile() -> None:
    """The bits of a row are those of the row alone."""
    shape = SHAPES[-1]
    x = operands_of(shape, 97)
    for level in levels():
        whole = run(shape, level, x, 97)
        for i in (0, 50, 96):
            names = ("rows_a", "rows_c", "added")
            one = x | {name: x[name][i : i + 1] for name in names} | {"rows_c": np.array([0], "i4")}
            assert np.array_equal(run(shape, level, one, 1)[0], whole[x["rows_c"][i]])


@pytest.mark.parametrize(
    "level", [x for x in levels() if x.multiplies_tiles], ids=lambda x: x.level
)
@pytest.mark.parametrize("shape", LONG_SHAPES, ids=str)
def test_blocks_of_tiles(shape: Shape, level: CpuLevel) -> None:
    """Several blocks of rows, groups of columns and stretches of k; and any part of the panels.

    The sums are those of the model, to the bit.
    """
    rows, n = 700, shape[1]
    x = operands_of(shape, rows)
    want = run(shape, MODEL_OF_TILES, x, rows)
    np.testing.assert_array_equal(run(shape, level, x, rows), want)
    a, w = near(np.maximum(x["a"], 0) if shape[4] else x["a"]), near(x["w"])
    added = x["added"] if shape[3] else None
    exact = reference.gather_gemm(a, x["rows_a"], w, x["bias"], added, shape[2])
    np.testing.assert_allclose(want[x["rows_c"]], exact, rtol=1e-5, atol=1e-4)
    for first, stop, begin, end in ((40, 650, 1, 2), (0, 33, 0, 1), (650, 700, 0, 0), (9, 9, 0, 2)):
        part = run(shape, level, x, rows, part=(first, stop, begin, end))
        written = np.zeros_like(part, bool)
        written[x["rows_c"][first:stop], begin * PANEL_WIDTH : min(n, end * PANEL_WIDTH)] = True
        np.testing.assert_array_equal(part, np.where(written, want, np.float32(7.25)))


def test_levels_of_kernels() -> None:
    """AVX512-BF16 goes with AVX-512, for bfloat16 alone."""
    v4, v3 = cpu_level_of("v4"), cpu_level_of("v3")
    assert levels_of("bfloat16", (v4, v3)) == (V4_BF16, v4, v3)
    assert levels_of("bfloat16", (v3,)) == (v3,)
    assert levels_of("float32", (v4, v3)) == (v4, v3)
    assert levels_of("bfloat16", (V4_BF16, v4)) == (V4_BF16, v4)
    assert levels_of("bfloat16", (v4, v3), tiles=True) == (V4_AMX, V4_BF16, v4, v3)
    assert levels_of("bfloat16", (v3,), tiles=True) == (v3,)
