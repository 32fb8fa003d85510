"""The first forward walk: a tensor expression, a shape and symbolic integers for every value."""

import onnx_ir as ir

from pitc.ir.branch import SIDES, Path
from pitc.ir.expr import Shape
from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.ir.index import ONE, UNDECLARED, Poly, nonneg
from pitc.ir.nodes import FIXED, WHOLE, captures, input_names, output_names
from pitc.passes.control.bodies import body_model, first_shapes, is_loop
from pitc.passes.control.branches import open_branches
from pitc.passes.exprs.affine import learn, learn_constants
from pitc.passes.rules import expr_of


def derive(graph: Graph) -> None:
    """Fill in `exprs`, `shapes`, `values`, `affine`, `vectors`, `images` and `unruled`.

    Args:
        graph: A graph as read; it is changed in place.
    """
    learn_constants(graph)
    _walk(graph)
    while found := _reached(graph) - graph.reached:
        graph.reached |= found
        _walk(graph)


def _reached(graph: Graph) -> set[tuple[Poly, Poly]]:
    """Sizes that are never clamped and never 0, or the model itself fails.

    table[:s] has n = min(s, 512) rows. Where it is added to something of s rows, n is s: it is not
    1 unless s is, and other sizes do not broadcast. So no run of the model has s > 512, if it
    always comes to that node, or to one such node in each branch of an If. The same of a Reshape
    that asks for s places: where s is 0 it keeps its operand's, and n is not s.
    """
    pairs = [(node, ONE, size) for node, size in graph.demands]
    for node, extents in graph.joins:
        for n in extents & graph.clamps.keys():
            last, size = graph.clamps[n]
            if extents == {n, last} and nonneg(size - 2):
                pairs.append((node, last, size))
        for n in extents & graph.copies.keys():
            size = graph.copies[n][0]
            if extents == {n, size} and nonneg(_where_zero(graph, n, size) - 2):
                pairs.append((node, ONE, size))
    found: set[tuple[Path, Poly, Poly]] = set()
    wanted = _wanted(graph)
    for node, last, size in pairs:
        outputs = wanted.intersection(output_names(node))
        found |= {(graph[o].branch, last, size) for o in outputs}
    for path, last, size in list(found):
        while path and all(((*path[:-1], (path[-1][0], s)), last, size) in found for s in SIDES):
            path = path[:-1]
            found.add((path, last, size))
    everywhere = {(last, size) for path, last, size in found if not path}
    # what a walk calls a size that it does not know, the next one calls otherwise
    return {p for p in everywhere if not any(UNDECLARED in str(size) for size in p)}


def _where_zero(graph: Graph, n: Poly, size: Poly) -> Poly:
    """What a size of Reshapes is where they ask for a size that is 0."""
    while n in graph.copies and graph.copies[n][0] == size:
        n = graph.copies[n][1]
    return n


def _wanted(graph: Graph) -> set[str]:
    """The values that the graph's outputs are computed from."""
    wanted = set(graph.outputs)
    for node in reversed(graph.nodes):
        if wanted.intersection(output_names(node)):
            wanted.update(input_names(node), captures(node))
    return wanted


def _walk(graph: Graph) -> None:
    graph.steps = {False: {}, True: {}}
    for node in graph.nodes:
        view, why = NodeView(graph, node), ""
        try:
            exprs = expr_of(view)
        except NoRule as error:
            exprs, why = (None,) * view.n_outputs, str(node.meta.get(WHOLE, error))
        carried: dict[int, Shape | None] = {}
        if is_loop(graph, node):
            graph.carried[node] = carried_shapes(graph, node)
            carried = dict(enumerate(graph.carried[node][1:]))
        if graph.tell is not None:
            carried.update(graph.tell(graph, node))
        for k, expr in enumerate(exprs):
            name = view.out(k)
            if not name:
                continue
            value, reason = graph[name], why or f"output {k} has no expression"
            if expr is not None and not all(map(nonneg, expr.shape)):
                expr, reason = None, "a size of it may be negative, which means 0"
            value.expr = expr
            shape = carried.get(k) if expr is None else expr.shape
            value.shape = graph.inferred_shape(name) if shape is None else shape
            value.unruled = "" if expr is not None else f"{view.op}: {reason}"
        learn(view)


def carried_shapes(graph: Graph, node: ir.Node) -> list[Shape | None]:
    """Shapes that the condition and the carried values of a loop have in every trip.

    Args:
        graph: The graph, derived up to the node.
        node: A loop.

    Returns:
        A shape for each, the condition first; None where it is not known to stay as it is at the
        start.
    """
    view = NodeView(graph, node)
    shapes = [graph[view.name(k)].shape for k in range(FIXED, view.n_inputs)]
    shapes = [first_shapes(graph, node)[1], *shapes]
    while any(s is not None for s in shapes):
        model = body_model(graph, node, shapes)
        open_branches(model)
        inner = Graph(model)
        inner.tell = graph.tell
        derive(inner)
        triples = zip(inner.inputs[1:], inner.outputs, shapes, strict=False)
        kept = [s if inner[y].shape == inner[x].shape else None for x, y, s in triples]
        if kept == shapes:
            break
        shapes = kept
    return shapes
