"""What sparse contractions decided when a model ran: traces are read, summed up and made.

A trace is a file of JSON lines, one per decision (`pitc.measure.trace_lines`,
`docs/micro-tiles.md`); those of gated convolutions are summed up by `pitc.measure.trace_channels`,
those of attention by `pitc.measure.trace_pairs`.
"""

import shutil
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.artifact.folder import new_file
from pitc.ir.plan import EP_NAME
from pitc.measure.timing import CPU_TIME, WALL_TIME, interleave, pinned
from pitc.measure.trace_lines import Decision as Decision
from pitc.measure.trace_lines import Trace
from pitc.measure.trace_lines import read_lines as read_lines

if TYPE_CHECKING:
    from pitc.compiled import CompiledModel

DENSE = "dense"


@dataclass(frozen=True, slots=True)
class Contraction:
    """All decisions of one contraction. Times and ratios are medians over them.

    Args:
        node: Its name in the source graph.
        rows: Fewest and most rows.
        k: Columns of the operand that may hold zeros.
        panels: Panels of 64 columns of the other operand.
        decisions: How many.
        density: Share of elements that were not zero, in all of them together.
        variants: How often each variant ran, most often first.
        predicted_us: What the chosen variants were predicted to take.
        measured_us: What they took, by `clock`.
        clock: `CPU time` of the thread where each of them ran on one, else `wall time`.
        predicted_over_measured: 1 for a perfect prediction.
        dense_predicted_us: What the dense variant was predicted to take; None if not on offer.
        predicted_gain: How many times faster than the dense variant.
        dense_measured_us: What the dense variant took on the same data, if it was run.
        measured_gain: How many times faster that is.
    """

    node: str
    rows: tuple[int, int]
    k: int
    panels: int
    decisions: int
    density: float
    variants: Mapping[str, int]
    predicted_us: float
    measured_us: float
    predicted_over_measured: float | None
    dense_predicted_us: float | None
    predicted_gain: float | None
    dense_measured_us: float | None
    measured_gain: float | None
    clock: str


def contractions(
    decisions: Sequence[Decision], dense: Sequence[Decision] = ()
) -> list[Contraction]:
    """Sum up decisions by contraction, in the order in which they first ran.

    Args:
        decisions: What ran.
        dense: Decisions on the same data where the dense variant was forced.
    """
    forced = _by_contraction(dense)
    clock = CPU_TIME if all(d.cpu_us is not None for d in (*decisions, *dense)) else WALL_TIME
    return [
        _summed_up(each, [_took(d, clock) for d in forced.get(key, ())], clock)
        for key, each in _by_contraction(decisions).items()
    ]


def _took(decision: Decision, clock: str) -> float:
    """Microseconds by a clock that the decision has."""
    cpu_us = decision.cpu_us
    return decision.measured_us if clock != CPU_TIME or cpu_us is None else cpu_us


def _by_contraction(
    decisions: Sequence[Decision],
) -> dict[tuple[str, int, int], list[Decision]]:
    """By name and sizes: a trace may be of several models."""
    found: dict[tuple[str, int, int], list[Decision]] = defaultdict(list)
    for each in decisions:
        found[each.node, each.work.k, each.work.panels].append(each)
    return found


def _summed_up(each: Sequence[Decision], dense_us: Sequence[float], clock: str) -> Contraction:
    first = each[0]
    rows = [d.work.rows for d in each]
    predicted = [d.predicted_us[d.chosen] for d in each]
    measured = [_took(d, clock) for d in each]
    dense = [d.predicted_us.get(DENSE) for d in each]
    offered = [x for x in dense if x is not None]
    return Contraction(
        node=first.node,
        rows=(min(rows), max(rows)),
        k=first.work.k,
        panels=first.work.panels,
        decisions=len(each),
        density=sum(d.live for d in each) / (sum(rows) * first.work.k),
        variants=dict(Counter(d.chosen for d in each).most_common()),
        predicted_us=median(predicted),
        measured_us=median(measured),
        predicted_over_measured=_ratio(predicted, measured),
        dense_predicted_us=median(offered) if offered else None,
        predicted_gain=_ratio(dense, predicted),
        dense_measured_us=median(dense_us) if dense_us else None,
        measured_gain=_ratio([median(dense_us)], [median(measured)]) if dense_us else None,
        clock=clock,
    )


def _ratio(tops: Sequence[float | None], bottoms: Sequence[float]) -> float | None:
    """Median of the ratios that there are."""
    pairs = zip(tops, bottoms, strict=True)
    found = [top / bottom for top, bottom in pairs if top is not None and bottom > 0]
    return median(found) if found else None


def traced_session(
    compiled: "CompiledModel", path: Path, *, threads: int = 1, **options: str
) -> Any:
    """A session whose decisions go to a file.

    Args:
        compiled: The model.
        path: The trace; what is there stays.
        threads: How many work, the calling one among them.
        options: Other options of the provider, where they are not empty.
    """
    from pitc.measure.bench import session_options

    made = session_options()
    made.intra_op_num_threads = threads
    given = {key: value for key, value in options.items() if value}
    for key, value in {**given, "threads": str(threads), "trace": str(path)}.items():
        made.add_session_config_entry(f"ep.{EP_NAME.lower()}.{key}", value)
    return compiled.session(made)


def take_trace(path: Path) -> list[Decision]:
    """Read a trace and empty it; sessions go on writing to it."""
    decisions = read_lines(path).products
    path.write_bytes(b"")
    return decisions


def race_dense(
    compiled: "CompiledModel",
    feeds: Mapping[str, np.ndarray],
    *,
    rounds: int,
    seconds: float = float("inf"),
    keep: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Trace, Trace]:
    """Run a model as it is and with every contraction dense, in turns, on one thread.

    Args:
        compiled: The model.
        feeds: Its inputs.
        rounds: Number of timed rounds; an untimed one comes first.
        seconds: No round starts after this much wall time.
        keep: A file for the trace of the model as it is.
        progress: Called with the number of rounds done.

    Returns:
        What it decided as it is, and when dense.
    """
    from pitc.measure.bench import of_session

    with tempfile.TemporaryDirectory(prefix="pitc-trace-") as folder, pinned(1):
        paths = {variant: Path(folder, variant or "chosen") for variant in ("", DENSE)}
        runs: dict[str, Callable[[], object]] = {}
        for variant, path in paths.items():
            with warnings.catch_warnings():  # whoever compiled or timed it has seen them
                warnings.simplefilter("ignore")
                session = traced_session(compiled, path, variant=variant)
            runs[variant] = partial(of_session(session), feeds)
            runs[variant]()
            path.write_bytes(b"")  # the first run maps pages
        interleave(runs, rounds, warm_up=0, budget_s=seconds, progress=progress)
        if keep is not None:
            with new_file(keep) as scratch:
                shutil.copyfile(paths[""], scratch)
        return read_lines(paths[""]), read_lines(paths[DENSE])
