"""Checks that judge a mutant: tests, probes, random graphs; each with the statements that it runs.

A probe does more than pass or fail. It is lowered by the mutant and compared with what was known
and made before: an answer is computed only where the lowered graph differs, facts are audited only
where new ones appear.
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import onnx_ir as ir
import pytest
from _pytest.runner import runtestprotocol

from pitc.ir.graph import Graph
from pitc.ir.region import Region
from pitc.passes import pipeline
from pitc.passes.analysis import Analysis
from pitc.passes.audit.engine import audit
from tests.mutation.tables import Mark
from tests.mutation.targets import LONGEST, SEEDS
from tests.probes.all import MAKERS
from tests.probes.build import Probe
from tests.probes.check import differences, lower, source_runs
from tests.probes.interpret import run_graph
from tests.random_check import check_seed, lowering_everything

Fact = tuple[str, str, str]  # a value, the region, and the constant or "dead"
PROBES_FOR_EACH_TEST = 3  # where few are drawn
AUDITED = 2  # feeds of a probe that its new facts are checked with


@dataclass(slots=True)
class Made:
    """What became of a probe.

    Args:
        model: The lowered model's bytes.
        facts: All of its facts.
        given_up: The regions of outputs that the user gave up.
        graph: The analysed graph.
    """

    model: bytes
    facts: frozenset[Fact]
    given_up: dict[str, list[Region]] = field(default_factory=dict)
    graph: Graph | None = None


@dataclass(slots=True)
class Known:
    """One check of the right program.

    Args:
        seconds: How long it takes.
        lines: Statements that it runs, as (module, line), and tables' entries that it looks at.
        made: What it makes of a probe.
        runs: Feeds and right outputs of a probe.
    """

    seconds: float
    lines: frozenset[Mark]
    made: Made | None = None
    runs: Sequence[Any] = ()


@dataclass(slots=True)
class Seen:
    """What one check says of a mutant.

    Args:
        failure: Why it is wrong; empty where it is not.
        gained: Facts that the right program does not claim.
        lost: Facts that the mutant does not claim.
        moved: The lowered graph is another.
    """

    failure: str = ""
    gained: int = 0
    lost: int = 0
    moved: bool = False


class Judges:
    """All checks by name.

    Args:
        items: Collected tests.
        most: Checks that are drawn of each family: a file of tests, the probes; None for all.
        wanted: Parts of their names.
    """

    def __init__(
        self, items: Sequence[pytest.Item], most: int | None = None, wanted: Sequence[str] = ("",)
    ) -> None:
        self.most, self.wanted = most, wanted
        self.items = {f"test:{i.path.name}::{i.nodeid.partition('::')[2]}": i for i in items}
        self.probes: dict[str, Probe] = {}
        self.known: dict[str, Known] = {}

    def names(self) -> Iterator[str]:
        """All checks, or as many as are wanted of each family."""
        families: dict[str, list[str]] = defaultdict(list)
        for name in self.items:
            families[name.split("::")[0]].append(name)
        families["probe"] = [f"probe:{name}" for name in MAKERS]
        families["random"] = [f"random:{seed}" for seed in SEEDS]
        for family, found in families.items():
            names = [name for name in found if any(part in name for part in self.wanted)]
            most = len(names) if self.most is None else self.most
            most *= PROBES_FOR_EACH_TEST if family == "probe" else 1
            drawn = random.Random(family).sample(names, most) if most < len(names) else names
            yield from drawn

    def learn(self, name: str, lines: set[Mark]) -> Known | None:
        """Run a check on the right program; None where it does not hold or takes too long."""
        lines.clear()
        start = time.process_time()
        kind, _, rest = name.partition(":")
        made, runs = None, ()
        if kind == "probe":
            probe = self.probe(rest)
            try:
                runs = list(source_runs(probe))
                made = make(probe)
            except Exception:
                return None
            if _wrong(probe, made, runs):
                return None
            made = Made(made.model, made.facts)
        elif self.look(name).failure:
            return None
        seconds = time.process_time() - start
        return Known(seconds, frozenset(lines), made, runs) if seconds < LONGEST else None

    def probe(self, name: str) -> Probe:
        if name not in self.probes:
            self.probes[name] = MAKERS[name]()
        return self.probes[name]

    def look(self, name: str) -> Seen:
        """Let one check judge the program that runs."""
        kind, _, rest = name.partition(":")
        if kind == "test":
            reports = runtestprotocol(self.items[name], log=False, nextitem=None)
            failed = [r for r in reports if r.failed]
            return Seen(_last_line(failed[0].longreprtext) if failed else "")
        if kind == "random":
            with lowering_everything():
                found = check_seed(int(rest)).failures
            return Seen(found[0] if found else "")
        return self._look_at_probe(rest, self.known[name])

    def _look_at_probe(self, name: str, known: Known) -> Seen:
        probe, was = self.probe(name), known.made
        assert was is not None
        try:
            made = make(probe)
        except Exception as error:
            return Seen(f"{type(error).__name__}: {error}")
        gained, lost = made.facts - was.facts, was.facts - made.facts
        moved = made.model != was.model
        failure = _wrong(probe, made, known.runs) if moved else ""
        if not failure and gained:
            failure = _false(made, gained, [feed for feed, _ in known.runs[:AUDITED]])
        return Seen(failure, len(gained), len(lost), moved)


def make(probe: Probe) -> Made:
    """Lower a probe and keep what is known of it."""
    kept: list[Analysis] = []
    facts: set[Fact] = set()
    real = pipeline.analysis

    def noted(model: ir.Model, padding: str | None, *target: Any) -> Analysis:
        kept.append(real(model, padding, *target))
        facts.update(facts_of(kept[-1].graph))
        return kept[-1]

    with patch.object(pipeline, "analysis", noted):
        model = ir.serde.serialize_model(lower(probe).model).SerializeToString(deterministic=True)
    return Made(model, frozenset(facts), kept[-1].given_up, kept[-1].graph)


def facts_of(graph: Graph) -> Iterator[Fact]:
    """Every claim about a graph's values, as text."""
    for name, value in graph.values.items():
        yield from ((name, f.region.text, repr(f.constant)) for f in value.fills)
        yield from ((name, r.text, "dead") for r in value.dead)


def _wrong(probe: Probe, made: Made, runs: Sequence[Any]) -> str:
    """How the lowered probe differs from the source, under no assumption that it names."""
    import onnx

    model = onnx.ModelProto.FromString(made.model)
    try:
        for feed, want in runs:
            for text in differences(probe, feed, want, run_graph(model, feed)):
                return "" if _excused(probe, made) else text
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _excused(probe: Probe, made: Made) -> bool:
    assumed = made.graph.assumptions if made.graph is not None else ()
    return bool(probe.assumes) and any(probe.assumes in text for text in assumed)


def _false(made: Made, gained: frozenset[Fact], feeds: Sequence[Mapping[str, Any]]) -> str:
    """A new fact that does not hold in a run of the source."""
    graph = made.graph
    assert graph is not None
    new = set(gained)
    for name, value in graph.values.items():
        value.fills = [f for f in value.fills if (name, f.region.text, repr(f.constant)) in new]
        value.dead = [r for r in value.dead if (name, r.text, "dead") in new]
    found = audit(graph, made.given_up, feeds, teeth=False).failures
    return next((t for t in found if "(assumed)" not in t and "fill SCORE" not in t), "")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("E ")]
    return (lines or text.splitlines() or ["failed"])[0].removeprefix("E").strip()[:200]


def quiet() -> None:
    """Nothing that a check prints is of interest."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
