"""How a number is taken: one thread on one core, contenders interleaved, the order rotated.

Standard library only: the thread limits must be set before any maths library is imported.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb
from statistics import median

Clock = Callable[[], float]
CPU_TIME, WALL_TIME = "CPU time", "wall time"
CLOCKS: Mapping[str, Clock] = {CPU_TIME: time.process_time, WALL_TIME: time.perf_counter}

THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
)


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
    return Spread(*percentiles(numbers, (0.5, 0.05, 0.95)))


def percentiles(numbers: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Percentiles, linear between the two nearest numbers.

    Args:
        numbers: At least one.
        shares: Which: 0.5 is the median.
    """
    ordered = sorted(numbers)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return [at(share) for share in shares]


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
    p50, p95, p99 = (1e3 * x for x in percentiles(seconds, (0.5, 0.95, 0.99)))
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


def verdict_of(found: tuple[float, float] | None) -> str:
    """What an interval of the gain lets one say: `pitc is faster`, `pitc is slower`, `no difference
    shown`, or `too few rounds to say`.
    """
    if found is None:
        return "too few rounds to say"
    low, high = found
    return "pitc is faster" if low > 1 else "pitc is slower" if high < 1 else "no difference shown"


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Clock = time.process_time,
    budget_s: float = float("inf"),
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Time every contender once per round; the one that starts changes from round to round.

    Args:
        contenders: Name -> the work of one call.
        rounds: How many rounds count; at least one.
        warm_up: Calls of each contender that do not count.
        clock: Seconds; CPU time of the process unless told otherwise.
        budget_s: No further round starts after this much wall time; one round always counts.
        progress: Called with the number of rounds done.

    Returns:
        Name -> seconds, one per round, rounds in the same places for all.
    """
    start = time.monotonic()
    names = list(contenders)
    for _ in range(warm_up):
        for work in contenders.values():
            work()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for done in range(max(rounds, 1)):
        if done and time.monotonic() - start > budget_s:
            break
        first = done % max(len(names), 1)
        for name in names[first:] + names[:first]:
            before = clock()
            contenders[name]()
            taken[name].append(clock() - before)
        if progress:
            progress(done + 1)
    return taken


def ratio(base: Sequence[float], other: Sequence[float]) -> float:
    """Median over the rounds of base / other: how many times faster the other is.

    Args:
        base: Seconds per round.
        other: Seconds per round, of the same rounds.
    """
    return median(ratios(base, other))


def limit_threads() -> None:
    """Ask every maths library that is imported later to use one thread."""
    for name in THREAD_LIMITS:
        os.environ[name] = "false" if name.startswith("TOKENIZERS") else "1"


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


@contextmanager
def one_core() -> Iterator[int | None]:
    """Keep this thread on one core, the last of those allowed, until the block ends.

    Yields:
        The core, or None where the system cannot pin.
    """
    with pinned(1) as cores:
        yield cores[0] if cores else None
