"""Attention under masks of pairs: what the compiler makes of a mask, and the exact answer.

Formulas of tests (`pitc.ir.seen`) and what the tests look at are data here, so that no model has to
be compiled where the GPU is; `tests/gpu/test_gpu_masks.py` compares them with compiled models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.gpu.answers import normal
from benchmarks.gpu.driver import Array
from models.attention_reference import attended, seen_by
from models.block_masks import Blocks
from models.pair_masks import Causal, Documents, Everything, Feeds, PairMask, Window
from pitc.ir.kernel import KernelRequest

CHECKED_ROWS = 32


@dataclass(frozen=True, slots=True)
class Sees:
    """Which keys the queries of one sequence see.

    Args:
        text: The formula; empty: a query sees all keys.
        tests: What tests look at, in the order of the kernel's arguments.
        no_pairs: What a row that sees none of some keys is, as in plans.
    """

    text: str = ""
    tests: tuple[Array, ...] = ()
    no_pairs: str = "nan"

    def request(self, dtype: str, width: int) -> KernelRequest:
        """The kernel, for heads of a width."""
        named = {"sees": self.text} if self.text else {}
        return KernelRequest.of_cuda("attention", dtype, d=width, dv=width, bias=0, **named)


EVERYTHING = Sees()


def sees_of(mask: PairMask, feeds: Feeds, length: int) -> Sees:
    """The formula of a mask, and what its tests look at.

    A test of positions is `x * query + y * key + z >= 0`. Most formulas say which pairs are hidden,
    and end in `n`. Blocks are pair flags, whose rows the run may leave without a key: of the least
    float16 that a model adds there the compiler proves nothing, so this is float32's plan.

    Raises:
        ValueError: The mask has no formula here.
    """

    def lines(*of: tuple[int, int, int]) -> Array:
        return np.array(of, np.int64)

    match mask:
        case Everything():
            return EVERYTHING
        case Causal(window=None):
            return Sees("p0n", (lines((-1, 1, -1)),))
        case Causal(window=int(window)):
            return Sees("p0p1on", (lines((-1, 1, -1), (1, -1, -window)),))
        case Window(width=width, globals=count) if count:
            beyond = width // 2 + 1
            flags = (feeds["global"] != 0).astype(np.int8)
            far = lines((-1, 1, -beyond), (1, -1, -beyond))
            return Sees("p0p1ok0aq0an", (far, flags, flags))
        case Documents():
            segments = feeds["segments"].astype(np.int64)
            return Sees("e0p0a", (lines((1, -1, 0)), segments, segments))
        case Blocks():
            pairs = seen_by(mask, feeds, 1, length)[0].astype(np.int8)
            return Sees("f0n", (pairs,), no_pairs="mean")
        case _:
            raise ValueError(f"{mask} has no formula here")


def requests(masks: Sequence[PairMask], dtype: str, width: int) -> list[KernelRequest]:
    """The kernels of masks."""
    rng, some = np.random.default_rng(0), 64
    return [sees_of(x, x.draw(rng, 1, some), some).request(dtype, width) for x in masks]


class MaskWork:
    """Attention of one sequence, and its exact answer for some queries.

    Args:
        mask: Which keys a query sees.
        length: Tokens.
        heads: Heads, which share the mask.
        width: Of a head.
    """

    def __init__(self, mask: PairMask, length: int, heads: int, width: int) -> None:
        self.mask, self.length, self.heads, self.width = mask, length, heads, width
        self.feeds = mask.draw(np.random.default_rng(0), 1, length)
        self.seen = seen_by(mask, self.feeds, 1, length)
        """Bool `[1, 1, query, key]`."""
        self.live_pairs = int(np.count_nonzero(self.seen))

    @property
    def gflop(self) -> float:
        """Of two products over live pairs, of all heads."""
        return 4e-9 * self.width * self.heads * self.live_pairs

    @property
    def live_share(self) -> float:
        """Of all pairs."""
        return self.live_pairs / self.length**2

    def sees(self) -> Sees:
        """Its formula, and what tests look at."""
        return sees_of(self.mask, self.feeds, self.length)

    @cached_property
    def answer(self) -> "Answer":
        """Its operands, and what they give."""
        return Answer(self)


class Answer:
    """Random operands of a work, and its exact answer for some queries.

    Args:
        work: What is computed.
    """

    def __init__(self, work: MaskWork) -> None:
        rng = np.random.default_rng([1, work.length, work.live_pairs])
        q, k, v = (normal(rng, work.length, work.heads, work.width) for _ in range(3))
        self.operands = q, k, v
        """Rows of q, k and v, `[query, head, width]`."""
        self.queries = _sample(rng, work.seen[0, 0])
        seen = work.seen
        q, k, v = (x.transpose(1, 0, 2)[None] for x in self.operands)
        want = attended(q, k, v, lambda row, asked: seen[row, 0, asked], self.queries)
        self._want = want[0].transpose(1, 0, 2)

    def error(self, some: Array) -> float:
        """The largest error of a query: norm of the difference over norm, all heads together.

        Rows that see few keys are larger than others, and would hide these in one norm.

        Args:
            some: The rows of `queries`, `[query, head, width]`.
        """
        count = len(self.queries)
        wrong = (some.astype(np.float64) - self._want).reshape(count, -1)
        norms = np.linalg.norm(self._want.reshape(count, -1), axis=1)
        return float((np.linalg.norm(wrong, axis=1) / np.maximum(norms, 1e-30)).max())


def _sample(rng: np.random.Generator, seen: Array) -> Array:
    """Queries at random, and the ends of the sequence, and who sees the most and the least."""
    counts = seen.sum(axis=1)
    chosen = [0, len(counts) - 1, int(counts.argmax()), int(counts.argmin())]
    return np.unique([*chosen, *rng.permutation(len(counts))[: CHECKED_ROWS - len(chosen)]])
