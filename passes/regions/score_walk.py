"""The walk between two contractions, from weights back to the product that scores are."""

from functools import partial
from math import inf

import onnx_ir as ir

from pitc.ir.constant import (
    BOUNDED,
    FINITE,
    ZN,
    Constant,
    is_hidden,
    is_kept,
    is_number,
    is_zero,
    range_of,
)
from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, Digit, nonneg
from pitc.ir.nodes import first_input, first_output
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, covers, region
from pitc.passes.facts.softmax import spared_rows
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import PackCandidate
from pitc.passes.regions.pairs import fits_plan, hidden_pairs, lies_in, seen_pairs
from pitc.passes.regions.price import pair_flops
from pitc.passes.regions.rounding import shows_rounding
from pitc.passes.regions.row_guard import RowGuard, Rows, settled
from pitc.passes.regions.score_bias import numbers_of_sink
from pitc.passes.regions.score_steps import elementwise, reshape, rounded
from pitc.passes.regions.scores import Scores, rest_on_zeros
from pitc.passes.regions.sight import Condition, Sight
from pitc.passes.regions.weights import Softmax, softmax_of
from pitc.passes.rules.record import PackRule, operator_of


def walk(site: PackCandidate, keys: Domain, scores: Scores) -> Refusal | None:
    """Follow producers from the probabilities to the first contraction.

    The result of the softmax must be zero at dead keys by itself: zeros that are put in later leave
    the sum of the row as it was, dead keys included.

    Args:
        site: The second contraction.
        keys: The live keys.
        scores: Starts at its left operand, ends at the result of the first contraction.

    Returns:
        None, or why the walk stopped before.
    """
    graph = site.context.graph
    while True:
        node, expr = graph[scores.name].producer, graph[scores.name].expr
        if node is None or expr is None:
            return site.refuse(
                Code.NO_LOWERING, f"'{scores.name}' is not computed by a known step", scores.name
            )
        if expr.combine is Combine.PRODUCT and scores.softmaxed:
            return _check_bias(site, scores)
        key = scores.key_coords[-1]
        if not scores.softmaxed and key == Digit(key.dim, ONE, expr.shape[key.dim]):
            found = softmax_of(graph, scores.name, key.dim)
            if found is not None:
                stop = _enter_softmax(site, keys, scores, found)
                if stop is not None:
                    return stop
                continue
        scores.absorbs.append(node)
        if expr.combine is Combine.SOFTMAX and not scores.softmaxed:
            return site.refuse(Code.LAYOUT, "the softmax is not over the key axis", scores.name)
        if operator_of(node).dequantises:
            stop = rounded(site, scores, node)
        elif expr.combine is Combine.MAP:
            stop = elementwise(site, scores, node, expr)
        elif operator_of(node).packs is PackRule.RESHAPED:
            stop = reshape(site, scores, node, expr)
        else:
            stop = site.refuse(
                Code.NO_LOWERING, f"{node.op_type} between the contractions", scores.name
            )
        if stop is not None:
            return stop


def _enter_softmax(
    site: PackCandidate, keys: Domain, scores: Scores, found: Softmax
) -> Refusal | None:
    """Go on at what a softmax is of. A sink is a key of every row, so no row is uniform."""
    graph = site.context.graph
    if found.sink is not None:
        if not graph.target.steps_on_scores:
            text = f"scores have a sink, on {graph.target.kind}"
            return site.refuse(Code.NO_LOWERING, text, found.sink)
        behind = "quantised" if scores.weight_steps is not None else "guarded by row"
        if scores.weight_steps is not None or scores.guard is not None:
            text = f"weights are {behind}, and scores have a sink"
            return site.refuse(Code.NO_LOWERING, text, found.sink)
        coords = (*scores.query_coords, scores.key_coords[-1])
        scores.sinks = numbers_of_sink(graph, graph[found.scores].shape, coords, found.sink)
        if scores.sinks is None:
            text = "a sink is not one number of float32, nor one for each head"
            return site.refuse(Code.NO_LOWERING, text, found.sink)
        scores.may_be_uniform, scores.sink = False, found.sink
    stop = _at_softmax(site, keys, scores)
    expr = graph[first_output(found.node)].expr
    if stop is not None or expr is None:
        return stop
    scores.spared = _keep_keys(site, scores, found.node, expr)
    scores.softmaxed, scores.name = True, found.scores
    scores.absorbs += found.nodes
    return None


def _at_softmax(site: PackCandidate, keys: Domain, scores: Scores) -> Refusal | None:
    """Its result must be zero at dead keys. Then each row has a live key, as its sum is 1, unless
    there are no keys at all: a sum of nothing is 0. Or it is NaN in a row without one: there the
    steps behind the softmax decide, at dead keys alone.
    """
    zero = rest_on_zeros(site.context, keys, scores)
    if zero is None:
        return site.refuse(Code.NO_FACT, "the softmax is not zero at dead keys", scores.name)
    if not (zero or scores.zero):
        if scores.chosen:
            return site.refuse(
                Code.NO_FACT, "a row without live keys may be zero or NaN", scores.name
            )
        extent = scores.key_coords[-1].extent
        if not nonneg(extent - 1) and extent not in site.context.domain.extents:
            return site.refuse(
                Code.NO_FACT, "a row is NaN without live keys, zero without any", scores.name
            )
    scores.no_keys_to_zero = (zero or scores.zero) and not scores.nan_to_zero
    return _hide_pairs(site, keys, scores)


def _hide_pairs(site: PackCandidate, keys: Domain, scores: Scores) -> Refusal | None:
    """Leave out pairs whose terms of the sum are 0: the row's sum and its other terms stay."""
    graph, guard = site.context.graph, scores.guard
    if not graph.target.hides_pairs:
        return None if guard is None else _unknown_guard(site, guard)
    dead = region(keys.at(scores.key_coords))
    sight = Sight(graph, scores.query_coords, scores.key_coords)

    def hide(regions: list[Region]) -> tuple[list[Condition], list[Region]]:
        """Formulas, and the regions in which one of them holds."""
        flops = partial(pair_flops, site.expr)
        found = hidden_pairs(sight, scores.name, regions, dead, flops)
        where = [r for r, _ in found]
        inside = (r for r in regions if any(lies_in(graph, r, other) for other in where))
        return [c for _, c in found], sorted(inside, key=len)

    facts = graph[scores.name].fills
    found, where = hide([f.region for f in facts if is_zero(f.constant) or f.constant == ZN])
    if scores.may_be_uniform and keys.lives_everywhere:
        replaced, terms = _replaced(graph, scores), graph[_softmaxed(graph, scores)].fills
        if not all(any(lies_in(graph, r, other) for other in where) for r in replaced):
            others, everywhere = hide(replaced)
            kept = [f.region for f in terms if _is_unmasked(f.constant)]
            left = seen_pairs(scores.pairs, everywhere)
            if others and all(any(covers(region, pair) for region in kept) for pair in left):
                found, where, scores.uniform = others, everywhere, True
                graph.assume(BOUNDED, site.node)
                scores.rests_on += kept
    if found:
        graph.assume(FINITE, site.node)  # 0 times a value is left out
    scores.hidden = found
    scores.pairs = seen_pairs(scores.pairs, where)
    scores.rests_on += where
    if guard is None:
        return None
    hidden, proofs = [*where, *([] if dead is None else [dead])], list[Region]()
    if settled(guard, Rows(graph, hidden, scores.pairs, scores.key_coords[-1], proofs)):
        scores.rests_on += proofs
        scores.no_keys_to_zero = not scores.nan_to_zero  # they see no key, either
        return None
    # Without that only rows where it holds may see nothing: no others' weights are all 0. Beside no
    # hidden pairs the condition would cost more than it saves.
    zeros = {f.region for f in facts if is_zero(f.constant)}
    blind, rows = hide([] if guard.rows is None else [guard.rows])
    nan = not zeros.issuperset(where) or not (scores.no_keys_to_zero or scores.nan_to_zero)
    if not found or not blind or nan or not fits_plan([*found, *blind]):
        return _unknown_guard(site, guard)
    scores.hidden = [*found, *blind]
    scores.pairs = seen_pairs(scores.pairs, rows)
    return None


def _unknown_guard(site: PackCandidate, guard: RowGuard) -> Refusal:
    text = f"'{guard.name}' is not known to hold in rows that see no key, and in no other"
    return site.refuse(Code.NO_FACT, text, guard.name)


def _softmaxed(graph: Graph, scores: Scores) -> str:
    """What the softmax is of, at which the walk stands."""
    node = graph[scores.name].producer
    assert node is not None
    return first_input(node)


def _replaced(graph: Graph, scores: Scores) -> list[Region]:
    """Where one finite number has replaced scores, so low that beside a kept one they have weights
    of 0, and that a row of it alone is uniform; nothing where there are several such numbers.
    """
    facts = graph[_softmaxed(graph, scores)].fills
    numbers = (f for f in facts if is_number(f.constant) and f.constant > -inf)
    low = [f for f in numbers if is_hidden(f.constant)]
    return [f.region for f in low] if len({f.constant for f in low}) == 1 else []


def _keep_keys(site: PackCandidate, scores: Scores, node: ir.Node, expr: TensorExpr) -> bool:
    """True where every live row of a softmax keeps a key."""
    rows = spared_rows(NodeView(site.context.graph, node), expr, _is_unmasked)
    cases = site.context.domain.live_cases(scores.query_coords)
    return cases is not None and all(
        any(covers(row, Region((case,))) for row in rows) for case in cases
    )


def _is_unmasked(c: Constant) -> bool:
    """True for a kept term of the softmax that no number shifts out of the range of scores."""
    known = range_of(c)
    return is_kept(c) and known is not None and known.hi >= 0


def _check_bias(site: PackCandidate, scores: Scores) -> Refusal | None:
    """A row in which one finite number has replaced every score is uniform; with a second term it
    would be so in one of the two ways to add only.
    """
    if scores.inner is not None and len(scores.bias) > scores.inner.terms:
        text = f"scores are {scores.inner.verb} together with a bias"
        return site.refuse(Code.NO_LOWERING, text, scores.bias[-1].name)
    replaced = any(t.low is not None and t.low != -inf for t in scores.bias)
    if replaced and len(scores.bias) > 1:
        return site.refuse(
            Code.NO_LOWERING, "a finite number replaces scores that have a bias", scores.name
        )
    everywhere = site.context.domain.lives_everywhere and scores.guard is None
    if not scores.spared and shows_rounding(
        site.context.graph, scores.name, scores.bias, last_bits=everywhere
    ):
        return site.refuse(
            Code.NO_LOWERING,
            "rows with only hidden keys show how scores round",
            scores.bias[0].name,
        )
    if replaced or len(scores.bias) > 1:  # of two large terms the order matters
        site.context.graph.assume(BOUNDED, site.node)
    return None
