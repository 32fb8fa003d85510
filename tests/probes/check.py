"""Checks one probe: lowered, it must give what ONNX Runtime gives of the source."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from pitc.importer import load_model
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.probes.build import Feed, Probe
from tests.probes.interpret import count_pit, run_graph
from tests.random_nodes import session_of
from tests.tile_prices import PRICES

Array = Any
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-4}  # of the largest number of an output, by its bytes
ROUNDED = 8  # times what the last bits of the inputs move an output by
LEAST = 1e-30


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe showed.

    Args:
        failure: How it failed; empty where it did not.
        pit: PIT nodes of the lowered graph: 0 says that the probe does not bite.
        excused: It differs under an assumption that the report names.
    """

    failure: str = ""
    pit: int = 0
    excused: bool = False


class BadProbe(Exception):
    """ONNX Runtime does not run the source."""


def lower(probe: Probe) -> Lowered:
    """The passes, as `pitc.compile` runs them."""
    options = LowerOptions(padding=probe.padding, prices=PRICES)
    return run_passes(load_model(probe.model), options)


def check(probe: Probe) -> Verdict:
    """Lower a probe and compare.

    Raises:
        BadProbe: The fault is the probe's own.
    """
    runs = list(source_runs(probe))
    try:
        lowered = lower(probe)
        found = ir.serde.serialize_model(lowered.model)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Verdict(f"compile: {error!r:.200} at {place.filename.split('/')[-1]}:{place.name}")
    pit = count_pit(found.graph)
    failure = next(_failures(probe, found, runs), "")
    named = any(probe.assumes in text for text in lowered.report.assumptions)
    if failure and probe.assumes and named:
        return Verdict("", pit, True)
    return Verdict(failure, pit)


def source_runs(probe: Probe) -> Iterator[tuple[Feed, Sequence[Array]]]:
    """Feeds that ONNX Runtime takes, with the outputs; it refuses some empty ones."""
    problem: Exception | None = None
    try:
        session = session_of(probe.model)
    except Exception as error:  # the runtime's exception classes are not public
        raise BadProbe(str(error)) from error
    taken = 0
    for feed in probe.feeds:
        try:
            yield feed, session.run(None, dict(feed))
            taken += 1
        except Exception as error:
            problem = error
    if not taken:
        raise BadProbe(str(problem))


def _failures(
    probe: Probe, found: onnx.ModelProto, runs: Sequence[tuple[Feed, Sequence[Array]]]
) -> Iterator[str]:
    try:
        onnx.checker.check_model(found)
    except Exception as error:
        yield f"checker: {error!s:.200}"
    for number, (feed, want) in enumerate(runs):
        try:
            got = run_graph(found, feed)
        except Exception as error:
            yield f"feed {number}: run: {type(error).__name__}: {error!s:.200}"
            continue
        yield from (f"feed {number}: {text}" for text in differences(probe, feed, want, got))


def differences(
    probe: Probe, feed: Feed, want: Sequence[Array], got: Sequence[Array]
) -> Iterator[str]:
    """Where two runs differ, one text for each output that does."""
    for output, x, y in zip(probe.model.graph.output, want, got, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape or x.dtype != y.dtype:
            yield f"{output.name}: {y.dtype}{y.shape} for {x.dtype}{x.shape}"
            continue
        keep = np.ones(x.shape, bool)
        if probe.padding is not None and output.name in probe.token_shaped:
            keep[np.asarray(feed[probe.padding]) == 0] = False
        wrong = keep & ~_close(x, y)
        if wrong.any() and x.dtype.kind == "f":
            k = list(probe.model.graph.output).index(output)
            moved = ROUNDED * _moved(probe, feed, want)[k]
            with np.errstate(all="ignore"):
                wrong &= ~(np.abs(x.astype(np.float64) - y) <= moved)
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            size = _norm(x[keep], y[keep])
            yield f"{output.name}{list(at)}: {y[at]!r} for {x[at]!r}; off by {size:.2g} of the norm"


def _moved(probe: Probe, feed: Feed, want: Sequence[Array]) -> list[float]:
    """By how much the last bits of inputs move each output of the source.

    Beside -1e4 a score is rounded to 1e-3, this way or that by its last bits, and these differ from
    one CPU to the next: where a row has no other keys, that shows.
    """
    session = session_of(probe.model)
    most = [0.0] * len(want)
    for up in (np.inf, -np.inf):
        nudged = {name: _nudged(np.asarray(x), up) for name, x in feed.items()}
        for k, (x, y) in enumerate(zip(want, session.run(None, nudged), strict=True)):
            with np.errstate(all="ignore"):
                apart = np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64))
            most[k] = max(most[k], float(np.where(np.isfinite(apart), apart, 0).max(initial=0)))
    return most


def _nudged(x: Array, up: float) -> Array:
    """The next numbers, of an input that is not a mask of whole ones."""
    with np.errstate(all="ignore"):
        whole = x.dtype.kind != "f" or bool(np.all((x == np.round(x)) | ~np.isfinite(x)))
        return x if whole else np.nextafter(x, x.dtype.type(up))


def _close(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "f":
        return np.asarray(x == y)
    finite = np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0)
    limit = TOLERANCE[x.dtype.itemsize] * max(float(finite.max(initial=0)), LEAST)
    with np.errstate(all="ignore"):
        near = np.abs(x.astype(np.float64) - y) <= limit
    return near | (x == y) | (np.isnan(x) & np.isnan(y))


def _norm(x: Array, y: Array) -> float:
    """The difference of the finite elements, by the norm of what is wanted."""
    if x.dtype.kind != "f":
        return float(np.mean(x != y))
    both = np.isfinite(x) & np.isfinite(y)
    a, b = x[both].astype(np.float64), y[both].astype(np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), LEAST))
