"""Attention over packed sequences on the emulated device, against float64."""

import functools
from typing import Any

import numpy as np
import pytest

from pitc.codegen.engines import attend_mma, attend_simt, ring
from pitc.codegen.engines.attend import Softmax, hide_behind
from pitc.codegen.engines.multiprocessor import transposed
from pitc.codegen.families import attention_cuda
from pitc.codegen.families.sequences_cuda import Search
from tests.attention_cases import CANARY, Case
from tests.codegen_kernels import Array
from tests.cuda_emulator import Emulated, EmulationError
from tests.wrong_functions import make_wrong

Kind = tuple[str, str, int, int, int]
"""Engine, type, d, dv, bias."""

PRECISION = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-11}
EXACT = 1.5e-6
"""Of float32 without tensor cores."""

TYPES = [
    ("mma", "float16"),
    ("mma", "bfloat16"),
    ("mma", "float32"),
    ("simt", "float32"),
]
SMALL: list[Kind] = [
    (engine, dtype, 16, 32 if dtype == "float32" else 16, bias)
    for engine, dtype in TYPES
    for bias in (0, 1)
]
PLAIN, BIASED = SMALL[::2], SMALL[1::2]
WIDTHS: list[Kind] = [
    ("mma", "float16", 64, 64, 0),
    ("mma", "float16", 80, 40, 0),
    ("mma", "float16", 16, 128, 1),
    ("mma", "float16", 16, 256, 0),
    ("mma", "bfloat16", 20, 9, 1),
    ("mma", "float32", 8, 160, 0),
    ("mma", "float32", 9, 5, 1),
    ("simt", "float32", 20, 64, 0),
    ("simt", "float32", 8, 256, 0),
    ("simt", "float32", 9, 5, 1),
]
LENGTHS = [(1, 1), (7, 64), (64, 7), (0, 5), (65, 65), (5, 0), (200, 33), (3, 200), (129, 31)]


def name(kind: Kind) -> str:
    engine, dtype, d, dv, bias = kind
    return f"attention_{engine}_{dtype}_d{d}_v{dv}_{bias}"


def emulated(kind: Kind) -> Emulated:
    engine, dtype, d, dv, bias = kind
    params = {"dtype": dtype, "d": d, "dv": dv, "bias": bias}
    return Emulated([attention_cuda.attention(name(kind), params, engine)])


kernel = functools.cache(emulated)


def run(kind: Kind, case: Case, **options: Any) -> Array:
    return case.run(kernel(kind), name(kind), **options)


def check(kind: Kind, case: Case, out: Array) -> None:
    engine, dtype, *_ = kind
    precision = EXACT if engine == "simt" else PRECISION[dtype]
    rounded = engine == "mma" and dtype == "float32"
    case.check(out, precision, 2**-10 if rounded else 2**-22)


def case(kind: Kind, lengths: list[tuple[int, int]], **options: Any) -> Case:
    _, dtype, d, dv, bias = kind
    made = Case(lengths, d, dv, dtype, **options)
    if bias:
        made.bias = made.normal(*made.bias_shape())
    return made


in_small = pytest.mark.parametrize("kind", SMALL, ids=name)
in_plain = pytest.mark.parametrize("kind", PLAIN, ids=name)
in_biased = pytest.mark.parametrize("kind", BIASED, ids=name)


@in_small
def test_attends(kind: Kind) -> None:
    some = case(kind, LENGTHS)
    first = run(kind, some, blocks=1)
    check(kind, some, first)
    device = kernel(kind)
    with device.backwards():
        assert run(kind, some, blocks=7).tobytes() == first.tobytes()
    with device.shuffled(3):
        assert run(kind, some, blocks=100).tobytes() == first.tobytes()


@pytest.mark.parametrize("kind", WIDTHS, ids=name)
def test_widths(kind: Kind) -> None:
    some = case(kind, [(5, 40), (0, 1), (70, 18), (1, 0)])
    check(kind, some, run(kind, some))
    counts = kernel(kind).launches[0].counts
    assert counts.shared_wavefronts == counts.shared_ideal


@in_biased
@pytest.mark.parametrize("broadcast", [(0,), (1, 2), (0, 1, 3), (2,), (0, 1, 2, 3), (3,)], ids=str)
def test_bias_is_broadcast(kind: Kind, broadcast: tuple[int, ...]) -> None:
    some = case(kind, [(9, 37), (34, 5)], heads=3)
    some.bias = some.normal(*some.bias_shape(*broadcast))
    check(kind, some, run(kind, some))


@in_biased
@pytest.mark.parametrize("nan_to_zero", [False, True])
def test_masked_rows(kind: Kind, nan_to_zero: bool) -> None:
    some = case(kind, [(40, 70)], nan_to_zero=nan_to_zero)
    assert some.bias is not None
    q_at, k_at = (x[:n] for x, n in zip(some.positions, (40, 70), strict=True))
    some.bias[..., q_at[3], :] = -np.inf
    some.bias[..., q_at[4], k_at[60]] = np.nan
    some.bias[..., q_at[5], k_at[69]] = np.inf
    some.bias[..., k_at[:40]] = -np.inf  # no weight in the first steps
    out = run(kind, some)
    check(kind, some, out)
    empty = out[3:6].astype(np.float32)
    assert (empty == 0).all() if nan_to_zero else np.isnan(empty).all()


@pytest.mark.parametrize("kind", [BIASED[2], BIASED[3]], ids=name)
def test_the_lowest_number_as_mask(kind: Kind) -> None:
    """A row all of whose keys have it is no row without keys."""
    some = case(kind, [(6, 40)])
    assert some.bias is not None
    some.bias[...] = 0
    some.bias[..., some.positions[0][3], :] = np.finfo(np.float32).min
    some.bias[..., some.positions[1][:30]] = np.finfo(np.float32).min
    check(kind, some, run(kind, some))


@in_plain
@pytest.mark.parametrize(("nan_to_zero", "no_keys_to_zero"), [(0, 0), (0, 1), (1, 0)])
def test_rows_without_a_softmax(kind: Kind, nan_to_zero: int, no_keys_to_zero: int) -> None:
    some = case(kind, [(4, 0), (6, 50)])
    some.nan_to_zero, some.no_keys_to_zero = bool(nan_to_zero), bool(no_keys_to_zero)
    some.q[4, :, 3] = np.nan
    some.q[5, :, 3] = np.inf  # scores of both infinities
    out = run(kind, some)
    check(kind, some, out)
    zero = (out[:6] == 0).all(axis=(1, 2))
    none, lost = bool(nan_to_zero or no_keys_to_zero), bool(nan_to_zero)
    np.testing.assert_array_equal(zero, [none] * 4 + [lost] * 2)


@in_plain
@pytest.mark.parametrize("scale", [0.0, -0.3, 60.0, 1e6])
def test_scores_of_any_size(kind: Kind, scale: float) -> None:
    some = case(kind, [(9, 45)])
    if scale > 1:  # products of whole numbers: float32 has their scores without an error
        for x in (some.q, some.k):
            x[...] = some.rng.integers(-4, 5, x.shape)
    some.scale = float(np.float32(scale))
    check(kind, some, run(kind, some))


@in_small
def test_one_key_has_all_the_weight(kind: Kind) -> None:
    some = case(kind, [(33, 64), (64, 33)], heads=1)
    if some.bias is not None:
        some.bias[...] = 0
    some.v[...] = some.rng.integers(-8, 9, some.v.shape)
    some.k[:97, 2] = some.rng.choice([-64, 64], (97, some.d))
    chosen = np.concatenate([np.arange(33) * 7 % 64, 64 + np.arange(64) * 5 % 33])
    some.q[:97, 1] = some.k[chosen, 2]
    out = run(kind, some)
    np.testing.assert_array_equal(out[:97, 0].astype(float), some.v[chosen, 0].astype(float))


@in_small
def test_all_keys_have_the_same_weight(kind: Kind) -> None:
    some = case(kind, [(3, 64), (2, 128)], heads=1)
    if some.bias is not None:
        some.bias[...] = 3
    some.q[...] = 0
    some.v[...] = some.rng.integers(-2, 3, some.v.shape) * 8  # means of them are in each type
    out = run(kind, some)
    for sequence, rows in enumerate([slice(0, 3), slice(3, 5)]):
        want, _ = some.expected(0, sequence)
        rounded = want.astype(out.dtype).astype(float)
        np.testing.assert_array_equal(out[rows, 0].astype(float), rounded)


@pytest.mark.parametrize("kind", [PLAIN[0], PLAIN[3]], ids=name)
@pytest.mark.parametrize("sequences", [32, 33, 1100])
def test_finds_each_of_many_sequences(kind: Kind, sequences: int) -> None:
    rng = np.random.default_rng(sequences)
    lengths = [(int(q), 1) for q in rng.integers(0, 3, sequences)]
    lengths[0], lengths[-1], lengths[sequences // 2] = (0, 1), (1, 1), (150, 1)
    some = case(kind, lengths, heads=1)
    out = run(kind, some, blocks=2)
    of_row = np.repeat(np.arange(sequences), [q for q, _ in lengths])  # one key: its v
    np.testing.assert_array_equal(out[: len(of_row), 0], some.v[of_row, 0])
    assert (out[len(of_row) :] == CANARY).all()


@in_plain
def test_leaves_when_not_chosen(kind: Kind) -> None:
    out = run(kind, case(kind, [(5, 5)]), number=2)
    assert (out == CANARY).all()


def test_no_sequences() -> None:
    some = case(PLAIN[0], [(3, 3)])
    some.q_offsets, some.k_offsets, some.lengths = some.q_offsets[:1], some.k_offsets[:1], []
    assert (run(PLAIN[0], some) == CANARY).all()


@in_biased
def test_stays_in_bounds_whatever_lists_say(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    some = case(kind, [(20, 20)] * 5)
    for x in (some.q_offsets, some.k_offsets, *some.positions):
        x[...] = rng.integers(-300, 300, x.shape)
    run(kind, some)


@in_small
def test_traffic(kind: Kind) -> None:
    """No banks of shared memory meet; stores fill sectors; K and V are read once a tile."""
    engine, dtype, d, dv, bias = kind
    tile, _ = attention_cuda.ENGINES[engine].plan(dtype, d, dv, bias=bool(bias))
    queries, keys = 2 * tile.m, 4 * tile.n
    some = case(kind, [(queries, keys)], heads=1)
    run(kind, some)
    counts = kernel(kind).launches[0].counts
    assert counts.shared_wavefronts == counts.shared_ideal
    assert counts.store_sectors * 32 == counts.store_bytes == queries * dv * tile.item
    assert counts.async_bytes == (queries * d + 2 * keys * (d + dv)) * tile.item
    assert counts.barriers == 2 * (1 + keys // tile.n)
    products = queries * keys * (d + dv)
    assert (counts.mma_flops, counts.fmas) == (
        (2 * products, bias * queries * keys)
        if engine == "mma"
        else (0, products + bias * queries * keys)
    )


@pytest.mark.here
def test_refuses() -> None:
    for kind in [("simt", "float16", 64, 64, 0), ("mma", "float16", 0, 64, 0)]:
        engine, dtype, d, dv, bias = kind
        with pytest.raises(ValueError, match=r"no .* attention kernel"):
            attention_cuda.attention(
                "x", {"dtype": dtype, "d": d, "dv": dv, "bias": bias}, str(engine)
            )


F16, TF32, F32 = PLAIN[0], PLAIN[2], PLAIN[3]
Fragments, Threads = attend_mma.FragmentAttention, attend_simt.ThreadTile
TWINS: dict[str, tuple[Kind, Any, str, str]] = {
    "keys_not_permuted": (TF32, Fragments._multiply_wide, "r % 2 * 2 + r // 2", "r"),
    "columns_not_permuted": (TF32, Fragments._multiply_wide, "% 2 * _FOUR + group // 2", "% 8"),
    "weights_swapped": (
        F16,
        Fragments._multiply_narrow,
        "at], self.scores[at + 1])",
        "at + 1], self.scores[at])",
    ),
    "words_not_exchanged": (F16, transposed, "if b < len(values)", "if b < 0"),
    "another_lane": (F32, Threads.add, "self._group + x", "self._group + 7 - x"),
    "another_query": (F32, Threads.multiply, "self.rows[r], chunk", "self.rows[r] ^ 1, chunk"),
    "sums_do_not_decay": (F16, Softmax._rows, "self._engine.sums[place] * decay", "decay"),
    "total_does_not_decay": (F16, Softmax._row, " * self._decay[r], r)", ", r)"),
    "lanes_apart": (F16, Softmax._row, "in engine.lanes", "in ()"),
    "keys_behind_the_last": (F16, hide_behind, "left > key", "left >= key"),
    "another_sequence": (F16, Search.sequence_of, "<= number", "< number"),
    "no_barrier_in_steps": (F16, ring.run, "ptx.barrier()\n        before", "before"),
    "no_barrier_between_tiles": (F16, ring.run, "ptx.barrier()  #", "#"),
    "waits_for_too_few": (F16, ring.run, "ptx.wait(stages - 2)", "ptx.wait(stages - 1)"),
    "not_swizzled": (F16, ring.Piece.at, "+ swizzled *", "+ chunk *"),
}
"""A kernel, a function, what stands in it, and what is wrong in its place."""


@pytest.mark.thorough
@pytest.mark.here
@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_are_found(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, function, right, wrong = TWINS[twin]
    make_wrong(monkeypatch, function, right, wrong)
    some = case(kind, [(40, 70), (70, 40)], heads=1)
    device = emulated(kind)
    with pytest.raises((AssertionError, EmulationError)):
        check(kind, some, some.run(device, name(kind), blocks=1))
        counts = device.launches[0].counts
        assert counts.shared_wavefronts == counts.shared_ideal
