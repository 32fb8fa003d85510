"""attention over bfloat16: every level, and a model of the instruction that any machine runs."""

import functools
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen.build.library import object_code
from pitc.codegen.build.link import Part, link_library
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import ATTENTION_STORED, KernelRequest
from pitc.ir.target import CpuLevel
from tests.codegen_kernels import Array, bits, normal
from tests.kernels.test_codegen_attention import Case
from tests.kernels.test_codegen_bf16 import MODEL, levels

LEVELS = {x.level: x for x in levels()}
PAIRED = [name for name, level in LEVELS.items() if level.multiplies_pairs]
WIDE = [name for name in LEVELS if name not in PAIRED]
WIDTHS = [(2, 6), (34, 18), (72, 64)]
KINDS: dict[str, dict[str, int]] = {
    "plain": {"bias": 0},
    "bias": {"bias": 1},
    "pairs": {"bias": 0, "pairs": 1},
    "sink": {"bias": 1, "pairs": 1, "sink": 1, "score_cap": 1},
    "bias and sink": {"bias": 1, "sink": 1, "score_cap": 1},
}
STORED: list[tuple[str, ...]] = [(), ("q", "v"), ("k", "result"), ("q", "k", "v", "result")]
MIDDLE = (34, 18)
"""Of these widths there are cases of every kind, and plain kernels that store anything."""
SIZES = [(0, 5), (1, 1), (1, 9), (16, 8), (17, 12), (31, 13), (33, 1), (40, 40), (64, 128)]
SIZES += [(70, 191), (9, 192), (50, 193), (1, 385), (3, 500)]


@functools.cache
def kernel(request: KernelRequest, level: CpuLevel) -> KernelLibrary:
    objects = {f"{request.symbol}_{level.level}": object_code(request, level)}
    path = Path(tempfile.mkdtemp(prefix="pitc-test-attention-")) / "kernels.so"
    link_library([Part(objects, ("__TVMBackend*",))], path)
    return KernelLibrary(path)


def stored_at(widths: tuple[int, int], kind: str = "plain") -> list[tuple[str, ...]]:
    return STORED if (widths, kind) == (MIDDLE, "plain") else [STORED[0], STORED[-1]]


def run(case: Case, stored: tuple[str, ...] | None, cuts: tuple[int, ...] = ()) -> Array:
    """What a case's kernel gives; None: that of float32."""
    case.stored = stored
    params = {"bias": int(case.bias is not None)}
    given = {"pairs": case.seen, "sink": case.sink, "score_cap": case.cap}
    params |= {name: 1 for name, x in given.items() if x is not None}
    params |= {ATTENTION_STORED[x]: 1 for x in stored or ()}
    dtype = "float32" if stored is None else "bfloat16"
    request = KernelRequest.of("attention", dtype, d=case.d, dv=case.dv, **params)
    return case.run(kernel(request, LEVELS[case.level]), cuts)


def near(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def halves(x: Array) -> Array:
    """Results of float32 as those that are stored as bfloat16."""
    return x.astype(ml_dtypes.bfloat16).view(np.uint16)


def rounded(case: Case) -> Case:
    """The case of operands that are rounded beforehand."""
    case.q, case.k, case.v = map(near, (case.q, case.k, case.v))
    return case


def off(got: Array, want: Array) -> float:
    """How far an answer is off, of the norm of the other one."""
    assert np.array_equal(np.isnan(got), np.isnan(want))
    distance = np.linalg.norm(np.nan_to_num(got - want))
    return float(distance / max(float(np.linalg.norm(np.nan_to_num(want))), 1e-30))


def cases(level: str, widths: tuple[int, int]) -> list[tuple[Case, str]]:
    """Of all sizes; of the middle widths, cases of every kind."""
    found = [(Case(widths, level, *size), "plain") for size in SIZES]
    if widths != MIDDLE:
        return found
    for queries, keys in ((1, 200), (31, 193), (32, 40), (7, 3)):
        for kind in KINDS:
            if KINDS[kind].get("pairs") and LEVELS[level].multiplies_tiles:
                continue  # lists leave pairs out, tiles do not
            case, rng = Case(widths, level, queries, keys), np.random.default_rng(keys)
            if KINDS[kind].get("pairs"):
                case.seen = rng.random((queries, keys)) < 0.4
            if KINDS[kind].get("bias"):
                case.bias = normal(rng, len(case.q) * len(case.k))
                case.strides = (0, len(case.k), 1)
            if KINDS[kind].get("sink"):
                case.sink, case.cap = 0.5, 3.0
            found.append((case, kind))
    return found


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("level", PAIRED)
def test_near_float64(level: str, widths: tuple[int, int]) -> None:
    """Of operands that are rounded, but for the weights: each is 2^-9 off at most."""
    for case, kind in cases(level, widths):
        got, size = run(case, ()), (case.queries, case.keys)
        assert off(got, rounded(case).expected()) <= 3e-3, (kind, size)
        assert np.array_equal(bits(run(case, ())), bits(got)), (kind, size)  # rounded once


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_the_same_bits_however_it_is_stored(level: str, widths: tuple[int, int]) -> None:
    """Without the instruction as well, if operands are rounded: that rounds nothing itself."""
    for case, kind in cases(level, widths):
        rounded(case)
        plain = run(case, ())
        for stored in stored_at(widths, kind)[1:]:
            want = halves(plain) if "result" in stored else plain
            got = run(case, stored)
            if "result" in stored:  # a NaN has bits of its own
                got, want = (np.where(np.isnan(plain), 0, x) for x in (got, want))
            assert np.array_equal(got, want, equal_nan=True), (kind, case.queries, case.keys)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("level", WIDE)
def test_without_the_instruction_it_is_float32(level: str, widths: tuple[int, int]) -> None:
    for case, kind in cases(level, widths):
        rounded(case)
        for stored in ((), ("q", "v")) if (widths, kind) == (MIDDLE, "plain") else ((),):
            got, want = run(case, stored), run(case, None)
            assert np.array_equal(got, want, equal_nan=True), (kind, case.queries, case.keys)


@pytest.mark.parametrize("level", LEVELS)
def test_bits_do_not_depend_on_the_query_block(level: str) -> None:
    """Nor on whether a query is alone."""
    for widths in WIDTHS:
        for queries, keys in ((33, 250), (20, 1), (40, 17), (5, 0), (5, 192), (5, 385)):
            for stored in stored_at(widths):
                case = Case(widths, level, queries, keys)
                whole = run(case, stored)
                for cuts in (tuple(range(1, queries)), (min(16, queries), min(17, queries))):
                    assert np.array_equal(run(case, stored, cuts), whole, equal_nan=True)


@pytest.mark.skipif("v4_bf16" not in LEVELS, reason="this machine has no AVX512-BF16")
def test_the_model_is_as_near_as_the_instruction() -> None:
    for stored in (STORED[0], STORED[-1]):
        for case, kind in cases("v4_bf16", MIDDLE):
            native = run(case, stored)
            case.level = MODEL.level
            # Levels differ in how they compute exponentials, so a weight may round otherwise.
            got, want = (
                x.view(ml_dtypes.bfloat16).astype(np.float32) if "result" in stored else x
                for x in (run(case, stored), native)
            )
            assert off(got, want) <= 3e-3, (kind, case.queries, case.keys)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_without_keys_and_nan_softmax(level: str) -> None:
    """NaN and infinity act as in float32: in a query on its row, in a key on every row."""
    for stored in STORED[:3]:
        for to_zero in (False, True):
            fill = 0.0 if to_zero else np.nan
            for queries in (1, 40):
                case = Case(MIDDLE, level, queries, 0)
                case.nan_to_zero = to_zero
                got = run(case, stored)
                if "result" in stored:
                    got = got.view(ml_dtypes.bfloat16).astype(np.float32)
                assert np.array_equal(got, np.full((queries, 18), fill), equal_nan=True)
    for value in (np.nan, np.inf, -np.inf):
        for queries in (1, 11):
            case = Case(MIDDLE, level, queries, 71)
            case.q[case.q0, case.hq, 5] = value
            got = run(case, ())
            assert np.isnan(got[0]).all() and not np.isnan(got[1:]).any()
            case = Case(MIDDLE, level, queries, 71)
            case.k[case.k0 + 70, case.hk, 0] = np.nan
            assert np.isnan(run(case, ())).all()
            case = Case(MIDDLE, level, queries, 71)
            case.v[case.k0 + 70, case.hv, 9] = value
            got = run(case, ())
            assert not np.isfinite(got[:, 9]).any()
            assert np.isfinite(np.delete(got, 9, axis=1)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_neighbours_of_the_key_range_are_not_read(level: str) -> None:
    """Of an odd number of keys above all."""
    for stored in STORED:
        for queries, keys in ((33, 51), (1, 51), (33, 193), (1, 1)):
            case = Case(MIDDLE, level, queries, keys)
            clean = run(case, stored)
            for x in (case.k, case.v):
                x[: case.k0] = np.nan
                x[case.k0 + keys :] = np.nan
            assert np.array_equal(run(case, stored), clean)


def test_odd_widths_have_no_kernel() -> None:
    for d, dv in ((33, 64), (64, 7)):
        request = KernelRequest.of("attention", "bfloat16", d=d, dv=dv, bias=0)
        with pytest.raises(ValueError, match="words are of two numbers"):
            object_code(request, MODEL)
