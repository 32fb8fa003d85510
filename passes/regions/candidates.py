"""Which nodes are tried, and with which rows: ways to look for candidates (`FEW_LIVE`, `OTHERS`).

A node is tried with the rows of a domain in which its value is dead, or 0; with all rows, in their
own order, beside packed keys or hidden pairs; as a whole whose terms are rows of a domain; with
just the rows that its readers read; and as a whole that looks for zeros when it runs.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property, partial
from itertools import chain

import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer, Shape, TensorExpr, sums_products
from pitc.ir.graph import Graph
from pitc.ir.index import Coords
from pitc.ir.nodes import first_output, fused_parts, input_names
from pitc.ir.refusal import Code
from pitc.ir.since import Since
from pitc.ir.sizes import sizes_known
from pitc.passes.exprs.coordinates import follow
from pitc.passes.regions.all_rows import key_coords, row_coords, zeros_of
from pitc.passes.regions.channels import is_convolution
from pitc.passes.regions.contexts import Contexts
from pitc.passes.regions.contraction import packed_rows
from pitc.passes.regions.demand import Demand
from pitc.passes.regions.domain import Domain, all_live
from pitc.passes.regions.form import (
    Form,
    FormContext,
    PackCandidate,
    PackedOperand,
    Packing,
    operand_names,
)
from pitc.passes.regions.grouped_factors import group_coords
from pitc.passes.regions.live_share import Lives, asks_lines, lives
from pitc.passes.regions.price import contraction_flops
from pitc.passes.rules.record import PackRule, operator_of

MOST_STEPS = 5  # back from a contraction to a softmax


class Tried(Flag):
    """What a node is tried with."""

    DEAD = auto()
    """Rows of a domain: nobody reads the others, or they are 0."""
    QUERIES = auto()
    """All rows, in their own order, beside packed keys or hidden pairs."""
    MOVED = auto()
    """All rows in that order, which something moves as they are."""
    LOOKED_UP = auto()
    """The same of products by matrices that are looked up."""
    TERMS = auto()
    """All of its result: live points of a domain are terms of it."""
    WANTED = auto()
    """The only rows that its readers read; it may live elsewhere."""
    ZEROS = auto()
    """All of it, as it is: what it leaves out is seen when it runs."""


@dataclass
class InOrder:
    """Rows in their own order, by their extents: where coordinates of values start."""

    graph: Graph
    starts: dict[Shape, dict[str, list[Coords]]] = field(default_factory=dict)

    def add(self, name: str, coords: Coords) -> None:
        """A value whose rows have these coordinates, if their sizes are known."""
        extents = tuple(c.extent for c in coords)
        if sizes_known(self.graph, extents):
            self.starts.setdefault(extents, {}).setdefault(name, []).append(coords)

    def contexts(self, *, softmax: bool) -> Iterator[tuple[FormContext, dict[str, list[Coords]]]]:
        """A domain without dead points for each extents, and what starts there.

        Args:
            softmax: Its rows are keys: those of values and of products lie along a softmax's lines.
        """
        for extents, named in self.starts.items():
            reached = follow(self.graph, named, softmax=True) if softmax else named
            yield FormContext(self.graph, all_live(extents), reached), named


@dataclass(frozen=True)
class Search:
    """What is looked through.

    Args:
        graph: The analysed graph.
        contexts: The domains.
        forms: What was found so far: it grows while candidates are looked for.
        demand: What runs, and what of it packed, once forms are chosen.
        known: How much lives of domains that were asked for.
    """

    graph: Graph
    contexts: Contexts
    forms: dict[ir.Node, Form]
    demand: Demand = field(default_factory=Demand)
    known: dict[Domain, Lives] = field(default_factory=dict)

    def lives(self, domain: Domain) -> Lives:
        """How much of a domain lives."""
        if domain not in self.known:
            self.known[domain] = lives(self.graph, domain)
        return self.known[domain]

    def free(self, nodes: Iterable[ir.Node | None]) -> Iterator[tuple[ir.Node, TensorExpr]]:
        """Those of some nodes that could have a form and have none so far, with the expressions of
        their first outputs.
        """
        for node in nodes:
            if node is not None and node not in self.forms:
                value = self.graph[first_output(node)]
                if value.expr is not None and not value.captured:
                    yield node, value.expr

    def candidates(
        self, context: FormContext, node: ir.Node, expr: TensorExpr, packings: Iterable[Packing]
    ) -> Iterator[PackCandidate]:
        """A node with some packings of its first output, until one of them has a form."""
        for packing in packings:
            if node not in self.forms:
                yield PackCandidate(context, node, expr, packing, self.beside)

    def _free_products(self) -> Iterator[tuple[ir.Node, TensorExpr, list[str]]]:
        """Free contractions of two operands, that attention may end with, and these."""
        for node, expr in self.free(self.graph.nodes):
            if expr.combine is Combine.PRODUCT and len(node.inputs) == 2:
                yield node, expr, input_names(node)

    @cached_property
    def in_order(self) -> list[FormContext]:
        """Domains without dead points, of the rows of free contractions with keys of a domain."""
        found = InOrder(self.graph)
        for node, expr, (_, right) in self._free_products():
            for keys in self.beside(right):
                values = packed_rows(keys.packings, expr, node, 1)
                for coords in chain.from_iterable(row_coords(expr, v) for v in values):
                    found.add(first_output(node), coords)
        return [context for context, _ in found.contexts(softmax=False)]

    @cached_property
    def all_keys(self) -> dict[str, list[FormContext]]:
        """Domains of all keys, in their own order, of the values that weights multiply.

        Where all weights may count, a fused operator of ONNX Runtime is as fast.
        """
        graph, found = self.graph, InOrder(self.graph)
        fused = fused_parts(graph.model)
        for node, expr, (left, right) in self._free_products():
            if zeros_of(graph, left) or (node not in fused and weighs(graph, node)):
                for coords in key_coords(graph, expr, left, right):
                    found.add(right, coords)
        known = dict[str, list[FormContext]]()
        for context, names in found.contexts(softmax=True):
            for name in names:
                known.setdefault(name, []).append(context)
        return known

    def beside(self, name: str) -> list[FormContext]:
        """Domains to which keys may belong: those with dead keys first."""
        return [*self.contexts.of(name), *self.all_keys.get(name, ())]


def rows_left_out(share: Lives, search: Search) -> Iterator[PackCandidate]:
    """Domain by domain, in graph order: those of which so much lives."""
    place = {node: k for k, node in enumerate(search.graph.nodes)}
    for context in search.contexts:
        if search.lives(context.domain) is not share:
            continue
        makers = {search.graph[name].producer for name in search.contexts.values(context)}
        for node, expr in sorted(search.free(makers), key=lambda found: place[found[0]]):
            yield from search.candidates(context, node, expr, context.packings(first_output(node)))


def rows_in_order(combine: Combine, search: Search) -> Iterator[PackCandidate]:
    """Attention of all rows to live keys, or to keys that some rows do not see, and what turns its
    operands and its result: that costs nothing in that order, and other steps gain nothing.

    q = x @ wq      k = x @ wk  at live tokens      y = attention(q, k, ..)

    So keys and values of padding are not computed, though every row of the result is read.
    """
    free = [(n, expr) for n, expr in search.free(search.graph.nodes) if expr.combine is combine]
    keys = (c for found in search.all_keys.values() for c in found)
    contexts = {id(c): c for c in (*search.in_order, *keys)}
    for context in contexts.values():
        for node, expr in free:
            yield from search.candidates(context, node, expr, context.packings(first_output(node)))


def rows_by_index(search: Search) -> Iterator[PackCandidate]:
    """All rows of products by matrices that an index names, in their own order."""
    graph, order = search.graph, InOrder(search.graph)
    products = list[tuple[ir.Node, TensorExpr]]()
    for node, expr in search.free(graph.nodes):
        found = group_coords(graph, expr, input_names(node)) if sums_products(expr) else []
        products += [(node, expr)] if found else []
        for coords in found:
            order.add(first_output(node), coords)
    for context, named in order.contexts(softmax=False):
        for node, expr in products:
            if first_output(node) in named:
                yield from search.candidates(
                    context, node, expr, context.packings(first_output(node))
                )


def live_terms(shares: Container[Lives], search: Search) -> Iterator[PackCandidate]:
    """Contractions and sums whose operands may be unread, or 0, at terms."""
    for node, expr in search.free(search.graph.nodes):
        products = sums_products(expr) and expr.combine is Combine.PRODUCT
        contracts = operator_of(node).packs is PackRule.CONTRACTION or products
        sums = expr.combine in (Combine.REDUCE, Combine.SCATTER) and expr.reducer is Reducer.SUM
        if (contracts or sums) and sizes_known(search.graph, expr.shape):
            names = input_names(node)
            packed = {p.domain for name in names for p in _packings_made(search, name)}
            # rows that lie packed already are read as they lie
            contexts = search.contexts.of_terms(names)
            for context in sorted(contexts, key=lambda c: c.domain not in packed):
                whole = context.undivided(first_output(node))
                domain = context.domain
                if search.lives(domain) in shares and not asks_lines(search.graph, domain):
                    yield from search.candidates(context, node, expr, whole)


def _packings_made(search: Search, name: str) -> list[Packing]:
    """What the form of the node that computes a value makes of it."""
    node = search.graph[name].producer
    form = None if node is None else search.forms.get(node)
    return [] if form is None else form.packings


def rows_wanted(search: Search) -> Iterator[PackCandidate]:
    """Values that nothing reads but forms of live rows: they need not be dead elsewhere.

    d = h * mask / mask      y = 0 where d is NaN, else d      y: 0 at dead rows, d: NaN, unread
    """
    contexts = {c.domain: c for c in search.contexts}
    for node, expr in search.free(reversed(search.graph.nodes)):
        name = first_output(node)
        wanted = {_rows_read(search.forms.get(n), name) for n in search.graph[name].uses}
        only = len(wanted) == 1 and name not in search.graph.outputs
        for domain, coords in filter(None, wanted if only else ()):
            packing = contexts[domain].packing_at(name, coords) if domain in contexts else None
            if packing is not None:
                yield from search.candidates(contexts[domain], node, expr, [packing])


def zeros_seen(search: Search) -> Iterator[PackCandidate]:
    """Sums of products, packed or not, in graph order: they may look for zeros when they run."""
    graph, demand = search.graph, search.demand
    convolutions = [first_output(node) for node in graph.nodes if is_convolution(node)]
    for name in (*convolutions, *(demand.exits if convolutions else ())):
        graph.note_bit(name)
    context = FormContext(graph, all_live(()), whole=demand.nodes)
    for node in graph.nodes:
        expr = graph[first_output(node)].expr
        if expr is not None and sums_products(expr):
            for packing in context.undivided(first_output(node)):
                yield PackCandidate(context, node, expr, packing)


def _rows_read(form: Form | None, name: str) -> tuple[Domain, Coords] | None:
    """The only rows of a value that a form reads; None where it reads others, or the value."""
    read = [o for o in (() if form is None else form.operands) if name in operand_names(o)]
    rows = {(o.domain, o.coords) if isinstance(o, PackedOperand) else None for o in read}
    return next(iter(rows)) if len(rows) == 1 else None


def asks_why(graph: Graph, node: ir.Node) -> bool:
    """True where a refusal says more than that all of it is read: of a value with dead facts, and
    of a contraction.
    """
    return bool(graph[first_output(node)].dead or contraction_flops(graph, node))


def weighs(graph: Graph, node: ir.Node) -> bool:
    """True for a contraction of a softmax, or of what a few steps make of one: it is attention, or
    those steps say why it is none.
    """
    names = set(input_names(node)[:1])
    for _ in range(MOST_STEPS):
        exprs = {n: graph[n].expr for n in names}
        if any(e is not None and e.combine is Combine.SOFTMAX for e in exprs.values()):
            return True
        makers = (
            graph[n].producer
            for n, e in exprs.items()
            if e is not None and e.combine is not Combine.PRODUCT
        )
        names = {n for maker in makers if maker is not None for n in input_names(maker) if n}
    return False


@dataclass(frozen=True, slots=True)
class Round:
    """One way to look for candidates.

    Args:
        tried: What it tries nodes with.
        candidates: Finds them; lazily, as what has a form already is not tried again.
        opset: The first operator set that has what it needs.
        tells: Codes of refusals that are told.
        asked: Of which nodes.
    """

    tried: Tried
    candidates: Callable[[Search], Iterator[PackCandidate]]
    opset: int = 0
    tells: frozenset[Code] = frozenset()
    asked: Callable[[Graph, ir.Node], bool] = asks_why


FEW_LIVE = (
    Round(Tried.DEAD, partial(rows_left_out, Lives.FEW), tells=frozenset(Code)),
    Round(Tried.TERMS, partial(live_terms, {Lives.FEW}), Since.ZERO_SIZES),
)
"""Where little lives, whatever the input is: these come first, in that order."""
OTHERS = (
    Round(Tried.DEAD, partial(rows_left_out, Lives.SOME), tells=frozenset(Code)),
    Round(
        Tried.QUERIES,
        partial(rows_in_order, Combine.PRODUCT),
        Since.ZERO_SIZES,
        frozenset({Code.NO_LOWERING}),  # a step of attention that no kernel computes
        weighs,
    ),
    Round(Tried.DEAD, partial(rows_left_out, Lives.MOST), tells=frozenset(Code)),
    Round(Tried.MOVED, partial(rows_in_order, Combine.MOVE), Since.ZERO_SIZES),
    Round(
        Tried.LOOKED_UP,
        rows_by_index,
        Since.ZERO_SIZES,
        frozenset(Code) - {Code.NO_LOWERING},
    ),
    Round(
        Tried.TERMS,
        partial(live_terms, set(Lives)),
        Since.ZERO_SIZES,
        frozenset(Code) - {Code.AXIS_NOT_PIT},
    ),
    Round(Tried.WANTED, rows_wanted),
)
"""Behind them."""
IN_ORDER = tuple(r for r in OTHERS if r.tried in Tried.QUERIES | Tried.MOVED | Tried.LOOKED_UP)
"""Those that leave no row out."""
SKIPS = Round(Tried.ZEROS, zeros_seen, tells=frozenset(Code) - {Code.NO_FACT})
"""Behind them, beside the forms that were chosen."""
