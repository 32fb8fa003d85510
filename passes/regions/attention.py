"""Attention over live keys: contraction, elementwise steps, softmax, contraction, run as one node
on packed rows.

    s[q, k] = sum_d a[q, d] * b[k, d]      p = softmax_k(scale * s + bias)      out[q, d] = sum_k
    p[q, k] * v[k, d]

Nothing here looks at names or whole layers. The rule starts at a contraction whose left operand is
zero at dead keys (a fill fact) and walks its producers while each is described by an expression
that the kernel can follow (`scores.py`):

* an elementwise step by a number that is the same everywhere scales the scores;
* an elementwise step whose other operand is known at live pairs (a mask adds 0, a Where keeps the
  score) disappears;
* any other added operand becomes the kernel's bias, read at the original positions;
* pairs at which the softmax is 0 are left out, as far as tests say so (`pairs.py`);
* a NaN guard behind the softmax becomes `nan_to_zero`, a mask behind it `no_keys_to_zero`, and a
  condition on rows that see no pair `no_pairs` (`row_guard.py`);
* scores, or the probabilities, that are quantised and dequantised are rounded by the kernel, and
  scores that a hyperbolic tangent caps are capped by it (`steps.py`);
* a score beside those of the keys, which has no value, is the kernel's sink (`weights.py`).

The skipped terms are exact zeros of the second contraction, for finite v.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import ZN, is_zero
from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit
from pitc.ir.nodes import attribute, input_names
from pitc.ir.plans.ops import Attention
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region, covers
from pitc.passes.facts.finite import finite_if
from pitc.passes.regions.contraction import Rows, packed_rows, read_of, to_iteration, to_operand
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.form import (
    BiasOperand,
    Form,
    FormContext,
    OffsetsOperand,
    Operand,
    PackCandidate,
    Packing,
    PairsOperand,
    WholeOperand,
    static_shape,
)
from pitc.passes.regions.layout import layout_of, wide
from pitc.passes.regions.pairs import program_fields
from pitc.passes.regions.score_walk import walk
from pitc.passes.regions.scores import Scores, is_factor, live_pairs, rest_on_zeros
from pitc.passes.regions.steps import Steps
from pitc.passes.regions.stored import Heads, Stored, best_ways, ways_to_read


def attention(site: PackCandidate) -> Form | Refusal:
    """The attention node that computes a contraction of softmaxed scores with packed values: its
    packing ranges over queries, and keys over the same domain or over another one.
    """
    refusal = site.refuse(Code.AXIS_NOT_PIT, "the packed axis is contracted over")
    if not site.expr.reduced or len(site.node.inputs) != 2:
        return refusal
    if not is_plain(site.node):
        return site.refuse(Code.NO_LOWERING, "the contraction scales its result")
    same = () if site.context.domain.lives_everywhere else (site.context,)
    others = (c for c in site.beside(site.input(1)) if c is not site.context)
    for keys in (*same, *others):
        for values in packed_rows(keys.packings, site.expr, site.node, 1):
            found = _over_keys(site, keys, values)
            if isinstance(found, Form):
                return found
            deepest = found.code is Code.NO_LOWERING or refusal.code is Code.AXIS_NOT_PIT
            if deepest or not keys.domain.lives_everywhere:
                refusal = found
    return refusal


def _over_keys(site: PackCandidate, keys: FormContext, values: Rows) -> Form | Refusal:
    key_axis, read = len(site.expr.shape), read_of(site.expr, 0)
    last = values.coords[-1] if values.coords else None
    whole = last == Digit(key_axis, ONE, site.expr.extents[key_axis])
    if read is None or not whole or values.coords[:-1] != site.out.coords[:-1]:
        return site.refuse(
            Code.LAYOUT, "queries and values do not share their sequence axis", site.input(1)
        )
    query_coords, key_coords = to_operand(site.out.coords, read), to_operand(values.coords, read)
    if query_coords is None or key_coords is None:
        return site.refuse(
            Code.LAYOUT, "the probabilities lack the query or the key axis", site.input(0)
        )
    pairs = live_pairs(site.context.domain, keys.domain, query_coords, key_coords)
    if pairs is None:
        return site.refuse(Code.NO_FACT, "the live rows cannot be described")
    found = _at_pairs(site, keys, values, Scores(site.input(0), query_coords, key_coords, pairs))
    if found is None:
        guarded = Scores(site.input(0), query_coords, key_coords, pairs, may_be_uniform=False)
        found = _at_pairs(site, keys, values, guarded)
    assert found is not None
    return found


def _at_pairs(
    site: PackCandidate, keys: FormContext, values: Rows, scores: Scores
) -> Form | Refusal | None:
    """The node, once pairs are known; None where rows of hidden pairs would not be uniform."""
    read = read_of(site.expr, 0)
    assert read is not None
    zero = rest_on_zeros(site.context, keys.domain, scores)
    if zero is None:
        return site.refuse(Code.NO_FACT, "the left operand is not zero at dead keys", site.input(0))
    scores.zero = zero
    heads = _heads_of(scores, site.context.graph)
    rest = wide(site.out.layout.rest)
    last_is_size = site.out.layout.rest[-1:] == rest[-1:]
    if heads is None or to_iteration(heads, read) != (rest[:-1] if last_is_size else rest):
        return site.refuse(
            Code.LAYOUT, "the probabilities have other heads than the output", site.input(0)
        )
    of_values = Heads(
        values.coords,
        rest[:-1] if last_is_size else rest,
        site.out.layout.rest[-1] if site.out.layout.rest else Digit(0, ONE, ONE),
    )
    ways = _ways(keys, site.expr, values, of_values, operand=1, scaled=False)
    if not ways:
        return site.refuse(
            Code.LAYOUT, "the values have other heads than the output", site.input(1)
        )
    by_head = _hides_by_head(site, keys, scores, heads)
    stop = walk(site, keys.domain, scores)
    if scores.uniform and (stop is not None or scores.bias):
        return None
    if stop is None and scores.nan_to_zero and not _finite_at_live_rows(keys, values.packing):
        stop = site.refuse(
            Code.NO_FACT, "0 times a value that may be infinite is not 0", site.input(1)
        )
    if stop is None and by_head and not scores.hidden:  # a row for each head can tell them apart
        stop = site.refuse(Code.LAYOUT, "each head hides other pairs", site.input(0))
    return stop if stop is not None else _form(site, keys, scores, ways)


def _hides_by_head(
    site: PackCandidate, keys: FormContext, scores: Scores, heads: tuple[Digit, ...]
) -> bool:
    """True where pairs of all rows are hidden by tests that look at both the key and the head."""
    graph, dims = site.context.graph, {h.dim for h in heads}
    key = scores.key_coords[-1].dim
    everywhere = site.context.domain.lives_everywhere and keys.domain.lives_everywhere
    zeros = (f for f in graph[site.input(0)].fills if is_zero(f.constant) or f.constant == ZN)
    return bool(graph.target.hides_pairs and everywhere) and any(
        key in t.dims() and t.dims() & dims for f in zeros for t in f.region
    )


def _ways(
    keys: FormContext, expr: TensorExpr, rows: Rows, read: Heads, *, operand: int, scaled: bool
) -> list[Stored]:
    """All ways in which an operand of a contraction may be read, whose rows are known."""
    found = read_of(expr, operand)
    assert found is not None
    return ways_to_read(keys, rows.packing, found.index, read, scaled=scaled)


def _finite_at_live_rows(context: FormContext, packing: Packing) -> bool:
    """A row of weights that are all 0 gives 0, as the kernel does, for finite values only; those of
    dead keys are finite by their own dead facts.
    """
    finite = finite_if(context.graph, packing.name)
    cases = context.domain.live_cases(packing.coords)
    return (
        finite is not None
        and cases is not None
        and all(covers(finite, Region((c,))) for c in cases)
    )


def head_digits(graph: Graph, name: str, both: Coords) -> tuple[Digit, ...] | None:
    """The digits of scores that are no coordinates of queries or keys, and have more than one
    value.
    """
    shape = graph[name].shape
    layout = None if shape is None or len(set(both)) != len(both) else layout_of(shape, both)
    return None if layout is None else wide(layout.rest)


def _heads_of(scores: Scores, graph: Graph) -> tuple[Digit, ...] | None:
    return head_digits(graph, scores.name, (*scores.query_coords, scores.key_coords[-1]))


def _form(
    site: PackCandidate, keys: FormContext, scores: Scores, of_values: Sequence[Stored]
) -> Form | Refusal:
    """The PIT node, once the walk has reached the first contraction."""
    graph = site.context.graph
    expr, node = graph[scores.name].expr, graph[scores.name].producer
    assert expr is not None and node is not None
    if not is_plain(node):
        return site.refuse(
            Code.NO_LOWERING, "the scores are scaled by their contraction", scores.name
        )
    heads = _heads_of(scores, site.context.graph)
    reduced = Digit(len(expr.shape), ONE, expr.reduced[0]) if expr.reduced else None
    if heads is None or reduced is None or len(expr.reduced) != 1:
        return site.refuse(Code.LAYOUT, "the scores are not a sum over one axis", scores.name)
    rest = wide((*heads, reduced))
    queries = _side(site.context, expr, node, 0, scores.query_coords, rest)
    of_keys = _key_ways(keys, expr, node, Heads(scores.key_coords, wide(heads), reduced))
    if queries is None or not of_keys:
        text, names = "queries or keys are not packed over the same rows", input_names(node)
        return site.refuse(Code.NO_FACT, text, names[queries is not None])
    best = best_ways(of_keys, of_values)
    if best is None:
        return site.refuse(Code.LAYOUT, "keys and values have different heads", scores.name)
    key, values = best
    queries, q_scale = _unscaled(site.context, queries)
    key, k_scale = _key_unscaled(keys, key)
    scale = float(scores.scale * q_scale * k_scale)
    for factor in (scale, 1.0 if scores.inner is None else scores.inner.scale):
        if not is_factor(factor):
            return site.refuse(Code.NO_LOWERING, f"scores are multiplied by {factor}", scores.name)
    static = static_shape((*site.out.layout.rest_shape, reduced.extent))
    if static is None:
        return site.refuse(Code.DYNAMIC_DIM, "heads or head size are not static")
    if len(static) < 2:
        return site.refuse(Code.LAYOUT, "the values have no head-size dimension")
    *head_sizes, dv, d = static
    dtypes = {graph.dtype(p.name) for p in (queries, key, values)}
    taken = [t for t in graph.target.types if {t.numpy()} == dtypes]
    if not taken:
        return site.refuse(Code.NO_LOWERING, f"attention is not lowered for {_listed(dtypes)}")
    longest = graph.target.longest_head
    wrong = [n for n in (d, dv) if not 0 < n <= longest]
    if wrong:
        return site.refuse(Code.NO_LOWERING, f"head size {wrong[0]} is not in 1..{longest}")
    if scores.sinks not in (None, 1, prod(head_sizes)):
        return site.refuse(
            Code.NO_LOWERING, "a sink of each head, whose rows are apart", scores.sink or ""
        )
    hidden, lists = tuple(scores.hidden), graph.target.hides_pairs == "lists"
    inner, weight = scores.inner, scores.weight_steps
    score = inner.function if inner is not None and isinstance(inner.function, Steps) else None
    plan = Attention(
        pairs=bool(hidden) and lists,
        bias=bool(scores.bias),
        sinks=scores.sinks,
        d=d,
        dv=dv,
        dtype=str(taken[0].numpy()),
        heads=prod(head_sizes),
        group=key.group if key.group > 1 else None,
        whole=key.whole,
        nan_to_zero=scores.nan_to_zero,
        no_keys_to_zero=scores.no_keys_to_zero,
        no_pairs="mean" if scores.uniform else "nan" if scores.guard is None else "zero",
        scale=scale,
        score_cap=inner.scale if inner is not None and score is None else None,
        score_step=None if score is None else score.step,
        score_scale=inner.scale if inner is not None and score is not None else None,
        score_below=None if score is None else score.below,
        score_above=None if score is None else score.above,
        weight_step=None if weight is None else weight.step,
        weight_above=None if weight is None else weight.above,
    )
    if hidden and not lists:
        plan = replace(plan, **program_fields(hidden))
    return Form(
        (site.out,),
        _operands(plan, site.context.domain, keys.domain, scores, (queries, key, values)),
        "EPContext",
        plan=plan,
        absorbs=(*scores.absorbs, node, *key.nodes, *values.nodes),
        rests_on=tuple(scores.rests_on),
        factors=tuple(scores.factors),
    )


def _operands(
    plan: Attention,
    queries: Domain,
    keys: Domain,
    scores: Scores,
    read: tuple[Packing, Stored, Stored],
) -> tuple[Operand, ...]:
    """The operands of the plan, in its order: what is no other one belongs to hidden pairs."""
    rows, key, values = read
    found: dict[str, Operand] = {
        "q": rows.operand(),
        "k": key.operand(),
        "v": values.operand(),
        "q_offsets": OffsetsOperand(queries, "offsets"),
        "k_offsets": OffsetsOperand(keys, "offsets"),
        "bias": BiasOperand(tuple(scores.bias)),
        "sink": WholeOperand(scores.sink or "", (-1,)),
        "q_coords": OffsetsOperand(queries, "coords"),
        "k_coords": OffsetsOperand(keys, "coords"),
        "live": OffsetsOperand(keys, "live"),
    }
    hidden = tuple(scores.hidden)
    return tuple(
        found.get(name) or PairsOperand(queries, keys, hidden, name) for name in plan.operands
    )


def _key_ways(keys: FormContext, expr: TensorExpr, node: ir.Node, read: Heads) -> list[Stored]:
    """All ways in which keys may be read, by the rows of the first contraction's right operand."""
    for rows in packed_rows(keys.packings, expr, node, 1):
        if rows.coords == read.coords:
            ways = _ways(keys, expr, rows, read, operand=1, scaled=True)
            if ways:
                return ways
    return []


def _key_unscaled(keys: FormContext, key: Stored) -> tuple[Stored, float]:
    """Keys without the numbers that they are multiplied by, and these."""
    if key.rows is None or key.group > 1:
        return key, key.scale
    rows, scale = _unscaled(keys, key.rows)
    return replace(key, name=rows.name, rows=rows), scale * key.scale


def _listed(dtypes: set[np.dtype]) -> str:
    return " and ".join(sorted(d.name for d in dtypes))


def is_plain(node: ir.Node) -> bool:
    """False for a contraction that multiplies its sums by a number."""
    return bool(attribute(node, "alpha", 1.0) == 1.0)


def _side(
    context: FormContext,
    expr: TensorExpr,
    node: ir.Node,
    operand: int,
    coords: Coords,
    rest: tuple[Digit, ...],
) -> Packing | None:
    """The packing of one operand of the first contraction with the given coordinates, heads first
    and head size last.
    """
    for rows in packed_rows(context.packings, expr, node, operand):
        if rows.coords == coords and rows.rest == rest:
            return rows.packing
    return None


def _unscaled(context: FormContext, packing: Packing) -> tuple[Packing, float]:
    """Step over multiplications by one number: a sum of products is linear."""
    graph, scale = context.graph, 1.0
    while (node := graph[packing.name].producer) is not None:
        if node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
            break
        names = [v.name if v is not None and v.name is not None else "" for v in node.inputs]
        left, right = (graph.splat(n) for n in names)
        if right is not None and is_factor(right):
            source, factor = names[0], right if node.op_type == "Mul" else 1 / right
        elif node.op_type == "Mul" and left is not None and is_factor(left):
            source, factor = names[1], left
        else:
            break
        same = [p for p in context.packings(source) if p.coords == packing.coords]
        if not same or graph[source].shape != graph[packing.name].shape:
            break
        packing, scale = same[0], scale * factor
    return packing, scale
