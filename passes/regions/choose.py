"""Regions: which nodes run packed, over which domain, and whether that pays and is sound.

A packed form computes exactly the live rows of the original value, from exact live rows. What can
go wrong is at an *exit*, where a packed value is wanted whole and its dead rows come back as 0. So
every exit must be dead there, jointly with all other exits:

* JOINT: no dead or fill fact that is used may rest (`via`) on the fill facts of an exit, because an
  exit is overwritten;
* NOT_TOTAL: no reader of an exit may turn the new zeros into Inf or NaN.

Dead facts are individual (`docs/theory.md`); with both conditions the hybrid argument, one exit at
a time, makes them joint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import networkx as nx
import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer, Shape, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import Poly
from pitc.ir.nodes import node_name
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, Test, for_all
from pitc.ir.report import RegionRecord
from pitc.passes.facts.total import is_total
from pitc.passes.lower.live import can_compute
from pitc.passes.regions.attention import attention_form
from pitc.passes.regions.demand import Demand, demand, packed_by
from pitc.passes.regions.domain import Domain, domain_of, lift
from pitc.passes.regions.form import (
    Form,
    FormContext,
    GatheredOperand,
    Operand,
    PackedOperand,
    Site,
)
from pitc.passes.regions.layout import layout_of
from pitc.passes.regions.packed import packed_form
from pitc.passes.rules.record import operator_of

SYMBOL_ESTIMATE = 64  # what an unknown size counts for
FLOPS_PER_BYTE = 32  # work that must be saved for every byte that SRead and SWrite move
# times that price for images: a convolution neither gathers nor scatters itself; at this price,
# copies take at most 2 % of its time when all images live
IMAGE_PRICE = 16
START_BYTES = 80_000  # what could be moved in the time that detector and copies take to start
MAX_DOMAINS = 6
# element types: strings have no bytes of their own, some small types share one, ONNX Runtime has
# hardly an operator for the others
MOVABLE = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(slots=True)
class Regions:
    """The chosen forms.

    Args:
        forms: The packed form of each node that runs packed.
        refusals: Why the others with a dead fact do not.
        records: One record per connected region, for the report.
        demand: What still runs, and the exits.
    """

    forms: dict[ir.Node, Form] = field(default_factory=dict)
    refusals: dict[ir.Node, Refusal] = field(default_factory=dict)
    records: list[RegionRecord] = field(default_factory=list)
    demand: Demand = field(default_factory=Demand)


def choose_regions(graph: Graph) -> Regions:
    """Pick the packed forms of a graph whose facts are known.

    Args:
        graph: The analysed graph.

    Returns:
        The forms that pay and are sound together, with a refusal for every node that has a dead
        fact and no form.
    """
    out = Regions()
    contexts = _contexts(graph)
    fixed = _sources_and_ancestors(graph, [c.domain for c in contexts])
    for context in contexts:
        for node in graph.nodes:
            if node not in out.forms:
                _try_node(out, context, contexts, node, fixed)
    _keep_sound_and_paying(graph, out, {c.domain: c for c in contexts})
    return out


def _contexts(graph: Graph) -> list[FormContext]:
    """Domains in the order in which nodes join them.

    Domains known by position alone come first (one row per sequence for a classifier's last layer),
    then those in which the most contraction work has dead rows; at equal work the one with fewer
    tests, in which more is dead. Where a test must hold for all of a dimension (a key that no query
    looks at), or there is one point only, less is dead: such domains come last.
    """
    work: dict[Domain, int] = {}
    for node in graph.nodes:
        name, flops = node.outputs[0].name or "", _contraction_flops(graph, node)
        if not flops:
            continue
        for found in {d for r in graph.dead.get(name, ()) if r and (d := domain_of(r)) is not None}:
            work[found[0]] = work.get(found[0], 0) + flops
    paying = sorted(
        (d for d in work if can_compute(graph, d)),
        key=lambda d: (d.rarely_dead, -work[d], str(d.dead)),
    )
    lines = _whole_lines(paying)
    valued = [FormContext(graph, d) for d in paying if d.sources() and d.dead not in lines][
        :MAX_DOMAINS
    ]
    covered = {c.domain: _covered_flops(graph, c) for c in valued}
    valued.sort(key=lambda c: (c.domain.rarely_dead, -covered[c.domain], len(c.domain.dead)))
    valued = _not_above(graph, valued)
    positional = [d for d in paying if not d.sources()][:MAX_DOMAINS]
    if valued:
        onto = valued[0].domain
        positional = [
            e for d in positional for e in ([d] if d.rank == onto.rank else lift(d, onto))
        ]
    first = [FormContext(graph, d) for d in dict.fromkeys(positional)]
    return [*(c for c in first if _covered_flops(graph, c)), *valued]


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
            covered |= {n.outputs[0].name or "" for n in _covered(graph, context)}
    return kept


def _covered(graph: Graph, context: FormContext) -> list[ir.Node]:
    """Contractions whose results belong to the domain."""
    return [
        n
        for n in graph.nodes
        if _contraction_flops(graph, n) and context.packings(n.outputs[0].name or "")
    ]


def _covered_flops(graph: Graph, context: FormContext) -> int:
    """Their work."""
    return sum(_contraction_flops(graph, n) for n in _covered(graph, context))


def _contraction_flops(graph: Graph, node: ir.Node) -> int:
    expr = graph.exprs.get(node.outputs[0].name or "")
    return 0 if expr is None else _products(expr, enumerate(expr.shape))


def _products(expr: TensorExpr, points: Iterable[tuple[int, Poly]]) -> int:
    """How many products a contraction sums up, 0 for other operators.

    Args:
        expr: The expression.
        points: Output dimensions, or digits of them, and their extents. A transposed convolution
            goes along the places of its operand: those of its output, which are ordered, are free.
    """
    if not _contracts(expr):
        return 0
    return _size((*(e for d, e in points if d not in expr.ordered), *expr.reduced))


def _contracts(expr: TensorExpr) -> bool:
    """True for a sum over products; quantised ones are no plain products of their operands."""
    if expr.combine is not Combine.OPAQUE or expr.reducer is not Reducer.SUM:
        return expr.combine in (Combine.PRODUCT, Combine.BIASED_PRODUCT)
    first = len(expr.shape)
    places = [(r.operand, a) for r in expr.reads for p in r.index if p for a in p.digits()]
    return len({operand for operand, a in places if a.dim >= first}) > 1


def _sources_and_ancestors(graph: Graph, domains: Iterable[Domain]) -> set[str]:
    """Values from which live points are computed; they never run packed."""
    return graph.sources_of(x for domain in domains for x in domain.sources())


def _size(extents: Shape) -> int:
    return prod(n if (n := e.as_int()) is not None else SYMBOL_ESTIMATE for e in extents)


def _try_node(
    out: Regions,
    context: FormContext,
    contexts: list[FormContext],
    node: ir.Node,
    fixed: set[str],
) -> None:
    name = node.outputs[0].name or ""
    expr = context.graph.exprs.get(name)
    if expr is None or name in context.graph.captured or name in fixed:
        return
    for packing in context.packings(name):
        site = Site(context, node, expr, packing)
        form = packed_form(site)
        if isinstance(form, Refusal) and expr.combine is Combine.PRODUCT:
            keys = [context, *(c for c in contexts if c is not context)]
            attention = attention_form(site, keys)
            form = (
                attention if isinstance(attention, Form) or form.code is Code.AXIS_NOT_PIT else form
            )
        if isinstance(form, Form):
            out.forms[node] = form
            out.refusals.pop(node, None)
            return
        out.refusals.setdefault(node, form)


def _keep_sound_and_paying(
    graph: Graph, out: Regions, contexts: Mapping[Domain, FormContext]
) -> None:
    """Drop forms until every exit is sound and every region pays; each round drops at least one."""
    while True:
        out.demand = demand(graph, out.forms)
        dropped = _idle_exits(graph, out) or _unsound_exits(graph, out, contexts)
        for node, refusal in dropped.items():
            out.refusals[node] = refusal
            del out.forms[node]
        if dropped:
            continue
        poor = _poor_regions(graph, out)
        for node, reason in poor.items():
            out.refusals[node] = Refusal(Code.NO_GAIN, node_name(node), reason)
            del out.forms[node]
        if not poor:
            return


def _idle_exits(graph: Graph, out: Regions) -> dict[ir.Node, Refusal]:
    """Exits that no packed contraction leads to: to compute them whole costs less than SWrite.

    A mask that is also wanted whole is one: as an exit it would lose the facts that it gives.
    """
    busy: set[ir.Node] = set()
    for node in graph.nodes:  # producers first
        if node in out.demand.forms and (
            _row_flops(graph, out.forms[node])
            or any(
                isinstance(x, PackedOperand) and packed_by(out.forms, graph, x) in busy
                for x in out.forms[node].operands
            )
        ):
            busy.add(node)
    return {
        node: Refusal(Code.NO_GAIN, node_name(node), f"no packed contraction leads to '{name}'")
        for name, node in out.demand.exits.items()
        if node not in busy
    }


def _unsound_exits(
    graph: Graph, out: Regions, contexts: Mapping[Domain, FormContext]
) -> dict[ir.Node, Refusal]:
    exits = out.demand.exits
    bits = 0
    for name in exits:
        bits |= graph.bits.get(name, 0)
    found: dict[ir.Node, Refusal] = {}
    for node in out.demand.forms:
        for place, operand in enumerate(out.forms[node].operands):
            if not _can_enter(graph, out, operand):
                found[node] = Refusal(
                    Code.LAYOUT, node_name(node), f"operand {place} cannot be gathered"
                )
        if any(r.via & bits for r in out.forms[node].rests_on):
            found[node] = Refusal(
                Code.JOINT,
                node_name(node),
                "a skipped term is zero only because of an unpacked value",
            )
    for name, node in exits.items():
        proof = next((p for p in out.forms[node].outputs if p is not None and p.name == name), None)
        if proof is None:
            found[node] = Refusal(Code.NO_FACT, node_name(node), f"'{name}' is wanted whole")
            continue
        if proof.layout.dim_codes() is None or not is_movable(graph, name):
            found[node] = Refusal(
                Code.LAYOUT,
                node_name(node),
                f"'{name}' mixes packed and other digits in a dimension, or has no known type",
            )
        rests = _shared(graph, proof.proof, bits)
        if rests:
            found[node] = Refusal(
                Code.JOINT, node_name(node), f"'{name}' is dead only because of '{rests[0]}'"
            )
        reader = _not_total(graph, out, name, contexts[proof.domain])
        if reader is not None:
            found[node] = Refusal(
                Code.NOT_TOTAL,
                node_name(node),
                f"{reader.op_type} reads '{name}' and may divide by 0",
            )
    return found


def _shared(graph: Graph, proof: Region, bits: int) -> list[str]:
    """Exits (as bits) whose own fill facts a dead fact rests on."""
    return graph.names_of(proof.via & bits)


def _can_enter(graph: Graph, out: Regions, operand: Operand | None) -> bool:
    """True where a packed operand is computed so, or can be gathered."""
    if isinstance(operand, GatheredOperand):
        return is_movable(graph, operand.name)
    if not isinstance(operand, PackedOperand) or packed_by(out.forms, graph, operand) is not None:
        return True
    layout = layout_of(graph.shapes[operand.name] or (), operand.coords)
    return layout is not None and layout.dim_codes() is not None and is_movable(graph, operand.name)


def is_movable(graph: Graph, name: str) -> bool:
    """True for elements that pack and unpack can move, and that can be 0."""
    dtype = graph.dtypes.get(name)
    return dtype is not None and dtype.name in MOVABLE


def _not_total(graph: Graph, out: Regions, name: str, context: FormContext) -> ir.Node | None:
    """A node that may turn zeros in the dead rows of a value into something that is not finite."""
    seen, todo = {name}, [name]
    while todo:
        for node in graph.uses.get(todo.pop(), ()):
            if node not in out.demand.nodes or operator_of(node).reads_no_element:
                continue
            if not is_total(graph, node, seen):
                return node
            for value in node.outputs:
                if value.name and value.name not in seen and context.packings(value.name):
                    seen.add(value.name)
                    todo.append(value.name)
    return None


def _poor_regions(graph: Graph, out: Regions) -> dict[ir.Node, str]:
    """Connected regions whose saved work does not repay the moved data, and why; fills the records
    of the others.
    """
    links: nx.Graph[ir.Node] = nx.Graph()
    links.add_nodes_from(n for n in graph.nodes if n in out.demand.forms)
    for node in out.demand.forms:
        for operand in out.forms[node].operands:
            if isinstance(operand, PackedOperand):
                producer = packed_by(out.forms, graph, operand)
                if producer is not None:
                    links.add_edge(producer, node)
    order = {n: k for k, n in enumerate(graph.nodes)}
    regions = sorted(
        (sorted(c, key=lambda n: order[n]) for c in nx.connected_components(links)),
        key=lambda c: order[c[0]],
    )
    out.records = []
    poor = {n: "nothing needs it packed" for n in out.forms if n not in out.demand.forms}
    for members in regions:
        flops = sum(_row_flops(graph, out.forms[n]) for n in members)
        moved = _moved_bytes(graph, out, set(members))
        domain = next(p.domain for p in out.forms[members[0]].outputs if p is not None)
        images = 2 * sum(_image_flops(graph, out.forms[n]) for n in members) > flops
        price, start = FLOPS_PER_BYTE * (IMAGE_PRICE if images else 1), START_BYTES * images
        rows = _size(domain.extents)
        if flops * rows < price * (moved * rows + start) or not flops:
            poor |= dict.fromkeys(members, f"under {price} operations per byte moved")
            continue
        dead = " and ".join(sorted(map(str, domain.dead)))
        text = f"rows over {[str(e) for e in domain.extents]}, dead where {dead}"
        count = len(out.records)
        out.records.append(RegionRecord(f"region{count}", text, len(members), flops, moved))
    return poor


def _row_flops(graph: Graph, form: Form) -> int:
    """Multiply-adds, counted twice, that one dead row saves."""
    out = next(p for p in form.outputs if p is not None)
    expr, points = graph.exprs[out.name], ((d.dim, d.extent) for d in out.layout.rest)
    return 0 if expr is None else (4 if form.plan is not None else 2) * _products(expr, points)


def _image_flops(graph: Graph, form: Form) -> int:
    """Those of them that no product of rows does: such a one is lowered to a kernel of our own."""
    rows = form.plan is not None or form.op_type in ("MatMul", "Gemm")
    return 0 if rows else _row_flops(graph, form)


def _moved_bytes(graph: Graph, out: Regions, members: set[ir.Node]) -> int:
    """Bytes per row that enter and leave a region."""
    entering: dict[str, int] = {}
    for node in members:
        for operand in out.forms[node].operands:
            if isinstance(operand, GatheredOperand) or (
                isinstance(operand, PackedOperand) and packed_by(out.forms, graph, operand) is None
            ):
                entering[operand.name] = _row_bytes(graph, operand.name, _kept(graph, operand))
    leaving = sum(
        _row_bytes(graph, packing.name, packing.layout.rest_shape)
        for node in members
        for packing in out.forms[node].outputs
        if packing is not None and packing.name in out.demand.exits
    )
    return sum(entering.values()) + leaving


def _kept(graph: Graph, operand: PackedOperand | GatheredOperand) -> Shape:
    """Extents of one row of a value that is gathered."""
    shape = graph.shapes.get(operand.name) or ()
    if isinstance(operand, GatheredOperand):
        return tuple(e for e, c in zip(shape, operand.codes, strict=True) if c == "r")
    layout = layout_of(shape, operand.coords)
    return shape if layout is None else layout.rest_shape


def _row_bytes(graph: Graph, name: str, row: Shape) -> int:
    return (graph.dtypes[name].itemsize if name in graph.dtypes else 4) * _size(row)
