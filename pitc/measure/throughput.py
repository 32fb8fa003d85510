"""Throughput: streams send requests to one session at the same time, contenders in turns.

a round: S threads take requests from one counter until none is left
rate = requests / (end of the last - start of the first)
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from pitc.check.verify import Run
from pitc.measure.timing import (
    Figures,
    Latency,
    Spread,
    in_turns,
    interval,
    latency,
    ratios,
    spread,
)

#: A round takes about this long, and each stream has two requests in it at least.
ROUND_SECONDS, LEAST_REQUESTS = 0.25, 2
MOST_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class Rate(Figures):
    """One contender's throughput.

    Args:
        per_second: Requests per second, over the rounds.
        rounds: The same, round by round.
        latency: From the start of a request to its answer, over all requests.
        requests: How many there were.
        wall_s: Wall time of all its rounds.
    """

    per_second: Spread
    rounds: tuple[float, ...]
    latency: Latency
    requests: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one contender.

    Args:
        wall_s: From the start of the first request to the end of the last.
        seconds: Of each request.
    """

    wall_s: float
    seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.seconds) / max(self.wall_s, 1e-12)


def flow(run: Run, feeds: Mapping[str, np.ndarray], streams: int, requests: int) -> Round:
    """Answer requests on several threads; each takes the next as soon as it is free.

    Args:
        run: Answers one request; many threads call it at the same time.
        feeds: The inputs of every request.
        streams: How many threads.
        requests: How many requests.

    Raises:
        Exception: What a request has raised.
    """
    ready, left = threading.Barrier(streams), itertools.count()
    spans: list[tuple[float, float]] = []  # appending is atomic, and so is taking a number
    failures: list[BaseException] = []
    ended = threading.Semaphore(0)  # an interrupted join may say so of a thread that runs on

    def stream() -> None:
        try:
            ready.wait()
            while next(left) < requests and not failures:
                start = time.perf_counter()
                run(feeds)
                spans.append((start, time.perf_counter()))
        except BaseException as error:
            failures.append(error)
        finally:
            ended.release()

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(streams)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # no thread may run on: what it runs in goes away
        failures.append(error)
        ready.abort()
        for thread in threads:
            if thread.ident is not None:  # it was started
                ended.acquire()
        raise
    if failures:
        raise failures[0]
    wall = max(end for _, end in spans) - min(start for start, _ in spans)
    return Round(wall, tuple(end - start for start, end in spans))


def requests_of_a_round(run: Run, feeds: Mapping[str, np.ndarray], streams: int) -> int:
    """So many requests that a round takes about `ROUND_SECONDS`, the same number for each stream
    if all are alike.
    """
    probe = flow(run, feeds, streams, streams)
    each = round(ROUND_SECONDS / max(probe.wall_s, 1e-6))
    return streams * max(LEAST_REQUESTS, min(each, MOST_REQUESTS // streams))


def measure_rates(
    runs: Mapping[str, Run],
    feeds: Mapping[str, np.ndarray],
    streams: int,
    rounds: int,
    *,
    seconds: float = float("inf"),
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Round]]:
    """Rounds of all contenders, in turns; another one starts each time.

    Args:
        runs: The contenders, by name.
        feeds: The inputs of every request.
        streams: How many threads send requests.
        rounds: How many rounds count; at least one.
        seconds: No further round starts after this much wall time; one round always counts.
        progress: Called with the number of rounds done.

    Returns:
        Name -> its rounds, in the same places for all.
    """
    counts = {name: requests_of_a_round(run, feeds, streams) for name, run in runs.items()}
    flows = {name: partial(flow, run, feeds, streams, counts[name]) for name, run in runs.items()}
    return in_turns(flows, rounds, budget_s=seconds, progress=progress)


def rates_of(
    found: Mapping[str, list[Round]],
    ours: str,
    versions: Mapping[str, str],
    norms: Mapping[str, float],
) -> list[Rate]:
    """The throughput of each contender, ours first."""
    rows = []
    of_ours = [r.rate for r in found[ours]]
    for name in sorted(found, key=lambda n: n != ours):
        rates = [r.rate for r in found[name]]
        gains = ratios(of_ours, rates)
        every = [s for r in found[name] for s in r.seconds]
        wall = sum(r.wall_s for r in found[name])
        rows.append(
            Rate(
                name,
                versions[name],
                norms[name],
                spread(gains),
                interval(gains),
                per_second=spread(rates),
                rounds=tuple(rates),
                latency=latency(every),
                requests=len(every),
                wall_s=wall,
            )
        )
    return rows
