"""attention kernels against float64, on both CPU levels, with guarded memory."""

import ctypes
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import IS_EMULATED, LEVELS, Array, bits, guarded, library, normal

WIDTHS = [(1, 1), (5, 7), (33, 20), (64, 64), (128, 256)]
BIASED = [(33, 20), (64, 64)]
LISTED = [((5, 7), 0), ((33, 20), 1), ((64, 64), 0)]
REQUESTS = (
    *(KernelRequest.of("attention", d=d, dv=dv, bias=0) for d, dv in WIDTHS),
    *(KernelRequest.of("attention", d=d, dv=dv, bias=1) for d, dv in BIASED),
    *(KernelRequest.of("attention", d=d, dv=dv, bias=b, pairs=1) for (d, dv), b in LISTED),
)
CAPPED = tuple(
    KernelRequest.of("attention", d=33, dv=20, bias=1, score_cap=1, **more)
    for more in ({}, {"pairs": 1})
)
SUNK = tuple(
    KernelRequest.of("attention", d=33, dv=20, bias=b, sink=1, **more)
    for b, more in ((0, {}), (0, {"pairs": 1}), (1, {"pairs": 1, "score_cap": 1}))
)
HEADS = 3
CANARY = np.float32(7.25)

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(*REQUESTS, *CAPPED, *SUNK)


class Case:
    """Random q, k, v of one sequence that lies inside longer buffers, and calls of the kernel."""

    def __init__(self, widths: tuple[int, int], level: str, queries: int, keys: int) -> None:
        self.d, self.dv = widths
        self.level, self.queries, self.keys = level, queries, keys
        rng = np.random.default_rng(queries * 1000 + keys)
        self.q = normal(rng, queries + 5, HEADS, self.d)
        self.k = normal(rng, keys + 4, HEADS + 1, self.d)
        self.v = normal(rng, keys + 4, HEADS + 2, self.dv)
        self.scale = np.float32(1 / np.sqrt(self.d))
        self.q0, self.k0 = 2, 1
        self.hq, self.hk, self.hv, self.ho = 1, 3, 0, 2
        self.nan_to_zero = False
        self.bias: Array | None = None
        self.positions: tuple[Array, ...] = (np.arange(len(self.q)), np.arange(len(self.k)))
        self.strides: tuple[int, int, int] = (0, 0, 0)
        self.seen: Array | None = None  # which query sees which key
        self.crowded = False  # lists have all keys, and say what queries of no lane see
        self.score_steps: reference.Steps | None = None
        self.score_scale = 1.0
        self.weight_steps: reference.Steps | None = None
        self.cap: float | None = None
        self.sink: float | None = None
        self.stored: tuple[str, ...] | None = None  # as bfloat16, of kernels of that

    def heads(self) -> tuple[Array, Array, Array]:
        """Queries, keys and values that the kernel is to read."""
        rows, cols = slice(self.q0, self.q0 + self.queries), slice(self.k0, self.k0 + self.keys)
        return self.q[rows, self.hq], self.k[cols, self.hk], self.v[cols, self.hv]

    def expected(self) -> Array:
        rows, cols = slice(self.q0, self.q0 + self.queries), slice(self.k0, self.k0 + self.keys)
        bias = None
        if self.bias is not None:
            base, sq, sk = self.strides
            qpos, kpos = self.positions[0][rows], self.positions[1][cols]
            bias = self.bias[base + qpos[:, None] * sq + kpos * sk].astype(np.float64)
        if self.seen is not None:
            bias = np.where(self.seen, 0.0 if bias is None else bias, -np.inf)
        return reference.attention(
            *self.heads(),
            float(self.scale),
            bias,
            self.nan_to_zero,
            self.score_steps,
            self.score_scale,
            self.weight_steps,
            self.cap,
            self.sink,
        )

    def order(self) -> Array:
        """The queries in an order in which they are listed."""
        return np.random.default_rng(self.queries).permutation(self.queries)

    def listed(self, queries: Array) -> tuple[Array, Array]:
        """The keys that some queries see, and which of these do; other entries around them."""
        assert self.seen is not None and len(queries) <= 32
        seen = self.seen[queries]
        keys = np.arange(seen.shape[1]) if self.crowded else np.flatnonzero(seen.any(0))
        numbers = np.arange(len(seen), dtype=np.uint64)[:, None]
        bits = (seen[:, keys].astype(np.uint64) << numbers).sum(0).astype(np.uint32)
        if self.crowded:
            bits |= np.uint32((1 << 32) - (1 << len(seen)))
        around = [np.pad(x, (3, 2)) for x in (keys + self.k0, bits.view(np.int32))]
        return around[0].astype(np.int32), around[1].astype(np.int32)

    def run(self, kernels: KernelLibrary, cuts: tuple[int, ...] = ()) -> Array:
        """The rows of the sequence; everything else must be untouched."""
        stored = self.stored or ()
        canary = CANARY if "result" not in stored else np.uint16(7)
        out = np.full((len(self.q), HEADS, self.dv), canary)
        end = bool((self.queries + self.keys) % 2)
        given = {"q": self.q, "k": self.k, "v": self.v}
        given = {x: as_words(a) if x in stored else a for x, a in given.items()}
        q, k, v, o = (guarded(x, at_end=end) for x in (*given.values(), out))
        extra: list[Any] = []
        if self.bias is not None:
            positions = (p.astype(np.int32) for p in self.positions)
            extra = [guarded(x, at_end=end) for x in (self.bias, *positions)]
        symbol = f"attention_d{self.d}_v{self.dv}{'_bias' if extra else ''}"
        symbol += "_pairs" if self.seen is not None else ""
        scale, steps, sink = float(self.scale), list[float](), list[float]()
        if self.sink is not None:
            sink = [self.sink]
            symbol += "_sink"
        if self.cap is not None:
            steps = [self.cap]
            symbol += "_score_cap"
        if self.score_steps is not None:
            step, below, above = self.score_steps
            scale, steps = scale / step, [float(-below), float(above), step * self.score_scale]
            symbol += "_score_steps"
        if self.weight_steps is not None:
            steps += [self.weight_steps[0], float(self.weight_steps[2])]
            symbol += "_weight_steps"
        symbol += "" if self.stored is None else "_".join(["_bf16", *stored])
        heads = (self.hq, self.hk, self.hv, self.ho)
        tail = self.strides if extra else ()
        bounds = [0, *cuts, self.queries]
        for a, b in itertools.pairwise(bounds):
            first, last, lists = self.k0, self.k0 + self.keys, list[Array]()
            if self.seen is not None:
                order = np.full(len(self.q), -1, np.int32)
                order[self.q0 : self.q0 + self.queries] = self.q0 + self.order()
                found = (*self.listed(self.order()[a:b]), order)
                first, last = 3, 3 + len(found[0]) - 5
                lists = [guarded(x, at_end=end) for x in found]
            place = (self.q0 + a, self.q0 + b, first, last)
            numbers = (scale, *sink, *steps, int(self.nan_to_zero), *heads, *place, *tail)
            kernels.call(f"{symbol}_{self.level}", q, k, v, *extra, *lists, o, *numbers)
        got = o[self.q0 : self.q0 + self.queries, self.ho].copy()
        o[self.q0 : self.q0 + self.queries, self.ho] = canary
        assert (o == canary).all()
        return got


def as_words(x: Array) -> Array:
    """Numbers of rows as words of two of bfloat16."""
    return np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)).view(np.uint32).view(np.float32)


def close(got: Array, want: Array) -> bool:
    """Equal NaNs, and 3e-6 absolute for values that are averages of standard normals."""
    same = np.array_equal(np.isnan(got), np.isnan(want))
    return same and bool(np.nanmax(np.abs(got - want), initial=0) <= 3e-6)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_values_of_many_sizes(kernels: KernelLibrary, widths: tuple, level: str) -> None:
    sizes = [(0, 5), (1, 1), (1, 9), (16, 8), (17, 12), (31, 13), (33, 1), (40, 40), (64, 128)]
    sizes += [(70, 191), (9, 192), (50, 193), (3, 500)]
    for queries, keys in sizes:
        case = Case(widths, level, queries, keys)
        assert close(case.run(kernels), case.expected()), (queries, keys)


@pytest.mark.parametrize("widths", [(5, 7), (64, 64)], ids=str)
def test_bits_do_not_depend_on_the_query_block(
    kernels: KernelLibrary, widths: tuple, level: str
) -> None:
    for queries, keys in ((64, 128), (33, 250), (100, 17)):
        case = Case(widths, level, queries, keys)
        whole = case.run(kernels)
        for cuts in ((1,), (16, 17, 32), (7, 7, 31)):
            assert np.array_equal(bits(case.run(kernels, cuts)), bits(whole))


@pytest.mark.parametrize("widths", [*BIASED, (5, 7), (128, 256)], ids=str)
def test_one_query_has_the_bits_it_has_among_others(
    kernels: KernelLibrary, widths: tuple, level: str
) -> None:
    singles = (1, 2, 3, 4)
    for keys in (0, 1, 15, 16, 17, 191, 192, 193, 400):
        case = Case(widths, level, 5, keys)
        if widths in BIASED:
            case.strides = (3, len(case.k), 1)
            case.bias = normal(np.random.default_rng(keys), 3 + len(case.q) * len(case.k))
            case.bias[np.random.default_rng(1).random(case.bias.shape) < 0.2] = -np.inf
        for spoilt in (None, np.nan, np.inf, -np.inf):
            if spoilt is not None:
                case.q[case.q0 + 1, case.hq, 2] = spoilt
                case.k[case.k0 + keys // 2, case.hk, 0] = spoilt
            whole = case.run(kernels)
            assert np.array_equal(case.run(kernels, singles), whole, equal_nan=True), keys
            if spoilt is None:
                assert np.array_equal(bits(case.run(kernels, singles)), bits(whole))
                assert close(whole, case.expected()) or not keys


@pytest.mark.skipif(IS_EMULATED, reason="it looks into a library of this process")
def test_long_key_range_needs_no_more_workspace(kernels: KernelLibrary, level: str) -> None:
    sizes: list[int] = []
    library_handle = kernels._library
    slot = ctypes.c_void_p.in_dll(library_handle, "__TVMBackendAllocWorkspace")
    kind = ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
    )
    before = slot.value
    original = kind(before or 0)

    def spy(device: int, number: int, size: int, code: int, width: int) -> Any:
        sizes.append(size)
        return original(device, number, size, code, width)

    callback = kind(spy)
    slot.value = ctypes.cast(callback, ctypes.c_void_p).value
    try:
        seen = []
        for keys in (16, 8192):
            sizes.clear()
            case = Case((64, 64), level, 20, keys)
            assert close(case.run(kernels), case.expected())
            seen.append(sum(sizes))
    finally:
        slot.value = before
    assert seen[0] == seen[1] <= 64 * 1024


@pytest.mark.parametrize("to_zero", [False, True])
def test_rows_without_keys_and_nan_softmax(
    kernels: KernelLibrary, level: str, to_zero: bool
) -> None:
    fill = 0.0 if to_zero else np.nan
    case = Case((64, 64), level, 40, 0)
    case.nan_to_zero = to_zero
    assert np.array_equal(case.run(kernels), np.full((40, 64), fill), equal_nan=True)

    for value in (np.nan, np.inf, -np.inf):  # in one query: its row only
        case = Case((64, 64), level, 40, 70)
        case.nan_to_zero = to_zero
        clean = case.run(kernels)
        case.q[case.q0 + 11, case.hq, 5] = value
        got = case.run(kernels)
        assert np.array_equal(got[11], np.full(64, fill), equal_nan=True)
        rest = np.arange(40) != 11
        assert np.array_equal(bits(got[rest]), bits(clean[rest]))

    case = Case((64, 64), level, 40, 70)  # NaN in one key: every row
    case.nan_to_zero = to_zero
    case.k[case.k0 + 69, case.hk, 0] = np.nan
    assert np.array_equal(case.run(kernels), np.full((40, 64), fill), equal_nan=True)

    case = Case((64, 64), level, 40, 70)  # NaN in a value is no NaN softmax
    case.nan_to_zero = to_zero
    case.v[case.k0 + 3, case.hv, 9] = np.nan
    got = case.run(kernels)
    assert np.isnan(got[:, 9]).all() and not np.isnan(np.delete(got, 9, axis=1)).any()


def test_neighbours_of_the_key_range_are_not_read(kernels: KernelLibrary, level: str) -> None:
    case = Case((64, 64), level, 33, 50)
    clean = case.run(kernels)
    for x in (case.k, case.v):
        x[: case.k0] = np.nan
        x[case.k0 + case.keys :] = np.nan
    assert np.array_equal(bits(case.run(kernels)), bits(clean))


@pytest.mark.parametrize("widths", BIASED, ids=str)
@pytest.mark.parametrize("kind", ["full", "per key", "per query", "one", "strided", "gaps"])
def test_bias_of_every_stride(kernels: KernelLibrary, widths: tuple, kind: str, level: str) -> None:
    rng = np.random.default_rng(3)
    for queries, keys in ((1, 1), (17, 16), (40, 15), (40, 50), (33, 230)):
        case = Case(widths, level, queries, keys)
        gap = 3 if kind == "gaps" else 1
        case.positions = tuple(
            np.sort(rng.permutation(gap * len(x))[: len(x)]) for x in (case.q, case.k)
        )
        nq, nk = gap * len(case.q), gap * len(case.k)
        case.strides = {
            "full": (3, nk, 1),
            "gaps": (3, nk, 1),
            "per key": (3, 0, 1),
            "per query": (3, 1, 0),
            "one": (2, 0, 0),
            "strided": (1, 1, nq),
        }[kind]
        base, sq, sk = case.strides
        case.bias = normal(rng, base + (nq - 1) * sq + (nk - 1) * sk + 1)
        assert close(case.run(kernels), case.expected()), (queries, keys)


def test_sixteen_positions_with_gaps_are_not_taken_for_a_square(
    kernels: KernelLibrary, level: str
) -> None:
    case = Case((64, 64), level, 20, 10)
    kpos = np.arange(len(case.k)) + 100
    kpos[case.k0 : case.k0 + 10] = [0, 1, 2, 4, 6, 8, 10, 12, 14, 15]
    case.positions = (np.arange(len(case.q)), kpos)
    case.strides = (0, 16, 1)
    case.bias = normal(np.random.default_rng(1), 16 * len(case.q))
    assert close(case.run(kernels), case.expected())


@pytest.mark.parametrize("masked", [-1e9, -np.inf, float(np.finfo(np.float32).min)])
def test_masking_biases(kernels: KernelLibrary, level: str, masked: float) -> None:
    for keys in (60, 400):
        case = Case((64, 64), level, 40, keys)
        case.strides = (0, len(case.k), 1)
        bias = np.zeros((len(case.q), len(case.k)), np.float32)
        bias[:, case.k0 + 20 : case.k0 + 50] = masked
        bias[case.q0 + 7] = masked  # no key left
        bias[case.q0 + 8, : case.k0 + keys - 5] = masked  # only the last keys, in the last block
        case.bias = bias.reshape(-1)
        got, want = case.run(kernels), case.expected()
        if np.isfinite(masked):  # float32 has no room for the scores beside such a bias
            want[7] = case.v[case.k0 : case.k0 + keys, case.hv].mean(axis=0)
        assert close(got, want), keys


def test_dead_keys_weigh_exactly_nothing(kernels: KernelLibrary, level: str) -> None:
    case = Case((64, 64), level, 40, 60)
    case.strides = (0, len(case.k), 1)
    bias = np.zeros((len(case.q), len(case.k)), np.float32)
    bias[:, case.k0 + 30 :] = np.float32(-1e9)
    case.bias = bias.reshape(-1)
    clean = case.run(kernels)
    case.v[case.k0 + 30 :] = np.float32(1e30)
    assert np.array_equal(bits(case.run(kernels)), bits(clean))


def test_large_scores(kernels: KernelLibrary, level: str) -> None:
    case = Case((33, 20), level, 40, 300)
    case.q *= np.float32(30)
    got, want = case.run(kernels), case.expected()
    # Scores up to 150 carry an error of about 1e-5, which is the relative error of a weight.
    assert np.abs(got - want).max() <= 1e-4


@pytest.mark.parametrize("cap", [50.0, -0.5, 0.0])
def test_capped_scores(kernels: KernelLibrary, level: str, cap: float) -> None:
    """Of one query and of many, with a bias, listed or not; scores are far beyond the cap, too."""
    rng = np.random.default_rng(9)
    for queries, keys, share in ((1, 1, None), (1, 200, None), (35, 230, None), (31, 230, 0.4)):
        case = Case((33, 20), level, queries, keys)
        case.scale, case.cap = np.float32(0.8 / 33**0.5), cap
        case.q[case.q0, case.hq] *= 40
        case.bias, case.strides = normal(rng, len(case.q) * len(case.k)), (0, len(case.k), 1)
        if share is not None:
            case.seen = rng.random((queries, keys)) < share
            case.seen[:, 0] = True
        got = case.run(kernels)
        assert np.abs(got - case.expected()).max() <= 2e-5
        if share is None:
            singles = tuple(range(1, queries))
            assert np.array_equal(bits(case.run(kernels, singles)), bits(got))


@pytest.mark.parametrize("sink", [0.0, -1.5, 30.0, -200.0, -np.inf, np.inf, np.nan])
def test_a_sink_has_weight_and_no_value(kernels: KernelLibrary, level: str, sink: float) -> None:
    """Of one query and of many, listed or not; without keys a row is 0 beside a finite sink."""
    rng = np.random.default_rng(9)
    for queries, keys in ((1, 0), (1, 1), (1, 300), (35, 0), (35, 7), (32, 230)):
        for share in (None, 0.0, 0.3) if queries <= 32 else (None,):
            case = Case((33, 20), level, queries, keys)
            case.sink = sink
            case.seen = None if share is None else rng.random((queries, keys)) < share
            for case.nan_to_zero in (False, True):
                got = case.run(kernels)
                assert close(got, case.expected()), (queries, keys, share)
            if share is None:
                singles = tuple(range(1, queries))
                assert np.array_equal(bits(case.run(kernels, singles)), bits(got))
            if np.isfinite(sink) and (share == 0 or not keys):
                assert not got.any()


def test_a_sink_beside_a_cap_a_bias_and_lists(kernels: KernelLibrary, level: str) -> None:
    """The sink itself is neither capped nor biased."""
    rng = np.random.default_rng(4)
    for queries, keys in ((1, 200), (31, 230)):
        case = Case((33, 20), level, queries, keys)
        case.cap, case.sink = 3.0, 4.5
        case.bias, case.strides = normal(rng, len(case.q) * len(case.k)), (0, len(case.k), 1)
        case.seen = rng.random((queries, keys)) < 0.4
        assert close(case.run(kernels), case.expected()), queries


@pytest.mark.parametrize(("widths", "biased"), LISTED, ids=str)
def test_pairs_that_are_listed(
    kernels: KernelLibrary, widths: tuple, biased: int, level: str
) -> None:
    """Each query sees keys of its tile's list by its bit: some, one, all, or none."""
    rng = np.random.default_rng(7)
    sizes = [(1, 1), (1, 40), (1, 500), (3, 0), (7, 40), (16, 12), (17, 193), (32, 200), (31, 500)]
    for queries, keys in sizes:
        for share in (0.0, 0.05, 0.5, 1.0):
            case = Case(widths, level, queries, keys)
            case.seen = rng.random((queries, keys)) < share
            if biased:
                case.strides = (3, len(case.k), 1)
                case.bias = normal(rng, 3 + len(case.q) * len(case.k))
            for case.nan_to_zero in (False, True):
                wanted = case.expected()
                assert close(case.run(kernels), wanted), (queries, keys, share)
            case.crowded = True
            case.k[case.k0 : case.k0 + keys][~case.seen.any(0)] = np.nan
            assert close(case.run(kernels), wanted), (queries, keys, share)


def test_bits_of_a_query_do_not_depend_on_its_list(kernels: KernelLibrary, level: str) -> None:
    """Keys that it does not see are -inf: exp of that is 0, and changes no bit of a block's sum."""
    case = Case((64, 64), level, 32, 150)
    case.seen = np.random.default_rng(5).random((32, 150)) < 0.2
    whole = case.run(kernels)
    for cuts in ((16,), (16, 24), (1, 2, 4, 5, 31)):
        assert np.array_equal(bits(case.run(kernels, cuts)), bits(whole))
