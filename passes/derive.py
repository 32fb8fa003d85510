"""The first forward walk: a tensor expression, a shape and symbolic integers for every value."""

from pitc.ir.graph import Graph, NodeView, NoRule
from pitc.passes.affine import learn, learn_constants
from pitc.passes.rules import expr_of


def derive(graph: Graph) -> None:
    """Fill in `exprs`, `shapes`, `values`, `affine`, `vectors`, `images` and `unruled`.

    Args:
        graph: A graph as read; it is changed in place.
    """
    learn_constants(graph)
    for node in graph.nodes:
        view = NodeView(graph, node)
        try:
            exprs = expr_of(view)
        except NoRule as why:
            exprs = (None,) * view.n_outputs
            for k in range(view.n_outputs):
                if view.out(k):
                    graph.unruled[view.out(k)] = f"{view.op}: {why}"
        for k, expr in enumerate(exprs):
            name = view.out(k)
            if not name:
                continue
            graph.exprs[name] = expr
            graph.shapes[name] = expr.shape if expr is not None else graph.inferred_shape(name)
            if expr is None:
                graph.unruled.setdefault(name, f"{view.op}: output {k} has no expression")
        learn(view, exprs)
