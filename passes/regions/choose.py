"""Regions: which nodes run packed, over which domain.

A packed form computes exactly the live rows of the original value, from exact live rows. Forms are
tried for every node, then dropped until all that are left are sound together (`legal.py`) and each
connected region pays (`price.py`); what is left is told in the report.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.nodes import first_output, node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, for_all
from pitc.ir.report import RegionRecord
from pitc.passes.regions.all_rows import forms_of_all_rows
from pitc.passes.regions.attention import attention_form
from pitc.passes.regions.demand import Demand, demand
from pitc.passes.regions.domain import Coords, Domain, domain_of
from pitc.passes.regions.form import Form, FormContext, PackedOperand, Site, operand_names
from pitc.passes.regions.legal import unsound_forms
from pitc.passes.regions.live_tests import can_compute, why_not
from pitc.passes.regions.packed import packed_form
from pitc.passes.regions.price import (
    busy_nodes,
    contraction_flops,
    costly_tests,
    domains_of,
    priced_regions,
)
from pitc.passes.regions.terms import forms_of_terms, term_domains

MAX_DOMAINS = 6


@dataclass(slots=True)
class Regions:
    """The chosen forms.

    Args:
        forms: The packed form of each node that runs packed.
        refusals: Why the others with a dead fact do not.
        records: One record per connected region, for the report.
        domains: The domain of each.
        demand: What still runs, and the exits.
    """

    forms: dict[ir.Node, Form] = field(default_factory=dict)
    refusals: dict[ir.Node, Refusal] = field(default_factory=dict)
    records: list[RegionRecord] = field(default_factory=list)
    domains: list[Domain] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)


def choose_regions(graph: Graph) -> Regions:
    """Pick the packed forms of a graph whose facts are known.

    Args:
        graph: The analysed graph.

    Returns:
        The forms that pay and are sound together, with a refusal for every node that has a dead
        fact and no form.
    """
    contexts, unpaid = _contexts(graph), _uncomputed(graph)
    while True:
        out = _chosen(graph, contexts)
        costly = costly_tests(graph, out.forms, out.demand)
        if not costly:
            break
        for node in out.demand.forms:
            why = next((costly[d] for d in domains_of(out.forms[node]) if d in costly), None)
            if why is not None and node not in unpaid:
                unpaid[node] = Refusal(Code.LIVE_TEST, node_name(node), why)
        contexts = [c for c in contexts if c.domain not in costly]
    out.refusals |= {n: r for n, r in unpaid.items() if n not in out.forms}
    return out


def _chosen(graph: Graph, contexts: list[FormContext]) -> Regions:
    """The forms in those domains that are sound together and pay for what they move."""
    out = Regions()
    fixed = _sources_and_ancestors(graph, [c.domain for c in contexts])
    for context in contexts:
        for node in graph.nodes:
            if node not in out.forms:
                _try_node(out, context, contexts, node, fixed)
    for node, form in forms_of_all_rows(graph, out.forms, contexts, fixed):
        out.forms.setdefault(node, form)
    for node, found in forms_of_terms(graph, out.forms, contexts, fixed):
        if isinstance(found, Form):
            out.forms.setdefault(node, found)
        elif found.code is not Code.AXIS_NOT_PIT:
            out.refusals.setdefault(node, found)
    _add_wanted_rows(graph, out, contexts, fixed)
    _keep_sound_and_paying(graph, out)
    out.refusals = {n: r for n, r in out.refusals.items() if n not in out.forms}
    return out


def _uncomputed(graph: Graph) -> dict[ir.Node, Refusal]:
    """Contractions whose dead rows are known by tests that cannot be evaluated, and why."""
    found: dict[ir.Node, Refusal] = {}
    reasons: dict[Domain, str] = {}
    for node in graph.nodes:
        dead = graph[first_output(node)].dead if contraction_flops(graph, node) else ()
        domains = [d[0] for r in dead if (d := domain_of(r)) is not None]
        for domain in domains:
            if domain not in reasons:
                reasons[domain] = why_not(graph, domain)
        if domains and all(reasons[d] for d in domains):
            found[node] = Refusal(Code.LIVE_TEST, node_name(node), reasons[domains[0]])
    return found


def _contexts(graph: Graph) -> list[FormContext]:
    """Domains in the order in which nodes join them.

    Domains known by position alone come first (one row per sequence for a classifier's last layer),
    then those in which the most contraction work has dead rows; at equal work the one with fewer
    tests, in which more is dead. Where a test must hold for all of a dimension (a key that no query
    looks at), or there is one point only, less is dead: such domains come last.
    """
    work: Counter[Domain] = Counter()
    for node in graph.nodes:
        flops = contraction_flops(graph, node)
        dead = graph[first_output(node)].dead if flops else ()
        found = {found[0] for r in dead if (found := domain_of(r)) is not None}
        for domain in found | (set(term_domains(graph, node)) if flops else set()):
            work[domain] += flops
    paying = sorted(
        (d for d in work if can_compute(graph, d)),
        key=lambda d: (d.rarely_dead, -work[d], sorted(map(str, d.dead))),
    )
    lines = _whole_lines(paying)
    valued = [FormContext(graph, d) for d in paying if d.sources() and d.dead not in lines][
        :MAX_DOMAINS
    ]
    covered = {c.domain: _covered_flops(graph, c) for c in valued}
    valued.sort(key=lambda c: (c.domain.rarely_dead, -covered[c.domain], len(c.domain.dead)))
    valued = _not_above(graph, valued)
    rank = next((c.domain.rank for c in valued), None)
    positional = [d for d in paying if not d.sources() and (rank is None or d.rank == rank)]
    return [*(FormContext(graph, d) for d in positional[:MAX_DOMAINS]), *valued]


def _whole_lines(domains: Iterable[Domain]) -> set[frozenset[Test]]:
    """Dead tests of what is dead only where a whole line of another domain is: a sequence without
    any token, of which there are hardly any.
    """
    lines = (for_all(Region(d.dead), [d.rank - 1]) for d in domains if d.rank)
    return {frozenset(line) for line in lines if line is not None}


def _not_above(graph: Graph, contexts: Iterable[FormContext]) -> list[FormContext]:
    """The contexts without those whose live points (an expert's tokens) are computed from a
    contraction that an earlier one covers: it would have to run whole.
    """
    kept: list[FormContext] = []
    covered: set[str] = set()
    for context in contexts:
        if covered.isdisjoint(_sources_and_ancestors(graph, [context.domain])):
            kept.append(context)
            covered |= set(map(first_output, _covered(graph, context)))
    return kept


def _covered(graph: Graph, context: FormContext) -> list[ir.Node]:
    """Contractions whose results belong to the domain."""
    return [
        n for n in graph.nodes if contraction_flops(graph, n) and context.packings(first_output(n))
    ]


def _covered_flops(graph: Graph, context: FormContext) -> int:
    """Their work."""
    return sum(contraction_flops(graph, n) for n in _covered(graph, context))


def _sources_and_ancestors(graph: Graph, domains: Iterable[Domain]) -> set[str]:
    """Values from which live points are computed; they never run packed."""
    return graph.sources_of(x for domain in domains for x in domain.sources())


def _try_node(
    out: Regions,
    context: FormContext,
    contexts: list[FormContext],
    node: ir.Node,
    fixed: set[str],
) -> None:
    name = first_output(node)
    expr = context.graph[name].expr
    if expr is None or context.graph[name].captured or name in fixed:
        return
    for packing in context.packings(name):
        site = Site(context, node, expr, packing)
        form = packed_form(site)
        if isinstance(form, Form) and not fixed.isdisjoint(form.whole):
            form = site.refuse(Code.JOINT, "live rows are computed from what it gives beside them")
        if isinstance(form, Refusal) and expr.combine is Combine.PRODUCT:
            form = _as_attention(site, contexts, form)
        if isinstance(form, Form):
            out.forms[node] = form
            return
        out.refusals.setdefault(node, form)


def _as_attention(site: Site, contexts: Iterable[FormContext], refusal: Refusal) -> Form | Refusal:
    """A contraction as attention, where it has no form by itself; else why it has neither: in front
    the reason that looked at more of it.
    """
    form = attention_form(site, [site.context, *(c for c in contexts if c is not site.context)])
    if isinstance(form, Form):
        return form
    if form.code is Code.AXIS_NOT_PIT:  # it is none
        return refusal
    vague = refusal.code is Code.AXIS_NOT_PIT or (
        refusal.code is Code.NO_KERNEL and form.code is Code.NO_FACT
    )
    return replace(form, also=refusal) if vague else replace(refusal, also=form)


def _add_wanted_rows(
    graph: Graph, out: Regions, contexts: Iterable[FormContext], fixed: set[str]
) -> None:
    """Forms of values that nothing reads but forms of live rows: it need not be dead elsewhere.

    g = h * mask      y[m, n] = sum over live t of g[t, m] * w[t, n]      g: live rows, no SWrite
    """
    by_domain = {c.domain: c for c in contexts}
    for node in reversed(graph.nodes):
        name = first_output(node)
        if node in out.forms or name in fixed or name in graph.outputs or graph[name].captured:
            continue
        wanted = {_rows_read(out.forms.get(n), name) for n in graph[name].uses}
        rows = next(iter(wanted)) if len(wanted) == 1 else None
        expr = graph[name].expr
        context = None if rows is None else by_domain.get(rows[0])
        packing = None if context is None or rows is None else context.packing_at(name, rows[1])
        if context is None or expr is None or packing is None:
            continue
        form = packed_form(Site(context, node, expr, packing))
        if isinstance(form, Form) and fixed.isdisjoint(form.whole):
            out.forms[node] = form


def _rows_read(form: Form | None, name: str) -> tuple[Domain, Coords] | None:
    """The only rows of a value that a form reads; None where it reads others, or the value."""
    read = [o for o in (() if form is None else form.operands) if name in operand_names(o)]
    rows = {(o.domain, o.coords) if isinstance(o, PackedOperand) else None for o in read}
    return next(iter(rows)) if len(rows) == 1 else None


def _keep_sound_and_paying(graph: Graph, out: Regions) -> None:
    """Drop forms until every exit is sound and every region pays; each round drops at least one."""
    while True:
        out.demand = demand(graph, out.forms)
        dropped = (
            _idle_exits(graph, out)
            or unsound_forms(graph, out.forms, out.demand)
            or _poor_forms(graph, out)
        )
        if not dropped:
            break
        for node, refusal in dropped.items():
            form = out.forms.pop(node)
            if not form.leaves_out_nothing:
                out.refusals[node] = refusal
            elif form.plan is not None:
                out.refusals.setdefault(node, refusal)
    out.domains = []
    out.records = _records(graph, out)


def _idle_exits(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Exits that no packed contraction leads to: to compute them whole costs less than SWrite.

    A mask that is also wanted whole is one: as an exit it would lose the facts that it gives.
    """
    busy = busy_nodes(graph, out.forms, out.demand)
    return {
        node: Refusal(
            Code.NO_GAIN, node_name(node), f"no packed contraction leads to '{name}'", name
        )
        for name, node in out.demand.exits.items()
        if node not in busy
    }


def _poor_forms(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Forms that nothing needs, and those of regions that do not pay."""
    why = {n: "nothing needs it packed" for n in out.forms if n not in out.demand.forms}
    for region in priced_regions(graph, out.forms, out.demand):
        if not region.pays:
            text = f"under {region.price} operations per byte moved"
            why |= dict.fromkeys(region.members, text)
    return {n: Refusal(Code.NO_GAIN, node_name(n), reason) for n, reason in why.items()}


def _records(graph: Graph, out: Regions) -> list[RegionRecord]:
    """One record per region, for the report."""
    records = []
    for k, region in enumerate(priced_regions(graph, out.forms, out.demand)):
        dead = " and ".join(sorted(map(str, region.domain.dead)))
        text = f"rows over {[str(e) for e in region.domain.extents]}, dead where {dead}"
        n = len(region.members)
        out.domains.append(region.domain)
        records.append(RegionRecord(f"region{k}", text, n, region.flops, region.moved))
    return records
