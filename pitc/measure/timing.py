"""How a number is taken: one thread on one core, contenders interleaved, the order rotated."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import comb
from statistics import median
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Clock = Callable[[], float]
CPU_TIME, WALL_TIME = "CPU time", "wall time"
CLOCKS: Mapping[str, Clock] = {CPU_TIME: time.process_time, WALL_TIME: time.perf_counter}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 5th and 95th percentile of some numbers, in their unit."""

    median: float
    p5: float
    p95: float


def spread(numbers: Sequence[float]) -> Spread:
    """Median and percentiles, linear between the two nearest numbers.

    Args:
        numbers: At least one.
    """
    return Spread(*np.quantile(numbers, (0.5, 0.05, 0.95)).tolist())


@dataclass(frozen=True, slots=True)
class Latency:
    """How long single calls took, in ms of wall time, whatever clock a race goes by.

    Args:
        p50: The median.
        p95: 95 of 100 calls took no longer.
        p99: 99 of 100.
        calls: How many there were: of fewer than 100, p99 is next to the longest.
    """

    p50: float
    p95: float
    p99: float
    calls: int


def latency(seconds: Sequence[float]) -> Latency:
    """The latency of calls.

    Args:
        seconds: Of each call, at least one.
    """
    p50, p95, p99 = (1e3 * np.quantile(seconds, (0.5, 0.95, 0.99))).tolist()
    return Latency(p50, p95, p99, len(seconds))


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """Base / other, round by round.

    Args:
        base: Seconds per round.
        other: Seconds per round, of the same rounds.
    """
    return [b / max(o, 1e-12) for b, o in zip(base, other, strict=True)]


CONFIDENCE = 0.95


def interval(numbers: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % interval of the median, from order alone: no distribution is assumed.

    The median lies between the k-th lowest and the k-th highest of n numbers unless fewer than k of
    them fall on one side of it, which has the chance of as many heads in n throws of a coin. Of 6
    numbers that is the lowest to the highest (96.9 %), of 20 the 6th to the 15th.

    Args:
        numbers: Independent measurements.

    Returns:
        Lower and upper end; None of fewer than 6, which cannot tell.
    """
    ordered, n = sorted(numbers), len(numbers)
    k, outside = 0, 0.0
    while 2 * (outside + comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        outside += comb(n, k) / 2**n
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What is said of each contender, whatever was measured.

    Args:
        name: Its name.
        version: Version of its package.
        norm: Largest norm-wise relative error of an output; of the reference itself 0.
        speedup: How many times faster pitc is, from ratios of the same rounds.
        interval: 95 % interval of that median; None of fewer than 6 rounds.
    """

    name: str
    version: str
    norm: float
    speedup: Spread
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """What may be said: `pitc is faster`, `pitc is slower`, `no difference shown`, or `too few
        rounds to say`.
        """
        if self.interval is None:
            return "too few rounds to say"
        low, high = self.interval
        if low > 1:
            return "pitc is faster"
        return "pitc is slower" if high < 1 else "no difference shown"


def in_turns(
    contenders: Mapping[str, Callable[[], T]],
    rounds: int,
    *,
    budget_s: float = float("inf"),
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[T]]:
    """Call every contender once per round; the one that starts changes from round to round.

    Args:
        contenders: What is called, by name.
        rounds: How many rounds; at least one.
        budget_s: No further round starts after this much wall time.
        progress: Called with the number of rounds done.

    Returns:
        Name -> results, one per round, rounds in the same places for all.
    """
    start, names = time.monotonic(), list(contenders)
    found: dict[str, list[T]] = {name: [] for name in names}
    for done in range(max(rounds, 1)):
        if done and time.monotonic() - start > budget_s:
            break
        first = done % max(len(names), 1)
        for name in names[first:] + names[:first]:
            found[name].append(contenders[name]())
        if progress:
            progress(done + 1)
    return found


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Clock = time.process_time,
    budget_s: float = float("inf"),
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Time every contender, as `in_turns` calls them.

    Args:
        contenders: Name -> the work of one call.
        rounds: How many rounds count; at least one.
        warm_up: Calls of each contender that do not count.
        clock: Seconds; CPU time of the process unless told otherwise.
        budget_s: As of `in_turns`, warming up included.
        progress: Called with the number of rounds done.

    Returns:
        Name -> seconds, one per round, rounds in the same places for all.
    """

    def seconds(work: Callable[[], object]) -> float:
        before = clock()
        work()
        return clock() - before

    start = time.monotonic()
    for work in [*contenders.values()] * warm_up:
        work()
    timed = {name: partial(seconds, work) for name, work in contenders.items()}
    left_s = budget_s - (time.monotonic() - start)
    return in_turns(timed, rounds, budget_s=left_s, progress=progress)


def ratio(base: Sequence[float], other: Sequence[float]) -> float:
    """Median over the rounds of base / other: how many times faster the other is.

    Args:
        base: Seconds per round.
        other: Seconds per round, of the same rounds.
    """
    return median(ratios(base, other))


def allowed_cores() -> set[int]:
    """The cores this thread may run on; empty where the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def threads_in_all(threads: int, streams: int) -> int:
    """Threads of one session: those that call it, and those of its pool, which they share.

    Args:
        threads: Threads that may share one run, the one that calls among them.
        streams: Threads that call at the same time; 0: one.
    """
    return max(streams, 1) + threads - 1


@contextmanager
def pinned(count: int) -> Iterator[tuple[int, ...]]:
    """Keep this thread, and those that it starts, on the last of the allowed cores.

    Args:
        count: How many cores; all of them where there are fewer.

    Yields:
        The cores; none where the system cannot pin. The thread is free again when the block ends,
        those that it has started are not.
    """
    before = allowed_cores()
    chosen = tuple(sorted(before)[-count:])
    if not chosen:
        yield ()
        return
    os.sched_setaffinity(0, chosen)
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)
