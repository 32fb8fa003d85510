"""Attention under formulas of pairs on the emulated device, against float64."""

import functools
from typing import Any

import numpy as np
import pytest

from pitc.codegen import ptx, tir
from pitc.codegen.families import attention_cuda, pair_tests_cuda, sight_cuda
from pitc.codegen.families.pair_tests_cuda import Flags
from pitc.codegen.families.seen_rows_cuda import SeenRows
from pitc.codegen.families.seen_steps_cuda import SeenSteps
from pitc.codegen.families.sight_cuda import Sight
from pitc.codegen.tir import T
from pitc.ir.seen import NO_PAIRS
from tests.attention_cases import Case, Sees
from tests.codegen_kernels import Array
from tests.cuda_budgets import MOST
from tests.cuda_emulator import Emulated, EmulationError
from tests.cuda_traffic import SECTOR_BYTES
from tests.wrong_functions import make_wrong

Kind = tuple[str, str, int, int, int, str]
"""Engine, type, d, dv, bias, formula."""

PRECISION = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-11}
TYPES = [("mma", "float16"), ("mma", "bfloat16"), ("mma", "float32"), ("simt", "float32")]
LENGTHS = [(1, 1), (7, 64), (64, 7), (0, 5), (65, 65), (5, 0), (200, 150), (3, 200), (129, 31)]


def name(kind: Kind) -> str:
    engine, dtype, d, dv, bias, text = kind
    return f"attention_{engine}_{dtype}_d{d}_v{dv}_{bias}_{text}"


def emulated(kind: Kind) -> Emulated:
    engine, dtype, d, dv, bias, text = kind
    params = {"dtype": dtype, "d": d, "dv": dv, "bias": bias, "sees": text}
    return Emulated([attention_cuda.attention(name(kind), params, engine)])


kernel = functools.cache(emulated)


def run(kind: Kind, case: Case, **options: Any) -> Array:
    return case.run(kernel(kind), name(kind), **options)


def check(kind: Kind, case: Case, out: Array) -> None:
    engine, dtype, *_ = kind
    precision = 1.5e-6 if engine == "simt" else PRECISION[dtype]
    rounded = engine == "mma" and dtype == "float32"
    case.check(out, precision, 2**-10 if rounded else 2**-22)


def extents(lengths: list[tuple[int, int]]) -> tuple[int, int]:
    """How many positions queries and keys have."""
    queries, keys = (np.array(x, int) for x in zip(*lengths, strict=True))
    return Case.room(queries), Case.room(keys)


def made(kind: Kind, lengths: list[tuple[int, int]], density: float = 0.3, **options: Any) -> Case:
    """A case with tests drawn at random."""
    _, dtype, d, dv, bias, text = kind
    case = Case(lengths, d, dv, dtype, **options)
    if bias:
        case.bias = case.normal(*case.bias_shape())
    rng, (eq, ek), s = case.rng, extents(lengths), len(lengths)
    lines = np.array([[1, -1, 0], [-1, 1, 20], [-3, 2, 9]], np.int64)
    ops = {c if c not in "elm" else "t" for c in text if c.isalpha()}

    def flags(*shape: int) -> Array:
        return (rng.random((2, s, *shape)) > density).astype(np.int8) * 3

    case.sees = Sees(
        text,
        lines if "p" in ops else None,
        (np.sort(rng.integers(0, 6, (2, s, eq))), np.sort(rng.integers(0, 6, (2, s, ek))))
        if "t" in ops
        else None,
        flags(ek) if "k" in ops else None,
        flags(eq) if "q" in ops else None,
        flags(eq, ek) if "f" in ops else None,
    )
    return case


FORMULAS = ("p0", "p0p1a", "e0", "l0m1o", "k0", "q0", "f0", "p2ne1k1ooq1af1na")
CAUSAL: list[Kind] = [
    (engine, dtype, 16, 32 if dtype == "float32" else 16, 0, "p0") for engine, dtype in TYPES
]
SOME: list[Kind] = [
    (*TYPES[i % 4], 16, 32 if i % 4 > 1 else 16, i % 2, text) for i, text in enumerate(FORMULAS)
]
in_some = pytest.mark.parametrize("kind", SOME, ids=name)
in_causal = pytest.mark.parametrize("kind", CAUSAL, ids=name)


@pytest.mark.parametrize("kind", [*CAUSAL, *SOME], ids=name)
def test_attends(kind: Kind) -> None:
    some = made(kind, LENGTHS)
    first = run(kind, some, blocks=1)
    check(kind, some, first)
    device = kernel(kind)
    with device.backwards():
        assert run(kind, some, blocks=7).tobytes() == first.tobytes()
    with device.shuffled(3):
        assert run(kind, some, blocks=100).tobytes() == first.tobytes()


@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
@in_some
def test_rows_that_see_nothing(kind: Kind, density: float) -> None:
    for given in NO_PAIRS:
        some = made(kind, [(40, 70), (3, 0), (130, 40)], density, no_pairs=given)
        check(kind, some, run(kind, some))


@pytest.mark.parametrize("kind", [CAUSAL[0], CAUSAL[3]], ids=name)
def test_steps_that_nobody_sees_are_not_read(kind: Kind) -> None:
    """A causal mask: each tile reads steps up to the diagonal, each warp computes its own."""
    engine, dtype, d, dv, bias, _ = kind
    tile, _ = attention_cuda.ENGINES[engine].plan(dtype, d, dv, bias=bool(bias))
    some = made(kind, [(4 * tile.m, 4 * tile.m)], heads=1)
    for positions in some.positions:
        positions[:] = np.arange(len(positions))
    check(kind, some, run(kind, some))
    counts = kernel(kind).launches[0].counts
    keys = sum(tile.m * i for i in (1, 2, 3, 4))
    assert counts.async_bytes == (4 * tile.m * d + keys * (d + dv)) * tile.item
    assert counts.shared_wavefronts <= 1.02 * counts.shared_ideal
    warps = sum(tile.rows * -(-(w + 1) * tile.rows // tile.n) * tile.n for w in range(16))
    assert counts.mma_flops == (2 * warps * (d + dv) if engine == "mma" else 0)


WIDE: list[Kind] = [
    ("mma", "float16", 20, 9, 1, "p0e1o"),
    ("mma", "float16", 16, 256, 0, "p0p1a"),
    ("simt", "float32", 8, 160, 0, "f0"),
]


@pytest.mark.parametrize("kind", WIDE, ids=name)
def test_more_steps_than_are_listed_at_once(kind: Kind) -> None:
    some = made(kind, [(70, 2100), (3, 40)], 0.01, heads=1, no_pairs="mean")
    check(kind, some, run(kind, some))


@pytest.mark.parametrize("kind", [SOME[1], SOME[6]], ids=name)
def test_hidden_pairs_may_hold_anything(kind: Kind) -> None:
    """NaN in a key makes NaN of the rows that see it, and of no other one."""
    some = made(kind, [(130, 260)], heads=1)
    before, seen = run(kind, some), some.seen(0)
    some.k[7] = np.nan
    after = run(kind, some)
    assert seen[:, 7].any() and not seen[:, 7].all()
    assert np.isnan(after[:130][seen[:, 7]].astype(np.float32)).all()
    was, is_ = (x[:130][~seen[:, 7]].astype(np.float32) for x in (before, after))
    np.testing.assert_array_equal(is_, was)


@pytest.mark.parametrize("kind", [SOME[3], SOME[6], SOME[7]], ids=name)
def test_stays_in_bounds_whatever_lists_say(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    some = made(kind, [(20, 20)] * 5)
    for x in (some.q_offsets, some.k_offsets, *some.positions):
        x[...] = rng.integers(-300, 300, x.shape)
    run(kind, some)


@in_causal
def test_factors_of_any_size(kind: Kind) -> None:
    """Sums of positions do not fit in 32 bits."""
    some = made(kind, [(40, 70), (5, 5)])
    assert some.sees is not None
    some.sees.positions = np.array([[1 << 20, -(1 << 20), -(5 << 20)]], np.int64)
    check(kind, some, run(kind, some))
    some.sees.positions = np.array([[0, -1, (1 << 60)]], np.int64)
    check(kind, some, run(kind, some))
    some.sees.positions = np.array([[0, 1, -(1 << 60)]], np.int64)
    check(kind, some, run(kind, some))


@pytest.mark.parametrize("kind", [SOME[2], SOME[3]], ids=name)
def test_numbers_of_any_size(kind: Kind) -> None:
    """Numbers in tables that differ in their upper or in their lower halves only."""
    some = made(kind, [(40, 70), (129, 33)])
    assert some.sees is not None and some.sees.tables is not None
    kinds = np.array([-(1 << 63), -(1 << 32), -1, 0, 1 << 32, (1 << 63) - 1])
    for table in some.sees.tables:
        table[...] = some.rng.permuted(kinds[table % 6], axis=-1)
    check(kind, some, run(kind, some))


def ends_of_flags(kind: Kind) -> Case:
    """Hidden pairs among the last flags, behind the last 16 bytes that are whole."""
    some = made(kind, [(33, 34)], heads=1)
    for positions, count in zip(some.positions, (33, 34), strict=True):
        positions[:count] = np.arange(count) + 3
    assert some.sees is not None
    some.sees.flags = np.zeros((1, 1, 36, 37), np.int8)
    some.sees.flags[..., -1, -2:] = 1, 2
    return some


def gaps_of_flags(kind: Kind) -> Case:
    """Keys far apart, of which the last ones are hidden."""
    some = made(kind, [(20, 40), (33, 300)], heads=1)
    assert some.sees is not None and some.sees.flags is not None
    some.sees.flags[...] = np.arange(303) >= 150
    return some


@pytest.mark.parametrize("kind", [SOME[6], WIDE[2]], ids=name)
@pytest.mark.parametrize("case", [ends_of_flags, gaps_of_flags])
def test_flags_of_pairs_anywhere(kind: Kind, case: Any) -> None:
    some = case(kind)
    check(kind, some, run(kind, some))


BLOCKS: Kind = ("mma", "float16", 16, 16, 0, "f0n")
GLOBAL: Kind = ("mma", "float16", 16, 16, 0, "p0p1oq0an")


def test_blocks_that_nobody_sees_are_not_read() -> None:
    """Each tile reads steps of its blocks, each warp computes its own, and looks at no pair."""
    tile, _ = attention_cuda.ENGINES["mma"].plan("float16", 16, 16, bias=False)
    some, size = made(BLOCKS, [(512, 512)], heads=1, no_pairs="mean"), 64
    blocks = np.random.default_rng(1).random((8, 8)) < 0.2
    blocks[3] = True
    blocks |= np.eye(8, dtype=bool)
    for positions in some.positions:
        positions[:512] = np.arange(512)
    assert some.sees is not None
    some.sees.flags = np.zeros((1, 1, 512, 512), np.int8)
    some.sees.flags[...] = blocks.repeat(size, 0).repeat(size, 1)
    check(BLOCKS, some, run(BLOCKS, some))
    counts = kernel(BLOCKS).launches[0].counts
    keys = size * blocks.reshape(-1, tile.m // size, 8).any(axis=1).sum()
    assert counts.async_bytes == (512 * 16 + keys * (16 + 16)) * tile.item
    assert counts.mma_flops == 2 * blocks.sum() * size**2 * (16 + 16)
    assert counts.load_sectors <= MOST * (512 * 512 + counts.async_bytes) / SECTOR_BYTES


def test_a_row_that_sees_all_keys_is_computed_by_its_warp() -> None:
    """A window, which one row has not: its tile reads all keys, the other warps compute theirs."""
    tile, _ = attention_cuda.ENGINES["mma"].plan("float16", 16, 16, bias=False)
    some = made(GLOBAL, [(512, 512)], heads=1)
    for positions in some.positions:
        positions[:512] = np.arange(512)
    assert some.sees is not None and some.sees.queries is not None
    some.sees.positions = np.array([[-1, 1, -32], [1, -1, -32]], np.int64)
    some.sees.queries[...] = 0
    some.sees.queries[..., 200] = 1
    check(GLOBAL, some, run(GLOBAL, some))
    counts = kernel(GLOBAL).launches[0].counts
    assert tile.n == tile.rows == 32
    steps, of_warps = 5 + 16 + 6 + 5, 2 + 14 * 3 + 2 + 16 - 3
    assert counts.async_bytes == (512 * 16 + 32 * steps * (16 + 16)) * tile.item
    assert counts.mma_flops == 2 * of_warps * 32**2 * (16 + 16)


@pytest.mark.here
def test_numbers_of_rows_that_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests compare with is computed where it is needed."""
    monkeypatch.setattr(pair_tests_cuda, "_MOST_BYTES", 0)
    for kind in (SOME[1], SOME[3], SOME[7]):
        some = made(kind, [(40, 70), (0, 5), (3, 0), (200, 150)])
        check(kind, some, some.run(emulated(kind), name(kind)))


@pytest.mark.here
def test_blocks_take_turns_to_and_fro() -> None:
    def emit() -> None:
        taken = tir.device_tensor("taken", (tir.size(),), "int32")
        blocks = T.arg("blocks", T.int32())
        with (
            ptx.launch(blocks, 32) as (number, thread),
            ptx.returns(number, blocks, ptx.int32(taken.shape[0])) as turn,
            tir.when(thread == 0),
        ):
            tir.assign(taken, taken[turn] + number + 1, turn)

    device = Emulated([tir.prim_func("turns", emit)])
    for blocks, want in ((3, [1, 2, 3, 3, 2, 1, 1, 2]), (1, [1] * 8), (100, range(1, 9))):
        taken = np.zeros(8, np.int32)
        device.run("turns", taken, blocks)
        assert taken.tolist() == list(want)


@pytest.mark.here
def test_refuses() -> None:
    for text in ("p0a", "p0p1", "z0", "p", "p0n1"):
        with pytest.raises(ValueError, match="is no formula of pairs"):
            attention_cuda.attention(
                "x", {"dtype": "float16", "d": 16, "dv": 16, "bias": 0, "sees": text}, "mma"
            )


TWINS: dict[str, tuple[Kind, Any, str, str]] = {
    "ends_of_one_row": (CAUSAL[0], SeenRows._find, "bounds[number][2].join_lanes()", "bounds"),
    "bound_off_by_one": (CAUSAL[0], pair_tests_cuda.Tests.bound, "floor + one", "floor"),
    "bound_rounded_to_0": (
        SOME[7],
        pair_tests_cuda.Tests.bound,
        ' - T.Cast("int64", rest < quotient * size)',
        "",
    ),
    "everywhere_by_the_least": (
        CAUSAL[0],
        SeenSteps.over_bounds,
        "first >= most",
        "first >= least",
    ),
    "nowhere_by_the_most": (CAUSAL[0], SeenSteps.over_bounds, "last < least", "last < most"),
    "steps_not_turned": (CAUSAL[0], SeenSteps._over, "last - above, above", "above, above"),
    "words_not_turned": (CAUSAL[0], Sight._add_line, "self.rows.turned(number))", "T.int32(0))"),
    "sight_of_another_warp": (CAUSAL[0], SeenSteps.seen, "thread // 32", "thread // 64"),
    "entries_of_one_warp": (WIDE[2], SeenSteps.fill, "before.value + ", "0 + "),
    "chunks_of_less": ((*WIDE[1][:-1], "p0"), SeenSteps.fill, "first + self._block", "self._block"),
    "steps_of_the_first_chunk": (WIDE[2], SeenSteps.step_of, "first + ", "0 + "),
    "numbers_of_a_lane": (SOME[2], SeenRows._find, "numbers[number][1].join_lanes()", "numbers"),
    "equal_by_one_side": (SOME[2], SeenSteps._over_table, "least == most, ", "least == least, "),
    "less_or_equal": (SOME[3], sight_cuda._ordered, "q <= k", "q < k"),
    "numbers_of_the_first_keys": (SOME[3], SeenSteps._each, "i * _KEYS + u", "u"),
    "flags_of_the_first_keys": (SOME[4], SeenSteps._each, "i * _KEYS + u", "u"),
    "flags_of_lanes": (SOME[4], Sight._add_keys, "lanes >> ptx.uint32(self._engine.key)", "lanes"),
    "keys_behind_the_last": (SOME[4], Sight.bits, "count - 1 - step * n", "n - 1"),
    "bound_of_another_row": (SOME[1], SeenRows.bound, "+ row]", "+ (row ^ 1)]"),
    "number_of_another_row": (SOME[2], SeenRows.number, "+ row]", "+ (row ^ 1)]"),
    "position_of_another_row": (SOME[6], SeenRows.position, "+ row]", "+ (row ^ 1)]"),
    "flags_of_another_row": (SOME[5], SeenRows.is_flagged, "+ row]", "+ (row ^ 1)]"),
    "flags_of_another_warp": (SOME[5], SeenRows.flags, "+ warp]", "+ (warp ^ 1)]"),
    "columns_shifted": (SOME[6], Sight._each_row, "r * self._width", "r * self._width ^ 1"),
    "pairs_of_another_warp": (SOME[6], SeenSteps._over, "warp * 8 &", "(warp ^ 1) * 8 &"),
    "pairs_of_half_a_step": (WIDE[2], SeenSteps._asked, "lane % _LANES", "lane % 1"),
    "pairs_of_whole_chunks": (SOME[6], SeenSteps._add_chunks, "flags.add_any()", "pass"),
    "pairs_behind_the_last": (SOME[6], SeenSteps._asked, "at < chunks", "at <= chunks"),
    "pairs_between_gaps": (SOME[6], SeenSteps._over_pairs, "p1 - p0 < n", "p0 - p0 < n"),
    "pairs_of_half_the_rows": (SOME[6], SeenSteps._row_starts, "i * apart", "i // 2 * apart"),
    "zeros_in_one_byte": (SOME[6], Flags.add_four, "0x01010101", "0x00000001"),
    "a_list_that_is_read": (WIDE[2], SeenSteps._over_pairs, "ptx.barrier()  # who", "# who"),
    "nobody_is_blind": (WIDE[2], Sight.find_blind, "some == ptx.uint32(0)", "some != some"),
    "lanes_apart": (WIDE[2], Sight.find_blind, "in self._engine.lanes", "in ()"),
    "no_barrier_before_a_tile": (SOME[7], SeenRows.prepare, "ptx.barrier()  #", "#"),
}
"""A kernel, a function, what stands in it, and what is wrong in its place."""


@pytest.mark.thorough
@pytest.mark.here
@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_are_found(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, function, right, wrong = TWINS[twin]
    make_wrong(monkeypatch, function, right, wrong)
    with pytest.raises((AssertionError, EmulationError)):
        device = emulated(kind)
        for case in (ends_of_flags, gaps_of_flags) if kind[-1] == "f0" else ():
            some = case(kind)
            check(kind, some, some.run(device, name(kind), blocks=1))
        for lengths, density in (([(40, 70), (200, 150)], 0.3), ([(130, 2100)], 0.0005)):
            some = made(
                kind, lengths, density, heads=1, no_pairs="mean" if density < 0.3 else "nan"
            )
            check(kind, some, some.run(device, name(kind), blocks=1))
