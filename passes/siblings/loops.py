"""Loops whose trips are siblings: each adds something to what the one before has made.

    for e in 0..63:  y = y + relu(x @ up[e]) @ down[e]

The trip number is the only thing that differs. One trip stands for all: its number becomes a vector
of all numbers, and what is looked up by it the whole table.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH
from pitc.ir.build import names_of
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.unused import remove_unused
from pitc.passes.expand.body import Body, Shared
from pitc.passes.expand.unroll import MAX_TRIPS, LoopPlan, counted_loop, unroll_loop
from pitc.passes.exprs.derive import derive
from pitc.passes.siblings.joined import Joined, Joiner, Lead
from pitc.passes.siblings.rules import RULES
from pitc.passes.siblings.scatters import ADD, add_rows, step_of
from pitc.passes.siblings.sums import add_terms, put_in_place

MOST_TRIPS = 4096


def loops_of(graph: ir.Graph) -> list[ir.Node]:
    """Loops of the main graph that may be joined."""
    found = (n for n in graph if n.op_identifier() == ("", "Loop", ""))
    return [n for n in found if BRANCH not in n.metadata_props]


def join_loops(model: ir.Model) -> list[ir.Node]:
    """Join the trips of every loop that only adds up what siblings give.

    Args:
        model: A normalised model; it is changed in place.

    Returns:
        The products of all siblings.
    """
    found = list[ir.Node]()
    for node in loops_of(model.graph):
        graph = Graph(model)
        derive(graph)
        plan = counted_loop(graph, node)
        if (
            plan is None
            or not MAX_TRIPS < plan.trips <= MOST_TRIPS
            or any(o.uses() or o.is_graph_output() for o in node.outputs[plan.states :])
        ):
            continue
        copy = model.clone()  # what is tried cannot be taken back
        twin = next(n for n in copy.graph if n.outputs[0].name == node.outputs[0].name)
        try:
            _join(copy, twin, plan)
        except NoRule:
            continue
        found += _join(model, node, plan)
    return found


def _join(model: ir.Model, node: ir.Node, plan: LoopPlan) -> list[ir.Node]:
    states = node.inputs[2 : 2 + plan.states]
    before = set(model.graph)
    numbers, results = unroll_loop(model, node, replace(plan, trips=1))
    changed = [(a, b) for a, b in zip(states, results, strict=True) if a is not b]
    if len(numbers) != 1 or len(changed) != 1:
        raise NoRule("a trip that does not hand on one sum")
    ((start, result),) = changed
    root = result.producer()
    step = step_of(root)
    rows = step is not None and step.before is start
    terms = [] if root is None or root.op_identifier() != ADD else list(root.inputs)
    if start is None or root is None or not (rows or terms.count(start) == 1):
        raise NoRule("a trip that does not add to what the one before has made")
    if [use.node for use in start.uses() if use.node not in before] != [root]:
        raise NoRule("a trip that reads what the one before has made")
    graph = Graph(model)
    derive(graph)
    body = Body(NodeView(graph, root), names_of(model.graph), Shared())
    joiner = Joiner(graph, body, plan.trips, RULES, varying=_varying(numbers[0]))
    rank = joiner.rank(numbers[0])
    every = body.constant(np.arange(plan.trips).reshape(-1, *[1] * rank))
    joiner.give(numbers[0], Joined(every, Lead.EACH, rank))
    try:
        if step is not None and rows:
            made = add_rows(joiner, [step])
        else:
            (term,) = (x for x in terms if x is not start)
            made = add_terms(joiner, root, [cast(ir.Value, term)], [start])
        if not joiner.products:
            raise NoRule("no products")
    except NoRule:
        body.discard()
        raise
    put_in_place(model, root, body, made)
    remove_unused(model)
    return joiner.products


def _varying(number: ir.Value) -> set[ir.Value]:
    """All values that are computed from the number of the trip."""
    found, todo = {number}, [number]
    while todo:
        for use in todo.pop().uses():
            new = [o for o in use.node.outputs if o not in found]
            found.update(new)
            todo += new
    return found
