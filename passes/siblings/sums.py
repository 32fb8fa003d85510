"""Sums of what siblings give, as models write them.

    y = ((x + a_0) + a_1) + a_2                        terms that are alike
    y = ScatterND(ScatterND(x, r_0, a_0), r_1, a_1)    rows that are added at places

The terms are joined (`joined.py`) and added up at once, in the same order; what else is added comes
in front.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.build import names_of, take_over
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.nodes import REPEATS, attribute, opset_of
from pitc.ir.since import Since
from pitc.ir.unused import remove_unused
from pitc.passes.expand.body import Body, Shared
from pitc.passes.exprs.derive import derive
from pitc.passes.siblings.joined import Joiner, Lead
from pitc.passes.siblings.rules import RULES

LEAST_TERMS = 16
"""Alone, a term has its products and what stands between them in one node, which is as fast as few
of them at once; rows that ONNX Runtime lists and adds, one sibling after the other, are not."""
LEAST_LISTS = 4
ADD, SCATTER = ("", "Add", ""), ("", "ScatterND", "")


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of terms.

    Args:
        last: The node that gives it.
        terms: What is added, in order; of a chain of scatters pairs of places and rows.
        start: What a chain of scatters adds to.
    """

    last: ir.Node
    terms: tuple[tuple[ir.Value, ...], ...]
    start: ir.Value | None = None


def join_sums(model: ir.Model) -> list[ir.Node]:
    """Join the terms of every sum that are siblings with products by matrices.

    Args:
        model: A normalised model; it is changed in place.

    Returns:
        The products of all siblings.
    """
    graph, sums = Graph(model), sums_of(model.graph)
    derive(graph)
    names, found = names_of(model.graph), list[ir.Node]()
    for each in sums:
        body = Body(NodeView(graph, each.last), names, Shared())
        joiner = Joiner(graph, body, len(each.terms), RULES)
        try:
            made = add_rows(joiner, each) if each.start is not None else _added(joiner, each)
            if not joiner.products:
                raise NoRule("no products")
        except NoRule:
            body.discard()
            continue
        put_in_place(model, each.last, body, made)
        found += joiner.products
    if found:
        remove_unused(model)
    return found


def put_in_place(model: ir.Model, last: ir.Node, body: Body, made: ir.Value) -> None:
    """Let what was made stand for the result of a node."""
    for value in body.constants:
        model.graph.register_initializer(value)
    model.graph.insert_before(last, body.nodes)
    take_over(last.outputs[0], made)


def sums_of(graph: ir.Graph) -> list[Sum]:
    """Sums of terms that may be siblings."""
    if opset_of(graph) < Since.SOFTMAX_OF_AXIS:
        return []
    least = {True: LEAST_LISTS, False: LEAST_TERMS}
    return [s for s in _sums(graph) if len(s.terms) >= least[s.start is not None]]


def _sums(graph: ir.Graph) -> Iterator[Sum]:
    """Sums that are no terms of others."""
    for node in graph:
        kind = node.op_identifier()
        if BRANCH in node.metadata_props:
            continue
        if kind == ADD and not _is_term(node, ADD):
            terms = tuple((x,) for x in _terms(node))
            kinds = [k for t in terms if (k := _kind(t[0])) is not None]
            if kinds and max(map(kinds.count, kinds)) >= LEAST_TERMS:
                yield Sum(node, terms)
        if kind == SCATTER and _adds(node) and not _is_term(node, SCATTER):
            chain = [node]
            while (before := _before(chain[-1])) is not None:
                chain.append(before)
            pairs = tuple(_pair(n) for n in reversed(chain))
            if all(len(p) == 2 for p in pairs):
                yield Sum(node, pairs, chain[-1].inputs[0])


def _is_term(node: ir.Node, kind: tuple[str, str, str]) -> bool:
    """True for a sum that only a larger one reads."""
    (out,) = node.outputs
    uses = list(out.uses())
    if len(uses) != 1 or out.is_graph_output():
        return False
    reader, place = uses[0].node, uses[0].idx
    return reader.op_identifier() == kind and (kind == ADD or (place == 0 and _adds(reader)))


def _terms(node: ir.Node) -> list[ir.Value]:
    """What a sum adds up, from left to right."""
    found, todo = list[ir.Value](), [x for x in node.inputs if x is not None]
    while todo:
        x = todo.pop()
        before = x.producer()
        if before is not None and before.op_identifier() == ADD and _is_term(before, ADD):
            todo += [y for y in before.inputs if y is not None]
        else:
            found.append(x)
    return found[::-1]


def is_sum_of(node: ir.Node, start: ir.Value) -> bool:
    """True for a node that adds to a value."""
    kind = node.op_identifier()
    adds = kind == ADD and list(node.inputs).count(start) == 1
    return adds or (kind == SCATTER and _adds(node) and node.inputs[0] is start)


def _adds(node: ir.Node) -> bool:
    return bool(attribute(node, "reduction", "none") == "add")


def _before(node: ir.Node) -> ir.Node | None:
    """The scatter that gives what another one adds to, and nothing else reads."""
    x = node.inputs[0]
    before = None if x is None else x.producer()
    if before is None or before.op_identifier() != SCATTER or not _adds(before):
        return None
    return before if _is_term(before, SCATTER) else None


def _pair(node: ir.Node) -> tuple[ir.Value, ...]:
    return tuple(x for x in node.inputs[1:] if x is not None)


def _kind(value: ir.Value) -> str | None:
    node = value.producer()
    return None if node is None else node.op_type


def _added(joiner: Joiner, each: Sum) -> ir.Value:
    """The terms that are siblings, added up, behind the others."""
    kinds = [_kind(t[0]) for t in each.terms]
    most = max((k for k in kinds if k is not None), key=kinds.count)
    alike = [t[0] for t, k in zip(each.terms, kinds, strict=True) if k == most]
    others = [t[0] for t, k in zip(each.terms, kinds, strict=True) if k != most]
    if len(alike) < LEAST_TERMS:
        raise NoRule("few siblings")
    joiner.count = len(alike)
    return add_terms(joiner, each.last, alike, others)


def add_terms(
    joiner: Joiner, last: ir.Node, alike: Sequence[ir.Value], others: Sequence[ir.Value]
) -> ir.Value:
    """The sum of what siblings give, behind other terms.

    Args:
        joiner: Makes the nodes.
        last: The node that gives the sum.
        alike: Terms of siblings: one of each, or of one trip of a loop.
        others: Other terms.
    """
    graph, body = joiner.graph, joiner.body
    whole = graph[last.outputs[0].name or ""].shape
    if whole is None or any(graph[x.name or ""].shape != whole for x in alike):
        raise NoRule("terms that broadcast")
    joined = joiner.join(tuple(alike))
    if joined.lead is not Lead.EACH:
        raise NoRule("terms that are the same")
    total = body.along("ReduceSum", joined.value, [0], keepdims=0)
    return reduce(lambda a, b: body.op("Add", a, b), [*others, total])


def add_rows(joiner: Joiner, each: Sum) -> ir.Value:
    """The rows of all lists, added at once."""
    graph = joiner.graph
    places, rows = (joiner.join(tuple(values)) for values in zip(*each.terms, strict=True))
    start = each.start
    if start is None or {places.lead, rows.lead} != {Lead.ROWS}:
        raise NoRule("not rows at places of lists")
    floats = graph[start.name or ""].dtype == np.float32
    if {places.rank, rows.rank, joiner.rank(start)} != {2} or not floats:
        raise NoRule("not float32 rows of a matrix, each at one place")
    made = joiner.body.op("ScatterND", start, places.value, rows.value, reduction="add")
    cast(ir.Node, made.producer()).meta[REPEATS] = True  # one row may be in several lists
    return made
