"""Elementwise steps on attention scores, between two contractions: what of them matters at live
(query, key) pairs.
"""

from math import inf

import onnx_ir as ir

from pitc.ir.constant import (
    MASKED,
    Constant,
    is_hidden,
    is_number,
)
from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import invert
from pitc.ir.nodes import first_input, input_names
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import covers, pull
from pitc.passes.facts.finite import clean_if, finite_if
from pitc.passes.facts.sizes import size_bounds
from pitc.passes.regions.contraction import to_source
from pitc.passes.regions.form import Factor, PackCandidate
from pitc.passes.regions.row_guard import row_guard
from pitc.passes.regions.scores import (
    Scores,
    continue_at,
    facts_at,
    is_factor,
    known_at_pairs,
)
from pitc.passes.regions.steps import Cap, Inner, Steps, pair_of
from pitc.passes.rules.record import operator_of

ABSORBING = -3e38  # any bounded score plus this is this, in float32


def rounded(site: PackCandidate, scores: Scores, node: ir.Node) -> Refusal | None:
    """Weights, or scores, are rounded to steps: 0 stays 0, and what a NaN becomes nobody says."""
    graph, what = site.context.graph, "scores" if scores.softmaxed else "weights"
    found = pair_of(graph, node)
    if isinstance(found, str):
        text = f"{node.op_type} of {what} {found}"
        return site.refuse(Code.NO_LOWERING, text, scores.name)
    quantises, steps = found
    if not graph.target.steps_on_scores:
        return site.refuse(
            Code.NO_LOWERING, f"{what} are quantised, on {graph.target.kind}", scores.name
        )
    if not scores.softmaxed and scores.weight_steps is not None:
        return site.refuse(Code.NO_LOWERING, "weights are quantised twice", scores.name)
    source = first_input(quantises)
    finite = finite_if(graph, source)
    if finite is None or not all(covers(finite, pair) for pair in scores.pairs):
        return site.refuse(Code.NO_FACT, f"{what} may be NaN where they are quantised", source)
    scores.rests_on.append(finite)
    scores.absorbs.append(quantises)
    if scores.softmaxed:
        return _enter(site, scores, steps, source)
    scores.weight_steps, scores.name = steps, source
    return None


def _enter(
    site: PackCandidate, scores: Scores, function: Steps | Cap, source: str
) -> Refusal | None:
    """Take a function of scores into the kernel: one, whose factors are numbers."""
    inner = Inner(function, scores.scale, len(scores.bias))
    if scores.inner is not None:
        text = f"scores are {inner.verb} and then {scores.inner.verb}"
        if inner.verb == scores.inner.verb:
            text = f"scores are {inner.verb} twice"
        return site.refuse(Code.NO_LOWERING, text, scores.name)
    if scores.factors:
        text = f"scores are {inner.verb} and then scaled by '{scores.factors[0].name}'"
        return site.refuse(Code.NO_LOWERING, text, scores.factors[0].name)
    scores.inner, scores.scale, scores.name = inner, 1.0, source
    return None


def reshape(site: PackCandidate, scores: Scores, node: ir.Node, expr: TensorExpr) -> Refusal | None:
    """Follow coordinates through a change of dimensions."""
    if scores.guard is not None and not scores.softmaxed:
        return site.refuse(Code.LAYOUT, f"{node.op_type} of weights with a guard", scores.name)
    graph, source, (read,) = site.context.graph, first_input(node), expr.reads
    shape = graph[source].shape
    if shape is None:
        return site.refuse(Code.LAYOUT, f"the shape of '{source}' is not known", source)
    queries, keys = (to_source(x, expr, shape) for x in (scores.query_coords, scores.key_coords))
    solved = invert(read.index, expr.extents, shape)
    maps = [solved.get(d) for d in range(len(expr.extents))]
    pulled = (pull(r, maps, expr.extents) for r in scores.pairs)
    pairs = [p for p in pulled if p is not None]
    if queries is None or keys is None or len(pairs) != len(scores.pairs):
        return site.refuse(Code.LAYOUT, f"{node.op_type} mixes queries and keys", source)
    scores.pairs, scores.query_coords, scores.key_coords = pairs, queries, keys
    scores.name = source
    return None


def elementwise(
    site: PackCandidate, scores: Scores, node: ir.Node, expr: TensorExpr
) -> Refusal | None:
    """One elementwise step: a scale, a mask that is neutral at live pairs, a bias, or a NaN
    guard.
    """
    graph, operator, names = site.context.graph, operator_of(node), input_names(node)
    key = scores.key_coords[-1].dim
    if operator.converts and graph[names[0]].dtype == graph[scores.name].dtype:
        scores.name = names[0]
        return None
    known = [known_at_pairs(site, scores, expr, k, n) for k, n in enumerate(names)]
    if operator.chooses and not node.domain:
        flag = graph[graph[scores.name].guard_flag].producer
        if flag is not None and not scores.softmaxed:
            scores.absorbs.append(flag)
            scores.nan_to_zero, chosen = True, 2
        elif is_number(known[0]):
            chosen = 1 if known[0] else 2
            scores.chosen = True
        elif (
            not scores.softmaxed
            and scores.guard is None
            and (guard := row_guard(graph, expr, names, key)) is not None
        ):
            scores.guard, scores.may_be_uniform, chosen = guard, False, 2 if guard.when else 1
        else:
            return _selection(site, scores, expr, names, known)
        return continue_at(site, scores, names[chosen])
    if not scores.softmaxed:
        return site.refuse(
            Code.NO_LOWERING, f"{node.op_type} between softmax and contraction", scores.name
        )
    if operator.caps:
        if not graph.target.steps_on_scores:
            text = f"scores are capped, on {graph.target.kind}"
            return site.refuse(Code.NO_LOWERING, text, scores.name)
        return _enter(site, scores, Cap(), names[0])
    return _arithmetic(site, scores, node, names, known)


def _selection(
    site: PackCandidate, scores: Scores, expr: TensorExpr, names: list[str], known: list[Constant]
) -> Refusal | None:
    """A Where that replaces the scores of some live pairs becomes a term that absorbs them: -inf
    what is neither NaN nor +inf, a finite number what is bounded besides.

    Where such a term is known to replace whole rows, -inf makes them NaN whatever the scores are.
    """
    low = 1 if is_hidden(known[1], MASKED) else 2
    if not scores.softmaxed or not is_hidden(known[low], MASKED) or scores.is_scaled:
        return site.refuse(Code.NO_FACT, f"'{names[0]}' is not known at live pairs", names[0])
    score, graph = names[3 - low], site.context.graph
    clean, key = clean_if(graph, score), scores.key_coords[-1].dim
    replaced = [
        where
        for where, constant in facts_at(graph, expr, 0, names[0])
        if known[low] == -inf and constant == (low == 1)
    ]
    for pair in scores.pairs:
        rows = [] if any(key in t.dims() for t in pair) else replaced
        proofs = [*([] if clean is None else [clean]), *rows]
        proof = next((where for where in proofs if covers(where, pair)), None)
        if proof is None:
            return site.refuse(
                Code.NO_FACT, f"'{score}' may be NaN or infinite where replaced", score
            )
        scores.rests_on.append(proof)
    value = -inf if known[low] == -inf else ABSORBING
    stop = scores.add(site, unexpanded(graph, names[0]), value, low_when=low == 1)
    return stop or continue_at(site, scores, score)


def _arithmetic(
    site: PackCandidate, scores: Scores, node: ir.Node, names: list[str], known: list[Constant]
) -> Refusal | None:
    operator, refusal = operator_of(node), f"{node.op_type} on the scores"
    graph, shape = site.context.graph, site.context.graph[scores.name].shape
    wide = [k for k, n in enumerate(names) if graph[n].shape == shape and not is_number(known[k])]
    if len(names) != 2 or not wide:
        return site.refuse(Code.NO_LOWERING, refusal, scores.name)
    k = next((k for k in wide if _reaches_contraction(site, names[k])), wide[0])
    other, value = names[1 - k], known[1 - k]
    if operator.power(k) > 0 and is_number(value):
        if not is_factor(value):
            return site.refuse(
                Code.NO_LOWERING, f"scores are multiplied or divided by {value}", other
            )
        scores.scale *= float(value) if operator.multiplies else 1 / float(value)
        scores.name = names[k]
        return None
    if operator.power(k) > 0 and _is_size_factor(site, scores, other):
        scores.factors.append(Factor(other, not operator.multiplies))
        scores.name = names[k]
        return None
    if operator.weight(k) > 0:
        if value == 0:
            scores.name = names[k]
            return None
        if min(operator.weights) > 0 and not scores.is_scaled:
            stop = scores.add(site, unexpanded(graph, other))
            scores.name = names[k]
            return stop
    return site.refuse(Code.NO_LOWERING, refusal, scores.name)


def _is_size_factor(site: PackCandidate, scores: Scores, name: str) -> bool:
    """True for a number that is computed of sizes, and moderate for all."""
    graph = site.context.graph
    # Queries are scaled by such factors: what is rounded is so by a number that the plan has.
    found = None if scores.inner is not None else size_bounds(graph, name)
    if found is None or not found.hold(graph[scores.name].shape or ()):
        return False
    return is_factor(found.lo) and is_factor(found.hi)


def unexpanded(graph: Graph, name: str) -> str:
    """The value before it was repeated along dimensions of extent 1; adding it broadcasts it
    again.
    """
    node = graph[name].producer
    while node is not None and node.op_type == "Expand" and not node.domain:
        source = first_input(node)
        if len(graph[source].shape or ()) != len(graph[name].shape or ()):
            break
        name, node = source, graph[source].producer
    return name


def _reaches_contraction(site: PackCandidate, name: str) -> bool:
    """True where following first operands leads to a contraction: tells the scores from a bias of
    the same shape.
    """
    graph = site.context.graph
    for _ in range(8):
        node, expr = graph[name].producer, graph[name].expr
        if node is None or expr is None:
            return False
        if expr.combine is Combine.PRODUCT:
            return True
        if expr.combine not in (Combine.MAP, Combine.MOVE):
            return False
        name = first_input(node)
    return False
