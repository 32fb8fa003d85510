"""The auditor: every fact is checked against ONNX Runtime.

* The imported model says which feeds count; what it gives, the normalised graph has to give.
* Intermediates are exposed and each fill fact is looked up, in values of the imported model too.
* What rests on bounded scores is looked up once more with scores at the ends of the bound.
* Each value with dead facts is overwritten with noise where it is dead, one value at a time, and no
  output may move. Overwriting the *other* elements shows that the check has teeth (`tight`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import BOUNDED, NZ, SMALL, ZN, Constant, Range
from pitc.ir.graph import Array, Graph
from pitc.ir.region import Region, Test
from pitc.passes.audit.assumed import (
    both_empty,
    extreme_scores,
    free_scores,
    overflows,
    raw_scores,
    resting,
    unbounded,
    undefined,
)
from pitc.passes.audit.points import Points, blocks, sizes_of
from pitc.passes.audit.runs import Feed, Runs, Switches
from pitc.passes.audit.source import Source
from pitc.passes.audit.symbols import not_finite, wrong_symbols

Values = Mapping[str, Array]
Sizes = Mapping[str, int]
OVERWRITTEN = 16  # dead values for each probe


@dataclass(slots=True)
class AuditResult:
    """What the audit found.

    Args:
        feeds: Feeds that were looked at.
        refused: Feeds that the imported model does not take, of sizes that it cannot have perhaps,
            or for which ONNX does not say what it gives (a Reshape to [-1, 0]).
        assumed: Feeds that break a named assumption; only what does not rest on it was looked at.
        fill_checks: Fill facts looked up, over all feeds.
        dead_checks: Values overwritten where dead, over all feeds.
        tight: How many of those move an output when the other elements are overwritten.
        faults: Runs that ONNX Runtime stopped (a dead index out of range, for example).
        failures: What does not hold, one line each.
    """

    feeds: int = 0
    refused: int = 0
    assumed: int = 0
    fill_checks: int = 0
    dead_checks: int = 0
    tight: int = 0
    faults: int = 0
    failures: list[str] = field(default_factory=list)


def audit(
    graph: Graph,
    given_up: Mapping[str, Sequence[Region]],
    feeds: Iterable[Feed],
    *,
    source: ir.Model | None = None,
    probes: Iterable[Feed] = (),
    seed: int = 0,
    teeth: bool = True,
) -> AuditResult:
    """Check every fact of a graph on some inputs.

    Args:
        graph: The graph after `fill_facts` and `dead_facts`.
        given_up: The regions of outputs that were given to `dead_facts`.
        feeds: Input arrays by name.
        source: The model as it was before it was normalised. It says which feeds count, and its
            outputs have to be the graph's.
        probes: Further inputs, for each of which only `OVERWRITTEN` dead values are overwritten, in
            turns: that is what takes time.
        seed: Of the noise.
        teeth: Overwrite the live elements too, to count `tight`; half of the time.

    Returns:
        Counts and failures. A feed that the source refuses is left out; without a source, one that
        the graph refuses.
    """
    found = _Audit(graph, given_up, source, seed)
    for number, feed in enumerate(feeds):
        found.look(f"feed {number}", feed, len(found.run.targets), teeth)
    for number, feed in enumerate(probes):
        found.look(f"probe {number}", feed, OVERWRITTEN, teeth=False)
    return found.result


class _Audit:
    """One audit: the sessions, and what was found so far."""

    def __init__(
        self,
        graph: Graph,
        given_up: Mapping[str, Sequence[Region]],
        source: ir.Model | None,
        seed: int,
    ) -> None:
        self.graph, self.given_up = graph, given_up
        self.result, self.rng = AuditResult(), np.random.default_rng(seed)
        self.scores, self.resting = raw_scores(graph), resting(graph)
        self.run = Runs(graph, self.scores)
        interesting = {n for n, value in graph.values.items() if value.fills}
        self.source = None if source is None else Source(source, interesting)
        self.turn = 0  # the target that comes next
        self.new = True  # what is said of constants is looked at once

    def look(self, title: str, feed: Feed, overwritten: int, teeth: bool) -> None:
        """Look at everything for one feed.

        Args:
            title: Of the feed, for failures.
            feed: The inputs.
            overwritten: How many dead values are overwritten.
            teeth: Overwrite what is not dead as well.
        """
        found = self.wrong(feed, overwritten, teeth)
        self.result.failures += [f"{title}: {text}" for text in found]

    def wrong(self, feed: Feed, overwritten: int, teeth: bool) -> Iterator[str]:
        """What does not hold for one feed."""
        imported = None
        if self.source is not None:
            imported = self.source.run(feed)
            if imported is None:
                self.result.refused += 1
                return
        values = self.run.expose(feed)
        if values is None:
            self.result.faults += imported is None
            if imported is not None:
                yield "the imported model takes it, the normalised one does not"
            return
        if undefined(self.graph, values):
            self.result.refused += 1
            return
        self.result.feeds += 1
        if self.source is not None and imported is not None:
            yield from self.source.unequal(feed, imported, values)
        sizes, clashes = sizes_of(self.graph, values)
        if both_empty(self.graph, sizes):
            self.result.assumed += 1
            return
        yield from clashes
        if clashes:
            return
        names = [n for n in values if self.new or not self.graph.is_constant(n)]
        self.new = False
        yield from wrong_symbols(self.graph, values, sizes)
        infinite = list(not_finite(self.graph, names, values, sizes))
        if infinite and overflows(self.graph, infinite[0][0], values):
            self.result.assumed += 1
            return
        yield from (text for _, text in infinite)
        bounded = not unbounded(self.graph, self.scores, values, sizes)
        self.result.assumed += not bounded
        points = Points(sizes, values)
        yield from self.wrong_fills(names, points, bounded)
        if imported is not None:
            other = _differing(imported, values)
            merged = {**values, **{n: imported[n] for n in other}}
            found = self.wrong_fills(other, Points(sizes, merged), bounded)
            yield from (f"imported model: {text}" for text in found)
        if bounded and self.scores:
            yield from self.with_extreme_scores(feed, values, sizes)
        if bounded or BOUNDED not in self.graph.assumptions:
            yield from self.wrong_dead(feed, points, overwritten, teeth)

    def wrong_fills(self, names: Iterable[str], points: Points, bounded: bool) -> Iterator[str]:
        """Fill facts that do not hold."""
        for name in names:
            x = points.values[name]
            if not bounded and name in self.resting:
                continue
            for f in self.graph[name].fills:
                self.result.fill_checks += 1
                for start, part in blocks(x):
                    here = points.where(f.region, part.shape, start)
                    if not np.all(agrees(part[here], f.constant)):
                        yield f"fill {f.constant} of {name} where {f.region}"
                        break

    def with_extreme_scores(self, feed: Feed, values: Values, sizes: Sizes) -> Iterator[str]:
        """Fill facts that do not hold for scores as large as is assumed.

        What rests on the assumption has to be true of all such scores, whatever made them.
        """
        graph = self.graph
        names = [n for n in self.scores if n in values and n in self.run.switched]
        found = {n: extreme_scores(graph, n, values, sizes, self.rng) for n in names}
        moved, switches = values, {n: s for n, s in found.items() if s[0].any()}
        while switches:
            run = self.run.expose(feed, switches)
            if run is None:
                return
            moved = run | {n: np.where(at, x, run[n]) for n, (at, x) in switches.items()}
            sizes, _ = sizes_of(graph, moved)  # what scores choose may be fewer or more
            free = {n: free_scores(graph, n, moved, sizes) for n in switches}
            if all(np.all(free[n] | ~at) for n, (at, _) in switches.items()):
                break
            # one score decides where another is known
            switches = {n: (at & free[n], x) for n, (at, x) in switches.items()}
        if switches and not unbounded(graph, self.scores, moved, sizes):
            resting = [n for n in moved if n in self.resting]
            wrong = self.wrong_fills(resting, Points(sizes, moved), True)
            yield from (f"scores of 1000: {text}" for text in wrong)

    def wrong_dead(
        self, feed: Feed, points: Points, overwritten: int, teeth: bool
    ) -> Iterator[str]:
        """Dead facts that do not hold: an output moves."""
        graph, run, result, values = self.graph, self.run, self.result, points.values
        keep = {
            name: ~_any(self.given_up.get(name, ()), values[name].shape, points)
            for name in graph.outputs
            if name in values
        }
        first = self.turn
        for k in range(len(run.targets)):
            name = run.targets[(first + k) % len(run.targets)]
            x, regions = values.get(name), graph[name].dead
            dead = None if x is None else _any(regions, x.shape, points)
            if x is None or dead is None or not dead.any():
                continue
            if not overwritten:
                self.turn = first + k
                break
            overwritten -= 1
            result.dead_checks += 1
            other = noise(x, self.rng)
            moved = run.moved(feed, {name: (dead, other)}, values, keep)
            result.faults += moved is None
            if moved and self.overflown(feed, {name: (dead, other)}):
                result.assumed += 1
            elif moved:
                yield f"dead {name} where {' or '.join(map(str, regions))}"
            if not teeth:
                continue
            rest = {name: (~dead, other)}
            if dead.all() or run.moved(feed, rest, values, keep) is not False:
                result.tight += 1

    def overflown(self, feed: Feed, switches: Switches) -> bool:
        """Whether numbers become too large for their type when values are overwritten."""
        values = self.run.expose(feed, switches)
        if values is None:
            return False
        sizes, _ = sizes_of(self.graph, values)
        infinite = [name for name, _ in not_finite(self.graph, values, values, sizes)]
        return bool(infinite) and overflows(self.graph, infinite[0], values)


def tests_of(graph: Graph) -> set[Test]:
    """What the facts of a graph look at when it runs."""
    fills = (f.region for value in graph.values.values() for f in value.fills)
    dead = (r for value in graph.values.values() for r in value.dead)
    return {t for r in chain(fills, dead) for t in r if t.src}


def _differing(a: Values, b: Values) -> list[str]:
    """Names of both whose arrays have the same shape, but other bits."""
    shared = [n for n in a if n in b and a[n].shape == b[n].shape and a[n].dtype == b[n].dtype]
    return [n for n in shared if a[n].tobytes() != b[n].tobytes()]


def agrees(x: Array, c: Constant) -> Array:
    """Elementwise: is the value what the constant says?"""
    if isinstance(c, Range):
        return np.asarray((c.lo <= x) & (x <= c.hi))
    if c is ZN:
        return np.asarray((x == 0) | np.isnan(x))
    if c is NZ:
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        return np.asarray(x == np.array(c).astype(x.dtype))


def _any(regions: Iterable[Region], shape: tuple[int, ...], points: Points) -> Array:
    out = np.zeros(shape, bool)
    for r in regions:
        out |= points.where(r, shape)
    return out


def noise(x: Array, rng: np.random.Generator) -> Array:
    """Other values of the tensor's own kind: they must stay in the domain of what reads them.

    They are no larger than scores are assumed to be: a masked score is any number up to that.
    """
    if x.dtype == np.bool_ or not x.size:
        return ~x if x.dtype == np.bool_ else x
    if x.dtype.kind != "f":
        return rng.choice(x.reshape(-1), x.shape)
    known = x[np.isfinite(x)].clip(-SMALL, SMALL)
    if not known.size:
        known = np.ones(1, x.dtype)
    low, high = known.min(), known.max()
    if low == high:  # close by, towards 0
        other = low * rng.uniform(0.9, 1, x.shape) if low else rng.uniform(0, 0.1, x.shape)
    else:
        other = (rng.choice(known, x.shape) * rng.uniform(0.5, 2, x.shape)).clip(low, high)
    return np.asarray(other, x.dtype)
