"""Event times: contenders in turns, in the same stream, warmed up, by the medians of rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

from benchmarks.gpu.driver import L2_BYTES, Device
from benchmarks.gpu.journal import Lost, Telling, brief
from pitc.measure.timing import ratio

Work = Callable[[], None]

ROUND_MS, MOST_CALLS = 4.0, 200
"""A round has as many calls as fit into this time."""
WARM_UP = 3
"""Rounds that do not count: clocks rise."""
GRAPH_CALLS = 10
"""Calls of a graph, at least: launching it must take the host less time than the device needs."""
MOST_SETS, BEYOND_CACHE = 8, 2.5
"""Sets of operands that take turns: as many as together are so many times as large as the
second-level cache, so that each comes from memory."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    Args:
        works: Each enqueues it once into the device's stream, with a set of operands of its own.
        captured: Makes of a work what launches the same as one graph; None where the work waits
            for the device in between, so that it cannot be captured.
        facts: What else the result says of it.
    """

    works: Sequence[Work]
    captured: Callable[[Work], Work] | None
    facts: Mapping[str, Any] = field(default_factory=dict)


Make = Callable[[], Contender]
"""Makes a contender, and raises where its answer is wrong or something is missing."""


@dataclass(slots=True)
class _Ready:
    work: Work
    calls: int  # of the contender's work in one of this
    facts: Mapping[str, Any]
    why_not: str = ""  # a graph
    repeats: int = 1
    first_us: float = 0
    rounds_us: list[float] = field(default_factory=list)

    def row(self, name: str) -> dict[str, Any]:
        """What the result says of it."""
        return {
            "name": name,
            "us": median(self.rounds_us) if self.rounds_us else None,
            "rounds_us": self.rounds_us,
            "first_us": self.first_us,
            "graph": not self.why_not,
            **({"no_graph": self.why_not} if self.why_not else {}),
            **self.facts,
        }


class _Clock:
    """Takes the time of what a stream does."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._start, self._end = device.event(), device.event()

    def us(self, ready: _Ready) -> float:
        """Microseconds of one call of a contender's work, after `repeats` of `ready.work`."""
        self._device.record(self._start)
        for _ in range(ready.repeats):
            ready.work()
        self._device.record(self._end)
        return 1e3 * self._end.ms_since(self._start) / (ready.repeats * ready.calls)


def operand_sets(device: Device, set_bytes: int) -> int:
    """How many sets of operands of so many bytes shall take turns; 1 where a set is warm or large.

    50 MB of cache, sets of 14.5 MB -> 8; sets of 100 MB -> 2
    """
    wanted = ceil(BEYOND_CACHE * device.attribute(L2_BYTES) / max(1, set_bytes))
    return max(1, min(wanted, MOST_SETS))


def _ready(device: Device, contender: Contender) -> _Ready:
    works = contender.works
    works[0]()
    device.wait()

    def each() -> None:
        for work in works:
            work()

    def several() -> None:
        for _ in range(ceil(GRAPH_CALLS / len(works))):
            each()

    if contender.captured is None:
        return _Ready(each, len(works), contender.facts, "it waits for the device")
    try:
        calls = ceil(GRAPH_CALLS / len(works)) * len(works)
        return _Ready(contender.captured(several), calls, contender.facts)
    except Exception as error:  # the launches are timed as they are
        each()
        device.wait()
        return _Ready(each, len(works), contender.facts, brief(error))


def time_contenders(
    device: Device, makers: Mapping[str, Make], ours: str, rounds: int, telling: Telling
) -> dict[str, Any]:
    """Time contenders in turns; the first one changes every round.

    Each is made, tried and told by itself: one that fails is told as failed, and the others go on.

    Args:
        device: Whose stream they use.
        makers: Who competes.
        ours: Whose time the others' are divided by.
        rounds: How many count.
        telling: Gets what is known of each as soon as it is.

    Returns:
        `contenders`, with medians and all rounds in microseconds, and `speedup`: medians of the
        ratios of the same rounds, if ours did not fail.

    Raises:
        Lost: The device was lost.
    """
    clock = _Clock(device)
    ready: dict[str, _Ready] = {}

    def prepared(make: Make) -> _Ready:
        one = _ready(device, make())
        one.first_us = max(clock.us(one), clock.us(one), 1e-3)
        one.repeats = max(1, min(round(1e3 * ROUND_MS / one.first_us / one.calls), MOST_CALLS))
        return one

    for name, make in makers.items():
        if (one := telling.attempt(name, lambda make=make: prepared(make))) is not None:
            ready[name] = one
            telling.tell(contenders=[one.row(name) for name, one in ready.items()])
    for turn in range(rounds + WARM_UP):
        names = list(ready)
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            if (taken := _round(clock, ready[name], name, telling)) is None:
                del ready[name]
            elif turn >= WARM_UP:
                ready[name].rounds_us.append(taken)
    speedup = {}
    if ours in ready:
        rounds_us = ready[ours].rounds_us
        speedup = {n: ratio(one.rounds_us, rounds_us) for n, one in ready.items() if n != ours}
    return {"contenders": [one.row(n) for n, one in ready.items()], "speedup": speedup}


def _round(clock: _Clock, ready: _Ready, name: str, telling: Telling) -> float | None:
    """Microseconds of a call; None if the contender fails, and this is told."""
    try:
        return clock.us(ready)
    except Exception as error:
        telling.fail(name, brief(error))
        if telling.is_lost():
            raise Lost from error
        return None
