"""Sizes that remain beside a 0: where nobody sees them, they are the ones that the others ask for.

    y = Reshape(x, (b, 4, s, -1), allowzero=1)    x is (4*b, s, s)    z = y + mask, (b, 1, s, s)

What remains is s, but where s or b is 0: there ONNX Runtime divides what is not 0 by what is not 0,
and it is 1 or s / 4. But there y has no elements, and z is of the shape of the mask, or the model
fails. So the last size may as well be s always, which is a shape that facts can name. In front of a
MatMul by a value (b, s, n) any other size fails, too.
"""

import onnx_ir as ir

from pitc.ir.branch import is_choice
from pitc.ir.build import Names, NodeMaker, names_of
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NodeView, Rest
from pitc.ir.nodes import attribute, first_output
from pitc.ir.sizes import input_dimension
from pitc.passes.exprs.derive import derive


def name_rests(model: ir.Model) -> int:
    """Ask for a size of an input in the place of -1, where that is what remains, or nobody sees it.

    Args:
        model: A model without Constant nodes; its main graph is changed in place.

    Returns:
        How many Reshapes ask for it.
    """
    if not any(n.op_type == "Reshape" and attribute(n, "allowzero", 0) for n in model.graph):
        return 0
    taken, count = names_of(model.graph), 0
    while found := _named(model, taken):
        count += found
    return count


def _named(model: ir.Model, taken: Names) -> int:
    """The same once: what is named may tell what remains of values behind it."""
    graph, count = Graph(model), 0
    derive(graph)
    for node, rest in graph.rests.items():
        symbol = next(iter(rest.size.symbols()), "")
        found = input_dimension(graph, symbol) if rest.size.terms == {(symbol,): 1} else None
        if found is not None and _is_unseen(graph, node, rest):
            _name(model, NodeMaker(model.graph, taken, before=node), node, found)
            count += 1
    return count


def _name(model: ir.Model, build: NodeMaker, node: ir.Node, found: tuple[str, int]) -> None:
    """Put a size of an input in the place of -1."""
    stem, (name, dim) = first_output(node), found
    x = next(v for v in model.graph.inputs if v.name == name)
    place, rest = (
        build.named(build.names.value(f"{stem}.{what}"), [number])
        for what, number in (("dimension", dim), ("rest", -1))
    )
    names = [build.names.value(f"{stem}.{what}") for what in ("sizes", "size", "is_rest", "shape")]
    (sizes,) = build.add("Shape", [x], {}, names[:1])
    (size,) = build.add("Gather", [sizes, place], {"axis": 0}, names[1:2])
    (is_rest,) = build.add("Equal", [node.inputs[1], rest], {}, names[2:3])
    (shape,) = build.add("Where", [is_rest, size, node.inputs[1]], {}, names[3:])
    node.replace_input_with(1, shape)


def _is_unseen(graph: Graph, node: ir.Node, rest: Rest) -> bool:
    """True where nobody sees in which other shape a result is empty, but for models that fail."""
    name = first_output(node)
    value = graph[name]
    if value.shape is None or value.captured or name in graph.outputs:
        return False
    return bool(value.uses) and all(_asks_for(graph, n, name, rest) for n in value.uses)


def _asks_for(graph: Graph, reader: ir.Node, name: str, rest: Rest) -> bool:
    """True where another operand of a node has that size along the dimension of this one: it goes
    through elements, which broadcast, or it sums products, of as many as the other one has.
    """
    view, shape = NodeView(graph, reader), graph[name].shape or ()
    expr = graph[first_output(reader)].expr
    if expr is None or reader.domain or is_choice(reader):
        return False
    behind = len(shape) - rest.place
    others = [view.name(r.operand) for r in expr.reads if view.name(r.operand) != name]
    shapes = [graph[x].shape or () for x in others]
    if expr.combine is Combine.MAP:
        sizes = (x[-behind] for x in shapes if len(x) >= behind)
        return rest.broadcasts and any(e == rest.size for e in sizes)
    if reader.op_type != "MatMul":
        return False
    summed = [x[-min(len(x), 2)] for x in shapes if x]
    return behind == 1 and view.name(0) == name and summed == [rest.size]
