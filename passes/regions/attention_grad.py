"""Gradients of attention over live keys: three contractions, run as one node on packed rows.

    s = scale * q k^T + bias      p = softmax(s)      y = p v                     (`attention.py`)
    dv[k] = sum_q p[q, k] * g[q]      w = p * (d - sum_k p * d), d = g v^T
    dq[q] = sum_k c * w[q, k] * k[k]            dk[k] = sum_q c * w[q, k] * q[q]

Each of the contractions has a form by itself. It goes back from its left or right operand, over
transpositions, factors and masks, to the weights or to their gradient (`softmax_grad.py`), and from
the weights on as attention does. Forms of the same operands are one node, which computes the
probabilities anew: neither they nor their gradient are written to memory.

The terms that are left out are 0 by facts: of the weights' gradient at dead keys (dq) and at dead
queries (dk), of g at dead queries, where the weights are finite (dv).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import isclose, prod

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import ZN
from pitc.ir.expr import Combine, TensorExpr
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Coords, Digit, Poly, total_of
from pitc.ir.nodes import input_names
from pitc.ir.plans.ops import AttentionGrad
from pitc.ir.refusal import Code, Refusal
from pitc.ir.region import Region
from pitc.passes.facts.finite import finite_if
from pitc.passes.regions.attention import head_digits, is_plain
from pitc.passes.regions.contraction import (
    Rows,
    packed_rows,
    read_of,
    to_iteration,
    to_operand,
    to_source,
)
from pitc.passes.regions.domain import Domain, covering
from pitc.passes.regions.form import (
    BiasOperand,
    BiasTerm,
    Form,
    FormContext,
    OffsetsOperand,
    Operand,
    PackCandidate,
    Packing,
    PairsOperand,
    static_shape,
    zero_facts,
)
from pitc.passes.regions.layout import wide
from pitc.passes.regions.pairs import program_fields
from pitc.passes.regions.score_walk import walk
from pitc.passes.regions.scores import Scores, is_factor, known_at_pairs, live_pairs, rest_on_zeros
from pitc.passes.regions.softmax_grad import (
    SoftmaxGradient,
    are_weights,
    gradients_of,
    softmax_gradient,
)


class Part(Enum):
    """Which gradient a contraction is, by the number of the node's output."""

    QUERIES = 0
    KEYS = 1
    VALUES = 2


@dataclass(slots=True)
class _Way:
    """The way back from an operand of a contraction.

    Args:
        name: The value reached.
        digits: Digits of its dimensions, those that the way began with.
        factor: What it is multiplied by.
        masks: Nodes that replace some of it by 0, and the operand that is 0.
        nodes: All nodes that were passed.
    """

    name: str
    digits: tuple[Digit, ...]
    factor: float
    masks: list[tuple[ir.Node, TensorExpr, str]]
    nodes: list[ir.Node]


@dataclass(frozen=True, slots=True)
class _Sides:
    """Queries and keys of a contraction.

    Args:
        queries: What the rows of queries are.
        keys: What those of keys are.
        q_coords: Coordinates of queries, as digits of the weights.
        k_coords: Those of keys.
        heads: The other digits of the weights.
        rows: The operand beside the weights.
        part: Which gradient it is.
        gradient: The gradient of the weights' softmax.
        way: From the operand to it, or to the weights.
    """

    queries: FormContext
    keys: FormContext
    q_coords: Coords
    k_coords: Coords
    heads: tuple[Digit, ...]
    rows: Rows
    part: Part
    gradient: SoftmaxGradient
    way: _Way


def attention_gradient(site: PackCandidate) -> Form | Refusal:
    """The node of which a contraction is one of the three results: its packing ranges over queries
    for that of queries, and over keys for those of keys and of values.
    """
    refusal = site.refuse(Code.AXIS_NOT_PIT, "it is no gradient of attention")
    expr = site.expr
    plain = len(site.node.inputs) == 2 and len(expr.reduced) == 1 and is_plain(site.node)
    if not plain or site.context.domain.lives_everywhere:
        return refusal
    for operand in (0, 1):
        for sides in _sides(site, operand):
            found = _form(site, sides)
            if isinstance(found, Form):
                return found
            refusal = found
    return refusal


def _sides(site: PackCandidate, operand: int) -> Iterator[_Sides]:
    """What queries and keys may be, where an operand is weights, or their gradient."""
    graph, expr = site.context.graph, site.expr
    read, other = read_of(expr, operand), site.input(1 - operand)
    coords = None if read is None else to_operand(site.out.coords, read)
    if read is None or not coords or not _may_weigh(graph, site.input(operand)):
        return
    last = Digit(len(expr.shape), ONE, expr.reduced[0])
    wanted = (*site.out.coords[:-1], last)
    contexts = {id(c): c for c in (site.context, *site.beside(other))}
    for context in contexts.values():
        summed = to_operand(wanted, read)
        for rows in packed_rows(context.rows, expr, site.node, 1 - operand):
            if summed is not None and rows.coords == wanted:
                yield from _of_rows(site, operand, (coords, summed), context, rows)


def _of_rows(
    site: PackCandidate, operand: int, at: tuple[Coords, Coords], context: FormContext, rows: Rows
) -> Iterator[_Sides]:
    """The sides, from the coordinates of the result's rows and of the rows that are summed."""
    graph, name = site.context.graph, site.input(operand)
    heads = head_digits(graph, name, (*at[0], at[1][-1]))
    read = read_of(site.expr, operand)
    assert read is not None
    rest = wide(site.out.layout.rest)
    same = heads is not None and rest[:-1] == to_iteration(heads, read) == rows.rest[:-1]
    if heads is None or not same or rest[-1:] != rows.rest[-1:]:
        return
    way = _way_back(graph, name, (*at[0], *at[1], *heads))
    size = len(at[0])
    mine, summed, heads = way.digits[:size], way.digits[size : 2 * size], way.digits[2 * size :]
    for keys, part in ((summed, Part.QUERIES), (mine, Part.KEYS), (mine, Part.VALUES)):
        queries = mine if part is Part.QUERIES else summed
        of_queries, of_keys = site.context, context
        if part is not Part.QUERIES:
            of_queries, of_keys = context, site.context
        for gradient in _gradients(graph, way, keys[-1], part):
            sides = (of_queries, of_keys, queries, keys, heads)
            yield _Sides(*sides, rows, part, gradient, way)


def _gradients(graph: Graph, way: _Way, key: Digit, part: Part) -> Iterator[SoftmaxGradient]:
    shape = graph[way.name].shape or ()
    if key != Digit(key.dim, ONE, shape[key.dim]):
        return
    if part is not Part.VALUES:
        found = softmax_gradient(graph, way.name, key.dim)
        if found is not None:
            yield found
    elif are_weights(graph, way.name, key.dim):
        yield from gradients_of(graph, way.name, key.dim)


def _may_weigh(graph: Graph, name: str) -> bool:
    """False for what no step made that weights come from."""
    expr = graph[name].expr
    return expr is not None and expr.combine in (Combine.MAP, Combine.MOVE, Combine.SOFTMAX)


def _way_back(graph: Graph, name: str, digits: tuple[Digit, ...]) -> _Way:
    """Over what turns a value, multiplies it by a number, or puts zeros in it."""
    way = _Way(name, digits, 1.0, [], [])
    while True:
        node, expr = graph[way.name].producer, graph[way.name].expr
        if node is None or expr is None or node.domain:
            return way
        turned = None if way.masks else _turned(graph, way.name, way.digits)
        names = input_names(node)
        if turned is not None:
            way.name, way.digits = turned
        elif node.op_type in ("Mul", "Div") and (found := _number(graph, node)) is not None:
            operand, number = found
            way.name, way.factor = names[operand], way.factor * number
        elif node.op_type == "Where" and (kept := _kept(graph, way.name, names)) is not None:
            way.masks.append((node, expr, names[3 - kept]))
            way.name = names[kept]
        else:
            return way
        way.nodes.append(node)


def _turned(graph: Graph, name: str, digits: Coords) -> tuple[str, Coords] | None:
    """What a value turns, or gives in other dimensions, and digits there; None of other steps."""
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or expr.combine is not Combine.MOVE or len(expr.reads) != 1:
        return None
    source = input_names(node)[expr.reads[0].operand]
    shape = graph[source].shape
    if shape is None or expr.reads[0].within or total_of(shape) != total_of(expr.shape):
        return None
    found = to_source(digits, expr, shape)
    return None if found is None else (source, found)


def _number(graph: Graph, node: ir.Node) -> tuple[int, float] | None:
    """The operand that a node multiplies by a number, and that number."""
    left, right = (graph.splat(n) for n in input_names(node))
    if right is not None and is_factor(right):
        return 0, float(right) if node.op_type == "Mul" else 1 / float(right)
    if node.op_type == "Mul" and left is not None and is_factor(left):
        return 1, float(left)
    return None


def _kept(graph: Graph, name: str, names: list[str]) -> int | None:
    """Which operand a Where gives, in the shape of its result, where it does not give 0."""
    for kept in (1, 2):
        other = graph.splat(names[3 - kept])
        if other == 0 and graph[names[kept]].shape == graph[name].shape:
            return kept
    return None


def _form(site: PackCandidate, sides: _Sides) -> Form | Refusal:
    graph, gradient = site.context.graph, sides.gradient
    weights = gradient.weights
    pairs = live_pairs(sides.queries.domain, sides.keys.domain, sides.q_coords, sides.k_coords)
    if pairs is None:
        return site.refuse(Code.NO_FACT, "the live rows cannot be described")
    of_queries = replace(site, context=sides.queries)
    scores = Scores(weights, sides.q_coords, sides.k_coords, pairs, may_be_uniform=False)
    if not rest_on_zeros(sides.queries, sides.keys.domain, scores):
        return site.refuse(Code.NO_FACT, "the weights are not zero at dead keys", weights)
    scores.zero = True
    stop = walk(of_queries, sides.keys.domain, scores)
    if stop is None:
        stop = _unsupported(site, scores) or _masks(of_queries, sides, scores)
    if stop is not None:
        return stop
    rests_on = _zeros(sides)
    if rests_on is None:
        return site.refuse(Code.NO_FACT, "terms of dead rows are not zero", sides.way.name)
    read = _operands_read(site, sides, scores)
    if isinstance(read, Refusal):
        return read
    rows, d, dv = read
    wanted = 1.0 if sides.part is Part.VALUES else scores.scale
    factor = sides.way.factor * (1.0 if sides.part is Part.VALUES else gradient.scale)
    if not isclose(factor, wanted, rel_tol=1e-6):
        text = f"the gradient is multiplied by {factor}, scores by {scores.scale}"
        return site.refuse(Code.NO_LOWERING, text)
    sizes, heads = static_shape((d, dv)), static_shape(tuple(h.extent for h in sides.heads))
    if sizes is None or heads is None or static_shape(site.out.layout.rest_shape) is None:
        return site.refuse(Code.DYNAMIC_DIM, "heads or head size are not static")
    longest = graph.target.longest_head
    if not all(0 < n <= longest for n in sizes):
        return site.refuse(Code.NO_LOWERING, f"head sizes {sizes} are not in 1..{longest}")
    if any(graph.dtype(p.name) != np.float32 for p in rows.values()):
        return site.refuse(Code.NO_LOWERING, "gradients of attention are lowered for float32 only")
    hidden, lists = tuple(scores.hidden), graph.target.hides_pairs == "lists"
    plan = AttentionGrad(
        d=sizes[0],
        dv=sizes[1],
        heads=prod(heads),
        scale=float(scores.scale),
        bias=bool(scores.bias),
        pairs=bool(hidden) and lists,
        floor=_floor(sides, scores),
        no_pairs="nan" if scores.guard is None else "zero",
        dtype="float32",
        **({} if lists or not hidden else program_fields(hidden)),
    )
    products = (scores.name, *(name for name, _ in _turns(graph, gradient.by_weights)))
    made = (graph[name].producer for name in products)
    passed = (*sides.way.nodes, *gradient.nodes, *scores.absorbs, *made)
    return Form(
        (site.out,),
        _operands(plan, sides, scores, rows),
        "EPContext",
        plan=plan,
        part=sides.part.value,
        absorbs=tuple(node for node in passed if node is not None),
        rests_on=(*scores.rests_on, *rests_on),
    )


def _unsupported(site: PackCandidate, scores: Scores) -> Refusal | None:
    """Scores of which the kernel has no gradient."""
    steps = (scores.weight_steps, scores.inner, scores.sink)
    if any(s is not None for s in steps) or scores.factors or scores.nan_to_zero or scores.uniform:
        text = "scores or weights go through steps that gradients are not lowered for"
        return site.refuse(Code.NO_LOWERING, text, scores.name)
    return None


def _masks(site: PackCandidate, sides: _Sides, scores: Scores) -> Refusal | None:
    """Masks of the gradient keep what is at pairs whose scores no mask replaces: where others are
    kept, weights are 0, and so is it; but in a row of replaced scores (`_floor`).
    """
    weights, facts = sides.gradient.weights, site.context.graph[sides.gradient.weights].fills
    if sides.way.masks and any(f.constant == ZN for f in facts):
        return site.refuse(Code.NO_FACT, "NaN of a row without keys may be masked", weights)
    for node, expr, zero in sides.way.masks:
        names = input_names(node)
        known = known_at_pairs(site, scores, expr, 0, names[0])
        if any(t.name == names[0] and _keeps(t, names, zero) for t in scores.bias):
            continue
        if known is None or names[1 if known else 2] == zero:
            return site.refuse(Code.NO_FACT, "the gradient of live pairs may be masked", names[0])
    return None


def _keeps(term: BiasTerm, names: list[str], zero: str) -> bool:
    """True where a mask of the gradient puts 0 where the term of the scores replaces them."""
    return term.low is not None and names[1 if term.low_when else 2] == zero


def _floor(sides: _Sides, scores: Scores) -> float | None:
    """Below what the scores of a row are those that a mask has replaced, if it masks the gradient,
    too: others are far above, as they are bounded.
    """
    lows = [t.low for t in scores.bias if t.low is not None]
    if not sides.way.masks or not lows:
        return None
    return max(lows[0] / 2, -float(np.finfo(np.float32).max))


def _zeros(sides: _Sides) -> list[Region] | None:
    """Facts which say that terms are 0 where a query or a key of them is dead."""
    queries, keys, gradient = sides.queries, sides.keys, sides.gradient
    graph, at_q, at_k = queries.graph, sides.q_coords, sides.k_coords
    if sides.part is Part.VALUES:
        packing = sides.rows.packing
        zero = covering(packing.domain, packing.coords, zero_facts(graph, packing.name))
        finite = finite_if(graph, gradient.weights)
        finite = None if finite is None else covering(queries.domain, at_q, [finite])
        return None if zero is None or finite is None else [zero]
    of_product = Scores(gradient.product, at_q, at_k, [])
    of_sum = Scores(sides.way.name, at_q, at_k, [])
    summed = rest_on_zeros(queries, keys.domain, of_product)
    if sides.part is Part.QUERIES:
        terms = rest_on_zeros(queries, keys.domain, of_sum)
    else:
        of_sum = replace(of_sum, query_coords=at_k, key_coords=at_q)
        terms = rest_on_zeros(keys, queries.domain, of_sum)
    return [*of_product.rests_on, *of_sum.rests_on] if summed and terms else None


def _operands_read(
    site: PackCandidate, sides: _Sides, scores: Scores
) -> tuple[dict[str, Packing], Poly, Poly] | Refusal:
    """Rows of q, k, v and g, and how long a row of a head of keys is, and of values."""
    graph, found, sizes = site.context.graph, dict[str, Packing](), list[Poly]()
    by_weights = sides.gradient.by_weights
    products = (
        ("qk", scores.name, scores.query_coords, scores.key_coords),
        ("gv", by_weights, sides.q_coords, sides.k_coords),
    )
    for operands, value, of_q, of_k in products:
        name, at = _turns(graph, value, (*of_q, *of_k))[-1]
        at_q, at_k = at[: len(of_q)], at[len(of_q) :]
        expr, node = graph[name].expr, graph[name].producer
        heads = head_digits(graph, name, (*at_q, at_k[-1]))
        sums = expr is not None and expr.combine is Combine.PRODUCT and len(expr.reduced) == 1
        if expr is None or node is None or not sums or heads is None or not is_plain(node):
            return site.refuse(Code.LAYOUT, "a product of rows of heads is none", name)
        last = Digit(len(expr.shape), ONE, expr.reduced[0])
        sides_read = ((sides.queries, at_q), (sides.keys, at_k))
        for k, (operand, (context, coords)) in enumerate(zip(operands, sides_read, strict=True)):
            rest = wide((*heads, last))
            rows = packed_rows(context.rows, expr, node, k)
            same = (r.packing for r in rows if r.coords == coords and r.rest == rest)
            packing = next(same, None)
            if packing is None:
                text = "an operand of attention is not packed over its rows"
                return site.refuse(Code.NO_FACT, text, input_names(node)[k])
            found[operand] = _first_of_same_rows(context, packing)
        sizes.append(expr.reduced[0])
    beside = found[{Part.QUERIES: "k", Part.KEYS: "q", Part.VALUES: "g"}[sides.part]]
    if _rows_of(graph, beside) != _rows_of(graph, sides.rows.packing):
        return site.refuse(Code.LAYOUT, "the product is of other rows", sides.rows.packing.name)
    return found, sizes[0], sizes[1]


def _turns(graph: Graph, name: str, digits: Coords = ()) -> list[tuple[str, Coords]]:
    """A value, what it turns, what that turns and so on, with digits of each."""
    found = [(name, digits)]
    while (turned := _turned(graph, *found[-1])) is not None:
        found.append(turned)
    return found


def _first_of_same_rows(context: FormContext, packing: Packing) -> Packing:
    """The packing of the first value with these rows, which later ones turn: a node that gives
    several gradients stands where the first of them does.
    """
    size, first = len(packing.coords), packing
    for name, digits in _turns(context.graph, packing.name, _digits_of(packing))[1:]:
        for other in context.rows(name):
            if (other.coords, _digits_of(other)[size:]) == (digits[:size], digits[size:]):
                first = other
    return first


def _digits_of(packing: Packing) -> Coords:
    return (*packing.coords, *wide(packing.layout.rest))


def _rows_of(graph: Graph, packing: Packing) -> tuple[str, Coords, Domain]:
    """What packed rows are of."""
    return (*_turns(graph, packing.name, _digits_of(packing))[-1], packing.domain)


def _operands(
    plan: AttentionGrad, sides: _Sides, scores: Scores, rows: dict[str, Packing]
) -> tuple[Operand, ...]:
    """The operands of the plan, in its order."""
    queries, keys, hidden = sides.queries.domain, sides.keys.domain, tuple(scores.hidden)
    found: dict[str, Operand] = {name: packing.operand() for name, packing in rows.items()}
    found |= {
        "q_offsets": OffsetsOperand(queries, "offsets"),
        "k_offsets": OffsetsOperand(keys, "offsets"),
        "bias": BiasOperand(tuple(scores.bias)),
        "q_coords": OffsetsOperand(queries, "coords"),
        "k_coords": OffsetsOperand(keys, "coords"),
    }
    return tuple(
        found.get(name) or PairsOperand(queries, keys, hidden, name) for name in plan.operands
    )
