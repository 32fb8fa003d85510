"""Event times: contenders in turns, in the same stream, warmed up, by the medians of rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.gpu.driver import CudaError, Device
from pitc.measure.timing import ratio

Work = Callable[[], None]

ROUND_MS, MOST_CALLS = 4.0, 200
"""A round has as many calls as fit into this time."""
WARM_UP = 3
"""Rounds that do not count: clocks rise."""
GRAPH_CALLS = 10
"""Calls of a graph: launching it must take the host less time than the device needs for it."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    Args:
        name: Name in results.
        work: Enqueues it once into the device's stream.
        captured: Makes of a work what launches the same as one graph; None where the work waits
            for the device in between, so that it cannot be captured.
        facts: What else the result says of it.
    """

    name: str
    work: Work
    captured: Callable[[Work], Work] | None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Ready:
    work: Work
    calls: int  # of the contender's work in one of this
    why_not: str = ""  # a graph
    repeats: int = 1
    rounds_us: list[float] = field(default_factory=list)


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


def _ready(device: Device, contender: Contender) -> _Ready:
    contender.work()
    device.wait()
    if contender.captured is None:
        return _Ready(contender.work, 1, "it waits for the device")

    def several() -> None:
        for _ in range(GRAPH_CALLS):
            contender.work()

    try:
        return _Ready(contender.captured(several), GRAPH_CALLS)
    except Exception as error:  # the launches are timed as they are
        contender.work()
        device.wait()
        return _Ready(contender.work, 1, brief(error))


def brief(error: Exception) -> str:
    """An error as a line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def time_contenders(
    device: Device, contenders: list[Contender], ours: str, rounds: int, left_out: dict[str, str]
) -> dict[str, Any]:
    """Time contenders in turns; the first one changes every round.

    Args:
        device: Whose stream they use.
        contenders: Who competes; one that fails is left out.
        ours: Whose time the others' are divided by.
        rounds: How many count.
        left_out: Gets the reasons by name.

    Returns:
        `contenders`, with medians and all rounds in microseconds, and `speedup`: medians of the
        ratios of the same rounds.
    """
    clock = _Clock(device)
    ready: dict[str, _Ready] = {}
    for contender in contenders:
        try:
            one = _ready(device, contender)
            once = max(clock.us(one), clock.us(one), 1e-3)
        except CudaError:
            raise
        except Exception as error:
            if contender.name == ours:
                raise
            left_out[contender.name] = brief(error)
            continue
        each = round(1e3 * ROUND_MS / once / one.calls)
        one.repeats = max(1, min(each, MOST_CALLS))
        ready[contender.name] = one
    names = list(ready)
    for turn in range(rounds + WARM_UP):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = clock.us(ready[name])
            if turn >= WARM_UP:
                ready[name].rounds_us.append(taken)
    facts = {c.name: dict(c.facts) for c in contenders}
    rows = [
        {
            "name": name,
            "us": median(one.rounds_us),
            "rounds_us": one.rounds_us,
            "graph": not one.why_not,
            **({"no_graph": one.why_not} if one.why_not else {}),
            **facts[name],
        }
        for name, one in ready.items()
    ]
    own = ready[ours].rounds_us
    speedup = {name: ratio(one.rounds_us, own) for name, one in ready.items() if name != ours}
    return {"contenders": rows, "speedup": speedup}
