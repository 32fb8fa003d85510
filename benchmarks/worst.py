"""Time and peak memory of a compiled model over ONNX Runtime's, at every size.

Sessions run in turn on one pinned core and the ratio is taken round by round; where its interval
holds the limit, more rounds are run. Memory is the largest resident set of a fresh process, the
interpreter's included, which loads the model and runs it twice.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.sessions import COMPILED, SOURCE, process
from benchmarks.worst_cases import SIZES, WorstCase
from pitc.check.feeds import (
    Case,
    InputSpec,
    input_specs,
    named_dims,
    random_feeds,
    sizes_of,
)
from pitc.check.reference import contract_of, reference_session
from pitc.check.tokens import TokenAxis, token_axes
from pitc.check.tolerance import arithmetic_of
from pitc.check.verify import compare
from pitc.compiled import CompiledModel
from pitc.errors import MachineError
from pitc.importer import load_model
from pitc.measure.bench import of_session, session_options, unoptimised_options
from pitc.measure.timing import interleave, interval, ratios
from pitc.session import plain_session

Say = Callable[[str], None]
Feeds = Mapping[str, npt.NDArray[Any]]
Run = Callable[[Feeds], Mapping[str, npt.NDArray[Any]]]

PATTERNS = ("full", "right")
ROUND_SECONDS, MOST_CALLS = 0.02, 1000
MOST_ROUNDS = 8  # times the rounds that were asked for
MEMORY_ROUNDS = 3  # processes, where the first one is near the limit
NEAR = 0.1
LEAST_LENGTH = 4

# Arguments: model file or artifact, inputs by place (.npz), their names.
_MEASURE = """
import json, sys
import numpy as np
path, arrays = sys.argv[1], np.load(sys.argv[2])
feeds = {name: arrays[str(i)] for i, name in enumerate(json.loads(sys.argv[3]))}
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
if path.endswith(".pitc"):
    import pitc
    session = pitc.load(path).session(options)
else:
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
for _ in range(2):
    session.run(None, feeds)
(line,) = [x for x in open("/proc/self/status") if x.startswith("VmHWM")]
print(int(line.split()[1]) * 1024)
"""


def peak_of(model: Path, feeds: Feeds, cores: set[int]) -> int:
    """Bytes of the largest resident set of a process that runs a model."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "feeds.npz")
        arrays = {str(i): x for i, x in enumerate(feeds.values())}  # names may be any text
        np.savez(inputs, allow_pickle=False, **arrays)
        words = [str(model), str(inputs), json.dumps(list(feeds))]
        return int(process([sys.executable, "-c", _MEASURE, *words], cores))


def memory_ratio(
    paths: Mapping[str, Path], feeds: Feeds, cores: set[int], most: float
) -> dict[str, Any]:
    """Peaks of both, and their ratio: medians of several processes where one is near the limit."""
    peaks: dict[str, list[int]] = {name: [] for name in paths}
    for turn in range(MEMORY_ROUNDS):
        for name, path in paths.items():
            peaks[name].append(peak_of(path, feeds, cores))
        if not turn and peaks[COMPILED][0] < (most - NEAR) * peaks[SOURCE][0]:
            break
    found = {name: median(x) for name, x in peaks.items()}
    return {"peak_bytes": found, "memory": found[COMPILED] / found[SOURCE]}


def time_ratio(runs: Mapping[str, Run], feeds: Feeds, rounds: int, most: float) -> dict[str, Any]:
    """Median of compiled over source, its interval, and the medians of both in ms.

    Rounds are added while the interval of the median holds the limit, up to `MOST_ROUNDS` times as
    many: a ratio that is near it is not judged by few.
    """
    calls = max(1, min(MOST_CALLS, round(ROUND_SECONDS / _once(runs[SOURCE], feeds))))

    def work(run: Run) -> None:
        for _ in range(calls):
            run(feeds)

    taken: dict[str, list[float]] = {name: [] for name in runs}
    while True:
        more = interleave({name: partial(work, run) for name, run in runs.items()}, rounds)
        for name, times in more.items():
            taken[name] += times
        over = ratios(taken[COMPILED], taken[SOURCE])
        known = interval(over)
        settled = known is not None and not known[0] <= most <= known[1]
        if settled or len(over) >= MOST_ROUNDS * rounds:
            ms = {name: median(times) / calls * 1e3 for name, times in taken.items()}
            return {"ms": ms, "time": median(over), "interval": known, "rounds": len(over)}


def _once(run: Run, feeds: Feeds) -> float:
    """CPU seconds of a second call."""
    (seconds,) = interleave({"once": lambda: run(feeds)}, 1)["once"]
    return max(seconds, 1e-6)


def sized(
    specs: list[InputSpec], size: tuple[int, int], source: Run, pattern: str, padding: str | None
) -> tuple[dict[str, int], Feeds] | None:
    """Inputs of a size, or of the largest below it that the model takes: a table of positions ends
    somewhere. None where it takes none.
    """
    batch, length = size
    while length >= LEAST_LENGTH:
        dims = sizes_of(named_dims(specs), {}, (batch, length))
        feeds = random_feeds(specs, dims, np.random.default_rng(7), pattern, padding)
        try:
            source(feeds)
        except Exception:  # whatever it is, ONNX Runtime does not run these
            length //= 2
            continue
        return dims, feeds
    return None


def masks_of(specs: list[InputSpec]) -> list[str]:
    """Inputs that may be named as padding, the one of the result first."""
    names = [s.name for s in specs if s.mask_like and len(s.shape) == 2 and "mask" in s.name]
    return sorted(names, key=lambda name: not name.startswith("decoder"))


def measure_worst(
    case: WorstCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Run a model at all sizes, with all places live and with padding.

    Args:
        case: The model and its limits.
        rounds: Rounds that count, more where a ratio is near its limit.
        cores: Where processes that measure memory run.
        say: Called with one line per step.

    Returns:
        `worst`: a row for each way to compile it, size and pattern, with `time`, `memory`, where
        the answer is `wrong`, and `ok` where it is not and both are within the limits; `skipped`:
        why others are missing.
    """
    import onnx_ir as ir

    import pitc

    with tempfile.TemporaryDirectory() as name:
        folder, rows, skipped = Path(name), list[dict[str, Any]](), list[str]()
        model = case.write(folder)
        specs = input_specs(ir.load(model))
        source = of_session(plain_session(model, session_options()))
        for padding in (None, *masks_of(specs)[:1]):
            artifact = folder / f"{padding}.pitc"
            say(f"{case.name}: compile, padding {padding}")
            pitc.compile(model, padding=padding, suggest=False).save(artifact)
            compiled = pitc.load(artifact)
            ours = of_session(compiled.session(session_options()))
            paths, runs = {SOURCE: model, COMPILED: artifact}, {SOURCE: source, COMPILED: ours}
            for size, pattern in _settings(specs):
                at = f"{size}, {pattern}, padding {padding}"
                found = sized(specs, SIZES[size], source, pattern, padding)
                if found is None:
                    skipped.append(f"{at}: ONNX Runtime does not run it")
                    continue
                dims, feeds = found
                say(f"{case.name}: {at}")
                row = {"size": size, "pattern": pattern, "padding": padding, "dims": dims}
                row["wrong"] = wrong_answer(compiled, model, Case(pattern, dims, dict(feeds)), ours)
                row |= time_ratio(runs, feeds, rounds, case.most_time)
                row |= memory_ratio(paths, feeds, cores, case.most_memory)
                within = row["time"] <= case.most_time and row["memory"] <= case.most_memory
                rows.append(row | {"ok": within and not row["wrong"]})
        if not rows:
            raise MachineError(f"{case.name}: ONNX Runtime runs it at no size")
        return {"worst": rows, "skipped": skipped}


def wrong_answer(compiled: CompiledModel, model: Path, case: Case, ours: Run) -> str:
    """Where the compiled model's answer differs by the rules of `pitc verify`; empty: nowhere."""
    padding, contract = compiled.manifest.options.padding, contract_of(compiled)
    reference = reference_session(model, contract)[0]
    tokens: dict[str, TokenAxis] = {}
    if padding is not None:
        mask = next(v.shape for v in reference.get_inputs() if v.name == padding)
        tokens = token_axes(mask, {o.name: o.shape for o in reference.get_outputs()})
    found = compare(
        ours,
        of_session(reference),
        [case],
        padding=padding,
        token_outputs=tokens,
        arithmetic=arithmetic_of(load_model(model)),
        plain=lambda: of_session(reference_session(model, contract, unoptimised_options())[0]),
    )
    wrong = (o for o in found.outputs if not o.ok)
    return "; ".join(f"{o.output}: {o.problem or f'error {o.norm:.1e}'}" for o in wrong)


def _settings(specs: list[InputSpec]) -> Iterator[tuple[str, str]]:
    """Sizes and patterns; a model without named sizes has one, and one without masks is full."""
    masked = any(s.mask_like for s in specs)
    for size in SIZES if named_dims(specs) else ("small",):
        for pattern in PATTERNS if masked else PATTERNS[:1]:
            yield size, pattern


def beyond(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a result that are over a limit, or wrong."""
    return [row for row in result.get("worst", ()) if not row["ok"]]
