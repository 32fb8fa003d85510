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
    calls: int  # of the work in one call of `work`
    is_graph: bool
    repeats: int = 1
    rounds_us: list[float] = field(default_factory=list)


def _elapsed_us(device: Device, ready: _Ready) -> float:
    start, end = device.event(), device.event()
    device.record(start)
    for _ in range(ready.repeats):
        ready.work()
    device.record(end)
    return 1e3 * end.ms_since(start) / (ready.repeats * ready.calls)


def _ready(device: Device, contender: Contender, calls: int) -> _Ready:
    contender.work()
    device.wait()
    if contender.captured is None:
        return _Ready(contender.work, 1, False)

    def several() -> None:
        for _ in range(calls):
            contender.work()

    return _Ready(contender.captured(several), calls, True)


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
    ready: dict[str, _Ready] = {}
    for contender in contenders:
        try:
            one = _ready(device, contender, GRAPH_CALLS)
            once = max(_elapsed_us(device, one), _elapsed_us(device, one), 1e-3)
        except CudaError:
            raise
        except Exception as error:
            if contender.name == ours:
                raise
            left_out[contender.name] = " ".join(str(error).split())[:200]
            continue
        each = round(1e3 * ROUND_MS / once / one.calls)
        one.repeats = max(1, min(each, MOST_CALLS))
        ready[contender.name] = one
    names = list(ready)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = _elapsed_us(device, ready[name])
            if turn:  # the first is a warm-up
                ready[name].rounds_us.append(taken)
    facts = {c.name: dict(c.facts) for c in contenders}
    rows = [
        {
            "name": name,
            "us": median(one.rounds_us),
            "rounds_us": one.rounds_us,
            "graph": one.is_graph,
            **facts[name],
        }
        for name, one in ready.items()
    ]
    own = ready[ours].rounds_us
    speedup = {name: ratio(one.rounds_us, own) for name, one in ready.items() if name != ours}
    return {"contenders": rows, "speedup": speedup}
