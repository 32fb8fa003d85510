"""attention_grad kernels against float64, on both CPU levels, with guarded memory."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pitc.codegen import reference
from pitc.codegen.call import KernelLibrary
from pitc.ir.kernel import KernelRequest
from tests.codegen_kernels import LEVELS, Array, bits, guarded, library, normal

WIDTHS = [(1, 1), (5, 7), (33, 20), (64, 64), (128, 256)]
KINDS = [((33, 20), "bias"), ((64, 64), "pairs"), ((5, 7), "bias pairs")]
KINDS += [((5, 7), "bias zero"), ((33, 20), "pairs zero")]
REQUESTS = tuple(
    KernelRequest.of(
        "attention_grad", d=d, dv=dv, **{x: int(x in kind) for x in ("bias", "pairs", "zero")}
    )
    for (d, dv), kind in [*((w, "") for w in WIDTHS), *KINDS]
)
HEADS = 3
CANARY = np.float32(7.25)
SIZES = [(0, 5), (1, 1), (1, 9), (16, 8), (17, 12), (31, 13), (33, 1), (40, 0), (64, 128)]
SIZES += [(70, 191), (9, 192), (50, 193), (3, 500)]

pytestmark = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> KernelLibrary:
    return library(*REQUESTS)


class Case:
    """One sequence inside longer buffers, and the calls of the kernel that it takes."""

    def __init__(self, widths: tuple[int, int], kind: str, queries: int, keys: int) -> None:
        self.d, self.dv = widths
        self.kind, self.queries, self.keys = kind, queries, keys
        rng = np.random.default_rng(queries * 1000 + keys)
        self.q, self.g = (
            normal(rng, queries + 5, HEADS, self.d),
            normal(rng, queries + 5, 1, self.dv),
        )
        self.k = normal(rng, keys + 4, HEADS + 1, self.d)
        self.v = normal(rng, keys + 4, HEADS + 2, self.dv)
        self.scale = float(np.float32(1 / np.sqrt(self.d)))
        self.q0, self.k0 = 2, 1
        self.heads = (1, 3, 0, 0, 2)  # of q, k, v, g and of what is written
        self.bias = normal(rng, 3 + len(self.q) * len(self.k)).reshape(-1)
        self.seen = rng.random((queries, keys)) < 0.3
        self.seen[:, :1] = True
        if "zero" in kind:  # some rows see no key
            self.seen[::3] = False
            self.bias[rng.random(len(self.bias)) < 0.5] = -np.inf

    def arguments(self) -> dict[str, Array]:
        """What the reference takes."""
        rows, keys = slice(self.q0, self.q0 + self.queries), slice(self.k0, self.k0 + self.keys)
        hq, hk, hv, hg, _ = self.heads
        found = {"q": self.q[rows, hq], "k": self.k[keys, hk], "v": self.v[keys, hv]}
        return found | {"g": self.g[rows, hg]}

    def expected(self) -> tuple[Array, ...]:
        bias = np.zeros((self.queries, self.keys))
        if "bias" in self.kind:
            rows = np.arange(self.q0, self.q0 + self.queries)[:, None]
            bias = self.bias[3 + rows * len(self.k) + np.arange(self.k0, self.k0 + self.keys)]
        if "pairs" in self.kind:
            bias = np.where(self.seen, bias, -np.inf)
        x = self.arguments()
        rows, no_pairs = (x["q"], x["k"], x["v"], x["g"]), "zero" if "zero" in self.kind else "nan"
        return reference.attention_grad(*rows, self.scale, bias, no_pairs=no_pairs)

    def run(self, kernels: KernelLibrary, level: str, cuts: tuple[int, ...] = ()) -> list[Array]:
        """The gradients of the sequence; everything else must be untouched."""
        end = bool((self.queries + self.keys) % 2)
        outs = [np.full((n, HEADS, width), CANARY) for n, width in self._results()]
        ranges = self._ranges()
        for out, (first, last) in zip(outs[1:], ranges[1:], strict=True):
            out[first:last, self.heads[-1]] = 0
        outs = [guarded(x, at_end=end) for x in outs]
        given = [guarded(x, at_end=end) for x in (self.q, self.k, self.v, self.g)]
        extra, tail = list[Array](), tuple[int, ...]()
        if "bias" in self.kind:
            places = (np.arange(len(x), dtype=np.int32) for x in (self.q, self.k))
            extra, tail = (
                [guarded(x, at_end=end) for x in (self.bias, *places)],
                (3, len(self.k), 1),
            )
        name = "_".join([f"attention_grad_d{self.d}_v{self.dv}", *self.kind.split(), level])
        bounds = [0, *cuts, self.queries]
        if "pairs" in self.kind:
            bounds = [*range(0, self.queries, 32), self.queries]
        for a, b in pairwise(bounds):
            keys, lists = (self.k0, self.k0 + self.keys), list[Array]()
            if "pairs" in self.kind:
                lists = [guarded(x, at_end=end) for x in self._lists(a, b)]
                keys = 3, len(lists[0]) - 2
            place = (self.q0 + a, self.q0 + b, *keys)
            numbers: tuple[Any, ...] = (self.scale, *self.heads, *place, *tail)
            kernels.call(name, *given, *extra, *lists, *outs, *numbers)
        found = [
            out[first:last, self.heads[-1]].copy()
            for out, (first, last) in zip(outs, ranges, strict=True)
        ]
        for out, (first, last) in zip(outs, ranges, strict=True):
            out[first:last, self.heads[-1]] = CANARY
            assert (out == CANARY).all()
        return found

    def _results(self) -> list[tuple[int, int]]:
        return [(len(self.q), self.d), (len(self.k), self.d), (len(self.k), self.dv)]

    def _ranges(self) -> list[tuple[int, int]]:
        of_keys = self.k0, self.k0 + self.keys
        return [(self.q0, self.q0 + self.queries), of_keys, of_keys]

    def _lists(self, a: int, b: int) -> tuple[Array, Array, Array]:
        """Keys that queries a..b-1 of the order see, which of these do, and the order."""
        order = np.random.default_rng(self.queries).permutation(self.queries)
        seen = self.seen[order[a:b]]
        keys = np.flatnonzero(seen.any(0))
        numbers = np.arange(b - a, dtype=np.uint64)[:, None]
        words = (seen[:, keys].astype(np.uint64) << numbers).sum(0).astype(np.uint32)
        around = [np.pad(x, (3, 2)) for x in (keys + self.k0, words.view(np.int32))]
        every = np.full(len(self.q), -1, np.int32)
        every[self.q0 : self.q0 + self.queries] = self.q0 + order
        return around[0].astype(np.int32), around[1].astype(np.int32), every


def close(got: Array, want: Array) -> bool:
    """Within 1e-5 of the largest number."""
    largest = max(1.0, float(np.abs(want).max(initial=0)))
    return bool(np.abs(got - want).max(initial=0) <= 1e-5 * largest)


@pytest.mark.parametrize(("widths", "kind"), [*((w, "") for w in WIDTHS), *KINDS], ids=str)
def test_values_of_many_sizes(
    kernels: KernelLibrary, widths: tuple[int, int], kind: str, level: str
) -> None:
    for queries, keys in SIZES:
        case = Case(widths, kind, queries, keys)
        found = zip(case.run(kernels, level), case.expected(), strict=True)
        assert all(close(got, want) for got, want in found), (queries, keys)


def test_a_call_goes_on_where_the_one_before_ended(kernels: KernelLibrary, level: str) -> None:
    case = Case((33, 20), "", 70, 45)
    whole, parts = case.run(kernels, level), case.run(kernels, level, (32, 64))
    assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(whole, parts, strict=True))


def test_a_row_that_is_not_a_number_stays_so(kernels: KernelLibrary, level: str) -> None:
    case = Case((5, 7), "", 20, 30)
    case.q[case.q0 + 3, 1] = np.nan
    dq, dk, dv = case.run(kernels, level)
    assert np.isnan(dq[3]).all() and not np.isnan(np.delete(dq, 3, 0)).any()
    assert np.isnan(dk).all() and np.isnan(dv).all()
