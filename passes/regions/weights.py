"""What attention's weights are the softmax of.

softmax(z)                            the scores z; less their row's maximum, it is the same
softmax(concat(z, sink))[.., :-1]     and beside them a sink, which takes weight without a value

weights of 3 keys beside a sink:  e^z_k / (e^z_0 + e^z_1 + e^z_2 + e^sink)
"""

from dataclasses import dataclass

import onnx_ir as ir

from pitc.ir.expr import Combine, Reducer
from pitc.ir.graph import Graph
from pitc.ir.index import ONE, Poly, dim_index
from pitc.ir.nodes import first_input, input_names
from pitc.passes.rules.record import operator_of


@dataclass(frozen=True, slots=True)
class Softmax:
    """A softmax over the keys.

    Args:
        node: The node.
        scores: What it is of, without the sink.
        sink: A value that broadcasts to the scores of one key; None without.
        nodes: The node, and those around it that weights need no more.
    """

    node: ir.Node
    scores: str
    sink: str | None
    nodes: tuple[ir.Node, ...]


def softmax_of(graph: Graph, name: str, key: int) -> Softmax | None:
    """The softmax over the keys that weights are, or are but for a sink; None where they are none.

    Args:
        graph: The analysed graph.
        name: The weights.
        key: Their dimension of keys.
    """
    node = graph[name].producer
    if node is None:
        return None
    if _is_softmax(graph, name, key):
        scores, shift = _before_shift(graph, first_input(node), key)
        return Softmax(node, scores, None, (node, *shift))
    for before in (0, 1):
        whole = _all_but_one(graph, node, name, key, before)
        softmax = None if whole is None else graph[whole].producer
        if whole is None or softmax is None or not _is_softmax(graph, whole, key):
            continue
        both, shift = _before_shift(graph, first_input(softmax), key)
        join = graph[both].producer
        names = None if join is None else _joined(graph, join, both, key)
        if join is None or names is None or graph[names[before]].shape != graph[name].shape:
            continue  # what is left of two that have all but one place in common has one
        sink, spread = _before_spread(graph, names[1 - before])
        return Softmax(softmax, names[before], sink, (node, softmax, *shift, join, *spread))
    return None


def _is_softmax(graph: Graph, name: str, key: int) -> bool:
    expr = graph[name].expr
    return expr is not None and expr.combine is Combine.SOFTMAX and expr.normal == (key,)


def _before_shift(graph: Graph, name: str, key: int) -> tuple[str, tuple[ir.Node, ...]]:
    """Scores whose row's maximum is taken away: a softmax does that by itself, to the bit.

    z - max over k of z   ->   z

    Args:
        graph: The graph.
        name: What a softmax is of.
        key: Its dimension of keys.

    Returns:
        The scores before, or the same, and the nodes between.
    """
    node, expr = graph[name].producer, graph[name].expr
    if node is None or expr is None or expr.combine is not Combine.MAP or len(node.inputs) != 2:
        return name, ()
    operator, (scores, top) = operator_of(node), input_names(node)
    if (operator.weight(0), operator.weight(1)) != (1, -1):
        return name, ()
    maximum, most = graph[top].producer, graph[top].expr
    if maximum is None or most is None or most.reducer is not Reducer.MAX:
        return name, ()
    places = _places(graph, scores)
    along = [dim_index(len(places), e) if d == key else p for d, (p, e) in enumerate(places)]
    alone = most.combine is Combine.REDUCE and len(most.reads) == 1
    same = graph[name].shape == graph[scores].shape and most.extents[len(places) :] == tuple(
        e for d, (_, e) in enumerate(places) if d == key
    )
    if not alone or not same or first_input(maximum) != scores:
        return name, ()
    return (scores, (node, maximum)) if list(most.reads[0].index) == along else (name, ())


def _places(graph: Graph, name: str) -> list[tuple[Poly, Poly]]:
    """The index of each dimension that reads a value where it is, and its extent."""
    return [(dim_index(d, e), e) for d, e in enumerate(graph[name].shape or ())]


def _all_but_one(graph: Graph, node: ir.Node, name: str, key: int, before: int) -> str | None:
    """What a node gives all elements of but those of one key: the last one, or the first `before`
    ones.
    """
    expr = graph[name].expr
    if expr is None or expr.combine is not Combine.MOVE or len(expr.moving_reads) != 1:
        return None
    read, source = expr.moving_reads[0], first_input(node)
    at = [dim_index(d, e) + (before if d == key else 0) for d, e in enumerate(expr.shape)]
    more = tuple(e + ONE if d == key else e for d, e in enumerate(expr.shape))
    whole = read.operand == 0 and not read.within.tests and graph[source].shape == more
    return source if whole and list(read.index) == at else None


def _joined(graph: Graph, node: ir.Node, name: str, key: int) -> list[str] | None:
    """Two values that a node puts behind each other along the keys; None where it does not."""
    expr, names = graph[name].expr, input_names(node)
    first = graph[names[0]].shape
    if expr is None or expr.combine is not Combine.MOVE or first is None or len(names) != 2:
        return None
    at = [dim_index(d, e) for d, e in enumerate(expr.shape)]
    behind = [p - first[key] if d == key else p for d, p in enumerate(at)]
    found = [(r.operand, list(r.index)) for r in expr.reads]
    return names if found == [(0, at), (1, behind)] else None


def _before_spread(graph: Graph, name: str) -> tuple[str, tuple[ir.Node, ...]]:
    """A value before it was repeated, and the nodes that repeat it."""
    nodes = list[ir.Node]()
    while (node := graph[name].producer) is not None and node.op_type == "Expand":
        if node.domain:
            break
        nodes.append(node)
        name = first_input(node)
    return name, tuple(nodes)
