"""What becomes of the zeros of a value further down the graph: one walk from the outputs.

    r = relu(x)   t = transpose(r)   y = t @ w       zeros of r and of t arrive at a contraction
    m = cast(b)   s = m * g          z = h * s       b, m, g and s are multiplied by h

A search per value would take time with the square of the nodes.
"""

from collections.abc import Iterable, Iterator
from math import prod

import onnx_ir as ir

from pitc.ir.constant import TOP, Constant, Number, is_number, is_zero
from pitc.ir.expr import PRODUCTS, Combine, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.nodes import captures, output_names
from pitc.passes.rules.constants import evaluate_constants
from pitc.passes.rules.record import operator_of

WINDOW = 16  # elements of which the largest may well be 0, when many of them are
MAX_MULTIPLIED = 8  # of one value; whether it is a mask shows with the first few
ANYTHING = ""  # what an Einsum multiplies by


def note_uses(graph: Graph) -> None:
    """Fill in `contracted` and `multiplied` of a graph.

    Args:
        graph: The derived graph.
    """
    numbers = _numbers(graph)
    for node in reversed(graph.nodes):
        names = dict.fromkeys(x.name or "" for x in node.inputs if x is not None)
        view, outputs = NodeView(graph, node), output_names(node)
        for name in dict.fromkeys((*names, *captures(node))):
            if any(_carries_zero(view, output, name, numbers) for output in outputs):
                graph[name].contracted = True
            _note_multiplied(graph, node, outputs, name)


def _carries_zero(view: NodeView, output: str, name: str, numbers: dict[str, Number]) -> bool:
    """Whether zeros of an operand arrive at a contraction, which the node is or leads to."""
    expr = view.graph[output].expr
    if expr is None:
        return False
    if expr.combine in PRODUCTS:
        return True
    return view.graph[output].contracted and _keeps_zero(view, expr, name, numbers)


def _keeps_zero(view: NodeView, expr: TensorExpr, name: str, numbers: dict[str, Number]) -> bool:
    """Whether an output is 0 where this operand is."""
    if expr.combine is Combine.MOVE or is_window(expr):
        return True
    if expr.combine is not Combine.MAP:
        return False
    operands = (view.name(r.operand) for r in expr.reads)
    return is_zero(_evaluate(view, (0 if x == name else numbers.get(x, TOP) for x in operands)))


def _evaluate(view: NodeView, constants: Iterable[Constant]) -> Constant:
    dtype = view.out_dtype()
    to_bool = dtype is not None and dtype.kind == "b"
    return evaluate_constants(view.op, list(constants), to_bool, view)


def is_window(expr: TensorExpr) -> bool:
    """The largest of a few elements."""
    if expr.combine is not Combine.REDUCE or expr.reducer not in (Reducer.MAX, Reducer.POOLED):
        return False
    extents = [e.as_int() for e in expr.reduced]
    return None not in extents and prod(n for n in extents if n is not None) <= WINDOW


def _numbers(graph: Graph) -> dict[str, Number]:
    """Values that are one number everywhere because constants are: Sqrt(64) is 8."""
    known = {name: x for name in graph.constants() if (x := graph.splat(name)) is not None}
    for node in graph.nodes:
        view = NodeView(graph, node)
        expr = graph[view.out()].expr
        if expr is None or expr.combine not in (Combine.MAP, Combine.MOVE):
            continue
        operands = [view.name(r.operand) for r in expr.reads]
        found = [known[x] for x in operands if x in known]
        if not operands or len(found) < len(operands):
            continue
        if expr.combine is Combine.MAP:
            result = _evaluate(view, found)
        else:
            result = found[0] if len(set(found)) == 1 else TOP
        if is_number(result):
            known[view.out()] = result
    return known


def is_factor(graph: Graph, name: str) -> bool:
    """True when a number acts as a mask: it is a factor of something at least as large that is no
    function of the same number, as in x * sigmoid(x).
    """
    others = graph[name].multiplied
    return any(other == ANYTHING or not _is_function(graph, other, name) for other in others)


def _note_multiplied(graph: Graph, node: ir.Node, outputs: list[str], name: str) -> None:
    found = [*graph[name].multiplied, *_other_factor(graph, node, outputs, name)]
    passes = operator_of(node).converts or _is_product(node)
    for output in outputs:
        expr = graph[output].expr
        if expr is not None and (passes or expr.combine is Combine.MOVE):
            found += graph[output].multiplied
    if found:
        graph[name].multiplied = tuple(dict.fromkeys(found))[:MAX_MULTIPLIED]


def _other_factor(graph: Graph, node: ir.Node, outputs: list[str], name: str) -> Iterator[str]:
    """What a product multiplies an operand by, where that is as large as the product."""
    operator = operator_of(node)
    if not operator.multiplies:
        return
    if operator.function is None:  # not element by element
        yield ANYTHING
        return
    others = (x.name or "" for x in node.inputs if x is not None and x.name != name)
    other = next(others, "")
    same = any(graph[result].shape == graph[other].shape for result in outputs[:1])
    if other and same and graph.splat(other) is None:
        yield other


def _is_product(node: ir.Node) -> bool:
    """A product element by element: it is 0 where a factor is, and so what it multiplies."""
    operator = operator_of(node)
    return operator.multiplies and operator.function is not None


def _is_function(graph: Graph, name: str, of: str) -> bool:
    """True when a value is computed from another one element by element."""
    first = graph[of].order
    seen, todo = {name}, [name]
    while todo:
        x = todo.pop()
        if x == of:
            return True
        expr, producer = graph[x].expr, graph[x].producer
        if producer is None or expr is None or expr.combine not in (Combine.MAP, Combine.MOVE):
            continue
        view = NodeView(graph, producer)
        # what stands in front of it cannot be computed from it
        found = {x for r in expr.reads if graph[x := view.name(r.operand)].order >= first}
        todo += found - seen
        seen |= found
    return False
