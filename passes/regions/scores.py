"""The walk between two contractions: which elementwise steps on attention scores matter at live
(query, key) pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from math import inf

import onnx_ir as ir

from pitc.ir.constant import (
    BOUNDED,
    FINITE,
    MASKED,
    ZN,
    Constant,
    is_hidden,
    is_kept,
    is_number,
    is_zero,
    range_of,
)
from pitc.ir.expr import Combine, Read, Shape, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, Coords, Digit, digit, invert, nonneg
from pitc.ir.nodes import first_input, input_names
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, covered, pull, region
from pitc.passes.facts.finite import clean_if, finite_if
from pitc.passes.facts.sizes import size_bounds
from pitc.passes.facts.softmax import spared_rows
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import BiasTerm, Factor, FormContext, PackCandidate
from pitc.passes.regions.pairs import hidden_pairs, lies_in, seen_pairs
from pitc.passes.regions.price import pair_flops
from pitc.passes.regions.rounding import SWALLOWING, shows_rounding
from pitc.passes.regions.sight import Condition, Sight
from pitc.passes.regions.steps import LEAST, MOST, Cap, Inner, Steps, pair_of
from pitc.passes.rules.record import PackRule, operator_of

ABSORBING = -3e38  # any bounded score plus this is this, in float32


@dataclass(slots=True)
class Scores:
    """Where the walk stands, and what it has gathered.

    Args:
        name: The value reached.
        query_coords: Coordinates of the queries, as digits of that value.
        key_coords: Coordinates of the keys, as digits of that value.
        pairs: Regions of that value which together hold every live pair.
        factors: Numbers computed of sizes that they are multiplied or divided by.
        bias_shapes: Extents of the scores where the terms of the bias are added.
        zero: The weights that the values get are 0 at dead keys, never NaN.
        chosen: A step was left out for what it does at live pairs; asked at the softmax, of those
            behind it.
        nan_to_zero: A row whose softmax is NaN has weights of 0.
        no_keys_to_zero: Only a row without live keys has.
        spared: Every live row keeps a key, so that hidden ones have weights of 0.
        weight_steps: What the weights are rounded to, behind the softmax.
        inner: What scores go through behind a first factor, `scale`.
        hidden: Pairs that are left out as well: `pairs` are the others, from the softmax on.
        may_be_uniform: Rows of hidden pairs alone may be left to the kernel.
        uniform: They are: all their weights are equal, for what replaced the scores was one number.
    """

    name: str
    query_coords: Coords
    key_coords: Coords
    pairs: list[Region]
    scale: float = 1.0
    factors: list[Factor] = field(default_factory=list)
    bias: list[BiasTerm] = field(default_factory=list)
    bias_shapes: set[Shape | None] = field(default_factory=set)
    zero: bool = False
    chosen: bool = False
    nan_to_zero: bool = False
    no_keys_to_zero: bool = False
    spared: bool = False
    weight_steps: Steps | None = None
    inner: Inner | None = None
    hidden: list[Condition] = field(default_factory=list)
    may_be_uniform: bool = True
    uniform: bool = False
    softmaxed: bool = False
    absorbs: list[ir.Node] = field(default_factory=list)
    rests_on: list[Region] = field(default_factory=list)

    @property
    def is_scaled(self) -> bool:
        """What stands in front is multiplied by numbers."""
        return self.scale != 1.0 or bool(self.factors)

    def add(self, graph: Graph, term: BiasTerm) -> None:
        """Gather a term that is added where the walk stands."""
        self.bias.append(term)
        self.bias_shapes.add(graph[self.name].shape)


def live_pairs(queries: Domain, keys: Domain, at_q: Coords, at_k: Coords) -> list[Region] | None:
    """Regions that together hold every pair of a live query and a live key; None where they
    cannot be said.
    """
    q_cases, k_cases = queries.live_cases(at_q), keys.live_cases(at_k)
    if q_cases is None or k_cases is None:
        return None
    pairs = [region(Region((q, k))) for q in q_cases for k in k_cases]
    return [p for p in pairs if p is not None]


def rest_on_zeros(context: FormContext, keys: Domain, scores: Scores) -> bool | None:
    """Rest on fill facts which say that the probabilities of live queries are zero at dead keys.

    Returns:
        True; False where they may be NaN as well; None without such facts.
    """
    for or_nan in (False, True):
        proofs = _zero_at_dead_keys(context, keys, scores, or_nan)
        if proofs is not None:
            scores.rests_on += proofs
            return not or_nan
    return None


def _zero_at_dead_keys(
    context: FormContext, keys: Domain, scores: Scores, or_nan: bool
) -> list[Region] | None:
    cases = context.domain.live_cases(scores.query_coords)
    if cases is None:
        return None
    dead, proofs = keys.at(scores.key_coords), []
    facts = context.graph[scores.name].fills
    zeros = [f.region for f in facts if is_zero(f.constant) or (or_nan and f.constant == ZN)]
    for case in cases:
        where = region(Region((*dead, case)))
        if where is None:
            continue
        proof = _proof(zeros, where)
        if proof is None:
            return None
        proofs += proof
    return proofs


def _proof(facts: Sequence[Region], where: Region) -> list[Region] | None:
    """A fact that covers a region, or two that do so together; None without.

    {k <= q, mask[k] == 0} and {k > q, mask[k] == 0} cover {mask[k] == 0}
    """
    for fact in facts:
        if covers(fact, where):
            return [fact]
    unsaid = [(f, [u for u in f if not any(t.implies(u) for t in where)]) for f in facts]
    pairs = combinations(unsaid, 2)
    return next(([a, b] for (a, x), (b, y) in pairs if covered([x, y], 1)), None)


def covers(fact: Region, where: Region) -> bool:
    """Every test of the fact follows from one test of `where`."""
    return all(any(t.implies(u) for t in where) for u in fact)


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
        scores.absorbs.append(node)
        if expr.combine is Combine.SOFTMAX and not scores.softmaxed:
            lines = tuple(Digit(d, ONE, expr.shape[d]) for d in expr.normal)
            if lines != scores.key_coords[-1:]:
                return site.refuse(Code.LAYOUT, "the softmax is not over the key axis", scores.name)
            stop = _at_softmax(site, keys, scores)
            if stop is not None:
                return stop
            scores.spared = _keep_keys(site, scores, node, expr)
            scores.softmaxed, scores.name = True, first_input(node)
            continue
        if operator_of(node).dequantises:
            stop = _rounded(site, scores, node)
        elif expr.combine is Combine.MAP:
            stop = _elementwise(site, scores, node, expr)
        elif operator_of(node).packs is PackRule.RESHAPED:
            stop = _reshape(site, scores, node, expr)
        else:
            stop = site.refuse(
                Code.NO_LOWERING, f"{node.op_type} between the contractions", scores.name
            )
        if stop is not None:
            return stop


def _rounded(site: PackCandidate, scores: Scores, node: ir.Node) -> Refusal | None:
    """Weights, or scores, are rounded to steps: 0 stays 0, and what a NaN becomes nobody says."""
    graph, what = site.context.graph, "scores" if scores.softmaxed else "weights"
    found = pair_of(graph, node)
    if isinstance(found, str):
        text = f"{node.op_type} of {what} {found}"
        return site.refuse(Code.NO_LOWERING, text, scores.name)
    quantises, steps = found
    if not graph.target.rounds_attention:
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
    _hide_pairs(site, keys, scores)
    return None


def _hide_pairs(site: PackCandidate, keys: Domain, scores: Scores) -> None:
    """Leave out pairs whose terms of the sum are 0: the row's sum and its other terms stay."""
    graph = site.context.graph
    if not graph.target.hides_pairs:
        return
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
    low = [f for f in facts if is_number(f.constant) and -inf < f.constant <= SWALLOWING]
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
    """The bias is read where the scores are, so between the two nothing may be reshaped.

    A row in which one finite number has replaced every score is uniform; with a second term it
    would be so in one of the two ways to add only.
    """
    if not scores.bias_shapes <= {site.context.graph[scores.name].shape}:
        return site.refuse(
            Code.NO_LOWERING, "a bias is added to scores of other dimensions", scores.name
        )
    if scores.inner is not None and len(scores.bias) > scores.inner.terms:
        text = f"scores are {scores.inner.verb} together with a bias"
        return site.refuse(Code.NO_LOWERING, text, scores.bias[-1].name)
    replaced = any(t.low is not None and t.low != -inf for t in scores.bias)
    if replaced and len(scores.bias) > 1:
        return site.refuse(
            Code.NO_LOWERING, "a finite number replaces scores that have a bias", scores.name
        )
    everywhere = site.context.domain.lives_everywhere
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


def _reshape(
    site: PackCandidate, scores: Scores, node: ir.Node, expr: TensorExpr
) -> Refusal | None:
    """Follow coordinates through a change of dimensions."""
    graph, source, (read,) = site.context.graph, first_input(node), expr.reads
    shape = graph[source].shape
    if shape is None:
        return site.refuse(Code.LAYOUT, f"the shape of '{source}' is not known", source)
    solved = invert(read.index, expr.extents, shape)

    def follow(coords: Coords) -> Coords | None:
        out = []
        for c in coords:
            p = solved.get(c.dim)
            q = None if p is None else digit(p, c.stride, c.extent)
            match () if q is None else tuple(q.terms):
                case [[Digit(extent=c.extent) as place]]:
                    out.append(place)
                case _:
                    return None
        return tuple(out)

    queries, keys = follow(scores.query_coords), follow(scores.key_coords)
    maps = [solved.get(d) for d in range(len(expr.extents))]
    pulled = (pull(r, maps, expr.extents) for r in scores.pairs)
    pairs = [p for p in pulled if p is not None]
    if queries is None or keys is None or len(pairs) != len(scores.pairs):
        return site.refuse(Code.LAYOUT, f"{node.op_type} mixes queries and keys", source)
    scores.pairs, scores.query_coords, scores.key_coords = pairs, queries, keys
    scores.name = source
    return None


def _elementwise(
    site: PackCandidate, scores: Scores, node: ir.Node, expr: TensorExpr
) -> Refusal | None:
    """One elementwise step: a scale, a mask that is neutral at live pairs, a bias, or a NaN
    guard.
    """
    graph, operator, names = site.context.graph, operator_of(node), input_names(node)
    if operator.converts and graph[names[0]].dtype == graph[scores.name].dtype:
        scores.name = names[0]
        return None
    known = [_known_at_pairs(site, scores, expr, k, n) for k, n in enumerate(names)]
    if operator.chooses and not node.domain:
        flag = graph[graph[scores.name].guard_flag].producer
        if flag is not None and not scores.softmaxed:
            scores.absorbs.append(flag)
            scores.nan_to_zero, chosen = True, 2
        elif is_number(known[0]):
            chosen = 1 if known[0] else 2
            scores.chosen = True
        else:
            return _selection(site, scores, expr, names, known)
        return _continue_at(site, scores, names[chosen])
    if not scores.softmaxed:
        return site.refuse(
            Code.NO_LOWERING, f"{node.op_type} between softmax and contraction", scores.name
        )
    if operator.caps:
        if not graph.target.rounds_attention:
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
        for where, constant in _facts_at(graph, expr, 0, names[0])
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
    scores.add(graph, BiasTerm(unexpanded(graph, names[0]), value, low == 1))
    return _continue_at(site, scores, score)


def is_factor(number: float) -> bool:
    """True for a number that scores may be multiplied by, before or after the contraction."""
    return LEAST <= abs(number) <= MOST


def _continue_at(site: PackCandidate, scores: Scores, name: str) -> Refusal | None:
    graph = site.context.graph
    if graph[name].shape != graph[scores.name].shape:
        return site.refuse(Code.LAYOUT, f"'{name}' is widened to the scores' shape", name)
    scores.name = name
    return None


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
            scores.add(graph, BiasTerm(unexpanded(graph, other)))
            scores.name = names[k]
            return None
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


def _known_at_pairs(
    site: PackCandidate, scores: Scores, expr: TensorExpr, operand: int, name: str
) -> Constant:
    """The number that an operand is known to be at every live pair; None where it is not."""
    graph = site.context.graph
    splat = graph.splat(name)
    if splat is not None:
        return splat
    found: set[float] = set()
    used: list[Region] = []
    facts = _facts_at(graph, expr, operand, name)
    for pair in scores.pairs:
        hit = next(((w, c) for w, c in facts if covers(w, pair)), None)
        if hit is None:
            return None
        found.add(hit[1])
        used.append(hit[0])
    if len(found) != 1:
        return None
    scores.rests_on += used
    return found.pop()


def _facts_at(
    graph: Graph, expr: TensorExpr, operand: int, name: str
) -> list[tuple[Region, float]]:
    """Where an operand is known to be a number, in the coordinates of the result."""
    shape = graph[name].shape
    reads: list[Read] = [r for r in expr.reads if r.operand == operand]
    if shape is None or len(reads) != 1:
        return []
    facts = ((read, f) for read in reads for f in graph[name].fills)
    places = ((pull(f.region, read.index, shape), f) for read, f in facts)
    return [(w, float(f.constant)) for w, f in places if w is not None and is_number(f.constant)]
