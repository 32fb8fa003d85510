"""The gradient of a softmax, found in elementwise steps by what they compute, in any order.

    p = softmax(s), d: the gradient of p          p * d - p * sum over keys of p * d

The steps are multiplied out to a sum of products, which is compared with that one:

    m = p * d;  w = m - p * sum(m)     ->   1 * [p, d]  - 1 * [p, sum of 1 * [p, d]]
    w = p * (d - sum(p * d)) * 2       ->   2 * [p, d]  - 2 * [p, sum of 1 * [p, d]]
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer
from pitc.ir.graph import Graph
from pitc.ir.index import ONE
from pitc.ir.nodes import first_input, first_output, input_names
from pitc.passes.regions.row_guard import guarded
from pitc.passes.regions.weights import softmax_of
from pitc.passes.rules.record import PackRule, operator_of

MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class SumOverKeys:
    """A factor of a product: the sum over keys of a value, which is a product of `factors`."""

    value: str
    factors: tuple["Factor", ...]


Factor = str | SumOverKeys
"""A value, or a sum."""
Terms = dict[tuple[Factor, ...], float]
"""Products of factors, in order, and what each of them is multiplied by."""


@dataclass(frozen=True, slots=True)
class SoftmaxGradient:
    """A value that is `scale` times the gradient of a softmax's operand.

    Args:
        weights: The softmax's result p.
        by_weights: The gradient d of that.
        product: The value p * d that is summed over keys.
        scale: The number.
        nodes: The steps.
    """

    weights: str
    by_weights: str
    product: str
    scale: float
    nodes: tuple[ir.Node, ...]


def softmax_gradient(graph: Graph, name: str, key: int) -> SoftmaxGradient | None:
    """What a value is the softmax gradient of; None where it is none.

    Args:
        graph: The analysed graph.
        name: The value.
        key: Its dimension of keys.
    """
    nodes = list[ir.Node]()
    terms = _multiplied_out(graph, name, key, nodes)
    if terms is None or len(terms) != 2:
        return None
    for outer, scale in terms.items():
        (inner,) = (t for t in terms if t != outer)
        sums = [f for f in outer if not isinstance(f, str)]
        plain = [f for f in outer if isinstance(f, str)]
        if len(sums) != 1 or len(plain) != 1 or terms[inner] != -scale:
            continue
        (weights,) = plain
        if not are_weights(graph, weights, key) or sums[0].factors != inner:
            continue
        others = [f for f in inner if f != weights]
        if len(inner) != 2 or len(others) != 1 or not isinstance(others[0], str):
            continue
        if graph[name].shape == graph[weights].shape == graph[others[0]].shape:
            product = sums[0].value
            return SoftmaxGradient(weights, others[0], product, -scale, tuple(nodes))
    return None


def are_weights(graph: Graph, name: str, key: int) -> bool:
    """True for weights of a softmax over the keys, also behind guards on rows."""
    while (kept := guarded(graph, name, key)) is not None:
        name = kept
    return softmax_of(graph, name, key) is not None


def gradients_of(graph: Graph, weights: str, key: int) -> Iterator[SoftmaxGradient]:
    """Softmax gradients that steps make of some weights."""
    seen, todo = set[ir.Node](), list(graph[weights].uses)
    while todo and len(seen) <= MOST_STEPS:
        node = todo.pop(0)
        expr = graph[first_output(node)].expr
        if node in seen or expr is None or expr.combine not in (Combine.MAP, Combine.REDUCE):
            continue
        seen.add(node)
        found = softmax_gradient(graph, first_output(node), key)
        if found is not None and found.weights == weights:
            yield found
        todo += graph[first_output(node)].uses


def _multiplied_out(graph: Graph, name: str, key: int, nodes: list[ir.Node]) -> Terms | None:
    """A value as a sum of products; None of too many steps."""
    if (number := graph.splat(name)) is not None:
        return {(): float(number)}
    value = graph[name]
    node, expr = value.producer, value.expr
    alone: Terms = {(name,): 1.0}
    if len(nodes) > MOST_STEPS:
        return None
    if node is None or expr is None or node.domain:
        return alone
    sums = expr.combine is Combine.REDUCE and expr.reducer is Reducer.SUM
    if not sums and node.op_type not in _STEPS:
        return alone
    names = [first_input(node)] if sums else input_names(node)
    parts = [_multiplied_out(graph, each, key, nodes) for each in names]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    made = _over_keys(graph, name, key, known[0]) if sums else _STEPS[node.op_type](*known)
    if made is None:
        return alone
    nodes.append(node)
    return made


def _over_keys(graph: Graph, name: str, key: int, terms: Terms) -> Terms | None:
    """The sum of a product over keys; None of other sums."""
    node, expr = graph[name].producer, graph[name].expr
    assert node is not None and expr is not None
    source = graph[first_input(node)].shape
    along = source is not None and graph[name].shape == (*source[:key], ONE, *source[key + 1 :])
    squares = operator_of(node).packs is not PackRule.REDUCTION
    if squares or not along or len(expr.reduced) != 1 or len(terms) != 1:
        return None
    ((factors, number),) = terms.items()
    return {(SumOverKeys(first_input(node), factors),): number}


def _sum(first: Terms, second: Terms) -> Terms:
    total = dict(first)
    for term, number in second.items():
        total[term] = total.get(term, 0.0) + number
    return {t: c for t, c in total.items() if c != 0}


def _product(first: Terms, second: Terms) -> Terms:
    total = Terms()
    for a, x in first.items():
        for b, y in second.items():
            total = _sum(total, {tuple(sorted((*a, *b), key=str)): x * y})
    return total


def _negated(terms: Terms) -> Terms:
    return {term: -number for term, number in terms.items()}


def _quotient(first: Terms, second: Terms) -> Terms | None:
    """By a number."""
    number = second.get((), 0.0)
    return {t: c / number for t, c in first.items()} if len(second) == 1 and number else None


def _difference(first: Terms, second: Terms) -> Terms:
    return _sum(first, _negated(second))


_STEPS: Mapping[str, Callable[..., Terms | None]] = {
    "Add": _sum,
    "Sub": _difference,
    "Mul": _product,
    "Neg": _negated,
    "Div": _quotient,
}
