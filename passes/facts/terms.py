"""What a softmax adds up: scores, masks and other terms, and which of them are known to be bounded.

    z[q, k] = s[q, k] + mask[q, k] + bias[q, k]          p = softmax of z over k

p[q, k] is exactly 0 where z[q, k] is far below some other term of its row. To say so, something
must be known of *every* term: nothing follows from a term of which nothing is known. There are
three ways:

* s is a raw score, and named as such in the report (`SCORE`: assumed to be at most 1000 in
  magnitude): the only sum of products that reaches the softmax, or one of two run-time values, or
  of one that is more than an input seen through constants (so no mask turned by a matrix);
* the term is known: a constant, a position, a function with bounded values, what a fact says of it;
* else it is tested when the model runs, by its own elements: `|bias[q, k]| < 1000` (`TAME`).

The inequality behind the thresholds is in `docs/theory.md`, section 7.
"""

from collections.abc import Iterable

import onnx_ir as ir

from pitc.ir.constant import (
    SCORE,
    TAME,
    FillFact,
    Number,
    Range,
    is_bounded,
    is_number,
    is_score,
)
from pitc.ir.expr import Combine, TensorExpr, sums_products
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE
from pitc.ir.nodes import input_names, output_names
from pitc.ir.region import EVERYWHERE, MAX_TESTS, Region, covered
from pitc.passes.facts.seeds import own
from pitc.passes.rules.record import operator_of

MOST = 6e4  # of a finite number, in the smallest type


def note_terms(graph: Graph) -> None:
    """Note the terms, values that reach a softmax element by element, and the scores, the sums of
    products among them that are raw scores.

    Args:
        graph: The derived graph.
    """
    for node in reversed(graph.nodes):
        expr = graph[node.outputs[0].name or ""].expr
        if expr is None or not _leads_on(graph, node, expr):
            continue
        for name in input_names(node):
            if is_float(graph, name):
                graph[name].term = True
    shared = _shared_softmaxes(graph)
    data, plain = _sources(graph)
    for node in graph.nodes:
        for name in output_names(node):
            value, expr = graph[name], graph[name].expr
            if not value.term or expr is None or not sums_products(expr):
                continue
            view = NodeView(graph, node)
            factors = {view.name(r.operand) for r in expr.reads if r.operand < 2} & data
            value.score = name not in shared or len(factors) > 1 or not factors <= plain


def _leads_on(graph: Graph, node: ir.Node, expr: TensorExpr) -> bool:
    """True for a softmax, and for what reaches one through this node."""
    if expr.combine is Combine.SOFTMAX:
        return True
    reached = any(graph[name].term for name in output_names(node))
    return reached and _passes(NodeView(graph, node), expr)


def _shared_softmaxes(graph: Graph) -> set[str]:
    """Values that reach a softmax which another sum of products reaches as well."""
    sums: dict[str, frozenset[str]] = {}  # that a value consists of: two are enough
    shared: set[str] = set()
    for node in graph.nodes:
        for name in output_names(node):
            expr = graph[name].expr
            if expr is None:
                continue
            found = [sums.get(x, frozenset()) for x in input_names(node)]
            passing = frozenset[str]().union(*found) if _passes(NodeView(graph, node), expr) else ()
            sums[name] = frozenset({name} if sums_products(expr) else sorted(passing)[:2])
    for node in reversed(graph.nodes):
        expr = graph[node.outputs[0].name or ""].expr
        if expr is None or not _leads_on(graph, node, expr):
            continue
        names = input_names(node)
        if expr.combine is Combine.SOFTMAX:
            shared.update(n for n in names if len(sums.get(n, ())) > 1)
        elif not shared.isdisjoint(output_names(node)):
            shared.update(names)
    return shared


def _passes(view: NodeView, expr: TensorExpr) -> bool:
    """True where what is known of operands tells how large results are."""
    if expr.combine is Combine.MOVE:
        return True
    row = operator_of(view).function
    if operator_of(view).elsewhere is not None:
        return True
    return expr.combine is Combine.MAP and (row is None or row.image is None)


def is_float(graph: Graph, name: str) -> bool:
    """True for a value of floats."""
    dtype = graph[name].dtype
    return dtype is not None and dtype.kind == "f"


def _sources(graph: Graph) -> tuple[set[str], set[str]]:
    """Values that depend on elements of inputs, and those of them that may be no more than an input
    seen through linear and elementwise steps by constants: a mask, perhaps.

    An embedding, a normalised row and a product of two such values are more.
    """
    data = set(graph.inputs)
    plain = set(graph.inputs)
    for node in graph.nodes:
        names = input_names(node)
        for output in output_names(node):
            expr = graph[output].expr
            if data.isdisjoint(names) or (expr is not None and not expr.reads):
                continue
            data.add(output)
            if expr is None or not _is_more(NodeView(graph, node), expr, data, plain):
                plain.add(output)
    return data, plain


def _is_more(view: NodeView, expr: TensorExpr, data: set[str], plain: set[str]) -> bool:
    """A node's result is more than an input seen through linear and elementwise steps."""
    if expr.combine in (Combine.SOFTMAX, Combine.NORMALISE):
        return True
    names = input_names(view.node)
    if sums_products(expr) and sum(name in data for name in names) > 1:
        return True
    # of rows of a table the places are no part
    found = [view.name(r.operand) for r in expr.reads if r.computed]
    return plain.isdisjoint(found or names)


def raw_score(view: NodeView, expr: TensorExpr, finite: Region | None) -> list[FillFact]:
    """A contraction that reaches a softmax is assumed to be bounded, where it is finite.

    What a third operand adds is no part of the assumption.

    Args:
        view: The node.
        expr: The expression of its first output.
        finite: Where that is finite; None for nowhere.
    """
    biased = any(r.operand > 1 for r in expr.reads)
    if not view.graph[view.out()].score or finite is None or biased:
        return []
    return [FillFact(finite, SCORE)]


def bounded_term(view: NodeView) -> list[FillFact]:
    """A term is no larger than its operator lets it be, unless that is all of a small type.

    DequantizeLinear of uint8, scale 0.1, zero point 128   ->   -12.85..12.85

    What a dead element of it is replaced by is no larger either, as for a score.
    """
    known = operator_of(view).magnitude
    most = known(view) if known is not None and view.graph[view.out()].term else None
    if most is None or not most < MOST:
        return []
    return [FillFact(EVERYWHERE, Range(-most, most, assumed=True))]


def scaled_score(view: NodeView, expr: TensorExpr) -> FillFact | None:
    """A score times, or divided by, one unknown number is a score again: the assumption is about
    what the softmax gets. So it is by a number that makes it smaller; others are no scale.
    """
    graph = view.graph
    operator = operator_of(view)
    if not operator.powers:
        return None
    names = [view.name(r.operand) for r in expr.reads]
    product = operator.multiplies
    for name, other in (names, names[::-1]) if product else (names,):
        if not _is_one_number(graph, other) or not _shrinks(product, known_number(graph, other)):
            continue
        scores = [f for f in graph[name].fills if f.constant == SCORE]
        if scores and graph[name].shape == expr.shape:
            return FillFact(scores[0].region, SCORE)
    return None


def _is_one_number(graph: Graph, name: str) -> bool:
    shape = graph[name].shape
    return shape is not None and all(e == ONE for e in shape)


def _shrinks(factor: bool, number: Number | None) -> bool:
    if number is None:
        return True
    return abs(number) <= 1 if factor else abs(number) >= 1


def known_number(graph: Graph, name: str) -> Number | None:
    """The number that all elements of a value are; None where that is not known."""
    found = (f.constant for f in graph[name].fills if not f.region)
    return next((c for c in found if is_number(c)), None)


def add_tests(view: NodeView, expr: TensorExpr) -> None:
    """Let those operands of a sum towards a softmax be tested when the model runs of which too
    little is known. Of a score nothing is tested: it need not be computed. Nor of what a number is
    added to only: that is a step on the way to a term.
    """
    graph = view.graph
    if not graph[view.out()].term or not operator_of(view).weights:
        return
    names = [view.name(r.operand) for r in expr.reads]
    if any(known_number(graph, name) is not None for name in names):
        return
    for name in names:
        if graph.is_constant(name):
            continue
        facts = graph[name].fills
        if any(is_score(f.constant) for f in facts) or _leaves_no_gap(facts):
            continue
        found = own(graph, name, "small", True, TAME)
        graph[name].fills = [
            *facts,
            FillFact(Region(found.region, graph.note_bit(name)), TAME),
        ]


def _leaves_no_gap(facts: Iterable[FillFact]) -> bool:
    """True where every element is bounded, but for those that fail a test of this kind already."""
    bounded = [f for f in facts if is_bounded(f.constant)]
    return covered([[t for t in f.region if t.pred != "small"] for f in bounded], MAX_TESTS)
