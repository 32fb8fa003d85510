"""Regions: which nodes run packed, over which domain.

A packed form computes exactly the live rows of the original value, from exact live rows. Forms are
tried for every node, then dropped until all that are left are sound together (`legal.py`) and each
connected region pays (`price.py`); what is left is told in the report.
"""

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from pitc.ir.expr import Combine
from pitc.ir.graph import Graph
from pitc.ir.nodes import first_output, input_names, node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.report import RegionRecord
from pitc.passes.regions.all_rows import forms_of_all_rows
from pitc.passes.regions.attention import attention_form
from pitc.passes.regions.contexts import Contexts, Strata, contexts_of, strata_of, untried
from pitc.passes.regions.demand import Demand, demand
from pitc.passes.regions.domain import Coords, Domain
from pitc.passes.regions.form import Form, FormContext, PackedOperand, Site, operand_names
from pitc.passes.regions.legal import unsound_forms
from pitc.passes.regions.packed import packed_form
from pitc.passes.regions.price import (
    busy_nodes,
    contraction_flops,
    costly_tests,
    domains_of,
    leading_nodes,
    priced_regions,
)
from pitc.passes.regions.terms import forms_of_terms


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
    contexts = contexts_of(graph)
    unpaid = untried(graph, contexts)
    while True:
        out = _chosen(graph, contexts)
        costly = costly_tests(graph, out.forms, out.demand)
        if not costly:
            break
        for node in out.demand.forms:
            why = next((costly[d] for d in domains_of(out.forms[node]) if d in costly), None)
            if why is not None and node not in unpaid:
                unpaid[node] = Refusal(Code.LIVE_TEST, node_name(node), why)
        contexts = contexts.without(costly)
    out.refusals |= {n: r for n, r in unpaid.items() if n not in out.forms}
    return out


def _chosen(graph: Graph, contexts: Contexts) -> Regions:
    """The forms in those domains that are sound together and pay for what they move."""
    out = Regions()
    strata = strata_of(graph, [c.domain for c in contexts])
    place = {node: k for k, node in enumerate(graph.nodes)}
    for context in contexts:
        makers = (graph[name].producer for name in contexts.values(context))
        nodes = {n for n in makers if n is not None and n not in out.forms}
        for node in sorted(nodes, key=lambda n: place[n]):
            _try_node(out, context, contexts, node, strata)
    for node, form in forms_of_all_rows(graph, out.forms, contexts.of):
        if strata.allow([first_output(node), *form.whole], domains_of(form)):
            out.forms.setdefault(node, form)
    for node, found in forms_of_terms(graph, out.forms, contexts.of_terms):
        if isinstance(found, Form):
            if strata.allow([first_output(node)], domains_of(found)):
                out.forms.setdefault(node, found)
        elif found.code is not Code.AXIS_NOT_PIT:
            out.refusals.setdefault(node, found)
    _add_wanted_rows(graph, out, contexts, strata)
    _keep_sound_and_paying(graph, out)
    out.refusals = {n: r for n, r in out.refusals.items() if n not in out.forms}
    return out


def _try_node(
    out: Regions,
    context: FormContext,
    contexts: Contexts,
    node: ir.Node,
    strata: Strata,
) -> None:
    name = first_output(node)
    expr = context.graph[name].expr
    if expr is None or context.graph[name].captured:
        return
    for packing in context.packings(name):
        site = Site(context, node, expr, packing)
        form: Form | Refusal = site.refuse(Code.JOINT, "the live rows are computed from it")
        if strata.allow([name], [context.domain]):
            form = packed_form(site)
            if isinstance(form, Refusal) and expr.combine is Combine.PRODUCT:
                form = _as_attention(site, contexts, form)
        if isinstance(form, Form) and not strata.allow([name, *form.whole], domains_of(form)):
            form = site.refuse(Code.JOINT, "live rows are computed from its other outputs")
        if isinstance(form, Form):
            out.forms[node] = form
            return
        if _asks_why(context.graph, node):
            out.refusals.setdefault(node, form)


def _asks_why(graph: Graph, node: ir.Node) -> bool:
    """True where a refusal says more than that all of it is read: of a value with dead facts, and
    of a contraction.
    """
    return bool(graph[first_output(node)].dead or contraction_flops(graph, node))


def _as_attention(site: Site, contexts: Contexts, refusal: Refusal) -> Form | Refusal:
    """A contraction as attention, where it has no form by itself; else why it has neither: in front
    the reason that looked at more of it.
    """
    keys = contexts.of(input_names(site.node)[-1])
    form = attention_form(site, [site.context, *(c for c in keys if c is not site.context)])
    if isinstance(form, Form):
        return form
    if form.code is Code.AXIS_NOT_PIT:  # it is none
        return refusal
    vague = refusal.code is Code.AXIS_NOT_PIT or (
        refusal.code is Code.NO_KERNEL and form.code is Code.NO_FACT
    )
    return replace(form, also=refusal) if vague else replace(refusal, also=form)


def _add_wanted_rows(graph: Graph, out: Regions, contexts: Contexts, strata: Strata) -> None:
    """Forms of values that nothing reads but forms of live rows: it need not be dead elsewhere.

    g = h * mask      y[m, n] = sum over live t of g[t, m] * w[t, n]      g: live rows, no SWrite
    """
    by_domain = {c.domain: c for c in contexts}
    for node in reversed(graph.nodes):
        name = first_output(node)
        if node in out.forms or name in graph.outputs or graph[name].captured:
            continue
        wanted = {_rows_read(out.forms.get(n), name) for n in graph[name].uses}
        rows = next(iter(wanted)) if len(wanted) == 1 else None
        expr = graph[name].expr
        context = None if rows is None else by_domain.get(rows[0])
        packing = None if context is None or rows is None else context.packing_at(name, rows[1])
        if context is None or expr is None or packing is None:
            continue
        form = packed_form(Site(context, node, expr, packing))
        if isinstance(form, Form) and strata.allow([name, *form.whole], domains_of(form)):
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
            or _late_exits(graph, out)
            or unsound_forms(graph, out.forms, out.demand)
            or _poor_forms(graph, out)
        )
        if not dropped:
            break
        for node, refusal in dropped.items():
            form = out.forms.pop(node)
            if not _asks_why(graph, node):
                continue
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
            Code.NOT_NEEDED, node_name(node), f"no packed contraction leads to '{name}'", name
        )
        for name, node in out.demand.exits.items()
        if node not in busy
    }


def _late_exits(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Forms of what is read, and 0 where it is left out, that lead to no packed contraction: what
    they are computed from can come back instead.
    """
    leading = leading_nodes(graph, out.forms, out.demand)
    found: dict[ir.Node, Refusal] = {}
    for node in out.demand.forms - leading:
        outputs = [p for p in out.forms[node].outputs if p is not None]
        if all(p.proof is None and p.zero is not None for p in outputs):
            text = f"no packed contraction is computed from '{outputs[0].name}', which is read"
            found[node] = Refusal(Code.NOT_NEEDED, node_name(node), text, outputs[0].name)
    return found


def _poor_forms(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Forms that nothing needs, and those of regions that do not pay."""
    unneeded = (n for n in out.forms if n not in out.demand.forms)
    why = {
        n: Refusal(Code.NOT_NEEDED, node_name(n), "no packed node needs it packed")
        for n in unneeded
    }
    for region in priced_regions(graph, out.forms, out.demand):
        if not region.pays:
            text = f"under {region.price} operations per byte moved"
            why |= {n: Refusal(Code.NO_GAIN, node_name(n), text) for n in region.members}
    return why


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
