"""Time and peak memory of a compiled model over ONNX Runtime's, at every size.

Sessions run in turn on one pinned core and the ratio is taken round by round; where its interval
holds the limit, more rounds are run. Where a session's memory lies can cost more than that: two
sessions of one file differ by up to 4 %. So a ratio above the limit is measured in other sessions,
too, and is the median of all. Memory is the largest resident set of a fresh process, the
interpreter's included, which loads the model and runs it twice.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.sessions import COMPILED, SOURCE, process
from benchmarks.worst_cases import WorstCase
from benchmarks.worst_inputs import Feeds, Run, given_inputs, masks_of, settings, sized
from pitc.check.double import run_in_double
from pitc.check.feeds import Case, input_specs
from pitc.check.reference import contract_of, reference_session
from pitc.check.tokens import LiveTokens
from pitc.check.tolerance import arithmetic_of
from pitc.check.verify import Rules, compare
from pitc.compiled import CompiledModel
from pitc.errors import UsageError
from pitc.importer import load_model
from pitc.ir.report import Report
from pitc.ir.summary import summary_of
from pitc.measure.bench import of_session, session_options, unoptimised_options
from pitc.measure.timing import interleave, interval, ratios
from pitc.session import plain_session

Say = Callable[[str], None]

ROUND_SECONDS, MOST_CALLS = 0.02, 1000
UNTIMED: Mapping[str, None] = dict.fromkeys(("ms", "time", "interval", "rounds", "pairs"))
MOST_ROUNDS = 8  # times the rounds that were asked for
PAIRS = 5  # of sessions, where the first one is above the limit
MEMORY_ROUNDS = 5  # processes, where the first one is near the limit
NEAR = 0.1

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
    """Peaks of both, and their ratio: the least of several processes where one is near the limit,
    as what ONNX Runtime's arena reserves differs from process to process, by a quarter in some.
    """
    peaks: dict[str, list[int]] = {name: [] for name in paths}
    for turn in range(MEMORY_ROUNDS):
        for name, path in paths.items():
            peaks[name].append(peak_of(path, feeds, cores))
        if not turn and peaks[COMPILED][0] < (most - NEAR) * peaks[SOURCE][0]:
            break
    found = {name: min(x) for name, x in peaks.items()}
    return {"peak_bytes": found, "memory": found[COMPILED] / found[SOURCE]}


def time_ratio(
    first: Mapping[str, Run],
    another: Callable[[], Mapping[str, Run]],
    feeds: Feeds,
    rounds: int,
    most: float,
) -> dict[str, Any]:
    """The ratio of a pair of sessions; above the limit the median of `PAIRS` pairs.

    Args:
        first: The sessions that are there.
        another: Opens others.
        feeds: The inputs.
        rounds: Rounds of a pair that count.
        most: The limit.

    Returns:
        As `ratio_of_pair`, of the median pair, and the ratios of all `pairs`.
    """
    found = [ratio_of_pair(first, feeds, rounds, most)]
    while found[0]["time"] > most and len(found) < PAIRS:
        found.append(ratio_of_pair(another(), feeds, rounds, most))
    ranked = sorted(found, key=lambda pair: float(pair["time"]))
    return ranked[len(ranked) // 2] | {"pairs": [pair["time"] for pair in found]}


def ratio_of_pair(
    runs: Mapping[str, Run], feeds: Feeds, rounds: int, most: float
) -> dict[str, Any]:
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


def measure_worst(
    case: WorstCase, rounds: int, cores: set[int], say: Say = print
) -> dict[str, Any]:
    """Run a model at all sizes, with all places live and with padding.

    Args:
        case: The model and its limits.
        rounds: Rounds that count, more where a ratio is near its limit; 0: no times are taken.
        cores: Where processes that measure memory run.
        say: Called with one line per step.

    Returns:
        `worst`: a row for each way to compile it, size and pattern, with the share of the work that
        is `packed`, `time`, `memory`, where the answer is `wrong`, and `ok` where it is not and
        both are within the limits; `skipped`: why others are missing; `failed`: why there is no
        compiled model or no run at all, else empty.
    """
    import pitc

    with tempfile.TemporaryDirectory() as name:
        folder, rows, skipped = Path(name), list[dict[str, Any]](), list[str]()
        model = case.write(folder)
        given = given_inputs(model)
        specs = input_specs(load_model(model), given)
        quiet = session_options()
        quiet.log_severity_level = 4  # sizes that it does not take are no news
        source = of_session(plain_session(model, quiet))

        def another(artifact: Path) -> Mapping[str, Run]:
            ours = of_session(pitc.load(artifact).session(session_options()))
            return {COMPILED: ours, SOURCE: of_session(plain_session(model, quiet))}

        ways: list[str | None] = [None]
        for padding in ways:
            artifact = folder / f"{len(rows)}.pitc"
            say(f"{case.name}: compile, padding {padding}")
            try:
                pitc.compile(model, padding=padding, suggest=padding is None).save(artifact)
            except UsageError as error:  # no padding mask, or one of the other side
                if padding is None:
                    raise
                skipped.append(f"padding {padding}: {error}")
                continue
            compiled = pitc.load(artifact)
            if padding is None:
                ways += suggested(compiled.report) or _both_sides(masks_of(specs)[:1])
            ours = of_session(compiled.session(session_options()))
            paths, runs = {SOURCE: model, COMPILED: artifact}, {SOURCE: source, COMPILED: ours}
            masks, packed = LiveTokens(model, padding).masks, _packed(compiled.report)
            done = set[str]()
            for size, pattern in settings(specs, given):
                at = f"{size}, {pattern}, padding {padding}"
                found = sized(specs, size, source, pattern, masks, given)
                if found is None:
                    skipped.append(f"{at}: ONNX Runtime does not run it")
                    continue
                dims, feeds = found
                if f"{pattern} {dims}" in done:
                    continue
                done.add(f"{pattern} {dims}")
                say(f"{case.name}: {at}")
                row: dict[str, Any] = {"size": size, "pattern": pattern, "padding": padding}
                row |= {"dims": dims, "packed": packed}
                row["wrong"] = wrong_answer(compiled, model, Case(pattern, dims, dict(feeds)), ours)
                row |= (
                    time_ratio(runs, partial(another, artifact), feeds, rounds, case.most_time)
                    if rounds
                    else UNTIMED
                )
                row |= memory_ratio(paths, feeds, cores, case.most_memory)
                within = not rounds or row["time"] <= case.most_time
                within = within and row["memory"] <= case.most_memory
                rows.append(row | {"ok": within and not row["wrong"]})
        failed = "" if rows else "ONNX Runtime runs it at no size"
        return {"worst": rows, "skipped": skipped, "failed": failed}


def suggested(report: Report) -> list[str]:
    """The padding masks that the compiler suggests, as the user writes them."""
    options = (shlex.split(found.option) for found in report.suggestions)
    return [words[1] for words in options if words[:1] == ["--padding"]][:1]


def _both_sides(masks: Sequence[str]) -> list[str]:
    """Masks that are 0 at padding, and that are not; a model that hides keys takes one of them."""
    return [side + name for name in masks for side in ("", "!")]


def _packed(report: Report) -> float:
    """Share of the work that runs on live rows or skips zeros, 0..1."""
    found = summary_of(report)
    return found.packed.share + found.sparse.share


def wrong_answer(compiled: CompiledModel, model: Path, case: Case, ours: Run) -> str:
    """Where the compiled model's answer differs by the rules of `pitc verify`; empty: nowhere."""
    padding, contract = compiled.manifest.options.padding, contract_of(compiled)
    reference = reference_session(model, contract, session_options())[0]  # as many threads as ours
    found = compare(
        ours,
        of_session(reference),
        [case],
        Rules(
            padding=LiveTokens(model, padding),
            token_outputs=compiled.report.tokens,
            arithmetic=arithmetic_of(load_model(model)),
            plain=lambda: of_session(reference_session(model, contract, unoptimised_options())[0]),
            double=lambda: run_in_double(load_model(model), unoptimised_options),
        ),
    )
    wrong = (o for o in found.outputs if not o.ok)
    return "; ".join(f"{o.output}: {o.problem or f'error {o.norm:.1e}'}" for o in wrong)


def beyond(result: Mapping[str, Any]) -> bool:
    """Whether any row of a result is over a limit or wrong, or there is none."""
    return bool(result.get("failed")) or not all(row["ok"] for row in result.get("worst", ()))
