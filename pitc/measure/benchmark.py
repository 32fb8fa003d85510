"""`pitc.bench`: a compiled model against its peers, on one set of inputs.

Bencher(opened) -> race -> Benchmark. The command line calls the same steps, and adds traces,
pictures and reports.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.check.feeds import Case
from pitc.check.inputs import Shapes, filled, shape_texts, specs_of
from pitc.check.opened import Opened, opened
from pitc.check.reference import contract_of, reference_session, rules_of
from pitc.check.tokens import LiveTokens
from pitc.compiled import CompiledModel, check_threads
from pitc.errors import UsageError, VerificationError
from pitc.host.machine import cpu_level, cpu_name, installed
from pitc.ir.json_text import json_text
from pitc.ir.plan import CUDA_EP_NAME
from pitc.measure.bench import (
    BASE,
    OURS,
    PEERS,
    Contender,
    Race,
    Timing,
    WrongAnswer,
    chosen_peers,
    make_case,
    of_session,
    race,
    session_options,
)
from pitc.measure.throughput import Rate
from pitc.measure.timing import CPU_TIME, WALL_TIME, pinned, threads_in_all
from pitc.session import plain_session, run_session

if TYPE_CHECKING:
    from pitc.importer.memory import AnyModel

ROUNDS, SECONDS = 20, 60.0
#: What `pitc bench` and `pitc.bench` say when answers differ.
DIFFERS = "the compiled model differs from ONNX Runtime; nothing was timed"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The result of `pitc.bench`.

    Args:
        model: The model's file name.
        padding: Which tokens do not exist, as it was compiled.
        inputs: Shapes of the inputs.
        live: Live tokens, and all of them; None where no mask is known.
        race: Who took part, and their figures.
    """

    model: str
    padding: str | None
    inputs: Mapping[str, tuple[int, ...]]
    live: tuple[int, int] | None
    race: Race

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Times of each contender, pitc first; empty with streams."""
        return tuple(self.race.timings)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """Throughput of each contender, pitc first; empty without streams."""
        return tuple(self.race.rates)

    def to_dict(self) -> dict[str, Any]:
        """What `pitc bench --json` prints, but for the number of its schema."""
        found = self.race
        return {
            "model": self.model,
            "padding": self.padding,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "tokens": self.live and {"live": self.live[0], "places": self.live[1]},
            "rounds": found.rounds,
            "machine": {
                "cpu": cpu_name(),
                "level": cpu_level(),
                "onnxruntime": installed("onnxruntime"),
                "threads": found.threads,
            },
            **found.to_dict(),
        }

    def to_json(self) -> str:
        """What `pitc bench --json` prints."""
        return json_text(self.to_dict())


def bench(
    model: "AnyModel | CompiledModel",
    target: str | None = None,
    padding: str | Iterable[str] | None = None,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    lengths: Sequence[int] = (),
    mean: int | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
    against: Iterable[str] = (),
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    threads: int = 1,
    streams: int = 0,
    tolerance: float | None = None,
) -> Benchmark:
    """Compare the speed of a compiled model with ONNX Runtime and other installed peers.

    It does the same as `pitc bench`. Answers are compared first. Meanwhile, the calling thread is
    pinned to the last of its cores.

    Args:
        model: A compiled model, the folder of an artifact, or what `compile` takes, which is
            compiled for this.
        target: As in `compile`; None for `auto`. Only for a model that is not compiled yet.
        padding: As in `compile`. Only for a model that is not compiled yet.
        inputs: Real inputs by name; missing ones are random.
        lengths: Live tokens of each sequence, for random inputs.
        mean: Mean of random lengths; one sequence is full.
        shapes: Sizes of random inputs: `{"input_ids": (8, 128)}`, or `{"batch": 8}` for a named
            dimension.
        seed: Of the random inputs.
        against: Only these peers, `onnxruntime` or `openvino`; none: every installed one.
        rounds: Number of timed rounds.
        seconds: No round starts after this much wall time.
        threads: Threads that share one run, for every peer. One thread is measured in CPU time,
            several in wall time.
        streams: Number of threads that send requests, to measure throughput; 0: measure times.
        tolerance: Largest norm-wise relative error of floats; None: by the model's arithmetic.

    Returns:
        What was measured.

    Raises:
        UsageError: Options do not fit the model or each other.
        VerificationError: The compiled model's answers differ; nothing was timed.
        MachineError: A named peer is not installed.
        PitcError: It cannot be compiled or loaded: see `compile` and `load`.
    """
    check_threads(threads)
    if streams:
        check_threads(streams)
    peers = chosen_peers(list(against))
    bencher = Bencher(
        opened(model, target, padding),
        inputs or {},
        lengths=lengths,
        mean=mean,
        shapes=shape_texts(shapes),
        seed=seed,
        threads=threads,
        streams=streams,
    )
    try:
        found = bencher.race(peers, rounds=rounds, seconds=seconds, tolerance=tolerance)
    except WrongAnswer as error:
        raise VerificationError(DIFFERS, path=bencher.name) from error
    return bencher.result(found)


class Bencher:
    """The steps of a race.

    Args:
        model: What is raced.
        given: Real inputs by name.
        lengths: Live tokens of each sequence, of random inputs.
        mean: Mean of random lengths.
        shapes: Sizes of random inputs, as `--shape` takes them.
        seed: Of random inputs.
        threads: Threads that share one run.
        streams: Threads that send requests; 0: no throughput.

    Attributes:
        name: What messages call the model.
        compiled: The compiled model.
        source: The file with the source graph.
        case: The inputs.
        live: Live tokens, and all of them; None where no mask is known.
        on_gpu: The compiled model runs on a GPU.

    Raises:
        UsageError: Options that do not fit the model or each other, or inputs that it fails on.
    """

    def __init__(
        self,
        model: Opened,
        given: Mapping[str, np.ndarray],
        *,
        lengths: Sequence[int] = (),
        mean: int | None = None,
        shapes: Sequence[str] = (),
        seed: int = 0,
        threads: int = 1,
        streams: int = 0,
    ) -> None:
        self.compiled, self.source, self.name = model.compiled, model.source, model.name
        self._padding = self.compiled.manifest.options.padding
        self._threads, self._streams = threads, streams
        if lengths and mean is not None:
            raise UsageError("--lengths and --mean exclude each other")
        reference = plain_session(self.source)
        self._tokens = LiveTokens(self.source, self._padding)
        names = [value.name for value in reference.get_inputs()]
        if given and all(name in given for name in names):
            if lengths or mean is not None or shapes:
                text = "--lengths, --mean and --shape have no effect: every input is given"
                raise UsageError(text)
            self.case = Case("given", {}, dict(given))
        else:
            masks = self._tokens.masks
            make = partial(make_case, padding=masks, lengths=lengths, mean=mean, seed=seed)
            specs = specs_of(self.compiled, given)
            self.case = next(filled(specs, given, shapes, lambda *known: [make(*known)]))
        self.live = self._live()
        self._try(reference, shapes)
        with pinned(threads_in_all(threads, streams)):  # its threads stay where they are made
            self._session = self.compiled.session(session_options(threads))
        run_session(self._session, self.case.feeds)  # what is wrong with the inputs is told as such
        self.on_gpu = CUDA_EP_NAME in self._session.get_providers()

    def race(
        self,
        peers: Sequence[str],
        *,
        rounds: int,
        seconds: float,
        tolerance: float | None = None,
        stage: Callable[[str], None] = lambda name: None,
        progress: Callable[[int], None] | None = None,
    ) -> Race:
        """Load, check and time; arguments and errors are those of `pitc.measure.bench.race`.

        Args:
            peers: Names of peers besides ONNX Runtime.
            rounds: Number of timed rounds.
            seconds: No round starts after this much wall time.
            tolerance: As of `bench`.
            stage: Called with `load`, `check` and `time`.
            progress: Called with the number of rounds done.

        Raises:
            WrongAnswer: The compiled model's outputs differ.
        """
        source, contract = self.source, contract_of(self.compiled)
        threads, streams = self._threads, self._streams

        def base() -> Any:
            return of_session(plain_session(source, session_options(threads)))

        def peer(name: str) -> Contender:
            return Contender(name, name, partial(PEERS[name], source, threads, max(streams, 1)))

        return race(
            [
                Contender(BASE, BASE, base),
                Contender(OURS, "pitc", lambda: of_session(self._session)),
                *map(peer, peers),
            ],
            self.case,
            rounds=rounds,
            seconds=seconds,
            rules=rules_of(self.compiled, source, self._session, self._tokens, tolerance),
            expected=partial(run_session, reference_session(source, contract)[0]),
            clock=CPU_TIME if threads == 1 and not (streams or self.on_gpu) else WALL_TIME,
            threads=threads,
            streams=streams,
            stage=stage,
            progress=progress,
        )

    def result(self, found: Race) -> Benchmark:
        """What was measured, with what it was measured on."""
        shapes = {name: x.shape for name, x in self.case.feeds.items()}
        return Benchmark(self.name, self._padding, shapes, self.live, found)

    def _live(self) -> tuple[int, int] | None:
        """Live and all tokens, where masks are known."""
        real = self._tokens(self.case.feeds).values()
        return (sum(int(x.sum()) for x in real), sum(x.size for x in real)) if real else None

    def _try(self, reference: Any, shapes: Sequence[str]) -> None:
        """Run the source graph once: random sizes may not fit it."""
        try:
            run_session(reference, self.case.feeds)
        except UsageError as error:
            if not self.case.dims or shapes:
                raise
            sizes = ", ".join(f"{name}={size}" for name, size in self.case.dims.items())
            hint = f"sizes were {sizes}; choose by --shape"
            raise UsageError(error.message, hint=hint) from error


def title_of(result: Benchmark, *, on_gpu: bool = False) -> str:
    """What was measured, in one line."""
    found = result.race
    shapes = " ".join(f"{n}={'x'.join(map(str, shape))}" for n, shape in result.inputs.items())
    tokens = f", {result.live[0]} of {result.live[1]} tokens live" if result.live else ""
    threads = "one thread" if found.threads == 1 else f"{found.threads} threads"
    if found.streams:
        streams = f"{found.streams} stream{'s' * (found.streams != 1)}"
        threads = f"{streams} of {threads}"
    few = 0 < len(found.cores) < threads_in_all(found.threads, found.streams)
    told = f" on {len(found.cores)} core{'s' * (len(found.cores) != 1)}" if few else ""
    where = ", peers on the CPU" if on_gpu else ""
    counted = f"{found.rounds} round{'s' * (found.rounds != 1)}"
    return f"{result.model}: {shapes}{tokens}; {threads}{told}, {found.clock}{where}, {counted}"
