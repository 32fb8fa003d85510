"""The domains that are tried, in the order in which nodes join them, and their strata: live points
may be computed from what an earlier domain packs.

    rows of padding     router = x @ w     best = ArgMax     mine = best == e     rows of expert e
    stratum 0           runs packed there                    tested               stratum 1

Each table is made once: what a domain looks up takes as long as what it holds, not as the graph.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations

import onnx_ir as ir

from pitc.ir.emptiness import where_left_out
from pitc.ir.graph import Graph
from pitc.ir.nodes import captures, first_output, input_names, node_name, output_names
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, for_all
from pitc.passes.exprs.coordinates import Paths
from pitc.passes.facts.few_elements import most_elements
from pitc.passes.regions.domain import Domain, domain_of, named_coords, why_no_domain
from pitc.passes.regions.form import FormContext, zero_facts, zero_regions
from pitc.passes.regions.live_share import asks_lines
from pitc.passes.regions.live_tests import can_compute, why_not
from pitc.passes.regions.price import contraction_flops
from pitc.passes.regions.terms import term_domains
from pitc.passes.rules.record import PackRule, operator_of

Sources = frozenset[str]


@dataclass(slots=True)
class Strata:
    """In which domains a node may run packed: in one whose live points are not computed from it,
    nor those of a domain of the same stratum or of one before.

    So the live points of a domain are computed from what runs whole, or packed in strata before
    its own, and no way leads back.

    Args:
        number: The stratum of each domain.
        needed: For values from which live points are computed, the first stratum that needs them.
    """

    number: dict[Domain, int] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)

    def allow(self, names: Iterable[str], domains: Iterable[Domain]) -> bool:
        """Whether these values may be computed by a form that looks at those domains."""
        last = max((self.number.get(d, -1) for d in domains), default=-1)
        return all(self.needed.get(name, last + 1) > last for name in names)


def strata_of(graph: Graph, domains: Collection[Domain]) -> Strata:
    """Number domains by how many steps their tested values take to compute: what one of them is
    computed from takes fewer.
    """
    steps = _steps(graph)
    depth = {d: max(steps.get(x, 0) for x in d.sources()) for d in domains if d.sources()}
    levels = {n: k for k, n in enumerate(sorted(set(depth.values())))}
    strata = Strata({d: levels[n] for d, n in depth.items()})
    tested: dict[int, set[str]] = {}
    for domain, number in strata.number.items():
        tested.setdefault(number, set()).update(domain.sources())
    for number in sorted(tested):
        for name in graph.sources_of(tested[number], strata.needed):
            strata.needed[name] = number
    return strata


def _steps(graph: Graph) -> dict[str, int]:
    """How many nodes stand in a row before each value."""
    steps: dict[str, int] = {}
    for node in graph.nodes:
        names = (*input_names(node), *captures(node))
        most = max((steps.get(name, 0) for name in names), default=0)
        steps |= dict.fromkeys(output_names(node), most + 1)
    return steps


class Contexts(Sequence[FormContext]):
    """Domains in the order in which nodes join them, found by the values that may belong to them.

    Args:
        graph: The analysed graph.
        domains: The domains.
        index: What the values' facts test.
        paths: Where coordinates lead.
    """

    def __init__(
        self, graph: Graph, domains: Iterable[Domain], index: "Tested", paths: Paths
    ) -> None:
        self._contexts = [index.context(graph, d, paths) for d in domains]
        self._graph, self._index, self._paths = graph, index, paths
        self._of: dict[str, list[int]] = {}
        self._testing: dict[str, list[int]] = {}
        for k, context in enumerate(self._contexts):
            for name in index.dead_in(context.domain):
                self._of.setdefault(name, []).append(k)
            for source in context.domain.sources() or ("",):
                self._testing.setdefault(source, []).append(k)

    def __getitem__(self, k):  # type: ignore[no-untyped-def]
        return self._contexts[k]

    def __len__(self) -> int:
        return len(self._contexts)

    def without(self, domains: Collection[Domain]) -> "Contexts":
        """The others."""
        kept = [c.domain for c in self._contexts if c.domain not in domains]
        return Contexts(self._graph, kept, self._index, self._paths)

    def of(self, name: str) -> Sequence[FormContext]:
        """Those to which a value may belong."""
        return [self._contexts[k] for k in self._of.get(name, ())]

    def values(self, context: FormContext) -> set[str]:
        """The values that may belong to a domain."""
        return self._index.dead_in(context.domain)

    def of_terms(self, names: Iterable[str]) -> list[FormContext]:
        """Those in which one of the operands of a sum may be unread, or 0."""
        names = list(names)
        places = {k for n in names for k in self._of.get(n, ())}
        for sources in {s for n in names for s in self._index.zero.get(n, ())}:
            places.update(self._testing.get(min(sources, default=""), ()))
        return [self._contexts[k] for k in sorted(places)]


@dataclass(slots=True)
class Tested:
    """What the facts of a graph's values look at.

    Args:
        dead: Values by what a region tests in which they are dead, or 0.
        zero: For each value, what its regions of zeros test.
        contexts: What was asked for before: each holds what was found in it.
    """

    dead: dict[Sources, set[str]] = field(default_factory=dict)
    zero: dict[str, set[Sources]] = field(default_factory=dict)
    contexts: dict[Domain, FormContext] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> "Tested":
        """Of all values that are computed or given."""
        found = cls()
        for name, value in graph.values.items():
            if graph.is_constant(name):
                continue
            for r in (*value.dead, *zero_regions(graph, name)):
                found.dead.setdefault(r.sources - {""}, set()).add(name)
            zeros = {r.sources - {""} for r in zero_facts(graph, name)}
            if zeros:
                found.zero[name] = zeros
        return found

    def dead_in(self, domain: Domain) -> set[str]:
        """Values that are dead or 0 in a region that tests nothing but what the domain does."""
        sources = sorted(domain.sources())
        subsets = chain.from_iterable(combinations(sources, n) for n in range(len(sources) + 1))
        return {name for s in subsets for name in self.dead.get(frozenset(s), ())}

    def context(self, graph: Graph, domain: Domain, paths: Paths) -> FormContext:
        """What form builders look at, in one domain."""
        if domain not in self.contexts:
            names = sorted(self.dead_in(domain), key=lambda name: graph[name].order)
            starts = {n: list(dict.fromkeys(named_coords(domain, graph[n].dead))) for n in names}
            self.contexts[domain] = FormContext(graph, domain, starts, paths)
        return self.contexts[domain]


def contexts_of(graph: Graph) -> Contexts:
    """Domains in the order in which nodes join them.

    Domains known by position alone come first (one row per sequence for a classifier's last layer),
    then those in which the most contraction work has dead rows; at equal work the one with
    fewer tests, then the one that tests the value of which fewer elements are not 0: more is dead
    there.
    Where a test must hold for all of a dimension (a key that no query looks at), or there is one
    point only, less is dead: such domains come last; but for those by position that have another
    number of coordinates than the others.
    """
    work = Counter[Domain]()
    for node in graph.nodes:
        flops = contraction_flops(graph, node)
        if flops:
            found = (_domains, term_domains, _zero_domains)
            for domain in {d for domains in found for d in domains(graph, node)}:
                work[domain] += flops
    paying = sorted(
        (d for d in work if can_compute(graph, d) and not _asks_all_pairs(graph, d)),
        key=lambda d: (asks_lines(graph, d), -work[d], sorted(map(str, d.dead))),
    )
    lines = _whole_lines(paying)
    index, paths = Tested.of(graph), Paths(graph)
    valued = [d for d in paying if d.sources() and d.dead not in lines]
    covered = {d: _covered_flops(graph, d, index, paths) for d in valued}
    valued.sort(key=lambda d: (asks_lines(graph, d), -covered[d], len(d.dead), _share(graph, d)))
    rank = next((d.rank for d in valued), None)
    positional = [d for d in paying if not d.sources()]
    first = [d for d in positional if rank is None or d.rank == rank]
    last = [d for d in positional if d not in first]
    return Contexts(graph, (*first, *valued, *last), index, paths)


def untried(graph: Graph, contexts: Contexts) -> dict[ir.Node, Refusal]:
    """Contractions with dead rows that belong to no domain that is tried, and why."""
    found: dict[ir.Node, Refusal] = {}
    reasons: dict[Domain, str] = {}
    lines = _whole_lines(c.domain for c in contexts)
    for node in graph.nodes:
        name = first_output(node)
        dead = where_left_out(graph[name].dead) if contraction_flops(graph, node) else ()
        if not dead or any(c.packings(name) for c in contexts.of(name)):
            continue
        domains = list(_domains(graph, node))
        reasons |= {d: why_not(graph, d) for d in domains if d not in reasons}
        shapes = [text for r in dead if (text := why_no_domain(r))]
        tests = [reasons[d] for d in domains if reasons[d]]
        if tests:
            code, text = Code.LIVE_TEST, tests[0]
        elif shapes:
            code, text = Code.LAYOUT, shapes[0]
        elif any(d.dead in lines for d in domains):
            code, text = Code.NO_GAIN, "it is unread only where a whole line is unread"
        elif not all(r.tests for r in dead):
            code, text = Code.NOT_NEEDED, "only its sizes are read"
        else:
            code, text = Code.LAYOUT, "pitc does not know which of its digits select live rows"
        found[node] = Refusal(code, node_name(node), text)
    return found


def _domains(graph: Graph, node: ir.Node) -> Iterator[Domain]:
    """Where rows of a node's result are dead."""
    found = filter(None, map(domain_of, graph[first_output(node)].dead))
    yield from dict.fromkeys(domain for domain, _ in found)


def _zero_domains(graph: Graph, node: ir.Node) -> Iterator[Domain]:
    """Where rows of a product with a matrix are 0, by one mask: that several gates are all shut is
    rare.
    """
    rows = operator_of(node).packs is PackRule.CONTRACTION
    zeros = (r for r in zero_regions(graph, first_output(node)) if rows and len(r) == 1)
    found = (domain for domain, _ in filter(None, map(domain_of, zeros)))
    yield from (domain for domain in found if not asks_lines(graph, domain))


def _asks_all_pairs(graph: Graph, domain: Domain) -> bool:
    """True where a whole mask of pairs would have to be made and reduced to know what lives."""
    return any(t.alls and t.src in graph.many_parts for t in domain.dead)


def _whole_lines(domains: Iterable[Domain]) -> set[frozenset[Test]]:
    """Dead tests of what is dead only where a whole line of another domain is: a sequence without
    any token, of which there are hardly any.
    """
    lines = (for_all(Region(d.dead), [d.rank - 1]) for d in domains if d.rank)
    return {frozenset(line) for line in lines if line is not None}


def _share(graph: Graph, domain: Domain) -> Fraction:
    """At most which share of what a domain tests is not 0."""
    return min((most_elements(graph, name) for name in domain.sources()), default=Fraction(1))


def _covered_flops(graph: Graph, domain: Domain, index: Tested, paths: Paths) -> int:
    """The work of contractions of whose results nobody reads the dead part."""
    context = index.context(graph, domain, paths)
    makers = {name: graph[name].producer for name in index.dead_in(domain)}
    return sum(
        contraction_flops(graph, node)
        for name, node in makers.items()
        if node is not None and first_output(node) == name
        if any(p.proof is not None for p in context.packings(name))
    )
