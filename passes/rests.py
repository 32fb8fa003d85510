"""Sizes that remain beside a 0: where nobody sees them, they are the ones that the others ask for.

    y = Reshape(x, (b, 4, s, -1), allowzero=1)    x is (4*b, s, s)    z = y + mask, (b, 1, s, s)

What remains is s, but where s or b is 0: there ONNX Runtime divides what is not 0 by what is not 0,
and it is 1 or s / 4. But there y has no elements, and z is of the shape of the mask, or the model
fails. So the last size may as well be s always, which is a shape that facts can name.
"""

import onnx_ir as ir

from pitc.ir.branch import is_choice
from pitc.ir.build import NodeMaker, names_of
from pitc.ir.expr import Combine
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import Poly
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
    graph, taken = Graph(model), names_of(model.graph)
    derive(graph)
    count = 0
    for node, (place, size) in graph.rests.items():
        symbol = next(iter(size.symbols()), "")
        found = input_dimension(graph, symbol) if size.terms == {(symbol,): 1} else None
        if found is not None and _is_unseen(graph, node, place, size):
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


def _is_unseen(graph: Graph, node: ir.Node, place: int, size: Poly) -> bool:
    """True where nobody sees in which other shape a result is empty: what reads it goes through
    elements, and broadcasts them with others of that size.
    """
    name = first_output(node)
    value = graph[name]
    if value.shape is None or value.captured or name in graph.outputs:
        return False
    behind = len(value.shape) - place
    for reader in value.uses:
        expr = graph[first_output(reader)].expr
        if expr is None or expr.combine is not Combine.MAP or reader.domain or is_choice(reader):
            return False
        view = NodeView(graph, reader)
        others = {view.name(r.operand) for r in expr.reads} - {name}
        shapes = [graph[x].shape or () for x in others]
        if not any(len(x) >= behind and x[len(x) - behind] == size for x in shapes):
            return False
    return bool(value.uses)
