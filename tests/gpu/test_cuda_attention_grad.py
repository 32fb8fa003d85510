"""Gradients of attention over packed sequences on the emulated device, against float64."""

import functools
from typing import Any

import numpy as np
import pytest

from pitc.codegen import collective
from pitc.codegen.engines.attend_grad import Spread, ThreadGradients
from pitc.codegen.families import attention_grad_cuda, pair_tests_cuda
from pitc.codegen.families.grad_sides_cuda import KeyTile, QueryTile
from pitc.codegen.families.grad_tiles_cuda import GradTile
from pitc.codegen.families.seen_steps_cuda import SeenSteps
from pitc.ir import seen
from pitc.ir.attention_tile import GradientTile
from tests.attention_cases import CANARY, Sees
from tests.cuda_emulator import Emulated, EmulationError
from tests.gradient_cases import GradCase
from tests.wrong_functions import make_wrong

Kind = tuple[int, int, int, str]
"""d, dv, bias, and which keys a query sees."""

LENGTHS = [(1, 1), (7, 64), (64, 7), (0, 5), (65, 65), (5, 0), (200, 33), (3, 200), (129, 31)]
FEW = [(5, 40), (0, 1), (70, 18), (1, 0)]
PLAIN: Kind = (16, 32, 0, "")
BIASED: Kind = (16, 32, 1, "")
WIDTHS: list[Kind] = [
    *((1, 1, 0, ""), (9, 5, 1, ""), (64, 64, 0, ""), (64, 20, 1, ""), (20, 80, 0, "")),
    *((128, 96, 0, ""), (8, 200, 1, ""), (256, 256, 0, "")),
]
COUNTED: list[Kind] = [PLAIN, BIASED, (64, 64, 0, "")]
"""Whose traffic is planned."""
FORMULAS = ("p0", "p0p1a", "e0", "l0m1o", "k0", "q0", "f0", "p2ne1k1ooq1af1na")
SOME: list[Kind] = [(16, 32, i % 2, text) for i, text in enumerate(FORMULAS)]
WIDE: list[Kind] = [(128, 96, 1, "p0e1o"), (40, 256, 0, "p0p1a"), (9, 5, 0, "f0")]


def name(kind: Kind) -> str:
    d, dv, bias, text = kind
    return f"attention_grad_d{d}_v{dv}_{bias}_{text}"


def emulated(kind: Kind) -> Emulated:
    d, dv, bias, text = kind
    params = {"dtype": "float32", "d": d, "dv": dv, "bias": bias, "sees": text}
    return Emulated(
        [
            attention_grad_cuda.attention_grad(f"{name(kind)}_{role}", params, role)
            for role in attention_grad_cuda.ROLES
        ]
    )


kernels = functools.cache(emulated)


def made(kind: Kind, lengths: list[tuple[int, int]], density: float = 0.3) -> GradCase:
    """A case with tests drawn at random."""
    d, dv, bias, text = kind
    case = GradCase(lengths, d, dv, "float32")
    if bias:
        case.bias = case.normal(*case.bias_shape())
    if not text:
        return case
    queries, keys = (np.array(x, int) for x in zip(*lengths, strict=True))
    rng, eq, ek, s = case.rng, case.room(queries), case.room(keys), len(lengths)
    ops = {c if c not in "elm" else "t" for c in text if c.isalpha()}

    def flags(*shape: int) -> np.ndarray:
        return (rng.random((2, s, *shape)) > density).astype(np.int8) * 3

    case.sees = Sees(
        text,
        np.array([[1, -1, 0], [-1, 1, 20], [-3, 2, 9]], np.int64) if "p" in ops else None,
        (np.sort(rng.integers(0, 6, (2, s, eq))), np.sort(rng.integers(0, 6, (2, s, ek))))
        if "t" in ops
        else None,
        flags(ek) if "k" in ops else None,
        flags(eq) if "q" in ops else None,
        flags(eq, ek) if "f" in ops else None,
    )
    return case


def run(kind: Kind, case: GradCase, blocks: int = 3, number: int = 5) -> list[np.ndarray]:
    return case.gradients(kernels(kind), name(kind), blocks=blocks, number=number)


@pytest.mark.parametrize("kind", [PLAIN, BIASED, *SOME], ids=name)
def test_gradients_of_many_lengths(kind: Kind) -> None:
    some = made(kind, LENGTHS)
    first = run(kind, some, 1)
    some.check_gradients(first)
    bits = [x.tobytes() for x in first]
    with kernels(kind).backwards():
        assert [x.tobytes() for x in run(kind, some, 7)] == bits
    with kernels(kind).shuffled(3):
        assert [x.tobytes() for x in run(kind, some, 100)] == bits


@pytest.mark.parametrize("kind", [*WIDTHS, *WIDE], ids=name)
def test_widths(kind: Kind) -> None:
    some = made(kind, FEW)
    some.check_gradients(run(kind, some))


@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("kind", SOME, ids=name)
def test_rows_that_see_nothing(kind: Kind, density: float) -> None:
    for given in ("nan", "zero"):
        some = made(kind, [(40, 70), (3, 0), (130, 40)], density)
        some.no_pairs = given
        some.check_gradients(run(kind, some))


@pytest.mark.parametrize("no_pairs", ["nan", "zero"])
@pytest.mark.parametrize("floor", [None, -1e9])
@pytest.mark.parametrize("kind", [BIASED, SOME[1], SOME[3]], ids=name)
def test_rows_of_low_scores(kind: Kind, floor: float | None, no_pairs: str) -> None:
    some = made(kind, [(40, 70), (90, 35)])
    some.floor, some.no_pairs = floor, no_pairs
    assert some.bias is not None
    low = np.finfo(np.float32).min
    q_at, k_at = (x[:n] for x, n in zip(some.positions, (40, 70), strict=True))
    some.bias[0][:, q_at[3]] = low  # all scores are the same
    some.bias[0][:, q_at[4]] = -np.inf
    some.bias[0][:, :, k_at[:40]] = low  # no weight in the first steps
    some.bias[1][:, :, k_at[30:]] = -np.inf
    some.check_gradients(run(kind, some))


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [PLAIN, SOME[0], SOME[6]], ids=name)
def test_a_row_that_is_no_number_reaches_all_keys(kind: Kind, special: float) -> None:
    some = made(kind, [(70, 200), (33, 20)])
    some.no_pairs, some.q[69, 1, 3] = "zero", special
    with np.errstate(invalid="ignore"):
        found = run(kind, some)
        some.check_gradients(found)
    dq, dk, dv = found
    assert np.isnan(dq[69, 1]).all() and np.isnan(dk[:200, 1]).all()
    assert np.isnan(dv[:200, 1]).all()
    assert not np.isnan(dq[:69]).any() and not np.isnan(dv[:, 0]).any()
    assert not np.isnan(dq[70:]).any() and not np.isnan(dv[200:]).any()


@pytest.mark.parametrize("broadcast", [(0,), (1, 2), (0, 1, 3), (2,), (0, 1, 2, 3)], ids=str)
def test_bias_is_broadcast(broadcast: tuple[int, ...]) -> None:
    some = made(BIASED, [(9, 37), (34, 5)])
    some.bias = some.normal(*some.bias_shape(*broadcast))
    some.check_gradients(run(BIASED, some))


@pytest.mark.parametrize("scale", [0.0, -0.3, 60.0])
def test_scores_of_any_size(scale: float) -> None:
    some = made(PLAIN, [(9, 45)])
    for x in (some.q, some.k):  # float32 has their products without an error
        x[...] = some.rng.integers(-4, 5, x.shape)
    some.scale = float(np.float32(scale))
    some.check_gradients(run(PLAIN, some))


@pytest.mark.parametrize("kind", [WIDE[1], WIDE[2]], ids=name)
def test_more_steps_than_are_listed_at_once(kind: Kind) -> None:
    for lengths in ([(70, 1100), (3, 40)], [(1100, 70), (40, 3)]):
        some = made(kind, lengths, 0.01)
        some.heads = 1
        some.check_gradients(run(kind, some))


def counts(kind: Kind, case: GradCase, *, first: bool) -> Any:
    """What one of the kernels does."""
    case.gradients(kernels(kind), name(kind), first=first)
    return kernels(kind).launches[0].counts


def test_steps_that_nobody_sees_are_not_read() -> None:
    """A causal mask: tiles read steps up to the diagonal, or from it on."""
    d, dv, *_ = kind = SOME[0]
    tile, some = GradientTile(d, dv), made(kind, [(256, 256)])
    some.heads = 1
    for positions in some.positions:
        positions[:256] = np.arange(256)
    some.check_gradients(run(kind, some))
    steps = sum(tile.m * i for i in range(1, 1 + 256 // tile.m))
    of_queries, of_keys = (counts(kind, some, first=first) for first in (True, False))
    assert of_queries.async_bytes == (256 + 2 * steps) * (d + dv) * 4
    assert of_keys.async_bytes == ((256 + steps) * (d + dv) + steps * 4) * 4
    for each in (of_queries, of_keys):
        assert each.shared_wavefronts <= 1.02 * each.shared_ideal


@pytest.mark.parametrize("kind", [PLAIN, BIASED, *WIDTHS[2:]], ids=name)
def test_traffic(kind: Kind) -> None:
    """No banks of shared memory meet; products are as many as planned, and nothing else."""
    d, dv, bias, _ = kind
    tile, some = GradientTile(d, dv), made(kind, [(2 * GradientTile(d, dv).m, 64)])
    some.heads = 1
    queries, keys = 2 * tile.m, 64
    of_queries, of_keys = (counts(kind, some, first=first) for first in (True, False))
    columns, pairs = -(-np.array([d, dv]) // 32) * 32, queries * keys
    scored = sum(-(-width // 4) * 4 for width in (d, dv))
    for each, turns, sums in ((of_queries, 2, columns[0]), (of_keys, 1, columns.sum())):
        assert each.shared_wavefronts == each.shared_ideal
        rows = -(-keys // tile.m) * tile.m * queries if turns == 1 else pairs
        assert each.fmas >= turns * scored * pairs + sums * pairs
        assert each.fmas <= turns * (scored + bias + 1) * rows + (sums + 1) * rows + d * queries
    assert of_queries.async_bytes >= (queries + 2 * 2 * keys) * (d + dv) * 4 * (d % 4 == 0)


def test_leaves_when_not_chosen() -> None:
    assert all((x == CANARY).all() for x in run(PLAIN, made(PLAIN, [(5, 5)]), number=2))


def test_no_sequences() -> None:
    some = made(PLAIN, [(3, 3)])
    some.q_offsets, some.k_offsets, some.lengths = some.q_offsets[:1], some.k_offsets[:1], []
    assert all((x == CANARY).all() for x in run(PLAIN, some))


@pytest.mark.parametrize("kind", [BIASED, SOME[3], SOME[6], SOME[7]], ids=name)
def test_stays_in_bounds_whatever_lists_say(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    some = made(kind, [(20, 20)] * 5)
    for x in (some.q_offsets, some.k_offsets, *some.positions):
        x[...] = rng.integers(-300, 300, x.shape)
    run(kind, some)


@pytest.mark.here
def test_refuses() -> None:
    for changed in ({"dtype": "float16"}, {"d": 0}, {"dv": 257}):
        params = {"dtype": "float32", "d": 64, "dv": 64, "bias": 0} | changed
        with pytest.raises(ValueError, match="no attention_grad kernel of keys"):
            attention_grad_cuda.attention_grad("x", params, "keys")


TWINS: dict[str, tuple[Kind, Any, str, str]] = {
    "means_do_not_decay": (PLAIN, ThreadGradients.columns, "[Columns(self.key, (row,))]", "[]"),
    "lanes_apart": (PLAIN, collective.float_sum, "in lanes", "in ()"),
    "numbers_of_another_query": (PLAIN, ThreadGradients.numbers, "key * _SIDE", "key"),
    "numbers_not_spread": (PLAIN, Spread.start, "row % _SIDE * self._beside + row // _SIDE", "row"),
    "gradients_of_the_floor": (PLAIN, QueryTile._finish, "top < operands", "top > operands"),
    "no_mean": (PLAIN, QueryTile._add, " - numbers[_MEAN][r]", ""),
    "rows_behind_the_last": (
        PLAIN,
        GradTile.store,
        "tir.both(row < at.left, there > 0)",
        "there > 0",
    ),
    "no_barrier_between_tiles": (PLAIN, GradTile.prepare, "ptx.barrier()  #", "pass  #"),
    "rows_without_a_softmax": (SOME[0], QueryTile._store, "self.count > 0", "self.count < 0"),
    "keys_of_lost_queries": (
        SOME[0],
        KeyTile._lost,
        "self.sight is None",
        "self.sight is not None",
    ),
    "positions_not_turned": (SOME[0], pair_tests_cuda.Tests.bound, "(1, 0, 2)", "(0, 1, 2)"),
    "order_not_turned": (SOME[3], seen.turned, ", Step(NEGATE)]", "]"),
    "flags_not_turned": (SOME[4], seen.turned, "_SIDES.get(step.op, step.op)", "step.op"),
    "pairs_not_turned": (
        SOME[6],
        pair_tests_cuda.Tests.after_row,
        " * self.pairs.shape[2] if",
        " if",
    ),
    "steps_of_pairs": (SOME[6], SeenSteps._over_pairs, "if self._tests.are_turned", "if False"),
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
        for lengths, density in (([(40, 70), (70, 40), (200, 150)], 0.3), ([(900, 70)], 0.0005)):
            some = made(kind, lengths, density)
            some.heads = 1
            if density < 0.3 and some.sees is not None and some.sees.positions is not None:
                some.sees.positions[0, 2] = -40  # most rows of a tile see nothing
            if kind is SOME[6]:
                some.no_pairs = "zero"  # NaN would hide what is wrong elsewhere
            some.check_gradients(some.gradients(device, name(kind), blocks=1))
