"""Sums of what siblings give, as models write them.

    y = ((x + a_0) + a_1) + a_2                        terms that are alike
    y = ScatterND(ScatterND(x, r_0, a_0), r_1, a_1)    rows that are added at places (`scatters.py`)

The terms are joined (`joined.py`) and added up at once, in the same order; what else is added comes
in front.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.build import names_of, take_over
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.nodes import opset_of
from pitc.ir.since import Since
from pitc.ir.unused import remove_unused
from pitc.passes.expand.body import Body, Shared
from pitc.passes.exprs.derive import derive
from pitc.passes.siblings.joined import Joiner, Lead
from pitc.passes.siblings.rules import RULES
from pitc.passes.siblings.scatters import ADD, Step, add_rows, ask_start, chain_of, step_of

LEAST_TERMS = 16
"""Alone, a term has its products and what stands between them in one node, which is as fast as few
of them at once; rows that ONNX Runtime lists and adds, one sibling after the other, are not."""
LEAST_LISTS = 4


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of terms.

    Args:
        last: The node that gives it.
        terms: What is added, in order.
        steps: Rows that are added at places instead.
    """

    last: ir.Node
    terms: tuple[ir.Value, ...] = ()
    steps: list[Step] = field(default_factory=list)


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
        joiner = Joiner(graph, body, len(each.steps or each.terms), RULES)
        try:
            made = add_rows(joiner, each.steps) if each.steps else _added(joiner, each)
            if not joiner.products:
                raise NoRule("no products")
        except NoRule:
            body.discard()
            continue
        ask_start(each.steps)
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
    return list(_sums(graph))


def _sums(graph: ir.Graph) -> Iterator[Sum]:
    """Sums that are no terms of others."""
    for node in graph:
        if BRANCH in node.metadata_props:
            continue
        if step_of(node) is not None:
            if len(steps := chain_of(node)) >= LEAST_LISTS:
                yield Sum(node, steps=steps)
        elif node.op_identifier() == ADD and not _is_term(node):
            terms = tuple(_terms(node))
            kinds = [k for t in terms if (k := _kind(t)) is not None]
            if kinds and max(map(kinds.count, kinds)) >= LEAST_TERMS:
                yield Sum(node, terms)


def _is_term(node: ir.Node) -> bool:
    """True for a sum that only a larger one reads."""
    (out,) = node.outputs
    uses = list(out.uses())
    return len(uses) == 1 and not out.is_graph_output() and uses[0].node.op_identifier() == ADD


def _terms(node: ir.Node) -> list[ir.Value]:
    """What a sum adds up, from left to right."""
    found, todo = list[ir.Value](), [x for x in node.inputs if x is not None]
    while todo:
        x = todo.pop()
        before = x.producer()
        is_sum = before is not None and before.op_identifier() == ADD and step_of(before) is None
        if before is not None and is_sum and _is_term(before):
            todo += [y for y in before.inputs if y is not None]
        else:
            found.append(x)
    return found[::-1]


def _kind(value: ir.Value) -> str | None:
    node = value.producer()
    return None if node is None else node.op_type


def _added(joiner: Joiner, each: Sum) -> ir.Value:
    """The terms that are siblings, added up, behind the others."""
    kinds = [_kind(t) for t in each.terms]
    most = max((k for k in kinds if k is not None), key=kinds.count)
    alike = [t for t, k in zip(each.terms, kinds, strict=True) if k == most]
    others = [t for t, k in zip(each.terms, kinds, strict=True) if k != most]
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
