"""Runs in which a named assumption of the facts does not hold, and facts that rest on one.

Three are about a run: raw scores are at most 1000 in magnitude, nothing overflows, and no two sizes
are 0. A feed that breaks one is no evidence against what rests on it.
"""

from collections.abc import Mapping

import numpy as np

from pitc.ir.constant import BOUNDED, FILLED, Range, is_assumed, is_score
from pitc.ir.graph import Array, Graph, NodeView
from pitc.ir.nodes import attribute, node_name, output_names
from pitc.ir.poly import UNDECLARED
from pitc.ir.region import Region
from pitc.passes.audit.points import blocks, where
from pitc.passes.facts.terms import scaled_score

Values = Mapping[str, Array]
Sizes = Mapping[str, int]
ROOT = 0.25  # a power of the largest number of a type: products of a few smaller ones are finite


def raw_scores(graph: Graph) -> list[str]:
    """Values whose bound is assumed where they are made, rather than derived: sums of products,
    and products of a score and a number that is known only when the model runs.
    """
    found = []
    for name, value in graph.values.items():
        if value.producer is None or not any(is_score(f.constant) for f in value.fills):
            continue
        if value.score or _is_scaled(NodeView(graph, value.producer), name):
            found.append(name)
    return found


def _is_scaled(view: NodeView, name: str) -> bool:
    expr = view.graph[name].expr
    numbers = any(x is not None and view.graph.is_constant(x.name or "") for x in view.node.inputs)
    return expr is not None and not numbers and scaled_score(view, expr) is not None


def unbounded(graph: Graph, names: list[str], values: Values, sizes: Sizes) -> bool:
    """True where one of the raw scores is larger than they are assumed to be."""
    for name in names:
        x = values.get(name)
        for region, known in _assumed_of(graph, name) if x is not None else ():
            here = x[where(region, x.shape, sizes, values)] if x is not None else np.empty(0)
            if not np.all((known.lo <= here) & (here <= known.hi)):
                return True
    return False


def _assumed_of(graph: Graph, name: str) -> list[tuple[Region, Range]]:
    facts = graph[name].fills
    return [(f.region, c) for f in facts if isinstance(c := f.constant, Range) and is_score(c)]


def resting(graph: Graph) -> set[str]:
    """Values that have facts which rest on the bound of the scores."""
    at = {*graph.assumptions.get(BOUNDED, ())}
    found = {n for n, x in graph.values.items() if any(is_assumed(f.constant) for f in x.fills)}
    for node in graph.nodes:
        reads = {x.name for x in node.inputs if x is not None}
        if node_name(node) in at or not found.isdisjoint(reads):
            found.update(output_names(node))
    return found


def overflows(graph: Graph, name: str, values: Values) -> bool:
    """True where a value is infinite or NaN because numbers have become too large for their type,
    rather than by what an operator makes of ordinary ones.
    """
    node = graph[name].producer
    for x in node.inputs if node is not None else ():
        array = values.get(x.name or "") if x is not None else None
        if array is None or array.dtype.kind != "f":
            continue
        limit = float(np.finfo(array.dtype).max) ** ROOT
        for _, part in blocks(array):
            large = part[np.isfinite(part)]
            if large.size and max(float(large.max()), -float(large.min())) >= limit:
                return True
    return False


def both_empty(graph: Graph, sizes: Sizes) -> bool:
    """True where two sizes of inputs are 0 of which it is assumed that they are not."""
    empty = [s for s, n in sizes.items() if n == 0 and not s.startswith(UNDECLARED)]
    return FILLED in graph.assumptions and len(empty) > 1


def undefined(graph: Graph, values: Values) -> bool:
    """True where a Reshape is asked for what remains beside a size of 0: ONNX has no answer, ONNX
    Runtime gives 1.
    """
    for node in graph.nodes:
        if node.op_type != "Reshape" or node.domain or len(node.inputs) < 2:
            continue
        x = node.inputs[1]
        target = values.get(x.name or "") if x is not None else None
        if target is None or not attribute(node, "allowzero", 0):
            continue
        if np.isin((-1, 0), target).all():
            return True
    return False


def extreme_scores(
    graph: Graph, name: str, values: Values, sizes: Sizes, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Scores as large as they are assumed to be, where nothing but their bound is known.

    Returns:
        Where, and the scores.
    """
    extreme = values[name]
    for region, known in _assumed_of(graph, name):
        here = where(region, extreme.shape, sizes, values)
        ends = np.array([known.lo, known.hi], extreme.dtype)
        extreme = np.where(here, rng.choice(ends, extreme.shape), extreme)
    return free_scores(graph, name, values, sizes), extreme


def free_scores(graph: Graph, name: str, values: Values, sizes: Sizes) -> Array:
    """Where nothing but the assumed bound of scores is known of a value."""
    shape = values[name].shape
    free = np.zeros(shape, bool)
    for region, _ in _assumed_of(graph, name):
        free |= where(region, shape, sizes, values)
    for f in graph[name].fills:
        if not is_assumed(f.constant):
            free &= ~where(f.region, shape, sizes, values)
    return free
