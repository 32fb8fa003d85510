"""What is checked of a random graph: its facts hold, and lowered it gives the same answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir

from pitc.errors import UsageError
from pitc.ir import target as targets
from pitc.ir.constant import BOUNDED, FINITE, SCORE
from pitc.ir.prices import Prices
from pitc.ir.region import Region
from pitc.passes import pipeline
from pitc.passes.analysis import Analysis, analysis
from pitc.passes.audit.engine import audit
from pitc.passes.live_scales import scale_by_live_tokens
from pitc.passes.normalise import normalise
from pitc.passes.pipeline import Lowered
from tests.fact_feeds import PATTERNS
from tests.random_excuses import broken, broken_by, close, is_rounded_half, unsteady
from tests.random_graph import RuleGraph
from tests.random_nodes import plan_of, run_nodes, run_whole, session_of
from tests.tile_prices import PRICES

Array = Any
Feed = Mapping[str, Array]
MASK = "mask"
WAYS = (None, MASK)  # without padding, and with a mask of it


@contextmanager
def lowering_everything() -> Iterator[None]:
    """Regions are lowered whether they pay or not."""
    eager = {"flops_per_byte": 0, "least_extent": 1, "least_weight": 1}
    cpu, cuda = (replace(target, **eager) for target in (targets.CPU, targets.CUDA))
    with patch.object(targets, "CPU", cpu), patch.object(targets, "CUDA", cuda):
        yield


def by_numpy(lowered: Lowered) -> "Run":
    """Runs PIT nodes by numpy and the others by ONNX Runtime, node after node."""
    return partial(run_nodes, ir.serde.serialize_model(lowered.model))


@dataclass(frozen=True, slots=True)
class Machine:
    """What graphs are lowered for, and what runs them then.

    Args:
        kind: Of the target.
        prices: Of sparse contractions.
        runner: Makes what runs a lowered graph.
        audits: Facts are checked, too.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    prices: Prices = PRICES
    runner: "Callable[[Lowered], Run]" = by_numpy
    audits: bool = True


Run = Callable[[Feed], Sequence[Array]]
CPU = Machine()


@dataclass(slots=True)
class Outcome:
    """What one graph showed.

    Args:
        failures: What does not hold, one line each.
        counts: Nodes, facts, runs, and which kinds of lowering occurred.
    """

    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, found: bool) -> None:
        """Something that the graph has, or has not."""
        self.counts[what] = max(self.counts.get(what, 0), int(found))

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + n


def check_seed(seed: int, machine: Machine = CPU) -> Outcome:
    """Check the graph of one seed."""
    graph = RuleGraph(np.random.default_rng(seed))
    return check(graph, seed, machine)


def check(made: RuleGraph, seed: int, machine: Machine = CPU) -> Outcome:
    """Check one graph on a few feeds, with or without a padding mask: another graph shows more than
    the same one both ways.

    Args:
        made: The graph.
        seed: Of the feeds.
        machine: What it is lowered for.
    """
    chosen = PATTERNS[seed % 2 :: 2] if seed % 3 else PATTERNS[:3:2]
    way = WAYS[seed // 6 % 2]  # whatever the patterns
    return check_model(made.g.model(), made.feeds(seed, chosen), seed, (way,), machine)


def check_model(
    proto: onnx.ModelProto,
    feeds: Iterable[Feed],
    seed: int = 0,
    ways: Sequence[str | None] = WAYS,
    machine: Machine = CPU,
) -> Outcome:
    """Check a model whose padding mask, an input, is called `mask`.

    Args:
        proto: The model.
        feeds: Its inputs.
        seed: Of the audit's noise.
        ways: Padding masks to compile with.
        machine: What it is lowered for.
    """
    out = Outcome()
    out.count("nodes", len(proto.graph.node))
    try:
        session = session_of(proto)
    except Exception:  # a shape that single nodes, which know no shapes, did not object to
        return out
    runs = []
    for feed in feeds:
        found = run_whole(session, feed)
        again = found and run_whole(session, feed)
        steady = again and all(map(_same_bits, found or (), again))
        if found is None or not steady:  # it stopped, or a kernel of it reads unwritten memory
            out.count("refused feeds")
        else:
            runs.append((feed, found))
    out.note("valid", bool(runs))
    for padding in ways:
        _check_with(proto, runs, _side(proto, padding), seed, out, machine)
    return out


def _check_with(
    proto: onnx.ModelProto,
    runs: Sequence[tuple[Feed, list[Array]]],
    padding: str | None,
    seed: int,
    out: Outcome,
    machine: Machine,
) -> None:
    # a feed for each way of padding: most facts are the same ones
    feeds = [feed for feed, _ in runs[:2]][:: -1 if padding else 1][:1]
    given_up: dict[str, list[Region]] = {}

    def audited(model: ir.Model, mask: str | None, *target: Any) -> Analysis:
        known = analysis(model, mask, *target)
        graph, found = known.graph, known.given_up
        given_up.update(found)
        if not machine.audits:
            return known
        result = audit(graph, found, feeds, seed=seed, teeth=False)
        excuses = broken(graph, feeds[0]) if result.failures else set()
        for text in result.failures:
            named = excuses & {*graph.assumptions, *_resting(text)}
            if is_rounded_half(graph, feeds[0], text):
                out.count("half numbers")
                continue
            if named:
                out.count("assumption broken")
            else:
                out.failures.append(f"padding={padding}: {text}")
        out.count("fill checks", result.fill_checks)
        out.count("dead checks", result.dead_checks)
        out.count("faults", result.faults)
        return known

    with patch.object(pipeline, "analysis", audited):
        target = targets.target_of(machine.kind)
        options = pipeline.LowerOptions(padding, None, machine.prices, True, target)
        compiled = pipeline.run_passes(ir.serde.deserialize_model(proto), options)
    nodes = compiled.report.nodes
    packed = sum(r.lowering != "ordinary" for r in nodes)
    lowered = ir.serde.serialize_model(compiled.model)
    out.count("packed nodes", packed)
    out.note("packed", packed > 0)
    out.note("attention", any(r.lowering == "attention" for r in nodes))
    out.note("sparse", any(r.sparse for r in nodes))
    for kind in ("ffn", "right"):
        out.note(kind, any(plan_of(n).get("kind") == kind for n in lowered.graph.node))
    out.note("exit", any(_is_exit(plan_of(node)) for node in lowered.graph.node))
    out.note("refusal", any(r.refusal is not None and r.dead for r in nodes))
    if not packed and not given_up:
        return
    run = machine.runner(compiled)
    scaled = _scaled_by_live_tokens(proto, padding)
    for number, (feed, want) in enumerate(runs):
        if scaled is not None:
            want = run_whole(scaled, feed) or want
        try:
            got = run(feed)
        except Exception as error:
            out.failures.append(f"padding={padding}, feed {number}: {error!r}")
            continue
        out.count("runs")
        text = _differ(proto, given_up, feed, want, got)
        if text and broken_by(proto, padding, feed):
            out.count("assumption broken")
        elif text:
            out.failures.append(f"padding={padding}, feed {number}: {text}")


def _side(proto: onnx.ModelProto, padding: str | None) -> str | None:
    """The mask, from the side from which the graph itself reads it."""
    model = ir.serde.deserialize_model(proto)
    normalise(model)
    try:
        analysis(model, padding)
    except UsageError as error:
        if "hides keys" in str(error):
            return f"!{padding}"
    return padding


def _scaled_by_live_tokens(proto: onnx.ModelProto, padding: str | None) -> Any:
    """A session of what the padding contract makes of a model; None where that is the model."""
    model = ir.serde.deserialize_model(proto)
    if padding is None or not scale_by_live_tokens(model, padding):
        return None
    return session_of(ir.serde.serialize_model(model))


def _resting(text: str) -> Iterator[str]:
    """Assumptions that a fact is itself about; a report names those that something else uses."""
    if " is not finite " in text or " is NaN " in text:
        yield FINITE
    if f"fill {SCORE} of " in text or "(assumed) of " in text:
        yield BOUNDED


def _is_exit(fields: Mapping[str, str]) -> bool:
    return fields.get("op") == "unpack" or fields.get("scatter") == "1"


def _differ(
    proto: onnx.ModelProto,
    given_up: Mapping[str, Sequence[Region]],
    feed: Feed,
    want: Sequence[Array],
    got: Sequence[Array],
) -> str:
    """The first difference of two runs as text; empty without one."""
    moved: list[Array] | None = None
    for k, (output, x, y) in enumerate(zip(proto.graph.output, want, got, strict=True)):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{output.name}: {y.dtype}{y.shape} is not {x.dtype}{x.shape}"
        keep = np.ones(x.shape, bool)
        if output.name in given_up:
            (where,) = given_up[output.name]
            padded_by = {test.yes for test in where}
            dead = _in_place((feed[MASK] != 0) == padded_by.pop(), where, x)
            keep &= ~dead
            if np.any(dead & (y != 0)):
                return f"{output.name} is not 0 where it was given up"
        wrong = keep & ~close(x, y)
        if wrong.any():
            moved = moved or unsteady(proto, feed, want)
            wrong &= ~moved[k]
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            return f"{output.name}{list(at)}: {y[at]!r} is not {x[at]!r}"
    return ""


def _in_place(dead: Array, where: Region, x: Array) -> Array:
    """Dead points of the mask at the dimensions of an output that have them, the first ones if it
    is not said which; of a mask over a past, the last tokens.
    """
    (test,) = where
    dims = [{c.dim for c in p.digits()} for p in test.idx]
    places = [min(d) for d in dims] if all(dims) else list(range(dead.ndim))
    dead = dead[:, dead.shape[1] - x.shape[places[1]] :]
    return np.expand_dims(dead, [d for d in range(x.ndim) if d not in places])


def _same_bits(x: Array, y: Array) -> bool:
    return bool(x.shape == y.shape and x.tobytes() == y.tobytes())
