"""Runs one case: answers are checked, then timed; the result is a plain dictionary."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.attention_cases import TimedAttention
from benchmarks.cases import (
    FEW_BITS_TOLERANCE,
    Case,
    EncoderCase,
    TallCase,
    ThreadsCase,
    TimedCase,
)
from benchmarks.contenders import OURS, Contender, Run, live_rows, relative_error
from benchmarks.sparse_cases import SparseCase
from benchmarks.workload import Amortised, Shared, Workload, make_workload
from benchmarks.worst_cases import WorstCase
from pitc.measure.timing import interleave, ratio

#: Norm-wise relative error of answers, per entry of the batch, by what a model computes in.
TOLERANCES = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
#: Of gradients: where a sum in front of a ReLU is rounded to the other side of 0, a row of the next
#: gradient comes or goes. One such row of OPT-125M changes gradients by up to 2e-4 of their size.
GRADIENT_TOLERANCE = 1e-3
SCHEMA = 2
#: A round has as many calls as fit into this time, at least one.
ROUND_SECONDS, MOST_CALLS = 0.02, 1000
#: A first call of more time is that of a large model: one call is enough for a round.
FIRST_SECONDS = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A contender that is ready, and what it answered.

    Args:
        run: Runs one batch.
        answers: One per entry of the batches, live rows only.
        seconds: CPU time of the first call, which may be longer than that of others.
        shared: What it does once for some calls, of which each counts its part; None: nothing.
    """

    run: Run
    answers: list[npt.NDArray[Any]]
    seconds: float
    shared: Amortised | None = None


def _load(
    contender: Contender, workload: Workload, shared: Shared, needed: bool, say: Say
) -> Loaded | None:
    """Load a contender and run it once; None, with the reason said, when it fails and may fail."""
    say(f"{contender.name}: load and check")
    try:
        if contender.engine not in shared.engines:
            shared.engines[contender.engine] = contender.engine(workload)
        infer = shared.engines[contender.engine]
        run = contender.over(infer)
        start = time.process_time()
        answers = [x for feeds in workload.batches for x in live_rows(run(feeds), feeds)]
    except Exception as error:
        if needed:
            raise
        say(f"{contender.name}: left out, it failed: {' '.join(str(error).split())[:200]}")
        return None
    seconds = time.process_time() - start
    parts = infer if isinstance(infer, Amortised) else None
    return Loaded(run, [np.array(x) for x in answers], seconds, parts)  # buffers are reused


def _on_all(run: Run, workload: Workload, calls: int = 1) -> Callable[[], None]:
    def work() -> None:
        for _ in range(calls):
            for feeds in workload.batches:
                run(feeds)

    return work


def _calls(loaded: Loaded, workload: Workload) -> int:
    """Calls in one round, so that a round of a small model is not too short for the clock."""
    if loaded.seconds > FIRST_SECONDS:
        return 1
    start = time.process_time()
    _on_all(loaded.run, workload)()
    once = max(time.process_time() - start, 1e-6)
    return max(1, min(round(ROUND_SECONDS / once), MOST_CALLS))


def _once(name: str) -> str:
    """The name of what a contender does once for some calls."""
    return f"{name}, once"


def tolerance_of(case: Mapping[str, Any]) -> float:
    """The tolerance of a case, given as in its result file."""
    if case.get("family") == "training":
        return GRADIENT_TOLERANCE
    rounds = case.get("precision") == "bf16"
    return TOLERANCES["bfloat16" if rounds else case.get("dtype", "float32")]


def time_case(
    case: TimedCase,
    rounds: int,
    limits: dict[str, float],
    contenders: Sequence[Contender],
    say: Say,
    shared: Shared,
) -> dict[str, Any]:
    """Time every contender that is installed, competes and answers right.

    Args:
        case: The case.
        rounds: Rounds that count.
        limits: Of `benchmarks.machine.measure_limits`, or empty.
        contenders: Who competes; the first is the reference for the answers.
        say: Called with one line per step.
        shared: What other cases of the same source have made.

    Returns:
        Times in ms per batch: medians, every round, ratios of the same rounds. A contender whose
        answer is wrong has its error and no times.
    """
    say(f"{case.name}: build the model")
    workload = make_workload(case, shared.folder)
    present = [c for c in contenders if c.competes(workload)]
    needed = (present[0].name, OURS)
    loads = ((c.name, _load(c, workload, shared, c.name in needed, say)) for c in present)
    loaded = {name: x for name, x in loads if x is not None}
    want = loaded[present[0].name].answers if workload.exact is None else list(workload.exact)
    errors = {name: relative_error(x.answers, want) for name, x in loaded.items()}
    few_bits = isinstance(case, EncoderCase) and case.bits
    limit = FEW_BITS_TOLERANCE if few_bits else tolerance_of(describe(case))
    most = {c.name: max(limit, c.tolerance) for c in present}
    right = [name for name in loaded if errors[name] <= most[name]]
    calls = {name: _calls(loaded[name], workload) for name in right}
    say(f"{case.name}: {rounds} rounds of {', '.join(right)}")
    work = {name: _on_all(loaded[name].run, workload, calls[name]) for name in right}
    parts = {name: x.shared for name, x in loaded.items() if name in right and x.shared}
    rounds_s = interleave(
        work | {_once(name): x.once for name, x in parts.items()},
        rounds,
        warm_up=int(isinstance(case, TimedAttention)),
    )
    taken = {name: [t / calls[name] for t in rounds_s[name]] for name in right}
    for name, part in parts.items():
        once = rounds_s[_once(name)]
        taken[name] = [t + s / part.calls for t, s in zip(taken[name], once, strict=True)]
    per_batch = 1e3 / len(workload.batches)
    rows = [
        {
            "name": name,
            "error": error if np.isfinite(error) else None,
            "ms": median(taken[name]) * per_batch if name in taken else None,
            "rounds_ms": [t * per_batch for t in taken.get(name, [])],
            **_part(parts.get(name), rounds_s.get(_once(name), [])),
        }
        for name, error in errors.items()
    ]
    peers = [name for name in right if name != OURS]
    gains = {p: ratio(taken[p], taken[OURS]) for p in peers if OURS in taken}

    def best(names: Sequence[str]) -> str | None:
        """Against which the gain is smallest."""
        return min(names, key=lambda name: gains.get(name, median(taken[name])), default=None)

    by_hand = [c.name for c in present if c.by_hand and c.name in peers]
    alike = [name for name in peers if name not in by_hand and errors[name] <= limit]
    found = {
        "workload": workload.facts(),
        "contenders": rows,
        "best_peer": best(alike),
        "limit_ms": workload.limit_ms(limits),
        "speedup": gains,
    }
    return found | ({"best_by_hand": best(by_hand)} if by_hand else {})


def _part(part: Amortised | None, seconds: Sequence[float]) -> dict[str, Any]:
    """What of a row's time is its part of what is done once for some calls."""
    if part is None:
        return {}
    return {"once_ms": median(seconds) * 1e3, "once_calls": part.calls}


def describe(case: Case) -> dict[str, Any]:
    """The case as it goes into its result file."""
    head = {"kind": type(case).__name__, "name": case.name, "family": case.family, **asdict(case)}
    if isinstance(case, TallCase):
        head |= {"name": case.name, "targets": case.targets}
    if isinstance(case, ThreadsCase | WorstCase):
        head |= {"name": case.name}
    if isinstance(case, SparseCase):
        head |= {"series": case.series, "zeros": case.zeros}
    return head
