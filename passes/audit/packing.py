"""Chosen forms, between stages: what runs packed can be computed, and every exit has its proof."""

from collections.abc import Iterator, Mapping

import networkx as nx
import onnx_ir as ir

from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit
from pitc.ir.nodes import node_name, output_names
from pitc.ir.region import EVERYWHERE
from pitc.passes.regions.choose import Regions
from pitc.passes.regions.demand import packed_by
from pitc.passes.regions.domain import Domain, covering
from pitc.passes.regions.form import (
    BiasOperand,
    Form,
    GatheredOperand,
    OffsetsOperand,
    Operand,
    PackedOperand,
    Packing,
    PairsOperand,
    WholeOperand,
    operand_names,
    zero_regions,
)
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.legal import is_movable, kept_exits, overwritten_bits
from pitc.passes.regions.sight import Dead, leaves

FIELDS = ("coords", "offsets", "live")  # what a form may ask a detector for


def wrong_regions(graph: Graph, regions: Regions) -> Iterator[str]:
    """Violations of what was chosen for an analysed graph."""
    forms = {n: regions.forms[n] for n in regions.demand.forms if n in regions.forms}
    for node in regions.demand.forms - forms.keys():
        yield f"{node_name(node)} is to run packed and has no form"
    place = {id(node): k for k, node in enumerate(graph.nodes)}
    for node, form in forms.items():
        label = node_name(node)
        if id(node) not in place:
            yield f"{label} is no node of the graph"
            continue
        for packing in form.outputs:
            if packing is not None:
                yield from (f"{label}: {text}" for text in _wrong_packing(graph, packing))
        if len(form.outputs) > len(node.outputs):
            yield f"{label} has {len(node.outputs)} outputs, {len(form.outputs)} of them packed"
        if not any(p is not None for p in form.outputs):
            yield f"{label} gives nothing packed"
        for operand in form.operands:
            found = _wrong_operand(graph, regions, operand, label)
            yield from (f"{label}: {text}" for text in found)
            made = _maker(graph, operand)
            if made is not None and place.get(id(made), -1) >= place[id(node)]:
                yield f"{label} is computed from {node_name(made)}, which comes later"
        for absorbed in form.absorbs:
            if id(absorbed) not in place:
                yield f"{label} absorbs {node_name(absorbed)}, which is no node of the graph"
    yield from _tested_inside(graph, forms)
    yield from _wrong_exits(graph, regions, forms)


def _wrong_domain(graph: Graph, domain: Domain) -> Iterator[str]:
    for t in domain.dead:
        if t.src and not graph.has(t.src):
            yield f"a domain looks at {t.src}, which does not exist"
        if any(a.dim >= domain.rank for p in t.idx for a in p.digits()):
            yield f"a domain of rank {domain.rank} has the test {t}"


def _wrong_packing(graph: Graph, packing: Packing) -> Iterator[str]:
    name, domain = packing.name, packing.domain
    yield from _wrong_domain(graph, domain)
    yield from _wrong_coords(graph, name, domain, packing.coords)
    shape = graph[name].shape
    if shape is None or layout_of(shape, packing.coords) != packing.layout:
        yield f"{name} of shape {shape} has another layout"
    if domain.lives_everywhere:
        if packing.proof != EVERYWHERE:
            yield f"{name} is packed where {packing.proof}, in a domain without dead points"
    elif (
        packing.proof is None
    ):  # it may live elsewhere: then nobody reads it whole (`_wrong_exits`)
        pass
    elif packing.proof not in graph[name].dead:
        yield f"{name} is packed where {packing.proof}, which is no dead fact of it"
    elif covering(domain, packing.coords, [packing.proof]) is None:
        yield f"{name} is packed where {packing.proof}, which does not cover its domain"
    if packing.zero is not None and packing.zero not in zero_regions(graph, name):
        yield f"{name} is packed where {packing.zero}, where it is not known to be 0"
    elif packing.zero is not None and covering(domain, packing.coords, [packing.zero]) is None:
        yield f"{name} is packed where {packing.zero}, which does not cover its domain"
    for source in domain.sources():
        if not graph.visible(source, name):
            yield f"{name} is packed by {source} of a branch that it is not in"


def _wrong_coords(graph: Graph, name: str, domain: Domain, coords: Coords) -> Iterator[str]:
    shape = graph[name].shape or ()
    if [c.extent for c in coords] != list(domain.extents):
        yield f"{name} has coordinates of extents {[str(c.extent) for c in coords]}"
    yield from (f"{name} has no dimension {c.dim}" for c in coords if not _is_part(c, len(shape)))


def _is_part(c: Digit, rank: int) -> bool:
    return 0 <= c.dim < rank


def _wrong_operand(
    graph: Graph, regions: Regions, operand: Operand | None, label: str
) -> Iterator[str]:
    whole = regions.demand.whole
    match operand:
        case PackedOperand(name, domain, coords, _):
            yield from _wrong_domain(graph, domain)
            yield from _wrong_coords(graph, name, domain, coords)
            made = packed_by(regions.forms, graph, operand)
            if made is not None and made not in regions.demand.forms:
                yield f"{name} comes from {node_name(made)}, which does not run packed"
            if made is None:
                layout = layout_of(graph[name].shape or (), coords)
                if layout is None or layout.dim_codes() is None or not is_movable(graph, name):
                    yield f"{name} is neither computed packed nor can it be gathered"
                yield from _not_whole(graph, name, whole)
        case GatheredOperand():
            yield from _wrong_gather(graph, operand)
            yield from _not_whole(graph, operand.name, whole)
        case WholeOperand(name, _):
            yield from _not_whole(graph, name, whole)
        case BiasOperand(terms):
            for term in terms:
                yield from _not_whole(graph, term.name, whole)
        case PairsOperand(queries, keys, hidden, _):
            flags = (x.domain for each in hidden for x in leaves(each) if isinstance(x, Dead))
            for domain in (queries, keys, *flags):
                yield from _wrong_domain(graph, domain)
            for name in operand_names(operand):
                yield from _not_whole(graph, name, whole)
        case OffsetsOperand(domain, output):
            yield from _wrong_domain(graph, domain)
            if output not in FIELDS:
                yield f"a detector gives no {output}"


def _wrong_gather(graph: Graph, operand: GatheredOperand) -> Iterator[str]:
    name, domain, codes = operand.name, operand.domain, operand.codes
    yield from _wrong_domain(graph, domain)
    shape = graph[name].shape or ()
    extents = {f"c{k}": e for k, e in enumerate(domain.extents)} | {"0": ONE}
    if len(codes) != len(shape):
        yield f"{name} of shape {shape} is gathered by {codes}"
    for code, extent in zip(codes, shape, strict=False):
        if code not in ("r", "l") and extents.get(code) != extent:
            yield f"{name} is gathered by {code} along {extent}"
    if not is_movable(graph, name):
        yield f"{name} cannot be gathered"


def _not_whole(graph: Graph, name: str, whole: set[str]) -> Iterator[str]:
    """A value that is read whole exists, and somebody has asked for it."""
    if not graph.has(name):
        yield f"{name} does not exist"
    elif name not in whole and graph[name].producer is not None:
        yield f"{name} is read whole, which nobody has asked for"


def _maker(graph: Graph, operand: Operand | None) -> ir.Node | None:
    named = isinstance(operand, PackedOperand | GatheredOperand | WholeOperand)
    return graph[operand.name].producer if named and operand is not None else None  # type: ignore[union-attr]


def domains_of(form: Form) -> set[Domain]:
    """All domains that a form looks at."""
    named = (PackedOperand, GatheredOperand, OffsetsOperand)
    found = {o.domain for o in form.operands if isinstance(o, named)}
    return found | {p.domain for p in form.outputs if p is not None}


def _tested_inside(graph: Graph, forms: Mapping[ir.Node, Form]) -> Iterator[str]:
    """Live points have to be known before: those of a domain may be computed from what runs packed
    in others, but no way leads back.
    """
    looked = {node: domains_of(form) for node, form in forms.items()}
    above: dict[str, list[Domain]] = {}
    for domain in {d for domains in looked.values() for d in domains}:
        for name in graph.sources_of(domain.sources()):
            above.setdefault(name, []).append(domain)
    before: nx.DiGraph[Domain] = nx.DiGraph()
    for node, domains in looked.items():
        tested = {d for name in output_names(node) for d in above.get(name, ())}
        before.add_edges_from(((d, t) for d in domains for t in tested), node=node)
    if not nx.is_directed_acyclic_graph(before):
        first, second = nx.find_cycle(before)[0][:2]
        label = node_name(before.edges[first, second]["node"])
        yield f"{label} runs packed, and live points are computed from it that it needs"


def _wrong_exits(graph: Graph, regions: Regions, forms: Mapping[ir.Node, Form]) -> Iterator[str]:
    exits = regions.demand.exits
    kept = kept_exits(graph, forms, {n: m for n, m in exits.items() if m in forms})
    bits = overwritten_bits(graph, exits, kept)
    for node, form in forms.items():
        for name in set(form.whole) - set(output_names(node)):
            yield f"{name} is no output of {node_name(node)}, which is to give it whole"
        for name in output_names(node):
            wanted = name in regions.demand.whole and name not in form.whole
            if wanted != (exits.get(name) is node):
                yield f"{name} of {node_name(node)} is wanted whole, and no exit"
        for r in form.rests_on:
            if r.via & bits:
                yield f"{node_name(node)} rests on {graph.names_of(r.via & bits)}, overwritten"
    for name, node in exits.items():
        outputs = forms[node].outputs if node in forms else ()
        packing = next((p for p in outputs if p is not None and p.name == name), None)
        if packing is None or (packing.proof is None and name not in kept):
            yield f"exit {name} has no proof"
        elif packing.layout.dim_codes() is None or not is_movable(graph, name):
            yield f"exit {name} cannot be scattered"
        elif name not in kept and packing.proof is not None and packing.proof.via & bits:
            rests = graph.names_of(packing.proof.via & bits)
            yield f"exit {name} is dead only because of {rests}, which are overwritten"
