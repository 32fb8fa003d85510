"""Race a compiled model against its peers: answers first, then times on one pinned thread."""

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pitc.check.feeds import Case, InputSpec, draw_lengths, named_dims, random_feeds, sizes_of
from pitc.check.verify import Comparison, Rules, Run, compare
from pitc.errors import MachineError, UsageError
from pitc.host.machine import installed
from pitc.ir.custom_ops import add_custom_ops
from pitc.ir.mask import PaddingMask, of_inputs
from pitc.measure.throughput import Rate, measure_rates, rates_of
from pitc.measure.timing import (
    CLOCKS,
    CPU_TIME,
    Clock,
    Figures,
    Latency,
    Spread,
    interleave,
    interval,
    latency,
    pinned,
    ratios,
    spread,
    threads_in_all,
)

OURS, BASE = "pitc", "onnxruntime"
_log = logging.getLogger("pitc.measure")
#: Sizes of named dimensions that nobody gave, in order of appearance: batch and length.
SIZES = (8, 128, 8)
#: A round has as many calls as fit into this time, at least one.
ROUND_SECONDS, MOST_CALLS = 0.005, 1000
#: Fewer rounds have no 95 % interval of a median (`timing.interval`).
LEAST_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run the model.

    Args:
        name: Name in tables.
        package: The distribution whose version is shown.
        load: Makes what runs one set of inputs; with streams, many threads call it at a time.
    """

    name: str
    package: str
    load: Callable[[], Run]


@dataclass(frozen=True, slots=True)
class Timing(Figures):
    """One contender's times.

    Args:
        ms: Time of one run, by the clock of the race.
        rounds_ms: The same, round by round; a round of a small model is the mean of several calls.
        latency: Of single calls in these rounds, by wall time; None where it was not taken.
    """

    ms: Spread
    rounds_ms: tuple[float, ...]
    latency: Latency | None = None


@dataclass(slots=True)
class Race:
    """Result of `race`.

    Args:
        timings: The contenders, pitc first; none where throughput was measured.
        rates: The same of throughput.
        left_out: Contenders that were not timed, and why.
        cores: The cores of all threads; none where the system cannot pin.
        threads: Threads that share one run.
        streams: Threads that send requests; 0 where it was no throughput.
        clock: What times are of: `CPU time` of the process, or `wall time`.
        tolerances: How far each output of the compiled model may be off, and why.
    """

    timings: list[Timing] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    threads: int = 1
    streams: int = 0
    clock: str = CPU_TIME
    tolerances: dict[str, str] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        if self.rates:
            return len(self.rates[0].rounds)
        return len(self.timings[0].rounds_ms) if self.timings else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        known: list[Timing | Rate] = [*self.timings, *self.rates]
        rows = [asdict(row) | {"verdict": row.verdict} for row in known]
        return {
            "contenders": rows,
            "left_out": self.left_out,
            "core": self.cores[0] if len(self.cores) == 1 else None,
            "cores": list(self.cores),
            "threads": self.threads,
            "streams": self.streams,
            "clock": self.clock,
            "tolerances": self.tolerances,
        }


class WrongAnswer(Exception):
    """The compiled model differs from the reference; `comparison` tells where."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("wrong answer")
        self.comparison = comparison


def race(
    contenders: Sequence[Contender],
    case: Case,
    *,
    rounds: int,
    seconds: float = float("inf"),
    rules: Rules | None = None,
    expected: Run | None = None,
    clock: str = CPU_TIME,
    threads: int = 1,
    streams: int = 0,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[int], None] | None = None,
) -> Race:
    """Load, check and time.

    Args:
        contenders: The compiled model (`OURS`), the reference (`BASE`) and others, in any order.
        case: The inputs.
        rounds: Number of timed rounds.
        seconds: No round starts after this much wall time.
        rules: What passes as the same answer.
        expected: Gives what the compiled model has to answer; None: what the reference answers.
        clock: A key of `CLOCKS`: wall time where a GPU works, or several threads.
        threads: Threads that share one run, which contenders are loaded with.
        streams: Measure throughput, with so many threads that send requests; 0: times.
        stage: Called with `load`, `check` and `time`.
        progress: Called with the number of rounds done.

    Raises:
        WrongAnswer: The compiled model's outputs differ from the reference.
    """
    result, ticks = Race(clock=clock, threads=threads, streams=streams), CLOCKS[clock]
    versions = {c.name: installed(c.package) or "" for c in contenders}
    with pinned(threads_in_all(threads, streams)) as result.cores:
        stage("load")
        runs: dict[str, Run] = {}
        for contender in contenders:
            try:
                runs[contender.name] = contender.load()
            except Exception as error:
                if contender.name in (OURS, BASE):
                    raise
                result.left_out[contender.name] = f"it cannot load the model: {_line(error)}"
        stage("check")
        norms = _check(runs, case, result, rules, expected or runs[BASE])
        stage("time")
        _log.info("cores %s, %s", result.cores, clock)
        if streams:
            checked = {name: runs[name] for name in norms}
            found = measure_rates(
                checked, case.feeds, streams, rounds, seconds=seconds, progress=progress
            )
            result.rates = rates_of(found, OURS, versions, norms)
            return result
        calls = {name: _calls(runs[name], case.feeds, ticks) for name in norms}
        each: dict[str, list[float]] = {name: [] for name in norms}
        work = {name: _repeated(runs[name], case.feeds, calls[name], each[name]) for name in norms}
        _log.info("calls a round: %s", calls)
        taken = interleave(work, rounds, clock=ticks, budget_s=seconds, progress=progress)
        taken = {name: [t / calls[name] for t in times] for name, times in taken.items()}
    for name in sorted(taken, key=lambda n: n != OURS):
        ms = [t * 1e3 for t in taken[name]]
        gains = ratios(taken[name], taken[OURS])
        counted = latency(each[name][calls[name] :])  # the first round warms up
        result.timings.append(
            Timing(
                name,
                versions[name],
                norms[name],
                spread(gains),
                interval(gains),
                ms=spread(ms),
                rounds_ms=tuple(ms),
                latency=counted,
            )
        )
    return result


def _check(
    runs: Mapping[str, Run],
    case: Case,
    result: Race,
    rules: Rules | None,
    expected: Run,
) -> dict[str, float]:
    """Errors of the contenders that answer right by the rules of `compare`; others are left out."""
    of_base, of_ours = runs[BASE](case.feeds), expected(case.feeds)
    norms: dict[str, float] = {}
    for name, run in runs.items():
        want = of_ours if name == OURS else of_base
        try:
            found = compare(run, partial(_answer, want), [case], rules)
        except Exception as error:
            if name in (OURS, BASE):
                raise
            result.left_out[name] = f"it fails: {_line(error)}"
            continue
        if name == OURS:
            result.tolerances = {o.output: f"{o.tolerance:.1e}: {o.why}" for o in found.outputs}
        if found.ok:
            norms[name] = max((o.norm for o in found.outputs), default=0.0)
        elif name == OURS:
            raise WrongAnswer(found)
        else:
            worst = next(o for o in found.outputs if not o.ok)
            text = worst.problem or f"error {worst.norm:.1e}"
            result.left_out[name] = f"its answer differs: {worst.output}: {text}"
    return norms


def _answer(
    answer: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """What is known already."""
    return answer


def _calls(run: Run, feeds: Mapping[str, np.ndarray], clock: Clock) -> int:
    """Calls in one round, so that a round of a small model is not too short for the clock."""
    once = _once(run, feeds, clock)
    if once < 10 * ROUND_SECONDS:  # the first calls of a session are slow ones
        once = min(once, _once(run, feeds, clock), _once(run, feeds, clock))
    return max(1, min(round(ROUND_SECONDS / once), MOST_CALLS))


def _once(run: Run, feeds: Mapping[str, np.ndarray], clock: Clock) -> float:
    """Seconds of one call."""
    start = clock()
    run(feeds)
    return max(clock() - start, 1e-6)


def _repeated(
    run: Run, feeds: Mapping[str, np.ndarray], calls: int, each: list[float]
) -> Callable[[], None]:
    """The work of one round; it adds the wall time of each call to `each`."""

    def work() -> None:
        for _ in range(calls):
            start = time.perf_counter()
            run(feeds)
            each.append(time.perf_counter() - start)

    return work


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or repr(error)


# --- contenders ----------------------------------------------------------------------------------


def session_options(threads: int = 1) -> Any:
    """ONNX Runtime on the calling thread alone, or on it and others.

    Args:
        threads: Threads that share one run.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return add_custom_ops(options)


def unoptimised_options() -> Any:
    """The same without graph optimisations: ONNX Runtime runs each node as it stands."""
    import onnxruntime

    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def of_session(session: Any) -> Run:
    """Runs an ONNX Runtime session; nothing but the run is in the timed part."""
    names = [o.name for o in session.get_outputs()]

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def compiled_by_openvino(
    model: Path, threads: int = 1, streams: int = 1, *, as_it_comes: bool = False
) -> Any:
    """The model as OpenVINO compiles it, in float32 where it may not choose.

    Args:
        model: The file.
        threads: Threads that share one run.
        streams: Runs at the same time.
        as_it_comes: In what OpenVINO takes by itself, bfloat16 where the CPU has units for it.
    """
    core = importlib.import_module("openvino").Core()
    hints = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads_in_all(threads, streams),
        "NUM_STREAMS": streams,
        "ENABLE_CPU_PINNING": False,
    }
    if as_it_comes:
        del hints["INFERENCE_PRECISION_HINT"]
    return core.compile_model(core.read_model(str(model)), "CPU", hints)


def openvino(model: Path, threads: int = 1, streams: int = 1) -> Run:
    """OpenVINO; inputs are not copied. Runs at the same time have a request of their own each."""
    compiled = compiled_by_openvino(model, threads, streams)
    outputs = [(port, sorted(port.get_names())) for port in compiled.outputs]
    free = [compiled.create_infer_request() for _ in range(streams)]

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        request = free.pop()  # atomic, and there are as many as threads that call
        try:
            found = request.infer(feeds, share_inputs=True)
            return {name: found[port] for port, names in outputs for name in names}
        finally:
            free.append(request)

    return run


#: Peers besides ONNX Runtime itself: package -> loader of a model file, with threads and streams.
PEERS: dict[str, Callable[[Path, int, int], Run]] = {"openvino": openvino}


def chosen_peers(names: Sequence[str]) -> list[str]:
    """The peers to race against; every installed one when no name is given.

    Raises:
        UsageError: A name is not a peer.
        MachineError: A named peer is not installed.
    """
    for name in names:
        if name not in (BASE, *PEERS):
            raise UsageError(f"peer {name!r} is not one of {', '.join((BASE, *PEERS))}")
        if importlib.util.find_spec(name) is None:
            raise MachineError(f"peer {name!r} is not installed", hint=f"pip install {name}")
    return [n for n in PEERS if (n in names if names else importlib.util.find_spec(n) is not None)]


# --- inputs --------------------------------------------------------------------------------------


def make_case(
    specs: Sequence[InputSpec],
    dims: Mapping[str, int],
    *,
    padding: str | Sequence[PaddingMask] | None = None,
    lengths: Sequence[int] = (),
    mean: int | None = None,
    seed: int = 0,
) -> Case:
    """Random inputs of one batch, padded on the right.

    Args:
        specs: The inputs.
        dims: Sizes of named dimensions; those that are missing come from `lengths` or `SIZES`.
        padding: The padding masks, or the input that is one, if any is known; else every mask-like
            input is one.
        lengths: Live tokens of each sequence; empty for random ones.
        mean: Mean of random lengths; the longest is as long as the batch allows.
        seed: Seed of the random numbers.

    Raises:
        UsageError: There is no mask for lengths, or they do not fit its shape.
    """
    known = {mask.source: mask for mask in of_inputs(padding) if mask.source}
    masked = [s for s in specs if (s.name in known if known else s.mask_like)]
    masked = [s for s in masked if len(s.shape) == 2 and not s.name.endswith("type_ids")]
    if (lengths or mean is not None) and not masked:
        raise UsageError("lengths need a mask, and no input is one", hint="name it by --padding")
    given = dict(dims)
    if lengths:
        for dim, fit in zip(masked[0].shape, (len(lengths), max(lengths)), strict=True):
            if isinstance(dim, str):
                given.setdefault(dim, fit)
    sizes = sizes_of(named_dims(specs), given, SIZES)
    rng = np.random.default_rng(seed)
    drawn = list(lengths)
    if masked and mean is not None:
        batch, length = (d if isinstance(d, int) else sizes[d] for d in masked[0].shape)
        try:
            drawn = draw_lengths(rng, batch, length, mean)
        except ValueError as error:
            raise UsageError(f"--mean {mean}: {error}") from error
    feeds = random_feeds(specs, sizes, rng, "right" if masked else "full", padding)
    for spec in masked if drawn else ():
        batch, length = feeds[spec.name].shape
        if len(drawn) != batch or not all(0 <= n <= length for n in drawn):
            raise UsageError(
                f"lengths {drawn} do not fit {spec.name!r} of shape [{batch}, {length}]"
            )
        live = np.arange(length) < np.array(drawn)[:, None]
        mask = known.get(spec.name, PaddingMask(spec.name, spec.name))
        feeds[spec.name] = mask.written(live, feeds[spec.name])
    return Case("right" if masked else "full", sizes, feeds)
