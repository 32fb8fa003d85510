"""Regions: which nodes run packed, over which domain.

A packed form computes exactly the live rows of the original value, from exact live rows. Forms are
tried for every node, then dropped until all that are left are sound together (`legal.py`) and each
connected region pays (`price.py`); what is left is told in the report.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region
from pitc.ir.report import RegionRecord
from pitc.passes.regions.candidates import (
    FEW_LIVE,
    IN_ORDER,
    OTHERS,
    SKIPS,
    Round,
    Search,
    Tried,
    asks_why,
)
from pitc.passes.regions.channel_price import paying
from pitc.passes.regions.channels import ChannelSkip, sound_channels
from pitc.passes.regions.contexts import Contexts, Strata, contexts_of, strata_of, untried
from pitc.passes.regions.demand import Demand, demand
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import Form, PackCandidate, Skip
from pitc.passes.regions.forms import form_of
from pitc.passes.regions.legal import comes_back, unsound_forms
from pitc.passes.regions.live_share import Lives, lives
from pitc.passes.regions.price import (
    contraction_flops,
    costly_tests,
    nodes_downstream_of_contraction,
    nodes_upstream_of_contraction,
    priced_regions,
)
from pitc.passes.regions.sparse import sparse_rows


@dataclass(slots=True)
class Regions:
    """The chosen forms.

    Args:
        forms: The packed form of each node that runs packed.
        refusals: Why others do not, which have a dead fact or may hold zeros.
        records: One record per connected region, for the report.
        domains: The domain of each.
        demand: What still runs, and the exits.
        skips: What nodes leave out, packed or not, of which they see when they run that it is 0.
    """

    forms: dict[ir.Node, Form] = field(default_factory=dict)
    refusals: dict[ir.Node, Refusal] = field(default_factory=dict)
    records: list[RegionRecord] = field(default_factory=list)
    domains: list[Domain] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)
    skips: dict[ir.Node, Skip] = field(default_factory=dict)


def choose_regions(graph: Graph, given_up: Mapping[str, Sequence[Region]] | None = None) -> Regions:
    """Pick the packed forms of a graph whose facts are known.

    Args:
        graph: The analysed graph.
        given_up: Regions of graph outputs that the user does not want, where nodes may look for
            zeros when they run; None: they may not.

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
            why = next((costly[d] for d in out.forms[node].domains if d in costly), None)
            if why is not None and node not in unpaid:
                unpaid[node] = Refusal(Code.LIVE_TEST, node_name(node), why)
        contexts = contexts.without(costly)
    out.refusals |= {n: r for n, r in unpaid.items() if n not in out.forms}
    if given_up is not None:
        _add_skips(Search(graph, contexts, out.forms, out.demand), out, given_up)
    return out


def _chosen(graph: Graph, contexts: Contexts) -> Regions:
    """The forms in those domains that are sound together and pay for what they move.

    Where leaving rows out does not pay, all rows may still run as one node (attention that stores
    no scores, products that copy no matrix): these are looked for once more. Where so little lives
    that a domain came before the others, these are tried too.
    """
    out = Regions()
    strata = strata_of(graph, [c.domain for c in contexts])
    _find_forms(Search(graph, contexts, out.forms), (*FEW_LIVE, *OTHERS), strata, out)
    if unpaid := _keep_sound_and_paying(graph, out):
        few = any(lives(graph, domain) is Lives.FEW for domain in unpaid)
        _find_forms(Search(graph, contexts, out.forms), OTHERS if few else IN_ORDER, strata, out)
        _keep_sound_and_paying(graph, out)
    out.refusals = {n: r for n, r in out.refusals.items() if n not in out.forms}
    return out


def _find_forms(search: Search, ways: Iterable[Round], strata: Strata, out: Regions) -> None:
    """Add forms of nodes that have none, or why they have none."""
    graph = search.graph
    for way in (r for r in ways if graph.opset >= r.opset):
        for site in way.candidates(search):
            found, node = _allowed_form(site, way.tried, strata), site.node
            if isinstance(found, Form):
                out.forms[node] = found
            elif isinstance(found, Refusal) and found.code in way.tells and way.asked(graph, node):
                out.refusals.setdefault(node, found)


def _add_skips(search: Search, out: Regions, given_up: Mapping[str, Sequence[Region]]) -> None:
    """What leaves out zeros that it sees when it runs, beside the packed forms."""
    for node, form in out.forms.items():
        if (rows := sparse_rows(search.graph, node, form)) is not None:
            out.skips[node] = rows
    channels = list[tuple[PackCandidate, ChannelSkip]]()
    for site in SKIPS.candidates(search):
        found = form_of(site, SKIPS.tried)
        if isinstance(found, ChannelSkip):
            channels.append((site, found))
        elif isinstance(found, Skip):
            out.skips[site.node] = found
        elif isinstance(found, Refusal) and found.code in SKIPS.tells:
            out.refusals.setdefault(site.node, found)
    if channels:
        chosen = sound_channels(channels, out.forms, out.demand, given_up)
        chosen |= paying(search.graph, [s for s in chosen.values() if isinstance(s, ChannelSkip)])
        for node, x in chosen.items():
            if isinstance(x, Refusal):
                out.refusals[node] = x
            else:
                out.skips[node] = x


def _allowed_form(site: PackCandidate, tried: Tried, strata: Strata) -> Form | Skip | Refusal:
    """The form of a candidate from which no live points are computed that it looks at."""
    name = site.out.name
    if not strata.allow([name], [site.context.domain]):
        return site.refuse(Code.JOINT, "the live rows are computed from it")
    form = form_of(site, tried)
    if not isinstance(form, Form) or strata.allow([name, *form.whole], form.domains):
        return form
    return site.refuse(Code.JOINT, "live rows are computed from its other outputs")


def _keep_sound_and_paying(graph: Graph, out: Regions) -> set[Domain]:
    """Drop forms until every exit is sound and every region pays; each round drops at least one.

    Returns:
        The domains of products that were dropped as they did not pay.
    """
    unpaid = set[Domain]()
    while True:
        out.demand = demand(graph, out.forms)
        dropped = (
            _exits_without_contraction(graph, out)
            or _late_exits(graph, out)
            or unsound_forms(graph, out.forms, out.demand)
            or _unprofitable(graph, out)
        )
        if not dropped:
            break
        for node, refusal in dropped.items():
            form = out.forms.pop(node)
            if refusal.code is Code.NO_GAIN and contraction_flops(graph, node):
                unpaid.update(form.domains)
            if not asks_why(graph, node):
                continue
            if not form.leaves_out_nothing:
                out.refusals[node] = refusal
            elif form.plan is not None:
                out.refusals.setdefault(node, refusal)
    out.domains = []
    out.records = _records(graph, out)
    return unpaid


def _exits_without_contraction(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Exits that no packed contraction leads to: to compute them whole costs less than SWrite.

    A mask that is also wanted whole is one: as an exit it would lose the facts that it gives.
    """
    busy = nodes_downstream_of_contraction(graph, out.forms, out.demand)
    return {
        node: Refusal(
            Code.NOT_NEEDED, node_name(node), f"no packed contraction leads to '{name}'", name
        )
        for name, node in out.demand.exits.items()
        if node not in busy
    }


def _late_exits(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Forms of what is read, and 0 where it is left out, that lead to no packed contraction, where
    what they are computed from can come back instead.
    """
    leading = nodes_upstream_of_contraction(graph, out.forms, out.demand)
    found: dict[ir.Node, Refusal] = {}
    for node in out.demand.forms - leading:
        outputs = out.forms[node].packings
        read = [p for m in out.demand.makers.get(node, ()) for p in out.forms[m].packings]
        if not all(comes_back(graph, p) for p in read):
            continue
        if all(p.proof is None and p.zero is not None for p in outputs):
            text = f"no packed contraction is computed from '{outputs[0].name}', which is read"
            found[node] = Refusal(Code.NOT_NEEDED, node_name(node), text, outputs[0].name)
    return found


def _unprofitable(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
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
