"""stored_rows kernels: rows of a right operand's transpose, in any parts."""

import itertools

import numpy as np
import pytest

from pitc.codegen.families import stored_rows
from pitc.ir.kernel import MASK, KernelRequest
from pitc.ir.target import CPU_LEVELS
from tests.codegen_kernels import IS_EMULATED, NEWEST, Array, bits, guarded, normal
from tests.codegen_kernels import newest_library as library

#: Below, at and above a square and a strip.
SHAPES = ((1, 1), (5, 17), (16, 16), (31, 64), (64, 65), (70, 130), (128, 48), (300, 200))
UNIT = 16
STORED = (*itertools.product(("kn", "nk"), (0, 1)), ("kn", MASK))
ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
CANARY = np.float32(7.25)


def request_of(k: int, n: int, stored: str, factor: int) -> KernelRequest:
    return KernelRequest.of("stored_rows", k=k, n=n, stored=stored, factor=factor)


REQUESTS = tuple(request_of(*shape, *how) for shape in SHAPES for how in STORED)


def made(
    level: str,
    request: KernelRequest,
    s: list[Array],
    rows: tuple[int, int],
    ks: tuple[int, int],
    at_end: bool,
) -> tuple[Array, Array]:
    """Some columns of some rows, each of which has room for more, and their bits."""
    count, words = rows[1] - rows[0], (ks[1] - ks[0] + 63) // 64 + 1
    out = guarded(np.full((count, ks[1] - ks[0] + 21), CANARY, np.float32), at_end=at_end)
    found = guarded(np.full((count, words), -2, np.int64), at_end=at_end)
    memory = [guarded(x, at_end=at_end) for x in s]
    library(*REQUESTS).call(f"{request.symbol}_{level}", *memory, out, found, rows[0], count, *ks)
    return out.copy(), found.copy()


def check(
    level: str, request: KernelRequest, s: list[Array], rows: tuple[int, int], ks: tuple[int, int]
) -> None:
    """What is made is right where something lives around it, and the bits are everywhere."""
    params = dict(request.params)
    with np.errstate(invalid="ignore"):
        whole = s[0] * s[1] if params["factor"] else s[0]
    stored = whole.T if params["stored"] == "kn" else whole
    want = np.ascontiguousarray(stored[slice(*rows), slice(*ks)])
    out, found = made(level, request, s, rows, ks, at_end=rows[0] == 0)
    live = np.zeros((len(want), (found.shape[1] - 1) * 64), np.bool_)
    live[:, : want.shape[1]] = want != 0
    assert (np.unpackbits(found[:, :-1].view(np.uint8), axis=1, bitorder="little") == live).all()
    assert (found[:, -1] == -2).all() and (out[:, want.shape[1] :] == CANARY).all()
    for r in range(0, len(want), UNIT):
        for k in range(0, want.shape[1], 64):
            piece = np.s_[r : r + UNIT, k : min(k + 64, want.shape[1])]
            here, right = out[piece].copy(), want[piece].copy()
            same = (here == 0) & (right == 0)  # of any sign
            if IS_EMULATED:  # a NaN that a product makes has another sign there
                same |= np.isnan(here) & np.isnan(right)
            if right.any():
                assert ((bits(here) == bits(right)) | same).all()


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize("how", STORED, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(shape: tuple[int, int], how: tuple[str, int], level: str) -> None:
    (k, n), (stored, factor) = shape, how
    rng = np.random.default_rng(k)
    matrices = [(k, n) if stored == "kn" else (n, k)] * (1 + bool(factor))
    for live in (0.0, 0.001, 0.05, 1.0):
        s = [normal(rng, *shape) * (rng.random(shape) < live) for shape in matrices]
        s = [x.astype(np.float32) for x in s]
        if live:
            s[-1 if factor == MASK else 0].flat[rng.integers(0, s[0].size, len(ODD))] = ODD
        cuts = [0, *(r for r in (UNIT, 80) if r < n), n]
        parts = [(k0, min(k0 + 64, k)) for k0 in range(0, k, 64)]
        for rows in itertools.combinations(dict.fromkeys(cuts), 2):
            for ks in ((0, k), *parts):
                check(level, request_of(k, n, *how), s, rows, ks)


@pytest.mark.parametrize("level", NEWEST)
@pytest.mark.parametrize("at", [(0, 0), (63, 15), (64, 16), (17, 40), (255, 199), (299, 100)])
def test_one_live_element(at: tuple[int, int], level: str) -> None:
    """All that stands around it is there, also what was passed over before it was found."""
    s = np.zeros((300, 200), np.float32)
    s[at] = ODD[-1]
    for factor in (0, 1, MASK):
        request = request_of(300, 200, "kn", factor)
        other = np.full_like(s, -1)
        given = [other, s] if factor == MASK else [s, other][: 1 + factor]
        check(level, request, given, (0, 200), (0, 300))


@pytest.mark.parametrize("level", NEWEST)
def test_dead_pieces_are_not_written(level: str) -> None:
    s = np.zeros((300, 200), np.float32)
    s[70, 30] = 1
    out, _ = made(level, request_of(300, 200, "kn", 0), [s], (0, 200), (0, 300), at_end=True)
    written = out[:, :300] != CANARY
    assert written[16:32, 64:128].all() and written.sum() == 16 * 64


def test_impossible_kernels_are_refused() -> None:
    for params in ({"k": 0, "n": 1, "stored": "kn"}, {"k": 1, "n": 1, "stored": "kk"}):
        with pytest.raises(ValueError, match="no stored_rows kernel"):
            stored_rows.prim_func("x", params | {"factor": 0}, CPU_LEVELS[0])
