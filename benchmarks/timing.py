"""How a number is taken: contenders interleaved in one process, order rotated, ratios per round."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

Clock = Callable[[], float]


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
    return median(b / max(o, 1e-12) for b, o in zip(base, other, strict=True))
